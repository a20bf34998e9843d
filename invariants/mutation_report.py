"""What mutation testing found: results as lines of JSON, survivors with their explanations, and docs/MUTATION.md from both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from .mutate import Edit, Named

RESULTS = Path(__file__).with_name("mutation_results.jsonl")
SURVIVORS = Path(__file__).with_name("mutation_survivors.json")
"""Explanations by key: {"verdict": "equivalent" | "unobserved" | "open", "why": one line}. The rest is open."""

FITTED = "tests/test_edges"
"""Files whose names begin so were written for survivors."""
HEAD = """# Mutation testing of the core

Written by `make mutation ARGS=--report` from `invariants/mutation_results.jsonl` and `invariants/mutation_survivors.json`.
`make mutation` judges what is not judged yet (`ARGS="--modules chain,fits --seconds 600"`, `--shard 1/4`); it can be stopped at
any time and goes on where it was.

An *edit* is one small wrong change of one module: a bound moved by one or a comparison turned round, + and − or other operators
exchanged, a division rounded the other way, min and max or any and all exchanged, a whole number one more or one less, a truth
value turned, and ↔ or, a `not` or a sign dropped, a condition negated, a guard that returns or raises dropped, a statement
dropped, a slice one shorter at either end, two returned values exchanged, a neighbouring variable returned. Not edited: messages,
annotations, docstrings, what stands inside `raise` and `assert`. Strings and keyword names are not edited either.

Each edit faces twenty short random walks and ten serving walks with every claim checked, then the tests that call the edited
function: the module's own fast tests first, then all from the fastest on, up to 3 seconds of them at first (what survives and is
not explained: 24 seconds, with `--again`), then those that were written for survivors. Five tests of more than five seconds each
are left out. An edit is *killed* when a walk breaks a claim or a test fails, or when they use three times their processor time and
12 seconds more (`timeout`). A test that reads the core's source as text is not among them. Walks and property tests draw the same
examples in every run.

*Score* = killed of those judged that are not equivalent. Only edits for which the table below gives an argument count as
equivalent.
"""
ALL = "**Every edit of every module was judged.**"
SAMPLE = "The edits judged are a **sample**: the first n of all N of a module in an order drawn by a fixed seed."


@frozen
class Result(Named):
    """One line of the results. status: killed, timeout or survived. by: the test that failed, or the claim a walk broke."""

    status: str
    by: str


def read_results(path: Path) -> dict[str, Result]:
    """Results by key; of several for one key the last. A torn last line is dropped: its edit is judged again."""
    found: dict[str, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = Result(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        found[row.key] = row
    return found


def read_explanations(path: Path = SURVIVORS) -> dict[str, tuple[str, str]]:
    """(verdict, why) by key."""
    rows = json.loads(path.read_text()) if path.exists() else {}
    return {key: (str(row["verdict"]), str(row["why"])) for key, row in rows.items()}


@frozen
class Score:
    """Counts of one module, or of all. total: all edits there are; stale results (of changed functions) count nowhere."""

    name: str
    total: int
    killed: int
    equivalent: int
    survived: int

    @property
    def judged(self) -> int:
        """Edits with a verdict."""
        return self.killed + self.equivalent + self.survived

    def row(self) -> str:
        """A line of the table."""
        counted = self.killed + self.survived
        share = f"{100 * self.killed / counted:.1f} %" if counted else "–"
        return f"| {self.name} | {self.judged} of {self.total} | {self.killed} | {self.equivalent} | {self.survived} | {share} |"


def scores(results: Mapping[str, Result], edits: Sequence[Edit], explained: Mapping[str, tuple[str, str]]) -> list[Score]:
    """One per module, in the order of the edits' modules by name, and their sum last."""
    rows = []
    for module in [*sorted({edit.module for edit in edits}), ""]:
        keys = [edit.key for edit in edits if module in ("", edit.module)]
        alive = [key for key in keys if key in results and results[key].status == "survived"]
        equivalent = sum(explained.get(key, ("", ""))[0] == "equivalent" for key in alive)
        killed = sum(key in results for key in keys) - len(alive)
        rows.append(Score(module or "**all**", len(keys), killed, equivalent, len(alive) - equivalent))
    return rows


def report(results: Mapping[str, Result], edits: Sequence[Edit], explained: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """The lines of docs/MUTATION.md."""
    yield from HEAD.splitlines()
    yield from ("", "| module | edits judged | killed | equivalent | survived | score |", "|---|---|---|---|---|---|")
    for score in scores(results, edits, explained):
        yield score.row()
    yield from ("", *_caution(results, edits, explained), "", "## Survivors", "")
    yield "*equivalent*: no value that the core reaches, and no argument that types and checks let through, tells the edit from the"
    yield "original. *unobserved*: it changes what no claim speaks of (speed, a message, a tie, what repr shows)."
    yield "*open*: a test that would notice is missing, or nobody has looked yet."
    yield from ("", "| where | edit | verdict | why |", "|---|---|---|---|")
    alive = [edit for edit in edits if edit.key in results and results[edit.key].status == "survived"]
    for edit in sorted(alive, key=lambda each: (each.module, each.line, each.key)):
        verdict, why = explained.get(edit.key, ("open", "not looked at yet"))
        shown = edit.shown.replace("|", "\\|")
        yield f"| {edit.module}.py:{edit.line} `{edit.place}` | `{shown}` | {verdict} | {why} |"


def _caution(results: Mapping[str, Result], edits: Sequence[Edit], explained: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """How many there are, and what the score does not say."""
    total = scores(results, edits, explained)[-1]
    fitted = sum(edit.key in results and results[edit.key].by.startswith(FITTED) for edit in edits)
    yield ALL if total.judged == total.total else SAMPLE
    if total.killed:
        share = 100 * (total.killed - fitted) / (total.killed + total.survived)
        yield f"{fitted} of those killed had survived the other tests and fell to `{FITTED}*.py`, which were written for such"
        yield f"survivors and run last; without these the score is {share:.1f} %. So the core is now held to what these edits"
        yield "break; that does not say how many other mistakes would be found."


def write_report(results: Mapping[str, Result], edits: Sequence[Edit], path: Path) -> None:
    """Write docs/MUTATION.md."""
    path.write_text("\n".join(report(results, edits, read_explanations())) + "\n")
