"""Serving walks: leases, steps, forks and trims against a model of dictionaries that knows tokens and no arrays.

The model says, token by token, which pages a sequence must hold; where pages lie is the arena's choice. Checked after each
step: rows, write slots, block tables, holders, and that the arena binds exactly what some lease holds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
from attrs import define, field

from core_pure.errors import ArenaError
from core_pure.event import Event
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout
from core_pure.leases import Leases, empty_leases, open_leases, pages_of, slots_of
from core_pure.state import ArenaState, initial
from core_pure.step import StepOutcome, block_table, fork, pages_wanted, step, trim, write_slots
from core_pure.verify import Violation

from .mutants import Mutant, planted
from .walks import Failure, Shape

SERVING_TARGETS = ("leases", "step")
CONTEXT, SEQUENCES = 24, 6


def _layout(*bands: BandSpec, total: int) -> Layout:
    return Layout(bands, total, total)


LAYOUTS: tuple[Layout, ...] = (
    _layout(BandSpec("full", 6, slots_per_page=2), total=200),
    _layout(
        BandSpec("state", 23, retention="state", pages_fixed=2),
        BandSpec("window", 10, slots_per_page=2, retention="window", window=5),
        BandSpec("full", 9, slots_per_page=3),
        total=640,
    ),
    _layout(
        BandSpec("chunk", 12, slots_per_page=2, retention="chunked", window=4),
        BandSpec("window", 8, slots_per_page=4, retention="window", window=3),
        BandSpec("full", 5, slots_per_page=1, zero_on_bind=False),
        total=420,
    ),
)


@define
class Sequence:
    """One lease as the model sees it: tokens, and per band {page position: page id}."""

    tokens: int
    pages: list[dict[int, int]]


@define
class ServingWalk:
    """The core's values, and the model's sequences by handle."""

    layout: Layout
    state: ArenaState
    leases: Leases
    sequences: dict[int, Sequence] = field(factory=dict)
    events: list[Event] = field(factory=list)  # that the arena was given

    @classmethod
    def of(cls, layout: Layout) -> ServingWalk:
        """Nobody is served."""
        return cls(layout, initial(layout), empty_leases(layout, sequences=SEQUENCES, context=CONTEXT))

    # --- what must be ----------------------------------------------------------------------------------------------

    def kept(self, spec: BandSpec, tokens: int, position: int) -> bool:
        """Whether a page, its slots filled or not, has a slot that the next token, at ``tokens``, or a later one can see."""
        last = position * spec.slots_per_page + spec.slots_per_page - 1
        if spec.window is None:
            return True
        if spec.retention == "chunked":
            return last >= tokens - tokens % spec.window
        return last > tokens - spec.window

    def wanted(self, spec: BandSpec, held: dict[int, int], before: int, after: int) -> tuple[set[int], set[int]]:
        """Positions to give back, and positions to take, when a sequence goes from ``before`` to ``after`` tokens."""
        if not spec.grows:
            return set(), set(range(spec.pages_fixed)) - held.keys() if after else set()
        gone = {position for position in held if not self.kept(spec, before, position)}
        first = max(held, default=-1) + 1 if held else self.first[spec.name]
        return gone, set(range(first, -(-after // spec.slots_per_page)))

    first: dict[str, int] = field(factory=dict)

    # --- moves -----------------------------------------------------------------------------------------------------

    def serve(self, rng: random.Random) -> Iterator[Violation]:
        """One step for some of the sequences; others end."""
        handles = [handle for handle in self.sequences if rng.random() < 0.8]
        ended = [handle for handle in self.sequences if handle not in handles and rng.random() < 0.4]
        new = [min(rng.choice((0, 1, 1, 1, 2, 3, 7)), CONTEXT - self.sequences[handle].tokens) for handle in handles]
        demand = pages_wanted(self.leases, handles, new)
        outcome = step(self.state, self.leases, np.array(handles, np.int64), np.array(new, np.int64), np.array(ended, np.int64))
        if isinstance(outcome, Refusal):
            return
        self.events.append(outcome.event)
        expected: list[dict[int, tuple[set[int], set[int]]]] = [{} for _ in self.layout.bands]
        for handle, more in zip(handles, new, strict=True):
            sequence = self.sequences[handle]
            for band, spec in enumerate(self.layout.bands):
                self.first[spec.name] = self._next(handle, band)
                expected[band][handle] = self.wanted(spec, sequence.pages[band], sequence.tokens, sequence.tokens + more)
        takes = [sum(len(take) for _, take in each.values()) for each in expected]
        if [len(pages) for pages in outcome.pages] != takes:
            yield Violation("LEASE-1", f"{[len(pages) for pages in outcome.pages]} pages taken != {takes}")
            return
        if any(asked > take for asked, take in zip(demand, takes, strict=True)):
            yield Violation("LEASE-1", f"pages_wanted said {demand}, the step took {takes}")
        self.state, self.leases = outcome.state, outcome.leases
        for handle in ended:
            del self.sequences[handle]
        yield from self._take_over(outcome, handles, new, expected)
        yield from self.agrees()
        yield from self.slots_are_right(outcome, handles, new)

    def _next(self, handle: int, band: int) -> int:
        """The position after the last that this sequence ever held; slid pages are not taken again."""
        held = self.sequences[handle].pages[band]
        spec = self.layout.bands[band]
        return max(held) + 1 if held else -(-self.sequences[handle].tokens // spec.slots_per_page)

    def _take_over(
        self, outcome: StepOutcome, handles: list[int], new: list[int], expected: list[dict[int, tuple[set[int], set[int]]]]
    ) -> Iterator[Violation]:
        given = [iter(pages.tolist()) for pages in outcome.pages]
        for handle, more in zip(handles, new, strict=True):
            sequence = self.sequences[handle]
            for band, each in enumerate(expected):
                gone, take = each[handle]
                for position in gone:
                    del sequence.pages[band][position]
                sequence.pages[band] |= {position: next(given[band]) for position in sorted(take)}
            sequence.tokens += more
        return iter(())

    def begin(self) -> Iterator[Violation]:
        """A new sequence."""
        if len(self.sequences) < SEQUENCES:
            self.leases, handles = open_leases(self.leases, 1)
            self.sequences[int(handles[0])] = Sequence(0, [{} for _ in self.layout.bands])
        return iter(())

    def branch(self, rng: random.Random) -> Iterator[Violation]:
        """Fork one sequence: whole pages shared, the partial page and states copied."""
        if not self.sequences or len(self.sequences) >= SEQUENCES:
            return
        parent = rng.choice(sorted(self.sequences))
        origin = self.sequences[parent]
        if not origin.tokens:
            return
        forked = fork(self.state, self.leases, parent)
        if isinstance(forked, Refusal):
            return
        outcome, child = forked
        self.events.append(outcome.event)
        self.state, self.leases = outcome.state, outcome.leases
        heir = Sequence(origin.tokens, [{} for _ in self.layout.bands])
        for band, spec in enumerate(self.layout.bands):
            given = iter(outcome.pages[band].tolist())
            for position, page in sorted(origin.pages[band].items()):
                whole = spec.grows and (position + 1) * spec.slots_per_page <= origin.tokens
                heir.pages[band][position] = page if whole else next(given)
        self.sequences[child] = heir
        yield from self.agrees()

    def cut(self, rng: random.Random) -> Iterator[Violation]:
        """Trim a sequence that shares nothing, by a few tokens."""
        shared = Counter(page for each in self.sequences.values() for pages in each.pages for page in pages.values())
        handle = rng.choice(sorted(self.sequences)) if self.sequences else None
        if handle is None or any(shared[page] > 1 for pages in self.sequences[handle].pages for page in pages.values()):
            return
        sequence = self.sequences[handle]
        left = sequence.tokens - rng.choice((1, 2))
        lacking = any(
            spec.window and not all(position in held for position in self._seen(spec, left))
            for spec, held in zip(self.layout.bands, sequence.pages, strict=True)
        )
        if left < 1 or lacking:
            return
        outcome = trim(self.state, self.leases, np.array([handle]), np.array([left]))
        self.events.append(outcome.event)
        self.state, self.leases = outcome.state, outcome.leases
        for band, spec in enumerate(self.layout.bands):
            most = -(-left // spec.slots_per_page)
            if spec.grows:
                sequence.pages[band] = {position: page for position, page in sequence.pages[band].items() if position < most}
        sequence.tokens = left
        yield from self.agrees()

    def _seen(self, spec: BandSpec, tokens: int) -> list[int]:
        return [p for p in range(-(-tokens // spec.slots_per_page)) if self.kept(spec, tokens, p)]

    # --- checks ----------------------------------------------------------------------------------------------------

    def agrees(self) -> Iterator[Violation]:
        """LEASE-1: rows hold the model's pages and the sink elsewhere; the arena binds exactly what is held."""
        held: set[int] = set()
        for handle, sequence in self.sequences.items():
            slots, _ = slots_of(self.leases, [handle])
            for band, pages in enumerate(pages_of(self.leases, handle)):
                own = sequence.pages[band]
                held |= set(own.values())
                if pages.tolist() != [own[position] for position in sorted(own)]:
                    yield Violation("LEASE-1", f"lease {handle}, band {band}: pages {pages.tolist()} != {own}")
                width = self.leases.widths[band]
                row = self.leases.rows[band].read(slice(int(slots[0]) * width, (int(slots[0]) + 1) * width)).tolist()
                table = block_table(self.state, self.leases, slots, band, width)[0].tolist()
                frames = [int(self.state.frames_of(np.array([own[p]]))[0]) if p in own else 0 for p in range(width)]
                if table != frames:
                    yield Violation("SLOT-1", f"lease {handle}, band {band}: block table {table} != frames {frames}")
                slid = [p for p in range(min(own, default=0)) if row[p]]
                if slid:
                    yield Violation(
                        "LEASE-1", f"lease {handle}, band {band}: row still names page {row[slid[0]]} at {slid[0]}, slid out"
                    )
        bound = {
            band.home.id_base + page for band in self.state.bands for page in np.flatnonzero(band.frame_of.copy() > 0).tolist()
        }
        if bound != held:
            yield Violation(
                "LEASE-1", f"bound and held by nobody {sorted(bound - held)[:5]}, held and unbound {sorted(held - bound)[:5]}"
            )

    def slots_are_right(self, outcome: StepOutcome, handles: list[int], new: list[int]) -> Iterator[Violation]:
        """SLOT-1: the write slot of token t is frame · slots + t % slots of the page that holds t, in order."""
        for band, spec in enumerate(self.layout.bands):
            if not spec.grows:
                continue
            expected = []
            for handle, more in zip(handles, new, strict=True):
                sequence = self.sequences[handle]
                for token in range(sequence.tokens - more, sequence.tokens):
                    page = sequence.pages[band][token // spec.slots_per_page]
                    frame = int(self.state.frames_of(np.array([page]))[0])
                    expected.append(frame * spec.slots_per_page + token % spec.slots_per_page)
            if write_slots(outcome, band).tolist() != expected:
                yield Violation("SLOT-1", f"band {band}: write slots {write_slots(outcome, band).tolist()} != {expected}")


def serving_walk(seed: int, steps: int = 60, told: list[Event] | None = None) -> Violation | None:
    """The first violation of a random serving walk, if any. told: gets the arena's events."""
    rng = random.Random(seed)
    walk = ServingWalk.of(LAYOUTS[seed % len(LAYOUTS)])
    for _ in range(steps):
        kind = rng.random()
        try:
            if kind < 0.25:
                found = walk.begin()
            elif kind < 0.33:
                found = walk.branch(rng)
            else:
                found = walk.cut(rng) if kind < 0.4 else walk.serve(rng)
            violation = next(iter(found), None)
        except (ArenaError, KeyError, StopIteration, RuntimeError) as error:
            violation = Violation("LEASE-1", f"a legal step failed: {error!r}")
        if told is not None:
            told[:] = walk.events
        if violation is not None:
            return violation
    return None


def served(seed: int, steps: int = 60) -> Failure | None:
    """A serving walk's failure, with the arena's events that lead there."""
    told: list[Event] = []
    violation = serving_walk(seed, steps, told)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    shape = Shape(f"serving-{seed % len(LAYOUTS)}", tuple(band.frame_bytes for band in layout.bands), layout.total_bytes)
    return None if violation is None else Failure(shape, (), tuple(told), violation)


SHORT_WALKS = 600


def shortest_served(failure: Failure) -> Failure:
    """The shortest of many short serving walks that break the same claim, or the failure itself."""
    best = failure
    for seed in range(SHORT_WALKS):
        found = served(seed, steps=4 + seed % 12)
        if found is not None and found.violation.claim == failure.violation.claim and len(found.events) < len(best.events):
            best = found
    return best


def hunt_serving(mutant: Mutant, walks_most: int = 60) -> Violation | None:
    """Serving walks on the planted core until something is violated."""
    with planted(mutant):
        return next((found for seed in range(walks_most) if (found := serving_walk(seed)) is not None), None)
