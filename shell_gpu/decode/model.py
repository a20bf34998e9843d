"""A hybrid decoder with random weights: one decode step over lanes, and packed prompt chunks.

It never sees a page id: tables hold frames and slots are physical, so a captured decode has no translation in it. ``ops``
is ``launch`` (Triton) or ``twins`` (plain torch).
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from . import words
from .memory import Memory
from .shape import STATE, HybridShape

DECAY_BIAS = 4.0
"""Added to every decay before its sigmoid: a state forgets 2 % a token, so that a lost state stays visible for long."""


def kernels_for(device: torch.device) -> ModuleType:
    """Triton where there is a GPU, the plain twins elsewhere."""
    if device.type == "cuda":
        from . import launch

        return launch
    from . import twins

    return twins


@frozen(eq=False)
class LayerWeights:
    """One layer: norms [hidden], projections [out, in], and the bias of decays and strengths (recurrent layers)."""

    norm_mix: Tensor
    norm_mlp: Tensor
    first: Tensor
    last: Tensor
    gate_up: Tensor
    down: Tensor
    bias: Tensor | None


@frozen(eq=False)
class Weights:
    """All weights of a model."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor

    @classmethod
    def random(cls, shape: HybridShape, device: torch.device, seed: int = 0) -> Weights:
        """Normal weights of variance 1 / inputs, so that activations keep their size."""
        dtype: torch.dtype = getattr(torch, shape.dtype)
        generator = torch.Generator(device).manual_seed(seed)

        def matrix(rows: int, columns: int) -> Tensor:
            drawn = torch.empty(rows, columns, dtype=dtype, device=device)
            return drawn.normal_(std=columns**-0.5, generator=generator)

        def ones() -> Tensor:
            return torch.ones(shape.hidden, dtype=dtype, device=device)

        layers = []
        for index, word in enumerate(shape.pattern):
            width, inner = shape.widths(index)
            bias = None
            if word == STATE:
                bias = torch.zeros(2 * shape.state_heads, dtype=dtype, device=device)
                bias[: shape.state_heads] = DECAY_BIAS
            mix = (matrix(width, shape.hidden), matrix(shape.hidden, inner))
            mlp = (matrix(2 * shape.intermediate, shape.hidden), matrix(shape.hidden, shape.intermediate))
            layers.append(LayerWeights(ones(), ones(), *mix, *mlp, bias))
        embedding = torch.empty(shape.vocabulary, shape.hidden, dtype=dtype, device=device).normal_(generator=generator)
        return cls(embedding, tuple(layers), ones(), matrix(shape.vocabulary, shape.hidden))


@frozen(eq=False)
class PromptChunk:
    """Prompt tokens of several sequences, packed one after the other. All on the device.

    tokens int64[n]; writes int64[n]: index of each token's write slot; tiles int32[t, TILE_WORDS]; runs int32[RUN_WORDS,
    s]; last int64[s]: index of each sequence's last token here; sources int64[s]: where its next token goes.
    """

    tokens: Tensor
    writes: Tensor
    tiles: Tensor
    runs: Tensor
    last: Tensor
    sources: Tensor

    @classmethod
    def pack(
        cls, model: HybridModel, tokens: Tensor, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray,
        writes: np.ndarray, sources: np.ndarray,
    ) -> PromptChunk:  # fmt: skip
        """Cut chunks into tiles. Args, per sequence: table row, first position, tokens, first write slot's index, place."""
        device = tokens.device
        ends = np.cumsum(counts)
        firsts = ends - counts
        tile = model.ops.prompt_tokens(model.shape.heads, model.shape.kv_heads)
        pieces = -(-counts // tile)
        piece = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        own = np.repeat(np.arange(len(counts)), pieces)
        begun = piece * tile
        tiles = np.stack((rows[own], firsts[own] + begun, starts[own] + begun, np.minimum(counts[own] - begun, tile)), 1)
        inside = np.arange(int(ends[-1])) - np.repeat(firsts, counts)

        def sent(array: np.ndarray, dtype: type) -> Tensor:
            held = torch.from_numpy(np.ascontiguousarray(array, dtype))
            return held.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else held

        return cls(
            tokens, sent(np.repeat(writes, counts) + inside, np.int64), sent(tiles, np.int32),
            sent(np.stack((rows, firsts, counts)), np.int32), sent(ends - 1, np.int64), sent(sources, np.int64),
        )  # fmt: skip


class HybridModel:
    """A decoder over a ``Memory``. Its results depend on tokens and positions, never on frames."""

    def __init__(self, shape: HybridShape, weights: Weights, ops: ModuleType) -> None:
        self.shape = shape
        self.weights = weights
        self.ops = ops
        self.device = weights.embedding.device

    def workspace(self, memory: Memory, lanes: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Scratch of the decode attention by window, for so many lanes; layers of one window share it."""
        shape, made = self.shape, {}
        for layer, word in enumerate(shape.pattern):
            window = shape.window_of(layer)
            if word != STATE and window not in made:
                band = shape.band_of(layer)
                page = memory.views[band][layer, "k"].shape[1]
                splits = self.ops.splits_of(memory.tables[band].shape[1], page, window)
                made[window] = self.ops.scratch(lanes, shape.heads, shape.head_dim, splits, self.device)
        return made

    def decode(self, memory: Memory, lanes: int, work: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """One token for each of the first ``lanes`` lanes: caches are written, next tokens stored.

        Returns: logits [lanes, vocabulary]. Padded lanes write nothing but the padding's token.
        """
        held = memory.lanes[:, :lanes]
        source = held[words.LANE_SOURCE].long()
        forced = held[words.LANE_TOKEN].long()
        chosen = torch.where(forced >= 0, forced, memory.tokens[source])
        write = held[words.LANE_WRITE].long()
        real = held[words.LANE_ROW] >= 0
        slots = {band: torch.where(real, held_slots[write], 0) for band, held_slots in memory.slots.items()}
        hidden = self.weights.embedding[chosen]
        for layer in range(len(self.shape.pattern)):
            hidden = self._layer(memory, layer, hidden, slots, work=work)
        return self._finish(memory, hidden, source)

    def prompt(self, memory: Memory, chunk: PromptChunk) -> Tensor:
        """Packed prompt chunks: caches are written, each sequence's next token stored. Returns: logits [s, vocabulary]."""
        slots = {band: held[chunk.writes] for band, held in memory.slots.items()}
        hidden = self.weights.embedding[chunk.tokens]
        for layer in range(len(self.shape.pattern)):
            hidden = self._layer(memory, layer, hidden, slots, chunk=chunk)
        return self._finish(memory, hidden[chunk.last], chunk.sources)

    def _finish(self, memory: Memory, hidden: Tensor, places: Tensor) -> Tensor:
        logits = functional.linear(self._norm(hidden, self.weights.norm), self.weights.head)
        memory.tokens.index_copy_(0, places, logits.argmax(-1))
        return logits

    @staticmethod
    def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (hidden.shape[-1],), weight, 1e-6)

    def _layer(
        self, memory: Memory, layer: int, hidden: Tensor, slots: dict[str, Tensor], *,
        work: dict[int, tuple[Tensor, Tensor]] | None = None, chunk: PromptChunk | None = None,
    ) -> Tensor:  # fmt: skip
        held = self.weights.layers[layer]
        first = functional.linear(self._norm(hidden, held.norm_mix), held.first)
        mix = self._recur if self.shape.pattern[layer] == STATE else self._attend
        hidden = hidden + functional.linear(mix(memory, layer, first, slots, work, chunk), held.last)
        gate, up = functional.linear(self._norm(hidden, held.norm_mlp), held.gate_up).chunk(2, -1)
        return hidden + functional.linear(functional.silu(gate) * up, held.down)

    def _attend(
        self, memory: Memory, layer: int, first: Tensor, slots: dict[str, Tensor],
        work: dict[int, tuple[Tensor, Tensor]] | None, chunk: PromptChunk | None,
    ) -> Tensor:  # fmt: skip
        shape = self.shape
        band, window, dim = shape.band_of(layer), shape.window_of(layer), shape.head_dim
        heads = first.view(first.shape[0], -1, dim)
        queries = heads[:, : shape.heads]
        keys, values = torch.split(heads[:, shape.heads :], shape.kv_heads, 1)
        view_k, view_v = memory.views[band][layer, "k"], memory.views[band][layer, "v"]
        self.ops.store_rows(keys, view_k, slots[band], values, view_v)
        out = torch.empty(queries.shape, dtype=first.dtype, device=first.device)
        if chunk is not None:
            self.ops.prompt_attention(queries, view_k, view_v, memory.tables[band], chunk.tiles, out, window)
        else:
            assert work is not None
            self.ops.decode_attention(queries, view_k, view_v, memory.tables[band], memory.lanes, out, work[window], window)
        return out.view(first.shape[0], -1)

    def _recur(
        self, memory: Memory, layer: int, first: Tensor, slots: dict[str, Tensor],
        work: dict[int, tuple[Tensor, Tensor]] | None, chunk: PromptChunk | None,
    ) -> Tensor:  # fmt: skip
        shape = self.shape
        inner = shape.state_heads * shape.state_dim_v
        sizes = [first.shape[1] - inner - 2 * shape.state_heads, inner, 2 * shape.state_heads]
        mixed, gate, control = torch.split(first, sizes, -1)
        bias = self.weights.layers[layer].bias
        assert bias is not None
        state = memory.views[STATE][layer, "memory"]
        out = torch.empty(gate.shape, dtype=first.dtype, device=first.device)
        runs = memory.lanes if chunk is None else chunk.runs
        self.ops.delta_scan(mixed, control + bias, state, memory.tables[STATE], runs, out, single=chunk is None)
        return out * functional.silu(gate)
