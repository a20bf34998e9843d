"""The effects of every kernel in slow plain torch: what runs on the CPU, and what the kernels are tested against.

Each twin takes the same tensors as its kernel. Loops are over segments and frames; nothing here is meant to be fast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import chunk

SATURATION = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
"""Largest finite magnitude of the 8-bit floats: a store saturates there instead of writing infinity or NaN."""


def _segments(staging: Tensor, at: int) -> list[tuple[int, int, int, int]]:
    """(rows offset, rows, units per frame, last word) of the segments that header word ``at`` names."""
    offset, count = staging[at : at + 2].tolist()
    flat = staging[offset : offset + count * chunk.SEGMENT_WORDS].view(count, chunk.SEGMENT_WORDS)
    return [(a, b, c, d) for a, b, c, d in flat.tolist()]


def move_wave(arena: Tensor, staging: Tensor, at_wave: int) -> None:
    """Copy the frames of one wave. Shapes: arena int64[words]; staging int32[chunk]."""
    for rows, count, units, longest in _segments(staging, at_wave):
        block = staging[rows : rows + count * chunk.WAVE_ROW_WORDS].view(count, chunk.WAVE_ROW_WORDS)
        words = units * 2
        for run, source, target in block.tolist():
            run = 1 if longest == 1 else run
            held = arena[source * words : (source + run) * words].clone()
            arena[target * words : (target + run) * words] = held


def finish_plan(arena: Tensor, staging: Tensor, frame_of: Tensor, lease_pages: Tensor) -> None:
    """Write table rows and lease-table entries, then fill frames with zero or the poison pattern."""
    for at, table in ((chunk.AT_ROWS, frame_of), (chunk.AT_WRITES, lease_pages)):
        offset, count = staging[at : at + 2].tolist()
        pairs = staging[offset : offset + 2 * count].view(count, 2)
        table[pairs[:, 0].long()] = pairs[:, 1].clamp(min=0) if table is frame_of else pairs[:, 1]
    for rows, count, units, pattern in _segments(staging, chunk.AT_FILLS):
        words = units * 2
        for frame in staging[rows : rows + count].tolist():
            arena[frame * words : (frame + 1) * words] = -pattern


def translate_ids(ids: Tensor, frame_of: Tensor, out: Tensor, lengths: Tensor | None = None) -> None:
    """Page ids to frames; -1, 0, unbound and out of range give 0; columns at or past a row's length too.

    Shapes: ids int32 or int64[n] or [rows, width]; lengths int32[rows]; out like ids, int32 or int64, may be ids.
    """
    known = (ids > 0) & (ids < len(frame_of))
    if lengths is not None:
        known &= torch.arange(ids.shape[-1], device=ids.device) < lengths[:, None]
    out.copy_(torch.where(known, frame_of[torch.where(known, ids, 0).long()], 0))


def translate_slots(ids: Tensor, positions: Tensor, frame_of: Tensor, out: Tensor, slots_per_page: int) -> None:
    """Write slots frame * slots_per_page + position % slots_per_page; 0 where the id holds nothing."""
    frames = torch.empty(ids.shape, dtype=torch.int64, device=ids.device)
    translate_ids(ids, frame_of, frames)
    out.copy_(torch.where(frames > 0, frames * slots_per_page + positions.long() % slots_per_page, 0))


def translate_step(
    staging: Tensor, frame_of: Tensor, lease_pages: Tensor, bands: Tensor, tables: Tensor, writes: Tensor,
    skip: frozenset[str] = frozenset(),
) -> None:  # fmt: skip
    """Block tables and write slots of one step for every band, row by row; stale tails are zeroed."""
    offset, count = staging[chunk.AT_BATCH : chunk.AT_BATCH + 2].tolist()
    tokens, stale_tokens = staging[chunk.AT_TOKENS : chunk.AT_TOKENS + 2].tolist()
    size = chunk.BATCH_ROW_WORDS
    batch = staging[offset : offset + count * size].view(count, size).tolist()
    for kind, slots, width, leases, table_at, write_at, low, high in bands.tolist():
        for row, (lease, before, new, start, stale) in enumerate(batch):
            grows = kind == chunk.GROWS
            held = 0 if lease < 0 else -(-(before + new) // slots) if grows else width
            end = max(held, -(-stale // slots) if grows else width)
            own = lease_pages[leases + max(lease, 0) * width :][:width]
            frames = torch.zeros(max(end, held), dtype=torch.int32)
            frames[:held] = _frames(own[:held], frame_of, low, high, "tables" in skip)
            tables[table_at + row * width :][:end] = frames
            if grows and new:
                position = torch.arange(before, before + new)
                frame = _frames(own[position // slots], frame_of, low, high, "writes" in skip).long()
                writes[write_at + start :][:new] = torch.where(frame > 0, frame * slots + position % slots, 0)
        if stale_tokens > tokens:
            writes[write_at + tokens : write_at + stale_tokens] = 0


def _frames(pages: Tensor, frame_of: Tensor, low: int, high: int, skip: bool) -> Tensor:
    """The frames of one band's pages (ids between low and high); ``skip`` is the missed-translation hook."""
    known = (pages > low) & (pages < high)
    return torch.where(known, pages - low if skip else frame_of[torch.where(known, pages, 0).long()], 0)


def cast_to(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows in another dtype; the 8-bit floats saturate at their largest finite value, NaN stays NaN."""
    limit = SATURATION.get(dtype)
    return (rows if limit is None else rows.float().clamp(-limit, limit)).to(dtype)


def store_rows(rows: Tensor, view: Tensor, slots: Tensor) -> None:
    """Write row i at physical slot slots[i] of a view [frames, slots, *shape]; frame 0 (the sink) is skipped.

    Shapes: rows [n, *shape] of any float dtype; view strided, in its logical dtype; slots int64[n].
    """
    page = view.shape[1]
    wanted = (slots >= page) & (slots < view.shape[0] * page)
    # Byte-sized floats have no indexed put; their bits do.
    bits = view.view(torch.uint8) if view.element_size() == 1 else view
    held = cast_to(rows[wanted], view.dtype)
    bits[slots[wanted] // page, slots[wanted] % page] = held.view(bits.dtype) if bits is not view else held
