"""A lease whose window had slid kept its first position when it was trimmed to 0: new tokens then went to the sink."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.door import Door
from core_pure.errors import LeaseError
from core_pure.layout import BandSpec, build_layout
from core_pure.step import write_slots

BANDS = (
    BandSpec("state", 512, retention="state"),
    BandSpec("window-8", 512, slots_per_page=4, retention="window", window=8),
    BandSpec("full", 256, slots_per_page=4),
)


def slid_lease() -> tuple[Door, np.ndarray]:
    """A lease of 32 tokens in a window of 8: its first pages are gone."""
    door = Door(build_layout(BANDS, 6 * 4096), sequences=4, context=64, chunk=8)
    handles = door.open(1)
    for _ in range(4):
        door.step(handles, np.array([8]))
    return door, handles


def test_aborted_prefill_starts_afresh() -> None:
    """After a trim to 0 nothing is held, no dirty state either, and each new token has a slot above the sink."""
    door, handles = slid_lease()
    door.trim(handles, np.array([0]))
    assert [band.live for band in door.state.bands] == [0, 0, 0]
    result = door.step(handles, np.array([8]))
    assert [len(pages) for pages in door.pages(int(handles[0]))] == [1, 2, 2]
    for band, spec in enumerate(door.layout.bands):
        slots = write_slots(result.outcome, band)
        assert len(set(slots.tolist())) == len(slots) == (8 if spec.grows else 1)
        assert slots.min() >= door.layout.sink_bytes // spec.frame_bytes * spec.slots_per_page


def test_a_trim_below_pages_of_another_lease_is_refused() -> None:
    """The rear half of a split lease cannot shrink to tokens whose pages the front half holds."""
    layout = build_layout([BandSpec("full", 256, slots_per_page=4)], 4096)
    door = Door(layout, sequences=4, context=64, chunk=32)
    front, rear = door.open(2)
    door.step(np.array([front]), np.array([32]))
    door.split(front, rear, 16)
    before = door.value
    with pytest.raises(LeaseError, match="another lease"):
        door.trim(np.array([rear]), np.array([8]))
    assert door.value == before
    door.trim(np.array([rear]), np.array([20]))
    assert [len(door.pages(int(lease))[0]) for lease in (front, rear)] == [4, 1]
