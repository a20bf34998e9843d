"""The arena's value, its events and its digest exactly at a bound (see docs/MUTATION.md)."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from attrs import evolve

from core_pure.advance import NOBODY, advance, allocate, check_reader, clear, release, resize
from core_pure.band import Band, Batch
from core_pure.errors import DemandError, DuplicatePage, FenceError, ForeignPage, LayoutError, SinkPage, WrongThread
from core_pure.event import Event, apply, content_digest
from core_pure.fences import launch, retire
from core_pure.fits import NOW, Refusal
from core_pure.layout import BandSpec, Layout
from core_pure.leases import empty_leases
from core_pure.plan import NOTHING
from core_pure.state import Outcome, as_ids, by_band, demand_of, initial, room_beside
from core_pure.table import Table
from core_pure.verify import verify
from tests.core_states import bound_pages, histories

LAYOUT = Layout((BandSpec("a", 64), BandSpec("b", 16), BandSpec("c", 32)), 1024, 1024)


def full_of(band: int, count: int) -> Outcome:
    """So many pages of one band."""
    answer = allocate(initial(LAYOUT), tuple(count * (at == band) for at in range(3)))
    assert isinstance(answer, Outcome)
    return answer


def test_history_is_no_part_of_a_value() -> None:
    """Fences launched and retired, the digest and the serial of leases do not make two values unequal; contents do."""
    state = initial(LAYOUT)
    moved_on = apply(apply(state, Event("launch")).state, Event("retire", number=1))
    assert isinstance(moved_on, Outcome) and moved_on.state == state and moved_on.state.digest != state.digest
    assert (moved_on.state.launched, moved_on.state.retired) == (1, 1) and (state.launched, state.retired, state.digest) == (
        0,
        0,
        b"",
    )
    assert full_of(1, 1).state != state and evolve(state, layout=evolve(LAYOUT, total_bytes=960)) != state
    leases = empty_leases(LAYOUT, sequences=2, context=8)
    assert evolve(leases, serial=9) == leases != evolve(leases, fresh=1)
    assert Batch(1, (2, 3)) == Batch(1, np.array([2, 3])) != Batch(1, (3, 2)) != Batch(2, (3, 2))


def test_ids_are_those_of_their_band_up_to_its_last() -> None:
    """The first and the last id of each band have their frames; 0, below, and past the last id are the sink."""
    for band, (base, most) in enumerate(zip(LAYOUT.id_bases, LAYOUT.frames_max, strict=True)):
        got = full_of(band, most)
        assert sorted(got.pages[band].tolist()) == list(range(base + 1, base + most + 1))
        frames = got.state.frames_of(np.arange(-2, LAYOUT.ids_total + 2))
        assert (frames > 0).nonzero()[0].tolist() == [page + 2 for page in range(base + 1, base + most + 1)]
        assert np.array_equal(got.state.table(), frames[2:-2]) and verify(got.state) == []
        assert isinstance(allocate(got.state, tuple(int(at == band) for at in range(3))), Refusal)


def test_pages_are_split_by_band_at_its_bounds() -> None:
    """First and last ids together, alone, in any order; 0 and below are the sink, past the last is foreign."""
    state, last = initial(LAYOUT), LAYOUT.ids_total - 1
    ends = [[base + 1, base + most] for base, most in zip(LAYOUT.id_bases, LAYOUT.frames_max, strict=True)]
    for at, (first, end) in enumerate(ends):
        for ids in ([first], [end], [first, end], [end, first]):
            assert {band: index.tolist() for band, index in by_band(state, ids).items()} == {
                at: [page - LAYOUT.id_bases[at] for page in ids]
            }
    mixed = by_band(state, [page for pair in ends for page in pair])
    assert {band: index.tolist() for band, index in mixed.items()} == {at: [1, most] for at, most in enumerate(LAYOUT.frames_max)}
    for wrong, error in ((0, SinkPage), (-1, SinkPage), (last + 1, ForeignPage)):
        for ids in ([wrong], [1, wrong], [wrong, last]):
            with pytest.raises(error, match=str(wrong)):
                by_band(state, ids)
    assert by_band(state, []) == {} and as_ids([]).dtype == np.intp
    for bad in ([[1]], [1.0], 1, ["1"], [True], [[1], [2, 3]]):
        with pytest.raises(DemandError):
            as_ids(bad)


def test_a_demand_is_a_row_of_whole_numbers() -> None:
    """From 0 to 2³¹ - 1 each, one per band; a tuple of such ints is itself, anything alike becomes one."""
    state, most = initial(LAYOUT), 2**31 - 1
    row = (0, 1, most)
    assert demand_of(state, row) is row
    for alike in ([0, 1, most], np.array(row), {"b": 1, "c": most}, (np.int64(0), 1, most)):
        assert demand_of(state, alike) == row and all(type(n) is int for n in demand_of(state, alike))
    for wrong in ((0, 1), (0, 1, 2, 3), (0, 1, -1), (0, 1, most + 1), (0, 1, 2.0), (0, 1, True), "abc", {"d": 1}, 3, [[0, 1, 2]]):
        with pytest.raises(DemandError):
            demand_of(state, wrong)  # type: ignore[arg-type]


def test_no_band_takes_more_than_its_maximum() -> None:
    """Whichever band it is and however much is free: up to its maximum pages are granted, one more is refused for it."""
    for at in range(3):
        specs = tuple(evolve(spec, pages_max=3 if at == band else None) for band, spec in enumerate(LAYOUT.bands))
        state = initial(evolve(LAYOUT, bands=specs))
        for least, fit in ((3, True), (4, False)):
            answer = allocate(state, tuple(least * (band == at) for band in range(3)))
            assert isinstance(answer, Outcome) == fit
            assert isinstance(answer, Outcome) or (answer.reason, answer.band) == ("maximum", "abc"[at])
        most = allocate(state, tuple(3 * (band == at) for band in range(3)))
        assert isinstance(most, Outcome)
        for wanted in (0, 1):
            others = allocate(most.state, tuple(wanted if band == at else 1 for band in range(3)))
            assert isinstance(others, Outcome) == (not wanted)


def test_room_is_what_lies_between_neighbours() -> None:
    """From the sink, or the end of the nearest band below that holds anything, to the start of the nearest above, or the top."""
    state = initial(LAYOUT)
    assert [room_beside(state, at) for at in range(3)] == [(1, 16), (4, 64), (2, 32)]
    low = allocate(state, (2, 0, 0))
    assert isinstance(low, Outcome) and [room_beside(low.state, at) for at in range(3)] == [(1, 16), (12, 64), (6, 32)]
    both = allocate(low.state, (0, 0, 3))
    assert isinstance(both, Outcome) and [room_beside(both.state, at) for at in range(3)] == [(1, 14), (12, 58), (6, 32)]


def test_a_reader_is_a_step_between_retired_and_launched() -> None:
    """None, or a fence launched and not retired; fences count from 1."""
    state = initial(LAYOUT)
    for _ in range(4):
        state = launch(state).state
    state = retire(state, 2).state
    for reader in (None, 3, 4, np.int64(3)):
        check_reader(state, reader)
    for wrong in (-1, 0, 1, 2, 5, 3.0, True, "3"):
        with pytest.raises(FenceError):
            check_reader(state, wrong)  # type: ignore[arg-type]
    assert retire(state, 2).state is state and retire(state, 0).plan is NOTHING
    for wrong in (-1, 5, 3.0, True):
        with pytest.raises(FenceError):
            retire(state, wrong)  # type: ignore[arg-type]


def handed_out(band: Band, released: list[int], wanted: int) -> list[int]:
    """The page indices that a step takes: what it hands on lies on top of the stack of free ids, fresh ones come last."""
    stack, handed = band.ids.read(slice(0, band.spare)).tolist(), released[:wanted]
    if not handed:
        stack = stack + released if len(released) < band.live else []
    else:
        stack = stack + released[wanted:] + handed
    first = band.fresh if stack or len(released) < band.live else 1
    taken = stack[max(0, len(stack) - wanted) :]
    return taken + list(range(first, first + wanted - len(taken)))


def test_ids_follow_from_ids_alone() -> None:
    """Whether frames are handed straight on, bound as they stand or moved out of the way: the same pages in the same order."""
    rng, seen = random.Random(3), {"moved": 0, "more": 0, "fewer": 0}
    for state, _ in zip(histories(4, bands=(1, 2, 3), frames=5, steps=40), range(1500), strict=False):
        released = rng.sample(loose := bound_pages(state, pinned=False).tolist(), rng.randint(0, min(4, len(loose))))
        wanted = tuple(rng.choice((0, 1, 2, 4)) for _ in state.bands)
        before = content_digest(state)
        answer = advance(state, release=released, demand=wanted)
        assert content_digest(state) == before, "the value before stays as it is"
        if isinstance(answer, Refusal):
            continue
        assert verify(answer.state) == []
        for band, asked, pages in zip(state.bands, wanted, answer.pages, strict=True):
            base = band.home.id_base
            mine = [page - base for page in released if base < page <= base + band.home.ids_max]
            if asked:
                assert (pages - base).tolist() == handed_out(band, mine, asked)
                seen["moved"] += bool(answer.plan.waves and mine)
                seen["more" if asked > len(mine) > 0 else "fewer"] += 1
    assert min(seen.values()) > 20, seen


def test_beside_a_reader_only_what_fits_now_is_asked_for() -> None:
    """Where not even waiting for the reader helps, the refusal is about the mode that moves nothing."""
    held = full_of(1, 50)
    state = launch(held.state).state
    for wanted in ((0, 20, 0), (9, 0, 9)):
        said = advance(state, release=held.pages[1][:3], demand=wanted, reader=1)
        assert isinstance(said, Refusal) and said.mode == NOW and said.fence is None


def test_values_of_other_types_are_unequal() -> None:
    """A band, a table, a plan: compared with anything else, they are unequal, and nothing is raised."""
    band = initial(LAYOUT).bands[0]
    for value in (band, band.page_of, NOTHING):
        assert value != 5 and value == value and hash(value) == hash(value)


def test_positions_are_found_wherever_blocks_lie() -> None:
    """In blocks of 8 cells, one, some beside each other or far apart: exactly the positions that hold the value, ascending."""
    rng = np.random.default_rng(2)
    cells = rng.integers(-2, 2, 8 * 12)
    table = Table.of(cells)
    for _ in range(200):
        blocks = np.sort(rng.choice(12, rng.integers(1, 5), replace=False))
        found = table.find_in_blocks(-1, blocks, 3).tolist()
        inside = [at for at in range(len(cells)) if cells[at] == -1 and at >> 3 in blocks]
        beside = [at for at in range(blocks[0] << 3, (blocks[-1] + 1) << 3) if cells[at] == -1]
        assert found in (inside, beside) and (found == inside or blocks[-1] - blocks[0] < 2 * len(blocks))
        start, stop = sorted(rng.integers(0, len(cells) + 1, 2).tolist())
        held = [at for at in range(start, stop) if cells[at] == -1]
        assert table.find(-1, start, stop).tolist() == held == table.find(-1, start, stop, from_top=True).tolist()[::-1]
        other = [at for at in range(start, stop) if cells[at] != -1]
        assert (table.first_other(-1, start, stop), table.last_other(-1, start, stop)) == (
            other[0] if other else stop, other[-1] if other else start - 1,
        )  # fmt: skip
        assert table.find_above(-1, start, stop).tolist() == [at for at in range(start, stop) if cells[at] > -1]


def test_a_table_is_written_by_its_thread_alone() -> None:
    """Its newest version and an older one, in another thread: WrongThread, nothing written; handed over, it is that thread's."""
    older = Table.full(4, 0)
    newest = older.write(np.array([1]), np.array([7]))

    def tried(table: Table) -> str:
        try:
            table.write(np.array([1]), np.array([9]))
        except WrongThread:
            return "refused"
        return "written"

    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(tried, table).result() for table in (newest, older)] == ["refused", "refused"]
        assert newest.copy().tolist() == [0, 7, 0, 0]
        pool.submit(newest.hand_over).result()
        assert pool.submit(tried, newest).result() == "written"
    with pytest.raises(WrongThread):
        newest.copy()


def test_rows_of_another_width_are_not_written() -> None:
    """A table of rows takes whole rows, one each or one for all; others are a ValueError, and the table stays as it is."""
    table = Table.full((5, 4), 0, np.int64)
    two = table.write(np.array([1, 3]), np.arange(8).reshape(2, 4))
    assert two.read(np.array([3, 1])).tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    for wrong in (
        np.arange(8).reshape(1, 8),
        np.arange(8),
        np.arange(6).reshape(2, 3),
        np.arange(12).reshape(3, 4),
        np.arange(10).reshape(2, 5),
        np.arange(8).reshape(4, 2),
    ):
        with pytest.raises(ValueError):
            two.write(np.array([1, 3]), wrong)
        assert two.copy().tolist() == [[0] * 4, [0, 1, 2, 3], [0] * 4, [4, 5, 6, 7], [0] * 4]


def test_a_version_that_is_spelled_holds_no_other() -> None:
    """Read again, an older version of a table is the one that the array spells; the newer one is kept only by who holds it."""
    older = Table.full(4, 0)
    newer = older.write(np.array([1]), np.array([7]))
    assert (older.item(1), newer.item(1), older.item(1)) == (0, 7, 0)
    assert older._link is None and newer._link is not None and older._store.pending is None


def test_a_write_that_an_interrupt_left_is_finished_by_the_next() -> None:
    """Cells written, the version not yet: a write to the older version leaves both as they are and gives a third."""
    older = Table.full(4, 0)
    newer = older.write(np.array([1]), np.array([7]))
    older._store.root, older._store.pending = older, (newer, np.array([1]), np.array([7]))
    third = older.write(np.array([2]), np.array([5]))
    assert [table.copy().tolist() for table in (third, older, newer)] == [[0, 0, 5, 0], [0] * 4, [0, 7, 0, 0]]


def test_clear_unbinds_every_page_and_nothing_else() -> None:
    """One row of -1 per live page, all fences retired, the digest kept."""
    got = apply(launch(full_of(1, 3).state).state, Event("allocate", demand=(1, 0, 2)))
    assert isinstance(got, Outcome)
    emptied = clear(got.state)
    live = [*got.pages[0].tolist(), *full_of(1, 3).pages[1].tolist(), *got.pages[2].tolist()]
    assert sorted(emptied.plan.rows.tolist()) == [[page, -1] for page in sorted(live)]
    assert emptied.state == initial(LAYOUT) and (emptied.state.launched, emptied.state.retired) == (1, 1)
    assert emptied.state.digest == got.state.digest


def test_an_arena_is_resized_between_its_sink_and_its_capacity() -> None:
    """Exactly the capacity and exactly the sink, in whole 4,096 bytes; nothing live moves while it fits as it stands."""
    layout = Layout((BandSpec("a", 4096), BandSpec("b", 1024)), 40960, 40960)
    state = initial(layout)
    for total in (4096, 4097, 8191, 40960):
        answer = resize(state, total)
        assert isinstance(answer, Outcome) and answer.state.layout.total_bytes == total // 4096 * 4096 and answer.plan is NOTHING
    for wrong in (0, 4095, 40961 + 4095, -1, 8192.0, "8192", True):
        with pytest.raises(LayoutError):
            resize(state, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_page_named_twice_is_refused_in_every_kind_of_release(count: int) -> None:
    """Alone, beside a demand of its band, beside one of another, withheld, or with a reader; each named once, all pass."""
    got = full_of(1, 5)
    state, ids = launch(got.state).state, got.pages[1][:count].tolist()
    for demand, reader, withhold in (
        (None, None, False), ((0, 3, 0), None, False), ((1, 0, 0), None, False),
        (None, 1, False), ((0, 1, 0), None, True), ((0, 1, 0), 1, False),
    ):  # fmt: skip
        for at in range(count):
            with pytest.raises(DuplicatePage, match=str(ids[at])):
                advance(state, release=[*ids, ids[at]], demand=demand, reader=reader, withhold=withhold)
        answer = advance(state, release=ids, demand=demand, reader=reader, withhold=withhold)
        assert isinstance(answer, Outcome) and verify(answer.state) == []
    assert release(state, NOBODY).state == state
