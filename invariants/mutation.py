"""Mutation testing over ``core_pure``: ``python -m invariants.mutation``, or ``make mutation``.

Every function is parsed, and every place where one operator, constant or condition could be another is a mutant. Each runs in a
forked process with the function's code swapped, against checks from fast to slow: contract witnesses, random walks, serving
walks, then the tests of its module. The first that fails kills it. Results are kept line by line in ``--out``, so a run that
stops goes on where it was; ``--shard 2/4`` takes every fourth mutant from the second on; ``--every 10`` takes a sample;
``--score`` writes the committed score.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import signal
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

import core_pure

from .mutants import function_of, recompiled

ROOT = Path(core_pure.__file__).parent
SCORE = Path(__file__).with_name("mutation_score.json")
SECONDS = 90
"""A mutant that runs longer hangs, and counts as killed."""
LEFT_OUT = ("__init__", "errors", "capacity")
"""Nothing to mutate: exceptions and protocols."""
TESTS = {
    "geometry": ("test_geometry", "test_layout"),
    "layout": ("test_layout", "test_fits"),
    "chain": ("test_chain", "test_fits"),
    "fits": ("test_fits", "test_admission"),
    "relief": ("test_relief",),
    "table": ("test_table",),
    "compact": ("test_compact",),
    "fences": ("test_fences_pins",),
    "pins": ("test_fences_pins",),
    "copies": ("test_copies",),
    "recording": ("test_event_recording", "regressions"),
    "event": ("test_event_recording",),
    "plan": ("test_event_recording", "test_reference_plans"),
    "admission": ("test_admission", "test_layout"),
    "leases": ("test_step", "regressions"),
    "step": ("test_step", "regressions"),
    "door": ("test_door", "test_pools"),
    "report": ("test_door",),
    "rollback": ("test_rollback",),
    "state": ("test_resize",),
    "advance": ("test_resize", "test_copies"),
}
COMMON = ("test_advance", "test_contract", "test_verify")

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Mod: ast.FloorDiv,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@frozen
class Place:
    """One mutant: a function, and which of its places is changed how."""

    module: str
    function: str  # qualified name
    number: int
    line: int
    change: str

    @property
    def id(self) -> str:
        """Stable while the function's source is."""
        return f"{self.module}:{self.function}#{self.number} {self.change}"


# --- changing one place ------------------------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """What can be done to one node: a name for it, and the change in place."""
    match node:
        case ast.Compare() if type(node.ops[0]) in COMPARE:
            other = COMPARE[type(node.ops[0])]
            yield f"{type(node.ops[0]).__name__} to {other.__name__}", lambda n: n.ops.__setitem__(0, other())
        case ast.BinOp() | ast.AugAssign() if type(node.op) in BINARY:
            swapped = BINARY[type(node.op)]
            yield f"{type(node.op).__name__} to {swapped.__name__}", lambda n: setattr(n, "op", swapped())
        case ast.BoolOp():
            flipped = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield f"{type(node.op).__name__} to {flipped.__name__}", lambda n: setattr(n, "op", flipped())
        case ast.Constant() if isinstance(node.value, bool):
            yield f"{node.value} to {not node.value}", lambda n: setattr(n, "value", not n.value)
        case ast.Constant() if isinstance(node.value, int):
            yield f"{node.value} to {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
        case ast.Call() if isinstance(node.func, ast.Name) and node.func.id in NAMES:
            yield f"{node.func.id} to {NAMES[node.func.id]}", lambda n: setattr(n.func, "id", NAMES[n.func.id])
        case ast.If() | ast.IfExp():
            yield "condition to True", lambda n: setattr(n, "test", ast.Constant(True))
            yield "condition to False", lambda n: setattr(n, "test", ast.Constant(False))


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a function's body, docstring, annotations and messages of errors left out."""
    kept: list[ast.AST] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, (ast.JoinedStr, ast.arguments, ast.Assert)):
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                walk(node.value)
            return
        if isinstance(node, ast.Raise):
            return
        kept.append(node)
        for child in ast.iter_child_nodes(node):
            walk(child)

    for statement in tree.body:  # type: ignore[attr-defined]
        walk(statement)
    return kept


def mutated(source: str, number: int) -> str:
    """The function's source with its change ``number``."""
    tree = ast.parse(source)
    function = tree.body[0]
    count = 0
    for node in _nodes(function):
        for _, change in changes(node):
            if count == number:
                change(node)
                return ast.unparse(ast.fix_missing_locations(tree))
            count += 1
    raise IndexError(number)


def places() -> Iterator[Place]:
    """Every mutant of the core, in order of files and lines."""
    for path in sorted(ROOT.glob("*.py")):
        if path.stem in LEFT_OUT:
            continue
        tree = ast.parse(path.read_text())
        for node in tree.body:
            owners = [("", node)] if isinstance(node, ast.FunctionDef) else []
            if isinstance(node, ast.ClassDef):
                owners = [(node.name + ".", each) for each in node.body if isinstance(each, ast.FunctionDef)]
            for prefix, function in owners:
                number = 0
                for at in _nodes(copy.deepcopy(function)):
                    for change, _ in changes(at):
                        yield Place(path.stem, prefix + function.name, number, getattr(at, "lineno", function.lineno), change)
                        number += 1


# --- killing it --------------------------------------------------------------------------------------------------------


def _source(place: Place) -> str:
    import inspect

    return textwrap.dedent(inspect.getsource(function_of(f"{place.module}:{place.function}")))


def plant(place: Place) -> None:
    """Swap the function's code in this process, for good. Raises: what compiling raises."""
    function = function_of(f"{place.module}:{place.function}")
    function = getattr(function, "__wrapped__", function)
    function.__code__ = recompiled(function, mutated(_source(place), place.number))


def kill(place: Place) -> str:
    """The check that notices the planted mutant; "" when it survives. Runs in the forked process."""
    from . import serving, walks
    from .contracts import witness_failures
    from .contracts_list import CONTRACTS

    try:
        if any(list(witness_failures(contract)) for contract in CONTRACTS):
            return "witness"
    except Exception:
        return "witness"
    for number in range(3 * len(walks.SHAPES)):
        shape = walks.SHAPES[number % len(walks.SHAPES)]
        try:
            found = walks.run(shape, walks.moves(number, shape, 100))
        except Exception:
            return "walk"
        if found is not None:
            return found.violation.claim
    for seed in range(30):
        try:
            broken = serving.serving_walk(seed)
        except Exception:
            return "serving"
        if broken is not None:
            return broken.claim
    return _by_tests(place)


def _by_tests(place: Place) -> str:
    import pytest

    folder = ROOT.parent / "tests"
    names = dict.fromkeys((*TESTS.get(place.module, ()), *COMMON))
    chosen = [str(path) for name in names for path in (folder / f"{name}.py", folder / name) if path.exists()]
    code = pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:benchmark", *chosen])
    return "tests" if code not in (0, 5) else ""


def judge(place: Place, seconds: int = SECONDS) -> str:
    """Fork, plant, check. Returns: what killed it, or ""."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        said = "crash"
        try:
            plant(place)
            said = kill(place)
        except BaseException as error:
            said = f"crash {type(error).__name__}"
        os.write(writing, said.encode()[:200])
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, _ = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        return "timeout"
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


# --- running and scoring -----------------------------------------------------------------------------------------------


def known(out: Path) -> dict[str, str]:
    """Results so far by mutant."""
    if not out.exists():
        return {}
    lines = (json.loads(line) for line in out.read_text().splitlines() if line.strip())
    return {line["id"]: line["killed_by"] for line in lines}


def run(out: Path, shard: tuple[int, int], every: int, minutes: float) -> None:
    """Judge what is not known yet."""
    chosen = [place for at, place in enumerate(places()) if at % every == 0]
    chosen = chosen[shard[0] - 1 :: shard[1]]
    done, end = known(out), time.monotonic() + minutes * 60
    out.parent.mkdir(parents=True, exist_ok=True)
    for at, place in enumerate(chosen):
        if place.id in done:
            continue
        if time.monotonic() > end:
            print(f"time is up after {at} of {len(chosen)}; run again to go on")
            return
        said = judge(place)
        with out.open("a") as file:
            file.write(json.dumps({"id": place.id, "line": place.line, "killed_by": said}) + "\n")
        print(f"{at + 1}/{len(chosen)} {place.id}: {said or 'SURVIVES'}", flush=True)


def score(out: Path) -> dict[str, Any]:
    """Killed and all by module, killers, and survivors, of the mutants that still exist."""
    results, total, killed = known(out), Counter[str](), Counter[str]()
    killers, survivors = Counter[str](), defaultdict(list)
    for place in places():
        said = results.get(place.id)
        if said is None:
            continue
        total[place.module] += 1
        killed[place.module] += bool(said)
        killers[said or "nobody"] += 1
        if not said:
            survivors[place.module].append(f"{place.function} line {place.line}: {place.change}")
    everything = sum(total.values())
    return {
        "mutants_in_all": sum(1 for _ in places()),
        "judged": everything,
        "killed": sum(killed.values()),
        "share": round(sum(killed.values()) / everything, 4) if everything else None,
        "modules": {module: f"{killed[module]} of {total[module]}" for module in sorted(total)},
        "killers": dict(killers.most_common()),
        "survivors": dict(sorted(survivors.items())),
    }


def main(arguments: list[str] | None = None) -> int:
    """0 when judged; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m invariants.mutation", description=__doc__)
    parser.add_argument("--shard", default="1/1", help="this part of so many")
    parser.add_argument("--every", type=int, default=1, help="one mutant of so many")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long; run again to go on")
    parser.add_argument("--out", type=Path, default=Path("out/mutation/results.jsonl"))
    parser.add_argument("--score", action="store_true", help="write the score of what is known, and stop")
    chosen = parser.parse_args(arguments)
    part, _, parts = chosen.shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)) or chosen.every < 1:
        print(f"--shard {chosen.shard} --every {chosen.every}: expected a part of so many, such as 2/4, and a whole number")
        return 2
    if not chosen.score:
        run(chosen.out, (int(part), int(parts)), chosen.every, chosen.minutes)
    else:
        SCORE.write_text(json.dumps(score(chosen.out), indent=1) + "\n")
    print(json.dumps({key: value for key, value in score(chosen.out).items() if key != "survivors"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
