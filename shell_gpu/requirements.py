"""What a serving layer's kernels need from the arena, checked at build: met, or refused by name."""

from __future__ import annotations

import torch
from attrs import frozen

from core_pure.errors import LayoutError, UnsupportedRequirement
from core_pure.geometry import check_tile
from core_pure.layout import Layout

NOT_SUPPORTED = {
    "trees": "pages of a draft tree with several branches",
    "tiers": "pages that spill to host memory or disk",
    "disaggregation": "prefill and decode in different processes",
    "context_parallel": "one sequence spread over several ranks",
}
"""Features that are refused by name until they exist."""

CAPTURE_MODES = ("none", "decode")


@frozen
class Requirements:
    """Facts about the kernels that will read the arena.

    kernel_tile: slots that a paged kernel reads at once; a page must be a whole number of tiles. strided_views: kernels
    accept a frame stride and a slot stride. dtypes: torch names the kernels can read, empty for any. capture: "decode"
    when decode steps are captured as CUDA graphs. features: names of further demands, see NOT_SUPPORTED.
    """

    kernel_tile: int = 1
    strided_views: bool = True
    dtypes: tuple[str, ...] = ()
    capture: str = "none"
    features: tuple[str, ...] = ()


def check(requirements: Requirements, layout: Layout, device: torch.device) -> None:
    """Raise UnsupportedRequirement, naming the requirement and what would work, unless all are met."""
    for feature in requirements.features:
        what = NOT_SUPPORTED.get(feature)
        if what is None:
            raise UnsupportedRequirement(f"unknown feature {feature!r}; known ones: {', '.join(NOT_SUPPORTED)}")
        raise UnsupportedRequirement(f"{feature} ({what}) is not supported; build without it")
    if requirements.capture not in CAPTURE_MODES:
        known = ", ".join(CAPTURE_MODES)
        raise UnsupportedRequirement(f"capture mode {requirements.capture!r}; expected one of {known}")
    if requirements.capture != "none" and device.type != "cuda":
        raise UnsupportedRequirement(f"capture mode {requirements.capture!r} needs a CUDA device, not {device}")
    for band in layout.bands:
        if band.retention != "state":
            try:
                check_tile(band.slots_per_page, requirements.kernel_tile)
            except LayoutError as error:
                raise UnsupportedRequirement(f"band {band.name!r}: {error}") from None
        views = () if band.geometry is None else band.geometry.views()
        if not requirements.strided_views and len(views) > 1:
            raise UnsupportedRequirement(
                f"band {band.name!r} holds {len(views)} tensors a page, so a layer's view is strided; "
                "kernels must accept a frame stride and a slot stride"
            )
        for view in views:
            if requirements.dtypes and not {view.storage_dtype, view.dtype} & set(requirements.dtypes):
                raise UnsupportedRequirement(
                    f"band {band.name!r}, layer {view.layer}, tensor {view.tensor!r} is stored as "
                    f"{view.storage_dtype}; the kernels read {', '.join(requirements.dtypes)}"
                )
