"""Frame moves on the GPU: scattered frames of 4 KiB to 1 MiB, and a shift of 10 GiB, beside the copy rate of the same run.

``pytest benchmarks/gpu_moves.py`` checks and times; ``python -m benchmarks.gpu_moves --sweep`` tries block sizes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from benchmarks.gpu_common import copy_rate, device_us, record
from core_pure.layout import BandSpec, build_layout
from core_pure.plan import Plan, encode, triples
from shell_gpu import chunk, launch
from shell_gpu.buffer import words_of
from shell_gpu.executor import Executor
from shell_gpu.launch import TUNED, Tuning
from shell_gpu.packing import pack, read_plan
from shell_gpu.tables import DeviceTables, StepSizes

pytestmark = pytest.mark.gpu

BYTES = 4 << 30  # moved by one scattered plan
SHIFT_BYTES = 10 << 30
FRAMES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
SIZES = StepSizes(sequences=8, batch=8, tokens=64, context_tokens=256)


@pytest.fixture(scope="module")
def buffer() -> torch.Tensor:
    """24 GiB of random bytes."""
    copy_rate()
    words = torch.empty(3 << 30, dtype=torch.int64, device="cuda").random_()
    return words.view(torch.uint8)


def scattered(frame_bytes: int, total: int = BYTES) -> Plan:
    """Frames picked at random from the low half move to random places of the high half: no two rows are neighbours."""
    rng = np.random.default_rng(7)
    count = total // frame_bytes
    first = -(-(1 << 20) // frame_bytes)  # above the sink
    return Plan(
        waves=(triples(0, first + rng.permutation(2 * count)[:count], first + 2 * count + rng.permutation(2 * count)[:count]),)
    )


def staged(plan: Plan, frame_bytes: int) -> torch.Tensor:
    """The whole plan as one chunk on the device, however large."""
    words = np.zeros(4 * plan.moves + 256, np.int32)
    used = pack(read_plan(encode(plan)), (frame_bytes // chunk.UNIT_BYTES,), words)
    return torch.from_numpy(words[:used]).cuda()


def moved_right(arena: torch.Tensor, plan: Plan, frame_bytes: int) -> bool:
    """True when every target frame equals its source, a few thousand rows at a time."""
    frames = arena[: arena.numel() // (frame_bytes // 8) * (frame_bytes // 8)].view(-1, frame_bytes // 8)
    rows = torch.from_numpy(plan.waves[0][:, 1:].astype(np.int64)).cuda()
    step = max(1, (1 << 30) // frame_bytes)
    return all(torch.equal(frames[part[:, 0]], frames[part[:, 1]]) for part in rows.split(step))


def kernel_rate(arena: torch.Tensor, plan: Plan, frame_bytes: int, tuning: Tuning = TUNED) -> float:
    """Bytes read and written per second by the wave kernel alone; the moves are checked first."""
    staging = staged(plan, frame_bytes)
    launch.move_wave(arena, staging, chunk.AT_WAVE, tuning)
    if not moved_right(arena, plan, frame_bytes):
        raise AssertionError(f"moves of {frame_bytes} bytes are wrong: nothing is timed")
    elapsed = device_us(lambda: launch.move_wave(arena, staging, chunk.AT_WAVE, tuning), repeat=10)
    return 2 * plan.moves * frame_bytes / (elapsed * 1e-6)


def executor_of(buffer: torch.Tensor, frame_bytes: int) -> Executor:
    """An executor over one band of the whole buffer."""
    layout = build_layout([BandSpec("full", frame_bytes)], buffer.numel())
    return Executor(layout, buffer, DeviceTables(layout, SIZES, torch.device("cuda")))


def plan_rate(buffer: torch.Tensor, plan: Plan, frame_bytes: int) -> float:
    """Bytes read and written per second by a whole encoded plan through the executor, uploads included."""
    executor, words = executor_of(buffer, frame_bytes), encode(plan)
    words_of(buffer).random_()
    executor.apply(words)
    if not moved_right(words_of(buffer), plan, frame_bytes):
        raise AssertionError(f"a plan of {frame_bytes}-byte frames is applied wrongly: nothing is timed")
    elapsed = device_us(lambda: executor.apply(words), repeat=5)
    return 2 * plan.moves * frame_bytes / (elapsed * 1e-6)


def rates(**measured: float) -> dict[str, float]:
    """Rates in TB/s and as shares of the copy rate."""
    row = {}
    for name, rate in measured.items():
        row[f"{name}_terabytes_per_second"] = round(rate / 1e12, 3)
        row[f"{name}_of_copy"] = round(rate / copy_rate(), 3)
    return row


@pytest.mark.parametrize("frame_bytes", FRAMES)
def test_scattered_moves(benchmark: Any, buffer: torch.Tensor, frame_bytes: int) -> None:
    """Scattered frames move at 90 % of the copy rate or more."""
    plan = scattered(frame_bytes)
    arena = words_of(buffer)
    kernel, whole = kernel_rate(arena, plan, frame_bytes), plan_rate(buffer, plan, frame_bytes)
    staging = staged(plan, frame_bytes)

    def once() -> None:
        launch.move_wave(arena, staging, chunk.AT_WAVE)
        torch.cuda.synchronize()

    benchmark.pedantic(once, rounds=5, warmup_rounds=1)
    benchmark.extra_info.update(rates(kernel=kernel, plan=whole))
    record("scattered moves", frame_bytes=frame_bytes, frames=plan.moves, **rates(kernel=kernel, plan=whole))


@pytest.mark.parametrize("frame_bytes", (16 << 10, 1 << 20))
def test_shift_of_ten_gibibytes(benchmark: Any, buffer: torch.Tensor, frame_bytes: int) -> None:
    """A whole region of 10 GiB moves to another place at 90 % of the copy rate or more."""
    count = SHIFT_BYTES // frame_bytes
    first = (1 << 20) // frame_bytes
    frames = np.arange(count)
    plan = Plan(waves=(triples(0, first + frames, first + count + frames),))
    whole = plan_rate(buffer, plan, frame_bytes)
    executor, words = executor_of(buffer, frame_bytes), encode(plan)

    def once() -> None:
        executor.apply(words)
        torch.cuda.synchronize()

    benchmark.pedantic(once, rounds=3, warmup_rounds=1)
    benchmark.extra_info.update(rates(plan=whole))
    record("shift of 10 GiB", frame_bytes=frame_bytes, frames=count, **rates(plan=whole))


def sweep() -> None:
    """Rates of the wave kernel over block sizes, warps, grids and cache modifiers, smallest and largest frames."""
    arena = torch.empty(3 << 30, dtype=torch.int64, device="cuda").random_()
    plans = {size: scattered(size) for size in (4 << 10, 64 << 10, 1 << 20)}
    for tile in (512, 1024, 2048):
        for warps in (2, 4, 8):
            for per_core in (8, 16, 32, 256, 8192):
                for load, store in (("", ""), ("", ".cs"), (".cg", ".cs"), (".cg", ".wt")):
                    if (load, store) != ("", "") and per_core not in (32, 8192):
                        continue
                    tuning = Tuning(tile, warps, load, store, move_programs=132 * per_core)
                    shares = [round(kernel_rate(arena, plan, size, tuning) / copy_rate(), 3) for size, plan in plans.items()]
                    print(tile, warps, per_core, load or "-", store or "-", *shares, flush=True)


if __name__ == "__main__":
    if "--sweep" in sys.argv:
        sweep()
    else:
        sys.exit(pytest.main([__file__, "-q", "-s"]))
