"""Launches of the Triton kernels: grids and block sizes, nothing else. Import this only where kernels run.

Callers have checked their tensors (``ops``) or made them (``executor``). Under the interpreter, where a program costs
milliseconds, ``programs`` keeps grids small; results do not depend on it.
"""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from . import chunk
from .kernels import frames, store, translate
from .kernels.twins import SATURATION


@frozen
class Tuning:
    """Block sizes and grid sizes. Words are 8 bytes; ``benchmarks/gpu_moves.py --sweep`` measures them.

    tile_words and tile_warps serve frames; block serves ids; programs are grid sizes (frames, batch rows, splits of a
    row).
    """

    tile_words: int = 512
    tile_warps: int = 4
    load_cache: str = ""
    store_cache: str = ""
    move_programs: int = 4224
    finish_programs: int = 528
    block: int = 256
    row_programs: int = 256
    row_splits: int = 4


TUNED = Tuning()
INTERPRETED = Tuning(tile_words=4096, move_programs=3, finish_programs=3, block=512, row_programs=3, row_splits=2)
"""Few programs with large blocks, for the interpreter."""


def move_wave(arena: Tensor, staging: Tensor, at_wave: int, tuning: Tuning = TUNED) -> None:
    """One wave of moves. Shapes: arena int64[words]; staging int32[chunk]."""
    frames.move_wave[(tuning.move_programs,)](
        arena, staging, at_wave, TILE=tuning.tile_words, LOAD=tuning.load_cache, STORE=tuning.store_cache,
        num_warps=tuning.tile_warps,
    )  # fmt: skip


def finish_plan(arena: Tensor, staging: Tensor, frame_of: Tensor, lease_pages: Tensor, tuning: Tuning = TUNED) -> None:
    """Table rows, lease-table writes and fills."""
    frames.finish_plan[(tuning.finish_programs,)](
        arena, staging, frame_of, lease_pages,
        TILE=tuning.tile_words, BLOCK=tuning.block, num_warps=tuning.tile_warps,
    )  # fmt: skip


def translate_step(
    staging: Tensor, frame_of: Tensor, lease_pages: Tensor, bands: Tensor, tables: Tensor, writes: Tensor,
    skip: frozenset[str] = frozenset(), tuning: Tuning = TUNED,
) -> None:  # fmt: skip
    """Block tables and write slots of one step. ``skip`` names translation sites that a test leaves out."""
    translate.translate_step[(tuning.row_programs, bands.shape[0], tuning.row_splits)](
        staging, frame_of, lease_pages, bands, tables, writes,
        SKIP_TABLES="tables" in skip, SKIP_WRITES="writes" in skip, BLOCK=tuning.block,
    )  # fmt: skip


def translate_ids(ids: Tensor, frame_of: Tensor, out: Tensor, lengths: Tensor | None = None, block: int = 128) -> None:
    """Page ids to frames; see ``ops.translate``."""
    width = ids.shape[-1]
    grid = (max(1, -(-ids.numel() // block)),)
    translate.translate_ids[grid](
        ids, frame_of if lengths is None else lengths, frame_of, out, ids.numel() // max(1, width), width,
        frame_of.numel(), HAS_LENGTHS=lengths is not None, BLOCK=block,
    )  # fmt: skip


def translate_slots(ids: Tensor, positions: Tensor, frame_of: Tensor, out: Tensor, slots_per_page: int, block: int = 128) -> None:
    """Page ids and positions to write slots; see ``ops.translate_writes``."""
    grid = (max(1, -(-ids.numel() // block)),)
    translate.translate_slots[grid](ids, positions, frame_of, out, ids.numel(), frame_of.numel(), slots_per_page, BLOCK=block)


STORE_PROGRAMS = 4224
STORE_BLOCK = 1024


def store_rows(
    keys: Tensor, view_k: Tensor, slots: Tensor, values: Tensor | None, view_v: Tensor | None,
    programs: int = STORE_PROGRAMS,
) -> None:  # fmt: skip
    """Rows into views [frames, slots, *shape]; see ``ops.store``."""
    count = slots.numel()
    other, view_o = (keys, view_k) if values is None or view_v is None else (values, view_v)
    items = [view.numel() // (view.shape[0] * view.shape[1]) for view in (view_k, view_o)]
    page = view_k.shape[1]
    store.store_rows[(max(1, min(count, programs)),)](
        keys, other, view_k, view_o, slots, count, keys.stride(0), other.stride(0), items[0], items[1],
        view_k.stride(0), view_k.stride(1), view_o.stride(0), view_o.stride(1), page, view_k.shape[0] * page,
        LIMIT=SATURATION.get(view_k.dtype, 0.0), HAS_V=values is not None, BLOCK=STORE_BLOCK,
    )  # fmt: skip


def nothing(staging: Tensor) -> None:
    """An empty kernel: the floor that benchmarks compare with."""
    frames.nothing[(1,)](staging)


AT_WAVES = tuple(chunk.AT_WAVE + 2 * number for number in range(chunk.WAVES_PER_CHUNK))
