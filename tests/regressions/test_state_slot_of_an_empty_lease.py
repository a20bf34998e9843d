"""A lease without tokens, in a row used before, was given the state slot of the sequence that the old page now belongs to."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.errors import LeaseError
from core_pure.layout import BandSpec, build_layout
from core_pure.leases import empty_leases, open_leases
from core_pure.state import initial
from core_pure.step import step, write_slots


def test_a_lease_without_tokens_writes_to_the_sink() -> None:
    """Its state slot is 0 until it has a token, whoever had its row before, and so it is after a trim to nothing."""
    layout = build_layout([BandSpec("state", 512, retention="state"), BandSpec("full", 256, slots_per_page=4)], 8192)
    leases, (first,) = open_leases(empty_leases(layout, sequences=4, context=64), 1)
    outcome = step(initial(layout), leases, [first], [4])
    outcome = step(outcome.state, outcome.leases, [], [], [first])
    leases, (idle, other) = open_leases(outcome.leases, 2)
    outcome = step(outcome.state, leases, [other, idle], [4, 0])
    assert write_slots(outcome, 0).tolist() == [int(outcome.state.bands[0].live_frames()[0]), 0]
    outcome = step(outcome.state, outcome.leases, [other, idle], [1, 1])
    assert sorted(write_slots(outcome, 0).tolist()) == outcome.state.bands[0].live_frames().tolist()


def test_handles_in_two_rows_are_named() -> None:
    """A two-dimensional array of handles is a LeaseError, not an error of numpy."""
    layout = build_layout([BandSpec("full", 256, slots_per_page=4)], 8192)
    leases, handles = open_leases(empty_leases(layout, sequences=4, context=64), 2)
    with pytest.raises(LeaseError, match="one row"):
        step(initial(layout), leases, handles.reshape(1, 2), np.ones((1, 2), np.int64))
