"""Kernels that touch frames: one wave of moves, and the finish of a plan (zeroing, table rows, lease-table writes).

All grids are fixed and stride over the work that the header names, so an empty chunk costs only the launch.
"""

import triton
import triton.language as tl

from shell_gpu import chunk

AT_FILLS = tl.constexpr(chunk.AT_FILLS)
AT_ROWS = tl.constexpr(chunk.AT_ROWS)
AT_WRITES = tl.constexpr(chunk.AT_WRITES)
SEGMENT_WORDS = tl.constexpr(chunk.SEGMENT_WORDS)
WAVE_ROW_WORDS = tl.constexpr(chunk.WAVE_ROW_WORDS)


@triton.jit
def move_wave(arena, staging, at_wave, TILE: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr):
    """Copy the frames of one wave inside the arena, in place.

    Shapes: arena int64[words of 8 bytes]; staging int32[chunk]; at_wave: header word of the wave's (offset, count).
    LOAD and STORE are cache modifiers: moved bytes are touched once.
    Requires: no target byte of the wave is occupied when it starts (proved by the core). Offsets are 64-bit.
    """
    lanes = tl.arange(0, TILE)
    segment = tl.load(staging + at_wave)
    end = segment + tl.load(staging + at_wave + 1) * SEGMENT_WORDS
    while segment < end:
        rows = tl.load(staging + segment)
        count = tl.load(staging + segment + 1)
        units = tl.load(staging + segment + 2).to(tl.int64)
        run = tl.load(staging + segment + 3)
        tiles = ((units * run * 2 + (TILE - 1)) // TILE).to(tl.int32)
        step = tl.program_id(0)
        while step < tiles * count:
            row = step // tiles
            at = staging + rows + row * WAVE_ROW_WORDS
            length = tl.where(run == 1, 1, tl.load(at)).to(tl.int64) * units * 2
            source = tl.load(at + 1).to(tl.int64) * units * 2
            target = tl.load(at + 2).to(tl.int64) * units * 2
            offsets = (step - row * tiles).to(tl.int64) * TILE + lanes
            held = tl.load(arena + source + offsets, mask=offsets < length, cache_modifier=LOAD)
            tl.store(arena + target + offsets, held, mask=offsets < length, cache_modifier=STORE)
            step += tl.num_programs(0)
        segment += SEGMENT_WORDS


@triton.jit
def finish_plan(arena, staging, frame_of, lease_pages, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Write table rows and lease-table entries, then fill frames with zero or the poison pattern.

    Shapes: arena int64[words]; frame_of int32[1 + pages], -1 is stored as 0, the sink; lease_pages int32[entries].
    """
    first = tl.program_id(0) * BLOCK
    stride = tl.num_programs(0) * BLOCK
    lanes = tl.arange(0, BLOCK)

    rows = tl.load(staging + AT_ROWS)
    count = tl.load(staging + AT_ROWS + 1)
    step = first
    while step < count:
        index = step + lanes
        page = tl.load(staging + rows + index * 2, mask=index < count, other=0)
        frame = tl.load(staging + rows + index * 2 + 1, mask=index < count, other=0)
        tl.store(frame_of + page, tl.maximum(frame, 0), mask=index < count)
        step += stride

    rows = tl.load(staging + AT_WRITES)
    count = tl.load(staging + AT_WRITES + 1)
    step = first
    while step < count:
        index = step + lanes
        place = tl.load(staging + rows + index * 2, mask=index < count, other=0)
        page = tl.load(staging + rows + index * 2 + 1, mask=index < count, other=0)
        tl.store(lease_pages + place, page, mask=index < count)
        step += stride

    words = tl.arange(0, TILE)
    segment = tl.load(staging + AT_FILLS)
    end = segment + tl.load(staging + AT_FILLS + 1) * SEGMENT_WORDS
    while segment < end:
        rows = tl.load(staging + segment)
        count = tl.load(staging + segment + 1)
        length = tl.load(staging + segment + 2).to(tl.int64) * 2
        pattern = tl.load(staging + segment + 3).to(tl.int64)
        held = tl.zeros([TILE], tl.int64) - pattern  # zero, or all ones
        tiles = ((length + (TILE - 1)) // TILE).to(tl.int32)
        step = tl.program_id(0)
        while step < tiles * count:
            row = step // tiles
            frame = tl.load(staging + rows + row).to(tl.int64)
            offsets = (step - row * tiles).to(tl.int64) * TILE + words
            tl.store(arena + frame * length + offsets, held, mask=offsets < length)
            step += tl.num_programs(0)
        segment += SEGMENT_WORDS


@triton.jit
def nothing(staging):
    """Does nothing: the cost of a launch, for benchmarks."""
    pass
