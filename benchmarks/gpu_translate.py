"""Translation on the GPU against one empty kernel, by device time, and the device time of a whole step's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from benchmarks.gpu_common import device_us, graph_us, record
from shell_gpu import launch
from shell_gpu.kernels import twins

pytestmark = pytest.mark.gpu

IDS = 8192
PAGES = 1 << 20


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_translation_of_8192_ids(benchmark: Any, dtype: torch.dtype) -> None:
    """Translating 8,192 ids takes no more than 1.2 times an empty kernel."""
    frame_of = torch.randperm(PAGES, dtype=torch.int32, device="cuda")
    ids = torch.randint(-1, PAGES + 5, (IDS,), dtype=dtype, device="cuda")
    out = torch.empty(IDS, dtype=torch.int32, device="cuda")
    wanted = torch.empty_like(out)
    twins.translate_ids(ids, frame_of, wanted)
    launch.translate_ids(ids, frame_of, out)
    if not torch.equal(out, wanted):
        raise AssertionError("the translation is wrong: nothing is timed")

    def translate() -> None:
        launch.translate_ids(ids, frame_of, out)

    def nothing() -> None:
        launch.nothing(out)

    rows = {
        "alone": (device_us(translate, 200), device_us(nothing, 200)),
        "in a graph": (graph_us(translate), graph_us(nothing)),
    }
    for how, (ours, empty) in rows.items():
        record(
            "translate 8192 ids", ids=str(dtype), how=how, device_us=round(ours, 2), empty_kernel_us=round(empty, 2),
            ratio=round(ours / empty, 2),
        )  # fmt: skip
    for block in (64, 128, 256, 512, 1024):
        spent = graph_us(lambda block=block: launch.translate_ids(ids, frame_of, out, block=block))  # type: ignore[misc]
        record("translate 8192 ids, block", ids=str(dtype), block=block, device_us=round(spent, 2))

    def once() -> None:
        translate()
        torch.cuda.synchronize()

    benchmark.pedantic(once, rounds=50, warmup_rounds=5)
