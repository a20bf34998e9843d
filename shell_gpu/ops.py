"""Checked device operations for callers: translate ids, store rows. Kernels on CUDA, twins on the CPU.

A tensor on the wrong device, of the wrong dtype or layout raises TensorError before anything is launched.
"""

from __future__ import annotations

from types import ModuleType

import torch
from attrs import frozen
from torch import Tensor

from .errors import AlreadyPhysical, TensorError
from .kernels import twins

INDEX_DTYPES = (torch.int32, torch.int64)


@frozen(eq=False)
class WriteLocs:
    """Physical write slots of one step: one value, passed to every writer. It is no tensor, so it cannot be
    translated again.

    bands: names in byte order. slots: per band int64[tokens], address-stable; frame * slots_per_page + place. For
    bands of fixed size (states) the frames of each batch row, int32[batch, slots per request]. tokens: how many are
    of this step.
    """

    bands: tuple[str, ...]
    slots: tuple[Tensor, ...]
    tokens: int

    def of(self, band: str) -> Tensor:
        """The slots of one band, the whole buffer. Raises: KeyError."""
        if band not in self.bands:
            raise KeyError(f"no band named {band!r}; this step has {', '.join(self.bands)}")
        return self.slots[self.bands.index(band)]


def kernels() -> ModuleType:
    """The module that launches Triton kernels, imported on first use: the CPU path needs no triton."""
    from . import launch

    return launch


def _check(name: str, tensor: Tensor, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise TensorError unless a tensor is where and what it must be, and contiguous."""
    if isinstance(tensor, WriteLocs):
        raise AlreadyPhysical(f"{name} are write slots of a step: they are physical already, use them as they are")
    if not isinstance(tensor, Tensor):
        raise TensorError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.device != device:
        raise TensorError(f"{name} is on {tensor.device}, the table on {device}")
    if tensor.dtype not in dtypes:
        raise TensorError(f"{name} has dtype {tensor.dtype}, expected {' or '.join(map(str, dtypes))}")
    if not tensor.is_contiguous():
        raise TensorError(f"{name} of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous")


def translate(ids: Tensor, frame_of: Tensor, out: Tensor, lengths: Tensor | None = None) -> None:
    """Page ids to frames on the current stream; -1, 0, unbound and out of range give the sink, frame 0.

    Shapes: ids int32 or int64 [n] or [rows, width]; frame_of int32[1 + pages]; out of the same shape, int32 or int64,
    may be ids itself; lengths int32[rows]: columns at or past a row's length give the sink (the stale tail of a page
    table). Raises: AlreadyPhysical for write slots; TensorError.
    """
    _check("ids", ids, frame_of.device, INDEX_DTYPES)
    _check("frame_of", frame_of, frame_of.device, (torch.int32,))
    _check("out", out, frame_of.device, INDEX_DTYPES)
    if out.shape != ids.shape:
        raise TensorError(f"out has shape {tuple(out.shape)}, ids {tuple(ids.shape)}")
    if lengths is not None:
        _check("lengths", lengths, frame_of.device, (torch.int32,))
        if ids.dim() != 2 or lengths.shape != ids.shape[:1]:
            raise TensorError(f"lengths {tuple(lengths.shape)} need ids [rows, width], got {tuple(ids.shape)}")
    if ids.numel():
        (kernels() if ids.is_cuda else twins).translate_ids(ids, frame_of, out, lengths)


def translate_writes(ids: Tensor, positions: Tensor, frame_of: Tensor, out: Tensor, slots_per_page: int) -> None:
    """Write slots of tokens: ``frame * slots_per_page + position % slots_per_page``; 0, in the sink, where the id
    holds nothing.

    Shapes: ids and positions int32 or int64 [n]; out int64[n]. State bands have one slot per page: the slot is the
    frame. Raises: AlreadyPhysical; TensorError.
    """
    _check("ids", ids, frame_of.device, INDEX_DTYPES)
    _check("positions", positions, frame_of.device, INDEX_DTYPES)
    _check("out", out, frame_of.device, (torch.int64,))
    if not ids.shape == positions.shape == out.shape:
        shapes = [tuple(tensor.shape) for tensor in (ids, positions, out)]
        raise TensorError(f"ids, positions and out have different shapes: {shapes}")
    if ids.numel():
        (kernels() if ids.is_cuda else twins).translate_slots(ids, positions, frame_of, out, slots_per_page)


def _check_rows(name: str, rows: Tensor, view: Tensor, slots: Tensor) -> None:
    """Raise TensorError unless rows [n, *shape] suit a view [frames, slots, *shape]."""
    if rows.device != view.device or slots.device != view.device:
        raise TensorError(f"{name} on {rows.device}, slots on {slots.device}, the view on {view.device}")
    if rows.shape != (slots.numel(), *view.shape[2:]):
        raise TensorError(f"{name} has shape {tuple(rows.shape)}, expected {(slots.numel(), *view.shape[2:])}")
    if not rows.is_floating_point():
        raise TensorError(f"{name} has dtype {rows.dtype}, expected a float type")
    if rows.numel() and not rows[0].is_contiguous():
        raise TensorError(f"one row of {name} has strides {rows.stride()[1:]}; it must be contiguous")
    if view.numel() and not view[0, 0].is_contiguous():
        raise TensorError(f"one slot of the view for {name} has strides {view.stride()[2:]}; it must be contiguous")


def store(keys: Tensor, view_k: Tensor, slots: Tensor, values: Tensor | None = None, view_v: Tensor | None = None) -> None:
    """Write row i of keys (and values) at physical slot slots[i]; lanes whose slot is in the sink write nothing.

    Shapes: keys [n, *shape_k], values [n, *shape_v], rows contiguous; views [frames, slots_per_page, *shape] in their
    logical dtype; slots int64[n]. Rows are cast to the logical dtype (8-bit floats saturate); the bytes stored are
    that dtype's. Raises: TensorError.
    """
    _check("slots", slots, view_k.device, (torch.int64,))
    _check_rows("keys", keys, view_k, slots)
    if (values is None) != (view_v is None):
        raise TensorError("values and their view come together")
    if values is not None and view_v is not None:
        _check_rows("values", values, view_v, slots)
        if view_v.shape[:2] != view_k.shape[:2] or view_v.dtype != view_k.dtype:
            both = [(tuple(view.shape[:2]), view.dtype) for view in (view_k, view_v)]
            raise TensorError(f"the views of keys and values differ in frames, slots or dtype: {both}")
    if not slots.numel():
        return
    if keys.is_cuda:
        kernels().store_rows(keys, view_k, slots, values, view_v)
        return
    twins.store_rows(keys, view_k, slots)
    if values is not None and view_v is not None:
        twins.store_rows(values, view_v, slots)
