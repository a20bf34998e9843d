"""The one uint8 tensor, and typed strided views of it: ``[frames, slots, *shape]`` per layer and tensor.

Where every byte lies was decided by ``core_pure.geometry``; this file only names the same bytes to torch. Views cover
the whole arena and never change when a frontier moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from core_pure.geometry import View
from core_pure.layout import BandSpec, Layout

from .chunk import UNIT_BYTES
from .errors import DeviceError, TensorError

CAPABILITY_MIN = (8, 0)
"""Ampere: the oldest GPU whose Triton kernels know bfloat16."""

LayerViews = Mapping[tuple[int, str], Tensor]
"""Views of one band by (layer, tensor name)."""


def device_of(name: str | torch.device) -> torch.device:
    """The device of that name, with kernels able to run there. Raises: DeviceError."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"device {name!r} is unknown; use a CUDA GPU, or device='cpu'") from None
    check_device(device)
    return device


def check_device(device: torch.device) -> None:
    """Raise DeviceError unless kernels can run there; the message names the CPU as the alternative."""
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise DeviceError(f"device {device} is not supported; use a CUDA GPU, or device='cpu'")
    if not torch.cuda.is_available():
        raise DeviceError(f"device {device}: no CUDA GPU is usable here; device='cpu' works without one")
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY_MIN:
        have, need = (".".join(map(str, pair)) for pair in (capability, CAPABILITY_MIN))
        raise DeviceError(f"{torch.cuda.get_device_name(device)} has compute capability {have}, below {need}; use device='cpu'")


def check_units(layout: Layout) -> None:
    """Raise TensorError unless every frame is a whole number of 16-byte units, which kernels copy."""
    for band in layout.bands:
        if band.frame_bytes % UNIT_BYTES:
            above = -(-band.frame_bytes // UNIT_BYTES) * UNIT_BYTES
            raise TensorError(
                f"band {band.name!r}: a frame of {band.frame_bytes} bytes is no multiple of {UNIT_BYTES}; {above} would be"
            )


def obtain(layout: Layout, device: torch.device, buffer: Tensor | None = None) -> Tensor:
    """The arena's bytes: the caller's tensor, checked, or a new one filled with zeros. The sink reads zero either way.

    Args: buffer: uint8[at least total_bytes], contiguous, 16-byte aligned, on ``device``; more bytes stay unused.
    Raises: TensorError for a buffer that cannot serve; DeviceError, with bytes asked and free, when memory is short.
    """
    total = layout.total_bytes
    if buffer is None:
        try:
            return torch.zeros(total, dtype=torch.uint8, device=device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            free, other = "too little free", ""
            if device.type == "cuda":
                free, other = f"{torch.cuda.mem_get_info(device)[0]} bytes free", ", or use device='cpu'"
            raise DeviceError(
                f"no room for an arena of {total} bytes on {device}: {free}; ask for less{other}"
            ) from error
    if not isinstance(buffer, Tensor) or buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
        raise TensorError(f"the arena's buffer must be a contiguous uint8 vector, got {_describe(buffer)}")
    if buffer.device.type != device.type or (device.index is not None and buffer.device.index != device.index):
        raise TensorError(f"the buffer is on {buffer.device}, the arena on {device}")
    if buffer.numel() < total:
        raise TensorError(f"the buffer has {buffer.numel()} bytes, the layout needs {total}")
    if buffer.data_ptr() % UNIT_BYTES:
        raise TensorError(f"the buffer starts at an address that is no multiple of {UNIT_BYTES}")
    buffer[: layout.sink_bytes].zero_()
    return buffer[:total]


def _describe(buffer: object) -> str:
    """A tensor's dtype and shape, or the type of anything else."""
    return f"{buffer.dtype} {tuple(buffer.shape)}" if isinstance(buffer, Tensor) else type(buffer).__name__


def words_of(buffer: Tensor) -> Tensor:
    """The buffer as int64 words, for the kernels that move frames."""
    return buffer[: buffer.numel() // 8 * 8].view(torch.int64)


def dtype_of(view: View) -> torch.dtype:
    """The dtype a view is read with: the logical one where the stored bytes have its width, else the storage dtype."""
    logical, stored = (getattr(torch, name) for name in (view.dtype, view.storage_dtype))
    chosen: torch.dtype = logical if logical.itemsize == stored.itemsize else stored
    return chosen


def view_of(buffer: Tensor, spec: BandSpec, view: View) -> Tensor:
    """One layer's tensor over all frames of the arena: ``[frames, slots, *shape]``, strided, no copy.

    Raises: TensorError naming layer and tensor where the dtype cannot stand at these bytes.
    """
    dtype = dtype_of(view)
    size = dtype.itemsize
    if view.offset % size or view.slot_stride % size or spec.frame_bytes % size:
        raise TensorError(
            f"layer {view.layer}, tensor {view.tensor!r}: offset {view.offset}, slot stride {view.slot_stride} "
            f"and frame {spec.frame_bytes} must be multiples of the {size} bytes of {dtype}"
        )
    strides = [1] * len(view.shape)
    for axis in reversed(range(len(view.shape) - 1)):
        strides[axis] = strides[axis + 1] * view.shape[axis + 1]
    typed = buffer[: buffer.numel() // size * size].view(dtype)
    frames = buffer.numel() // spec.frame_bytes
    return typed.as_strided(
        (frames, spec.slots_per_page, *view.shape),
        (spec.frame_bytes // size, view.slot_stride // size, *strides),
        typed.storage_offset() + view.offset // size,
    )


def views_of(buffer: Tensor, spec: BandSpec) -> LayerViews:
    """Every view of a band by (layer, tensor); empty for a band without geometry."""
    if spec.geometry is None:
        return MappingProxyType({})
    return MappingProxyType({(view.layer, view.tensor): view_of(buffer, spec, view) for view in spec.geometry.views()})
