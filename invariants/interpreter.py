"""An encoded plan, read and carried out word by word on a bytearray, and the hazards a plan may not have.

Written from the description of the encoding alone, so that it agrees with the device only if both are right. Slow and
in plain ints; what a plan must not do is said by ``check_hazards`` in sentences, each starting with the rule's name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Protocol

from attrs import field, frozen

Triple = tuple[int, int, int]
HEADER_WORDS = 12
ZERO, POISON = 0, 1
FILL_BYTES = {ZERO: 0x00, POISON: 0xFF}  # 0xFF everywhere reads as NaN in every float format


class PlanBroken(AssertionError):
    """A plan that cannot be carried out: its encoding is damaged, or it would overwrite bytes in use."""


class SpecLike(Protocol):
    """What is read of one band."""

    @property
    def frame_bytes(self) -> int: ...
    @property
    def zero_on_bind(self) -> bool: ...


class LayoutLike(Protocol):
    """What is read of a layout; all byte positions follow from it."""

    @property
    def bands(self) -> Sequence[SpecLike]: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def sink_bytes(self) -> int: ...
    @property
    def id_bases(self) -> Sequence[int]: ...
    @property
    def frames_max(self) -> Sequence[int]: ...


@frozen
class PlanText:
    """A decoded plan in plain tuples. Rows: (band, source, target), (band, frame, pattern), (page id, frame or -1)."""

    waves: tuple[tuple[Triple, ...], ...]
    copies: tuple[Triple, ...]
    fills: tuple[Triple, ...]
    rows: tuple[tuple[int, int], ...]
    wait: int | None

    @property
    def moves(self) -> tuple[Triple, ...]:
        """All move rows in wave order."""
        return tuple(move for wave in self.waves for move in wave)


@frozen
class Occupancy:
    """Who holds which frames before a plan; per band in byte order. Units: page ids, frames, fences."""

    pages: tuple[Mapping[int, int], ...]  # page id -> frame
    quarantined: tuple[Mapping[int, frozenset[int]], ...]  # fence -> frames
    pinned: tuple[frozenset[int], ...] = field()  # page ids

    @pinned.default
    def _nothing_pinned(self) -> tuple[frozenset[int], ...]:
        return (frozenset(),) * len(self.pages)


def read_plan(words: Iterable[int]) -> PlanText:
    """Decode version 1. Raises: PlanBroken on a bad version, length, count or trailing word."""
    stream = [int(word) for word in words]
    if len(stream) < HEADER_WORDS or stream[0] != 1 or stream[1] != len(stream):
        raise PlanBroken(f"header {stream[:2]} does not describe a version 1 plan of {len(stream)} words")
    waves, moves, copies, fills, rows = stream[2:7]
    if min(stream[2:7]) < 0 or any(stream[9:HEADER_WORDS]):
        raise PlanBroken(f"header has a negative count or a spare word in use: {stream[:HEADER_WORDS]}")
    sizes, body = stream[HEADER_WORDS : HEADER_WORDS + waves], stream[HEADER_WORDS + waves :]
    triples = moves + copies + fills
    if sum(sizes) != moves or any(size < 1 for size in sizes) or len(body) != 3 * triples + 2 * rows:
        raise PlanBroken(f"{len(body)} body words, wave sizes {sizes} against header {stream[:HEADER_WORDS]}")
    all_triples = [(body[at], body[at + 1], body[at + 2]) for at in range(0, 3 * triples, 3)]
    pairs = [(body[at], body[at + 1]) for at in range(3 * triples, len(body), 2)]
    cut, grouped = 0, []
    for size in sizes:
        grouped.append(tuple(all_triples[cut : cut + size]))
        cut += size
    wait = int.from_bytes(b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in stream[7:9]), "little", signed=True)
    if wait < -1:
        raise PlanBroken(f"wait {wait} is neither a fence nor -1")
    return PlanText(
        tuple(grouped),
        tuple(all_triples[moves : moves + copies]),
        tuple(all_triples[moves + copies :]),
        tuple(pairs),
        None if wait == -1 else wait,
    )


def _span(layout: LayoutLike, band: int, frame: int) -> slice:
    frame_bytes = layout.bands[band].frame_bytes
    return slice(frame * frame_bytes, (frame + 1) * frame_bytes)


def run_plan(
    words: Iterable[int],
    buffer: bytearray,
    table: MutableSequence[int],
    layout: LayoutLike,
    occupied: Iterable[tuple[int, int]],
) -> None:
    """Carry the plan out on ``buffer`` and ``table`` (page id -> frame, 0 when unbound).

    ``occupied``: every (band, frame) in use when the plan starts, released and waited-for frames left out. Each wave
    reads all its sources, then checks its targets, then writes.
    Raises: PlanBroken when a target shares a byte with a frame in use, with another target, or with the sink.
    """
    plan = read_plan(words)
    in_use = set(occupied)
    for wave in (*plan.waves, plan.copies):
        taken = bytearray(layout.total_bytes)
        taken[: layout.sink_bytes] = b"\1" * layout.sink_bytes
        for band, frame in in_use:
            span = _span(layout, band, frame)
            taken[span] = b"\1" * (span.stop - span.start)
        contents = [bytes(buffer[_span(layout, band, source)]) for band, source, _ in wave]
        for band, _, target in wave:
            span = _span(layout, band, target)
            if span.stop > layout.total_bytes or span.start < 0 or any(taken[span]):
                raise PlanBroken(f"target frame {target} of band {band}, bytes {span.start}–{span.stop}, is in use")
            taken[span] = b"\1" * (span.stop - span.start)
        for (band, source, target), content in zip(wave, contents, strict=True):
            buffer[_span(layout, band, target)] = content
            in_use.add((band, target))
            if wave is not plan.copies:
                in_use.discard((band, source))
    for band, frame, pattern in plan.fills:
        span = _span(layout, band, frame)
        buffer[span] = bytes([FILL_BYTES[pattern]]) * (span.stop - span.start)
    for page, frame in plan.rows:
        table[page] = max(frame, 0)


class _Ledger:
    """Which grain of bytes is in whose hands while a plan runs; a grain divides every frame size."""

    def __init__(self, layout: LayoutLike) -> None:
        sizes = [band.frame_bytes for band in layout.bands]
        self.grain = math.gcd(*sizes, layout.sink_bytes)
        self.layout = layout
        self.holder: dict[int, str] = dict.fromkeys(range(layout.sink_bytes // self.grain), "the sink")

    def grains(self, band: int, frame: int) -> range:
        span = _span(self.layout, band, frame)
        return range(span.start // self.grain, span.stop // self.grain)

    def holders(self, band: int, frame: int) -> list[str]:
        return sorted({self.holder[grain] for grain in self.grains(band, frame) if grain in self.holder})

    def take(self, band: int, frame: int, who: str) -> None:
        self.holder.update(dict.fromkeys(self.grains(band, frame), who))

    def drop(self, band: int, frame: int) -> None:
        for grain in self.grains(band, frame):
            self.holder.pop(grain, None)


def band_of(layout: LayoutLike, page: int) -> int | None:
    """The band that owns a page id, or None for the sink and ids of nobody."""
    for band, (base, frames) in enumerate(zip(layout.id_bases, layout.frames_max, strict=True)):
        if base < page <= base + frames:
            return band
    return None


def frame_is_legal(layout: LayoutLike, band: int, frame: int) -> bool:
    """True for a frame wholly above the sink and inside the arena."""
    frame_bytes = layout.bands[band].frame_bytes
    return layout.sink_bytes <= frame * frame_bytes and (frame + 1) * frame_bytes <= layout.total_bytes


def check_hazards(
    words: Iterable[int],
    before: Occupancy,
    layout: LayoutLike,
    *,
    released: Iterable[int] = (),
    reader: int | None = None,
    written: Iterable[int] | None = None,
) -> Iterator[str]:
    """Everything that is wrong with a plan, one sentence each; nothing for a sound one. Total on damaged plans.

    released: page ids that this transition lets go. reader: the off-stream step that may still read released or moved
    frames, None when everything runs on one stream. written: if given, the page ids which that step may still write; the
    others may move without waiting, and the frames they leave are quarantined for the reader.
    """
    try:
        plan = read_plan(words)
    except PlanBroken as error:
        yield f"encoding: {error}"
        return
    illegal = list(_illegal_numbers(plan, layout))
    if illegal:
        yield from illegal
        return
    gone = frozenset(released)
    unwaited = reader is not None and (plan.wait is None or plan.wait < reader)
    yield from _wait_hazards(plan, before, reader, None if written is None else frozenset(written))
    yield from _byte_hazards(plan, before, layout, gone, reader if unwaited else None)
    yield from _row_hazards(plan, before, layout, gone)
    yield from _fill_hazards(plan, before, layout, gone)


def _illegal_numbers(plan: PlanText, layout: LayoutLike) -> Iterator[str]:
    """Bands, frames, patterns and page ids that do not exist."""
    bands = range(len(layout.bands))
    for band, source, target in (*plan.moves, *plan.copies):
        if band not in bands:
            yield f"number: band {band} does not exist"
        elif not (frame_is_legal(layout, band, source) and frame_is_legal(layout, band, target)):
            yield f"number: band {band} frame {source} or {target} is outside the arena or in the sink"
    for band, frame, pattern in plan.fills:
        if band not in bands or pattern not in FILL_BYTES or not frame_is_legal(layout, band, frame):
            yield f"number: fill (band {band}, frame {frame}, pattern {pattern}) names nothing"
    for page, frame in plan.rows:
        owner = band_of(layout, page)
        if owner is None or (frame != -1 and not frame_is_legal(layout, owner, frame)):
            yield f"number: table row (page {page}, frame {frame}) names nothing"


def _wait_hazards(plan: PlanText, before: Occupancy, reader: int | None, written: frozenset[int] | None) -> Iterator[str]:
    """Moves of pages that an off-stream step may write follow it, and no plan waits for a fence that nobody named."""
    if plan.wait is not None and (reader is None or plan.wait > reader):
        yield f"wait: waits for fence {plan.wait}, which the reader {reader} does not ask for"
    if reader is None or (plan.wait is not None and plan.wait >= reader):
        return
    if written is None and plan.moves:
        yield f"wait: {len(plan.moves)} moves beside reader {reader} without waiting for it (wait is {plan.wait})"
    for band, source, _ in plan.moves if written else ():
        for page in (written or frozenset()) & before.pages[band].keys():
            if before.pages[band][page] == source:
                yield f"wait: page {page} moves while step {reader} may write it (wait is {plan.wait})"


def _byte_hazards(plan: PlanText, before: Occupancy, layout: LayoutLike, gone: frozenset[int], reader: int | None) -> Iterator[str]:
    """Sources are live, movable and used once; targets and new pages take bytes that nobody holds at that moment."""
    ledger = _Ledger(layout)
    waited = -1 if plan.wait is None else plan.wait
    live: set[tuple[int, int]] = set()
    for band, pages in enumerate(before.pages):
        for page, frame in pages.items():
            if page not in gone:
                live.add((band, frame))
                ledger.take(band, frame, f"page {page}")
            elif reader is not None:
                ledger.take(band, frame, f"quarantine {reader} (page {page} released by this plan)")
        for fence, frames in before.quarantined[band].items():
            for frame in frames if fence > waited else ():
                ledger.take(band, frame, f"quarantine {fence}")
    fixed = {(b, pages[page]) for b, pages in enumerate(before.pages) for page in before.pinned[b] if page in pages}
    moved_to: set[tuple[int, int]] = set()
    for number, wave in enumerate(plan.waves):
        for band, source, target in wave:
            if (band, source) not in live or (band, source) in moved_to:
                yield f"source: wave {number} moves band {band} frame {source}, which holds no page of before the plan"
            if (band, source) in fixed:
                yield f"source: wave {number} moves pinned frame {source} of band {band}"
            for who in ledger.holders(band, target):
                yield f"target: wave {number} writes band {band} frame {target} onto {who}"
            ledger.take(band, target, f"target {target} of band {band}, wave {number}")
        moved_to |= {(band, target) for band, _, target in wave}
        for band, source, _ in wave:
            if reader is None:
                ledger.drop(band, source)
            else:
                ledger.take(band, source, f"quarantine {reader} (vacated)")
            live.discard((band, source))
        live |= {(band, target) for band, _, target in wave}
    for band, source, _ in plan.copies:
        if (band, source) not in live:
            yield f"source: copies band {band} frame {source}, which holds no page"
    for page, frame in plan.rows:
        band = band_of(layout, page) or 0
        if frame != -1 and (band, frame) not in moved_to:
            for who in ledger.holders(band, frame):
                yield f"target: page {page} is bound to band {band} frame {frame}, which {who} holds"
            ledger.take(band, frame, f"new page {page}")


def _row_hazards(plan: PlanText, before: Occupancy, layout: LayoutLike, gone: frozenset[int]) -> Iterator[str]:
    """One final row per page; released pages and moved pages have one; nothing else changes its frame."""
    counts = Counter(page for page, _ in plan.rows)
    yield from (f"row: page {page} has {count} table rows" for page, count in counts.items() if count > 1)
    rows = dict(plan.rows)
    landed = {(band, source): target for band, source, target in plan.moves}
    for band, pages in enumerate(before.pages):
        for page, frame in pages.items():
            if page in gone:
                if page not in rows:
                    yield f"row: page {page} is released but keeps its table row"
                continue
            target = landed.get((band, frame))
            if rows.get(page) != target:
                yield f"row: page {page} of band {band} moves {frame} -> {target}, its table row says {rows.get(page)}"
    bound = {page for pages in before.pages for page in pages}
    for page, frame in plan.rows:
        if frame == -1 and page not in gone:
            yield f"row: page {page} is unbound but was {'not released' if page in bound else 'never bound'}"


def _fill_hazards(plan: PlanText, before: Occupancy, layout: LayoutLike, gone: frozenset[int]) -> Iterator[str]:
    """Fills touch exactly the frames that this plan binds anew, once, and no move or copy target."""
    kept = {page for pages in before.pages for page in pages} - gone
    new = {(band_of(layout, page) or 0, frame) for page, frame in plan.rows if frame != -1 and page not in kept}
    written = {(band, target) for band, _, target in (*plan.moves, *plan.copies)}
    sources = {(band, source) for band, source, _ in plan.copies}
    filled = Counter((band, frame) for band, frame, _ in plan.fills)
    for place, count in filled.items():
        if count > 1:
            yield f"fill: (band, frame) {place} is filled {count} times"
        if place not in new:
            yield f"fill: (band, frame) {place} is bound by no row of this plan"
        if place in written:
            yield f"fill: (band, frame) {place} is the target of a move or copy"
    for place in sorted(new & sources):
        yield f"source: (band, frame) {place} is bound in this plan and copied from"
    for band, frame in sorted(new):
        if layout.bands[band].zero_on_bind and (band, frame) not in written and (band, frame) not in filled:
            yield f"fill: new frame {frame} of band {band} is handed out without being zeroed"
    for band, _, target in plan.copies:
        if (band, target) not in new:
            yield f"row: copy target {target} of band {band} is bound by no row of this plan"
