"""Launching and retiring steps. A fence is an integer; that it has passed is an input, never a question to a device."""

from __future__ import annotations

from .band import dissolve
from .errors import FenceError
from .layout import is_whole
from .plan import NOTHING
from .state import ArenaState, Outcome, with_fences


def launch(state: ArenaState) -> Outcome:
    """A step is launched; its fence is the new ``state.launched``."""
    return Outcome(with_fences(state, launched=state.launched + 1), NOTHING)


def retire(state: ArenaState, fence: int) -> Outcome:
    """All steps up to ``fence`` have passed: their quarantine becomes holes and edges retreat. An older fence changes nothing.

    Raises: FenceError for a fence that was never launched.
    """
    if not is_whole(fence) or not 0 <= fence <= state.launched:
        raise FenceError(f"fence {fence!r} was never launched; the newest is {state.launched}")
    if fence <= state.retired:
        return Outcome(state, NOTHING)
    bands = [dissolve(band, fence) for band in state.bands]
    return Outcome(with_fences(state.with_bands(bands), retired=fence), NOTHING)
