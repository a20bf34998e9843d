"""``ArenaCache``: a transformers cache that owns no tensor. Everything it caches lies in the bands of an arena.

Use it wherever the stock dynamic cache goes (``model.generate(..., past_key_values=cache)``); several share one arena.
Driven by ``generate`` it takes pages as tokens come; driven by a serving loop it is bound to a lease whose pages the loop
took before the forward. Importing this module needs the optional extra ``transformers``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from core_pure.capacity import Ints
from core_pure.errors import LeaseError
from core_pure.fits import Refusal
from core_pure.geometry import CrossAttention

from .arena import Arena
from .arena_cache_bytes import (
    BatchChanged,
    CacheError,
    CacheFull,
    LeaseBytes,
    NotRewindable,
    Place,
    UnsupportedCache,
    places_of,
)
from .arena_cache_layers import AttentionLayer, IndexedLayer, NothingLayer, StateAndAttentionLayer, StateLayer

__all__ = ["ArenaCache", "BatchChanged", "CacheError", "CacheFull", "NotRewindable", "Served", "UnsupportedCache"]

ATTENTION = ("DynamicLayer", "DynamicSlidingWindowLayer")
INDEXED = "DynamicIndexedLayer"
STATE = "LinearAttentionLayer"
BOTH = ("LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer")
NOTHING = "DummyLayer"
"""Stock layer classes by name: versions of transformers differ in which of them exist."""
TENSORS = ("k", "v", "latent", "rope", "index", "conv", "temporal")
"""The names that the geometry gives to what one layer caches."""


@frozen(eq=False)
class Served:
    """One model in one arena, checked once: where every layer's tensors lie. Calling it opens a cache.

    Raises: UnsupportedCache naming the layer that the arena cannot hold.
    """

    arena: Arena
    config: Any
    stock: list[Any] = field(init=False, repr=False)
    places: dict[tuple[int, str], Place] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Read the configuration as this version of transformers does, and check it against the arena."""
        stock = stock_layers(self.config)
        check_support(self.arena, stock)
        object.__setattr__(self, "stock", stock)
        object.__setattr__(self, "places", places_of(self.arena))

    def __call__(self, handles: Ints | None = None, *, batch: int = 1) -> ArenaCache:
        """A cache bound to a loop's leases, or with ``batch`` leases of its own."""
        return ArenaCache(self.arena, self.config, handles, batch=batch, served=self)


class ArenaCache(Cache):  # type: ignore[misc]
    """The cache of one sequence, or of a batch of sequences of equal (padded) length.

    Args: arena: laid out for this model. config: the model's configuration. handles: leases that a serving loop opened, one
    per sequence; without them the cache opens ``batch`` leases and ends them in ``close`` (it is a context manager).
    served: the result of an earlier check of this model and arena. Raises: UnsupportedCache naming the layer; BatchChanged;
    LeaseError; LeaseStale; ContentsLost.
    """

    def __init__(
        self, arena: Arena, config: Any, handles: Ints | None = None, *, batch: int = 1, served: Served | None = None
    ) -> None:
        served = served or Served(arena, config)
        owned = handles is None
        count = batch if handles is None else len(handles)
        if count < 1 or (count > 1 and any(not band.grows for band in arena.layout.bands)):
            raise BatchChanged(
                f"a batch of {count} sequences: at least one, and exactly one where layers keep states (the states of several "
                "sequences are no single tensor in an arena); use one cache per sequence"
            )
        self.served = served
        self.lease = LeaseBytes(arena, served.places, arena.open(count) if handles is None else handles, owned=owned)
        super().__init__(layers=[_layer(self.lease, index, one) for index, one in enumerate(served.stock)])

    # --- life ------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> ArenaCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the pages back; any later use raises LeaseStale. Raises: CacheError where a loop owns the leases."""
        self.lease.close()

    @property
    def handles(self) -> Ints:
        """The leases, int64[batch]."""
        return self.lease.handles

    @property
    def is_compileable(self) -> bool:
        """Never: frames move between steps, so addresses are no constants of a compiled graph."""
        return False

    def extend(self, tokens: int) -> Refusal | None:
        """Take the pages of the next ``tokens`` before their forward: a refusal then is a value, and no layer has run."""
        return self.lease.grow(tokens)

    def fork(self) -> ArenaCache | Refusal:
        """A second cache with the same contents: whole pages shared, states and the partial page copied (checkpoints, drafts).

        Returns: the copy, which ends on its own; or the refusal, nothing changed: optional work is skipped (case F39).
        """
        if self.lease.batch != 1:
            raise BatchChanged(f"fork one sequence at a time; this cache has {self.lease.batch}")
        self.lease.check()
        forked = self.lease.arena.fork(int(self.lease.handles[0]))
        if isinstance(forked, Refusal):
            return forked
        copy = self.served(np.array([forked], np.int64))
        copy.lease.owned = True
        for mine, other in zip(self.layers, copy.layers, strict=True):
            _resume(other, mine)
        return copy

    # --- what the base class promises ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Empty the cache; its pages go back and new leases are held. Raises: CacheError where a loop owns the leases."""
        self.lease.restart()
        for layer in self.layers:
            _rewind(layer, 0)

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the newest ``-tokens_to_remove`` tokens.

        Raises: NotRewindable where a layer keeps states, or the window before that token has slid out; ValueError for a
        positive number, as the base class does.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): pass a negative number of tokens to remove")
        stuck = next((layer.index for layer in self.layers if isinstance(layer, StateLayer)), None)
        if stuck is not None:
            raise NotRewindable(f"layer {stuck} keeps a state, which has no past; fork() the cache before drafting instead")
        left = max((layer.seen for layer in self.layers if isinstance(layer, AttentionLayer)), default=0) + tokens_to_remove
        if left < 0:
            raise ValueError(f"crop({tokens_to_remove}) of {left - tokens_to_remove} tokens")
        if tokens_to_remove == 0:
            return
        if left == 0:
            self.reset()
            return
        try:
            self.lease.rewind(left)
        except LeaseError as error:
            raise NotRewindable(str(error)) from error
        for layer in self.layers:
            _rewind(layer, left)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let sequence i continue from what was sequence ``beam_idx[i]``. Raises: CacheFull, nothing changed."""
        rows = [int(row) for row in beam_idx]
        if len(rows) != self.lease.batch:
            raise BatchChanged(f"{len(rows)} beams for a cache of {self.lease.batch} sequences")
        self.lease.select(rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these sequences, by number or by mask. Raises: CacheFull, nothing changed."""
        chosen = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self.lease.select([int(row) for row in chosen])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence ``repeats`` times. Raises: CacheFull, nothing changed; BatchChanged where layers keep states."""
        if repeats > 1 and any(isinstance(layer, StateLayer) for layer in self.layers):
            raise BatchChanged("the states of several sequences are no single tensor in an arena; use one cache per sequence")
        self.lease.select([row for row in range(self.lease.batch) for _ in range(repeats)])

    def activate_past_recording(self) -> None:
        """Refused unless every layer keeps all tokens anyway. Raises: NotRewindable naming the layer."""
        for layer in self.layers:
            if isinstance(layer, StateLayer) or getattr(layer, "window", None) is not None:
                layer.activate_past_recording()

    def early_initialization(self, *args: object, **kwargs: object) -> None:
        """Nothing to do: the arena was initialised when it was built."""


# --- which layer is which ----------------------------------------------------------------------------------------------


def stock_layers(config: Any) -> list[Any]:
    """The layers of the stock dynamic cache: this version's own reading of the configuration."""
    return list(DynamicCache(config=config).layers)


def _held(places: Mapping[tuple[int, str], Place], index: int) -> dict[str, Place]:
    """The tensors of one layer. Their names are few and fixed."""
    return {name: places[index, name] for name in TENSORS if (index, name) in places}


def check_support(arena: Arena, stock: list[Any]) -> None:
    """Raise UnsupportedCache, naming the layer, unless the arena holds exactly what each layer of the model keeps."""
    known = (*ATTENTION, INDEXED, STATE, *BOTH, NOTHING)
    for band in arena.layout.bands:
        for layer in band.geometry.layers if band.geometry else ():
            if layer.index >= len(stock):
                raise UnsupportedCache(f"the arena keeps layer {layer.index}; the model's cache has {len(stock)} layers")
            if isinstance(layer.kind, CrossAttention):
                raise UnsupportedCache(
                    f"layer {layer.index} is cross-attention over encoder tokens, which an ArenaCache does not serve"
                )
    places = places_of(arena)
    for index, one in enumerate(stock):
        name, held = type(one).__name__, _held(places, index)
        where = f"layer {index} ({name})"
        if name not in known:
            raise UnsupportedCache(f"{where}: this kind of cache is not supported; supported are {', '.join(known)}")
        if getattr(one, "number_of_states", 1) != 1:
            raise UnsupportedCache(f"{where}: {one.number_of_states} states in one layer; one is supported")
        wanted = _wanted(name, held)
        if not wanted <= set(held):
            raise UnsupportedCache(
                f"{where} keeps {', '.join(sorted(wanted))}; the arena was laid out for {', '.join(sorted(held)) or 'nothing'}"
            )
        window = getattr(one, "sliding_window", None)
        if window is not None and "k" in held and arena.layout.bands[held["k"].band].window != window:
            raise UnsupportedCache(
                f"{where}: a window of {window} tokens; the arena keeps {arena.layout.bands[held['k'].band].window}"
            )


def _wanted(name: str, held: dict[str, Place]) -> set[str]:
    """The tensors without which a layer of this kind cannot be served."""
    attention = {"latent", "rope"} if "latent" in held else {"k", "v"}
    if name in ATTENTION:
        return attention
    if name == INDEXED:
        return attention | {"index"}
    if name in BOTH:
        return attention | {"conv"}
    # a linear layer without conv keeps its state outside the per-layer interface, or is a feed-forward layer that keeps nothing
    return {"conv"} if name == STATE and held else set()


def _layer(lease: LeaseBytes, index: int, stock: Any) -> Any:
    """The arena's layer in place of a stock one. The support check has passed."""
    name, held = type(stock).__name__, _held(lease.places, index)
    window = getattr(stock, "sliding_window", None)
    if name == NOTHING or not held:
        return stock if name == NOTHING else NothingLayer(index)
    if name == STATE:
        return StateLayer(lease, index, held["conv"], held.get("temporal"))
    pair = (held["latent"], held["rope"]) if "latent" in held else (held["k"], held["v"])
    if name in ATTENTION:
        return AttentionLayer(lease, index, *pair, window)
    if name == INDEXED:
        return IndexedLayer(lease, index, *pair, held["index"])
    return StateAndAttentionLayer(lease, index, held["conv"], held.get("temporal"), pair, window)


def _rewind(layer: Any, tokens: int) -> None:
    """Tell a layer that it holds ``tokens``."""
    if isinstance(layer, AttentionLayer):
        layer.seen = min(layer.seen, tokens)
    if isinstance(layer, IndexedLayer):
        layer.indexed = min(layer.indexed, tokens)
    if isinstance(layer, StateLayer) and tokens == 0:
        for states in (layer.conv_states, layer.recurrent_states):
            states.written = False
        for flags in (layer.is_conv_states_initialized, layer.is_recurrent_states_initialized, layer.has_previous_state):
            flags[0] = False


def _resume(layer: Any, other: Any) -> None:
    """Let a layer of a copy stand where the original's stands."""
    if isinstance(layer, AttentionLayer):
        layer.seen = other.seen
    if isinstance(layer, IndexedLayer):
        layer.indexed, layer.is_indexer_initialized = other.indexed, other.is_indexer_initialized
    if isinstance(layer, StateLayer):
        layer.conv_states.written = other.conv_states.written
        layer.recurrent_states.written = other.recurrent_states.written
        for name in ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state"):
            getattr(layer, name)[0] = getattr(other, name)[0]


def cache_argument(model: Any) -> str:
    """The name under which this version's models take a cache in ``forward``: it changed from past_key_values to cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
