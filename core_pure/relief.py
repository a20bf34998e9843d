"""Which frames stay when memory must be made: the windows that move the fewest bytes, and the moves into them.

The cost of a vector of windows is separable per cut between neighbours: frame size times the live frames outside the
band's window. So one pass over the chain, low to high, keeps the Pareto front of (byte edge reached, bytes moved) and its
cheapest end is the optimum over all windows (held to brute force in tests/test_relief.py). Ties are broken
by lower edges, from the top band down.

What the pass decides is which live frames *stay*. The final windows are then placed around them by ``chain.windows``, the
same function that places a band when nothing moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from .band import FREE, Band, Frames, nearest_holes
from .chain import Claim, windows
from .errors import PromiseBroken
from .fits import RELIEF, claims
from .layout import Demand
from .state import ArenaState

Window = tuple[int, int]


@frozen
class _Step:
    """One band's part of the front: for each state, where its window is and which state of the band below it extends."""

    parent: NDArray[np.intp]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


def _indifferent_below(bands: list[tuple[Claim, Frames]], total: int) -> list[int]:
    """Per cut, the edge up to which all lower edges leave the bands above it the same best cost."""
    edges = [total]
    for claim, live in reversed(bands):
        top = edges[-1] // claim.frame_bytes - claim.need
        first_live = int(live[0]) if len(live) else top
        edges.append(claim.frame_bytes * min(first_live, claim.first, top))
    edges.reverse()
    return edges


def _pareto(
    edges: NDArray[np.int64], cost: NDArray[np.int64], parent: NDArray[np.intp], low: NDArray[np.int64],
    high: NDArray[np.int64], same_below: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], _Step]:  # fmt: skip
    """Keep states no other one beats in both edge and cost; of edges up to ``same_below`` only the cheapest."""
    order = np.lexsort((parent, cost, edges))
    ranked = cost[order]
    best = np.minimum.accumulate(ranked)
    keep = np.ones(len(order), bool)
    keep[1:] = ranked[1:] < best[:-1]
    order = order[keep]
    alike = int(np.searchsorted(edges[order], same_below, side="right"))
    order = order[max(0, alike - 1) :]
    return edges[order], cost[order], _Step(parent[order], low[order], high[order])


def _extend(
    claim: Claim, live: Frames, edges: NDArray[np.int64], cost: NDArray[np.int64], total: int, same_below: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], _Step] | None:
    """One band of the pass: from the front below it to the front above it; None when no window is left."""
    size = claim.frame_bytes
    low = -(-edges // size)
    high = np.maximum(low + claim.need, claim.end)
    open_ = np.flatnonzero((low <= claim.first) & (high <= total // size))
    if not len(open_):
        return None
    low, high = low[open_], high[open_]
    base = cost[open_] + size * np.searchsorted(live, low)
    out_edges, out_low, out_high, out_parent = high * size, low, high, open_
    out_cost = base + size * (len(live) - np.searchsorted(live, high))
    # keep one more of my own frames: the window ends just above live frame x
    start = int(np.searchsorted(live, high[0]))
    start = max(start, int(np.searchsorted(live, same_below // size)) - 1)  # of cuts that are all alike, the last
    stop = int(np.searchsorted(live, total // size))  # a resize may leave live frames above the new top
    if start < stop:
        ends = live[start:stop] + 1
        reach = np.searchsorted(high, ends, side="right") - 1  # starts whose window can end there
        lowest = np.minimum.accumulate(base)
        fresh = np.empty(len(base), bool)
        fresh[0], fresh[1:] = True, base[1:] < lowest[:-1]
        chosen = np.maximum.accumulate(np.where(fresh, np.arange(len(base)), 0))[reach]
        out_edges = np.concatenate((out_edges, ends * size))
        out_cost = np.concatenate((out_cost, lowest[reach] + size * (len(live) - start - 1 - np.arange(len(ends)))))
        out_low = np.concatenate((out_low, low[chosen]))
        out_high = np.concatenate((out_high, ends))
        out_parent = np.concatenate((out_parent, open_[chosen]))
    return _pareto(out_edges, out_cost, out_parent, out_low, out_high, same_below)


def cheapest_windows(bands: list[tuple[Claim, Frames]], sink: int, total: int) -> tuple[int, list[Window]] | None:
    """The least bytes to move, and windows that reach it; None when the claims do not fit.

    Args: per band its claim (hull = immovable frames only) and its live frames, ascending. (0, 0) marks an absent band.
    Cost: O(n log n) over the live frames that lie near a cut.
    """
    alike = _indifferent_below(bands, total)
    edges, cost = np.array([sink], np.int64), np.array([0], np.int64)
    steps: list[_Step | None] = []
    for at, (claim, live) in enumerate(bands):
        if claim.need == 0:
            steps.append(None)
            continue
        front = _extend(claim, live, edges, cost, total, alike[at + 1])
        if front is None:
            return None
        edges, cost, step = front
        steps.append(step)
    at = int(np.argmin(cost))
    moved, chosen = int(cost[at]), []
    for taken in reversed(steps):
        if taken is None:
            chosen.append((0, 0))
            continue
        chosen.append((int(taken.low[at]), int(taken.high[at])))
        at = int(taken.parent[at])
    chosen.reverse()
    return moved, chosen


def stay_claims(bands: list[tuple[Claim, Frames]], chosen: list[Window]) -> tuple[Claim, ...]:
    """The claims whose hull is everything that stays: immovable frames, and live frames inside the cheapest windows."""
    kept = []
    for (claim, live), (low, high) in zip(bands, chosen, strict=True):
        staying = live[np.searchsorted(live, low) : np.searchsorted(live, high)]
        if len(staying):
            claim = claim._replace(first=min(claim.first, int(staying[0])), end=max(claim.end, int(staying[-1]) + 1))
        kept.append(claim)
    return tuple(kept)


def relief_windows(state: ArenaState, demand: Demand) -> list[Window]:
    """The final window of every band for a demand that fits in mode RELIEF. Raises: PromiseBroken when it does not."""
    layout = state.layout
    bands = list(zip(claims(state, demand, RELIEF), (band.live_frames() for band in state.bands), strict=True))
    best = cheapest_windows(bands, layout.sink_bytes, layout.total_bytes)
    placed = None if best is None else windows(stay_claims(bands, best[1]), layout.sink_bytes, layout.total_bytes)
    if placed is None:
        raise PromiseBroken(f"fits(mode=relief) admitted {demand}, but no windows were found")
    return placed


def displaced(band: Band, window: Window) -> Frames:
    """Live frames outside the window: those below it ascending, then those above it descending."""
    low, high = window
    below = band.page_of.find_above(0, band.low, min(low, band.high))
    above = band.page_of.find_above(0, max(high, band.low), band.high)
    return np.concatenate((below, above[::-1])) if len(below) else above[::-1]


class Seats(NamedTuple):
    """Free frames to take: the first ``own`` are holes of the span; [low, high) is the span once all are taken."""

    frames: Frames
    own: int
    low: int
    high: int


def seats(band: Band, window: Window, count: int) -> Seats:
    """``count`` free frames of the window: own holes of the span first, then beyond it, nearest first.

    Fewer than ``count`` when the window has no more.
    """
    low, high = window
    if low <= band.low and band.high <= high:
        own = nearest_holes(band, min(count, band.holes), from_top=band.home.lean > 0)
    else:
        own = band.page_of.find(FREE, max(low, band.low), min(high, band.high), from_top=band.home.lean > 0)[:count]
    left = count - len(own)
    if left == 0:
        return Seats(own, count, band.low, band.high)
    if band.is_empty:
        left = min(left, high - low)
        if band.home.lean > 0:
            return Seats(np.arange(high - 1, high - 1 - left, -1), 0, high - left, high)
        return Seats(np.arange(low, low + left), 0, low, low + left)
    above, below = max(low, band.high), min(high, band.low)
    up = max(0, min(left, high - above))
    down = max(0, min(left - up, below - low))
    parts = [own] if len(own) else []
    if up:
        parts.append(np.arange(above, above + up))
    if down:
        parts.append(np.arange(below - 1, below - 1 - down, -1))
    frames = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else own
    return Seats(frames, len(own), below - down if down else band.low, above + up if up else band.high)
