"""One model layer's part of an ``ArenaCache``: the interface of transformers' cache layers over the arena's bytes.

Each class answers lengths and mask sizes exactly as the stock dynamic layer does, and returns the same tokens in the same
shape; only where they are kept differs. What concerns all layers at once (crop, reorder, reset) stands in ``ArenaCache``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from .arena_cache_bytes import (
    BatchChanged,
    CacheError,
    CacheFull,
    LeaseBytes,
    NotRewindable,
    Place,
    UnsupportedCache,
    check_tensor,
    logical,
)
from .errors import TensorError


class _Whole:
    """What a single layer cannot do, because all layers share the lease's pages."""

    def reset(self) -> NoReturn:
        """Refused: the cache resets all layers at once."""
        raise CacheError("reset the cache, not one of its layers: all layers share the lease's pages")

    def reorder_cache(self, beam_idx: Tensor) -> NoReturn:
        """Refused: the cache reorders all layers at once."""
        raise CacheError("reorder the cache, not one of its layers: all layers share the lease's pages")

    def crop(self, tokens_to_remove: int) -> NoReturn:
        """Refused: the cache crops all layers at once."""
        raise CacheError("crop the cache, not one of its layers: all layers share the lease's pages")

    def batch_repeat_interleave(self, repeats: int) -> NoReturn:
        """Refused: the cache repeats all layers at once."""
        raise CacheError("repeat the cache, not one of its layers: all layers share the lease's pages")

    def batch_select_indices(self, indices: Tensor) -> NoReturn:
        """Refused: the cache selects in all layers at once."""
        raise CacheError("select from the cache, not from one of its layers: all layers share the lease's pages")

    def offload(self) -> NoReturn:
        """Refused: the arena has no second tier."""
        raise CacheError("an arena does not spill to host memory; build it with the bytes that are there")

    def prefetch(self) -> None:
        """Nothing is ever elsewhere."""

    def lazy_initialization(self, *args: object, **kwargs: object) -> None:
        """The arena was initialised when it was built."""

    def activate_past_recording(self) -> NoReturn:
        """Refused: no past is kept."""
        raise NotRewindable("an arena cache keeps no past beyond what the next token needs; fork() it before drafting instead")


class AttentionLayer(_Whole, CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, of every token or of a window.

    seen: tokens that this layer has stored; during a forward it runs behind the lease until the layer is reached.
    """

    is_compileable = False

    def __init__(self, lease: LeaseBytes, index: int, key: Place, value: Place, window: int | None) -> None:
        self.lease = lease
        self.index = index
        self.places = (key, value)
        self.window = window
        self.seen = 0
        if window is not None:
            self.sliding_window = window

    # --- what transformers asks ----------------------------------------------------------------------------------------

    @property
    def is_sliding(self) -> bool:
        """Whether old tokens go."""
        return self.window is not None

    @property
    def is_croppable(self) -> bool:
        """Whether any rollback is possible: a window loses its past."""
        return self.window is None

    @property
    def is_initialized(self) -> bool:
        """Whether anything is stored."""
        return self.seen > 0

    @property
    def batch_size(self) -> int:
        """Sequences."""
        return self.lease.batch

    max_batch_size = batch_size

    @property
    def device(self) -> torch.device:
        """Where the arena is."""
        return self.lease.arena.device

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return logical(self.places[0].view)

    @property
    def keys(self) -> Tensor | None:
        """A copy of what is visible to the next token, [batch, heads, tokens, dim]."""
        return self._read(self.places[0], self.first_visible, self.seen) if self.seen else None

    @property
    def values(self) -> Tensor | None:
        """A copy of what is visible to the next token, [batch, heads, tokens, dim]."""
        return self._read(self.places[1], self.first_visible, self.seen) if self.seen else None

    @property
    def first_visible(self) -> int:
        """Position of the oldest token that the stock layer keeps."""
        return 0 if self.window is None else max(0, self.seen - self.window + 1)

    def get_seq_length(self) -> int:
        """Tokens stored so far, those of a window that have slid out included."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(tokens that the next forward of ``query_length`` reads, position of the first)."""
        return self.seen + query_length - self.first_visible, self.first_visible

    def get_max_length(self) -> int:
        """The window, or -1 for no limit of this layer's."""
        return -1 if self.window is None else self.window

    get_max_cache_shape = get_max_length

    # --- storing and reading -------------------------------------------------------------------------------------------

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        """Store new keys and values, [batch, heads, n, dim], and return all that these tokens may read.

        Raises: CacheFull, BatchChanged, TensorError naming the layer, LeaseStale, ContentsLost.
        """
        self._check(key_states, value_states)
        count = int(key_states.shape[-2])
        _ensure(self.lease, self.seen + count, self.index)
        first, before = self.first_visible, self.seen
        rows = [
            states.transpose(1, 2).reshape(self.lease.batch, count, *place.view.shape).contiguous()
            for place, states in zip(self.places, (key_states, value_states), strict=True)
        ]
        self.lease.write(self.places, before, rows)
        self.seen = before + count
        key, value = self.places
        return self._read(key, first, self.seen), self._read(value, first, self.seen)

    def _read(self, place: Place, first: int, last: int) -> Tensor:
        """[batch, heads, tokens, dim], contiguous, as a concatenation would be; a latent has one head."""
        rows = self.lease.read(place, first, last)
        if len(place.view.shape) == 1:
            return rows.unsqueeze(1)
        return rows.transpose(1, 2).contiguous()

    def _check(self, key_states: Tensor, value_states: Tensor) -> None:
        for place, states in zip(self.places, (key_states, value_states), strict=True):
            where = f"layer {self.index}, {place.view.tensor}"
            if states.shape[0] != self.lease.batch:
                raise BatchChanged(f"{where}: {states.shape[0]} sequences; this cache was opened for {self.lease.batch}")
            check_tensor(where, states, logical(place.view), self.device)
            shape = place.view.shape if len(place.view.shape) > 1 else (1, *place.view.shape)
            if (states.shape[1], states.shape[3]) != shape:
                raise TensorError(
                    f"{where}: heads and dim are {(states.shape[1], states.shape[3])}; the arena was laid out for {shape}"
                )


class IndexedLayer(AttentionLayer):
    """Attention with the key cache of a sparse indexer beside it, kept as raw bytes."""

    def __init__(self, lease: LeaseBytes, index: int, key: Place, value: Place, indexer: Place) -> None:
        super().__init__(lease, index, key, value, None)
        self.indexer = indexer
        self.indexed = 0
        self.is_indexer_initialized = False

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Store new index keys, [batch, n, dim], and return all of them. Raises: as ``update``."""
        where, states = f"layer {self.index}, index", indexer_key_states
        if states.shape[0] != self.lease.batch:
            raise BatchChanged(f"{where}: {states.shape[0]} sequences; this cache was opened for {self.lease.batch}")
        if states.shape[2] * states.element_size() != self.indexer.view.slot_bytes:
            raise TensorError(
                f"{where}: {states.shape[2]} numbers of {states.dtype} a token; the arena holds "
                f"{self.indexer.view.slot_bytes} bytes"
            )
        check_tensor(where, states, states.dtype, self.device)
        _ensure(self.lease, self.indexed + states.shape[1], self.index)
        self.lease.write_bytes(self.indexer, self.indexed, states)
        self.indexed += states.shape[1]
        self.is_indexer_initialized = True
        return self.lease.read(self.indexer, 0, self.indexed).view(states.dtype)


class States(Mapping[int, Tensor | None]):
    """A layer's states under number 0, as transformers indexes them: in place in the arena, or None until first written."""

    def __init__(self, lease: LeaseBytes, place: Place | None) -> None:
        self.lease = lease
        self.place = place
        self.written = False

    def __getitem__(self, number: int) -> Tensor | None:
        if number != 0:
            raise KeyError(number)
        return self.view() if self.written else None

    def __iter__(self) -> Iterator[int]:
        return iter((0,))

    def __len__(self) -> int:
        return 1

    def view(self) -> Tensor:
        """The bytes in the arena, [1, *shape]; the lease must hold a token."""
        assert self.place is not None
        return self.lease.state(self.place)


class StateLayer(_Whole, LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """Conv window and recurrent state of one layer, of one sequence."""

    is_compileable = False
    is_croppable = False

    def __init__(self, lease: LeaseBytes, index: int, conv: Place, recurrent: Place | None) -> None:
        LinearAttentionCacheLayerMixin.__init__(self)
        self._open(lease, index, conv, recurrent)

    def _open(self, lease: LeaseBytes, index: int, conv: Place, recurrent: Place | None) -> None:
        self.lease = lease
        self.index = index
        self.conv_states = States(lease, conv)
        self.recurrent_states = States(lease, recurrent)
        self.conv_kernel_size = {0: conv.view.shape[-1]}

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: object
    ) -> Tensor:
        """Append inputs, [1, channels, n]; keep the newest; return the kept ones and these together.

        Raises: as ``update`` of attention.
        """
        kept = self.conv_states
        assert kept.place is not None
        width = kept.place.view.shape[-1]
        if conv_kernel_size not in (None, width):
            raise TensorError(f"layer {self.index}, conv: a kernel of {conv_kernel_size}; the arena keeps {width} inputs")
        self._check_state("conv", kept.place, conv_states, (*kept.place.view.shape[:-1], conv_states.shape[-1]))
        _ensure(self.lease, 1, self.index)
        before = kept[0]
        if before is None:
            missing = max(0, width - conv_states.shape[-1])
            together = torch.nn.functional.pad(conv_states, (missing, 0), value=0) if missing else conv_states
        else:
            together = torch.cat([before, conv_states], dim=-1)
        kept.view().copy_(together[..., -width:])
        kept.written = True
        self.is_conv_states_initialized[0] = True
        self.has_previous_state[0] = True
        return together

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: object) -> Tensor:
        """Replace the state, [1, *shape]; returns it in place. Raises: as ``update`` of attention."""
        kept = self.recurrent_states
        if kept.place is None:
            raise UnsupportedCache(f"layer {self.index} gives a recurrent state; the arena was laid out for its conv window only")
        self._check_state("recurrent state", kept.place, recurrent_states, kept.place.view.shape)
        _ensure(self.lease, 1, self.index)
        kept.view().copy_(recurrent_states)
        kept.written = True
        self.is_recurrent_states_initialized[0] = True
        return kept.view()

    def get_max_length(self) -> int:
        """A state has no length."""
        return -1

    def _check_state(self, what: str, place: Place, states: Tensor, shape: tuple[int, ...]) -> None:
        where = f"layer {self.index}, {what}"
        if states.shape[0] != self.lease.batch:
            raise BatchChanged(f"{where}: {states.shape[0]} sequences; this cache was opened for {self.lease.batch}")
        check_tensor(where, states, logical(place.view), self.lease.arena.device)
        if tuple(states.shape[1:]) != shape:
            raise TensorError(f"{where}: shape {tuple(states.shape[1:])}; the arena was laid out for {shape}")


class StateAndAttentionLayer(StateLayer, AttentionLayer):
    """A layer that keeps states and keys and values beside each other."""

    is_compileable = False
    is_croppable = False

    def __init__(
        self,
        lease: LeaseBytes,
        index: int,
        conv: Place,
        recurrent: Place | None,
        attention: tuple[Place, Place],
        window: int | None,
    ) -> None:
        # transformers' own initialiser of states writes device and dtype, which attention derives from the arena
        self.number_of_states = 1
        self.is_conv_states_initialized = {0: False}
        self.is_recurrent_states_initialized = {0: False}
        self.has_previous_state = {0: False}
        self.record_past = False
        self._open(lease, index, conv, recurrent)
        AttentionLayer.__init__(self, lease, index, *attention, window)

    get_max_length = AttentionLayer.get_max_length


class NothingLayer(_Whole, LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """A layer that caches nothing (feed-forward only), where this version of transformers counts it among the states."""

    is_compileable = False
    is_croppable = True

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **kwargs: Any) -> NoReturn:
        """Refused: nothing was laid out for it."""
        raise UnsupportedCache(f"layer {self.index} gives a conv state; by its configuration it caches nothing")

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> NoReturn:
        """Refused: nothing was laid out for it."""
        raise UnsupportedCache(f"layer {self.index} gives a recurrent state; by its configuration it caches nothing")

    def get_max_length(self) -> int:
        """Nothing has no length."""
        return -1


def _ensure(lease: LeaseBytes, tokens: int, layer: int) -> None:
    """Hold pages for ``tokens`` of each sequence; a serving loop has taken them before the forward.

    Raises: CacheFull; where a state before ``layer`` has already taken the token in, the cache is of no use until reset.
    """
    held = lease.tokens
    lease.check()
    if tokens <= held:
        return
    refusal = lease.grow(tokens - held)
    if refusal is None:
        return
    if any(name == "conv" and index <= layer for index, name in lease.places) and held:
        lease.spoiled = f"layer {layer} was refused pages in the middle of a forward, after states had moved on"
    raise CacheFull(f"{tokens - held} more tokens after {held} do not fit: {refusal}", refusal)
