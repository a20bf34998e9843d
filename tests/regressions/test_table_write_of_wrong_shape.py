"""Values of a wrong shape left a write pending for ever, and a caller's index array stayed part of old versions."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.door import Door
from core_pure.layout import BandSpec, build_layout
from core_pure.table import Table


def test_a_failed_write_leaves_every_version_readable() -> None:
    """After a shape error the table, an older and a newer version read as before and can be written to."""
    first = Table.of(np.arange(6))
    second = first.write(np.array([1]), 7)
    for table in (second, first):
        with pytest.raises(ValueError, match="shape"):
            table.write(np.array([0, 1]), np.arange(3))
    assert first.copy().tolist() == [0, 1, 2, 3, 4, 5]
    assert second.copy().tolist() == [0, 7, 2, 3, 4, 5]
    assert second.write(slice(0, 2), 9).copy().tolist() == [9, 9, 2, 3, 4, 5]


def test_equal_tables_have_equal_hashes() -> None:
    """The same numbers in another dtype are another table, because the hash reads bytes."""
    narrow, wide = Table.of(np.arange(3, dtype=np.int32)), Table.of(np.arange(3, dtype=np.int64))
    assert narrow != wide
    assert narrow == Table.of(np.arange(3, dtype=np.int32))
    assert hash(narrow) == hash(Table.of(np.arange(3, dtype=np.int32)))


def test_arrays_of_an_outcome_cannot_reach_old_versions() -> None:
    """Overwriting everything that a step hands out leaves the value before and the value after as they were."""
    door = Door(build_layout([BandSpec("full", 256, slots_per_page=4)], 8192), sequences=4, context=64, chunk=8)
    handles = door.open(3)
    door.step(handles, np.array([8, 3, 5]))
    before = door.value
    leases_before = [door.pages(int(lease))[0].tolist() for lease in handles]
    outcome = door.step(handles, np.array([8, 3, 5])).outcome
    leases_after = [door.pages(int(lease))[0].tolist() for lease in handles]
    plan = outcome.plan
    handed = [outcome.slots, outcome.before, outcome.after, *outcome.pages, plan.copies, plan.fills, plan.rows]
    for array in (*handed, *(part for write in outcome.writes for part in write), outcome.event.pages):
        if array.flags.writeable and array.size:
            array[...] = 1
    door._value = before
    assert [door.pages(int(lease))[0].tolist() for lease in handles] == leases_before
    again = door.step(handles, np.array([8, 3, 5])).outcome
    assert [door.pages(int(lease))[0].tolist() for lease in handles] == leases_after
    assert again.state == outcome.state
