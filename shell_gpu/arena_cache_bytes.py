"""Where the cached tensors of a batch of leases stand in the arena right now: reading, writing, growing, forking.

Needs torch, not transformers. Positions are looked up from the host value at every use and kept only until that value
changes, so nothing here can go stale when a plan moves frames; nothing is read back from the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from core_pure.capacity import Ints
from core_pure.errors import ArenaError, ContentsLost
from core_pure.fits import Refusal
from core_pure.geometry import View
from core_pure.leases import TOKENS, slots_of
from core_pure.step import block_table

from . import ops
from .arena import Arena
from .errors import TensorError

NONE: Ints = np.empty(0, np.int64)


class CacheError(ArenaError):
    """Base of the errors of a cache that lives in an arena."""


class UnsupportedCache(CacheError):
    """The model keeps something that the arena cannot hold; the message names the layer and its kind."""


class BatchChanged(CacheError):
    """Tensors of another batch size than the cache was opened for."""


class CacheFull(CacheError):
    """The arena refused the tokens of a forward; ``refusal`` holds the numbers. Nothing moved, the lease is as before."""

    def __init__(self, text: str, refusal: Refusal) -> None:
        super().__init__(text)
        self.refusal = refusal


class NotRewindable(CacheError, RuntimeError):
    """The cache cannot go back: a state has no past, or the window before that token has slid out."""


@frozen
class Place:
    """One cached tensor of one layer: its band's position in byte order, and its view inside a page."""

    band: int
    view: View


def places_of(arena: Arena) -> dict[tuple[int, str], Place]:
    """Every tensor that the arena's layout holds, by (layer, tensor name)."""
    return {
        (view.layer, view.tensor): Place(at, view)
        for at, band in enumerate(arena.layout.bands)
        if band.geometry is not None
        for view in band.geometry.views()
    }


class LeaseBytes:
    """The bytes of ``handles``, sequences of equal length, seen as one batch.

    Raises everywhere: LeaseStale when a lease has ended; ContentsLost when the arena slept since.
    """

    def __init__(self, arena: Arena, places: Mapping[tuple[int, str], Place], handles: Ints, *, owned: bool) -> None:
        self.arena = arena
        self.places = places
        self.handles = np.asarray(handles, np.int64)
        self.owned = owned
        self.spoiled: str | None = None
        self._buffer = weakref.ref(self._awake())
        self._index_of: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        self._indexed = weakref.ref(arena.value)
        _ = self.tokens  # a handle that is stale already is found here

    # --- facts -------------------------------------------------------------------------------------------------------------

    def _awake(self) -> Tensor:
        buffer = self.arena.buffer
        if buffer is None:
            raise ContentsLost("the arena sleeps; what this cache held is gone")
        return buffer

    def check(self) -> None:
        """Raise ContentsLost where the bytes are no longer those that this cache wrote, CacheError where they are half a step."""
        if self._awake() is not self._buffer():
            raise ContentsLost("the arena slept since this cache wrote; start a new cache")
        if self.spoiled is not None:
            raise CacheError(f"{self.spoiled}; reset() and compute again, and extend() before the forward to be told in time")

    @property
    def batch(self) -> int:
        """Sequences."""
        return len(self.handles)

    @property
    def tokens(self) -> int:
        """Tokens that each lease holds pages for. Raises: LeaseStale; CacheError when the leases differ in length."""
        _, facts = slots_of(self.arena.leases, self.handles)
        lengths = facts[:, TOKENS]
        if int(lengths.min()) != int(lengths.max()):
            raise CacheError(f"sequences of {int(lengths.min())} to {int(lengths.max())} tokens in one batch")
        return int(lengths[0])

    # --- growing and shrinking -----------------------------------------------------------------------------------------

    def grow(self, tokens: int) -> Refusal | None:
        """Take pages for ``tokens`` more of each sequence, in steps of at most the arena's chunk.

        Window pages go only when no token of all these can see them. Returns: None, or the refusal; then nothing grew.
        """
        self.check()
        before = self.tokens
        left = tokens
        while left:
            count = min(left, self.arena.chunk)
            counts = np.full(self.batch, count, np.int64)
            result = self.arena.step(self.handles, counts, slid=np.full(self.batch, before, np.int64))
            if isinstance(result, Refusal):
                if left < tokens:
                    self.arena.trim(self.handles, np.full(self.batch, before, np.int64))
                return result
            left -= count
        return None

    def rewind(self, tokens: int) -> None:
        """Give back pages past ``tokens``. Raises: LeaseError where the window before that token has slid out."""
        self.check()
        self.arena.trim(self.handles, np.full(self.batch, tokens, np.int64))

    def restart(self) -> None:
        """Give everything back and hold new, empty leases. Raises: CacheError where another owner opened them."""
        self._must_own("reset")
        self.arena.step(NONE, NONE, finished=self.handles)
        self.handles = self.arena.open(self.batch)
        self._buffer = weakref.ref(self._awake())
        self.spoiled = None

    def close(self) -> None:
        """Give everything back. Raises: CacheError where another owner opened the leases."""
        self._must_own("close")
        self.arena.step(NONE, NONE, finished=self.handles)

    def _must_own(self, what: str) -> None:
        if not self.owned:
            raise CacheError(f"{what}: these leases belong to the serving loop that opened them; end them there")

    def select(self, rows: Sequence[int]) -> None:
        """Let the batch become ``rows`` of the present one; a row that stands twice is forked, one that stands nowhere ends.

        Raises: CacheFull, nothing changed; CacheError where another owner opened the leases.
        """
        self._must_own("changing the batch")
        self.check()
        if not rows or not all(0 <= row < self.batch for row in rows):
            raise BatchChanged(f"rows {list(rows)} of a batch of {self.batch}")
        used: set[int] = set()
        chosen: list[int] = []
        forks: list[int] = []
        for row in rows:
            handle = int(self.handles[row])
            if row in used:
                forked = self.arena.fork(handle)
                if isinstance(forked, Refusal):
                    self.arena.step(NONE, NONE, finished=np.array(forks, np.int64))
                    raise CacheFull(f"no room for a copy of sequence {row}: {forked}", forked)
                forks.append(forked)
                handle = forked
            used.add(row)
            chosen.append(handle)
        gone = [int(handle) for row, handle in enumerate(self.handles) if row not in used]
        self.handles = np.array(chosen, np.int64)
        self.arena.step(NONE, NONE, finished=np.array(gone, np.int64))

    # --- bytes -----------------------------------------------------------------------------------------------------------

    def _tensor(self, place: Place) -> Tensor:
        return self.arena.views[self.arena.names[place.band]][place.view.layer, place.view.tensor]

    def _frames(self, band: int, columns: int) -> NDArray[np.int32]:
        """Frames by page position, int32[batch, columns]; 0, the sink, where a page has slid out."""
        leases = self.arena.leases
        slots, _ = slots_of(leases, self.handles)
        return block_table(self.arena.state, leases, slots, band, columns)

    def _index(self, band: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """(frame, slot) of tokens [first, last), int64[batch, last - first] each; kept until the arena's value changes."""
        self.check()
        value = self.arena.value
        if self._indexed() is not value:
            self._index_of.clear()
            self._indexed = weakref.ref(value)
        found = self._index_of.get((band, first, last))
        if found is None:
            page = self.arena.layout.bands[band].slots_per_page
            positions = np.arange(first, last)
            frames = self._frames(band, -(-last // page)).astype(np.int64)[:, positions // page]
            slots = np.broadcast_to(positions % page, frames.shape).copy()
            device = self.arena.device
            found = (torch.from_numpy(frames).to(device), torch.from_numpy(slots).to(device))
            self._index_of[band, first, last] = found
        return found

    def read(self, place: Place, first: int, last: int) -> Tensor:
        """Tokens [first, last) in their logical dtype: a copy [batch, last - first, *shape]; released ones read zero."""
        frames, slots = self._index(place.band, first, last)
        view = self._tensor(place)
        if view.element_size() == 1:  # byte-sized floats have no indexed read; their bits do
            return view.view(torch.uint8)[frames, slots].view(view.dtype).to(logical(place.view))
        return view[frames, slots]

    def write(self, places: Sequence[Place], first: int, rows: Sequence[Tensor]) -> None:
        """Store tokens from ``first`` on. rows: one tensor per place, [batch, n, *shape], in its logical dtype."""
        count = rows[0].shape[1]
        frames, slots = self._index(places[0].band, first, first + count)
        page = self.arena.layout.bands[places[0].band].slots_per_page
        where = (frames * page + slots).reshape(-1)
        flat = [one.reshape(-1, *place.view.shape) for place, one in zip(places, rows, strict=True)]
        views = [self._tensor(place) for place in places]
        if len(places) == 1:
            ops.store(flat[0], views[0], where)
        else:
            ops.store(flat[0], views[0], where, flat[1], views[1])

    def write_bytes(self, place: Place, first: int, rows: Tensor) -> None:
        """Store tokens of a tensor kept as raw bytes. rows: [batch, n, items] of any dtype that fills the slot."""
        frames, slots = self._index(place.band, first, first + rows.shape[1])
        self._tensor(place)[frames, slots] = rows.contiguous().view(torch.uint8)

    def state(self, place: Place) -> Tensor:
        """One state in place, [1, *shape]: writing to it writes to the arena. It stays there until the next plan."""
        self.check()
        frame = int(self._frames(place.band, 1)[0, 0])
        return self._tensor(place)[frame]


def logical(view: View) -> torch.dtype:
    """What the numbers of a view mean, whatever is stored."""
    dtype: torch.dtype = getattr(torch, view.dtype)
    return dtype


def check_tensor(where: str, tensor: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise TensorError unless a model's tensor has the dtype and device that the arena was laid out for."""
    if tensor.dtype != dtype:
        raise TensorError(f"{where}: the model gives {tensor.dtype}, the arena holds {dtype}; lay it out with the model's dtype")
    if tensor.device != device:
        raise TensorError(f"{where}: the model runs on {tensor.device}, the arena is on {device}")
