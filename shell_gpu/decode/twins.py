"""The model kernels in slow plain torch, lane by lane, with the same calls as ``launch``: the CPU path and the tests' twin."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import twins as arena_twins
from . import words

TINY = 1.0e-6  # as in the kernel


def splits_of(columns: int, slots_per_page: int, window: int) -> int:
    """One: the twin does not split."""
    return 1


def scratch(lanes: int, heads: int, dim_v: int, splits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The twin needs no workspace."""
    empty = torch.zeros(0, device=device)
    return empty, empty


def prompt_tokens(heads: int, kv_heads: int) -> int:
    """Tokens of one prompt tile."""
    return 64


def _attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Queries [t, heads, dim_k] over keys and values [s, kv heads, dim], seen bool[t, s]. Returns [t, heads, dim_v]."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (rows.to(query.dtype).float().repeat_interleave(group, 1) for rows in (keys, values))
    score = torch.einsum("thd,shd->hts", query.float(), keys) * query.shape[2] ** -0.5
    weight = torch.softmax(score.masked_fill(~seen, float("-inf")), -1)
    return torch.einsum("hts,shd->thd", weight, values)


def _rows(view: Tensor, table: Tensor, start: int, end: int) -> Tensor:
    """Rows of positions [start, end) of one sequence, found through its page table row."""
    slots = view.shape[1]
    positions = torch.arange(start, end, device=view.device)
    bits = view.view(torch.uint8) if view.element_size() == 1 else view  # byte-sized floats have no gather; their bits do
    return bits[table[positions // slots].long(), positions % slots].view(view.dtype)


def decode_attention(
    queries: Tensor, view_k: Tensor, view_v: Tensor, table: Tensor, lanes: Tensor, out: Tensor,
    work: tuple[Tensor, Tensor], window: int,
) -> None:  # fmt: skip
    """See ``launch.decode_attention``."""
    for lane in range(queries.shape[0]):
        row, length = int(lanes[words.LANE_ROW, lane]), int(lanes[words.LANE_LENGTH, lane])
        if row < 0 or length == 0:
            out[lane] = 0
            continue
        first = max(0, length - window) if window else 0
        keys, values = (_rows(view, table[row], first, length) for view in (view_k, view_v))
        seen = torch.ones(1, length - first, dtype=torch.bool, device=queries.device)
        out[lane] = _attend(queries[lane : lane + 1], keys, values, seen)[0].to(out.dtype)


def prompt_attention(
    queries: Tensor, view_k: Tensor, view_v: Tensor, table: Tensor, tiles: Tensor, out: Tensor, window: int
) -> None:
    """See ``launch.prompt_attention``."""
    for row, token, position, count in tiles.tolist():
        first = max(0, position - window + 1) if window else 0
        keys, values = (_rows(view, table[row], first, position + count) for view in (view_k, view_v))
        mine = torch.arange(position, position + count, device=queries.device)[:, None]
        theirs = torch.arange(first, position + count, device=queries.device)
        seen = (theirs <= mine) & (theirs > mine - window if window else theirs >= 0)
        out[token : token + count] = _attend(queries[token : token + count], keys, values, seen).to(out.dtype)


def delta_scan(mixed: Tensor, gates: Tensor, state: Tensor, table: Tensor, runs: Tensor, out: Tensor, *, single: bool) -> None:
    """See ``launch.delta_scan``."""
    heads, dim_v, dim_k = state.shape[2:]
    if single:
        lanes = [(row, lane, 1) for lane, row in enumerate(runs[words.LANE_ROW, : out.shape[0]].tolist())]
    else:
        lanes = [(row, token, count) for row, token, count in runs.t().tolist()]
    queries, keys, values = torch.split(mixed.float(), [heads * dim_k, heads * dim_k, heads * dim_v], -1)
    decays, strengths = torch.split(torch.sigmoid(gates.float()), heads, -1)
    if single:
        out.zero_()
    for row, start, count in lanes:
        frame = int(table[row, 0]) if row >= 0 else 0
        if frame == 0:
            continue
        memory = state[frame, 0].clone()
        for token in range(start, start + count):
            query, key = (
                rows / torch.sqrt((rows * rows).sum(-1, keepdim=True) + TINY)
                for rows in (queries[token].view(heads, dim_k), keys[token].view(heads, dim_k))
            )
            memory = memory * decays[token][:, None, None]
            change = values[token].view(heads, dim_v) - torch.einsum("hvk,hk->hv", memory, key)
            memory = memory + (strengths[token][:, None] * change)[:, :, None] * key[:, None, :]
            out[token] = torch.einsum("hvk,hk->hv", memory, query).reshape(-1).to(out.dtype)
        state[frame, 0] = memory


def store_rows(keys: Tensor, view_k: Tensor, slots: Tensor, values: Tensor, view_v: Tensor) -> None:
    """See ``launch.store_rows``."""
    arena_twins.store_rows(keys, view_k, slots)
    arena_twins.store_rows(values, view_v, slots)
