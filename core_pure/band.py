"""One cache kind's pages and frames, as a value.

Frames inside the span [low, high) are live, hole or quarantined; the span is exactly the hull of what is live or
quarantined, so an edge never rests on a hole. Frames outside are gap. Functions here bind, unbind and re-seat frames of
one band and keep its tables, counts and hole summary in step; they know no neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from .chain import NOWHERE
from .errors import DuplicatePage, PageNotBound, PagePinned
from .layout import BandSpec
from .table import Table

Frames = NDArray[np.intp]

FREE, QUARANTINED = -1, -2
"""Marks in ``page_of``; a live frame holds its page's index, which is at least 1."""
BLOCK_BITS = 10
"""Holes are counted per 1,024 frames, so that a search skips what is full."""

NO_FRAMES: Frames = np.empty(0, np.intp)
NO_FRAMES.flags.writeable = False


@frozen
class Batch:
    """Frames freed or vacated together, that readers up to ``fence`` may still read."""

    fence: int
    frames: tuple[int, ...] | NDArray[np.intp] = field(eq=lambda frames: tuple(int(x) for x in frames))


@frozen
class Held:
    """The frames that relief may not touch: quarantine by fence, pins by page index; and their hull [first, end)."""

    batches: tuple[Batch, ...] = ()
    pins: Mapping[int, int] = field(factory=dict)
    count: int = 0  # quarantined frames
    first: int = NOWHERE
    end: int = 0


NOTHING_HELD = Held()


@frozen
class Home:
    """What never changes about a band in its arena."""

    spec: BandSpec
    index: int
    id_base: int
    ids_max: int  # page indices run from 1 to ids_max
    frames_limit: int  # frames of the whole arena; page_of is that long, in whole blocks
    lean: int


@frozen(eq=False)
class Band:
    """One band's value. Units: frames and page *indices* of this band (page id = id_base + index).

    frame_of[index] is the frame of a bound page; of an unbound one, a negative number. ids[0:spare] are recycled indices;
    none from ``fresh`` on is in use.
    """

    home: Home
    frame_of: Table
    page_of: Table
    ids: Table
    blocks: NDArray[np.intp]  # holes per block of frames; copied, never written in place
    live: int
    spare: int
    fresh: int
    low: int
    high: int
    held: Held

    @property
    def name(self) -> str:
        """The band's name."""
        return self.home.spec.name

    @property
    def spec(self) -> BandSpec:
        """The band's static description."""
        return self.home.spec

    @property
    def quarantined(self) -> int:
        """Frames in quarantine."""
        return self.held.count

    @property
    def holes(self) -> int:
        """Free frames inside the span."""
        return self.high - self.low - self.live - self.held.count

    @property
    def is_empty(self) -> bool:
        """No live and no quarantined frame: it blocks nobody."""
        return self.high == self.low

    def live_frames(self) -> Frames:
        """Frames that hold a page, ascending."""
        return self.page_of.find_above(0, self.low, self.high)

    def hole_frames(self) -> Frames:
        """Free frames inside the span, ascending."""
        return self.page_of.find(FREE, self.low, self.high)

    def pinned_frames(self) -> Frames:
        """Frames of pinned pages, ascending."""
        return np.sort(self.frame_of.read(np.fromiter(self.held.pins, np.intp, len(self.held.pins))).astype(np.intp))

    def facts(self) -> tuple[object, ...]:
        """Everything that equality is about, without stale cells: for ``==`` and ``hash``."""
        live = self.live_frames()
        return (
            self.home,
            (self.live, self.spare, self.fresh, self.low, self.high, self.held.count),
            tuple(sorted(self.held.pins.items())),
            tuple(sorted((batch.fence, tuple(sorted(int(x) for x in batch.frames))) for batch in self.held.batches)),
            live.tobytes(),
            self.page_of.read(live).tobytes(),
            self.ids.read(slice(0, self.spare)).tobytes(),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Band):
            return NotImplemented
        return self is other or self.facts() == other.facts()

    def __hash__(self) -> int:
        return hash(self.facts())


def empty_band(home: Home) -> Band:
    """A band that holds nothing."""
    blocks = np.zeros((home.frames_limit >> BLOCK_BITS) + 1, np.intp)
    return Band(
        home,
        Table.full(home.ids_max + 1, -1),
        Table.full(((home.frames_limit >> BLOCK_BITS) + 1) << BLOCK_BITS, FREE),
        Table.full(home.ids_max, 0),
        blocks,
        live=0,
        spare=0,
        fresh=1,
        low=0,
        high=0,
        held=NOTHING_HELD,
    )


# --- choosing free frames ----------------------------------------------------------------------------------------------


def nearest_holes(band: Band, count: int, *, from_top: bool) -> Frames:
    """The ``count`` lowest holes of the span, ascending, or the highest, descending. Requires: count <= band.holes.

    Reads only the blocks that hold them. Every free frame outside the span lies in a block of no holes, or beyond the edge
    inside an edge block; the latter are cut off.
    """
    if count == 0:
        return NO_FRAMES
    blocks = band.blocks[::-1] if from_top else band.blocks
    nearest = int((blocks > 0).argmax())
    if int(blocks[nearest]) >= count:
        filled = np.array([len(blocks) - 1 - nearest if from_top else nearest])
    else:
        order = blocks.nonzero()[0]
        order = order[: int(blocks[order].cumsum().searchsorted(count)) + 1]
        filled = len(blocks) - 1 - order[::-1] if from_top else order
    found = band.page_of.find_in_blocks(FREE, filled, BLOCK_BITS)
    if int(found[0]) < band.low or int(found[-1]) >= band.high:
        found = found[int(found.searchsorted(band.low)) : int(found.searchsorted(band.high))]
    return found[: -1 - count : -1] if from_top else found[:count]


# --- transitions of one band -------------------------------------------------------------------------------------------


def next_ids(band: Band, count: int) -> NDArray[np.intp]:
    """The page indices that ``bind`` will hand out: recycled ones from the top of the stack, then fresh ones."""
    if not band.spare:
        return np.arange(band.fresh, band.fresh + count)
    recycled = min(count, band.spare)
    top = band.ids.read(slice(band.spare - recycled, band.spare)).astype(np.intp)
    if recycled == count:
        return top
    return np.concatenate((top, np.arange(band.fresh, band.fresh + count - recycled)))


def bind(band: Band, frames: Frames, own: int, low: int, high: int) -> tuple[Band, NDArray[np.intp]]:
    """Hand out one page per frame. The frames are free and distinct; the first ``own`` are holes of the span, in order.

    Args: [low, high) is the span afterwards. Returns: the band, and the page indices, intp[n], in the order of ``frames``.
    Cost: O(n).
    """
    count = len(frames)
    ids = next_ids(band, count)
    recycled = min(count, band.spare)
    blocks = band.blocks
    if own:
        first = min(int(frames[0]), int(frames[own - 1])) >> BLOCK_BITS
        taken = np.bincount((frames[:own] >> BLOCK_BITS) - first)
        blocks = blocks.copy()
        blocks[first : first + len(taken)] -= taken
    bound = Band(
        band.home,
        band.frame_of.write(ids, frames, -1),
        band.page_of.write(frames, ids, FREE),
        band.ids,
        blocks,
        band.live + count,
        band.spare - recycled,
        band.fresh + count - recycled,
        low,
        high,
        band.held,
    )
    return bound, ids


def frames_held(band: Band, ids: NDArray[np.intp]) -> NDArray[np.int32]:
    """The frames of pages that are about to be released. Raises: PageNotBound, PagePinned."""
    frames = band.frame_of.read(ids)
    if frames[frames.argmin()] < 0:
        loose = _named(band, ids[frames < 0])
        raise PageNotBound(f"{band.name}: page {loose} holds nothing; freed already or never allocated")
    if band.held.pins and not band.held.pins.keys().isdisjoint(ids.tolist()):
        pinned = np.array([page for page in ids.tolist() if page in band.held.pins])
        raise PagePinned(f"{band.name}: page {_named(band, pinned)} is pinned; unpin it before release")
    return frames


def check_distinct(band: Band, ids: NDArray[np.intp]) -> None:
    """Raise DuplicatePage when a page stands twice. Cost: a sort; ``unbind`` has a cheaper way."""
    ranked = np.sort(ids)
    twice = ranked[1:] == ranked[:-1]
    if twice.any():
        raise DuplicatePage(f"{band.name}: page {_named(band, ranked[1:][twice])} is named twice in one release")


def unbind(
    band: Band, ids: NDArray[np.intp], frames: NDArray[np.int32], reader: int | None, *, distinct: bool, restart: bool = True
) -> Band:
    """Free these pages, bound to ``frames``; the frames become holes, or wait in quarantine for ``reader``.

    ``distinct`` promises that no page stands twice; else it is checked: each page gets its own mark, and a page that was
    written twice does not read back the first. ``restart``: when nothing stays live, ids start again from the first.
    Raises: DuplicatePage; the band before stays valid.
    """
    count = len(ids)
    marks = -1 if distinct else np.arange(-1, -1 - count, -1)
    frame_of = band.frame_of.write(ids, marks, frames)
    if not distinct:
        twice = frame_of.read(ids) != marks
        if twice.any():
            raise DuplicatePage(f"{band.name}: page {_named(band, ids[twice])} is named twice in one release")
    cells = frames.astype(np.intp)
    blocks, held = band.blocks, band.held
    if reader is None:
        blocks = blocks + np.bincount(cells >> BLOCK_BITS, minlength=len(blocks))
    else:
        held = quarantine(held, reader, cells)
    left = band.live - count
    restart = restart and not left
    freed = Band(
        band.home,
        frame_of,
        band.page_of.write(cells, FREE if reader is None else QUARANTINED, ids),
        band.ids if restart else band.ids.write(slice(band.spare, band.spare + count), ids),
        blocks,
        left,
        0 if restart else band.spare + count,
        1 if restart else band.fresh,
        band.low,
        band.high,
        held,
    )
    return retreat(freed) if reader is None else freed


def _named(band: Band, ids: NDArray[np.intp]) -> str:
    names = [str(band.home.id_base + int(page)) for page in ids[:4]]
    return ", ".join(names) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")


def retreat(band: Band) -> Band:
    """Let edge holes go: the span shrinks to the hull of what is live or quarantined."""
    if band.live + band.held.count == 0:
        return evolve(band, low=0, high=0, blocks=np.zeros_like(band.blocks)) if band.high else band
    low, high = band.low, band.high
    if band.page_of.item(high - 1) == FREE:
        high = band.page_of.last_other(FREE, low, high) + 1
    if band.page_of.item(low) == FREE:
        low = band.page_of.first_other(FREE, low, high)
    if (low, high) == (band.low, band.high):
        return band
    blocks = band.blocks.copy()
    _drop_holes(blocks, high, band.high)
    _drop_holes(blocks, band.low, low)
    return Band(
        band.home, band.frame_of, band.page_of, band.ids, blocks, band.live, band.spare, band.fresh, low, high, band.held
    )


def _drop_holes(blocks: NDArray[np.intp], start: int, stop: int) -> None:
    """Take the frames [start, stop), all holes, out of the counts."""
    if start >= stop:
        return
    first, last = start >> BLOCK_BITS, (stop - 1) >> BLOCK_BITS
    if first == last:
        blocks[first] -= stop - start
        return
    blocks[first] -= ((first + 1) << BLOCK_BITS) - start
    blocks[first + 1 : last] = 0
    blocks[last] -= stop - (last << BLOCK_BITS)


def quarantine(held: Held, fence: int, frames: Frames) -> Held:
    """Add one batch of frames; two batches under one fence are kept apart and come back together (case F19)."""
    return Held(
        (*held.batches, Batch(fence, frames)),
        held.pins,
        held.count + len(frames),
        min(held.first, int(frames.min())),
        max(held.end, int(frames.max()) + 1),
    )


def hull_of(band: Band, batches: tuple[Batch, ...], pins: Mapping[int, int]) -> tuple[int, int]:
    """The hull [first, end) of some batches and pins; (NOWHERE, 0) when there are none."""
    first, end = NOWHERE, 0
    for batch in batches:
        first, end = min(first, int(np.min(batch.frames))), max(end, int(np.max(batch.frames)) + 1)
    if pins:
        frames = band.frame_of.read(np.fromiter(pins, np.intp, len(pins)))
        first, end = min(first, int(frames.min())), max(end, int(frames.max()) + 1)
    return first, end


def with_held(band: Band, batches: tuple[Batch, ...], pins: Mapping[int, int]) -> Band:
    """The band with other batches and pins, count and hull worked out again."""
    first, end = hull_of(band, batches, pins)
    return evolve(band, held=Held(batches, pins, sum(len(batch.frames) for batch in batches), first, end))


def dissolve(band: Band, fence: int) -> Band:
    """Quarantine up to ``fence`` becomes holes, and edges retreat."""
    passed = [batch for batch in band.held.batches if batch.fence <= fence]
    if not passed:
        return band
    frames = np.concatenate([np.asarray(batch.frames, np.intp) for batch in passed])
    kept = tuple(batch for batch in band.held.batches if batch.fence > fence)
    blocks = band.blocks + np.bincount(frames >> BLOCK_BITS, minlength=len(band.blocks))
    freed = evolve(band, page_of=band.page_of.write(frames, FREE), blocks=blocks)
    return retreat(with_held(freed, kept, band.held.pins))


def reseat(band: Band, sources: Frames, targets: Frames, reader: int | None = None) -> tuple[Band, NDArray[np.intp]]:
    """Move the pages in ``sources`` to the free frames ``targets``, pairwise; vacated frames become free or quarantined.

    Returns: the band with span and hole counts worked out afresh, and the page indices moved. Cost: O(span).
    """
    ids = band.page_of.read(sources).astype(np.intp)
    frame_of = band.frame_of.write(ids, targets)
    page_of = band.page_of.write(sources, FREE if reader is None else QUARANTINED).write(targets, ids)
    held = band.held if reader is None else quarantine(band.held, reader, sources)
    low, high = min(band.low, int(targets.min())), max(band.high, int(targets.max()) + 1)
    high = page_of.last_other(FREE, low, high) + 1
    low = page_of.first_other(FREE, low, high)
    holes = page_of.find(FREE, low, high)
    blocks = np.bincount(holes >> BLOCK_BITS, minlength=len(band.blocks))
    moved = evolve(band, frame_of=frame_of, page_of=page_of, blocks=blocks, low=low, high=high, held=held)
    return moved, ids
