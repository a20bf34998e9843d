"""Core and reference side by side on long random walks: every event, misuse included, the bytes carried along."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from core_pure.advance import advance, allocate, clear, release, resize
from core_pure.compact import compact
from core_pure.errors import ArenaError
from core_pure.fences import launch, retire
from core_pure.fits import NOW, Fit, Refusal, after, fits
from core_pure.geometry import floor_arena
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.pins import pin, unpin
from core_pure.plan import Plan, encode
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify
from invariants.interpreter import PlanText
from invariants.reference import OUTCOME, REFUSAL, SCRIBBLE, Reference
from invariants.worlds import Node
from tests.test_reference_plans import words_of

LAYOUTS = {
    "single": build_layout([BandSpec("only", 512)], 3 * 4096),
    "pair": build_layout([BandSpec("state", 5 * 128, retention="state"), BandSpec("full", 3 * 128)], 3 * 4096),
    "F03": build_layout([BandSpec("s", 96 * 256), BandSpec("w", 7 * 256), BandSpec("f", 5 * 256)], 25 * 4096),
    "floats": Layout(tuple(BandSpec(f"b{i}", f) for i, f in enumerate((11, 3, 7, 2))), 240, 240),
    "dirty": Layout((BandSpec("a", 3, zero_on_bind=False), BandSpec("b", 8), BandSpec("c", 5)), 200, 200),
    "caps": Layout((BandSpec("a", 9, pages_max=5), BandSpec("b", 4, pages_min=6), BandSpec("c", 6)), 160, 160),
}


class Walk:
    """One arena twice: the core's value and the reference, driven by the same random events."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state: ArenaState = initial(layout)
        self.model = Reference(layout)
        self.seen: Counter[str] = Counter()

    @property
    def bound(self) -> list[int]:
        return [page for band in self.model.bands for page in band.pages]

    def some_pages(self, most: int) -> list[int]:
        """A few bound pages; sometimes a wrong id among them."""
        pages = self.rng.sample(self.bound, min(len(self.bound), self.rng.randrange(1, most + 1)))
        if self.rng.random() < 0.05:
            pages.append(self.rng.choice([0, -1, self.rng.randrange(1, len(self.model.table) + 3), *pages[:1]]))
        return pages

    def some_reader(self) -> int | None:
        """Nobody, the newest step, or rarely a fence that is too old or too new."""
        if self.rng.random() < 0.05:
            return self.rng.choice([self.model.retired, self.model.launched + 1])
        return self.model.launched if self.model.retired < self.model.launched and self.rng.random() < 0.5 else None

    def some_demand(self) -> tuple[int, ...]:
        """Mostly a page or two somewhere, at times far too much."""
        most = self.rng.choice((1, 1, 2, 4, 12))
        return tuple(self.rng.choice((0, self.rng.randrange(most + 1))) for _ in self.state.bands)

    def judge(self, name: str, expected: frozenset[str], result: object) -> bool:
        """The core's verdict is one the reference allows; True when the state moves on."""
        verdict = {Outcome: "outcome", Refusal: "refusal"}.get(type(result), type(result).__name__)
        assert verdict in expected, (name, verdict, expected)
        self.seen[f"{name} {verdict}"] += 1
        if isinstance(result, Outcome):
            self.state = result.state
        return isinstance(result, Outcome)

    def step(self) -> None:
        """One random event on both, then everything is compared."""
        kinds = ("allocate", "advance", "release", "compact", "pin", "unpin", "launch", "retire", "resize", "withhold")
        weights = (25, 25, 20, 8, 4, 5, 8, 8, 2, 3)
        kind = self.rng.choices(kinds, weights)[0]
        getattr(self, f"do_{kind}")()
        self.model.check()
        node = Node.of(self.state)
        assert list(self.model.differences(node.pages, node.waiting, node.pins)) == []
        assert verify(self.state) == []
        assert self.state.table().tolist() == self.model.table

    def do_allocate(self) -> None:
        self._advance([], self.some_demand(), "allocate")

    def do_release(self) -> None:
        self._advance(self.some_pages(6), (0,) * len(self.state.bands), "release")

    def do_advance(self) -> None:
        self._advance(self.some_pages(4), self.some_demand(), "advance")

    def _advance(self, gone: list[int], demand: tuple[int, ...], name: str) -> None:
        reader, before = self.some_reader(), self.state
        expected = self.model.expect_advance(gone, demand, reader=reader)
        result = _caught(lambda: _run_advance(before, name, gone, demand, reader))
        now = name == "allocate" and expected <= OUTCOME | REFUSAL and self.model.fits(demand, now=True)
        if name == "allocate" and expected <= OUTCOME | REFUSAL:
            assert isinstance(fits(before, demand, mode=NOW), Fit) == now
            said = fits(before, demand) if reader is None else fits(before, demand, mode=after(reader))
            assert (OUTCOME if isinstance(said, Fit) else REFUSAL) == expected
        if self.judge(name, expected, result):
            assert isinstance(result, Outcome)
            plan = self.model.absorb(encode(result.plan), released=gone, pages=result.pages or None, demand=demand, reader=reader)
            assert not now or (not plan.waves and plan.wait is None)
            self.seen["moved"] += bool(plan.waves)
            self.seen["waited"] += plan.wait is not None

    def do_withhold(self) -> None:
        gone, demand = self.some_pages(3), self.some_demand()
        expected = self.model.expect_pages(gone)
        if expected == OUTCOME:
            twin = copy.deepcopy(self.model)
            twin._let_go(set(gone), twin.launched + 1)  # what is withheld still takes its frames
            expected = OUTCOME if twin.fits(demand, now=True) else REFUSAL
        result = _caught(lambda: advance(self.state, release=np.array(gone), demand=demand, withhold=True))
        if self.judge("withhold", expected, result):
            assert isinstance(result, Outcome)
            fence = self.model.launched + 1
            plan = self.model.absorb(encode(result.plan), released=gone, pages=result.pages, demand=demand, reader=fence)
            assert not plan.waves
            assert plan.wait is None

    def do_compact(self) -> None:
        reader, limit = self.some_reader(), self.rng.choice((None, 0, self.rng.randrange(200)))
        written = self.rng.sample(self.bound, len(self.bound) // 2) if reader is not None and self.rng.random() < 0.5 else None
        stale = reader is not None and not self.model.retired < reader <= self.model.launched
        expected = frozenset({"FenceError"}) if stale else OUTCOME
        ids = None if written is None else np.array(written, np.int64)
        result = _caught(lambda: compact(self.state, bytes_limit=limit, reader=reader, written=ids))
        if self.judge("compact", expected, result):
            assert isinstance(result, Outcome)
            plan = self.model.absorb(encode(result.plan), reader=reader, bytes_limit=limit, written=written)
            self.seen["compacted"] += bool(plan.waves)

    def do_pin(self) -> None:
        self._pins(1, "pin", self.some_pages(2))

    def do_unpin(self) -> None:
        pinned = [page for band in self.model.bands for page in band.pins.elements()]
        pages = self.rng.sample(pinned, min(2, len(pinned)))
        self._pins(-1, "unpin", pages if pages and self.rng.random() < 0.9 else self.some_pages(1))

    def _pins(self, count: int, name: str, pages: list[int]) -> None:
        change = pin if count > 0 else unpin
        if self.judge(name, self.model.expect_pages(pages, to=name), _caught(lambda: change(self.state, np.array(pages, int)))):
            self.model.pin(pages, count)

    def do_launch(self) -> None:
        assert self.judge("launch", OUTCOME, launch(self.state))
        self.model.launched += 1

    def do_retire(self) -> None:
        fence = self.rng.randrange(self.model.retired, self.model.launched + 1 + (self.rng.random() < 0.1))
        expected = OUTCOME if fence <= self.model.launched else frozenset({"FenceError"})
        if self.judge("retire", expected, _caught(lambda: retire(self.state, fence))):
            self.model.retire(fence)

    def do_resize(self) -> None:
        capacity = self.state.layout.capacity_bytes
        total = floor_arena(self.rng.randrange(capacity * 2 // 3, capacity + 1))
        if total >= self.state.layout.sink_bytes:
            self.resize_to(total)

    def resize_to(self, total: int) -> None:
        """The same bytes above the new top are given up on both sides."""
        capacity = self.state.layout.capacity_bytes
        result, layout, old = _caught(lambda: resize(self.state, total)), self.state.layout, self.model.layout
        self.model.layout = Layout(layout.bands, total, capacity)
        expected = OUTCOME if self.model.fits((0,) * len(layout.bands)) else REFUSAL
        self.model.layout = old
        if self.judge("resize", expected, result):
            assert isinstance(result, Outcome)
            self.model.absorb(encode(result.plan))
            self.model.layout = self.state.layout
            self.model.buffer = (self.model.buffer + SCRIBBLE * capacity)[: self.state.layout.total_bytes]

    def finish(self) -> None:
        """Everything is given back; the value equals the first one."""
        for band in self.model.bands:
            for page, count in list(band.pins.items()):
                self._pins(-1, "unpin", [page] * count)
        gone = self.bound
        self._release_all(gone)
        self.do_launch()
        assert self.judge("retire", OUTCOME, retire(self.state, self.model.launched))
        assert self.state.with_bands(self.state.bands) == initial(self.state.layout)

    def _release_all(self, gone: list[int]) -> None:
        result = release(self.state, np.array(gone, np.int64))
        self.state = result.state
        self.model.absorb(encode(result.plan), released=gone)


def _run_advance(state: ArenaState, name: str, gone: list[int], demand: tuple[int, ...], reader: int | None) -> Outcome | Refusal:
    if name == "allocate":
        return allocate(state, demand, reader=reader)
    if name == "release":
        return release(state, np.array(gone, np.int64), reader=reader)
    return advance(state, release=np.array(gone, np.int64), demand=demand, reader=reader)


def _caught(call: Callable[[], Outcome | Refusal]) -> Outcome | Refusal | ArenaError:
    """The result, or the typed error itself."""
    try:
        return call()
    except ArenaError as error:
        return error


@pytest.mark.parametrize("name", LAYOUTS)
def test_F25_random_walks_agree(name: str) -> None:
    """Verdicts, pages, quarantine, pins, table and every byte agree after each event; emptied, the value is the first."""
    walk = Walk(LAYOUTS[name], seed=len(name))
    for _ in range(700):
        walk.step()
    walk.finish()
    for kind in ("allocate refusal", "advance outcome", "release outcome", "compact outcome", "withhold outcome"):
        assert walk.seen[kind] > 0, (kind, walk.seen)
    assert walk.seen["moved"] + walk.seen["waited"] + walk.seen["compacted"] > 5, walk.seen


def test_a_shrink_moves_what_stands_above_the_new_top() -> None:
    """Whatever fits below the new top is moved there, with its bytes."""
    walk = Walk(LAYOUTS["pair"], seed=4)
    result = allocate(walk.state, (1, 2))
    assert walk.judge("allocate", OUTCOME, result)
    assert isinstance(result, Outcome)
    walk.model.absorb(encode(result.plan), pages=result.pages, demand=(1, 2))
    walk.resize_to(2 * 4096)
    assert walk.seen["resize outcome"] == 1


def test_old_values_live_on() -> None:
    """Walks continued from old values, interleaved, agree with references copied at that moment."""
    first = Walk(LAYOUTS["floats"], seed=3)
    kept: list[Walk] = [first]
    for turn in range(300):
        walk = first.rng.choice(kept)
        walk.step()
        if turn % 30 == 0:
            branch = copy.copy(walk)
            branch.model, branch.seen = copy.deepcopy(walk.model), Counter()
            branch.rng = random.Random(turn)
            kept.append(branch)
    for walk in kept:
        node = Node.of(walk.state)
        assert list(walk.model.differences(node.pages, node.waiting, node.pins)) == []
        walk.finish()


@pytest.mark.parametrize("name", ["pair", "F03", "floats"])
def test_lazy_equals_eager(name: str) -> None:
    """With or without compacting after each step: the same verdicts, the same pages, the same bytes in each of them."""
    lazy, eager = Walk(LAYOUTS[name], seed=5), Walk(LAYOUTS[name], seed=5)
    for _ in range(250):
        gone = lazy.rng.sample(lazy.bound, min(len(lazy.bound), lazy.rng.randrange(4)))
        demand = lazy.some_demand()
        for walk in (lazy, eager):
            result = advance(walk.state, release=np.array(gone, np.int64), demand=demand)
            if walk.judge("advance", walk.model.expect_advance(gone, demand), result):
                assert isinstance(result, Outcome)
                walk.model.absorb(encode(result.plan), released=gone, pages=result.pages, demand=demand)
        compaction = compact(eager.state)
        assert isinstance(compaction, Outcome)
        eager.state = compaction.state
        eager.seen["compacted"] += bool(eager.model.absorb(encode(compaction.plan)).waves)
        assert lazy.model.contents == eager.model.contents
    assert lazy.seen["advance refusal"] == eager.seen["advance refusal"] > 10
    assert eager.seen["compacted"] > 10


def test_clear_forgets_everything() -> None:
    """Clearing unbinds each live page once, drops pins and quarantine, and gives the first value."""
    walk = Walk(LAYOUTS["pair"], seed=1)
    for _ in range(80):
        walk.step()
    gone = walk.bound
    result = clear(walk.state)
    assert sorted(map(tuple, result.plan.rows.tolist())) == sorted((page, -1) for page in gone)
    assert result.state == initial(walk.state.layout)


def test_both_encodings_are_the_same_words() -> None:
    """The plan written by hand from the description equals the core's encoding, word by word."""
    rng = random.Random(2)

    def block(width: int, most: int, least: int = 0) -> list[list[int]]:
        return [[rng.randrange(-1, 90) for _ in range(width)] for _ in range(rng.randrange(least, most))]

    for _ in range(100):
        waves, copies, fills, rows = [block(3, 4, 1) for _ in range(rng.randrange(3))], block(3, 3), block(3, 3), block(2, 4)
        wait = rng.choice((None, 0, 7, 2**31 - 1))
        core = Plan(
            tuple(np.array(wave, np.int32) for wave in waves),
            np.array(copies, np.int32).reshape(-1, 3),
            np.array(fills, np.int32).reshape(-1, 3),
            np.array(rows, np.int32).reshape(-1, 2),
            wait,
        )
        own = PlanText(
            tuple(tuple((a, b, c) for a, b, c in wave) for wave in waves),
            tuple((a, b, c) for a, b, c in copies),
            tuple((a, b, c) for a, b, c in fills),
            tuple((a, b) for a, b in rows),
            wait,
        )
        assert encode(core).tolist() == words_of(own)
