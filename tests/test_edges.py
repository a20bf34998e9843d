"""Values exactly at a bound, each of which a mutant of the core got wrong while all other tests passed (docs/MUTATION.md)."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from core_pure.advance import NOBODY, allocate, release, resize
from core_pure.band import NO_FRAMES
from core_pure.chain import Claim, room, window
from core_pure.compact import _farthest, _moves_into
from core_pure.errors import DemandError, LayoutError, LeaseError, RecordingError
from core_pure.event import NO_PAGES, Event, _keys, apply
from core_pure.fits import Fit, Refusal, fits, joint_maximum
from core_pure.geometry import ITEMSIZE, BandGeometry, FullAttention, Layer, check_tile, window_pages_max
from core_pure.layout import BandSpec, build_layout
from core_pure.leases import NONE, SLOT_MASK, _counting, empty_leases, open_leases
from core_pure.plan import NO_MOVES, NO_ROWS
from core_pure.state import initial
from core_pure.table import Table
from core_pure.verify import verify
from tests.test_door import Projecting, served

BYTES = 1 << 16


def test_item_sizes_are_those_of_torch() -> None:
    """Every dtype of the table has the item size that torch says."""
    torch = pytest.importorskip("torch")
    assert {name: getattr(torch, name).itemsize for name in ITEMSIZE} == dict(ITEMSIZE)


@pytest.mark.parametrize("page", [2, 3, 16])
def test_a_windows_page_bound_is_reached(page: int) -> None:
    """The bound on window pages is reached by some alignment; one page more only where a single token is over."""
    for window_tokens in range(1, 40):
        for step in (1, 2, 5):
            tokens = window_tokens - 1 + step
            touched = max((start + tokens - 1) // page - start // page + 1 for start in range(page))
            assert window_pages_max(window_tokens, page, step, 10**6) == touched + (tokens % page == 1)


def test_a_tile_of_no_slots_is_refused() -> None:
    """A kernel tile of zero slots is a LayoutError that says so; one of one slot divides every page."""
    with pytest.raises(LayoutError, match="tile is 0 slots"):
        check_tile(16, 0)
    check_tile(1, 1)


def test_a_window_of_one_token_is_a_window() -> None:
    """The smallest window is one token; none is refused."""
    layers = (Layer(0, FullAttention(1, 16, 16, "float16")),)
    assert BandGeometry("w", "window", 1, 1, layers).window == 1
    with pytest.raises(LayoutError, match="window of 0 tokens"):
        BandGeometry("w", "window", 0, 1, layers)


@pytest.mark.parametrize(("low", "high", "grown"), [(0, 30, (8, 14)), (0, 16, (4, 10)), (0, 18, (8, 14)), (6, 13, (7, 13))])
def test_a_float_grows_into_the_larger_gap(low: int, high: int, grown: tuple[int, int]) -> None:
    """Between two neighbours a band of two frames grows to six upward, where there is as much room or more, else downward."""
    first = 8
    assert window(low, high, 6, first, 10, 0) == grown
    assert window(0, 30, 6, first, 10, -1) == (4, 10) and window(0, 30, 6, first, 10, 1) == (8, 14)


def test_an_empty_arena_shrinks_to_its_sink() -> None:
    """Nothing live: the arena may be exactly as long as its sink, and no shorter."""
    state = initial(build_layout([BandSpec("a", 4096), BandSpec("b", 2048)], BYTES))
    assert not isinstance(small := resize(state, 4096), Refusal) and small.state.layout.total_bytes == 4096
    with pytest.raises(LayoutError):
        resize(state, 4095)


def test_a_refused_resize_asks_for_nothing_jointly() -> None:
    """A shrink below what is live is refused, and every band's joint figure is zero pages, not less."""
    state = initial(build_layout([BandSpec("a", 4096), BandSpec("b", 2048)], BYTES))
    full = allocate(state, (8, 8))
    assert not isinstance(full, Refusal)
    said = resize(full.state, 8192)
    assert isinstance(said, Refusal) and [row.joint for row in said.bands] == [0, 0]


def test_the_joint_maximum_is_exact_from_none_on() -> None:
    """With room for j pages more of both bands, the joint maximum of any demand of at least j is j each, from j = 0 on."""
    state = initial(build_layout([BandSpec("a", 4096), BandSpec("b", 4096)], BYTES))
    for left in range(7):
        taken = allocate(state, (15 - 2 * left, 0))
        assert not isinstance(taken, Refusal)
        for wanted in range(left, 9):
            assert joint_maximum(taken.state, (wanted, wanted), "relief") == (left, left)


def test_room_says_minus_one_where_the_other_bands_do_not_fit() -> None:
    """A band below, above, or one's own frames in the way: exactly -1; no room left is 0."""
    other, mine = Claim(10, 5), Claim(10, 0)
    assert room((other, mine), 10, 50, 1) == -1 and room((mine, other), 10, 50, 0) == 0
    assert room((other, mine), 10, 60, 1) == 0 and room((mine, Claim(10, 7)), 10, 60, 0) == -1
    assert room((other, Claim(10, 1, 3, 4)), 10, 90, 1) == -1 and room((Claim(10, 1, 6, 7), other), 10, 90, 0) == -1


def test_what_may_be_evicted_makes_room_below_the_maximum() -> None:
    """At five of six pages, three more fit once two are given up, not once one is; the refusal names the maximum."""
    state = initial(build_layout([BandSpec("a", 4096, pages_max=6), BandSpec("b", 4096)], BYTES))
    held = allocate(state, {"a": 5, "b": 0})
    assert not isinstance(held, Refusal)
    assert isinstance(fits(held.state, {"a": 3, "b": 0}, evictable={"a": 2, "b": 0}), Fit)
    said = fits(held.state, {"a": 3, "b": 0}, evictable={"a": 1, "b": 0})
    assert isinstance(said, Refusal) and said.reason == "maximum"


def test_an_index_never_handed_out_does_not_stand_in_the_stack() -> None:
    """One free id replaced by one from ``fresh`` on, beside a right one: IDS-1 says so."""
    taken = allocate(initial(build_layout([BandSpec("a", 4096)], BYTES)), (6,))
    assert not isinstance(taken, Refusal)
    state = release(taken.state, [2, 3]).state
    band = state.bands[0]
    assert verify(state) == []
    broken = evolve(band, ids=band.ids.write(np.array([1]), np.array([band.fresh + 2])))
    assert {found.claim for found in verify(state.with_bands([broken]))} == {"IDS-1"}


def test_shared_arrays_cannot_be_written() -> None:
    """What all values share – no rows, no frames, the keys of the digest – is read-only."""
    for shared in (NO_MOVES, NO_ROWS, NO_FRAMES, NOBODY, NONE, NO_PAGES, _keys(4), _counting(4)):
        assert not shared.flags.writeable


def test_no_sequence_and_all_sequences_can_be_opened() -> None:
    """Opening none gives no handle; with all slots open, one more is refused, and none still is none."""
    leases = empty_leases(build_layout([BandSpec("a", 4096)], BYTES), sequences=3, context=64)
    same, none = open_leases(leases, 0)
    full, handles = open_leases(same, 3)
    assert len(none) == 0 and sorted(int(handle) & SLOT_MASK for handle in handles) == [0, 1, 2]
    assert len(open_leases(full, 0)[1]) == 0
    with pytest.raises(LeaseError, match="1 sequences asked for; 0 of 3"):
        open_leases(full, 1)


def test_bytes_moved_are_those_of_the_pages_that_stand_elsewhere() -> None:
    """What a door says a compaction moved is the frame size of each page whose frame changed: zero where none did."""
    door = Projecting(4096 * 6)
    assert door.compact() == 0
    moved = 0
    for seed in range(6):
        served(door, 12, seed)
        before = door.state
        said = door.compact()
        pages = np.arange(1, door.layout.ids_total)
        changed = (before.frames_of(pages) != door.state.frames_of(pages)).nonzero()[0] + 1
        bands = np.searchsorted(door.layout.id_bases, changed) - 1
        assert said == sum(door.layout.bands[int(band)].frame_bytes for band in bands)
        moved += said
    assert moved > 0


def test_a_finished_write_leaves_nothing_pending() -> None:
    """After a write, a refused write and a finish, the store of a table keeps no half-done write, nor its values, alive."""
    table = Table.full(4, 0)
    newer = table.write(np.array([1]), np.array([7]))
    assert newer._store.pending is None
    with pytest.raises(ValueError, match="shape"):
        newer.write(np.array([1, 2]), np.array([1, 2, 3]))
    assert newer._store.pending is None
    newer._store.pending = (newer, np.array([2]), np.array([5]))  # as an interrupt would leave it
    newer._store.finish()
    assert newer._store.pending is None and newer.item(2) == 5


def test_a_span_that_only_touches_its_target_is_left_whole_or_not_at_all() -> None:
    """Four pages beside their target: two frames of budget move none, four move all; a target that overlaps by one takes two."""
    taken = allocate(initial(build_layout([BandSpec("a", 4096)], BYTES)), (4,))
    assert not isinstance(taken, Refusal)
    band = taken.state.bands[0]
    high = band.high
    assert len(_moves_into(band, (high, high + 4), 2 * 4096, None).sources) == 0
    assert len(_moves_into(band, (high, high + 4), 4 * 4096, None).sources) == 4
    assert len(_moves_into(band, (high - 1, high + 3), 2 * 4096, None).sources) == 2
    assert list(_farthest(np.array([4, 10]), (5, 9), 1)) == [10] and list(_farthest(np.array([3, 9]), (5, 9), 1)) == [3]


def test_a_recorded_run_is_not_undone() -> None:
    """While events are recorded, taking a step back is refused and the value stays; unrecorded, the same step goes back."""
    for recorder in (None, [].append):
        door = Projecting(4096 * 6, recorder=recorder)
        lease, before = door.open(1), door.value
        result = door.step(lease, np.array([5]))
        assert not isinstance(result, Refusal)
        if recorder is None:
            door.undo(before, result.outcome)
            assert door.state is before.state
            continue
        after = door.value
        with pytest.raises(RecordingError, match="being recorded"):
            door.undo(before, result.outcome)
        assert door.value is after


def test_a_row_that_was_never_written_names_the_sink() -> None:
    """In fresh leases every cell of every row is exactly 0."""
    leases = empty_leases(build_layout([BandSpec("a", 4096)], BYTES), sequences=3, context=64)
    assert all(int(row.copy().min()) == int(row.copy().max()) == 0 for row in leases.rows)


def test_a_request_of_no_tokens_is_admitted_and_one_of_fewer_refused() -> None:
    """Nothing now and nothing reserved is a request; minus one token is none."""
    budget = Projecting(4096 * 6).admission()
    assert budget.admit(0, 0)
    for tokens in ((-1, 0), (0, -1)):
        with pytest.raises(DemandError, match="from 0"):
            budget.admit(*tokens)


def test_the_digest_of_a_run_is_sixteen_bytes() -> None:
    """After one event and after two."""
    state = initial(build_layout([BandSpec("a", 4096)], BYTES))
    for _ in range(2):
        outcome = apply(state, Event("allocate", demand=(1,)))
        assert not isinstance(outcome, Refusal)
        state = outcome.state
        assert len(state.digest) == 16


def test_a_lease_named_twice_in_a_step_is_refused() -> None:
    """Served twice, or served and finished: a LeaseError, and the value stays; once is served."""
    door = Projecting(4096 * 6)
    lease, nobody = door.open(1), np.array([], np.int64)
    before = door.value
    for served_leases, finished in ((np.repeat(lease, 2), nobody), (lease, lease), (nobody, np.repeat(lease, 2))):
        with pytest.raises(LeaseError, match="twice in one step"):
            door.step(served_leases, np.ones(len(served_leases), np.int64), finished)
        assert door.value is before
    assert not isinstance(door.step(lease, np.array([1])), Refusal)
