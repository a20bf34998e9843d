"""SGLang-shaped allocator calls on top of an arena: the worked example of docs/INTEGRATION.md.

One ``SglangAllocator`` per band, any number on one arena, without peers to bind: each answer is about all of them together.
Ids are virtual tokens, ``page id * page size + offset``, int64, and id 0 is the padding lane, as in SGLang. Differences on
purpose: ids live on the host (an id that has to be read back from a GPU is a synchronisation); and misuse is a typed error.
An arena whose pages are handed out here is not to be served through leases at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_pure.capacity import Evictor
from core_pure.errors import DemandError, DuplicatePage, ForeignPage, SinkPage
from core_pure.event import Event
from core_pure.fits import RELIEF, Refusal, obtainable
from core_pure.layout import Demand
from core_pure.leases import flat

from . import ops
from .arena import Arena
from .errors import TensorError

Ids = NDArray[np.int64]


class SglangAllocator:
    """Token ids of one band.

    Args: arena: on any device. band: its name; a state band has pages of one slot, so that ids are page ids. Raises:
    DemandError for an unknown band.
    """

    def __init__(self, arena: Arena, band: str) -> None:
        self.arena = arena
        self.band = arena.layout.index(band)
        self.page_size = arena.layout.bands[self.band].slots_per_page
        self.last_refusal: Refusal | None = None
        self._group: list[Ids] | None = None

    # --- capacity ----------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The most tokens that this band could ever hold, alone."""
        return self.arena.layout.frames_max[self.band] * self.page_size

    @property
    def largest_id(self) -> int:
        """No virtual token id of this arena is larger: what index tensors must be able to hold."""
        return self.arena.layout.ids_total * self.page_size - 1

    def available_size(self) -> int:
        """Tokens that ``alloc`` can have now, moves included, when no other band takes anything. Exact."""
        return obtainable(self.arena.state, self.band, RELIEF) * self.page_size

    def demand(self, num_tokens: int, states: int = 0) -> Demand:
        """Pages per band for whole pages of so many tokens here, and ``states`` slots of the state band."""
        pages = [0] * len(self.arena.names)
        pages[self.band] = -(-num_tokens // self.page_size)
        if states:
            pages[self.arena.layout.index("state")] += states
        return tuple(pages)

    def evict_to_free_tokens(self, tree_cache: Evictor | None, num_tokens: int) -> bool:
        """Evict the fewest bytes that let ``alloc(num_tokens)`` succeed; nothing when nothing helps. Returns: whether it will."""
        return self.arena.check_decode(self.demand(num_tokens), tree_cache)

    def check_decode_capacity(
        self, *, num_tokens: int, tree_cache: Evictor | None = None, requests: Sequence[object] | None = None,
        spec_algorithm: object = None, states: int = 0,
    ) -> bool:  # fmt: skip
        """Evict, then tell whether the next step's tokens and states fit together; after a yes ``alloc`` does not refuse.

        requests, spec_algorithm: taken for the shape of the call; the joint demand needs no help from them.
        """
        return self.arena.check_decode(self.demand(num_tokens, states), tree_cache)

    def verify_byte_accounting(self) -> list[str]:
        """What is wrong, as sentences; empty when healthy."""
        return [f"{each.claim}: {each.text}" for each in self.arena.verify()]

    # --- taking ------------------------------------------------------------------------------------------------------------

    def alloc(self, need_size: int) -> Tensor | None:
        """Whole pages of ``need_size`` token ids, int64[need_size] on the host; None when they do not fit.

        Why they do not is in ``last_refusal``. Raises: DemandError when the size is no whole number of pages.
        """
        if need_size < 0 or need_size % self.page_size:
            raise DemandError(
                f"{need_size} tokens are no whole number of pages of {self.page_size}; use alloc_extend or alloc_decode"
            )
        pages = self._take(need_size // self.page_size)
        if pages is None:
            return None
        starts = pages * self.page_size
        return torch.from_numpy(flat(starts, np.full(len(starts), self.page_size)).astype(np.int64))

    def alloc_extend(
        self, prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, extend_num_tokens: int | None = None
    ) -> Tensor | None:
        """Ids for tokens [prefix, length) of each sequence, one after the other: the rest of its last page, then new pages.

        Shapes: host integers [n] each; last_loc: the id of token prefix - 1, anything where prefix is 0. Returns: int64
        ids, or None. Raises: DemandError.
        """
        before, after, last = (_host(one, name) for one, name in
                               ((prefix_lens, "prefix_lens"), (seq_lens, "seq_lens"), (last_loc, "last_loc")))  # fmt: skip
        if not len(before) == len(after) == len(last) or (after < before).any() or (before < 0).any():
            raise DemandError("prefix_lens, seq_lens and last_loc are one number per sequence, and no length falls")
        if extend_num_tokens is not None and extend_num_tokens != int((after - before).sum()):
            raise DemandError(f"{extend_num_tokens} new tokens announced, lengths differ by {int((after - before).sum())}")
        size = self.page_size
        held, wanted = -(-before // size), -(-after // size)
        new = self._take(int((wanted - held).sum()))
        if new is None:
            return None
        first_new = np.cumsum(wanted - held) - (wanted - held)
        counts = after - before
        sequence = np.repeat(np.arange(len(before)), counts)
        position = flat(before, counts)
        page = position // size
        in_old = page < held[sequence]
        fresh = np.where(in_old, 0, first_new[sequence] + page - held[sequence])
        pages = np.where(in_old, last[sequence] // size, new[fresh] if len(new) else 0)
        return torch.from_numpy(pages * size + position % size)

    def alloc_decode(self, seq_lens: Tensor, last_loc: Tensor) -> Tensor | None:
        """The id of token seq_lens - 1 of each sequence. See ``alloc_extend``."""
        return self.alloc_extend(seq_lens - 1, seq_lens, last_loc, len(seq_lens))

    def _take(self, pages: int) -> Ids | None:
        outcome = self.arena.apply(Event("allocate", demand=self.demand(pages * self.page_size)))
        if isinstance(outcome, Refusal):
            self.last_refusal = outcome
            return None
        return outcome.pages[self.band].astype(np.int64)

    # --- giving back -------------------------------------------------------------------------------------------------------

    def free(self, free_index: Tensor) -> None:
        """Give back the pages of these tokens, any number of tokens of each page.

        Raises: PageNotBound (freed already, never allocated), SinkPage, ForeignPage (another band's), DuplicatePage (a token
        named twice), PagePinned; nothing is freed then. TensorError for ids on a GPU.
        """
        ids = _host(free_index, "free_index")
        if self._group is not None:
            self._group.append(ids.copy())
        elif len(ids):
            self.arena.apply(Event("release", pages=self._pages(ids)))

    def _pages(self, ids: Ids) -> Ids:
        """The pages of token ids, each once, all of this band."""
        if not len(ids):
            return ids
        if int(ids.min()) < self.page_size:
            raise SinkPage(f"token {int(ids.min())} is in the padding page, which is never handed out and never freed")
        tokens, times = np.unique(ids, return_counts=True)
        if int(times.max()) > 1:
            raise DuplicatePage(f"token {int(tokens[times.argmax()])} is named twice in one free")
        pages = np.unique(ids // self.page_size)
        base = self.arena.layout.id_bases[self.band]
        foreign = pages[(pages <= base) | (pages > base + self.arena.layout.frames_max[self.band])]
        if len(foreign):
            raise ForeignPage(f"page {int(foreign[0])} is not of band {self.arena.names[self.band]!r}")
        return pages

    def free_group_begin(self) -> None:
        """Collect frees until ``free_group_end``, which makes them one plan."""
        if self._group is not None:
            raise DemandError("free groups cannot be nested")
        self._group = []

    def free_group_end(self) -> None:
        """Free everything that was collected, at once. Raises: as ``free``; nothing is freed then."""
        pending, self._group = self._group or [], None
        if pending:
            together = np.concatenate(pending)
            self.free(torch.from_numpy(together))

    def clear(self) -> None:
        """Forget every page of every band of this arena."""
        self.arena.clear()

    # --- pages on the device -----------------------------------------------------------------------------------------------

    def is_slot_allocated(self, slot: int) -> bool:
        """Whether a virtual token id is held by somebody. Never raises."""
        return bool(self.arena.state.frames_of(np.array([slot // self.page_size]))[0])

    def translate_kv_loc(self, loc: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Virtual to physical token ids on the arena's device; -1, 0, unbound and out of range give the padding lane's 0.

        Shapes: loc int32 or int64 [n] or [rows, width], on the device; out int64 of the same shape, may be loc itself, for
        address-stable graph buffers. Raises: AlreadyPhysical; TensorError. A physical id: frame * page size + offset.
        """
        if isinstance(loc, ops.WriteLocs):
            ops.translate(loc, self.arena.tables.frame_of, loc)  # raises AlreadyPhysical, with its reason
        target = torch.empty(loc.shape, dtype=torch.int64, device=loc.device) if out is None else out
        pages = torch.div(loc, self.page_size, rounding_mode="floor").reshape(-1)
        ops.translate_writes(pages, loc.reshape(-1), self.arena.tables.frame_of, target.view(-1), self.page_size)
        return target

    def pin(self, ids: Tensor) -> None:
        """Keep the pages of these tokens where they are, for a transfer; everything else still moves."""
        self.arena.apply(Event("pin", pages=self._pages(_host(ids, "ids"))))

    def unpin(self, ids: Tensor) -> None:
        """Give the pin back."""
        self.arena.apply(Event("unpin", pages=self._pages(_host(ids, "ids"))))


def _host(ids: Any, name: str) -> Ids:
    """Ids as int64[n] without a copy. Raises: TensorError for another type, shape or device."""
    if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.dtype not in ops.INDEX_DTYPES:
        raise TensorError(f"{name} must be an int32 or int64 vector, got {getattr(ids, 'dtype', type(ids).__name__)}")
    if ids.device.type != "cpu":
        raise TensorError(f"{name} are on {ids.device}: keep ids on the host, reading them back would wait for the GPU")
    return ids.numpy().astype(np.int64, copy=False)
