"""The decoder without pages: keys, values and states in dense tensors per seat, in double precision. What is right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from shell_gpu.decode.model import Weights
from shell_gpu.decode.shape import STATE, HybridShape


class Dense:
    """One decode step at a time over seats. Shares only weights with the model under test."""

    def __init__(self, shape: HybridShape, weights: Weights, seats: int, context: int) -> None:
        self.shape, self.weights = shape, weights
        device = weights.embedding.device
        double = {"dtype": torch.float64, "device": device}
        kv = (seats, context, shape.kv_heads, shape.head_dim)
        memory = (seats, shape.state_heads, shape.state_dim_v, shape.state_dim_k)
        self.held = [
            (torch.zeros(memory, **double),) if word == STATE else (torch.zeros(kv, **double), torch.zeros(kv, **double))
            for word in shape.pattern
        ]
        self.positions = torch.arange(context, device=device)

    def restart(self, seat: int) -> None:
        """A new sequence takes the seat: it has no past."""
        for tensors in self.held:
            for tensor in tensors:
                tensor[seat] = 0

    def step(self, seats: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits [n, vocabulary] of one token per seat; lengths count it."""
        hidden = self.weights.embedding[tokens].double()
        for layer, held in enumerate(self.weights.layers):
            first = self._linear(self._norm(hidden, held.norm_mix), held.first)
            if self.shape.pattern[layer] == STATE:
                assert held.bias is not None
                mixed = self._recur(layer, first, held.bias, seats)
            else:
                mixed = self._attend(layer, first, seats, lengths)
            hidden = hidden + self._linear(mixed, held.last)
            gate, up = self._linear(self._norm(hidden, held.norm_mlp), held.gate_up).chunk(2, -1)
            hidden = hidden + self._linear(functional.silu(gate) * up, held.down)
        return self._linear(self._norm(hidden, self.weights.norm), self.weights.head)

    @staticmethod
    def _linear(rows: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(rows, weight.double())

    @staticmethod
    def _norm(rows: Tensor, weight: Tensor) -> Tensor:
        return rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + 1e-6) * weight.double()

    def _attend(self, layer: int, first: Tensor, seats: Tensor, lengths: Tensor) -> Tensor:
        shape = self.shape
        heads = first.view(len(seats), -1, shape.head_dim)
        keys, values = self.held[layer]
        keys[seats, lengths - 1] = heads[:, shape.heads : shape.heads + shape.kv_heads]
        values[seats, lengths - 1] = heads[:, shape.heads + shape.kv_heads :]
        group = shape.heads // shape.kv_heads
        queries = heads[:, : shape.heads].view(len(seats), shape.kv_heads, group, shape.head_dim)
        score = torch.einsum("nkgd,ntkd->nkgt", queries, keys[seats]) * shape.head_dim**-0.5
        seen = self.positions < lengths[:, None]
        if window := shape.window_of(layer):
            seen &= self.positions >= lengths[:, None] - window
        weight = torch.softmax(score.masked_fill(~seen[:, None, None], float("-inf")), -1)
        return torch.einsum("nkgt,ntkd->nkgd", weight, values[seats]).reshape(len(seats), -1)

    def _recur(self, layer: int, first: Tensor, bias: Tensor, seats: Tensor) -> Tensor:
        shape, count = self.shape, len(seats)
        h, dk, dv = shape.state_heads, shape.state_dim_k, shape.state_dim_v
        query, key, value, gate, control = torch.split(first, [h * dk, h * dk, h * dv, h * dv, 2 * h], -1)
        query, key = (
            rows / torch.sqrt((rows * rows).sum(-1, keepdim=True) + 1e-6) for rows in (query.view(-1, h, dk), key.view(-1, h, dk))
        )
        decay, strength = torch.sigmoid(control + bias.double()).chunk(2, -1)
        (memory,) = self.held[layer]
        old = memory[seats] * decay[..., None, None]
        change = strength[..., None] * (value.view(-1, h, dv) - torch.einsum("nhvk,nhk->nhv", old, key))
        memory[seats] = old + change[..., None] * key[:, :, None]
        answer = torch.einsum("nhvk,nhk->nhv", memory[seats], query)
        return answer.reshape(count, -1) * functional.silu(gate)
