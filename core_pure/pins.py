"""Pins: counted claims that a page's frame must not move, because a transfer has its address."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from .band import Band, with_held
from .errors import PageNotBound, PinError
from .plan import NOTHING
from .state import ArenaState, Outcome, by_band


def pin(state: ArenaState, pages: object) -> Outcome:
    """Claim pages once more; naming a page twice claims it twice. Raises: PageNotBound, SinkPage, ForeignPage."""
    return _changed(state, pages, +1)


def unpin(state: ArenaState, pages: object) -> Outcome:
    """Give claims back. Raises: PinError where there is none, PageNotBound, SinkPage, ForeignPage."""
    return _changed(state, pages, -1)


def _changed(state: ArenaState, pages: object, step: int) -> Outcome:
    bands = list(state.bands)
    for at, ids in by_band(state, pages).items():
        bands[at] = _recounted(bands[at], ids, step)
    return Outcome(state.with_bands(bands), NOTHING)


def _recounted(band: Band, ids: NDArray[np.intp], step: int) -> Band:
    unbound = ids[band.frame_of.read(ids) < 0]
    if len(unbound):
        raise PageNotBound(f"{band.name}: page {band.home.id_base + int(unbound[0])} holds nothing, so it cannot be pinned")
    pins = dict(band.held.pins)
    for page, times in Counter(ids.tolist()).items():
        left = pins.get(page, 0) + step * times
        if left < 0:
            raise PinError(f"{band.name}: page {band.home.id_base + page} is unpinned {times} times but pinned {left + times}")
        if left:
            pins[page] = left
        else:
            pins.pop(page, None)
    return with_held(band, band.held.batches, pins)
