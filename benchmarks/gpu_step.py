"""The headline: host microseconds of one serving step at 64, 256 and 1,024 running requests, beside the peer in the same run.

Each step: running/64 requests finish, as many of 512 prompt tokens are admitted, every request gets one token, write slots
and read table are translated. One plan, arrays in, tables out. Checked against the core before and after it is timed. The
floor beside both does the same work on numpy arrays in place (``inplace_step``).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import peer_sglang
from benchmarks.gpu_common import record
from benchmarks.inplace_step import FloorLoop
from core_pure.geometry import FullAttention, Layer, RecurrentState, StateTensor, group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.step import block_table, write_slots
from shell_gpu.arena import Arena, ArenaStep, BuildOptions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")]

PROMPT, ROOM = 512, 640
RUNNING = (64, 256, 1024)
STEPS, WARM, BLOCK = 120, 20, 10


def layout_of(page: int, total: int) -> Layout:
    """The peer's shapes: four attention layers and four state layers."""
    layers = [
        Layer(n, FullAttention(peer_sglang.HEADS, peer_sglang.HEAD_DIM, peer_sglang.HEAD_DIM, "bfloat16"))
        for n in range(peer_sglang.LAYERS)
    ]
    tensors = (
        StateTensor("conv", peer_sglang.CONV_SHAPE, "bfloat16"),
        StateTensor("temporal", peer_sglang.TEMPORAL_SHAPE, "float32"),
    )
    layers += [Layer(n, RecurrentState(tensors)) for n in range(peer_sglang.LAYERS)]
    return build_layout([BandSpec.of(band) for band in group_bands(layers, page)], total)


def arena_of(page: int, running: int) -> Arena:
    """An arena for that many requests."""
    finished = max(1, running // 64)
    return Arena.build(
        layout_of(page, peer_sglang.ARENA_BYTES), device=DEVICE, sequences=running + finished, context=ROOM, chunk=PROMPT + 1,
        options=BuildOptions(batch=running, step_tokens=running * (PROMPT + 1)),
    )  # fmt: skip


class ArenaLoop:
    """Steps of the arena; ``prepare`` and ``step`` are timed together, nothing is left out."""

    def __init__(self, arena: Arena, running: int) -> None:
        self.arena, self.running = arena, running
        self.handles = arena.open(running)
        self.tokens = np.full(running, PROMPT, np.int64)
        self.made = self._take(np.empty(0, np.int64))
        self.tokens[:] = 1

    def _take(self, finished: np.ndarray) -> ArenaStep:
        made = self.arena.step(self.handles, self.tokens, finished)
        if not isinstance(made, ArenaStep):
            raise AssertionError(f"the benchmark's own arena refused: {made}")
        return made

    def step(self, done: np.ndarray, flush: bool) -> None:
        """One serving step, all of it timed."""
        finished = self.handles[done]
        self.handles[done] = self.arena.open(len(done))
        self.tokens[done] = PROMPT + 1
        self.made = self._take(finished)
        self.tokens[done] = 1
        if flush:
            self.arena.compact(1 << 20)

    def check(self) -> None:
        """Raise unless block tables and write slots on the device are the core's."""
        outcome = self.made.outcome
        assert outcome is not None and self.made.write_locs is not None
        for band, spec in enumerate(self.arena.layout.bands):
            wanted = block_table(self.arena.state, self.arena.leases, outcome.slots, band, self.arena.tables.widths[band])
            got = self.made.block_tables[band][: self.running].cpu().numpy()
            if not np.array_equal(got, wanted):
                raise AssertionError(f"block table of {spec.name} is wrong: nothing is timed")
            if spec.grows:
                slots = write_slots(outcome, band)
                if not np.array_equal(self.made.write_locs.slots[band][: len(slots)].cpu().numpy(), slots):
                    raise AssertionError(f"write slots of {spec.name} are wrong: nothing is timed")


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Timed:
    """Host microseconds of one side's steps."""

    def __init__(self, running: int, make: Callable[[list[int]], Callable[[], None]], after: Callable[[], None]) -> None:
        self.running, self.make, self.after = running, make, after
        self.count, self.number, self.times = max(1, running // 64), 0, list[float]()

    def block(self) -> None:
        """A block of steps with the device idle before the first; ``make`` and ``after`` are not timed."""
        synchronize()
        for _ in range(BLOCK):
            step = self.make([(self.number * self.count + i) % self.running for i in range(self.count)])
            start = time.perf_counter()
            step()
            self.times.append((time.perf_counter() - start) * 1e6)
            self.after()
            self.number += 1

    def median(self) -> float:
        """Of all steps after the warm ones."""
        return statistics.median(self.times[WARM:])

    def high(self) -> float:
        """99th percentile."""
        return sorted(self.times[WARM:])[int((len(self.times) - WARM) * 0.99)]


def arena_side(loop: ArenaLoop, flush: bool) -> Timed:
    """The arena: nothing of its step is left out."""
    return Timed(loop.running, lambda done: partial(loop.step, np.array(done), flush), lambda: None)


def peer_side(peer: peer_sglang.Peer, running: int, flush: bool) -> Timed:
    """The peer in its best case."""
    loop = peer_sglang.PeerStep(peer, running, PROMPT, ROOM)

    def prepared(done: list[int]) -> Callable[[], None]:
        loop.prepare(done)
        return partial(loop.step, flush)

    return Timed(running, prepared, loop.settle)


def measured(page: int, running: int, flush: bool, peer: peer_sglang.Peer | None) -> list[Timed]:
    """Arena, floor and, if there is one, peer in alternating blocks, so that all see the same machine; checked before and after."""
    loop, least = ArenaLoop(arena_of(page, running), running), FloorLoop(arena_of(page, running), running, PROMPT)
    loop.check()
    sides = [arena_side(loop, flush), Timed(running, lambda done: partial(least.step, np.array(done)), lambda: None)]
    sides += [peer_side(peer, running, flush)] if peer else []
    for _ in range((STEPS + WARM) // BLOCK):
        for side in sides:
            side.block()
    least.check()
    if not flush:  # a flush after the step has moved frames on
        loop.check()
    if loop.arena.verify():
        raise AssertionError("the arena's value is corrupt: nothing is recorded")
    return sides


@pytest.mark.parametrize("page", (1, 16))
def test_serving_step(benchmark: Any, page: int) -> None:
    """Host time per step stays below a quarter of the peer's in the same run."""
    peer = peer_sglang.load(page)
    for running in RUNNING:
        for flush in (False, True):
            ours, least, *others = measured(page, running, flush, peer)
            peers = {
                "peer_us": round(theirs.median(), 1), "ratio": round(ours.median() / theirs.median(), 3),
                "floor_ratio": round(least.median() / theirs.median(), 3),
            } if (theirs := others[0] if others else None) else {"peer_us": None}  # fmt: skip
            record(
                "serving step, host", running=running, page=page, flush=flush, arena_us=round(ours.median(), 1),
                arena_p99_us=round(ours.high(), 1), floor_us=round(least.median(), 1), **peers,
            )  # fmt: skip
    loop = ArenaLoop(arena_of(page, RUNNING[0]), RUNNING[0])
    rounds = iter(range(10_000))
    benchmark.pedantic(lambda: loop.step(np.array([next(rounds) % RUNNING[0]]), False), rounds=100, warmup_rounds=20)
    loop.check()


if __name__ == "__main__":  # python -m benchmarks.gpu_step PAGE RUNNING [total bytes]: the arena alone, any device
    wanted_page, wanted_running = int(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 3:
        peer_sglang.ARENA_BYTES = int(sys.argv[3])
    print([side.median() for side in measured(wanted_page, wanted_running, "--flush" in sys.argv, None)])
