"""Campaigns: walks, machines and exhausted neighbourhoods for a given time, on several cores, resumable, with live progress.

Exit codes: 0 nothing found, 1 a violation (a planted bug counts), 2 bad input, 3 a planted bug that was not found, 130 interrupted.
What a campaign has done is kept in ``state.json``; a failure is kept as a recording that ``kvarena inspect`` opens.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from attrs import define, field, frozen

import core_pure
from core_pure import recording
from core_pure.errors import ArenaError

from . import mutants
from .campaign_worker import BITS, Job, Report, run_worker, story
from .walks import Failure, Tally

CLEAN, VIOLATED, SURVIVED, INTERRUPTED = 0, 1, 3, 130
SAVE_SECONDS, MUTANT_SECONDS, SAMPLE = 2.0, 60.0, 10
STATE_VERSION = 1
COUNT, SECONDS = ((int,), "a whole number from 0 up"), ((int, float), "a number from 0 up")
SEED, TEXT, OBJECT = ((int,), "a whole number"), ((str,), "text"), ((dict,), "an object")
"""Kinds of the fields of ``state.json``, and how an error names them."""
SAMPLED = "ten"
"""``--inject ten``: ten mutants drawn by the seed."""


class CampaignError(ArenaError):
    """The campaign cannot start or resume; the message says why."""


@frozen
class Options:
    """minutes: whole time, that before a resume included. inject: a mutant's name, several with commas, or "ten"."""

    minutes: float = 5.0
    cores: int = 2
    seed: int = 0
    resume: bool = False
    inject: str | None = None
    out: Path = Path("out/campaign")
    machines: bool = True


@define
class Progress:
    """Everything done so far."""

    tally: Tally = field(factory=Tally)
    walks: int = 0
    neighbours: int = 0
    machine: int = 0
    seconds: float = 0.0
    next_walk: int = 0
    states: int = 0
    failure: Failure | None = None

    @property
    def checked(self) -> int:
        """Transitions checked in all."""
        return self.tally.transitions + self.neighbours + self.machine


def fingerprint() -> str:
    """Names the core that is being checked: a campaign of another core is not continued."""
    digest = blake2b(digest_size=8)
    for path in sorted(Path(core_pure.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check(options: Options) -> None:
    """Raises: CampaignError, UnknownMutant on what cannot be done."""
    if not (math.isfinite(options.minutes) and options.minutes > 0):
        raise CampaignError(f"--minutes {options.minutes:g}: a campaign needs more than zero minutes")
    if options.cores < 1:
        raise CampaignError(f"--cores {options.cores}: at least one")
    if options.inject is not None and options.resume:
        raise CampaignError("--resume and --inject do not go together: a planted bug is hunted from the start")
    for name in chosen_mutants(options):
        mutants.by_name(name)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=options.out):
            pass  # a folder that takes no files is found out now, not after the first minutes
    except OSError as error:
        why = "is a file; expected a folder" if options.out.is_file() else error.strerror
        raise CampaignError(f"--out {options.out}: {why}") from error


def chosen_mutants(options: Options) -> list[str]:
    """Names to inject."""
    if options.inject is None:
        return []
    if SAMPLED in options.inject.split(",") and options.inject != SAMPLED:
        raise CampaignError(f"--inject {options.inject}: {SAMPLED!r} stands alone; it draws ten mutants by the seed")
    if options.inject == SAMPLED:
        names = sorted(mutant.name for mutant in mutants.every())
        return random.Random(options.seed).sample(names, SAMPLE)
    return options.inject.split(",")


# --- state on disk -----------------------------------------------------------------------------------------------------


def save(options: Options, progress: Progress) -> None:
    """Write the state, whole or not at all."""
    facts = {
        "version": STATE_VERSION,
        "core": fingerprint(),
        "seed": options.seed,
        "next_walk": progress.next_walk,
        "seconds": round(progress.seconds, 3),
        "walks": progress.walks,
        "neighbours": progress.neighbours,
        "machine": progress.machine,
        "tally": {
            "transitions": progress.tally.transitions,
            "refusals": progress.tally.refusals,
            "relief": progress.tally.relief,
            "errors": progress.tally.errors,
            "kinds": dict(progress.tally.kinds),
            "reasons": dict(progress.tally.reasons),
        },
    }
    path = options.out / "state.json"
    path.with_suffix(".part").write_text(json.dumps(facts, indent=1))
    os.replace(path.with_suffix(".part"), path)


def load(options: Options) -> Progress:
    """The state of the campaign to continue. Raises: CampaignError, saying why it cannot be."""
    path = options.out / "state.json"
    try:
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise CampaignError(f"nothing to resume: {path} cannot be read ({error.strerror}); start without --resume") from error
    except (ValueError, RecursionError) as error:
        raise CampaignError(f"cannot resume: {path} is damaged (no JSON); start without --resume") from error
    try:
        version = _fact(facts, "version", *COUNT)
        if version != STATE_VERSION:
            raise CampaignError(f"version {version}, this reads {STATE_VERSION}")
        tally = _fact(facts, "tally", *OBJECT)
        counts = [_fact(tally, name, *COUNT) for name in ("transitions", "refusals", "relief", "errors")]
        kinds, reasons = (_fact(tally, name, *OBJECT) for name in ("kinds", "reasons"))
        counters = [Counter({key: _fact(each, key, *COUNT) for key in each}) for each in (kinds, reasons)]
        done = {name: _fact(facts, name, *COUNT) for name in ("walks", "neighbours", "machine", "next_walk")}
        kept = Progress(Tally(*counts, *counters), seconds=_fact(facts, "seconds", *SECONDS), **done)
        core, seed = _fact(facts, "core", *TEXT), _fact(facts, "seed", *SEED)
    except CampaignError as error:
        raise CampaignError(f"cannot resume: {path} is damaged ({error}); start without --resume") from error
    if core != fingerprint():
        raise CampaignError(f"cannot resume: core_pure has changed since {path} was written; start without --resume")
    if seed != options.seed:
        raise CampaignError(f"cannot resume: {path} was started with --seed {seed}, not {options.seed}")
    return kept


def _fact(facts: object, name: str, kinds: tuple[type, ...], wish: str) -> Any:
    """A field of the state. Raises: CampaignError where it is missing, of another kind, negative or not finite."""
    value = facts.get(name) if isinstance(facts, dict) else None
    good = type(value) in kinds and (wish == SEED[1] or not isinstance(value, int | float) or 0 <= value < math.inf)
    if not good:
        raise CampaignError(f"field {name!r} is {str(value)[:40]}, expected {wish}")
    return value


# --- running -----------------------------------------------------------------------------------------------------------


def campaign(
    options: Options, progress: Progress, inject: str | None = None, show: Callable[[Progress], None] = lambda progress: None
) -> Progress:
    """Run workers until time is up or one found something. Raises: KeyboardInterrupt after saving."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    left = max(0.0, (MUTANT_SECONDS if inject else options.minutes * 60) - progress.seconds)
    workers = []
    for worker in range(options.cores):
        job = Job(options.seed, progress.next_walk + worker, options.cores, left, inject, options.machines)
        workers.append(context.Process(target=run_worker, args=(worker, job, queue), daemon=True))
    before, start, saved = progress.seconds, time.monotonic(), time.monotonic()
    bitmap, running = 0, set(range(options.cores))
    for process in workers:
        process.start()
    try:
        while running and progress.failure is None:
            report = _next_report(queue, workers, running)
            progress.seconds = before + time.monotonic() - start
            if report is not None:
                _take(progress, report, running)
                bitmap |= int.from_bytes(report.states, "little") if report.states else 0
            show(progress)
            if inject is None and time.monotonic() - saved > SAVE_SECONDS:
                saved = time.monotonic()
                save(options, progress)
    finally:
        for process in workers:
            process.terminate()
        for process in workers:
            process.join()
        if inject is None:
            save(options, progress)
    progress.states = estimated(bitmap)
    return progress


def _next_report(queue: Any, workers: list[Any], running: set[int]) -> Report | None:
    from queue import Empty

    try:
        report: Report = queue.get(timeout=1.0)
        return report
    except Empty:
        dead = [worker for worker in running if not workers[worker].is_alive()]
        if dead and queue.empty():
            raise CampaignError(f"worker {dead[0]} died with exit code {workers[dead[0]].exitcode}") from None
        return None


def _take(progress: Progress, report: Report, running: set[int]) -> None:
    if report.error is not None:
        raise CampaignError(f"worker {report.worker}: {report.error}")
    progress.tally.merge(report.tally)
    progress.walks += report.walks
    progress.neighbours += report.neighbours
    progress.machine += report.machine
    progress.next_walk = max(progress.next_walk, report.next_walk)
    progress.failure = progress.failure or report.failure
    if report.done:
        running.discard(report.worker)


def estimated(bitmap: int) -> int:
    """Distinct states behind a bitmap (linear counting, Whang et al. 1990)."""
    empty = BITS - bitmap.bit_count()
    return round(-BITS * math.log(empty / BITS)) if empty else BITS


def keep(options: Options, failure: Failure, name: str) -> Path:
    """Write the events of a failure as a recording."""
    path = options.out / f"{name}.kvr"
    path.write_bytes(recording.write(failure.shape.layout(), failure.events))
    return path


# --- the command -------------------------------------------------------------------------------------------------------


def campaign_main(options: Options) -> int:
    """Run, show, keep what was found. Returns: the exit code. Raises: CampaignError, UnknownMutant (exit code 2)."""
    from .campaign_display import Display

    check(options)
    display = Display()
    if options.inject is not None:
        return _hunt(options, display)
    progress = load(options) if options.resume else Progress()
    if options.resume:
        display.say(f"resumed after {progress.seconds:.0f} s and {progress.checked:,} transitions")
    if progress.seconds >= options.minutes * 60:
        display.say(f"nothing is left of {options.minutes:g} minutes; ask for more")
    try:
        with display:
            campaign(options, progress, None, display.show)
    except KeyboardInterrupt:
        display.say(f"interrupted after {progress.checked:,} transitions; continue with --resume")
        return INTERRUPTED
    display.summary(progress)
    if progress.failure is None:
        return CLEAN
    _tell(options, progress.failure, f"failure-{options.seed}", display)
    return VIOLATED


def _tell(options: Options, failure: Failure, name: str, display: Any) -> None:
    path = keep(options, failure, name)
    display.say(f"violated {failure.violation.claim}: {failure.violation.text}")
    display.say(f"arena {failure.shape.name}, {len(failure.events)} events, kept in {path} (kvarena inspect {path}):")
    for line in story(failure.events):
        display.say(line)


def _hunt(options: Options, display: Any) -> int:
    """Plant mutants one after the other; each must be found."""
    survived = []
    for name in chosen_mutants(options):
        mutant = mutants.by_name(name)
        start = time.monotonic()
        progress = campaign(options, Progress(), name)
        took = time.monotonic() - start
        if progress.failure is None:
            survived.append(name)
            display.say(f"{name}: NOT FOUND in {took:.1f} s ({mutant.wrong})")
            continue
        found = progress.failure
        display.say(f"{name}: found in {took:.1f} s by {found.violation.claim}, {len(found.events)} events ({mutant.wrong})")
        _tell(options, found, name, display)
    return SURVIVED if survived else VIOLATED
