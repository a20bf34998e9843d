"""Every reachable state of tiny arenas, every event in each, every claim checked: complete within its scope.

A state is known by its key, which has frames, pins and fences but no page names. The queue holds packed states with
tables of their own, so that no old version keeps another alive. Breadth first: a failure comes with a shortest story.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from zlib import crc32

import numpy as np
from attrs import evolve, field, frozen

from core_pure.advance import advance, allocate, clear, release
from core_pure.compact import compact
from core_pure.errors import ArenaError
from core_pure.fences import launch, retire
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Demand, Layout
from core_pure.pins import pin, unpin
from core_pure.state import ArenaState, Outcome, initial
from core_pure.table import Table

Sets = tuple[dict[int, int], ...]
Key = tuple[Any, ...]


@frozen
class Event:
    """One input, as data. pages: ids named; demand: pages per band; fence: reader, or fence to retire; limit: bytes."""

    kind: str  # allocate, release, advance, compact, pin, unpin, launch, retire, clear or misuse
    pages: tuple[int, ...] = ()
    demand: Demand = ()
    fence: int | None = None
    limit: int | None = None


@frozen
class World:
    """A tiny arena and which events its exploration tries. Units: bytes, pages, fences in flight, pages pinned."""

    name: str
    frames: tuple[int, ...]  # frame bytes per band, in byte order
    total_bytes: int
    ask_max: int = 2  # pages of one band in one demand
    mix_max: int = 2  # pages of all bands in one joint demand
    fences_max: int = 0
    pins_max: int = 0
    steps: bool = False  # also every release of one page together with a demand for one
    caps: tuple[tuple[int, int | None], ...] = ()  # (pages_min, pages_max) per band

    def layout(self) -> Layout:
        """The layout in exactly this byte order and size, unrounded."""
        caps = self.caps or ((0, None),) * len(self.frames)
        bands = tuple(
            BandSpec(f"band{index}", size, pages_min=low, pages_max=high)
            for index, (size, (low, high)) in enumerate(zip(self.frames, caps, strict=True))
        )
        return Layout(bands, self.total_bytes, self.total_bytes)


@frozen
class Node:
    """A state of the core and its plain reading: per band {page: frame}, {frame: fence}, {page: pins}."""

    state: ArenaState
    pages: Sets
    waiting: Sets
    pins: Sets

    @classmethod
    def of(cls, state: ArenaState) -> Node:
        """Read a state through its public fields."""
        pages, waiting, pins = [], [], []
        for band in state.bands:
            base = band.home.id_base
            pages.append({base + index: frame for index, frame in enumerate(band.frame_of.copy().tolist()) if frame > 0})
            waiting.append({frame: batch.fence for batch in band.held.batches for frame in map(int, batch.frames)})
            pins.append({base + index: count for index, count in band.held.pins.items()})
        return cls(state, tuple(pages), tuple(waiting), tuple(pins))

    @property
    def outstanding(self) -> int:
        """Fences launched and not retired."""
        return self.state.launched - self.state.retired

    def key(self) -> Key:
        """Frames, pins and fences (counted from the last retired), without page names."""
        retired = self.state.retired
        return (
            self.outstanding,
            *(
                (
                    tuple(sorted((frame, pins.get(page, 0)) for page, frame in pages.items())),
                    tuple(sorted((frame, fence - retired) for frame, fence in waiting.items())),
                )
                for pages, waiting, pins in zip(self.pages, self.waiting, self.pins, strict=True)
            ),
        )


@frozen
class Step:
    """One transition tried: what the core answered, and both states read."""

    world: World
    before: Node
    event: Event
    result: Outcome | Refusal | ArenaError
    after: Node  # ``before`` itself unless the result is an Outcome


StateCheck = Callable[[World, Node], Iterable[str]]
StepCheck = Callable[[Step], Iterable[str]]


class WorldFailure(AssertionError):
    """A claim broke; the message tells the claim and the shortest story that leads to it."""


@frozen
class Counts:
    """What an exploration covered; equal on every machine."""

    states: int
    transitions: int
    kinds: dict[str, int] = field(factory=dict)  # events by kind, and refusal, error, relief (moved), wait

    def as_json(self) -> dict[str, Any]:
        """Plain, sorted, for the committed expectation."""
        return {"states": self.states, "transitions": self.transitions, **dict(sorted(self.kinds.items()))}


def demands(world: World) -> Iterator[Demand]:
    """Every demand of one band up to ask_max pages, and every mix up to mix_max pages in all."""
    for vector in itertools.product(range(world.ask_max + 1), repeat=len(world.frames)):
        used = sum(pages > 0 for pages in vector)
        if used == 1 or (used > 1 and sum(vector) <= world.mix_max):
            yield vector


def events(world: World, node: Node) -> Iterator[Event]:
    """Every event this world tries in this state."""
    state = node.state
    bound = sorted(page for pages in node.pages for page in pages)
    pinned = {page for pins in node.pins for page in pins}
    readers: tuple[int | None, ...] = (None, state.launched) if node.outstanding else (None,)
    for reader in readers:
        for demand in demands(world):
            yield Event("allocate", demand=demand, fence=reader)
        for page in bound:
            yield Event("release", pages=(page,), fence=reader)
            if world.steps:
                for index in range(len(world.frames)):
                    demand = tuple(int(other == index) for other in range(len(world.frames)))
                    yield Event("advance", pages=(page,), demand=demand, fence=reader)
    yield Event("compact")
    yield Event("compact", limit=max(world.frames))
    for page in bound:
        if page in pinned:
            yield Event("unpin", pages=(page,))
        if sum(sum(pins.values()) for pins in node.pins) < world.pins_max:
            yield Event("pin", pages=(page,))
    if node.outstanding < world.fences_max:
        yield Event("launch")
    for fence in range(state.retired + 1, state.launched + 1):
        yield Event("retire", fence=fence)
    yield from _rare(node, bound)


RARE = 4  # one state of this many also tries what does the same everywhere


def _rare(node: Node, bound: list[int]) -> Iterator[Event]:
    """In a sample of states: clear, one wrong release of a kind that goes round, and one fence too many."""
    layout, pick = node.state.layout, crc32(repr(node.key()).encode())
    if pick % RARE:
        return
    yield Event("clear")
    free = [page for page in range(1, layout.ids_total) if page not in bound]
    wrong = [(0,), (-1,), (layout.ids_total,), tuple(free[:1]), (bound[0], bound[0]) if bound else ()]
    chosen = wrong[pick // RARE % len(wrong)]
    yield Event("misuse", pages=chosen or (0,))
    yield Event("misuse", fence=node.state.launched + 1)


def run(state: ArenaState, event: Event) -> Outcome | Refusal:
    """Give one event to the core. Raises: ArenaError as the core does."""
    pages = np.array(event.pages, np.int32)
    match event.kind:
        case "allocate":
            return allocate(state, event.demand, reader=event.fence)
        case "release":
            return release(state, pages, reader=event.fence)
        case "advance":
            return advance(state, release=pages, demand=event.demand, reader=event.fence)
        case "compact":
            return compact(state, bytes_limit=event.limit)
        case "pin":
            return pin(state, pages)
        case "unpin":
            return unpin(state, pages)
        case "launch":
            return launch(state)
        case "clear":
            return clear(state)
        case "retire":
            return retire(state, event.fence or 0)
        case _:
            return release(state, pages, reader=event.fence)


def try_event(world: World, node: Node, event: Event) -> Step:
    """One transition with both ends read."""
    result: Outcome | Refusal | ArenaError
    try:
        result = run(node.state, event)
    except ArenaError as error:
        result = error
    after = Node.of(result.state) if isinstance(result, Outcome) else node
    return Step(world, node, event, result, after)


# --- packed states ----------------------------------------------------------------------------------------------------


def pack(state: ArenaState) -> Any:
    """A state as arrays and ints, sharing nothing with other versions."""
    bands = []
    for band in state.bands:
        tables = [table.copy() for table in (band.frame_of, band.page_of, band.ids)]
        bands.append((tables, band.blocks.copy(), band.live, band.spare, band.fresh, band.low, band.high, band.held))
    return state.launched, state.retired, bands


def unpack(empty: ArenaState, packed: Any) -> ArenaState:
    """The inverse of ``pack``, on the layout of ``empty``."""
    launched, retired, packed_bands = packed
    bands = []
    for band, (tables, blocks, live, spare, fresh, low, high, held) in zip(empty.bands, packed_bands, strict=True):
        frame_of, page_of, ids = map(Table.of, tables)
        bands.append(
            evolve(
                band,
                frame_of=frame_of,
                page_of=page_of,
                ids=ids,
                blocks=blocks,
                live=live,
                spare=spare,
                fresh=fresh,
                low=low,
                high=high,
                held=held,
            )
        )
    return ArenaState(empty.layout, tuple(bands), launched, retired)


# --- the search -------------------------------------------------------------------------------------------------------


def _digest(key: Key) -> bytes:
    """16 bytes instead of a tuple: ten million keys fit in memory, a collision is as likely as a broken machine."""
    return hashlib.blake2b(repr(key).encode(), digest_size=16).digest()


def _tally(kinds: Counter[str], step: Step) -> None:
    kinds[step.event.kind] += 1
    if isinstance(step.result, Refusal):
        kinds["refusal"] += 1
    elif isinstance(step.result, ArenaError):
        kinds["error"] += 1
    else:
        kinds["relief"] += bool(step.result.plan.waves) and step.event.kind != "compact"
        kinds["wait"] += step.result.plan.wait is not None


def explore(
    world: World,
    state_checks: Iterable[StateCheck],
    step_checks: Iterable[StepCheck],
    *,
    states_limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Counts:
    """Visit every state reachable from the empty arena, at most ``states_limit``, and check every transition.

    progress: called with (states known, states waiting) each time a state has been expanded.
    Raises: WorldFailure at the first claim that breaks.
    """
    empty = initial(world.layout())
    came_from: dict[bytes, tuple[bytes, Event] | None] = {_digest(Node.of(empty).key()): None}
    waiting = deque([(next(iter(came_from)), pack(empty))])
    kinds: Counter[str] = Counter()
    transitions = 0
    checks, step_checks = tuple(state_checks), tuple(step_checks)

    def fail(digest: bytes, texts: list[str], *last: Event) -> None:
        if texts:
            raise WorldFailure(f"{world.name}: {'; '.join(texts)}\n" + "\n".join(_story(came_from, digest, last)))

    while waiting:
        digest, packed = waiting.popleft()
        node = Node.of(unpack(empty, packed))
        fail(digest, [text for check in checks for text in check(world, node)])
        for event in events(world, node):
            step = try_event(world, node, event)
            transitions += 1
            _tally(kinds, step)
            fail(digest, [text for check_step in step_checks for text in check_step(step)], event)
            if isinstance(step.result, Outcome):
                reached = _digest(step.after.key())
                if reached not in came_from and (states_limit is None or len(came_from) < states_limit):
                    came_from[reached] = (digest, event)
                    waiting.append((reached, pack(step.result.state)))
        fail(digest, [] if Node.of(node.state) == node else ["inputs: expanding a state changed it"])
        if progress is not None:
            progress(len(came_from), len(waiting))
    return Counts(len(came_from), transitions, dict(kinds))


def _story(came_from: dict[bytes, tuple[bytes, Event] | None], digest: bytes, last: tuple[Event, ...]) -> list[str]:
    """The events from the empty arena to a state, one a line."""
    story = list(last)
    while (link := came_from[digest]) is not None:
        digest, event = link
        story.insert(0, event)
    return [f"  {number}. {event}" for number, event in enumerate(story, 1)]
