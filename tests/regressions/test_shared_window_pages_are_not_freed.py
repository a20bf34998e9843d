"""The demand of a step counted shared window pages as freed by the slide, so that a yes was followed by a refusal."""

from __future__ import annotations

import numpy as np

from core_pure.capacity import StepResult
from core_pure.door import Door
from core_pure.layout import BandSpec, build_layout


def test_a_shared_page_that_slides_out_counts_as_held() -> None:
    """What ``demand_of`` says is what the step adds, as long as another lease holds the pages that slide out."""
    layout = build_layout([BandSpec("window-8", 512, slots_per_page=4, retention="window", window=8)], 6 * 512 + 4096)
    door = Door(layout, sequences=4, context=64, chunk=8)
    first, second = door.open(2)
    door.step(np.array([first]), np.array([8]))
    door.share(int(first), int(second), 8)
    handles = np.array([second])
    for _ in range(3):
        live = door.state.bands[0].live
        demand = door.demand_of(handles, np.array([4]))
        assert door.check_decode(demand)
        assert isinstance(door.step(handles, np.array([4])), StepResult)
        assert (door.state.bands[0].live - live,) == demand
    # The next page slid out was never shared: now the slide pays for the step.
    assert door.demand_of(handles, np.array([4])) == (0,)


def test_a_page_may_have_thirty_three_thousand_holders() -> None:
    """Holder counts do not wrap: the page goes when the last of 33,000 lets go, and not before."""
    layout = build_layout([BandSpec("full", 256, slots_per_page=4)], 4096)
    door = Door(layout, sequences=33_001, context=4, chunk=4)
    handles = door.open(33_001)
    door.step(handles[:1], np.array([4]))
    for heir in handles[1:]:
        door.share(int(handles[0]), int(heir), 4)
    none = handles[:0]
    door.step(none, none, handles[:-1])
    assert door.state.bands[0].live == 1
    door.step(none, none, handles[-1:])
    assert door.state.bands[0].live == 0
