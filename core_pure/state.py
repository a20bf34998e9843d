"""The arena's value: every band's value and a few counters. The host value is the truth; device tables only project it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from .band import Band, Home, empty_band
from .chain import leans
from .errors import DemandError, ForeignPage, SinkPage
from .geometry import ceil_div
from .layout import IDS_LIMIT, Demand, Layout
from .plan import Plan

Pages = NDArray[np.int32]
"""Page ids, of one or several bands."""


@frozen
class ArenaState:
    """Bands in byte order. ``launched`` and ``retired`` (fences) and ``digest`` tell history, not contents: not compared."""

    layout: Layout
    bands: tuple[Band, ...]
    launched: int = field(default=0, eq=False)
    retired: int = field(default=0, eq=False)
    digest: bytes = field(default=b"", eq=False, repr=False)

    def with_bands(self, bands: Sequence[Band]) -> ArenaState:
        """The same counters over other bands."""
        return ArenaState(self.layout, tuple(bands), self.launched, self.retired, self.digest)

    def frames_of(self, pages: NDArray[np.integer]) -> NDArray[np.int32]:
        """Page ids to frames, each in its own band; 0 (the sink) for -1, 0, unbound and out-of-range ids (case F16)."""
        ids = np.asarray(pages).astype(np.intp)
        frames = np.zeros(ids.shape, np.int32)
        for band in self.bands:
            index = ids - band.home.id_base
            mine = (index >= 1) & (index <= band.home.ids_max)
            frames[mine] = np.maximum(band.frame_of.read(index[mine]), 0)
        return frames

    def table(self) -> NDArray[np.int32]:
        """The page → frame table a device holds: int32[layout.ids_total], 0 where unbound."""
        return self.frames_of(np.arange(self.layout.ids_total))


def _same_ids(pages: tuple[Pages, ...]) -> tuple[bytes, ...]:
    return tuple(ids.tobytes() for ids in pages)


@frozen
class Outcome:
    """What a transition gives: the state after, the effects that lead there, and new page ids per band (byte order)."""

    state: ArenaState
    plan: Plan
    pages: tuple[Pages, ...] = field(default=(), eq=_same_ids)


def initial(layout: Layout) -> ArenaState:
    """The empty arena."""
    bands = [
        empty_band(Home(spec, at, base, ids, layout.capacity_bytes // spec.frame_bytes, lean))
        for at, (spec, base, ids, lean) in enumerate(
            zip(layout.bands, layout.id_bases, layout.frames_max, leans(len(layout.bands)), strict=True)
        )
    ]
    return ArenaState(layout, tuple(bands))


def demand_of(state: ArenaState, wanted: Mapping[str, int] | Sequence[int]) -> Demand:
    """A checked demand; a tuple of plain ints of the right length passes at once."""
    if type(wanted) is tuple and len(wanted) == len(state.bands):
        for pages in wanted:
            if type(pages) is not int or not 0 <= pages <= IDS_LIMIT:
                break
        else:
            return wanted
    return state.layout.demand(wanted)


def as_ids(pages: object) -> NDArray[np.intp]:
    """Page ids as intp[n]. Raises: DemandError on anything that is no one-dimensional array of whole numbers."""
    try:
        ids = pages if isinstance(pages, np.ndarray) else np.asarray(pages)
    except Exception as error:  # ragged rows, or an array of another device
        raise DemandError(f"page ids must be one row of whole numbers in host memory, not {type(pages).__name__}") from error
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise DemandError(f"page ids must be one row of whole numbers; got shape {ids.shape} of {ids.dtype}")
    return ids.astype(np.intp)


def by_band(state: ArenaState, pages: object) -> dict[int, NDArray[np.intp]]:
    """Split page ids into page indices per band. Raises: SinkPage, ForeignPage, DemandError."""
    ids = as_ids(pages)
    if not len(ids):
        return {}
    first, split, found = int(ids[0]), {}, 0
    for band in state.bands:
        base, most = band.home.id_base, band.home.ids_max
        if base < first <= base + most:  # most calls name pages of one band: one look tells
            index = ids - base
            if int(np.maximum.reduce((index - 1).view(np.uint64))) < most:
                return {band.home.index: index}
    for band in state.bands:
        base, most = band.home.id_base, band.home.ids_max
        mine = ids[(ids > base) & (ids <= base + most)]
        found += len(mine)
        if len(mine):
            split[band.home.index] = mine - base
    if found < len(ids):
        _reject(state, ids)
    return split


def _reject(state: ArenaState, ids: NDArray[np.intp]) -> None:
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest <= 0:
        raise SinkPage(f"page {lowest} is the sink or below it; it is never handed out and never freed")
    raise ForeignPage(f"page {highest} belongs to no band; ids end at {state.layout.ids_total - 1}")


def room_beside(state: ArenaState, at: int) -> tuple[int, int]:
    """The frames [low, high) of band ``at`` that lie between its neighbours as they stand, empty bands skipped."""
    size = state.bands[at].home.spec.frame_bytes
    below, above = state.layout.sink_bytes, state.layout.total_bytes
    for band in state.bands[at + 1 :]:
        if band.high:
            above = band.low * band.home.spec.frame_bytes
            break
    for band in state.bands[:at]:
        if band.high:
            below = band.high * band.home.spec.frame_bytes
    return ceil_div(below, size), above // size


def first_frame(state: ArenaState, band: Band) -> int:
    """The lowest frame above the sink."""
    return ceil_div(state.layout.sink_bytes, band.spec.frame_bytes)


def with_fences(state: ArenaState, *, launched: int | None = None, retired: int | None = None) -> ArenaState:
    """The state with its fence counters moved on."""
    return evolve(
        state,
        launched=state.launched if launched is None else launched,
        retired=state.retired if retired is None else retired,
    )
