"""How many bytes a request needs, how many each way of paging holds for it, and what published systems report.

Waste is 1 − Σ exact / Σ held over a set of requests: exact counts the numbers that later tokens can read, held counts
whole pages. Lengths are arrays of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from core_pure.geometry import BandGeometry, ceil_div
from core_pure.layout import BandSpec
from models.padded import PaddedPage
from models.pools import SGLANG_WINDOW_TO_FULL, pages_while

Lengths = NDArray[np.int64]
Bytes = NDArray[np.int64]


def exact_bytes(bands: Iterable[BandGeometry], lengths: Lengths, *, states: int = 1) -> Bytes:
    """Bytes of numbers that requests of these lengths need, without any rounding; ``states`` held per request."""
    total = np.zeros_like(lengths)
    for band in bands:
        total += slots_needed(band, lengths) * band.payload_bytes * (states if band.retention == "state" else 1)
    return total


def slots_needed(band: BandGeometry, lengths: Lengths) -> Lengths:
    """Slots of one band that are read again: all tokens, the window's, the current chunk's, or a fixed number."""
    if band.slots_fixed is not None:
        return np.where(lengths > 0, band.slots_fixed, 0)
    if band.window is None:
        return lengths
    if band.retention == "chunked":
        return lengths - lengths // band.window * band.window
    return np.minimum(lengths, band.window)


def charged(specs: Iterable[BandSpec], bands: Iterable[BandGeometry], *, states: int = 1) -> tuple[BandSpec, ...]:
    """Specs of a rival that charge a request as many states and encoder tokens as the model really keeps."""
    tokens = max((band.slots_fixed or 0 for band in bands if band.retention == "cross"), default=0)
    found = []
    for spec in specs:
        if spec.retention == "state":
            spec = evolve(spec, pages_fixed=states)
        elif spec.retention == "cross":
            spec = evolve(spec, pages_fixed=ceil_div(tokens, spec.slots_per_page))
        found.append(spec)
    return tuple(found)


def held_bytes(specs: Iterable[BandSpec], lengths: Lengths) -> Bytes:
    """Bytes of the pages that requests of these lengths hold at rest, windows slid."""
    total = np.zeros_like(lengths)
    for spec in specs:
        total += pages_while(spec, lengths, lengths) * spec.frame_bytes
    return total


def held_lcm_bytes(specs: Sequence[BandSpec], page_bytes: int, lengths: Lengths) -> Bytes:
    """Bytes of large pages that one request holds alone, when large pages are not shared between requests."""
    total = np.zeros_like(lengths)
    for spec in specs:
        small = page_bytes // spec.frame_bytes
        total += -(-pages_while(spec, lengths, lengths) // small) * page_bytes
    return total


def waste_share(exact: Bytes, held: Bytes) -> float:
    """1 − Σ exact / Σ held; the sums are exact integers."""
    return 1 - _total(exact) / max(1, _total(held))


def _total(counts: Bytes) -> int:
    """The sum of an int64 array as a Python int, in halves that cannot overflow."""
    return (int((counts >> 32).sum()) << 32) + int((counts & 0xFFFFFFFF).sum())


def padded_waste(bands: Sequence[BandGeometry], page: PaddedPage, lengths: Lengths) -> float:
    """Waste of vLLM 0.33's padded page over these lengths."""
    return waste_share(exact_bytes(bands, lengths), held_bytes(charged(page.specs(), bands), lengths))


def uniform_waste(needs: Sequence[tuple[int, int]], room: int) -> Fraction:
    """Waste when every layer gets ``room`` slots although the layers need less: pairs of (layers, slots needed)."""
    layers = sum(count for count, _ in needs)
    return 1 - Fraction(sum(count * slots for count, slots in needs), layers * room)


def resummed_bytes(specs: Sequence[BandSpec], budget: int, share: Fraction) -> int:
    """Arena bytes of an engine that turns its budget into token counts and sums those up again, as SGLang does.

    ``share`` of the budget becomes whole states; what is left becomes tokens of full attention, 0.8 as many of each
    window, each cut down to whole pages.
    """
    states = [spec for spec in specs if spec.retention == "state"]
    full = [spec for spec in specs if spec.retention != "state" and spec.window is None]
    windows = [spec for spec in specs if spec.window is not None]
    used = 0
    if states:
        bytes_state = sum(spec.frame_bytes for spec in states)
        part = share if full or windows else Fraction(1)
        used = int(budget * part) // bytes_state * bytes_state
    ratio = SGLANG_WINDOW_TO_FULL if full else Fraction(1)
    costs = [Fraction(spec.frame_bytes, spec.slots_per_page) for spec in full]
    costs += [ratio * Fraction(spec.frame_bytes, spec.slots_per_page) for spec in windows]
    per_token = sum(costs, Fraction(0))
    tokens = int((budget - used) / per_token) if per_token else 0
    for spec in (*full, *windows):
        share_tokens = int(tokens * (ratio if spec.window is not None else 1))
        used += share_tokens // spec.slots_per_page * spec.frame_bytes
    return used
