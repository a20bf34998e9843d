"""Compaction of an end with a pinned page packed the band against the pin, away from its edge, and moved for nothing."""

from __future__ import annotations

from core_pure.advance import allocate, release
from core_pure.compact import compact
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin
from core_pure.state import ArenaState, initial

LAYOUT = Layout((BandSpec("low", 7), BandSpec("high", 5)), 700, 700)


def pinned(band: int, page: int, gone: list[int]) -> ArenaState:
    """60 pages in one band, one of them pinned, some of them gone."""
    demand = (60, 0) if band == 0 else (0, 60)
    outcome = allocate(initial(LAYOUT), demand)
    ids = outcome.pages[band]
    state = pin(outcome.state, ids[[page]]).state
    return release(state, ids[gone]).state


def test_nothing_moves_where_the_pin_sets_the_edge() -> None:
    """With the pinned page outermost, no move can give a neighbour a byte, so none is made."""
    for band in (0, 1):
        frames = pinned(band, 49, list(range(19, 49)) + list(range(50, 60)))
        assert compact(frames).plan.moves == 0


def test_pages_beyond_the_pin_come_inside() -> None:
    """Pages farther out than the pin move in, and only these; the inward edge ends at the pin."""
    for band in (0, 1):
        state = pinned(band, 29, list(range(5, 25)))
        moved = compact(state)
        assert moved.plan.moves == 20  # 30 stand beyond the pin; 20 holes lie inside, so the window is 40 frames
        after, before = moved.state.bands[band], state.bands[band]
        assert (after.live, after.holes) == (40, 0)
        assert before.high - before.low == 60
        assert compact(moved.state).plan.moves == 0
