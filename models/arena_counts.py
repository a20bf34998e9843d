"""Two pools for planning: what an arena decides, and Jenga's least-common-multiple page; counts of pages only.

Without pins and quarantine the arena's feasibility depends on counts alone, so ``ArenaCounts`` decides exactly as an
arena would, from the core's own function, before anything is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from core_pure.admission import fits_empty, max_request_tokens
from core_pure.errors import LayoutError
from core_pure.geometry import BandGeometry, ceil_div
from core_pure.layout import BandSpec, Demand, Layout
from models.pools import CountingPool


class ArenaCounts(CountingPool):
    """An arena that is never built: says yes exactly where an arena holding the same pages would."""

    def __init__(self, layout: Layout, chunk: int) -> None:
        super().__init__(layout.bands, layout.total_bytes, chunk)
        self.layout = layout

    def max_request_tokens(self) -> int:
        """The longest request that fits alone, by the core's own search."""
        return max_request_tokens(self.layout, self.chunk)

    def _has_room(self, pages: Demand) -> bool:
        return fits_empty(self.layout, pages)

    def _obtainable(self, at: int) -> int:
        low, high = 0, self.layout.frames_max[at]
        while low < high:
            middle = (low + high + 1) // 2
            pages = tuple(held + middle * (i == at) for i, held in enumerate(self.pages_held))
            low, high = (middle, high) if self._has_room(pages) else (low, middle - 1)
        return low

    def _limit_bytes(self, at: int) -> int:
        return self.pages_held[at] * self.specs[at].frame_bytes

    def _sink_bytes(self) -> int:
        return self.layout.sink_bytes


class LcmPages(CountingPool):
    """Jenga (SOSP 2025): large pages of the least common multiple, each cut into small pages of one kind.

    Counted at its best: small pages of all requests share large pages, so at most one large page per kind is part full.
    Args: bands: unrounded bytes are used, as Jenga has no rows to align. total_bytes: a large page is never split.
    """

    def __init__(self, bands: Iterable[BandGeometry], total_bytes: int, chunk: int) -> None:
        specs = [tight_spec(band) for band in bands]
        super().__init__(specs, total_bytes, chunk)
        self.page_bytes = lcm(*(spec.frame_bytes for spec in specs))
        self.pages_large = total_bytes // self.page_bytes
        if self.pages_large < len(specs):
            raise LayoutError(
                f"a least-common-multiple page of {self.page_bytes} bytes goes {self.pages_large} times into "
                f"{total_bytes} bytes; each of the {len(specs)} kinds needs one"
            )

    def _has_room(self, pages: Demand) -> bool:
        large = sum(ceil_div(count * spec.frame_bytes, self.page_bytes) for count, spec in zip(pages, self.specs, strict=True))
        return large <= self.pages_large

    def _obtainable(self, at: int) -> int:
        others = sum(
            ceil_div(count * spec.frame_bytes, self.page_bytes)
            for i, (count, spec) in enumerate(zip(self.pages_held, self.specs, strict=True))
            if i != at
        )
        small = (self.pages_large - others) * self.page_bytes // self.specs[at].frame_bytes
        return max(0, small - self.pages_held[at])

    def _limit_bytes(self, at: int) -> int:
        return ceil_div(self.pages_held[at] * self.specs[at].frame_bytes, self.page_bytes) * self.page_bytes

    def _sink_bytes(self) -> int:
        return 0


def tight_spec(band: BandGeometry) -> BandSpec:
    """The band's spec with unrounded bytes."""
    spec = BandSpec.of(band)
    return BandSpec(
        name=spec.name,
        frame_bytes=band.payload_bytes * band.slots_per_page,
        slots_per_page=spec.slots_per_page,
        retention=spec.retention,
        window=spec.window,
        pages_fixed=spec.pages_fixed,
    )
