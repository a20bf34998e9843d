"""Feasibility and optimum of relief by trying every window vector, and by trying every move.

For tiny chains only. Nothing here is clever on purpose: it knows sets of frames and nothing of the core, and stands
against the formulas of the core as the definition of "fits" and of "fewest bytes moved".
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

from attrs import evolve, field, frozen

IMPOSSIBLE = 1 << 62
Positions = tuple[tuple[int, ...], ...]


@frozen
class BruteBand:
    """One band as sets of frames. Units: bytes, frames of this band over the whole arena, pages asked."""

    frame_bytes: int
    live: frozenset[int] = frozenset()
    quarantined: Mapping[int, frozenset[int]] = field(factory=dict)  # fence -> frames
    pinned: frozenset[int] = frozenset()  # of which live
    ask: int = 0
    pages_min: int = 0  # bytes for this many pages are kept for the band
    pages_max: int | None = None  # live + asked may not exceed it


@frozen
class BruteChain:
    """Bands in byte order inside [sink_bytes, total_bytes)."""

    bands: tuple[BruteBand, ...]
    total_bytes: int
    sink_bytes: int


@frozen
class Mode:
    """Which frames may move or vanish before the demand is placed."""

    kind: Literal["now", "relief", "after", "evict"]
    fence: int = -1
    evicted: tuple[int, ...] = ()


NOW = Mode("now")
RELIEF = Mode("relief")


def after(fence: int) -> Mode:
    """Relief once every fence up to this one has passed: their quarantine counts as hole."""
    return Mode("after", fence=fence)


def evict(evicted: tuple[int, ...]) -> Mode:
    """Relief once this many unpinned live pages of each band are gone."""
    return Mode("evict", evicted=evicted)


@frozen
class _Query:
    """One band's part of a question: what must stay inside its window, what costs a move outside, how many it needs."""

    frame_bytes: int
    live: int  # bit mask of frames
    immovable: int  # bit mask of frames
    need: int


def _mask(frames: frozenset[int]) -> int:
    return sum(1 << frame for frame in frames)


def _query(band: BruteBand, mode: Mode, evicted: int) -> _Query | None:
    """None where the band's own cap refuses."""
    waiting = [frames for fence, frames in band.quarantined.items() if mode.kind != "after" or fence > mode.fence]
    quarantined = frozenset().union(*waiting)
    if not 0 <= evicted <= len(band.live - band.pinned):
        raise ValueError(f"{evicted} pages cannot be evicted: {len(band.live - band.pinned)} are live and unpinned")
    fixed = band.live if mode.kind == "now" else band.pinned
    pages = len(band.live) - evicted + band.ask
    if band.ask and band.pages_max is not None and pages > band.pages_max:
        return None
    need = max(pages + len(quarantined), band.pages_min)
    return _Query(band.frame_bytes, _mask(band.live), _mask(quarantined | fixed), need)


@lru_cache(maxsize=1 << 18)
def _windows(query: _Query, total_bytes: int, sink_bytes: int) -> tuple[tuple[int, int, int], ...]:
    """Every window the band could end in, as (first byte, end byte, bytes moved into it)."""
    frame_bytes, found = query.frame_bytes, []
    frames = [f for f in range(total_bytes // frame_bytes) if f * frame_bytes >= sink_bytes]
    for low, last in itertools.combinations_with_replacement(frames, 2):
        high = last + 1
        inside = (1 << high) - (1 << low)
        if high - low >= query.need and not query.immovable & ~inside:
            found.append((low * frame_bytes, high * frame_bytes, (query.live & ~inside).bit_count() * frame_bytes))
    return tuple(found)


def _least(chain: BruteChain, mode: Mode) -> int | None:
    """Least bytes outside their windows over all vectors of disjoint windows in byte order, or None without one.

    Exhaustive: ``ends`` holds, for every byte where the bands so far can end, the least bytes over all their windows.
    """
    evicted = mode.evicted or (0,) * len(chain.bands)
    ends = {chain.sink_bytes: 0}
    for band, gone in zip(chain.bands, evicted, strict=True):
        query = _query(band, mode, gone)
        if query is None:
            return None
        if query.need == 0:
            continue
        reached: dict[int, int] = {}
        edges, passed, before = [*sorted(ends.items()), (IMPOSSIBLE, 0)], 0, IMPOSSIBLE
        for start, end, moved in _windows(query, chain.total_bytes, chain.sink_bytes):  # ascending by start
            while edges[passed][0] <= start:
                before = min(before, edges[passed][1])
                passed += 1
            if before + moved < reached.get(end, IMPOSSIBLE):
                reached[end] = before + moved
        ends = reached
    return min(ends.values()) if ends else None


def feasible(chain: BruteChain, mode: Mode = RELIEF) -> bool:
    """Is there a vector of windows that holds every frame and every asked page?"""
    return _least(chain, mode) is not None


def optimum_bytes(chain: BruteChain, mode: Mode = RELIEF) -> int | None:
    """Least bytes that any relief must move so that the demand fits; None where nothing does.

    Raises: ValueError for an eviction, where the bytes depend on which pages go.
    """
    if mode.kind == "evict":
        raise ValueError("an eviction does not say which pages go, so bytes moved after it are undefined")
    return _least(chain, mode)


def with_ask(chain: BruteChain, ask: tuple[int, ...]) -> BruteChain:
    """The same chain under another demand (pages per band)."""
    return evolve(chain, bands=tuple(evolve(b, ask=pages) for b, pages in zip(chain.bands, ask, strict=True)))


def obtainable(chain: BruteChain, band: int, mode: Mode = RELIEF) -> int:
    """Most pages this band alone can take, the other bands asking nothing."""
    pages = 0
    while feasible(with_ask(chain, tuple(pages + 1 if b == band else 0 for b in range(len(chain.bands)))), mode):
        pages += 1
    return pages


def least_eviction_bytes(chain: BruteChain, evictable: tuple[int, ...]) -> int | None:
    """Fewest bytes whose eviction makes the demand fit, over every vector of pages up to ``evictable``, or None."""
    limits = [min(pages, len(b.live - b.pinned)) for b, pages in zip(chain.bands, evictable, strict=True)]
    sizes = [band.frame_bytes for band in chain.bands]
    costs = [
        sum(pages * size for pages, size in zip(vector, sizes, strict=True))
        for vector in itertools.product(*(range(limit + 1) for limit in limits))
        if feasible(chain, evict(vector))
    ]
    return min(costs, default=None)


def _bytes_of(frame: int, frame_bytes: int) -> int:
    """The bytes of one frame as a bit mask over the arena."""
    return ((1 << frame_bytes) - 1) << (frame * frame_bytes)


def _single_moves(chain: BruteChain, fixed: int, positions: Positions) -> Iterator[tuple[int, Positions]]:
    """Every move of one movable frame into bytes that nobody occupies, as (bytes moved, positions after)."""
    occupied = fixed
    for band, frames in zip(chain.bands, positions, strict=True):
        for frame in frames:
            occupied |= _bytes_of(frame, band.frame_bytes)
    for index, (band, frames) in enumerate(zip(chain.bands, positions, strict=True)):
        for target in range(chain.total_bytes // band.frame_bytes):
            if _bytes_of(target, band.frame_bytes) & occupied:
                continue
            for source in frames:
                moved = tuple(sorted(set(frames) - {source} | {target}))
                yield band.frame_bytes, (*positions[:index], moved, *positions[index + 1 :])


def reachable_by_moves(chain: BruteChain) -> int | None:
    """Least bytes of any sequence of legal single-frame moves after which the demand fits without a move, or None.

    The most permissive search: a frame may move any number of times (and is paid each time), through other bands'
    territory; bands need be in chain order at the end only. Pinned and quarantined frames stay, and their bytes and the
    sink count as occupied. Dijkstra over all positions, so for worlds of a few frames.
    """
    fixed = (1 << chain.sink_bytes) - 1
    for band in chain.bands:
        for frame in band.pinned.union(*band.quarantined.values()):
            fixed |= _bytes_of(frame, band.frame_bytes)
    start = tuple(tuple(sorted(band.live - band.pinned)) for band in chain.bands)
    queue, least = [(0, start)], {start: 0}
    while queue:
        spent, positions = heapq.heappop(queue)
        if spent > least[positions]:
            continue
        settled = tuple(evolve(b, live=b.pinned.union(p)) for b, p in zip(chain.bands, positions, strict=True))
        if feasible(evolve(chain, bands=settled), NOW):
            return spent
        for moved, then in _single_moves(chain, fixed, positions):
            if spent + moved < least.get(then, spent + moved + 1):
                least[then] = spent + moved
                heapq.heappush(queue, (spent + moved, then))
    return None
