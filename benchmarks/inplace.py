"""The floor for the pure core: one band with the same tables, the same checks and the same hole summary, in place.

It keeps no old value, makes no plan, knows no neighbour and refuses nothing: what is left is the table work itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core_pure.band import BLOCK_BITS, FREE

BLOCK = 1 << BLOCK_BITS


class InPlaceBand:
    """Page and frame tables, id stack and holes per block of 1,024 frames, all written in place."""

    def __init__(self, frames: int) -> None:
        self.frame_of = np.full(frames + 1, -1, np.int32)
        self.page_of = np.full(((frames >> BLOCK_BITS) + 1) << BLOCK_BITS, FREE, np.int32)
        self.ids = np.zeros(frames, np.int32)
        self.blocks = np.zeros((frames >> BLOCK_BITS) + 1, np.intp)
        self.live, self.spare, self.fresh, self.high = 0, 0, 1, 1
        self.frames = frames

    def allocate(self, count: int) -> NDArray[np.intp]:
        """Take pages: own holes lowest first, then beyond the span. Returns: page ids, intp[count]."""
        holes = self.high - 1 - self.live
        if self.high + count - min(count, holes) > self.frames + 1:
            raise MemoryError("no room")
        recycled = min(count, self.spare)
        ids = np.arange(self.fresh, self.fresh + count - recycled)
        if recycled:
            ids = np.concatenate((self.ids[self.spare - recycled : self.spare].astype(np.intp), ids))
        own = min(count, holes)
        frames = self._lowest(own) if own else np.empty(0, np.intp)
        if own < count:
            beyond = np.arange(self.high, self.high + count - own)
            self.high += count - own
            frames = np.concatenate((frames, beyond)) if own else beyond
        if own:
            first = int(frames[0]) >> BLOCK_BITS
            taken = np.bincount((frames[:own] >> BLOCK_BITS) - first)
            self.blocks[first : first + len(taken)] -= taken
        self.frame_of[ids] = frames
        self.page_of[frames] = ids
        self.live, self.spare, self.fresh = self.live + count, self.spare - recycled, self.fresh + count - recycled
        return ids

    def _lowest(self, count: int) -> NDArray[np.intp]:
        filled = self.blocks.nonzero()[0]
        filled = filled[: int(self.blocks[filled].cumsum().searchsorted(count)) + 1]
        first, last = int(filled[0]), int(filled[-1])
        if last - first < 2 * len(filled):
            found = (self.page_of[first << BLOCK_BITS : (last + 1) << BLOCK_BITS] == FREE).nonzero()[0] + (first << BLOCK_BITS)
        else:
            hits = (self.page_of.reshape(-1, BLOCK)[filled] == FREE).reshape(-1).nonzero()[0]
            found = (filled << BLOCK_BITS)[hits >> BLOCK_BITS] + (hits & (BLOCK - 1))
        return found[int(found.searchsorted(1)) :][:count]

    def release(self, pages: NDArray[np.integer]) -> None:
        """Free pages. Raises: KeyError for ids that are out of range, unbound, or named twice."""
        ids = pages.astype(np.intp)
        if int(ids.min()) < 1 or int(ids.max()) > self.frames:
            raise KeyError("out of range")
        frames = self.frame_of[ids].astype(np.intp)
        if int(frames.min()) < 0:
            raise KeyError("not bound")
        marks = np.arange(-1 - self.spare, -1 - self.spare - len(ids), -1)
        self.frame_of[ids] = marks
        if not (self.frame_of[ids] == marks).all():
            raise KeyError("twice")
        self.ids[self.spare : self.spare + len(ids)] = ids
        self.page_of[frames] = FREE
        self.blocks += np.bincount(frames >> BLOCK_BITS, minlength=len(self.blocks))
        self.live, self.spare = self.live - len(ids), self.spare + len(ids)
        while self.high > 1 and self.page_of[self.high - 1] == FREE:
            low = max(1, self.high - 4096)
            used = (self.page_of[low : self.high] != FREE).nonzero()[0]
            old, self.high = self.high, low + int(used[-1]) + 1 if len(used) else low
            gone = np.bincount(np.arange(self.high, old) >> BLOCK_BITS, minlength=len(self.blocks))
            self.blocks -= gone
            if len(used):
                break
