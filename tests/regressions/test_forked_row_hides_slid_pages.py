"""A fork into a row that another sequence had before left that sequence's page ids at the positions that had slid out."""

import numpy as np

from core_pure.layout import BandSpec, Layout
from core_pure.leases import empty_leases, open_leases
from core_pure.state import initial
from core_pure.step import StepOutcome, fork, step


def test_row_of_a_fork_names_no_page_before_its_window() -> None:
    """Cells before the first page held are the sink, so that a kernel that masks them reads nobody's page."""
    layout = Layout((BandSpec("window", 8, slots_per_page=2, retention="window", window=3),), 200, 200)
    leases, (old, parent) = open_leases(empty_leases(layout, sequences=2, context=16), 2)
    done = step(initial(layout), leases, np.array([old]), np.array([8]))
    assert isinstance(done, StepOutcome)
    done = step(done.state, done.leases, np.array([parent]), np.array([8]), np.array([old]))
    assert isinstance(done, StepOutcome)
    done = step(done.state, done.leases, np.array([parent]), np.array([1]))
    assert isinstance(done, StepOutcome)
    forked = fork(done.state, done.leases, int(parent))
    assert isinstance(forked, tuple)
    row = forked[0].leases.rows[0].read(slice(0, forked[0].leases.widths[0])).tolist()
    assert row[:3] == [0, 0, 0] and row[3] > 0
