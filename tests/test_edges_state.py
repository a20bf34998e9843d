"""The arena's value, its events and its digest exactly at a bound (see docs/MUTATION.md)."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from core_pure.advance import NOBODY, advance, allocate, check_reader, clear, release, resize
from core_pure.band import Batch
from core_pure.errors import DemandError, DuplicatePage, FenceError, ForeignPage, LayoutError, RecordingError, SinkPage
from core_pure.event import KINDS, Event, apply, decode_event, encode_event, multilinear64
from core_pure.fences import launch, retire
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout
from core_pure.leases import empty_leases
from core_pure.plan import NOTHING
from core_pure.recording import header, read
from core_pure.state import Outcome, as_ids, by_band, demand_of, initial, room_beside
from core_pure.verify import verify

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


def test_events_are_words_and_back() -> None:
    """Every kind, with figures of 0 and None, large ones, a flag, a demand and pages; words behind an event are left alone."""
    rest = np.array([7, 7], np.int64)
    for kind in KINDS:
        for number, reader, demand, pages, flag in (
            (None, None, (), [], False), (0, 0, (0,), [0], True), (2**62, 2**40, (1, 2, 2**31 - 1), [5, 2**31 - 1], False),
        ):  # fmt: skip
            event = Event(kind, number, reader, demand, np.array(pages, np.int64), flag)
            words = encode_event(event)
            assert len(words) == 3 + len(demand) + len(pages)
            for tail in (rest[:0], rest):
                assert decode_event(np.concatenate((words, tail))) == (event, len(words))
            for wrong in range(len(words)):
                with pytest.raises(RecordingError):
                    decode_event(words[:wrong])


def test_a_recording_without_the_end_of_its_header_is_refused_at_once() -> None:
    """No line end behind the layout, whatever stands there instead and however long it is."""
    whole = header(LAYOUT)
    layout, events = read(whole)
    assert layout == LAYOUT and list(events) == []
    for pad in range(10):
        with pytest.raises(RecordingError):
            read(whole[:-1] + b" " * pad)


@pytest.mark.parametrize(("word", "value"), [(0, len(KINDS)), (0, 2 << 8), (0, -1), (0, 1 << 32), (0, 1 << 16), (1, -2), (2, -2)])
def test_words_that_no_event_gives_are_refused(word: int, value: int) -> None:
    """A kind, a flag or a length too large, and figures below -1."""
    words = encode_event(Event("launch"))
    words[word] = value
    with pytest.raises(RecordingError, match="damaged"):
        decode_event(words)


def test_the_hash_is_the_sum_of_words_times_keys() -> None:
    """Of int32 pairs like of the int64 they spell, an odd one alone; every word counts, at every length around a power of two."""
    rng = np.random.default_rng(1)
    for length in (0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 130):
        words = rng.integers(-(2**31), 2**31, 2 * length).astype(np.int32)
        assert multilinear64(words) == multilinear64(words.view(np.int64))
        assert -(2**63) <= multilinear64(words[:-1]) < 2**63
        seen = {multilinear64(words)} | {multilinear64(words[:-1])} if length else {0}
        for at in range(2 * length):
            other = words.copy()
            other[at] += 1 if other[at] < 2**31 - 1 else -1
            seen.add(multilinear64(other))
        assert len(seen) == (2 * length + 2 if length else 1)
