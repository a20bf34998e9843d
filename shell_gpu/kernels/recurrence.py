"""Gated delta rule on state frames: S = decay * S + strength * (v - decay * S k) kᵀ; out = S q, in place, in float32."""

import triton
import triton.language as tl

TINY = tl.constexpr(1.0e-6)  # keeps the norm of a zero key finite


@triton.jit
def _unit(row, DIM: tl.constexpr):
    """A row scaled to length one."""
    return row / tl.sqrt(tl.sum(row * row, 0) + TINY)


@triton.jit
def delta_scan(
    mixed, gates, state, table, runs, out,
    mixed_stride, gates_stride, table_stride, runs_stride, out_stride, frame_stride, heads,
    DIM_K: tl.constexpr, DIM_V: tl.constexpr, BLOCK_V: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """Run the tokens of one sequence through one head's state (BLOCK_V of its rows).

    Shapes: mixed [tokens, heads * (2 DIM_K + DIM_V)] as all queries, all keys, all values; gates [tokens, 2 heads] as
    all decays, all strengths (before their functions); state float32 [frames, 1, heads, DIM_V, DIM_K]; table
    int32[rows, slots per request], column 0 is the running state; runs int32[3, n] of table row, first token, tokens
    (SINGLE: one token, number = run; only the rows are read); out [tokens, heads * DIM_V]. Grid: (runs, heads,
    DIM_V / BLOCK_V). A padded run (row -1) or one whose frame is the sink is skipped: its output is zero.
    """
    run = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(runs + run)
    if SINGLE:
        token = run
        count = tl.where(row < 0, 0, 1) + 0 * run
    else:
        token = tl.load(runs + runs_stride + run)
        count = tl.load(runs + 2 * runs_stride + run)
    frame = tl.load(table + tl.maximum(row, 0).to(tl.int64) * table_stride).to(tl.int64)
    frame = tl.where(row < 0, 0, frame)
    held = frame > 0
    dims_k = tl.arange(0, DIM_K)
    dims_v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = state + frame * frame_stride + head * DIM_V * DIM_K + dims_v[:, None] * DIM_K + dims_k[None, :]
    memory = tl.load(place, mask=held & (dims_v[:, None] < DIM_V), other=0.0)
    end = token + tl.where(held, count, 0)
    if SINGLE:
        tl.store(out + token.to(tl.int64) * out_stride + head * DIM_V + dims_v, tl.zeros([BLOCK_V], out.dtype.element_ty))
    while token < end:
        line = mixed + token.to(tl.int64) * mixed_stride
        query = _unit(tl.load(line + head * DIM_K + dims_k).to(tl.float32), DIM_K)
        key = _unit(tl.load(line + heads * DIM_K + head * DIM_K + dims_k).to(tl.float32), DIM_K)
        value = tl.load(line + 2 * heads * DIM_K + head * DIM_V + dims_v).to(tl.float32)
        decay = tl.sigmoid(tl.load(gates + token.to(tl.int64) * gates_stride + head).to(tl.float32))
        strength = tl.sigmoid(tl.load(gates + token.to(tl.int64) * gates_stride + heads + head).to(tl.float32))
        memory = memory * decay
        change = strength * (value - tl.sum(memory * key[None, :], 1))
        memory = memory + change[:, None] * key[None, :]
        answer = tl.sum(memory * query[None, :], 1)
        tl.store(out + token.to(tl.int64) * out_stride + head * DIM_V + dims_v, answer.to(out.dtype.element_ty))
        token += 1
    tl.store(place, memory, mask=held & (dims_v[:, None] < DIM_V))
