"""``kvarena evidence``: everything but mutation testing, ending with a table: claim, method, scope, verdict.

Parts run one after the other in this process or, where they can, on all cores. A planted twin that passes, a contract that is not
confirmed, a small world that shrank, or a mutant that survives makes the run fail. Exit code 0 or 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import frozen

ARGUED_MOST = 0.1
"""Most cells of the matrix that may be an argument instead of a check."""
CAMPAIGN_MINUTES = 1.0
HELD, FAILED = "held", "FAILED"


@frozen
class Row:
    """One line of the table."""

    claim: str
    method: str
    scope: str
    verdict: str
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether nothing was found against it."""
        return self.verdict.startswith(HELD)


def _contract(name: str) -> Row:
    from .contracts import CONFIRMED, REFUTED, examine, refute, witness_failures
    from .contracts_list import CONTRACTS

    contract = next(each for each in CONTRACTS if each.name == name)
    failures = list(witness_failures(contract))
    shipped, twin = examine(contract), refute(contract)
    verdict = f"{HELD}: confirmed, twin refuted"
    if failures:
        verdict = f"{FAILED}: {failures[0]}"
    elif shipped.verdict != CONFIRMED:
        verdict = f"{FAILED}: {shipped.verdict}: {shipped.message}"
    elif twin.verdict != REFUTED:
        verdict = f"{FAILED}: the planted twin passes ({contract.twin.wrong}): {twin.verdict}"
    return Row(contract.sentence, "CrossHair", contract.scope, verdict, shipped.seconds + twin.seconds)


def _lemma(name: str) -> Row:
    from .lemmas import PROVED, REFUTED, judge
    from .lemmas_list import LEMMAS

    lemma = next(each for each in LEMMAS if each.name == name)
    verdict, model, seconds = judge(lemma.claim())
    twin, _, more = judge(lemma.twin())
    said = f"{HELD}: proved, twin refuted"
    if verdict != PROVED:
        said = f"{FAILED}: {verdict} {model}"
    elif twin != REFUTED:
        said = f"{FAILED}: the planted twin passes: {twin}"
    return Row(lemma.sentence, "z3", lemma.scope, said, seconds + more)


def _world(name: str) -> Row:
    from .exhaust import EXPECTED, WORLDS, exhaust
    from .worlds import WorldFailure

    world = next(each for each in WORLDS if each.name == name)
    start = time.process_time()
    try:
        counts = exhaust(world)
        expected = json.loads(EXPECTED.read_text())[name]
        verdict = f"{HELD}: {counts.states:,} states, {counts.transitions:,} transitions"
        if counts.as_json() != expected:
            verdict = f"{FAILED}: covers {counts.as_json()}, expected {expected}"
    except WorldFailure as failure:
        verdict = f"{FAILED}: {failure}"
    chain = " : ".join(map(str, world.frames))
    scope = f"{chain} bytes in {world.total_bytes}, {world.fences_max} fences, {world.pins_max} pins"
    return Row("every claim in every reachable state, every event", "exhaustive", scope, verdict, time.process_time() - start)


def _mutant(name: str) -> Row:
    from . import mutants, serving

    mutant = mutants.by_name(name)
    start = time.process_time()
    module = mutant.target.split(":")[0]
    found: Any = serving.hunt_serving(mutant) if module in serving.SERVING_TARGETS else mutants.hunt(mutant)
    spent = time.process_time() - start
    claim = getattr(getattr(found, "violation", found), "claim", None)
    verdict = f"{FAILED}: survives" if found is None else f"{HELD}: killed by {claim}"
    return Row(mutant.wrong, "mutant", mutant.target, verdict, spent)


def _machine(number: str) -> Row:
    from . import machines

    before, start = machines.ArenaMachine.transitions, time.process_time()
    found = machines.search(int(number), examples=60, steps=40)
    taken = machines.ArenaMachine.transitions - before
    verdict = f"{HELD}: {taken:,} transitions" if found is None else f"{FAILED}: {found.violation}"
    return Row(
        "every event, misuse too, from old values and new", "Hypothesis", f"seed {number}", verdict, time.process_time() - start
    )


def _serving(number: str) -> Row:
    from . import serving

    start, walks = time.process_time(), 200
    first = int(number) * walks
    found = next((v for seed in range(first, first + walks) if (v := serving.serving_walk(seed)) is not None), None)
    verdict = f"{HELD}: {walks} walks of 60 steps" if found is None else f"{FAILED}: {found.claim}: {found.text}"
    return Row(
        "leases, write slots and block tables", "random", f"seeds {first}–{first + walks - 1}", verdict, time.process_time() - start
    )


PARTS: dict[str, Callable[[str], Row]] = {
    "contract": _contract,
    "lemma": _lemma,
    "world": _world,
    "mutant": _mutant,
    "machine": _machine,
    "serving": _serving,
}


def tasks() -> Iterator[tuple[str, str]]:
    """Everything to be shown, longest first."""
    from . import mutants
    from .contracts_list import CONTRACTS
    from .exhaust import WORLDS
    from .lemmas_list import LEMMAS

    yield from (("world", world.name) for world in WORLDS)
    yield from (("contract", contract.name) for contract in CONTRACTS)
    yield from (("lemma", lemma.name) for lemma in LEMMAS)
    yield from (("machine", str(number)) for number in range(4))
    yield from (("serving", str(number)) for number in range(2))
    yield from (("mutant", mutant.name) for mutant in mutants.every())


def run_task(task: tuple[str, str]) -> Row:
    """One part; an error is a failure of that part."""
    kind, name = task
    try:
        return PARTS[kind](name)
    except Exception as error:
        return Row(name, kind, "", f"{FAILED}: {error!r}", 0.0)


def _campaign(cores: int, minutes: float) -> Row:
    from .campaign import Options, Progress, campaign

    with TemporaryDirectory() as folder:
        done = campaign(Options(minutes=minutes, cores=cores, out=Path(folder), machines=False), Progress())
    counts = f"{done.checked:,} transitions, {done.tally.refusals:,} refused, {done.tally.relief:,} with relief"
    verdict = f"{HELD}: {counts}" if done.failure is None else f"{FAILED}: {done.failure.violation}"
    return Row("every claim of docs/MATRIX.md on random walks", "campaign", f"{minutes:g} minutes", verdict, done.seconds)


def evidence_main(cores: int = 2, minutes: float = CAMPAIGN_MINUTES) -> int:
    """Run everything and print the table. Returns: the exit code. Raises: CampaignError for what cannot be done."""
    from .campaign import CampaignError, Options, check

    with TemporaryDirectory() as folder:
        check(Options(minutes=minutes, cores=cores, out=Path(folder)))
    for needed in ("crosshair", "z3", "hypothesis"):
        try:
            import_module(needed)
        except ImportError as error:
            raise CampaignError(f"evidence needs the extra 'dev' ({error}): pip install 'kvarena[dev]'") from None
    from rich.console import Console
    from rich.table import Table

    console, start = Console(width=200), time.monotonic()
    work, rows = list(tasks()), []
    with ProcessPoolExecutor(cores) as pool:
        for task, row in zip(work, pool.map(run_task, work), strict=True):
            rows.append(row)
            if not row.holds:
                console.print(f"{' '.join(task)}: {row.verdict}", markup=False, highlight=False)
    rows.append(_campaign(cores, minutes))
    table = Table("claim", "method", "scope", "verdict", title="evidence")
    for row in rows:
        table.add_row(row.claim, row.method, row.scope, row.verdict)
    console.print(table)
    failed = sum(not row.holds for row in rows)
    took = time.monotonic() - start
    console.print(f"{len(rows) - failed} of {len(rows)} hold; {took / 60:.1f} minutes on {cores} cores", highlight=False)
    return 1 if failed else 0
