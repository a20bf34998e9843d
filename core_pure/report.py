"""Who holds which bytes: one report that adds up to the arena (case F43)."""

from __future__ import annotations

from attrs import frozen

from .state import ArenaState


@frozen
class BandReport:
    """Units: bytes, and pages for ``pages``. pinned_bytes is "of which live"."""

    band: str
    pages: int
    live_bytes: int
    hole_bytes: int
    quarantined_bytes: int
    pinned_bytes: int
    low_byte: int
    high_byte: int


@frozen
class Report:
    """Bands in byte order. gap_bytes counts everything outside spans, the tail and the slack below the first band too."""

    bands: tuple[BandReport, ...]
    gap_bytes: int
    sink_bytes: int
    total_bytes: int

    @property
    def live_bytes(self) -> int:
        """Bytes that hold pages, over all bands."""
        return sum(band.live_bytes for band in self.bands)

    @property
    def hole_bytes(self) -> int:
        """Free bytes inside spans, over all bands."""
        return sum(band.hole_bytes for band in self.bands)


def report(state: ArenaState) -> Report:
    """The arena's bytes by band and state. Σ (live + hole + quarantined) + gap + sink = total. Cost: O(bands)."""
    rows, edge, gap = [], state.layout.sink_bytes, 0
    for band in state.bands:
        size = band.spec.frame_bytes
        if not band.is_empty:
            gap += band.low * size - edge
            edge = band.high * size
        rows.append(
            BandReport(
                band=band.name,
                pages=band.live,
                live_bytes=band.live * size,
                hole_bytes=int(band.blocks.sum()) * size,
                quarantined_bytes=band.quarantined * size,
                pinned_bytes=len(band.held.pins) * size,
                low_byte=band.low * size,
                high_byte=band.high * size,
            )
        )
    gap += state.layout.total_bytes - edge
    return Report(tuple(rows), gap, state.layout.sink_bytes, state.layout.total_bytes)
