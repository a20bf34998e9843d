"""In a slot used before, a fork or share of a slid lease, and a lease without tokens, read pages of somebody else through ids
that the slot's earlier lease had left."""

from __future__ import annotations

import numpy as np

from core_pure.door import Door
from core_pure.layout import BandSpec, build_layout
from core_pure.leases import SLOT_MASK, RowWrite
from core_pure.plan import Plan
from core_pure.step import write_slots

WINDOW = BandSpec("window", 64, slots_per_page=4, retention="window", window=5)
STATE = BandSpec("state", 256, retention="state", pages_fixed=2)


class Projected(Door):
    """A door with the row cells as a device has them: only what was written."""

    def _project(self, before: object, after: object, plan: Plan, writes: tuple[RowWrite, ...]) -> None:
        self.rows = getattr(self, "rows", None) or [np.zeros(len(rows), np.int64) for rows in self.leases.rows]
        for rows, write in zip(self.rows, writes, strict=False):
            rows[write.cells] = write.pages

    def row(self, handle: int, band: int) -> list[int]:
        """One lease's cells."""
        width = self.leases.widths[band]
        return [int(page) for page in self.rows[band][(handle & SLOT_MASK) * width :][:width]]


def _after_a_long_lease(*bands: BandSpec) -> tuple[Projected, int]:
    """A lease of 40 tokens in slot 1 that has slid; the slot above it was used by one that had not, and is free again."""
    door = Projected(build_layout(bands, 16384), sequences=3, context=60, chunk=16)
    first, slid, other = door.open(3)
    door.step(np.array([first, slid, other]), np.array([16, 16, 16]))
    door.step(np.array([slid]), np.array([16]), np.array([other]))
    door.step(np.array([slid, first]), np.array([8, 0]))
    door.step(np.array([slid]), np.array([0]))
    return door, int(slid)


def test_an_heir_in_a_used_slot_reads_the_sink_below_its_window() -> None:
    """After fork, share and split every cell below the heir's first page is 0, on the host and where only writes are seen."""
    for heir_of in ("fork", "share", "split"):
        door, slid = _after_a_long_lease(WINDOW)
        if heir_of == "fork":
            heir = door.fork(slid)
            assert isinstance(heir, int)
        else:
            heir = int(door.open(1)[0])
            door.share(slid, heir, 40) if heir_of == "share" else door.split(slid, heir, 36)
        begin = 9
        assert door.row(heir, 0)[:begin] == [0] * begin
        assert door.row(heir, 0)[begin : begin + 1] == door.pages(heir)[0].tolist()


def test_a_lease_without_tokens_reads_no_state() -> None:
    """States of a lease that ended, or went to a split's tail, are in no cell any more: steps of 0 tokens write to the sink."""
    door, slid = _after_a_long_lease(WINDOW, STATE)
    late, fresh = door.open(1), np.empty(0, np.int64)
    assert door.row(int(late[0]), 0) == [0, 0]
    result = door.step(late, np.array([0]))
    assert write_slots(result.outcome, 0).tolist() == [0]
    door.step(fresh, fresh, late)
    (tail,) = door.open(1).tolist()
    states = door.pages(slid)[0].tolist()
    door.split(slid, tail, 36)
    assert door.row(slid, 0) == [0, 0] and door.row(tail, 0) == states
    door.trim(np.array([slid]), np.array([0]))
    result = door.step(np.array([slid]), np.array([0]))
    assert write_slots(result.outcome, 0).tolist() == [0]
