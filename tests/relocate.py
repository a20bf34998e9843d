"""Forced relocation: live frames to random free frames of their band, far more often than relief would ever move them."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from core_pure.advance import pairs
from core_pure.band import reseat
from core_pure.door import Door
from core_pure.plan import NO_MOVES, NO_ROWS, Plan, stack, triples


def relocate(door: Door, rng: np.random.Generator, pages: int) -> int:
    """Move up to ``pages`` random live pages of every band, in one plan of one wave. Returns: pages moved.

    Bands are taken in byte order and keep their order: a target lies above everything that the bands below hold before or
    after, and below the first byte of the band above.
    """
    state = door.state
    bands, waves, rows = list(state.bands), [], []
    edge = state.layout.sink_bytes
    for at, band in enumerate(state.bands):
        if band.is_empty:
            continue
        size = band.spec.frame_bytes
        above = (other.low * other.spec.frame_bytes for other in state.bands[at + 1 :] if not other.is_empty)
        low, high = -(-edge // size), next(above, state.layout.total_bytes) // size
        inside = np.arange(band.low, band.high)
        free = np.concatenate(
            (np.arange(low, band.low), np.setdiff1d(inside, band.live_frames()), np.arange(band.high, high))
        )
        live = band.live_frames()
        count = min(pages, len(live), len(free))
        if count:
            sources = rng.choice(live, count, replace=False)
            targets = rng.choice(free, count, replace=False)
            bands[at], moved = reseat(band, sources, targets)
            waves.append(triples(at, sources, targets))
            rows.append(pairs(moved + band.home.id_base, targets))
        edge = max(band.high, bands[at].high) * size
    if not waves:
        return 0
    plan = Plan((stack(waves, NO_MOVES),), rows=stack(rows, NO_ROWS))
    door._commit(evolve(door.value, state=state.with_bands(bands)), plan, (), None)
    return plan.moves
