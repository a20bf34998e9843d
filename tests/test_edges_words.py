"""Encoded plans, events, recordings and the digest exactly at a bound (see docs/MUTATION.md)."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.errors import RecordingError
from core_pure.event import KINDS, Event, _keys, decode_event, encode_event, multilinear64
from core_pure.layout import BandSpec, Layout
from core_pure.plan import HEADER_WORDS, NO_MOVES, NO_ROWS, NOTHING, PLAN_VERSION, Plan, decode, encode, stack
from core_pure.recording import header, read, write

LAYOUT = Layout((BandSpec("a", 64), BandSpec("b", 16)), 1024, 1024)


def words_of(waves: int, moves: int, copies: int, fills: int, rows: int, *rest: int) -> np.ndarray:
    """A header with these counts, total and lengths consistent, no wait; then the rest."""
    total = HEADER_WORDS + waves + 3 * (moves + copies + fills) + 2 * rows
    words = np.zeros(max(HEADER_WORDS, total), np.int32)
    words[:9] = (PLAN_VERSION, total, waves, moves, copies, fills, rows, -1, -1)
    words[HEADER_WORDS : HEADER_WORDS + len(rest)] = rest
    return words


def test_a_plan_of_nothing_is_twelve_words() -> None:
    """No moves and no rows still have three and two columns; encoded and decoded it is the same plan."""
    assert NO_MOVES.shape == (0, 3) and NO_ROWS.shape == (0, 2)
    assert len(encode(NOTHING)) == HEADER_WORDS and decode(encode(Plan())) == NOTHING == decode(words_of(0, 0, 0, 0, 0))


WRONG = (
    (0, 0, -1, 1, 0), (0, 0, 1, -1, 0), (0, -1, 1, 0, 0), (0, 0, 2, 0, -3), (-3, 0, 1, 0, 0), (1, 0, 0, 0, 0, 0),
    (2, 1, 0, 0, 0, 0, 1),
)  # fmt: skip


@pytest.mark.parametrize("counts", WRONG)
def test_words_that_no_plan_gives_are_refused(counts: tuple[int, ...]) -> None:
    """A negative count, even where the total adds up, and a wave without moves: RecordingError."""
    with pytest.raises(RecordingError, match="contradicts its header"):
        decode(words_of(*counts))


def test_stacked_rows_are_all_rows() -> None:
    """Of no rows the empty block itself, of one block that block, of more their rows in order."""
    one, two = np.array([[0, 5, 6]], np.int32), np.array([[1, 7, 8], [1, 9, 4]], np.int32)
    assert stack([], NO_MOVES) is stack([NO_MOVES], NO_MOVES) is NO_MOVES and stack([NO_MOVES, one], NO_MOVES) is one
    assert stack([one, NO_MOVES, two], NO_MOVES).tolist() == [*one.tolist(), *two.tolist()]


def test_words_are_read_wherever_they_lie() -> None:
    """A list, wider ints, a column or every second cell of an array: the same plan."""
    plan = Plan((np.array([[0, 5, 6]], np.int32),), rows=np.array([[1, 6]], np.int32), wait=2**40)
    words = encode(plan)
    for other in (words.tolist(), words.astype(np.int64), words[:, None], np.repeat(words, 2)[::2]):
        assert decode(other) == plan
    assert plan != words.tolist()


def test_plans_that_differ_in_one_number_are_different() -> None:
    """Of all parts of a plan, one other number, one row more or another wait makes it unequal; a copy is equal."""
    moves, rows = np.array([[0, 5, 6]], np.int32), np.array([[1, 6]], np.int32)
    plan = Plan((moves,), moves + 1, moves + 2, rows, 3)
    assert plan == Plan((moves.copy(),), moves + 1, moves + 2, rows.copy(), 3) and hash(plan) == hash(decode(encode(plan)))
    for other in (
        Plan((moves + 1,), moves + 1, moves + 2, rows, 3), Plan((moves, moves), moves + 1, moves + 2, rows, 3),
        Plan((moves,), moves, moves + 2, rows, 3), Plan((moves,), moves + 1, moves, rows, 3),
        Plan((moves,), moves + 1, moves + 2, rows + 1, 3), Plan((moves,), moves + 1, moves + 2, rows, None),
        Plan((np.concatenate((moves, moves)),), moves + 1, moves + 2, rows, 3),
    ):  # fmt: skip
        assert plan != other and other == decode(encode(other))


def test_the_keys_of_the_hash_are_odd_and_as_many_as_asked_for() -> None:
    """So that every bit of every word counts, and the first keys do not depend on how many are made."""
    for count in (1, 2, 5, 64):
        keys = _keys(count)
        assert len(set(keys.tolist())) == len(keys) == count and (keys & 1).all() and keys.tolist() == _keys(64)[:count].tolist()


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


def test_a_recording_says_what_is_wrong_with_it() -> None:
    """Another version and another file are told apart; of a damaged event the number, counted from 0, after those before it."""
    for data, text in (
        (b"kvarena-recording 2\nx", "another version"), (b"kvarena-recording 12\n", "another version"),
        (b"kvarena-recording 1", "another version, or cut off"), (b"kvarena-rec", "not a kvarena"),
        (b"\x7fELF and more of it", "not a kvarena"), (b"", "not a kvarena"),
    ):  # fmt: skip
        with pytest.raises(RecordingError, match=text):
            read(data)
    whole = write(LAYOUT, [Event("launch")] * 4)
    for number in range(4):
        damaged = bytearray(whole)
        damaged[len(whole) - 8 * 3 * (4 - number) + 1] = 9  # the flag
        _, events = read(bytes(damaged))
        for _ in range(number):
            assert next(events) == Event("launch")
        with pytest.raises(RecordingError, match=f"event {number} is damaged"):
            next(events)


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
