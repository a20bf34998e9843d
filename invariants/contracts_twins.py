"""Planted bugs for contracts: each looks like the shipped function and is wrong in one way that the list names."""

from __future__ import annotations

from typing import Any

from core_pure import chain, geometry, layout

from .contracts_core import chain_fits


def floor_div(value: int, unit: int) -> int:
    return value // unit


def no_hull(edge: int, total: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    return chain.edge_above(edge, total, frame_bytes, need, first, 0)


def floor_edge(edge: int, total: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    if need == 0:
        return edge
    low = edge // frame_bytes
    high = max(low + need, end)
    return -1 if low > first or high > total // frame_bytes else high * frame_bytes


def one_too_high(edge: int, total: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    return chain.edge_above(edge, total, frame_bytes, need + 1, first, end) if need else edge


def rounds_empty(edge: int, total: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    return -(-edge // frame_bytes) * frame_bytes + need * frame_bytes


def below_ceil(edge: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    if need == 0:
        return edge
    high = -(-edge // frame_bytes)
    low = min(high - need, first)
    return -1 if high < end or low < 0 else low * frame_bytes


def below_too_low(edge: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    return chain.edge_below(edge, frame_bytes, need + 1, first, end) if need else edge


def drops_hull(low: int, high: int, need: int, first: int, end: int, lean: int) -> tuple[int, int]:
    return (low, low + max(need, end - first)) if end > first else chain.window(low, high, need, first, end, lean)


def never_centred(low: int, high: int, need: int, first: int, end: int, lean: int) -> tuple[int, int]:
    return low, low + need


def windows_overlap(claims: tuple[chain.Claim, ...], sink: int, total: int) -> list[tuple[int, int]] | None:
    placed = chain.windows(claims, sink, total)
    return placed if placed is None else [(max(0, low - 1), high) for low, high in placed]


def windows_timid(claims: tuple[chain.Claim, ...], sink: int, total: int) -> list[tuple[int, int]] | None:
    return None if total - sink < sum(c.frame_bytes * (c.need + 1) for c in claims) else chain.windows(claims, sink, total)


def refused_early(claims: tuple[chain.Claim, ...], sink: int, total: int) -> int:
    return chain.refused_at(claims, sink, total - 1)


def refused_by_pages(claims: tuple[chain.Claim, ...], sink: int, total: int) -> int:
    edge = sink
    for at, claim in enumerate(claims):
        edge = edge // claim.frame_bytes * claim.frame_bytes + claim.need * claim.frame_bytes
        if edge > total:
            return at
    return -1


def ceilings_flat(claims: tuple[chain.Claim, ...], total: int) -> list[int]:
    return [total] * (len(claims) + 1)


def room_by_bytes(claims: tuple[chain.Claim, ...], sink: int, total: int, band: int) -> int:
    used = sum(c.need * c.frame_bytes for at, c in enumerate(claims) if at != band)
    return max(0, (total - sink - used) // claims[band].frame_bytes)


def room_less(claims: tuple[chain.Claim, ...], sink: int, total: int, band: int) -> int:
    return max(0, chain.room(claims, sink, total, band) - 1)


def all_down(bands: int) -> tuple[int, ...]:
    return (-1,) * bands


def forgets_quarantine(band: Any, mode: Any, evicted: int = 0) -> int:
    return int(band.live - evicted)


def claims_span(band: Any, pages: int, mode: Any, evicted: int = 0) -> chain.Claim:
    return chain.Claim(7, band.live + band.held.count + pages, band.low, band.high - 1, -1)


def counts_all_batches(band: Any, mode: Any, evicted: int = 0) -> int:
    return int(band.live + band.held.count)


def adds_first_twice(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + b[0] for x in a)


def fits_by_parity(where: layout.Layout, demand: tuple[int, ...]) -> bool:
    return sum(demand) % 2 == 0 and chain_fits(where, demand)


def total_without_sink(chain_: Any, demand: Any) -> int:
    return geometry.align(sum(band.frame_bytes * n for band, n in zip(chain_, demand, strict=True)), geometry.ARENA_GRANULE)


def ignores_minimum(where: layout.Layout, demand: tuple[int, ...]) -> tuple[chain.Claim, ...]:
    return tuple(chain.Claim(band.frame_bytes, n) for band, n in zip(where.bands, demand, strict=True))
