"""Undoing a step: tables exactly, bytes of all that lived throughout, and with withholding the bytes of what was released too."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from core_pure import step as steps
from core_pure.advance import advance, allocate, resize
from core_pure.compact import compact
from core_pure.event import content_digest
from core_pure.fences import launch, retire
from core_pure.fits import RELIEF, Refusal, fits
from core_pure.layout import BandSpec, build_layout
from core_pure.leases import empty_leases, open_leases
from core_pure.plan import Plan, encode
from core_pure.rollback import undo
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify
from invariants.interpreter import run_plan
from tests.core_states import bound_pages, build, histories, layout_of, some, where
from tests.test_brute import random_chain


class Bytes:
    """A buffer and a device table, as a device would have them in some state: each live page filled with its own bytes."""

    def __init__(self, state: ArenaState, rng: random.Random) -> None:
        self.layout = state.layout
        self.buffer = bytearray(rng.randbytes(state.layout.capacity_bytes))
        self.buffer[: state.layout.sink_bytes] = bytes(state.layout.sink_bytes)
        self.table = state.table().tolist()

    def content(self, state: ArenaState, page: int) -> bytes:
        """What a page reads in some state."""
        band = next(band for band in state.bands if 0 < page - band.home.id_base <= band.home.ids_max)
        size, frame = band.spec.frame_bytes, where(state)[page]
        return bytes(self.buffer[frame * size : (frame + 1) * size])

    def apply(self, plan: Plan, occupied: list[tuple[int, int]]) -> None:
        """Carry a plan out; it raises when a target shares a byte with what is occupied."""
        run_plan(encode(plan).tolist(), self.buffer, self.table, self.layout, occupied)


def frames(state: ArenaState, leaving: set[int]) -> list[tuple[int, int]]:
    """Every (band, frame) live or quarantined, some pages left out."""
    found = []
    for at, band in enumerate(state.bands):
        ids = (band.page_of.read(band.live_frames()) + band.home.id_base).tolist()
        found += [(at, int(f)) for page, f in zip(ids, band.live_frames(), strict=True) if page not in leaving]
        found += [(at, int(f)) for batch in band.held.batches for f in batch.frames]
    return found


def a_step(rng: random.Random, before: ArenaState, withhold: bool) -> tuple[Outcome | Refusal, set[int]]:
    """Some release and demand, or a compaction."""
    if not withhold and rng.random() < 0.25:
        return compact(before), set()
    released = some(rng, bound_pages(before, pinned=False), 6)
    demand = tuple(rng.choice((0, 1, 3)) for _ in before.bands)
    return advance(before, release=released, demand=demand, withhold=withhold), set(released.tolist())


def test_undo_gives_tables_and_bytes_back() -> None:
    """600 steps, applied to bytes and undone there: table exactly, every page that lived before and after byte for byte.

    A step that withheld also gives back the bytes of every page it had released.
    """
    rng, seen, states = random.Random(1), Counter[str](), histories(2, bands=(1, 2, 3), frames=6, steps=60)
    while sum(seen.values()) < 600:
        before, withhold = next(states), rng.random() < 0.5
        outcome, released = a_step(rng, before, withhold)
        if isinstance(outcome, Refusal):
            continue
        device = Bytes(before, rng)
        contents = {page: device.content(before, page) for page in bound_pages(before).tolist()}
        device.apply(outcome.plan, frames(before, set() if withhold else released))
        assert device.table == outcome.state.table().tolist()
        back = undo(before, outcome.plan)
        assert back.wait == outcome.plan.wait
        new = {int(page) for pages in outcome.pages for page in pages}
        device.apply(back, frames(outcome.state, new))
        assert device.table == before.table().tolist()
        for page, content in contents.items():
            if withhold or page not in released:
                assert device.content(before, page) == content, (page, withhold)
        kind = "withheld" if withhold and released else "moved" if outcome.plan.waves else "plain"
        seen[kind] += 1
    assert min(seen[kind] for kind in ("withheld", "moved", "plain")) > 20, seen


def test_waves_are_undone_in_reverse() -> None:
    """Forty plans of two or more waves, applied and undone: each frame goes home only when its place is free again."""
    rng, undone = random.Random(9), 0
    while undone < 40:
        chain = random_chain(rng, bands=rng.choice((3, 4)), total=rng.randrange(24, 50), load=0.7)
        before = build(chain)
        outcome = allocate(before, tuple(band.ask for band in chain.bands))
        if isinstance(outcome, Refusal) or len(outcome.plan.waves) < 2:
            continue
        device = Bytes(before, rng)
        contents = {page: device.content(before, page) for page in bound_pages(before).tolist()}
        device.apply(outcome.plan, frames(before, set()))
        device.apply(undo(before, outcome.plan), frames(outcome.state, {int(p) for pages in outcome.pages for p in pages}))
        assert device.table == before.table().tolist()
        assert all(device.content(before, page) == content for page, content in contents.items())
        undone += 1


def test_before_the_plan_is_applied_the_old_value_is_enough() -> None:
    """The value before a step is equal to itself after it, digest and all, and takes another step as if none had been."""
    rng, states = random.Random(3), histories(4, bands=(2, 3), frames=6, steps=60)
    for before, _ in zip(states, range(300), strict=False):
        content, table = content_digest(before), before.table().tolist()
        outcome, _ = a_step(rng, before, False)
        assert content_digest(before) == content
        assert before.table().tolist() == table
        if isinstance(outcome, Outcome):
            again, _ = a_step(random.Random(5), before, False)
            once_more, _ = a_step(random.Random(5), before, False)
            assert again == once_more


def test_a_withheld_step_moves_nothing_and_keeps_what_it_released() -> None:
    """Frames released wait for the next fence; nothing of them is filled or bound; the commit frees them."""
    rng, seen, states = random.Random(6), Counter[str](), histories(7, bands=(1, 2, 3), frames=6, steps=60)
    while seen["withheld"] < 200:
        before = next(states)
        released = some(rng, bound_pages(before, pinned=False), 6)
        demand = tuple(rng.choice((0, 1, 2)) for _ in before.bands)
        outcome = advance(before, release=released, demand=demand, withhold=True)
        if isinstance(outcome, Refusal):
            seen["refused"] += 1
            continue
        assert outcome.plan.waves == ()
        assert outcome.plan.wait is None
        places = where(before)
        kept = {(at, places[page]) for page in released.tolist() for at in [band_of(before, page)]}
        assert not kept & {(int(band), int(frame)) for band, frame, _ in outcome.plan.fills}
        assert verify(outcome.state) == []
        committed = retire(launch(outcome.state).state, outcome.state.launched + 1).state
        assert all(band.quarantined == 0 for band in committed.bands)
        live = sorted(band.live for band in committed.bands)
        plain = advance(before, release=released, demand=demand)
        assert isinstance(plain, Outcome), "what fits while withholding fits without"
        assert live == sorted(band.live for band in plain.state.bands)
        seen["withheld"] += 1
    assert seen["refused"] > 10


def band_of(state: ArenaState, page: int) -> int:
    """The band of a page id."""
    return next(at for at, band in enumerate(state.bands) if 0 < page - band.home.id_base <= band.home.ids_max)


def test_withheld_memory_is_not_promised_twice() -> None:
    """Between a withheld step and its commit the frames count as held in every figure; afterwards they can be had."""
    state = initial(layout_of((4,), 44))
    state = advance(state, demand=(10,)).state
    withheld = advance(state, release=bound_pages(state)[:4], withhold=True)
    assert isinstance(withheld, Outcome)
    refused = fits(withheld.state, (1,), mode=RELIEF)
    assert isinstance(refused, Refusal)
    assert refused.bands[0].after_relief == 0
    committed = retire(launch(withheld.state).state, 1).state
    assert not isinstance(fits(committed, (4,)), Refusal)


def test_resize_can_be_undone() -> None:
    """Moves below the new top, undone: the same frames, the same bytes."""
    layout = build_layout([BandSpec("a", 700), BandSpec("b", 300)], 4 * 4096)
    state = advance(initial(layout), demand=(6, 9)).state
    rng = random.Random(8)
    device = Bytes(state, rng)
    contents = {page: device.content(state, page) for page in bound_pages(state).tolist()}
    outcome = resize(state, 2 * 4096)
    assert isinstance(outcome, Outcome)
    assert outcome.plan.moves > 0
    device.apply(outcome.plan, frames(state, set()))
    device.apply(undo(state, outcome.plan), frames(outcome.state, set()))
    assert device.table == state.table().tolist()
    assert all(device.content(state, page) == content for page, content in contents.items())


def test_a_serving_step_undone_leaves_no_trace() -> None:
    """Leases and state of before a step, taken up again, serve the same step with the same outcome, whatever happened since."""
    layout = build_layout(
        [
            BandSpec("state", 700, retention="state"),
            BandSpec("window-8", 300, slots_per_page=4, retention="window", window=8),
            BandSpec("full", 260, slots_per_page=4),
        ],
        6 * 4096,
    )
    leases, handles = open_leases(empty_leases(layout, sequences=6, context=80, draft_tokens=4), 4)
    first = steps.step(initial(layout), leases, handles, np.array([9, 3, 14, 7]))
    assert not isinstance(first, Refusal)
    kept_state, kept_leases, story = first.state, first.leases, []
    for _ in range(2):
        outcome = steps.step(kept_state, kept_leases, handles[:3], np.array([5, 1, 1]), handles[3:])
        assert not isinstance(outcome, Refusal)
        story.append((encode(outcome.plan).tobytes(), [pages.tolist() for pages in outcome.pages], outcome.state.digest))
        later = outcome
        for _ in range(10):  # what must leave no trace in the values kept
            later = steps.step(later.state, later.leases, handles[:3], np.array([1, 1, 1]))
            assert not isinstance(later, Refusal)
        steps.trim(later.state, later.leases, handles[:1], [later.after[0]])
    assert story[0] == story[1]
