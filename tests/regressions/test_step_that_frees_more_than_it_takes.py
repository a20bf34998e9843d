"""A step that freed more pages of a band than it took left the rest bound in the device's table: their row was missing."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.advance import advance, allocate
from core_pure.state import initial
from tests.core_states import bound_pages, layout_of


@pytest.mark.parametrize("taken", [(0, 0), (1, 0), (2, 1), (4, 4), (5, 0), (6, 6)])
def test_the_table_follows_the_plan(taken: tuple[int, int]) -> None:
    """Old table plus the plan's rows is the new table, whether a step frees more pages than it takes, as many, or fewer."""
    state = allocate(initial(layout_of((5, 3), 200)), (8, 8)).state
    released = bound_pages(state)[[1, 2, 3, 4, 9, 10, 11, 12]]
    answer = advance(state, release=released, demand=taken)
    table = state.table()
    rows = answer.plan.rows
    assert len(set(rows[:, 0].tolist())) == len(rows)
    table[rows[:, 0]] = np.maximum(rows[:, 1], 0)
    assert np.array_equal(table, answer.state.table())
