"""The mutation tester: which edits it makes, that it kills what a test notices and nothing else, and that it resumes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import asdict, evolve

from invariants.mutate import edits
from invariants.mutation import MODULES, ROOT, TESTS, drawn, main
from invariants.mutation_report import Result, read_explanations, read_results, report, scores

SOURCES = {module: (ROOT / "core_pure" / f"{module}.py").read_bytes() for module in MODULES}
TINY = b'''
def larger(first: int, second: int) -> int:
    """The larger of two."""
    if first > second:
        return first
    return second


def climb(least: int) -> int:
    """Counts up to least."""
    count = 0
    while count < least:
        count += 1
    return count


LOWEST = larger(-2, -2)
'''
TINY_TEST = """
from core_pure.chain import climb, larger

def test_larger():
    assert larger(3, 1) == 3 and larger(1, 3) == 3 and larger(2, 2) == 2

def test_climb():
    assert climb(4) == 4

def test_of_something_else():
    assert True
"""
"""The warm process can judge edits of ``climb``; those of ``larger``, which is called at import, and of LOWEST it cannot."""
TINY_CONFTEST = "from hypothesis import settings\nsettings.register_profile('kvarena-ci', settings())\n"
SCRIPT = """
import sys
from pathlib import Path
from invariants import mutation
mutation.ROOT, mutation.MODULES, mutation.TESTS, mutation.WARM = Path(sys.argv[1]), ("chain",), ("test_tiny",), ()
mutation.SPARE_S, mutation.WALKS = 2, 0
sys.exit(mutation.main(sys.argv[2:]))
"""


def test_every_edit_of_the_core_is_a_different_program_with_its_own_key() -> None:
    """No key stands twice among all edits of all modules; of every tenth, the program compiles and is not the one it came from."""
    every = drawn(MODULES, SOURCES, 1)
    assert len({edit.key for edit in every}) == len(every) > 3000
    originals = {module: ast.dump(ast.parse(SOURCES[module])) for module in MODULES}
    for edit in every[::10]:
        same = ast.dump(ast.parse(edit.made(SOURCES[edit.module]))) == originals[edit.module]
        assert not same, edit.shown


def test_an_operand_keeps_its_meaning() -> None:
    """An edit inside a larger expression does not change what binds to what, and a division is rounded the other way exactly."""
    source = b"def f(a, b):\n    return 2 * (a + b) // b\n"
    results = set()
    for edit in edits("chain", source):
        names: dict[str, object] = {}
        exec(edit.made(source), names)
        results.add((edit.operator, names["f"](5, 3)))  # type: ignore[operator]
    assert results == {("rounding", 6), ("arithmetic", 1), ("arithmetic", 0), ("constant", 8), ("constant", 2)}


def test_texts_and_docstrings_are_left_alone() -> None:
    """A message, an f-string, an annotation, a docstring and what is raised have no edits."""
    source = b'def f(a: "int" = None) -> "list[int]":\n    """Says 1 + 1."""\n    raise ValueError(f"{a + 1}" + "x" * 3)\n'
    assert edits("chain", source) == []


def test_keys_outlive_edits_elsewhere_and_docstrings() -> None:
    """Lines above, a new docstring and a change in another function keep a function's keys; a change in it gives new ones."""
    moved = b"# one more line\n" + TINY.replace(b"The larger of two.", b"Either.").replace(b"count = 0", b"count = 1")
    before, after = ({edit.key for edit in edits("chain", text) if edit.place == "larger"} for text in (TINY, moved))
    assert before == after
    changed = {edit.key for edit in edits("chain", moved) if edit.place == "climb"}
    assert changed.isdisjoint(edit.key for edit in edits("chain", TINY))


def test_the_order_is_a_sample_of_all_modules() -> None:
    """The same seed draws the same order; a prefix of a tenth has about a tenth of each module, not its first lines."""
    order = drawn(("chain", "band"), SOURCES, 1)
    assert order == drawn(("chain", "band"), SOURCES, 1) != drawn(("chain", "band"), SOURCES, 2)
    part = [edit for edit in order[: len(order) // 10] if edit.module == "chain"]
    whole = [edit for edit in order if edit.module == "chain"]
    assert abs(len(part) * 10 - len(whole)) <= 10 and max(edit.line for edit in part) > 60


def test_planted_edits_are_killed_an_equivalent_one_survives_and_a_loop_times_out(tmp_path: Path) -> None:
    """On a tiny core: each edit that a test notices is killed, by that test; the equivalent bound survives; it resumes."""
    for name, text in (
        ("core_pure/__init__.py", b""), ("core_pure/chain.py", TINY), ("tests/test_tiny.py", TINY_TEST.encode()),
        ("conftest.py", TINY_CONFTEST.encode()),
    ):  # fmt: skip
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_bytes(text)
    out = tmp_path / "results.jsonl"
    asked = [sys.executable, "-c", SCRIPT, str(tmp_path / "root"), "--modules", "chain", "--results", str(out)]

    def judged(*more: str) -> list[str]:
        subprocess.run([*asked, *more], cwd=ROOT, check=True, capture_output=True, timeout=300, env=environment)
        return out.read_text().splitlines()

    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    first = judged("--limit", "3")
    assert len(first) == 3
    everything = judged()
    assert everything[:3] == first and len(everything) == len(edits("chain", TINY)), "goes on where it was"
    assert judged() == everything
    out.write_text("\n".join(everything[:-1]) + "\n" + everything[-1][:40])
    assert len(judged()) == len(everything), "a torn last line is judged again"
    assert (tmp_path / "root/core_pure/chain.py").read_bytes() == TINY, "the tree itself is only read"
    results = read_results(out)
    status = {(row.operator, row.shown): (row.status, row.by.split("::")[-1]) for row in results.values()}
    assert status["compare-bound", "first > second -> ((first) >= (second))"] == ("survived", "")
    assert status["compare-turn", "first > second -> ((first) < (second))"] == ("killed", "test_larger")
    assert status["constant", "2 -> 3"] == ("survived", ""), "no test asks for LOWEST"
    assert status["drop-statement", "count += 1 -> pass"][0] == "timeout"
    assert status["constant", "0 -> 1"] == ("survived", ""), "climb(4) is 4 from 1 on too: a survivor is a missing test"
    assert status["compare-bound", "count < least -> ((count) <= (least))"] == ("killed", "test_climb")


def test_scores_count_equivalent_edits_apart() -> None:
    """Killed and timed out count as killed, explained equivalents not at all, the rest against the score; stale results nowhere."""
    every = edits("chain", TINY)
    rows = [Result(e.key, e.module, e.place, e.line, e.operator, e.shown, "killed", "t") for e in every[:4]]
    rows[1], rows[2] = evolve(rows[1], status="survived"), evolve(rows[2], status="survived")
    rows[3] = evolve(rows[3], status="timeout")
    rows.append(evolve(rows[0], key="chain:gone:0:turn:1", status="survived"))
    results = {row.key: row for row in rows}
    explained = {rows[1].key: ("equivalent", "the same")}
    score, total = scores(results, every, explained)
    assert (score.killed, score.equivalent, score.survived, score.judged) == (2, 1, 1, 4)
    assert asdict(total) == asdict(score) | {"name": "**all**"}
    text = "\n".join(report(results, every, explained))
    assert f"| chain | 4 of {len(every)} | 2 | 1 | 1 | 66.7 % |" in text
    assert "| equivalent | the same |" in text and "not looked at yet" in text and "gone" not in text


@pytest.mark.parametrize("wrong", [["--modules", "nosuch"], ["--shard", "3/2"], ["--shard", "0/2"], ["--shard", "x"]])
def test_a_wrong_argument_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown module and an impossible shard end with exit code 2 and a line that names them."""
    with pytest.raises(SystemExit) as refused:
        main(wrong)
    assert refused.value.code == 2 and wrong[1] in capsys.readouterr().err


def test_tests_named_are_there() -> None:
    """Every test file that judges exists."""
    assert all((ROOT / "tests" / name).is_dir() or (ROOT / "tests" / f"{name}.py").is_file() for name in TESTS)


def test_committed_results_are_whole() -> None:
    """Every explanation belongs to a survivor, with a known verdict and a reason of one line."""
    results = read_results(ROOT / "invariants" / "mutation_results.jsonl")
    for key, (verdict, why) in read_explanations().items():
        assert results[key].status == "survived" and verdict in ("equivalent", "unobserved", "open") and why and "\n" not in why
    assert all(json.loads(line) for line in (ROOT / "invariants" / "mutation_results.jsonl").read_text().splitlines())
