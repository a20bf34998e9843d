"""One process of a campaign: walks by number, each from its own seed, until time is up or something is violated.

Of every ten walks one is also replayed from its recording; with every 15th goes a serving walk; every 20th is compared lazily and
eagerly; in every 40th the state where it ended is exhausted against brute force; every MACHINE_EVERY seconds the Hypothesis
machine searches for a while.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from attrs import define, evolve, field, frozen

from core_pure.event import Event
from core_pure.verify import Violation

from . import mutants, runs, serving
from .shrinking import shortest, shrink
from .walks import SHAPES, Failure, Shape, Tally, blocks_of, moves, walk

LENGTH = 200  # moves of one walk: long enough to fill an arena several times, short enough to shrink
REPLAY_EVERY, LAZY_EVERY, NEIGHBOURS_EVERY, SERVING_EVERY, MACHINE_EVERY = 10, 20, 40, 15, 60.0
SERVED = ("LEASE-1", "SLOT-1")
REPORT_SECONDS = 0.5
BITS = 1 << 23  # of the bitmap that counts distinct states: 1 MiB, good to a few million
ORDER = (1, 3, 5, 7, 2, 4, 8, 6, 9, 3, 0, 1, 6, 5)
"""Which shape a walk takes, by its number: those where relief and refusals meet more often than the plain ones."""


@frozen
class Job:
    """What a worker does: walks first, first + stride, … until ``seconds`` have passed."""

    seed: int
    first: int
    stride: int
    seconds: float
    inject: str | None = None
    machines: bool = True


@define
class Report:
    """What a worker tells: its tally since the last report, walks done, and the next walk's number."""

    worker: int
    next_walk: int
    tally: Tally = field(factory=Tally)
    walks: int = 0
    neighbours: int = 0
    machine: int = 0
    states: bytes | None = None
    failure: Failure | None = None
    error: str | None = None
    done: bool = False


def shape_of(number: int) -> Shape:
    """The arena of one walk."""
    return SHAPES[ORDER[number % len(ORDER)]]


def run_worker(worker: int, job: Job, queue: Any) -> None:
    """Entry of the process. Reports, with the failure or the error that ended it, go into the queue."""
    _end_with_the_campaign()
    try:
        planted = nullcontext() if job.inject is None else mutants.planted(mutants.by_name(job.inject))
        with planted:
            for report in search(worker, job):
                queue.put(report)
    except KeyboardInterrupt:
        pass
    except Exception as error:
        queue.put(Report(worker, job.first, error=repr(error), done=True))


def _end_with_the_campaign() -> None:
    """However the process that started this one dies, this one does not outlive it."""
    campaign = multiprocessing.parent_process()
    if campaign is None:
        return

    def wait() -> None:
        campaign.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def search(worker: int, job: Job) -> Iterator[Report]:
    """Reports every half second; the last one is ``done``."""
    end = time.monotonic() + job.seconds
    told, machine_at = time.monotonic(), time.monotonic() + MACHINE_EVERY * (0.25 + worker % 4)
    seen = bytearray(BITS // 8)
    report = Report(worker, job.first)
    for number in itertools.count(job.first, job.stride):
        report.failure = _one_walk(job, number, report, seen)
        report.walks += 1
        report.next_walk = number + job.stride
        now = time.monotonic()
        if report.failure is None and job.machines and now >= machine_at:
            report.failure = _machine(job, number, report)
            machine_at = time.monotonic() + MACHINE_EVERY
        if report.failure is not None or now >= end:
            break
        if now - told >= REPORT_SECONDS:
            told = now
            yield report
            report = Report(worker, report.next_walk)
    if report.failure is not None:
        report.failure = shrunk(report.failure)
    report.states, report.done = bytes(seen), True
    yield report


def _one_walk(job: Job, number: int, report: Report, seen: bytearray) -> Failure | None:
    shape = shape_of(number)
    with blocks_of(shape.block_bits):
        return _walk_and_more(job, number, shape, report, seen)


def _walk_and_more(job: Job, number: int, shape: Shape, report: Report, seen: bytearray) -> Failure | None:

    def mark(content: bytes) -> None:
        bit = int.from_bytes(content[:4], "little") % BITS
        seen[bit >> 3] |= 1 << (bit & 7)

    seed = job.seed * 1_000_003 + number
    done = walk(shape, moves(seed, shape, LENGTH), report.tally, mark)
    if done.failure is not None:
        return done.failure
    violation: Violation | None = None
    if number % REPLAY_EVERY == 0:
        told = itertools.chain(runs.digest_is_reproducible(shape, done), runs.digest_tells_apart(shape, done))
        violation = next(told, None)
    if violation is not None:
        return Failure(shape, (), done.events, violation)
    if number % LAZY_EVERY == 0:
        failure = runs.lazy_is_eager(shape, seed, LENGTH // 2)
        if failure is not None:
            return failure
    if number % SERVING_EVERY == 0:
        failure = serving.served(seed)
        if failure is not None:
            return failure
    if number % NEIGHBOURS_EVERY == 0:
        for count, failure in runs.neighbourhood(shape, done):
            report.neighbours += count
            if failure is not None:
                return failure
    return None


def _machine(job: Job, number: int, report: Report) -> Failure | None:
    from . import machines

    before = machines.ArenaMachine.transitions
    found = machines.search(job.seed * 7 + number)
    report.machine += machines.ArenaMachine.transitions - before
    return found


def shrunk(failure: Failure) -> Failure:
    """As short as it gets. Failures that are events only are turned into moves first; where that loses it, they stay."""
    if failure.moves:
        return shortest(failure)
    if failure.violation.claim in SERVED:
        return serving.shortest_served(failure)
    with blocks_of(failure.shape.block_bits):
        chosen = runs.from_events(failure.shape, failure.events)
        found = runs.whole_run(failure.shape, walk(failure.shape, chosen, thorough=failure.violation.claim))
        if found is None:
            return failure
        return shrink(evolve(found, moves=found.moves or chosen), judge=runs.whole_run)


def story(events: tuple[Event, ...]) -> list[str]:
    """The events in words, one a line."""
    lines = []
    for number, event in enumerate(events, 1):
        facts = {"demand": event.demand, "pages": tuple(event.pages.tolist()), "reader": event.reader, "number": event.number}
        said = ", ".join(f"{name} {value}" for name, value in facts.items() if value not in ((), None))
        lines.append(f"{number:3}. {event.kind} {said}{', flag' if event.flag else ''}")
    return lines
