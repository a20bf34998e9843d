"""The claims about states, written a second time in plain ints and sets, fast on tiny arenas.

``core_pure.verify`` states the same in numpy for arenas of any size. Two tellings of one claim keep each other honest: a
campaign runs this one in every state and ``verify`` in a sample, and a test corrupts facts and compares what both say.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from core_pure.band import BLOCK_BITS, FREE, QUARANTINED, Band
from core_pure.chain import NOWHERE
from core_pure.report import report
from core_pure.state import ArenaState
from core_pure.verify import Violation


@frozen
class Reading:
    """One band's tables as lists, and the frames by what they are. Units: frames, page indices."""

    band: Band
    page_of: list[int]
    frame_of: list[int]
    live: list[int]
    waiting: list[int]
    low: int  # hull of what is marked
    high: int

    @classmethod
    def of(cls, band: Band) -> Reading:
        """Read the tables, and nothing that is counted beside them."""
        marks, frame_of = band.page_of.copy(), band.frame_of.copy().tolist()
        used = (marks != FREE).nonzero()[0].tolist()  # the table may be longer than the arena
        page_of = marks[: used[-1] + 1].tolist() if used else []
        live = [frame for frame in used if page_of[frame] > 0]
        waiting = [frame for frame in used if page_of[frame] == QUARANTINED]
        low, high = (used[0], used[-1] + 1) if used else (0, 0)
        return cls(band, page_of, frame_of, live, waiting, low, high)


def read(state: ArenaState) -> list[Reading]:
    """All bands, read."""
    return [Reading.of(band) for band in state.bands]


def counts_are_those_of_the_tables(one: Reading) -> Iterator[Violation]:
    """LIVE-1, HOLE-1: live = frames that hold a page; per block, holes = free frames inside the hull."""
    band = one.band
    if len(one.live) != band.live:
        yield Violation("LIVE-1", f"{band.name}: {len(one.live)} frames hold a page != live = {band.live}")
    counted = [0] * ((band.home.frames_limit >> BLOCK_BITS) + 1)
    for frame in range(one.low, one.high):
        if one.page_of[frame] == FREE:
            counted[frame >> BLOCK_BITS] += 1
    if counted != band.blocks.tolist():
        yield Violation("HOLE-1", f"{band.name}: holes by block {counted} != counted {band.blocks.tolist()}")


def frames_are_conserved(one: Reading, first: int, top: int) -> Iterator[Violation]:
    """FRAME-1: live + hole + quarantined + outside = frames of [first, total // frame_bytes), each in one set."""
    band = one.band
    free = sum(1 for frame in range(one.low, one.high) if one.page_of[frame] == FREE)
    inside = len(one.live) + len(one.waiting) + free
    if inside != one.high - one.low:
        yield Violation("FRAME-1", f"{band.name}: {len(one.live)} + {free} + {len(one.waiting)} != hull {one.high - one.low}")
    if one.high > one.low and (one.low < first or one.high > top):
        yield Violation("FRAME-1", f"{band.name}: [{one.low}, {one.high}) is not inside [{first}, {top})")


def quarantine_is_listed(one: Reading, retired: int) -> Iterator[Violation]:
    """QUAR-1: the frames marked are those of the batches, each once; no batch is older than what was retired."""
    band = one.band
    listed = sorted(int(frame) for batch in band.held.batches for frame in batch.frames)
    if listed != one.waiting or len(listed) != band.held.count:
        yield Violation("QUAR-1", f"{band.name}: marked {one.waiting} != listed {listed}, counted {band.held.count}")
    late = [batch.fence for batch in band.held.batches if batch.fence <= retired]
    if late:
        yield Violation("QUAR-1", f"{band.name}: fence {late[0]} <= retired {retired} still holds frames")


def span_is_the_hull(one: Reading) -> Iterator[Violation]:
    """EDGE-1: the span is the hull of what is live or quarantined; an empty one is [0, 0)."""
    if (one.band.low, one.band.high) != (one.low, one.high):
        span = (one.band.low, one.band.high)
        yield Violation("EDGE-1", f"{one.band.name}: span {span} != hull {(one.low, one.high)}")


def tables_are_inverse(one: Reading) -> Iterator[Violation]:
    """PAGE-1: page → frame and frame → page are inverse on live pages."""
    bound = {page: frame for page, frame in enumerate(one.frame_of) if frame >= 0 and page > 0}
    held = {one.page_of[frame]: frame for frame in one.live}
    if bound != held or len(held) != len(one.live):
        yield Violation("PAGE-1", f"{one.band.name}: page → frame {bound} != frame → page {held} of {len(one.live)} frames")


def ids_are_used_once(one: Reading) -> Iterator[Violation]:
    """IDS-1: each index below ``fresh`` is bound, or stands once in the free stack: free + live = used."""
    band = one.band
    stack = band.ids.read(slice(0, band.spare)).tolist()
    bound = {page for page, frame in enumerate(one.frame_of) if frame >= 0 and page > 0}
    if sorted([*stack, *bound]) != list(range(1, band.fresh)):
        yield Violation("IDS-1", f"{band.name}: free {sorted(stack)} + bound {sorted(bound)} != 1 … {band.fresh - 1}")


def pins_are_of_live_pages(one: Reading) -> Iterator[Violation]:
    """PIN-1: pinned pages are bound and counts positive; the immovable hull is that of pins and quarantine."""
    band = one.band
    frames = [one.frame_of[page] if 0 < page < len(one.frame_of) else -1 for page in band.held.pins]
    if any(frame < 0 for frame in frames) or any(count < 1 for count in band.held.pins.values()):
        yield Violation("PIN-1", f"{band.name}: pins {dict(band.held.pins)} in frames {frames}")
        return
    fixed = [*frames, *(int(frame) for batch in band.held.batches for frame in batch.frames)]
    hull = (min(fixed), max(fixed) + 1) if fixed else (NOWHERE, 0)
    if hull != (band.held.first, band.held.end):
        yield Violation("PIN-1", f"{band.name}: immovable hull {(band.held.first, band.held.end)} != {hull}")


def chain_is_ordered(state: ArenaState, bands: list[Reading]) -> Iterator[Violation]:
    """CHAIN-1, SINK-1: in byte order every band starts at or above the end of the one before, above the sink, in the arena."""
    sink = edge = state.layout.sink_bytes
    for one in bands:
        if one.high == one.low:
            continue
        size = one.band.spec.frame_bytes
        if one.low * size < sink:
            yield Violation("SINK-1", f"{one.band.name}: frame {one.low} starts at byte {one.low * size} < sink {sink}")
        elif one.low * size < edge:
            yield Violation("CHAIN-1", f"{one.band.name}: starts at byte {one.low * size} < {edge}, the end of what is below")
        edge = max(edge, one.high * size)
    if edge > state.layout.total_bytes:
        yield Violation("CHAIN-1", f"the top band ends at byte {edge} > total {state.layout.total_bytes}")


def bytes_are_conserved(state: ArenaState, bands: list[Reading]) -> Iterator[Violation]:
    """BYTES-1: Σ (live + hole + quarantined) · frame_bytes + gaps + sink = total, in the report and from the tables."""
    said = report(state)
    parts = 0
    for one, row in zip(bands, said.bands, strict=True):
        size = one.band.spec.frame_bytes
        free = sum(1 for frame in range(one.low, one.high) if one.page_of[frame] == FREE)
        true = (len(one.live) * size, free * size, len(one.waiting) * size)
        if (row.live_bytes, row.hole_bytes, row.quarantined_bytes) != true:
            wrong = (row.live_bytes, row.hole_bytes, row.quarantined_bytes)
            yield Violation("BYTES-1", f"{row.band}: (live, hole, quarantined) bytes said {wrong} != {true}")
        parts += sum(true)
    if parts + said.gap_bytes + said.sink_bytes != said.total_bytes or said.gap_bytes < 0:
        yield Violation("BYTES-1", f"{parts} + gap {said.gap_bytes} + sink {said.sink_bytes} != total {said.total_bytes}")


def violations(state: ArenaState) -> Iterator[Violation]:
    """Every claim about one state. Total: what cannot be read is a violation."""
    try:
        bands = read(state)
        sink, total = state.layout.sink_bytes, state.layout.total_bytes
        for one in bands:
            size = one.band.spec.frame_bytes
            yield from counts_are_those_of_the_tables(one)
            yield from frames_are_conserved(one, -(-sink // size), total // size)
            yield from quarantine_is_listed(one, state.retired)
            yield from span_is_the_hull(one)
            yield from tables_are_inverse(one)
            yield from ids_are_used_once(one)
            yield from pins_are_of_live_pages(one)
        yield from chain_is_ordered(state, bands)
        yield from bytes_are_conserved(state, bands)
    except Exception as error:  # a state too broken to be read is a violation, not a crash
        yield Violation("STATE-1", f"the state cannot be read: {error!r}")
