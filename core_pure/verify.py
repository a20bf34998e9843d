"""The cheap invariants: predicates that explain what is wrong with a state, corrupt ones included, and never raise.

Each reads one fact against the tables themselves, so that one corrupted fact gives exactly one kind of violation (case
F45). The catalogue in ``invariants`` builds on these. Nothing here reads a device. Cost: O(frames), numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from attrs import frozen

from .band import BLOCK_BITS, FREE, QUARANTINED, Band, hull_of
from .state import ArenaState, first_frame


@frozen
class Violation:
    """One broken claim: its id in the catalogue, and what is unequal to what."""

    claim: str
    text: str


def _hull(band: Band) -> tuple[int, int]:
    """The hull of all marks, from the table alone; (0, 0) when there are none."""
    marks = band.page_of.copy()
    used = np.flatnonzero(marks != FREE)
    return (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)


def live_is_counted(state: ArenaState) -> Iterator[Violation]:
    """LIVE-1. The live count is the number of frames that hold a page."""
    for band in state.bands:
        held = int((band.page_of.copy() > 0).sum())
        if held != band.live:
            yield Violation("LIVE-1", f"{band.name}: {held} frames hold a page, but live = {band.live}")


def holes_are_counted(state: ArenaState) -> Iterator[Violation]:
    """HOLE-1. Per block of 1,024 frames, the hole count is the number of free frames inside the hull."""
    for band in state.bands:
        low, high = _hull(band)
        holes = np.flatnonzero(band.page_of.copy()[low:high] == FREE) + low
        counted = np.bincount(holes >> BLOCK_BITS, minlength=len(band.blocks))
        blocks = (band.home.frames_limit >> BLOCK_BITS) + 1
        if len(band.blocks) != blocks:
            yield Violation("HOLE-1", f"{band.name}: holes are counted for {len(band.blocks)} blocks, of {blocks}")
            continue
        wrong = np.flatnonzero(counted[: len(band.blocks)] != band.blocks)
        if len(wrong):
            at = int(wrong[0])
            text = f"{band.name}: block {at} has {int(counted[at])} holes, but {int(band.blocks[at])} are counted"
            yield Violation("HOLE-1", text)


def quarantine_is_marked(state: ArenaState) -> Iterator[Violation]:
    """QUAR-1. Frames marked quarantined are exactly those of the batches, each once; no batch is older than retired."""
    for band in state.bands:
        marked = np.flatnonzero(band.page_of.copy() == QUARANTINED)
        batches = [np.asarray(batch.frames, np.intp) for batch in band.held.batches]
        listed = np.sort(np.concatenate(batches)) if batches else marked[:0]
        if not np.array_equal(marked, listed) or len(listed) != band.held.count:
            text = f"{band.name}: {len(marked)} frames marked, {len(listed)} listed, {band.held.count} counted in quarantine"
            yield Violation("QUAR-1", text)
        late = [batch.fence for batch in band.held.batches if batch.fence <= state.retired]
        if late:
            yield Violation("QUAR-1", f"{band.name}: fence {late[0]} has passed (retired {state.retired}) but still holds frames")


def spans_are_hulls(state: ArenaState) -> Iterator[Violation]:
    """EDGE-1. A span [low, high) is exactly the hull of its live and quarantined frames; an empty one is (0, 0)."""
    for band in state.bands:
        hull = _hull(band)
        if (band.low, band.high) != hull:
            yield Violation("EDGE-1", f"{band.name}: span [{band.low}, {band.high}) but its frames span [{hull[0]}, {hull[1]})")


def tables_agree(state: ArenaState) -> Iterator[Violation]:
    """PAGE-1. page → frame and frame → page are inverse to each other on live pages."""
    for band in state.bands:
        page_of, frame_of = band.page_of.copy(), band.frame_of.copy()
        frames = np.flatnonzero(page_of > 0)
        pages = page_of[frames]
        inside = pages < len(frame_of)
        back = np.full(len(frames), -1)
        back[inside] = frame_of[pages[inside]]
        wrong = np.flatnonzero(back != frames)
        if len(wrong):
            f = int(frames[wrong[0]])
            yield Violation("PAGE-1", f"{band.name}: frame {f} holds page {int(page_of[f])}, whose frame is {int(back[wrong[0]])}")
            continue
        bound = int((frame_of[1:] >= 0).sum())
        if bound != len(frames):
            yield Violation("PAGE-1", f"{band.name}: {bound} pages are bound, but {len(frames)} frames hold one")


def ids_are_free_once(state: ArenaState) -> Iterator[Violation]:
    """IDS-1. Every index below ``fresh`` is bound or stands once in the free stack."""
    for band in state.bands:
        stack = band.ids.read(slice(0, band.spare)).astype(np.intp)
        frame_of = band.frame_of.copy()
        clean = len(np.unique(stack)) == len(stack) and (not len(stack) or (stack.min() > 0 and stack.max() < band.fresh))
        if not clean or (frame_of[stack] >= 0).any() or band.spare + band.live != band.fresh - 1:
            text = f"{band.name}: {band.spare} free ids + {band.live} live != {band.fresh - 1} ids ever used, or one stands twice"
            yield Violation("IDS-1", text)


def pins_hold_bound_pages(state: ArenaState) -> Iterator[Violation]:
    """PIN-1. Pinned pages are bound, counts are positive, and the immovable hull is that of quarantine and pins."""
    for band in state.bands:
        pins = band.held.pins
        bad = [page for page, count in pins.items() if count < 1 or not 0 < page <= band.home.ids_max]
        bad = bad or [page for page in pins if band.frame_of.item(page) < 0]
        if bad:
            yield Violation("PIN-1", f"{band.name}: page {band.home.id_base + bad[0]} is pinned {pins[bad[0]]} times but not bound")
        elif (band.held.first, band.held.end) != hull_of(band, band.held.batches, pins):
            text = f"{band.name}: immovable hull [{band.held.first}, {band.held.end}) is not that of its pins and quarantine"
            yield Violation("PIN-1", text)


def bands_are_ordered(state: ArenaState) -> Iterator[Violation]:
    """CHAIN-1. In byte order, no band's frames start below the end of the band before; none reaches past the arena."""
    edge, before = state.layout.sink_bytes, "the sink"
    for band in state.bands:
        low, high = _hull(band)
        if high == low:
            continue
        size = band.spec.frame_bytes
        if low < first_frame(state, band):
            yield Violation("SINK-1", f"{band.name}: frame {low} lies in the sink, which ends at byte {state.layout.sink_bytes}")
        elif low * size < edge:
            yield Violation("CHAIN-1", f"{band.name} starts at byte {low * size}, inside {before}, which ends at {edge}")
        edge, before = high * size, band.name
    if edge > state.layout.total_bytes:
        yield Violation("CHAIN-1", f"{before} ends at byte {edge}, past the arena's {state.layout.total_bytes}")


CHECKS: tuple[Callable[[ArenaState], Iterator[Violation]], ...] = (
    live_is_counted,
    holes_are_counted,
    quarantine_is_marked,
    spans_are_hulls,
    tables_agree,
    ids_are_free_once,
    pins_hold_bound_pages,
    bands_are_ordered,
)


def verify(state: ArenaState) -> list[Violation]:
    """Every violation of the cheap invariants; empty when the state is healthy. Never raises: a check that fails says so."""
    found: list[Violation] = []
    for check in CHECKS:
        try:
            found.extend(check(state))
        except Exception as error:  # a state too broken to be read is a violation, not a crash
            found.append(Violation("STATE-1", f"{check.__name__} could not read the state: {error!r}"))
    return found
