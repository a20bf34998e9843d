"""A part of a split lease was served although its window or state belonged to another lease: its tokens went to the sink, or
it went on from a blank state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core_pure.door import Door
from core_pure.errors import LeaseError
from core_pure.layout import BandSpec, build_layout
from core_pure.leases import empty_leases

FULL = BandSpec("full", 4 * 16, slots_per_page=4)
WINDOW = BandSpec("window", 4 * 16, slots_per_page=4, retention="window", window=5)
STATE = BandSpec("state", 128, retention="state")


def _split(bands: list[BandSpec], tokens: int, at: int) -> tuple[Door, int, int]:
    """A door with one lease of ``tokens`` cut at ``at``, and the handles of both parts."""
    door = Door(build_layout(bands, 16384), sequences=6, context=80, chunk=16)
    front, rear = door.open(2).tolist()
    for start in range(0, tokens, 16):
        door.step(np.array([front]), np.array([min(16, tokens - start)]))
    door.step(np.array([front]), np.array([0]))
    door.split(front, rear, at)
    return door, front, rear


@pytest.mark.parametrize(
    ("bands", "tokens", "part"),
    [([FULL, WINDOW], 36, 0), ([FULL, STATE], 16, 0), ([FULL], 16, 1), ([FULL, STATE], 16, 1), ([FULL, WINDOW], 36, 1)],
)
def test_F37_a_part_that_lacks_something_is_not_served(bands: list[BandSpec], tokens: int, part: int) -> None:
    """Steps, demands and forks of an incomplete part are typed errors and change nothing; it can end, or start from nothing."""
    door, *parts = _split(bands, tokens, 8)
    handle, other = np.array([parts[part]]), np.array([parts[1 - part]])
    one, before = np.array([1]), door.value
    calls: list[Callable[[], object]] = [
        lambda: door.step(handle, one),
        lambda: door.demand_of(handle, one),
        lambda: door.fork(int(handle[0])),
    ]
    for call in calls:
        with pytest.raises(LeaseError, match="was split"):
            call()
        assert door.value is before
    door.step(handle, np.array([0]))
    door.trim(handle, np.array([0]))
    door.step(handle, np.array([5]))
    assert door.verify() == []
    door.step(np.empty(0, np.int64), np.empty(0, np.int64), np.concatenate((handle, other)))
    emptied = empty_leases(door.layout, sequences=6, context=80)
    assert door.leases.has_parts is False and (door.leases.idle, door.leases.fresh) == (emptied.idle, emptied.fresh)
    assert all(band.is_empty for band in door.state.bands)


def test_a_front_that_lacks_nothing_is_served() -> None:
    """Before anything slid out and without states, the front of a split goes on as any lease."""
    door, front, _ = _split([FULL, WINDOW], 5, 4)
    door.step(np.array([front]), np.array([3]))
    assert [len(pages) for pages in door.pages(front)] == [2, 2]
    assert isinstance(door.fork(front), int)
