"""Floats, text and numbers out of range at some doors gave TypeErrors, or were taken: a resize to 8192.5 bytes, a band of 2⁷⁰."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core_pure.advance import resize
from core_pure.compact import compact
from core_pure.door import Door
from core_pure.errors import ArenaError, LayoutError
from core_pure.fits import fits
from core_pure.layout import BandSpec, build_layout
from core_pure.state import initial

LAYOUT = build_layout([BandSpec("full", 300)], 16384)
STRANGE: list[Any] = [None, "1", 1.0, 4.5, True, [1], -1, np.float64(1), np.array([1])]


@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_doors_take_whole_numbers_only(strange: Any) -> None:
    """At every door a number of another kind or size is a typed error, and the door's value stays."""
    door = Door(LAYOUT, sequences=4, context=40, chunk=8)
    one, two = door.open(2).tolist()
    door.step(np.array([one]), np.array([8]))
    before = door.value
    calls: list[Callable[[], object]] = [
        lambda: door.open(strange),
        lambda: door.share(one, two, strange),
        lambda: door.split(one, two, strange),
        lambda: door.retire(strange),
        lambda: door.resize(strange),
        lambda: door.admission().admit(strange, 0),
        lambda: Door(LAYOUT, sequences=strange, context=40, chunk=8),
        lambda: Door(LAYOUT, sequences=4, context=strange, chunk=8),
        lambda: Door(LAYOUT, sequences=4, context=40, chunk=strange),
        lambda: build_layout([BandSpec("full", strange)], 16384),
        lambda: build_layout([BandSpec("full", 300)], strange),
    ]
    if strange is not None:
        calls.append(lambda: door.compact(strange))
    for call in calls:
        with pytest.raises(ArenaError):
            call()
        assert door.value is before


def test_numbers_beyond_64_bits_are_refused() -> None:
    """Sizes and limits beyond what an arena can have or an event can carry are typed errors."""
    door = Door(LAYOUT, sequences=4, context=40, chunk=8)
    calls: list[Callable[[], object]] = [
        lambda: door.open(1 << 70),
        lambda: door.compact(1 << 63),
        lambda: door.resize(1 << 70),
        lambda: door.retire(1 << 70),
        lambda: Door(LAYOUT, sequences=1 << 70, context=40, chunk=8),
        lambda: build_layout([BandSpec("full", 1 << 70)], 16384),
        lambda: build_layout([BandSpec("full", 300)], 1 << 70),
    ]
    for call in calls:
        with pytest.raises(ArenaError):
            call()


def test_whole_numbers_of_numpy_are_taken() -> None:
    """A narrow numpy integer is a whole number: nothing overflows in its type."""
    assert build_layout([BandSpec("full", 300)], np.int32(16384)) == LAYOUT
    assert resize(initial(LAYOUT), np.int16(8192)).state.layout.total_bytes == 8192
    with pytest.raises(LayoutError):
        resize(initial(LAYOUT), np.uint8(1))
    assert compact(initial(LAYOUT), bytes_limit=(1 << 63) - 1).state == initial(LAYOUT)


def test_a_demand_is_a_row() -> None:
    """A number in a numpy array without a row is no demand."""
    with pytest.raises(ArenaError):
        fits(initial(LAYOUT), np.array(1))
