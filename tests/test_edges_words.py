"""Encoded plans and recordings exactly at a bound (see docs/MUTATION.md)."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.errors import RecordingError
from core_pure.plan import HEADER_WORDS, NO_MOVES, NO_ROWS, NOTHING, PLAN_VERSION, Plan, decode, encode, stack


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
