"""A lease trimmed into a page that another sequence reads wrote its next tokens over that sequence's tokens."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.door import Door
from core_pure.errors import LeaseError
from core_pure.layout import BandSpec, build_layout


def _door() -> Door:
    layout = build_layout([BandSpec("full", 4 * 16, slots_per_page=4)], 8192)
    return Door(layout, sequences=4, context=40, chunk=16)


def test_a_trim_that_ends_inside_a_shared_page_is_refused() -> None:
    """After a fork no lease can come to write into a page with two holders; at page ends, at 0 and alone it may be cut."""
    door = _door()
    parent = door.open(1)
    door.step(parent, np.array([10]))
    child = door.fork(int(parent[0]))
    assert isinstance(child, int)
    before = door.value
    with pytest.raises(LeaseError, match="another"):
        door.trim(parent, np.array([6]))
    assert door.value is before
    door.trim(parent, np.array([9]))  # its own copy of the partial page
    door.trim(parent, np.array([4]))
    door.step(parent, np.array([1]))
    assert not set(door.pages(int(parent[0]))[0][1:].tolist()) & set(door.pages(child)[0].tolist())
    door.trim(np.array([child]), np.array([6]))  # the parent let that page go
    door.trim(parent, np.array([0]))
    door.trim(np.array([child]), np.array([3]))


def test_a_lease_named_twice_in_a_trim_is_an_error() -> None:
    """A lease named twice would let go of its shared pages twice, and take them from the other holder."""
    door = _door()
    parent = door.open(1)
    door.step(parent, np.array([16]))
    child = door.fork(int(parent[0]))
    assert isinstance(child, int)
    before = door.value
    with pytest.raises(LeaseError, match="twice"):
        door.trim(np.repeat(parent, 2), np.array([4, 4]))
    assert door.value is before
    assert len(door.pages(child)[0]) == 4 == door.state.bands[0].live
