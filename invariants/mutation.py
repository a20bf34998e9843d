"""Mutation testing of the core: are its tests able to fail? Each wrong edit of ``mutate`` is run against the tests that reach it.

    python -m invariants.mutation [--modules a,b] [--shard 1/2] [--limit 100] [--seconds 600] [--report]

It works in a copy of the tree in a temporary directory; the tree itself is only read. One run of the unchanged copy notes which
test calls which function, and how long it takes. Then each edit is made in the copy, and a child process (mutation_warm.py) takes
random walks with every claim checked, and runs the tests that call the edited function, those of the module first, the fast before
the slow, until one fails or TESTS_S of them have passed. The order of edits is drawn by a fixed seed, so that any prefix is a
sample. Results are appended to mutation_results.jsonl as they come; what is there is not judged again (an edit of a function that
was changed since counts as new), except, with --again, what survived and is not explained: against AGAIN_S of tests.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from attrs import asdict, frozen

from .mutate import Edit, edits
from .mutation_report import FITTED, RESULTS, Result, read_explanations, read_results, write_report
from .mutation_warm import FOREIGN, Warm, in_child

ROOT = Path(__file__).resolve().parent.parent
SILENT = ("__init__", "errors", "capacity")
"""Names and a protocol: nothing that runs."""
MODULES = tuple(sorted({path.stem for path in (ROOT / "core_pure").glob("*.py")} - set(SILENT)))
TESTS = (
    *sorted(path.stem for path in ROOT.glob(f"{FITTED}*.py")),
    "test_checkpoints", "test_chain", "test_geometry", "test_fits", "test_relief", "test_advance", "test_step", "test_compact",
    "test_table", "test_layout", "test_door", "test_admission", "test_verify", "test_event_recording",
    "test_fences_pins", "test_copies", "test_rollback", "test_planner", "test_contract", "test_brute", "test_brute_ties",
    "test_reference", "test_reference_plans", "test_resize", "regressions",
)  # fmt: skip
"""Tests that state a property of the core; those that read its source as text are not among them."""
COPIED = ("core_pure", "invariants", "models", "shell_gpu", "tests", "conftest.py", "kvarena.py", "pyproject.toml")
SLOW = (
    "test_F25_churn_without_leaks", "test_lazy_equals_eager", "test_relief_is_the_optimum_of_all_sequences_of_moves",
    "test_served_lazily_or_eagerly_each_lease_has_the_same_pages", "test_minima_hold_in_every_reachable_state",
)  # fmt: skip
"""Left out: each takes more than five seconds, which only a survivor would ever need."""
TESTS_S, AGAIN_S = 3.0, 24.0
"""Seconds of tests, as measured on the unchanged copy, that an edit has to survive at first; and with --again."""
FILES = 5
"""Test files that a child collects anew where it must import the edited copy: that costs more than most tests. With --again all."""
WALKS, SERVING_WALKS = 20, 10
"""Random walks with every claim checked, and serving walks, that an edit has to survive before the tests."""
SPARE_S = 12
"""Seconds of processor time that the tests of an edit may take beyond three times what they take without it."""
TRACED = 100_000
"""Calls of a test that are looked at for what it reaches; a long test repeats itself."""
WARM = ("numpy", "torch", "hypothesis", "hypothesis.stateful", "pytest", "_pytest.assertion.rewrite", "attrs", "rich.console")


@frozen
class Test:
    """One test that passes on the unchanged core. seconds: on that run; reaches: "module:function" it calls."""

    name: str
    seconds: float
    reaches: frozenset[str]

    @property
    def file(self) -> str:
        """The file it is in."""
        return self.name.split("::")[0]


@frozen
class Verdict:
    """What the checks said. status: killed, timeout, survived. by: the test that failed, or the claim a walk broke."""

    status: str
    by: str = ""
    seconds: float = 0.0


class Watch:
    """Pytest plugin: chooses and orders the tests, notes the first failure; with ``trace``, what each test calls."""

    def __init__(self, order: Sequence[str] | None, core: Path | None) -> None:
        self.rank = None if order is None else {name: at for at, name in enumerate(order)}
        self.core = None if core is None else str(core)
        self.failed = ""
        self.tests: list[dict[str, Any]] = []
        self.called: set[Any] = set()
        self.traced = 0

    def pytest_configure(self) -> None:
        """No shrinking: that a test fails is enough. Everything else as in CI (conftest.py has chosen that by now)."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", settings.get_profile("kvarena-ci"), phases=phases)
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """The chosen tests in their order; of all tests, those that are not slow."""
        rank = self.rank
        if rank is None:
            items[:] = [item for item in items if item.originalname not in SLOW]
        else:
            items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])

    def pytest_runtest_setup(self) -> None:
        """Start to note calls."""
        self.called, self.traced = set(), 0
        if self.core is not None:
            sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        self.called.add(frame.f_code)
        self.traced += 1
        if self.traced > TRACED:
            sys.settrace(None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure, or what a passed test called."""
        if report.failed:
            self.failed = self.failed or report.nodeid
        elif report.when == "call" and report.passed and self.core is not None:
            sys.settrace(None)
            reaches = {
                f"{Path(code.co_filename).stem}:{code.co_qualname.split('.<locals>')[0]}"
                for code in self.called
                if code.co_filename.startswith(self.core)
            }
            self.tests.append({"name": report.nodeid, "seconds": report.duration, "reaches": sorted(reaches)})

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported fails."""
        if report.failed:
            self.failed = self.failed or report.nodeid


class Bench:
    """A copy of the tree, and the tests of the unchanged core with what they reach."""

    def __init__(self, root: Path, folder: Path, tests: Sequence[str], walks: int = WALKS, tests_s: float = TESTS_S) -> None:
        self.walks, self.tests_s, self.files = walks, tests_s, FILES if tests_s <= TESTS_S else len(tests)
        self.warm: Warm | None = None
        self.folder, self.copy = folder, folder / "tree"
        for name in COPIED:
            source, target = root / name, self.copy / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        self.core = self.copy / "core_pure"
        found = self._known(tests)
        self.red = found["failed"]
        self.tests = [Test(t["name"], t["seconds"], frozenset(t["reaches"])) for t in found["tests"]]

    def _known(self, tests: Sequence[str]) -> dict[str, Any]:
        """What the tests of the unchanged copy reach; kept in the temporary directory for the next run on the same sources."""
        digest = hashlib.sha256(repr(tests).encode())
        for path in [*sorted(self.core.rglob("*.py")), *sorted((self.copy / "tests").rglob("*.py"))]:
            digest.update(path.read_bytes())
        kept = Path(tempfile.gettempdir()) / f"kvarena-mutation-{digest.hexdigest()[:16]}.json"
        if kept.exists():
            known: dict[str, Any] = json.loads(kept.read_text())
            return known
        walked = in_child(self._walk, self.folder, 600)
        if not walked or walked["failed"]:
            raise SystemExit(f"walks on the unchanged core: {walked and walked['failed']}")
        found = in_child(lambda: self._pytest(tests, None), self.folder, 1800)
        if not found or not found["tests"]:
            raise SystemExit(f"the unchanged core was not tested: {found and found['failed']}")
        kept.write_text(json.dumps(found))
        return found

    def _enter(self) -> None:
        """In the child: from here on, the core is that of the copy."""
        os.chdir(self.copy)
        os.environ.update(CI="true", PYTHONPATH=str(self.copy), KVARENA_STRICT="1")
        for name in [name for name in sys.modules if name.split(".")[0] in ("core_pure", "invariants")]:
            del sys.modules[name]
        sys.path[:] = [str(self.copy), *[path for path in sys.path if path not in ("", str(ROOT))]]
        origin = importlib.import_module("core_pure").__file__ or ""
        if not origin.startswith(str(self.core)):
            os._exit(FOREIGN)  # a verdict would be about another core

    def warm_up(self, tests: Sequence[str]) -> Warm:
        """Have a process that has collected the tests. Later edits are judged by its children, where these can."""

        def start() -> None:
            self._enter()
            for name in ("walks", "serving") if self.walks else ():
                importlib.import_module(f"invariants.{name}")

        self.warm = Warm(self.core, self.folder, tests, start, self._broken, Watch(None, None))
        return self.warm

    def _walk(self) -> dict[str, Any]:
        """In the child: the first claim broken by a walk."""
        self._enter()
        return {"failed": self._broken()}

    def _broken(self, part: slice = slice(None)) -> str:
        """Random walks and serving walks with every claim checked; the first claim broken, or what was raised. part: of each."""
        if not self.walks:
            return ""
        try:
            walks, serving = (importlib.import_module(f"invariants.{name}") for name in ("walks", "serving"))
            for number in range(self.walks)[part]:
                shape = walks.SHAPES[number % len(walks.SHAPES)]
                found = walks.run(shape, walks.moves(number, shape, 100))
                if found is not None:
                    return f"walk: {found.violation.claim}"
            broken = next(filter(None, map(serving.serving_walk, range(SERVING_WALKS)[part])), None)
            return f"serving walk: {broken.claim}" if broken else ""
        except Exception as error:
            return f"walk: {type(error).__name__}"

    def _face(self, files: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
        """In the child: what an edit has to survive."""
        sys.dont_write_bytecode = True
        found = self._walk()
        return self._pytest(files, names) if not found["failed"] and names else found

    def _pytest(self, files: Sequence[str], order: Sequence[str] | None) -> dict[str, Any]:
        """In the child: run these tests on the copy; without an order, all of them, noting what each calls."""
        self._enter()
        import pytest

        watch = Watch(order, self.core if order is None else None)
        stop = () if order is None else ("-x",)
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", *stop, *files], plugins=[watch])
        return {"failed": watch.failed, "tests": watch.tests}

    def order(self, module: str, place: str, files_max: int) -> list[Test]:
        """The tests that an edit of this place has to survive: the module's own file first, then the fast before the slow.

        Last come those that were written for survivors, so that what falls to them has survived the others.
        """
        own = {f"tests/test_{name}.py" for name in (module, f"{module}s", f"{module}_pins")}
        reaching = [t for t in self.tests if f"{module}:{place}" in t.reaches]
        if not reaching:  # a constant, a class body, a closure's name: whatever calls anything of the module
            touching = (any(name.startswith(f"{module}:") for name in t.reaches) for t in self.tests)
            pairs = zip(self.tests, touching, strict=True)
            reaching = [t for t, touches in pairs if touches or t.file.startswith(FITTED)]
        chosen: list[Test] = []
        total, files = 0.0, set[str]()
        for test in sorted(reaching, key=lambda t: (t.file not in own or t.seconds > 1, t.seconds)):
            if test.file.startswith(FITTED) or len(files | {test.file}) > files_max:
                continue
            files.add(test.file)
            total += test.seconds
            if total > self.tests_s and chosen:
                break
            chosen.append(test)
        return chosen + [t for t in reaching if t.file.startswith(FITTED)]

    def judge(self, edit: Edit, source: bytes) -> Verdict:
        """Make the edit in the copy, run its tests, take it back."""
        target = self.core / f"{edit.module}.py"
        began = time.monotonic()
        try:
            target.write_bytes(edit.made(source))
            for compiled in (self.core / "__pycache__").glob(f"{edit.module}.*.pyc"):
                compiled.unlink()
            found, settled = self._judge_warm(edit)
            if not settled:
                tests = self.order(edit.module, edit.place, self.files)
                files = sorted({test.file for test in tests})
                names = [test.name for test in tests]
                found = in_child(lambda: self._face(files, names), self.folder, _allowed(tests))
        finally:
            target.write_bytes(source)
        seconds = round(time.monotonic() - began, 2)
        if found is None:
            return Verdict("timeout", "", seconds)
        return Verdict("killed" if found["failed"] else "survived", found["failed"], seconds)

    def _judge_warm(self, edit: Edit) -> tuple[dict[str, Any] | None, bool]:
        """What the warm process says, and whether that settles it: killed, or survived by all tests that it should."""
        name = f"{edit.module}:{edit.place}"
        if self.warm is None or not self.warm.can(name, ""):
            return None, False
        tests = self.order(edit.module, edit.place, len(self.tests))
        can = [test for test in tests if self.warm.can(name, test.file)]
        found = self.warm.judge(edit.module, edit.place, [test.name for test in can], _allowed(can))
        return found, found is None or bool(found["failed"]) or ("cold" not in found and len(can) == len(tests))


def _allowed(tests: Sequence[Test]) -> int:
    """Seconds of processor time."""
    return SPARE_S + int(3 * sum(test.seconds for test in tests))


def drawn(modules: Sequence[str], sources: Mapping[str, bytes], seed: int) -> list[Edit]:
    """All edits, each module's in an order drawn by the seed, modules taking turns: any prefix samples all of them."""
    shuffled: list[list[Edit]] = []
    for module in modules:
        found = edits(module, sources[module])
        random.Random(f"{seed}-{module}").shuffle(found)
        shuffled.append(found)
    ranked = ((at / len(found), order, edit) for order, found in enumerate(shuffled) for at, edit in enumerate(found))
    return [edit for _, _, edit in sorted(ranked, key=lambda each: each[:2])]


def results_of(bench: Bench, todo: Iterator[Edit], sources: Mapping[str, bytes], out: Path, until: float) -> int:
    """Judge edits until none is left or the time is up, appending each result. Returns how many."""
    count = 0
    for edit in todo:
        if time.monotonic() > until:
            break
        verdict = bench.judge(edit, sources[edit.module])
        row = Result(edit.key, edit.module, edit.place, edit.line, edit.operator, edit.shown, verdict.status, verdict.by)
        with out.open("a") as file:
            file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
        count += 1
        print(f"{count:5} {verdict.seconds:6.1f} s  {verdict.status:9} {edit.module}:{edit.line} {edit.shown}", flush=True)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit code 2 for a wrong argument, 1 when the unchanged core fails a test of its own."""
    parser = argparse.ArgumentParser(prog="mutation", description="Mutation testing of core_pure.")
    parser.add_argument("--modules", default=",".join(MODULES), help="of core_pure, separated by commas")
    parser.add_argument("--shard", default="1/1", help="i/n: only every n-th edit, from the i-th")
    parser.add_argument("--limit", type=int, default=10**6, help="judge at most so many edits")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no edit after so many seconds")
    parser.add_argument("--seed", type=int, default=1, help="of the order of edits")
    parser.add_argument("--again", action="store_true", help="judge only what survived and is not explained, once more")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only write docs/MUTATION.md from the results")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.seconds
    modules = options.modules.split(",")
    unknown = sorted(set(modules) - set(MODULES))
    shard, _, shards = options.shard.partition("/")
    if unknown or not (shard.isdigit() and shards.isdigit() and 1 <= int(shard) <= int(shards)):
        parser.error(f"no module {', '.join(unknown)}" if unknown else f"shard {options.shard!r}: expected i/n, 1 <= i <= n")
    sources = {module: (ROOT / "core_pure" / f"{module}.py").read_bytes() for module in MODULES}
    everything = drawn(modules, sources, options.seed)
    if options.report:
        write_report(read_results(options.results), drawn(MODULES, sources, options.seed), ROOT / "docs" / "MUTATION.md")
        return 0
    status = {row.key: row.status for row in read_results(options.results).values()}
    wanted = "survived" if options.again else None
    mine = everything[int(shard) - 1 :: int(shards)]
    settled = {key for key, (verdict, _) in read_explanations().items() if verdict != "open"}
    todo = [edit for edit in mine if status.get(edit.key) == wanted and edit.key not in settled][: options.limit]
    if not todo:
        print("nothing is left to judge")
        return 0
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TRITON_INTERPRET="1")
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tests = [f"tests/{name}{'' if name == 'regressions' else '.py'}" for name in TESTS]
        bench = Bench(ROOT, Path(folder), tests, WALKS, AGAIN_S if options.again else TESTS_S)
        print(f"{len(bench.tests)} tests, {sum(t.seconds for t in bench.tests):.0f} s; {len(todo)} edits to judge", flush=True)
        if bench.red:
            print(f"the unchanged core fails {bench.red}: left out", flush=True)
        warm = bench.warm_up(tests)
        judged = results_of(bench, iter(todo), sources, options.results, until)
        warm.close()
    print(f"{judged} judged, {len(todo) - judged} left", flush=True)
    return 1 if bench.red else 0


if __name__ == "__main__":
    sys.exit(main())
