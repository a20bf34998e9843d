"""Random walks of plain events over tiny arenas, every transition checked.

A walk is a list of moves. A move names its target by position ("the third page bound"), not by id, so that moves can be left
out and the rest still means something; that is what makes shrinking work. Everything follows from a seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest import mock

import numpy as np
from attrs import define, field, frozen

from core_pure import band as core_band
from core_pure import verify as core_verify
from core_pure.band import BLOCK_BITS
from core_pure.errors import ArenaError
from core_pure.event import Event
from core_pure.fits import NOW, RELIEF, Refusal, obtainable
from core_pure.layout import BandSpec, Layout
from core_pure.state import ArenaState
from core_pure.verify import Violation

from . import plain
from .checked import Checked
from .reference import Reference


@frozen
class Shape:
    """A tiny arena, bands in byte order. Units: bytes; pages for caps, (pages_min, pages_max) per band."""

    name: str
    frames: tuple[int, ...]
    total_bytes: int
    caps: tuple[tuple[int, int | None], ...] = ()
    resizes: bool = False
    block_bits: int = 2  # holes are counted per 4 frames, so that a tiny arena has several blocks; shipped: per 1,024

    def layout(self) -> Layout:
        """In exactly this byte order and size, unrounded."""
        caps = self.caps or ((0, None),) * len(self.frames)
        bands = tuple(
            BandSpec(f"band{at}", size, pages_min=low, pages_max=high)
            for at, (size, (low, high)) in enumerate(zip(self.frames, caps, strict=True))
        )
        return Layout(bands, self.total_bytes, self.total_bytes)


SHAPES: tuple[Shape, ...] = (
    Shape("single", (5,), 48, block_bits=1),
    Shape("two", (7, 5), 76),
    Shape("two-fine", (9, 2), 54),
    Shape("three", (7, 5, 3), 75),
    Shape("three-off-grid", (9, 6, 4), 100),
    Shape("three-even", (4, 2, 1), 34, block_bits=BLOCK_BITS),
    Shape("three-rising", (8, 3, 5), 90),
    Shape("four", (8, 3, 5, 2), 92, block_bits=BLOCK_BITS),
    Shape("capped", (7, 4, 3), 80, ((1, None), (0, 3), (2, 9))),
    Shape("resized", (3000, 2000), 28672, resizes=True),
)


class Move(NamedTuple):
    """One move. picks: positions among the pages bound; flag: 0 alone, 1 beside a reader, 2 withheld, 3 with written pages."""

    kind: str
    demand: tuple[int, ...] = ()
    picks: tuple[int, ...] = ()
    number: int = -1
    flag: int = 0


def squeezed(state: ArenaState, move: Move) -> Move | None:
    """More pages of one band than fit now, at most what relief gives: an allocation that must move something."""
    for turn in range(len(state.bands)):
        at = (move.number + turn) % len(state.bands)
        now, most = obtainable(state, at, NOW), obtainable(state, at, RELIEF)
        if most > now:
            pages = now + 1 + move.number // 7 % (most - now)
            return Move("allocate", tuple(pages if other == at else 0 for other in range(len(state.bands))))
    return None


def event_of(model: Reference, layout: Layout, move: Move) -> Event | None:
    """The event a move means in this state; None where it means nothing."""
    bound = sorted(page for band in model.bands for page in band.pages)
    pages = [bound[at % len(bound)] for at in dict.fromkeys(at % len(bound) for at in move.picks)] if bound else []
    flying = model.launched > model.retired
    reader = model.launched if move.flag in (1, 3) and flying else None
    ids = np.array(pages, np.int64)
    match move.kind:
        case "allocate" | "release" | "advance":
            pinned = {page for band in model.bands for page, count in band.pins.items() if count}
            ids = np.array([page for page in pages if page not in pinned], np.int64)
            demand = move.demand if move.kind != "release" else ()
            return None if move.kind == "release" and not len(ids) else Event(move.kind, None, reader, demand, ids, move.flag == 2)
        case "compact":
            limit = None if move.number < 0 else move.number
            written = reader is not None and move.flag == 3
            return Event("compact", limit, reader, (), ids if written else ids[:0], written)
        case "pin":
            return Event("pin", pages=ids) if pages else None
        case "unpin":
            pinned_pages = sorted(page for band in model.bands for page, count in band.pins.items() if count)
            return Event("unpin", pages=np.array([pinned_pages[move.number % len(pinned_pages)]])) if pinned_pages else None
        case "copy":
            return Event("copy", None, reader, (), np.array(pages + pages[: move.number], np.int64)) if pages else None
        case "launch" | "clear":
            return Event(move.kind)
        case "retire":
            return Event("retire", number=model.retired + 1 + move.number % (model.launched - model.retired)) if flying else None
        case "resize":
            return Event("resize", number=move.number * 4096)
        case _:
            return _misuse(model, layout, bound, move)


def _misuse(model: Reference, layout: Layout, bound: list[int], move: Move) -> Event:
    """Wrong ids and wrong fences (cases F01, F16)."""
    free = [page for page in range(1, layout.ids_total) if page not in bound] or [0]
    pinned = [page for band in model.bands for page, count in band.pins.items() if count] or [0]
    some = bound[:1] or [0]
    wrong = [[0], [-1], [layout.ids_total], [free[0]], [some[0], some[0]], [pinned[0]], [free[-1]], [some[0], free[0]]]
    choice = move.number % (len(wrong) + 3)
    if choice < len(wrong):
        kind = ("release", "pin", "unpin", "advance")[move.number // 11 % 4]
        wrong[choice] = bound[-1:] or [0] if kind == "unpin" and choice % 2 else wrong[choice]
        demand = (1,) + (0,) * (len(layout.bands) - 1) if kind == "advance" else ()
        return Event(kind, demand=demand, pages=np.array(wrong[choice], np.int64))
    if choice == len(wrong):
        return Event("retire", number=model.launched + 1)
    if choice == len(wrong) + 1:
        return Event("allocate", reader=model.launched + 1, demand=(1,) * len(layout.bands))
    return Event("compact", reader=model.launched + 1)


@frozen
class Temper:
    """How one walk behaves: weights of kinds, and how much it asks for at once. Differs from walk to walk."""

    kinds: tuple[str, ...]
    weights: tuple[float, ...]
    most: tuple[int, ...]
    reader: float

    @classmethod
    def of(cls, rng: random.Random, shape: Shape) -> Temper:
        """Draw one."""
        fences, pins = rng.random() < 0.5, rng.random() < 0.4
        weights = {
            "allocate": 24.0,
            "squeeze": 16.0,
            "release": rng.choice((20.0, 26.0, 32.0)),
            "advance": 12.0,
            "compact": rng.choice((1.0, 4.0)),
            "pin": 2.5 if pins else 0.0,
            "unpin": 3.0 if pins else 0.0,
            "launch": 5.0 if fences else 0.0,
            "retire": 5.0 if fences else 0.0,
            "copy": rng.choice((0.0, 3.0)),
            "clear": 0.15,
            "resize": 4.0 if shape.resizes else 0.0,
            "misuse": 2.0,
        }
        frames = [shape.total_bytes // size for size in shape.frames]
        most = tuple(max(2, count // rng.choice((4, 6, 10))) for count in frames)
        return cls(tuple(weights), tuple(weights.values()), most, rng.choice((0.2, 0.6)))


def moves(seed: int, shape: Shape, length: int) -> Iterator[Move]:
    """The moves of one walk."""
    rng = random.Random(f"{seed} {shape.name}")
    temper = Temper.of(rng, shape)
    bands = len(shape.frames)
    for kind in rng.choices(temper.kinds, temper.weights, k=length):
        demand: tuple[int, ...] = ()
        picks: tuple[int, ...] = ()
        number, flag = -1, 0
        if kind in ("allocate", "advance"):
            asked = rng.randrange(bands)
            wide = rng.random() < 0.2
            demand = tuple(rng.randint(int(at == asked), most) if at == asked or wide else 0 for at, most in enumerate(temper.most))
            flag = rng.choice((0, 1, 1, 2)) if kind == "advance" and rng.random() < temper.reader else 0
            flag = 1 if kind == "allocate" and rng.random() < temper.reader / 2 else flag
        if kind in ("release", "advance", "pin"):
            picks = tuple(rng.randrange(64) for _ in range(rng.choice((1, 1, 2, 3, 6) if kind == "release" else (1, 1, 2))))
            flag = 1 if kind == "release" and rng.random() < temper.reader else flag
        if kind == "copy":
            picks, number, flag = (
                tuple(rng.randrange(64) for _ in range(rng.choice((1, 2, 3)))),
                rng.choice((0, 0, 1)),
                rng.choice((0, 1)),
            )
        if kind == "compact":
            number = rng.choice((-1, -1, rng.randrange(0, 3 * max(shape.frames))))
            flag = rng.choice((0, 1, 3, 3))
            picks = tuple(rng.randrange(64) for _ in range(rng.choice((1, 3))))
        if kind == "resize":
            number = rng.randrange(0, shape.total_bytes // 4096 + 2)
        if kind in ("unpin", "retire", "misuse", "squeeze"):
            number = rng.randrange(88)
        yield Move(kind, demand, picks, number, flag)


@define
class Tally:
    """What was covered. kinds: transitions by kind; reasons: refusals by reason and mode."""

    transitions: int = 0
    refusals: int = 0
    relief: int = 0
    errors: int = 0
    kinds: Counter[str] = field(factory=Counter)
    reasons: Counter[str] = field(factory=Counter)

    def add(self, event: Event, checked: Checked) -> None:
        """Count one transition."""
        self.transitions += 1
        self.kinds[event.kind] += 1
        if isinstance(checked.result, Refusal):
            self.refusals += 1
            self.reasons[f"{checked.result.reason}, {event.kind}"] += 1
        elif isinstance(checked.result, ArenaError):
            self.errors += 1
            self.reasons[type(checked.result).__name__] += 1
        elif event.kind != "compact" and checked.moved:
            self.relief += 1

    def merge(self, other: Tally) -> None:
        """Add another tally."""
        self.transitions += other.transitions
        self.refusals += other.refusals
        self.relief += other.relief
        self.errors += other.errors
        self.kinds.update(other.kinds)
        self.reasons.update(other.reasons)


@frozen
class Failure:
    """A walk that broke a claim: the moves up to and with the one that did, and the events they meant."""

    shape: Shape
    moves: tuple[Move, ...]
    events: tuple[Event, ...]
    violation: Violation


@frozen
class Run:
    """A walk that was taken. events: those that the core accepted or refused; misuse left out."""

    failure: Failure | None
    checked: Checked
    events: tuple[Event, ...]


@contextmanager
def blocks_of(bits: int) -> Iterator[None]:
    """Count holes per 2**bits frames, in the core and in both tellings of HOLE-1."""
    with ExitStack() as stack:
        for module in (core_band, core_verify, plain):
            stack.enter_context(mock.patch.object(module, "BLOCK_BITS", bits))
        yield


def walk(
    shape: Shape,
    chosen: Iterable[Move],
    tally: Tally | None = None,
    seen: Callable[[bytes], None] | None = None,
    *,
    thorough: str = "",
) -> Run:
    """Take the moves from the empty arena; stop at the first violation. seen: told the content digest of every state."""
    with blocks_of(shape.block_bits):
        return _walk(shape, chosen, tally, seen, thorough)


def _walk(shape: Shape, chosen: Iterable[Move], tally: Tally | None, seen: Callable[[bytes], None] | None, thorough: str) -> Run:
    layout = shape.layout()
    checked = Checked.of(layout)
    checked.thorough = thorough
    done: list[Move] = []
    events: list[Event] = []
    accepted: list[Event] = []
    for move in chosen:
        concrete = squeezed(checked.state, move) if move.kind == "squeeze" else move
        event = None if concrete is None else event_of(checked.model, layout, concrete)
        if event is None or concrete is None:
            continue
        done.append(concrete)
        events.append(event)
        violation = next(checked.step(event), None)
        if tally is not None:
            tally.add(event, checked)
        if violation is not None:
            return Run(Failure(shape, tuple(done), tuple(events), violation), checked, tuple(accepted))
        if not isinstance(checked.result, ArenaError):
            accepted.append(event)
        if seen is not None:
            seen(checked.content)
    return Run(None, checked, tuple(accepted))


def run(shape: Shape, chosen: Iterable[Move], tally: Tally | None = None, *, thorough: str = "") -> Failure | None:
    """The violation that a walk meets, if any. thorough: a claim to ask in every transition."""
    return walk(shape, chosen, tally, thorough=thorough).failure
