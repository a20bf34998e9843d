"""The door and steps exactly at a bound (see docs/MUTATION.md)."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.door import Door
from core_pure.errors import LeaseError
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, build_layout
from tests.test_door import Projecting


def test_a_trim_says_what_it_did() -> None:
    """The outcome of a trim is that of the door: its state and its leases are the door's, and its rows unbind what went."""
    door = Projecting(4096 * 6)
    lease = door.open(1)
    assert not isinstance(door.step(lease, np.array([16])), Refusal)
    gone = door.pages(int(lease[0]))[2][1:]
    outcome = door.trim(lease, np.array([4]))
    assert outcome.state is door.state and outcome.leases is door.leases
    assert set(gone.tolist()) <= set(outcome.plan.rows[:, 0].tolist()) and (outcome.plan.rows[:, 1] == -1).all()


def test_a_step_of_at_least_one_token() -> None:
    """A door whose steps may take one token is opened, one of none is refused."""
    layout = build_layout([BandSpec("a", 256)], 1 << 16)
    assert Door(layout, sequences=1, context=8, chunk=1).chunk == 1
    for chunk in (0, -1, 1.0, True):
        with pytest.raises(LeaseError, match="at least 1"):
            Door(layout, sequences=1, context=8, chunk=chunk)  # type: ignore[arg-type]


def test_nothing_is_evicted_where_nothing_need_be_or_can_be() -> None:
    """What fits, and what no evictor could help, evict no unit."""
    door = Projecting(4096 * 6)
    assert door.evict_to_free((1, 1, 1), None) == 0 and door.evict_to_free((999, 0, 0), None) == 0
    assert door.check_decode((1, 1, 1)) and not door.check_decode((999, 0, 0))
