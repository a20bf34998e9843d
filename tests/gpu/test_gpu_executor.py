"""The executor on a GPU: no reads back, no synchronisation, no allocation, no compilation after build; bytes survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from core_pure.compact import compact
from core_pure.layout import BandSpec
from core_pure.plan import Plan, encode, triples
from tests.gpu.world import BANDS, World


@contextmanager
def no_sync() -> Iterator[None]:
    """Any call that waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def nothing_compiled() -> Iterator[list[object]]:
    """Collects every Triton compilation; there must be none."""
    import triton

    seen: list[object] = []
    before = triton.knobs.runtime.jit_cache_hook

    def hook(*args: object, **named: object) -> bool:
        seen.append(named.get("repr", args))
        return False

    triton.knobs.runtime.jit_cache_hook = hook
    try:
        yield seen
    finally:
        triton.knobs.runtime.jit_cache_hook = before


def test_ten_thousand_mixed_steps_never_synchronise() -> None:
    """Allocate, release, compact, launch and retire never wait for the device, and every stamp is right at the end."""
    world = World(BANDS, 64 << 20, seed=1)
    with no_sync():
        for _ in range(10_000):
            world.step(stamp=False)
    world.held = [pages[:0] for pages in world.held]  # nothing was stamped in the silent part
    assert np.array_equal(world.tables.frame_of.cpu().numpy(), world.state.table())
    assert world.moved > 10_000 and world.refused > 10 and world.compactions > 500


def test_stamps_survive_mixed_steps() -> None:
    """Every held page carries its own stamp after relief, compaction and reuse, checked every 50 of 2,000 steps."""
    world = World(BANDS, 48 << 20, seed=2)
    for number in range(2_000):
        world.step()
        if number % 50 == 0:
            world.check()
    world.check()
    assert world.moved > 2_000


def test_a_hundred_gibibytes_survive_ten_thousand_steps() -> None:
    """An arena of 100 GiB (or most of what is free), offsets far beyond 2**31: stamps survive with forced relief."""
    free = torch.cuda.mem_get_info()[0]
    total = min(100 << 30, int(free * 0.85))
    bands = (
        BandSpec("state", 37 << 20, retention="state"),
        BandSpec("window", 3 << 20, slots_per_page=16, retention="window", window=128),
        BandSpec("full", (5 << 20) + 4096, slots_per_page=16),
    )
    world = World(bands, total, seed=3)
    for number in range(10_000):
        world.step()
        if number % 1_000 == 0:
            world.check()
    world.check()
    assert world.moved > 1_000
    assert (
        max(
            int(world.state.frames_of(p).max()) * b.frame_bytes
            for p, b in zip(world.held, world.layout.bands, strict=True)
            if len(p)
        )
        > 2**31
    )


def test_a_trace_shows_no_copy_back_and_no_allocation() -> None:
    """Fifty steps in a profiler trace: not one device-to-host copy, no allocation, memory in use unchanged."""
    world = World(BANDS, 32 << 20, seed=4)
    for _ in range(20):
        world.step(stamp=False)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]
    for _ in range(50):
        world.step(stamp=False)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]
    assert before == after  # before profiling: the profiler takes device memory of its own
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
        for _ in range(50):
            world.step(stamp=False)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert any("Memcpy HtoD" in name for name in names), "the trace saw no upload: it proves nothing"
    bad = [name for name in names if "DtoH" in name or "cudaMalloc" in name or "cudaFree" in name]
    assert not bad and torch.cuda.memory_stats()["allocation.all.allocated"] == after[0], bad[:5]


def test_F41_the_first_compaction_needs_no_compiler_and_no_memory() -> None:
    """The first moves ever happen under a full arena: nothing is compiled, nothing is allocated."""
    world = World(BANDS, 32 << 20, seed=5)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with nothing_compiled() as compiled:
        while world.moved == 0:
            world.step(stamp=False)
        outcome = compact(world.state, bytes_limit=1 << 30)
        world.executor.apply(encode(outcome.plan))
        torch.cuda.synchronize()
    assert compiled == [] and torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_a_ring_slot_is_not_overwritten_before_its_upload() -> None:
    """Three hundred plans queued behind a busy device all arrive as they were, whatever ring they used."""
    world = World(BANDS, 32 << 20, seed=6)
    pages = world.layout.ids_total - 1
    torch.cuda._sleep(200_000_000)
    for number in range(300):
        count = (10, 5_000, 4)[number % 3]
        ids = (np.arange(count) * 7 + number * 31) % pages + 1
        ids = np.unique(ids)
        world.executor.apply(encode(Plan(rows=np.stack([ids, np.full(len(ids), number + 1)], axis=1).astype(np.int32))))
    wanted = np.zeros(pages + 1, np.int32)
    for number in range(300):
        ids = (np.arange((10, 5_000, 4)[number % 3]) * 7 + number * 31) % pages + 1
        wanted[ids] = number + 1
    assert np.array_equal(world.tables.frame_of.cpu().numpy(), wanted)


def test_the_callers_stream_is_used() -> None:
    """Plans run on the stream given at build, also when another one is current; other streams can wait for them."""
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    world = World(BANDS, 32 << 20, seed=7, stream=stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
    world.executor.apply(encode(Plan(rows=np.array([[3, 9]], np.int32))))
    assert not stream.query(), "the plan did not queue behind the stream's work"
    world.executor.ready(other)
    with torch.cuda.stream(other):
        seen = world.tables.frame_of[3:4].clone()
    other.synchronize()
    assert int(seen) == 9


def test_a_plan_waits_on_the_device_for_its_fence() -> None:
    """A move that must follow a running reader leaves the reader's bytes alone until the reader is done."""
    reader, mover = torch.cuda.Stream(), torch.cuda.Stream()
    world = World(BANDS, 32 << 20, seed=8, stream=mover)
    frames = world.frames[2]
    frames[100].fill_(1)
    frames[200].fill_(2)
    torch.cuda.synchronize()
    with torch.cuda.stream(reader):
        torch.cuda._sleep(200_000_000)
        seen = frames[200].clone()
    world.executor.launched(1, reader)
    world.executor.apply(encode(Plan(waves=(triples(2, [100], [200]),), wait=1)))
    torch.cuda.synchronize()
    assert bool((seen == 2).all()) and bool((frames[200] == 1).all())
