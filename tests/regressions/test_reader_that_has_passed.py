"""A release for a reader that had passed put frames into a quarantine that no later ``retire`` was bound to end."""

from __future__ import annotations

import pytest

from core_pure.advance import allocate, release
from core_pure.compact import compact
from core_pure.errors import FenceError
from core_pure.event import content_digest
from core_pure.fences import launch, retire
from core_pure.layout import BandSpec, Layout
from core_pure.state import initial


@pytest.mark.parametrize("reader", [-1, 0, 1, 3, True, 1.0, "2"])
def test_a_reader_is_a_launched_step_that_has_not_passed(reader: object) -> None:
    """Fence 2 is in flight, 1 has passed: every other reader is refused by name, and the value is as before."""
    state = allocate(initial(Layout((BandSpec("a", 4),), 40, 40)), (4,)).state
    state = retire(launch(launch(state).state).state, 1).state
    before = content_digest(state)
    for attempt in (
        lambda: release(state, [1], reader=reader),
        lambda: allocate(state, (1,), reader=reader),
        lambda: compact(state, reader=reader),
    ):
        with pytest.raises(FenceError, match="reader"):
            attempt()
        assert content_digest(state) == before
    assert release(state, [1], reader=2).state.bands[0].quarantined == 1
