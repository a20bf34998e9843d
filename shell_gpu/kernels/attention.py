"""Paged attention over strided views ``[frames, slots, heads, dim]``: split decode, its combination, and prompts.

A token's keys are found through a page table of frames, so frames may lie anywhere and move between launches. What is
added to what depends only on token positions (a split is a fixed range of positions, pages inside it go in order), so a
result does not change by one bit when frames do.
"""

import triton
import triton.language as tl

from shell_gpu.decode import words

LANE_ROW = tl.constexpr(words.LANE_ROW)
LANE_LENGTH = tl.constexpr(words.LANE_LENGTH)
TILE_WORDS = tl.constexpr(words.TILE_WORDS)
LOWEST = tl.constexpr(-1.0e30)  # below every score, and finite: a page nobody sees leaves no NaN


@triton.jit
def _page(base, frame, frame_stride, slot_stride, head, head_stride, seen, dims, DIM: tl.constexpr, SLOTS: tl.constexpr):
    """The rows of one head in one frame, [SLOTS, dims]; zero where not seen. Offsets are 64-bit."""
    slots = tl.arange(0, SLOTS)
    start = base + frame * frame_stride + head * head_stride
    mask = seen[:, None] & (dims[None, :] < DIM)
    return tl.load(start + slots[:, None] * slot_stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def decode_split(
    queries, view_k, view_v, table, lanes, partial, peaks,
    queries_stride, table_stride, lanes_stride, frame_stride_k, slot_stride_k, head_stride_k,
    frame_stride_v, slot_stride_v, head_stride_v, splits, scale, window,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM_K: tl.constexpr, DIM_V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, SLOTS: tl.constexpr, PAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One range of PAGES pages, one lane, one key head: unnormalised outputs, their maxima and sums.

    Shapes: queries [lanes, heads * DIM_K]; table int32[rows, columns]; lanes int32[LANE_WORDS, batch]; partial
    float32[lanes, heads, splits, DIM_V]; peaks float32[lanes, heads, splits, 2] (maximum, sum). window 0: everything.
    Grid: (lanes, key heads, splits). A padded lane (row -1) writes nothing.
    """
    lane = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(lanes + LANE_ROW * lanes_stride + lane)
    length = tl.load(lanes + LANE_LENGTH * lanes_stride + lane)
    length = tl.where(row < 0, 0, length)
    first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    start = (first // (SLOTS * PAGES) + tl.program_id(2)) * (SLOTS * PAGES)
    if start >= length:
        return
    rows = tl.arange(0, ROWS)
    dims_k = tl.arange(0, BLOCK_K)
    dims_v = tl.arange(0, BLOCK_V)
    heads = head * GROUP + rows
    asked = queries + lane.to(tl.int64) * queries_stride + heads[:, None] * DIM_K + dims_k[None, :]
    query = tl.load(asked, mask=(rows[:, None] < GROUP) & (dims_k[None, :] < DIM_K), other=0.0)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    gathered = tl.zeros([ROWS, BLOCK_V], tl.float32)
    columns = table + row.to(tl.int64) * table_stride
    last = (length - 1) // SLOTS
    for page in range(PAGES):
        position = start + page * SLOTS
        # Clamped: the last split may reach past the row's end; what it finds there is not seen.
        frame = tl.load(columns + tl.minimum(start // SLOTS + page, last)).to(tl.int64)
        positions = position + tl.arange(0, SLOTS)
        seen = (positions >= first) & (positions < length)
        keys = _page(view_k, frame, frame_stride_k, slot_stride_k, head, head_stride_k, seen, dims_k, DIM_K, SLOTS)
        score = tl.dot(query, tl.trans(keys.to(query.dtype)), input_precision=PRECISION) * scale
        score = tl.where(seen[None, :], score, LOWEST)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.where(seen[None, :], tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(peak - higher)
        values = _page(view_v, frame, frame_stride_v, slot_stride_v, head, head_stride_v, seen, dims_v, DIM_V, SLOTS)
        values = values.to(query.dtype)
        gathered = gathered * shrink[:, None] + tl.dot(weight.to(query.dtype), values, input_precision=PRECISION)
        total = total * shrink + tl.sum(weight, 1)
        peak = higher
    place = (lane.to(tl.int64) * tl.num_programs(1) * GROUP + heads) * splits + tl.program_id(2)
    own = rows < GROUP
    tl.store(peaks + place * 2, peak, mask=own)
    tl.store(peaks + place * 2 + 1, total, mask=own)
    tl.store(partial + place[:, None] * DIM_V + dims_v[None, :], gathered, mask=own[:, None] & (dims_v[None, :] < DIM_V))


@triton.jit
def combine_splits(
    partial, peaks, lanes, out, lanes_stride, out_stride, splits, window,
    DIM_V: tl.constexpr, BLOCK_V: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Add the splits of one lane and one head in order of position; a padded lane gets zeros.

    Shapes: as in ``decode_split``; out [lanes, heads * DIM_V]. SPAN: positions of one split. Grid: (lanes, heads).
    """
    lane = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(lanes + LANE_ROW * lanes_stride + lane)
    length = tl.load(lanes + LANE_LENGTH * lanes_stride + lane)
    length = tl.where(row < 0, 0, length)
    first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    used = (length + (SPAN - 1)) // SPAN - first // SPAN
    dims = tl.arange(0, BLOCK_V)
    place = (lane.to(tl.int64) * tl.num_programs(1) + head) * splits
    peak = tl.full([1], LOWEST, tl.float32)
    total = tl.zeros([1], tl.float32)
    gathered = tl.zeros([BLOCK_V], tl.float32)
    split = 0
    while split < used:
        own_peak = tl.load(peaks + (place + split) * 2)
        own_total = tl.load(peaks + (place + split) * 2 + 1)
        own = tl.load(partial + (place + split) * DIM_V + dims, mask=dims < DIM_V, other=0.0)
        higher = tl.maximum(peak, own_peak)
        shrink = tl.exp(peak - higher)
        weight = tl.exp(own_peak - higher)
        gathered = gathered * shrink + own * weight
        total = total * shrink + own_total * weight
        peak = higher
        split += 1
    total = tl.where(total > 0, total, 1.0)
    target = out + lane.to(tl.int64) * out_stride + head * DIM_V + dims
    tl.store(target, (gathered / total).to(out.dtype.element_ty), mask=dims < DIM_V)


@triton.jit
def prompt_tiles(
    queries, view_k, view_v, table, tiles, out,
    queries_stride, table_stride, out_stride, frame_stride_k, slot_stride_k, head_stride_k,
    frame_stride_v, slot_stride_v, head_stride_v, scale, window,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, DIM_K: tl.constexpr, DIM_V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, SLOTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Causal attention of up to TOKENS tokens of one sequence, for the GROUP query heads of one key head.

    Shapes: queries [tokens, heads * DIM_K]; tiles int32[n, TILE_WORDS] of (table row, first token in ``queries``, its
    position, tokens); out [tokens, heads * DIM_V]. GROUP * TOKENS is a power of two of at least 16. Grid: (tiles, key heads).
    """
    tile = tiles + tl.program_id(0) * TILE_WORDS
    head = tl.program_id(1)
    row = tl.load(tile)
    token = tl.load(tile + 1)
    position = tl.load(tile + 2)
    count = tl.load(tile + 3)
    items = tl.arange(0, GROUP * TOKENS)
    mine = items // GROUP
    heads = head * GROUP + items % GROUP
    own = mine < count
    dims_k = tl.arange(0, BLOCK_K)
    dims_v = tl.arange(0, BLOCK_V)
    asked = queries + (token + mine).to(tl.int64)[:, None] * queries_stride + heads[:, None] * DIM_K + dims_k[None, :]
    query = tl.load(asked, mask=own[:, None] & (dims_k[None, :] < DIM_K), other=0.0)
    at = position + mine
    first = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    end = position + count
    peak = tl.full([GROUP * TOKENS], LOWEST, tl.float32)
    total = tl.zeros([GROUP * TOKENS], tl.float32)
    gathered = tl.zeros([GROUP * TOKENS, BLOCK_V], tl.float32)
    columns = table + row.to(tl.int64) * table_stride
    for page in range(first // SLOTS, (end + (SLOTS - 1)) // SLOTS):
        frame = tl.load(columns + page).to(tl.int64)
        positions = page * SLOTS + tl.arange(0, SLOTS)
        held = (positions >= first) & (positions < end)
        seen = held[None, :] & (positions[None, :] <= at[:, None])
        seen = seen & ((window == 0) | (positions[None, :] > at[:, None] - window))
        keys = _page(view_k, frame, frame_stride_k, slot_stride_k, head, head_stride_k, held, dims_k, DIM_K, SLOTS)
        score = tl.dot(query, tl.trans(keys.to(query.dtype)), input_precision=PRECISION) * scale
        score = tl.where(seen, score, LOWEST)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.where(seen, tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(peak - higher)
        values = _page(view_v, frame, frame_stride_v, slot_stride_v, head, head_stride_v, held, dims_v, DIM_V, SLOTS)
        values = values.to(query.dtype)
        gathered = gathered * shrink[:, None] + tl.dot(weight.to(query.dtype), values, input_precision=PRECISION)
        total = total * shrink + tl.sum(weight, 1)
        peak = higher
    total = tl.where(total > 0, total, 1.0)
    target = out + (token + mine).to(tl.int64)[:, None] * out_stride + heads[:, None] * DIM_V + dims_v[None, :]
    tl.store(target, (gathered / total[:, None]).to(out.dtype.element_ty), mask=own[:, None] & (dims_v[None, :] < DIM_V))
