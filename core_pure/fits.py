"""The one feasibility function: boot, admission, eviction, decode check and allocation all ask it.

It reads only counts and hulls, O(bands) plain ints, and it is exact: it says yes exactly when some placement of windows
in byte order exists that keeps every immovable frame where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from .band import Band, hull_of
from .chain import NOWHERE, Claim, refused_at, room
from .errors import DemandError, FenceError
from .layout import Demand, is_whole
from .state import ArenaState, demand_of

NOW, RELIEF = "now", "relief"
"""Modes: nothing moves; or anything may move that is neither pinned nor quarantined."""


@frozen
class After:
    """Mode: wait until ``fence`` has passed (its quarantine counts as holes), then relief."""

    fence: int


Mode = str | After


def after(fence: int) -> After:
    """Mode *after waiting for fence k*."""
    return After(fence)


@frozen
class Fit:
    """The demand fits, in the mode that was asked for."""

    mode: Mode


@frozen
class BandRefusal:
    """One band's share of a refusal. Units: pages; bytes_held in bytes.

    The obtainable figures assume that the other bands ask for nothing more; ``joint`` is this band's part of the largest
    demand, evenly capped, that all bands could have at once.
    """

    band: str
    wanted: int
    now: int
    after_relief: int
    after_fence: int
    after_eviction: int
    joint: int
    bytes_held: int


@frozen
class Refusal:
    """Why a demand does not fit. Nothing changed.

    band: where the walk ran out of room. reason: "bytes", "maximum" (pages_max of that band) or "fence" (it would fit once
    ``fence`` has passed). fence: the fence to wait for, or None when waiting does not help.
    """

    band: str
    reason: str
    mode: Mode
    bands: tuple[BandRefusal, ...]
    fence: int | None = None

    def __str__(self) -> str:
        rows = ", ".join(
            f"{b.band}: wanted {b.wanted}, obtainable {b.now} now / {b.after_relief} after relief / {b.after_fence} after "
            f"waiting / {b.after_eviction} after eviction, jointly {b.joint}, holds {b.bytes_held} bytes"
            for b in self.bands
        )
        wait = f"; would fit after fence {self.fence}" if self.fence is not None else ""
        return f"{self.band} refuses ({self.reason}): {rows}{wait}"


_FIT_NOW, _FIT_RELIEF = Fit(NOW), Fit(RELIEF)


def frames_kept(band: Band, mode: Mode, evicted: int = 0) -> int:
    """Frames that the band needs when it asks for nothing, whatever its minimum says."""
    if isinstance(mode, After):
        return band.live - evicted + sum(len(batch.frames) for batch in band.held.batches if batch.fence > mode.fence)
    return band.live - evicted + band.held.count


def claim(band: Band, pages: int, mode: Mode, evicted: int = 0) -> Claim:
    """The band's claim on the chain when it asks for ``pages`` more. The only place where modes differ."""
    held = band.held
    spec = band.home.spec
    need = frames_kept(band, mode, evicted) + pages
    first, end = held.first, held.end
    if mode == NOW:
        first, end = (band.low, band.high) if band.high else (NOWHERE, 0)
    elif isinstance(mode, After) and held.batches:
        first, end = hull_of(band, tuple(batch for batch in held.batches if batch.fence > mode.fence), held.pins)
    return Claim(spec.frame_bytes, need if need > spec.pages_min else spec.pages_min, first, end, band.home.lean)


def claims(state: ArenaState, demand: Demand, mode: Mode, evicted: Demand | None = None) -> tuple[Claim, ...]:
    """The claims of all bands, in byte order."""
    if evicted is None:
        return tuple([claim(band, pages, mode) for band, pages in zip(state.bands, demand, strict=True)])
    return tuple([claim(b, n, mode, e) for b, n, e in zip(state.bands, demand, evicted, strict=True)])


def over_maximum(state: ArenaState, demand: Demand, evicted: Demand | None = None) -> int:
    """The first band that the demand would push over its pages_max; -1 when none."""
    if not state.layout.has_maxima:
        return -1
    for at, (band, pages) in enumerate(zip(state.bands, demand, strict=True)):
        most = band.home.spec.pages_max
        if most is not None and pages and band.live + pages - (evicted[at] if evicted else 0) > most:
            return at
    return -1


def is_feasible(state: ArenaState, demand: Demand, mode: Mode, evicted: Demand | None = None) -> bool:
    """The bare answer, for loops that need no reasons."""
    layout = state.layout
    if over_maximum(state, demand, evicted) >= 0:
        return False
    return refused_at(claims(state, demand, mode, evicted), layout.sink_bytes, layout.total_bytes) < 0


def fits(
    state: ArenaState,
    demand: Mapping[str, int] | Sequence[int],
    *,
    mode: Mode = RELIEF,
    evictable: Mapping[str, int] | Sequence[int] | None = None,
) -> Fit | Refusal:
    """Whether the demand can be had, and if not, why.

    Args: demand: pages per band. mode: NOW, RELIEF or after(fence). evictable: pages per band that an engine could give up;
    they count as given up (pinned pages are never evictable).
    Returns: Fit, or a Refusal with numbers. Raises: DemandError, FenceError. Cost: O(bands) for a yes.
    """
    demand = demand_of(state, demand)
    evicted = None if evictable is None else _checked_evictable(state, evictable)
    if isinstance(mode, After):
        if not is_whole(mode.fence) or not 0 <= mode.fence <= state.launched:
            raise FenceError(f"fence {mode.fence!r} was never launched; the newest is {state.launched}")
    elif mode not in (NOW, RELIEF):
        raise DemandError(f"mode {mode!r}: expected {NOW!r}, {RELIEF!r} or after(fence)")
    if is_feasible(state, demand, mode, evicted):
        return _FIT_RELIEF if mode == RELIEF else _FIT_NOW if mode == NOW else Fit(mode)
    return refusal(state, demand, mode, evicted)


def _checked_evictable(state: ArenaState, evictable: Mapping[str, int] | Sequence[int]) -> Demand:
    counts = demand_of(state, evictable)
    for band, pages in zip(state.bands, counts, strict=True):
        movable = band.live - len(band.held.pins)
        if pages > movable:
            raise DemandError(f"{band.name}: {pages} pages evictable, but only {movable} are live and not pinned")
    return counts


def obtainable(state: ArenaState, at: int, mode: Mode, evicted: Demand | None = None) -> int:
    """The most pages band ``at`` alone could take in this mode. Units: pages. Exact: one more is refused."""
    nothing = (0,) * len(state.bands)
    band, layout = state.bands[at], state.layout
    frames = room(claims(state, nothing, mode, evicted), layout.sink_bytes, layout.total_bytes, at)
    given = evicted[at] if evicted else 0
    pages = max(0, frames - frames_kept(band, mode, given))
    most = band.spec.pages_max
    return pages if most is None else min(pages, max(0, most - band.live + given))


def joint_maximum(state: ArenaState, demand: Demand, mode: Mode, evicted: Demand | None = None) -> Demand:
    """The largest even cap j for which min(wanted, j) pages of every band fit together, as that demand (case F02)."""
    low, high = 0, max(demand, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if is_feasible(state, tuple(min(pages, middle) for pages in demand), mode, evicted):
            low = middle
        else:
            high = middle - 1
    return tuple(min(pages, low) for pages in demand)


def refusal(state: ArenaState, demand: Demand, mode: Mode, evicted: Demand | None = None) -> Refusal:
    """The reasons for a no. Cost: O(bands² + bands · log(demand)); never on the path of a yes."""
    layout = state.layout
    capped = over_maximum(state, demand, evicted)
    asked = claims(state, demand, mode, evicted)
    at = capped if capped >= 0 else refused_at(asked, layout.sink_bytes, layout.total_bytes)
    everything = tuple(band.live - len(band.held.pins) for band in state.bands)
    newest = After(state.launched)
    joint = joint_maximum(state, demand, mode, evicted)
    waiting = sorted({batch.fence for band in state.bands for batch in band.held.batches})
    fence = next((k for k in waiting if is_feasible(state, demand, After(k), evicted)), None)
    rows = tuple(
        BandRefusal(
            band=band.name,
            wanted=demand[i],
            now=obtainable(state, i, NOW),
            after_relief=obtainable(state, i, RELIEF, evicted),
            after_fence=obtainable(state, i, newest, evicted),
            after_eviction=obtainable(state, i, RELIEF, everything),
            joint=joint[i],
            bytes_held=(band.high - band.low) * band.spec.frame_bytes,
        )
        for i, band in enumerate(state.bands)
    )
    reason = "maximum" if capped >= 0 else "fence" if fence is not None else "bytes"
    return Refusal(state.bands[at].name, reason, mode, rows, fence)
