"""Launches of the model kernels: grids, blocks and strides. Import only where Triton runs; ``twins`` has the same calls."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import launch as arena_launch
from ..kernels import attention, recurrence
from . import words

SPAN_TOKENS = 512
"""Positions of one split: enough programs at batch 1, few empty ones at batch 256."""
ROWS_MIN = 16
"""The least rows of a matrix product on the GPU's matrix units."""
PROMPT_ROWS = 128
"""Query rows (tokens x grouped heads) of one prompt tile."""
STATE_ROWS = 32
"""State rows per program: with 128 columns of float32, 32 registers a thread."""
DECODE_STAGES, PROMPT_STAGES = 3, 2


def power_above(count: int) -> int:
    """The smallest power of two that is at least ``count``."""
    return 1 << max(0, count - 1).bit_length()


def precision(dtype: torch.dtype) -> str:
    """How products of this dtype are made: exact in float32, the only choice in 16 bits."""
    return "ieee" if dtype == torch.float32 else "tf32"


def pages_per_split(slots_per_page: int) -> int:
    """Pages of one split; a split is a fixed range of positions, so the order of sums never depends on frames."""
    return max(1, SPAN_TOKENS // slots_per_page)


def splits_of(columns: int, slots_per_page: int, window: int) -> int:
    """Splits that a lane may need: all of a page table, or what a window can touch."""
    pages = pages_per_split(slots_per_page)
    everything = -(-columns // pages)
    return min(everything, (window - 1) // (pages * slots_per_page) + 2) if window else everything


def scratch(lanes: int, heads: int, dim_v: int, splits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Workspace of ``decode_attention``: partial outputs, and maxima with sums. float32."""
    partial = torch.zeros((lanes, heads, splits, dim_v), dtype=torch.float32, device=device)
    return partial, torch.zeros((lanes, heads, splits, 2), dtype=torch.float32, device=device)


def decode_attention(
    queries: Tensor, view_k: Tensor, view_v: Tensor, table: Tensor, lanes: Tensor, out: Tensor,
    work: tuple[Tensor, Tensor], window: int,
) -> None:  # fmt: skip
    """One query per lane over the lane's pages.

    Shapes: queries [n, heads, dim_k], out [n, heads, dim_v], contiguous; views [frames, slots, kv heads, dim]; table
    int32[rows, columns]; lanes int32[LANE_WORDS, batch >= n]; window in tokens, 0 for none.
    """
    count, heads, dim_k = queries.shape
    slots, kv_heads, dim_v = view_v.shape[1], view_v.shape[2], view_v.shape[3]
    partial, peaks = work
    splits, pages, group = partial.shape[2], pages_per_split(slots), heads // kv_heads
    attention.decode_split[(count, kv_heads, splits)](
        queries, view_k, view_v, table, lanes, partial, peaks,
        queries.stride(0), table.stride(0), lanes.stride(0), *view_k.stride()[:3], *view_v.stride()[:3],
        splits, dim_k**-0.5, window,
        GROUP=group, ROWS=max(ROWS_MIN, power_above(group)), DIM_K=dim_k, DIM_V=dim_v,
        BLOCK_K=power_above(dim_k), BLOCK_V=power_above(dim_v), SLOTS=slots, PAGES=pages,
        PRECISION=precision(queries.dtype), num_stages=DECODE_STAGES,
    )  # fmt: skip
    attention.combine_splits[(count, heads)](
        partial, peaks, lanes, out, lanes.stride(0), out.stride(0), splits, window,
        DIM_V=dim_v, BLOCK_V=power_above(dim_v), SPAN=pages * slots, num_warps=2,
    )  # fmt: skip


def prompt_tokens(heads: int, kv_heads: int) -> int:
    """Tokens of one prompt tile."""
    return max(1, PROMPT_ROWS // (heads // kv_heads))


def prompt_attention(
    queries: Tensor, view_k: Tensor, view_v: Tensor, table: Tensor, tiles: Tensor, out: Tensor, window: int
) -> None:
    """Causal attention of packed prompt chunks whose keys are stored already. tiles int32[n, TILE_WORDS]."""
    _, heads, dim_k = queries.shape
    slots, kv_heads, dim_v = view_v.shape[1], view_v.shape[2], view_v.shape[3]
    group = heads // kv_heads
    attention.prompt_tiles[(tiles.shape[0], kv_heads)](
        queries, view_k, view_v, table, tiles, out,
        queries.stride(0), table.stride(0), out.stride(0), *view_k.stride()[:3], *view_v.stride()[:3],
        dim_k**-0.5, window,
        GROUP=group, TOKENS=prompt_tokens(heads, kv_heads), DIM_K=dim_k, DIM_V=dim_v,
        BLOCK_K=power_above(dim_k), BLOCK_V=power_above(dim_v), SLOTS=slots,
        PRECISION=precision(queries.dtype), num_warps=8, num_stages=PROMPT_STAGES,
    )  # fmt: skip


def delta_scan(mixed: Tensor, gates: Tensor, state: Tensor, table: Tensor, runs: Tensor, out: Tensor, *, single: bool) -> None:
    """Gated delta rule in place on state frames; see the kernel for shapes.

    single: one token per run, ``runs`` are lanes; else runs int32[RUN_WORDS, n].
    """
    heads, dim_v, dim_k = state.shape[2:]
    rows = min(STATE_ROWS, dim_v)
    recurrence.delta_scan[(out.shape[0] if single else runs.shape[1], heads, dim_v // rows)](
        mixed, gates, state, table, runs, out,
        mixed.stride(0), gates.stride(0), table.stride(0), runs.stride(0), out.stride(0), state.stride(0), heads,
        DIM_K=dim_k, DIM_V=dim_v, BLOCK_V=rows, SINGLE=single,
    )  # fmt: skip


def store_rows(keys: Tensor, view_k: Tensor, slots: Tensor, values: Tensor, view_v: Tensor) -> None:
    """New keys and values at physical write slots; slots in the sink write nothing."""
    arena_launch.store_rows(keys, view_k, slots, values, view_v)


assert words.LANE_ROW == 0  # a scan over lanes reads their rows where a scan over runs reads its own
