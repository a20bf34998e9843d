"""Step time of captured decode: the arena against static pools, same kernels, 7B shapes, batch 64, 4k context.

    python -m benchmarks.gpu_decode

Refuses to time unless both give the same bits. Rounds alternate between the two, so that both see the same lengths and the
same GPU; two arenas in the same run would give the spread that is noise, which the second static round of each pair shows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from attrs import define

from benchmarks.gpu_common import record
from benchmarks.static_store import StaticStore
from core_pure.capacity import StepResult
from core_pure.geometry import group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from models.pools import SLOTS_MAX, StaticPools
from shell_gpu.arena import Arena, BuildOptions
from shell_gpu.decode.graph import CapturedDecode, arena_guard, memory_of, token_buffer
from shell_gpu.decode.memory import LaneBatch, Lanes
from shell_gpu.decode.model import HybridModel, Weights, kernels_for
from shell_gpu.decode.shape import SEVEN_B, TOY, HybridShape
from shell_gpu.tables import StepSizes

GIB = 2**30
GROW_TOKENS = 512
"""Tokens a sequence is given at once before timing; a window slides in between, as it would in a server."""
LIMIT = 1.005
"""Budget: the arena's step takes at most this much of the static pools'."""


@define
class Side:
    """One memory under the same model: its pool, its captured decode, and the sequences it serves."""

    name: str
    pool: Arena | StaticStore
    decode: CapturedDecode
    handles: np.ndarray
    lengths: np.ndarray

    def step(self) -> torch.Tensor:
        """One decode step of every sequence, nothing waited for."""
        result = self.pool.step(self.handles, np.ones(len(self.handles), np.int64))
        assert isinstance(result, StepResult), result
        self.lengths = self.lengths + 1
        return self.decode.replay(LaneBatch.of(self.handles % SLOTS_MAX, self.lengths))

    def grow(self, count: int, tokens: int, chunk: int) -> None:
        """Open sequences and give them tokens without computing them: caches keep what the buffer holds."""
        self.handles = self.pool.open(count)
        self.lengths = np.full(count, tokens, np.int64)
        for handle in self.handles:  # one by one: a step takes at most ``chunk`` tokens
            left = tokens
            while left:
                now = min(left, chunk)
                result = self.pool.step(np.array([handle]), np.array([now]))
                assert isinstance(result, StepResult), result
                left -= now

    def drop(self) -> None:
        """End every sequence."""
        nothing = np.empty(0, np.int64)
        self.pool.step(nothing, nothing, self.handles)


def share_for(layout: Layout, batch: int, context: int) -> Fraction:
    """The share of bytes for states that gives both sides of a static split the same slack at this load."""
    need = [batch * spec.pages_peak(context, 1) * spec.frame_bytes for spec in layout.bands]
    states = sum(size for size, spec in zip(need, layout.bands, strict=True) if spec.retention == "state")
    return Fraction(states, sum(need))


def sides(model: HybridModel, *, batch: int, context: int, page: int, total: int, chunk: int) -> tuple[Side, Side]:
    """The arena and the static pools at equal bytes."""
    device = model.device
    layout = build_layout([BandSpec.of(band) for band in group_bands(model.shape.layers(), page)], total)
    arena = Arena.build(
        layout, device=device, sequences=batch, context=context, chunk=chunk,
        options=BuildOptions(batch=batch, step_tokens=chunk + batch),
    )  # fmt: skip
    lanes = Lanes(batch, batch, device)
    memory = memory_of(arena, lanes, token_buffer(batch, device))
    captured = CapturedDecode(model, memory, lanes, sizes=(batch,), context=context, guard=arena_guard(arena))
    none = np.empty(0, np.int64)
    ours = Side("arena", arena, captured, none, none)
    pages = StaticPools.split(layout, share_for(layout, batch, context), chunk).pages_max
    store = StaticStore(
        layout.bands, pages, layout.total_bytes, chunk, sizes=StepSizes(batch, batch, chunk + batch, context), device=device
    )
    places = len(store._tokens) * 8
    lanes = Lanes(batch, places, device)
    memory = store.memory(lanes, token_buffer(places, device))
    captured = CapturedDecode(model, memory, lanes, sizes=(batch,), context=context, guard=lambda: None)
    return ours, Side("static", store, captured, none, none)


def same_bits(pair: tuple[Side, Side], batch: int, steps: int) -> bool:
    """Whether both give equal logits, bit for bit, for sequences begun from nothing."""
    equal = True
    for side in pair:
        side.grow(batch, 0, 1)
        side.decode.memory.tokens.zero_()
    for _ in range(steps):
        first, second = (side.step().clone() for side in pair)
        equal = equal and bool(torch.equal(first, second)) and bool(first.isfinite().all())
    for side in pair:
        side.drop()
    return equal


def fill(side: Side) -> None:
    """Normal bfloat16 numbers in every byte of the caches; a pair of them is a sound float32 number for the states."""
    buffers = [side.pool.buffer] if isinstance(side.pool, Arena) else side.pool.buffers
    for buffer in buffers:
        assert buffer is not None
        for part in buffer[: buffer.numel() // 4 * 4].view(torch.bfloat16).split(1 << 28):
            part.normal_()


def timed(side: Side, steps: int, sync: Callable[[], None]) -> tuple[float, float]:
    """(wall seconds per step, host seconds per step) of a run of steps without a wait in between."""
    sync()
    begun = time.perf_counter()
    for _ in range(steps):
        side.step()
    host = time.perf_counter() - begun
    sync()
    return (time.perf_counter() - begun) / steps, host / steps


def main() -> None:
    """See the module's first lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--gib", type=float, default=24.0)
    parser.add_argument("--toy", action="store_true", help="toy size, any device")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not asked.toy and device.type != "cuda":
        raise SystemExit("no CUDA GPU here; --toy runs the same code at toy size")
    measure(TOY if asked.toy else SEVEN_B, device, asked)


def measure(shape: HybridShape, device: torch.device, asked: argparse.Namespace) -> float:
    """Check, then time alternating rounds. Returns: the arena's step over the static pools' step."""
    model = HybridModel(shape, Weights.random(shape, device), kernels_for(device))
    steps_all = asked.steps * (asked.rounds + 1)
    start = asked.context - steps_all - 1
    pair = sides(
        model, batch=asked.batch, context=asked.context, page=16 if asked.toy else 64, total=int(asked.gib * GIB),
        chunk=max(1, asked.context),
    )  # fmt: skip
    if not same_bits(pair, asked.batch, 20):
        raise SystemExit("arena and static pools give different bits: not timed")
    for side in pair:
        side.grow(asked.batch, start, GROW_TOKENS)
        fill(side)  # after growing: pages are handed out zeroed, and zeros are no fair load

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for side in pair:
        timed(side, asked.steps, sync)
    walls: dict[str, list[float]] = {side.name: [] for side in pair}
    hosts: dict[str, list[float]] = {side.name: [] for side in pair}
    for number in range(asked.rounds):
        for side in pair if number % 2 else reversed(pair):
            wall, host = timed(side, asked.steps, sync)
            walls[side.name].append(wall)
            hosts[side.name].append(host)
    ratios = [a / b for a, b in zip(walls["arena"], walls["static"], strict=True)]
    ratio = statistics.median(ratios)
    logits = pair[0].step()
    made = pair[0].pool.state if isinstance(pair[0].pool, Arena) else None
    record(
        "captured decode, arena over static pools",
        batch=asked.batch, context=asked.context, parameters=shape.parameters, bytes_total=int(asked.gib * GIB),
        ratio=round(ratio, 5), limit=LIMIT, within=ratio <= LIMIT,
        ratio_low=round(min(ratios), 5), ratio_high=round(max(ratios), 5),
        arena_ms=round(1e3 * statistics.median(walls["arena"]), 4),
        static_ms=round(1e3 * statistics.median(walls["static"]), 4),
        arena_host_ms=round(1e3 * statistics.median(hosts["arena"]), 4),
        static_host_ms=round(1e3 * statistics.median(hosts["static"]), 4),
        graph_only_ms=round(1e3 * graph_only(pair[0], asked.steps, sync), 4),
        finite=bool(logits.isfinite().all()), live_bytes=sum(b.live * b.spec.frame_bytes for b in made.bands) if made else 0,
        rounds=asked.rounds, steps=asked.steps,
    )  # fmt: skip
    return ratio


def graph_only(side: Side, steps: int, sync: Callable[[], None]) -> float:
    """Seconds per replay of the same lanes, with no plan, no tables and no host work: the floor."""
    lanes = LaneBatch.of(side.handles % SLOTS_MAX, side.lengths)
    sync()
    begun = time.perf_counter()
    for _ in range(steps):
        side.decode.replay(lanes)
    sync()
    return (time.perf_counter() - begun) / steps


if __name__ == "__main__":
    main()
