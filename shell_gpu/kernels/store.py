"""Kernel that writes new rows (keys and values, or one latent) into strided views of the arena."""

import triton
import triton.language as tl


@triton.jit
def _store_row(source, target, items, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    """Cast one row to the target's element type, saturating at LIMIT where that is not 0, and write it."""
    step = 0
    while step < items:
        lanes = step + tl.arange(0, BLOCK)
        row = tl.load(source + lanes, mask=lanes < items, other=0.0).to(tl.float32)
        if LIMIT > 0:
            row = tl.where(row == row, tl.minimum(tl.maximum(row, -LIMIT), LIMIT), row)
        tl.store(target + lanes, row.to(target.dtype.element_ty), mask=lanes < items)
        step += BLOCK


@triton.jit(do_not_specialize=["count", "slots_end"])
def store_rows(
    keys, values, view_k, view_v, slots, count, keys_stride, values_stride, items_k, items_v,
    frame_stride_k, slot_stride_k, frame_stride_v, slot_stride_v, slots_per_page, slots_end,
    LIMIT: tl.constexpr, HAS_V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write row i of keys and values at physical slot slots[i]; sink lanes (frame 0) and slots past the end write
    nothing.

    Shapes: keys [n, items_k], values [n, items_v] with contiguous rows; slots int64[n]. Strides are in elements,
    64-bit.
    """
    row = tl.program_id(0)
    while row < count:
        slot = tl.load(slots + row).to(tl.int64)
        if (slot >= slots_per_page) & (slot < slots_end):
            frame = slot // slots_per_page
            place = slot % slots_per_page
            at = row.to(tl.int64)
            target = view_k + frame * frame_stride_k + place * slot_stride_k
            _store_row(keys + at * keys_stride, target, items_k, LIMIT, BLOCK)
            if HAS_V:
                target = view_v + frame * frame_stride_v + place * slot_stride_v
                _store_row(values + at * values_stride, target, items_v, LIMIT, BLOCK)
        row += tl.num_programs(0)
