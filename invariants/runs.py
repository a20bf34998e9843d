"""Claims about whole runs: the same events give the same digest; lazy and eager end alike; a neighbourhood is exhausted.

A run claim takes a shape and events or a seed, and yields violations. They cost as much as the run itself, so campaigns ask them
of some walks only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from attrs import evolve

from core_pure import recording
from core_pure.errors import ArenaError
from core_pure.event import Event, passed
from core_pure.fits import Refusal
from core_pure.plan import NOTHING
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import Violation

from . import worlds
from .checked import Checked, content_of
from .walks import Failure, Move, Run, Shape, event_of, moves, squeezed
from .world_checks import STEP_CHECKS

PLAIN = ("allocate", "squeeze", "release", "advance")


def digest_is_reproducible(shape: Shape, run: Run) -> Iterator[Violation]:
    """DIGEST-1: the run, written, read and replayed, ends in an equal state with an equal digest."""
    data = recording.write(shape.layout(), run.events)
    try:
        layout, events = recording.read(data)
        state: ArenaState | None = None
        for _, before, outcome in recording.replay(layout, events):
            state = outcome.state if isinstance(outcome, Outcome) else before
    except ArenaError as error:
        yield Violation("DIGEST-1", f"the recording of {len(run.events)} events cannot be replayed: {error}")
        return
    if state is None:
        return
    if state.digest != run.checked.state.digest:
        yield Violation("DIGEST-1", f"replayed digest {state.digest.hex()} != {run.checked.state.digest.hex()}")
    if content_of(state) != run.checked.content:
        yield Violation("DIGEST-1", f"replaying {len(run.events)} events gives another state")


def digest_tells_apart(shape: Shape, run: Run) -> Iterator[Violation]:
    """DIGEST-1, the other way: an event that differs in one field gives another digest."""
    empty = Outcome(initial(shape.layout()), NOTHING)
    for event in run.events[-3:]:
        digest = passed(empty, event).state.digest
        others = (
            evolve(event, number=(event.number or 0) + 1),
            evolve(event, reader=(event.reader or 0) + 1),
            evolve(event, demand=(*event.demand, 1)),
            evolve(event, pages=np.append(event.pages, 1)),
            evolve(event, flag=not event.flag),
            evolve(event, kind="launch" if event.kind == "clear" else "clear"),
        )
        if any(passed(empty, other).state.digest == digest for other in others):
            yield Violation("DIGEST-1", f"an event other than {event} gives the same digest {digest.hex()}")


def whole_run(shape: Shape, run: Run) -> Failure | None:
    """What a walk met, or else what the claims about whole runs say of it."""
    if run.failure is not None:
        return run.failure
    told = next(chain(digest_is_reproducible(shape, run), digest_tells_apart(shape, run)), None)
    return None if told is None else Failure(shape, (), run.events, told)


def lazy_is_eager(shape: Shape, seed: int, length: int) -> Failure | None:
    """LAZY-1: with and without compaction after every release, the same verdicts, pages bound and bytes in them."""
    layout = shape.layout()
    lazy, eager = Checked.of(layout), Checked.of(layout)
    events: dict[int, list[Event]] = {id(lazy): [], id(eager): []}

    def step(checked: Checked, event: Event) -> Failure | None:
        events[id(checked)].append(event)
        found = next(checked.step(event), None)
        return None if found is None else Failure(shape, (), tuple(events[id(checked)]), found)

    for move in moves(seed, shape, length):
        if move.kind not in PLAIN:
            continue
        concrete = squeezed(lazy.state, move) if move.kind == "squeeze" else move._replace(flag=0)
        event = None if concrete is None else event_of(lazy.model, layout, concrete)
        if event is None:
            continue
        failure = step(lazy, event) or step(eager, event)
        if failure is None and event.kind != "allocate":
            failure = step(eager, Event("compact"))
        if failure is not None:
            return failure
        if isinstance(lazy.result, Refusal) and event.kind == "allocate" and not isinstance(eager.result, Refusal):
            return Failure(shape, (), tuple(events[id(lazy)]), Violation("LAZY-1", f"{event.demand}: lazy refuses, eager does not"))
        if lazy.model.contents != eager.model.contents:
            different = sorted(lazy.model.contents.keys() ^ eager.model.contents.keys())
            text = f"pages or bytes differ between lazy and eager: {different[:6]}"
            return Failure(shape, (), tuple(events[id(eager)]), Violation("LAZY-1", text))
    return None


def neighbourhood(shape: Shape, run: Run) -> Iterator[tuple[int, Failure | None]]:
    """Try every event of a small world in the state where a walk ended, against brute force. Yields (1, failure or None)."""
    state = run.checked.state
    withheld = any(batch.fence > state.launched for band in state.bands for batch in band.held.batches)
    if shape.resizes or withheld:  # small worlds know neither
        return
    world = worlds.World(shape.name, shape.frames, shape.total_bytes, fences_max=2, pins_max=2, steps=True, caps=shape.caps)
    node = worlds.Node.of(state)
    for event in worlds.events(world, node):
        step = worlds.try_event(world, node, event)
        text = next((text for check in STEP_CHECKS for text in check(step)), None)
        violation = None if text is None else Violation("WORLD-1", text)
        yield 1, None if violation is None else Failure(shape, (), (*run.events, as_core(event)), violation)


def as_core(event: worlds.Event) -> Event:
    """A small world's event as the core's."""
    kind = "release" if event.kind == "misuse" and event.pages else "retire" if event.kind == "misuse" else event.kind
    number = event.fence if kind == "retire" else event.limit
    reader = None if kind == "retire" else event.fence
    return Event(kind, number, reader, event.demand, np.array(event.pages, np.int64))


def from_events(shape: Shape, events: tuple[Event, ...]) -> tuple[Move, ...]:
    """Moves that mean these events, for shrinking: targets by position among the pages bound."""
    layout, found = shape.layout(), []
    checked = Checked.of(layout)
    for event in events:
        bound = sorted(page for band in checked.model.bands for page in band.pages)
        picks = tuple(bound.index(page) for page in event.pages.tolist() if page in bound)
        flag = 2 if event.flag and event.kind == "advance" else 3 if event.flag else 1 if event.reader is not None else 0
        number = -1 if event.number is None else event.number
        if event.kind == "retire":
            number -= checked.model.retired + 1
        if event.kind == "resize":
            number //= 4096
        if event.kind == "unpin":
            pinned = sorted(page for band in checked.model.bands for page, count in band.pins.items() if count)
            number = pinned.index(int(event.pages[0])) if len(event.pages) and int(event.pages[0]) in pinned else 0
        found.append(Move(event.kind, event.demand, picks, number, flag))
        list(checked.step(event))
    return tuple(found)
