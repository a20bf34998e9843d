"""Lazy compaction: at idle, within a byte budget, move live frames so that gaps grow where neighbours can use them.

An end packs toward its own edge of the arena. A float closes its holes from the side of its smaller gap. A float that is
small against the gaps beside it is re-centred in one go instead, because nudging it page by page, ask after ask, moves
many times its own bytes. Every move is safe to stop after, so a budget may cut anywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .advance import check_reader, pairs
from .band import Band, Frames, reseat
from .chain import NOWHERE, window
from .errors import DemandError
from .fits import NOW, is_feasible
from .layout import is_whole
from .plan import NO_MOVES, NO_ROWS, Plan, stack
from .relief import displaced, seats
from .state import ArenaState, Outcome, by_band, room_beside
from .waves import Moves, schedule

RECENTRE_SHARE = 8
"""A float is small when its live bytes are under 1/8 of the gaps beside it."""
RECENTRE_SKEW = 4
"""A small float is re-centred when one of its gaps is under 1/4 of the other; else it stays where it is."""


def compact(
    state: ArenaState, *, bytes_limit: int | None = None, reader: int | None = None, written: object = None
) -> Outcome:
    """Pack ends, close holes, re-centre small floats, within ``bytes_limit`` bytes (None: no limit).

    Args: reader: the newest launched step, when it may run at the same time. Then, with ``written`` (page ids that it
    writes), these pages stay, the others are copied at once and their old frames wait in quarantine; without ``written``
    the plan waits for the reader.
    Returns: an Outcome without pages. Raises: DemandError, FenceError, PageError. Keeps: page ids; every live byte.
    Cost: O(span) of the bands that move.
    """
    check_reader(state, reader)
    if bytes_limit is not None and (not is_whole(bytes_limit) or not 0 <= bytes_limit < 1 << 63):
        raise DemandError(f"bytes_limit {bytes_limit!r}: expected 0 or more as int64, or None for no limit")
    fixed = {} if written is None else by_band(state, written)
    hold = reader if written is not None else None
    left = bytes_limit
    moves, rows = [], []
    packed = state
    for at, band in enumerate(state.bands):
        if not band.live:
            continue
        # Room is what is free before and after the moves of the bands below, so that all moves are one wave.
        low, high = max(room_beside(state, at)[0], room_beside(packed, at)[0]), room_beside(state, at)[1]
        each = _moves_into(band, _target(band, low, high), left, fixed.get(at))
        if len(each.sources):
            after, moved = reseat(band, each.sources, each.targets, hold)
            candidate = packed.with_bands((*packed.bands[:at], after, *packed.bands[at + 1 :]))
            if state.layout.has_minima and not is_feasible(candidate, (0,) * len(state.bands), NOW):
                continue  # it would stand in bytes that another band has reserved
            packed = candidate
            moves.append(each)
            rows.append(pairs(moved + band.home.id_base, each.targets))
            left = None if left is None else left - len(each.sources) * band.spec.frame_bytes
    if not moves:
        return Outcome(state, Plan())
    wait = reader if written is None else None
    return Outcome(packed, Plan(schedule(moves), NO_MOVES, NO_MOVES, stack(rows, NO_ROWS), wait))


def _target(band: Band, low: int, high: int) -> tuple[int, int]:
    """The window that the band should shrink or move into, inside its room [low, high)."""
    held = band.held
    need, lean = band.live + held.count, band.home.lean
    if lean:  # only the inward edge matters: what is beyond it, no other band can use; quarantine leaves by itself
        pinned = band.pinned_frames()
        if lean < 0:
            return low, max(low + need, int(pinned[-1]) + 1 if len(pinned) else 0)
        return min(high - need, int(pinned[0]) if len(pinned) else high), high
    below, above = band.low - low, high - band.high
    small = band.live * RECENTRE_SHARE < below + above
    if small and held.end <= held.first and min(below, above) * RECENTRE_SKEW < max(below, above):
        return window(low, high, need, NOWHERE, 0, 0)
    return window(band.low, band.high, need, held.first, held.end, -1 if above <= below else 1)


def _moves_into(band: Band, target: tuple[int, int], bytes_left: int | None, fixed: NDArray[np.intp] | None) -> Moves:
    """Live frames outside the target window, farthest first, to free frames inside it; as many as the budget allows."""
    low, high = target
    sources = displaced(band, target)
    if fixed is not None and len(fixed):
        sources = sources[~np.isin(sources, band.frame_of.read(fixed))]
    limit = len(sources)
    if bytes_left is not None:
        limit = min(limit, bytes_left // band.spec.frame_bytes)
    if band.live and len(sources) and not (low < band.high and band.low < high):
        limit = limit if limit == len(sources) else 0  # a float that leaves its span goes whole or not at all
    sources = _farthest(sources, target, limit)
    return Moves(band, sources, seats(band, target, len(sources)).frames)


def _farthest(sources: Frames, target: tuple[int, int], count: int) -> Frames:
    """The ``count`` frames that lie farthest outside the window."""
    if count >= len(sources):
        return sources
    low, high = target
    distance = np.where(sources < low, low - sources, sources - high + 1)
    return sources[np.argsort(-distance, kind="stable")[:count]]
