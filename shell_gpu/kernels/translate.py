"""Kernels that turn page ids into frames and write slots: a whole step at once, or a plain array of ids.

Ids -1, 0, unbound and out of range all give frame 0, the sink.
"""

import triton
import triton.language as tl

from shell_gpu import chunk

AT_BATCH = tl.constexpr(chunk.AT_BATCH)
AT_TOKENS = tl.constexpr(chunk.AT_TOKENS)
BATCH_ROW_WORDS = tl.constexpr(chunk.BATCH_ROW_WORDS)
GROWS = tl.constexpr(chunk.GROWS)
BAND_SLOTS = tl.constexpr(chunk.BAND_SLOTS)
BAND_WIDTH = tl.constexpr(chunk.BAND_WIDTH)
BAND_LEASES = tl.constexpr(chunk.BAND_LEASES)
BAND_TABLE = tl.constexpr(chunk.BAND_TABLE)
BAND_WRITES = tl.constexpr(chunk.BAND_WRITES)
BAND_ID_BASE = tl.constexpr(chunk.BAND_ID_BASE)
BAND_ID_END = tl.constexpr(chunk.BAND_ID_END)
BAND_WORDS = tl.constexpr(chunk.BAND_WORDS)


@triton.jit
def _frame(frame_of, page, wanted, low, high, SKIP: tl.constexpr):
    """The frame of each page of the ids (low, high), or the sink; SKIP is the missed-translation hook."""
    known = wanted & (page > low) & (page < high)
    frame = tl.load(frame_of + page, mask=known, other=0)
    if SKIP:
        frame = tl.where(known, (page - low).to(tl.int32), 0)
    return frame


@triton.jit
def _zero_stale(staging, write, BLOCK: tl.constexpr):
    """Zero the write slots that the step before left behind the new tokens of this one."""
    place = (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * BLOCK
    first = tl.load(staging + AT_TOKENS) + place
    end = tl.load(staging + AT_TOKENS + 1)
    while first < end:
        token = first + tl.arange(0, BLOCK)
        tl.store(write + token, tl.zeros([BLOCK], tl.int64), mask=token < end)
        first += tl.num_programs(0) * tl.num_programs(2) * BLOCK


@triton.jit
def translate_step(
    staging, frame_of, lease_pages, bands, tables, writes,
    SKIP_TABLES: tl.constexpr, SKIP_WRITES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Block tables and write slots of one step, for every band; stale tails are zeroed.

    Shapes: bands int64[bands, BAND_WORDS]; tables int32 (per band [batch, width]); writes int64 (per band [tokens]).
    Grid: (programs over batch rows, bands, programs over one row).
    """
    band = bands + tl.program_id(1) * BAND_WORDS
    grows = tl.load(band) == GROWS
    slots = tl.load(band + BAND_SLOTS).to(tl.int32)
    width = tl.load(band + BAND_WIDTH).to(tl.int32)
    leases = lease_pages + tl.load(band + BAND_LEASES)
    table = tables + tl.load(band + BAND_TABLE)
    write = writes + tl.load(band + BAND_WRITES)
    low = tl.load(band + BAND_ID_BASE).to(tl.int32)
    high = tl.load(band + BAND_ID_END).to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    stride = tl.num_programs(2) * BLOCK

    batch = tl.load(staging + AT_BATCH)
    rows = tl.load(staging + AT_BATCH + 1)
    row = tl.program_id(0)
    while row < rows:
        at = staging + batch + row * BATCH_ROW_WORDS
        lease = tl.load(at)
        before = tl.load(at + 1)
        new = tl.load(at + 2)
        start = tl.load(at + 3)
        stale = tl.load(at + 4)
        own = leases + tl.maximum(lease, 0).to(tl.int64) * width
        held = tl.where(grows, (before + new + slots - 1) // slots, width)
        held = tl.where(lease < 0, 0, held)
        end = tl.maximum(held, tl.where(grows, (stale + slots - 1) // slots, width))
        step = tl.program_id(2) * BLOCK
        while step < end:
            column = step + lanes
            page = tl.load(own + column, mask=column < held, other=0)
            frame = _frame(frame_of, page, column < held, low, high, SKIP_TABLES)
            tl.store(table + row.to(tl.int64) * width + column, frame, mask=column < end)
            step += stride
        new = tl.where(grows, new, 0)
        step = tl.program_id(2) * BLOCK
        while step < new:
            token = step + lanes
            position = before + token
            page = tl.load(own + position // slots, mask=token < new, other=0)
            frame = _frame(frame_of, page, token < new, low, high, SKIP_WRITES).to(tl.int64)
            slot = tl.where(frame > 0, frame * slots + position % slots, 0)
            tl.store(write + start + token, slot, mask=token < new)
            step += stride
        row += tl.num_programs(0)

    _zero_stale(staging, write, BLOCK)


@triton.jit(do_not_specialize=["rows", "width", "pages"])
def translate_ids(ids, lengths, frame_of, out, rows, width, pages, HAS_LENGTHS: tl.constexpr, BLOCK: tl.constexpr):
    """Page ids to frames, element by element; columns at or past a row's length give the sink.

    Shapes: ids int32 or int64[rows, width], contiguous; lengths int32[rows]; out int32 or int64, may be ids itself.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < rows * width
    page = tl.load(ids + index, mask=inside, other=0)
    wanted = inside
    if HAS_LENGTHS:
        row = index // width
        wanted = inside & (index - row * width < tl.load(lengths + row, mask=inside, other=0))
    known = wanted & (page > 0) & (page < pages)
    frame = tl.load(frame_of + page, mask=known, other=0)
    tl.store(out + index, frame, mask=inside)


@triton.jit(do_not_specialize=["count", "pages", "slots"])
def translate_slots(ids, positions, frame_of, out, count, pages, slots, BLOCK: tl.constexpr):
    """Write slots of tokens: frame * slots + position % slots, int64; the sink's slot 0 for ids that hold nothing."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    page = tl.load(ids + index, mask=inside, other=0)
    position = tl.load(positions + index, mask=inside, other=0)
    known = inside & (page > 0) & (page < pages)
    frame = tl.load(frame_of + page, mask=known, other=0).to(tl.int64)
    tl.store(out + index, tl.where(frame > 0, frame * slots + position % slots, 0), mask=inside)
