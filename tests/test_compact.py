"""Compaction: within its budget, in any order, without loss; ends pack, floats close their holes or move to the middle."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from core_pure.advance import advance, allocate, release
from core_pure.compact import RECENTRE_SHARE, compact
from core_pure.errors import DemandError, FenceError, ForeignPage, SinkPage
from core_pure.event import content_digest
from core_pure.fences import launch, retire
from core_pure.fits import RELIEF, obtainable
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify
from tests.core_states import Carried, bound_pages, bytes_moved, histories, layout_of, random_layout, some, where


def holey(rng: random.Random) -> ArenaState:
    """A random arena with holes in every band, sometimes a pin."""
    state = initial(random_layout(rng, rng.choice((1, 2, 3, 4)), 10))
    for _ in range(6):
        answer = advance(
            state, release=some(rng, bound_pages(state), 12), demand=tuple(rng.randrange(8) for _ in state.bands)
        )
        state = answer.state if isinstance(answer, Outcome) else state
    return pin(state, some(rng, bound_pages(state), rng.choice((0, 0, 1)))).state


def test_budgets_are_kept_and_progress_is_made() -> None:
    """Within any limit: never more bytes than allowed, ids and pins stay; repeated, it ends where one call without limit ends."""
    rng, limited, repeated = random.Random(1), 0, 0
    for _ in range(300):
        state = holey(rng)
        whole = compact(state)
        assert verify(whole.state) == []
        rounds, settled = 0, whole.state
        while (again := compact(settled)).plan.moves:  # a float may be centred once its neighbours stand packed
            rounds, settled = rounds + 1, again.state
            assert rounds < 4, "compaction must not go on for ever"
        repeated += rounds
        limit = rng.randrange(40)
        part = compact(state, bytes_limit=limit)
        assert bytes_moved(state, part.plan) <= limit
        assert set(where(part.state)) == set(where(state))
        assert len(part.plan.waves) <= 1
        for _ in range(200):
            step = compact(part.state, bytes_limit=max(limit, 13))
            if step.plan.is_empty:
                break
            limited += 1
            part = step
        assert compact(part.state, bytes_limit=max(limit, 13)).plan.is_empty, "it settles"
        assert compact(state, bytes_limit=0).plan.is_empty
    assert limited > 30
    assert repeated < 30


def test_capacity_never_shrinks_by_compaction() -> None:
    """Relief does what compaction did not, so what could be had stays the same, whatever was moved before."""
    for state in (state for state, _ in zip(histories(3, bands=(2, 3), frames=8, steps=60), range(400), strict=False)):
        packed = compact(state, bytes_limit=40).state
        for at in range(len(state.bands)):
            assert obtainable(packed, at, RELIEF) == obtainable(state, at, RELIEF)


def test_ends_pack_to_their_edges_and_floats_close_up() -> None:
    """Without pins and quarantine: the ends stand at their edges without holes, and no float has a hole."""
    rng, moved = random.Random(4), 0
    for _ in range(150):
        carried = Carried(random_layout(rng, rng.choice((1, 2, 3, 4)), 10))
        for _ in range(12):
            carried.advance(some(rng, bound_pages(carried.state), 8).tolist(), [rng.randrange(6) for _ in carried.state.bands])
        carried.compact()
        state = carried.state
        moved += carried.verdicts["compacted"]
        assert all(band.holes == 0 for band in state.bands)
        low, high = state.bands[0], state.bands[-1]
        if low.live:
            assert low.low == -(-state.layout.sink_bytes // low.spec.frame_bytes)
        if len(state.bands) > 1 and high.live:
            assert high.high == state.layout.total_bytes // high.spec.frame_bytes
    assert moved > 60


def test_a_small_float_is_centred_once_and_then_left_alone() -> None:
    """A float under 1/8 of the gaps beside it moves once, to the middle; a larger one only closes its holes."""
    layout = Layout((BandSpec("low", 4), BandSpec("float", 4), BandSpec("high", 4)), 4 + 4000, 4 + 4000)
    state = allocate(initial(layout), (0, 20, 0)).state
    assert compact(state).plan.moves == 0, "it stands in the middle"
    squeezed = allocate(state, (0, 0, 450)).state
    below, above = squeezed.bands[1].low - 1, squeezed.bands[2].low - squeezed.bands[1].high
    assert min(below, above) * 4 < max(below, above)
    assert squeezed.bands[1].live * RECENTRE_SHARE < below + above
    answer = compact(squeezed)
    assert answer.plan.moves == 20
    centred = answer.state.bands[1]
    assert abs((centred.low - 1) - (answer.state.bands[2].low - centred.high)) <= 1
    assert compact(answer.state).plan.moves == 0
    part = compact(squeezed, bytes_limit=4 * 19)
    assert part.plan.is_empty, "a float that leaves its span goes whole or not at all"


def test_pins_and_quarantine_stay_where_they_are() -> None:
    """No pinned page and no frame still read changes place, whatever is compacted around it; no live page changes bytes."""
    rng, seen = random.Random(6), Counter[str]()
    for _ in range(60):
        carried = Carried(random_layout(rng, rng.choice((1, 2, 3)), 8))
        for _ in range(30):
            carried.random_event(rng, 4)
        held = {page: frame for page, frame in where(carried.state).items() if page in set(bound_pages(carried.state, pinned=True))}
        waiting = [[int(f) for batch in band.held.batches for f in batch.frames] for band in carried.state.bands]
        carried.compact()
        assert all(where(carried.state)[page] == frame for page, frame in held.items())
        assert waiting == [[int(f) for batch in band.held.batches for f in batch.frames] for band in carried.state.bands]
        seen["pins"] += bool(held)
        seen["waiting"] += any(waiting)
    assert min(seen.values()) > 5


def test_compaction_beside_a_reader() -> None:
    """Without the written pages the plan waits for the reader; with them they stay, and vacated frames wait in quarantine."""
    state = allocate(initial(layout_of((4,), 4 + 80)), (20,)).state
    state = release(state, bound_pages(state)[::2]).state
    state = launch(state).state
    waiting = compact(state, reader=1)
    assert waiting.plan.wait == 1
    assert waiting.state.bands[0].quarantined == 0
    written = [page for page, frame in where(state).items() if frame == state.bands[0].high - 1]
    beside = compact(state, reader=1, written=written)
    assert beside.plan.wait is None
    assert beside.plan.moves == waiting.plan.moves - 1
    assert where(beside.state)[written[0]] == where(state)[written[0]]
    assert beside.state.bands[0].quarantined == beside.plan.moves
    assert verify(beside.state) == []
    after = retire(beside.state, 1).state
    assert after.bands[0].quarantined == 0
    assert verify(after) == []
    assert where(after) == where(beside.state)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: compact(s, bytes_limit=-1), DemandError),
        (lambda s: compact(s, bytes_limit=1.5), DemandError),
        (lambda s: compact(s, bytes_limit=True), DemandError),
        (lambda s: compact(s, bytes_limit="9"), DemandError),
        (lambda s: compact(s, reader=1), FenceError),
        (lambda s: compact(launch(s).state, reader=1, written=[0]), SinkPage),
        (lambda s: compact(launch(s).state, reader=1, written=[10**6]), ForeignPage),
        (lambda s: compact(launch(s).state, reader=1, written=[1.5]), DemandError),
    ],
)
def test_bad_input_changes_nothing(call, error) -> None:
    """Limits, readers and page ids that cannot be raise their own error."""
    state = release(allocate(initial(layout_of((5, 4), 200)), (6, 6)).state, [1, 3]).state
    before = content_digest(state)
    with pytest.raises(error):
        call(state)
    assert content_digest(state) == before


def test_F22_compaction_of_what_cannot_move() -> None:
    """Everything pinned: nothing moves, the value is equal, the plan is empty."""
    state = allocate(initial(layout_of((5, 4), 200)), (6, 6)).state
    state = release(state, bound_pages(state)[::3]).state
    state = pin(state, bound_pages(state)).state
    answer = compact(state)
    assert answer.plan.is_empty
    assert answer.state == state


def test_F23_compaction_of_a_large_band_moves_what_lies_beyond() -> None:
    """50,000 frames with 30 % holes: exactly the live frames beyond the live count move, each once, into holes."""
    state = allocate(initial(Layout((BandSpec("a", 256),), 256 * 50_001, 256 * 50_001)), (50_000,)).state
    gone = np.random.default_rng(2).permutation(bound_pages(state))[:15_000]
    state = release(state, gone).state
    band = state.bands[0]
    beyond = int((band.live_frames() >= 1 + band.live).sum())
    answer = compact(state)
    assert isinstance(answer, Outcome)
    assert answer.plan.moves == beyond
    assert len(answer.plan.waves) == 1
    assert (answer.state.bands[0].low, answer.state.bands[0].high) == (1, 35_001)
    assert verify(answer.state) == []
