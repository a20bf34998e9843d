"""Frames exactly at a bound: seats, relief, compaction, undoing, and what verify names (see docs/MUTATION.md)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from attrs import evolve

from core_pure.advance import allocate, release
from core_pure.band import Band
from core_pure.chain import Claim
from core_pure.compact import _moves_into, compact
from core_pure.errors import PromiseBroken
from core_pure.fits import NOW, Fit, Refusal, fits
from core_pure.relief import cheapest_windows, displaced, relief_windows, seats
from core_pure.rollback import undo
from core_pure.state import ArenaState, initial
from core_pure.verify import verify
from invariants.brute import BruteBand, BruteChain
from tests.core_states import build, layout_of


def chain_of(total: int, *live: set[int]) -> ArenaState:
    """Bands of 4-byte frames that hold these frames, in an arena of ``total`` frames whose first is the sink."""
    return build(BruteChain(tuple(BruteBand(4, frozenset(frames)) for frames in live), 4 * total, 4))


def test_each_position_fills_from_its_own_edge() -> None:
    """In an empty arena only the top band hands out its highest frame first; with holes, the hole nearest that edge comes first."""
    filled = allocate(initial(layout_of((4, 4, 4), 4 * 40)), (4, 4, 4))
    assert not isinstance(filled, Refusal)
    state = filled.state
    for at, order in enumerate((1, 1, -1)):
        frames = state.frames_of(filled.pages[at]).tolist()
        assert frames == sorted(frames)[::order]
        holey = release(state, filled.pages[at][1:3]).state.bands[at]
        for window in ((holey.low, holey.high), (holey.low + (order > 0), holey.high - (order < 0))):
            assert seats(holey, window, 2).frames.tolist() == frames[1:3] and seats(holey, window, 1).frames.tolist() == frames[1:2]


def test_no_seats_are_no_frames() -> None:
    """Asked for none, a band gives none, empty or not, and keeps its span."""
    state = chain_of(30, {1, 2, 5}, set(), {28, 29})
    for band in state.bands:
        none = seats(band, (3, 25) if band.is_empty else (band.low, band.high), 0)
        assert len(none.frames) == none.own == 0 and (none.low, none.high) == (band.low, band.high)


def test_seats_are_the_free_frames_of_the_window() -> None:
    """However many are asked for: distinct free frames inside the window, holes of the span first, all of them if need be."""
    for live in ({3, 4, 7, 9}, {3}, {3, 4, 5}):
        for band in chain_of(20, live, set(), {19}).bands[:1] + chain_of(20, set(), live, {19}).bands[1:2]:
            for low, high, count in itertools.product(range(1, 12), range(1, 14), (0, 1, 2, 5, 20)):
                if max(low, band.low) < min(high, band.high):
                    got = seats(band, (low, high), count).frames.tolist()
                    free = {x for x in range(low, high) if x not in live}
                    assert len(set(got)) == len(got) == min(count, len(free)) and set(got) <= free
                    inside = [band.low <= x < band.high for x in got]
                    assert inside == sorted(inside, reverse=True)


def test_an_empty_band_has_the_seats_of_its_window() -> None:
    """As many as asked for or as the window has, and the span they would give it."""
    for band, order in zip(chain_of(30, set(), set(), set()).bands, (1, 1, -1), strict=True):
        for low, high, count in itertools.product(range(1, 5), range(5, 9), range(1, 12)):
            got = seats(band, (low, high), count)
            assert got.frames.tolist() == list(range(low, high))[::order][:count] and got.own == 0
            assert (got.low, got.high) == (min(got.frames), max(got.frames) + 1)


def test_displaced_frames_are_all_those_outside() -> None:
    """Those below the window ascend, those above it descend, none is left out."""
    band = chain_of(30, set(), {4, 5, 7, 9, 12, 13, 14, 18}, set()).bands[1]
    for low, high in itertools.combinations(range(1, 25), 2):
        live = band.live_frames().tolist()
        assert displaced(band, (low, high)).tolist() == [x for x in live if x < low] + [x for x in live[::-1] if x >= high]


FAR = (34, 35, 36, 38, 40, 42, 44, 46, 47, 49, 50, 51, 52, 53)
WORLDS = (
    ([(1, 13, (10, 11, 13, 15, 16, 17, 18, 20, 21)), (3, 4, ()), (1, 14, FAR), (7, 1, ())], 7, 66, 1),
    ([(7, 1, ()), (1, 6, (15, 16, 18, 20, 21, 23)), (7, 0, ())], 7, 26, 0),
    ([(2, 3, (7, 8, 9)), (3, 2, ()), (2, 5, (15,)), (3, 4, (12, 14, 15, 17))], 3, 60, 2),
)
"""Frame bytes, frames needed and live frames of each band; sink and total bytes; the least bytes to move."""


@pytest.mark.parametrize(("bands", "sink", "total", "cost"), WORLDS)
def test_windows_cost_what_lies_outside_them(
    bands: list[tuple[int, int, tuple[int, ...]]], sink: int, total: int, cost: int
) -> None:
    """The live frames outside the windows of the bands that need any weigh exactly the least cost."""
    claims = [(Claim(size, need), np.array(live, np.intp)) for size, need, live in bands]
    found = cheapest_windows(claims, sink, total)
    assert found is not None and found[0] == cost
    outside = [size * sum(not low <= x < high for x in live) for (size, _, live), (low, high) in zip(bands, found[1], strict=True)]
    assert sum(outside) == cost
    assert all(place == (0, 0) for place, (_, need, _) in zip(found[1], bands, strict=True) if not need)


def test_a_band_follows_into_bytes_that_its_neighbour_vacates_inside_itself() -> None:
    """A float that goes down where the band below closed a hole waits for it: two waves, though that band kept inside its span."""
    state = chain_of(12, {1, 2, 4}, {5, 6}, {7, 8, 9, 10, 11})
    answer = allocate(state, (0, 0, 1))
    assert not isinstance(answer, Refusal) and verify(answer.state) == []
    assert [wave.tolist() for wave in answer.plan.waves] == [[[0, 4, 3]], [[1, 6, 4]]]


@pytest.mark.parametrize("live", [{0}, {0, 1}, {0, 3}, {0, 1, 5}])
def test_a_float_is_centred_or_closed_by_exactly_these_rules(live: set[int]) -> None:
    """Under 1/8 of the gaps beside it, and one gap under 1/4 of the other: to the middle. Else holes go to the smaller gap."""
    span = max(live) + 1
    for below, above in itertools.product(range(17), repeat=2):
        low = 5 + below
        total = low + span + above + 2
        state = chain_of(total, {1, 2, 3, 4}, {low + x for x in live}, {total - 2, total - 1})
        band = compact(state).state.bands[1]
        room = below + span + above
        if 8 * len(live) < below + above and 4 * min(below, above) < max(below, above):
            wanted = [5 + (room - len(live)) // 2]
        else:
            wanted = [low] * (above <= below) + [low + span - len(live)] * (below <= above)
        assert band.low in wanted and band.high - band.low == len(live), (below, above)


@pytest.mark.parametrize("target", [(6, 10), (14, 18), (5, 9), (15, 19)])
def test_a_float_leaves_its_span_whole_or_not_at_all(target: tuple[int, int]) -> None:
    """Four pages whose target lies beside them, touching or not: a budget for two moves none, one for four moves all."""
    band = chain_of(30, set(), {10, 11, 12, 13}, set()).bands[1]
    assert [len(_moves_into(band, target, 4 * frames, None).sources) for frames in (0, 2, 3, 4, 9)] == [0, 0, 0, 4, 4]


def test_what_closes_holes_moves_before_what_waits_for_it() -> None:
    """A float that partly closes its holes and partly goes down leaves its bytes in time: three waves of four bands."""
    state = chain_of(14, {1, 2, 4}, {5, 7, 8}, {9, 10}, {11, 12, 13})
    answer = allocate(state, (0, 0, 0, 2))
    assert not isinstance(answer, Refusal) and verify(answer.state) == []
    assert [wave.tolist() for wave in answer.plan.waves] == [[[0, 4, 3], [1, 8, 6]], [[1, 7, 4]], [[2, 10, 8], [2, 9, 7]]]


@pytest.mark.parametrize("holes", [{500, 1500, 1501}, {500, 501, 2500}, {2, 2999}, {1023, 1024, 1025}, {2047, 2048}])
def test_the_nearest_hole_counts_even_if_it_is_alone_in_its_block(holes: set[int]) -> None:
    """Among holes of several blocks of 1,024 frames the lowest come first, the highest in the top band."""
    live = set(range(1, 3002)) - holes - {0}
    for at, order in ((0, 1), (2, -1)):
        band = chain_of(3010, *(live if place == at else set() for place in range(3))).bands[at]
        for count in range(1, len(holes) + 1):
            assert seats(band, (band.low, band.high), count).frames.tolist() == sorted(holes)[::order][:count]


def test_claims_that_do_not_fit_have_no_windows() -> None:
    """One frame too many, below or above a neighbour that may not move, is None, not an error."""
    nobody = np.array([], np.intp)
    fixed = Claim(1, 1, 5, 6)
    for need, fit in ((4, True), (5, False)):
        assert (cheapest_windows([(Claim(1, need), nobody), (fixed, nobody)], 1, 9) is not None) == fit
    with pytest.raises(PromiseBroken):
        relief_windows(chain_of(12, {1}, {2}, {11}), (0, 0, 12))
    for need, fit in ((3, True), (4, False)):
        assert (cheapest_windows([(fixed, nobody), (Claim(1, need), nobody)], 1, 9) is not None) == fit


def test_a_float_of_one_page_keeps_out_of_what_is_reserved() -> None:
    """It is not centred into bytes that the band below or above needs for its minimum, which can be had without a move."""
    for least, place in ((14, 20), (12, 20), (11, 12), (0, 12)):
        bands = BruteBand(4, pages_min=least), BruteBand(4, frozenset({20})), BruteBand(4, pages_min=2)
        answer = compact(build(BruteChain(bands, 100, 4)))
        assert answer.state.bands[1].low == place
        assert isinstance(fits(answer.state, (least, 0, 2), mode=NOW), Fit)
    for least, place in ((12, 12), (13, 5)):
        bands = BruteBand(4, pages_min=4), BruteBand(4, frozenset({5})), BruteBand(4, pages_min=least)
        assert compact(build(BruteChain(bands, 100, 4))).state.bands[1].low == place
    full = BruteBand(4, frozenset({1, 2}), pages_min=1), BruteBand(4, frozenset({3, 5})), BruteBand(4, frozenset({6, 7}))
    assert compact(build(BruteChain(full, 32, 4))).state.bands[1].high == 5, "a full arena is compacted too"


@pytest.mark.parametrize("beyond", [1, 2, 5])
def test_an_end_packs_up_to_its_last_pin(beyond: int) -> None:
    """Only the frames beyond the outermost pinned one go, to the edge of the arena; without a pin, all holes go."""
    low, high = BruteBand(4, frozenset({1, 8, 8 + beyond})), BruteBand(4, frozenset({39, 32, 32 - beyond}))
    for pins, edges in (({8}, (9, 37)), ({32}, (4, 32)), ({8, 32}, (9, 32)), (set(), (4, 37))):
        held = [evolve(band, pinned=band.live & pins) for band in (low, high)]
        state = compact(build(BruteChain((held[0], BruteBand(4), held[1]), 160, 4))).state
        assert (state.bands[0].high, state.bands[2].low) == edges


def test_a_float_is_centred_in_what_is_free_before_and_after() -> None:
    """The bytes that the band below gives up in the same compaction are not counted yet, so that all moves are one wave."""
    answer = compact(chain_of(80, {1, 2, 20}, {22}, {79}))
    assert [wave.tolist() for wave in answer.plan.waves] == [[[0, 20, 3], [1, 22, 21 + (79 - 21 - 1) // 2]]]


def test_an_undone_step_unbinds_what_it_bound() -> None:
    """A page that the step bound has the row -1 in the plan that takes it back; one that was bound before has its frame."""
    first = allocate(initial(layout_of((4,), 4 * 20)), (3,))
    assert not isinstance(first, Refusal)
    second = allocate(first.state, (2,))
    assert not isinstance(second, Refusal)
    assert undo(first.state, second.plan).rows.tolist() == [[int(page), -1] for page in second.pages[0]]
    frames = second.state.frames_of(np.array([1, 5])).tolist()
    freed = release(second.state, [1, 5])
    assert undo(second.state, freed.plan).rows.tolist() == [[1, frames[0]], [5, frames[1]]]


def _stacked(index: int) -> Callable[[Band], Band]:
    return lambda band: evolve(band, ids=band.ids.write(np.array([1]), np.array([index])))


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        ("IDS-1", _stacked(7)), ("IDS-1", _stacked(9)), ("IDS-1", _stacked(-2)), ("IDS-1", _stacked(0)), ("IDS-1", _stacked(1)),
        ("PAGE-1", lambda band: evolve(band, page_of=band.page_of.write(np.array([4]), np.array([len(band.frame_of)])))),
        ("LIVE-1", lambda band: evolve(band, page_of=band.page_of.write(np.array([4]), np.array([0])))),
    ],
)  # fmt: skip
def test_one_wrong_cell_is_named(claim: str, change: Callable[[Band], Band]) -> None:
    """Of six pages two are free again: a stack with an id never handed out, bound, or no id; marks of page 0 and past the last."""
    taken = allocate(initial(layout_of((4,), 4 * 20)), (6,))
    assert not isinstance(taken, Refusal)
    state = release(taken.state, [2, 3]).state
    assert verify(state) == []
    assert claim in {found.claim for found in verify(state.with_bands([change(state.bands[0])]))}
