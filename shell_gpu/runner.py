"""How a chunk reaches the device: plain torch on the CPU, or one graph replay out of a pinned ring on CUDA.

A replay uploads the chunk, runs its waves, the finish and the translation. Graphs have a fixed shape; kernels read
counts from the uploaded header, so padding costs an empty launch and no host time. After build nothing is compiled,
captured or allocated.
"""

from __future__ import annotations

import gc
from typing import Protocol

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from core_pure.plan import Rows

from . import chunk
from .buffer import LayerViews
from .kernels import twins
from .packing import Work, pack, split
from .tables import DeviceTables


class Runner(Protocol):
    """Applies work, in order, on its stream."""

    def run(self, work: Work) -> None:
        """Apply all of the work; large work goes in several chunks."""


@frozen(eq=False)
class Target:
    """What a chunk is applied to: the arena's words, the tables, 16-byte units per frame of each band, skipped
    sites.
    """

    arena: Tensor
    tables: DeviceTables
    units: tuple[int, ...]
    skip: frozenset[str] = frozenset()


HOST_WORDS = 1 << 18


class HostRunner:
    """Applies chunks with the plain torch twins: the CPU device."""

    def __init__(self, target: Target, words: int = HOST_WORDS) -> None:
        self._target = target
        self._words: Rows = np.zeros(words, np.int32)
        self._staging = torch.from_numpy(self._words)

    def run(self, work: Work) -> None:
        """Apply all of the work."""
        target, tables = self._target, self._target.tables
        for part in split(work, len(self._words), len(target.units)):
            pack(part, target.units, self._words)
            for number in range(len(part.waves)):
                twins.move_wave(target.arena, self._staging, chunk.AT_WAVE + 2 * number)
            twins.finish_plan(target.arena, self._staging, tables.frame_of, tables.lease_pages)
            twins.translate_step(
                self._staging, tables.frame_of, tables.lease_pages,
                tables.bands, tables.tables, tables.writes, target.skip,
            )  # fmt: skip


@frozen
class RingSize:
    """Slots of one capacity, in int32 words a slot."""

    words: int
    slots: int


RING = (RingSize(1 << 13, 8), RingSize(1 << 16, 6), RingSize(1 << 18, 3))
"""32 KiB for a decode step, 256 KiB for a step with large admissions, 1 MiB for compactions: 4.8 MiB pinned, 1 MiB on
device.
"""
WAVE_SHAPES = (0, 1, chunk.WAVES_PER_CHUNK)
"""Waves that a captured graph holds: nearly every plan has none or one."""


@define(eq=False)
class Slot:
    """One pinned buffer, its graphs by number of waves, and the event after its last replay."""

    words: Rows
    graphs: dict[int, torch.cuda.CUDAGraph]
    event: torch.cuda.Event
    used: bool = False


@define(eq=False)
class Ring:
    """Slots of one capacity, taken in turn."""

    capacity: int
    slots: list[Slot] = field(factory=list)
    turn: int = 0

    def take(self) -> Slot:
        """The next slot, once its last upload has passed; waits only when the ring has wrapped around work in
        flight.
        """
        slot = self.slots[self.turn]
        self.turn = (self.turn + 1) % len(self.slots)
        if slot.used and not slot.event.query():  # type: ignore[no-untyped-call]
            slot.event.synchronize()
        slot.used = True
        return slot


class GraphRunner:
    """Applies chunks by replaying captured graphs on one CUDA stream."""

    def __init__(self, target: Target, stream: torch.cuda.Stream, sizes: tuple[RingSize, ...] = RING) -> None:
        self._target = target
        self._stream = stream
        self._raw_stream = stream.cuda_stream
        self._device = stream.device
        self._staging = torch.zeros(max(size.words for size in sizes), dtype=torch.int32, device=stream.device)
        self._rings: list[Ring] = []
        self._pinned: list[Tensor] = []  # keeps the memory that graphs read from
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._build(sizes)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of pinned host memory."""
        return sum(tensor.numel() * 4 for tensor in self._pinned)

    def _launch(self, waves: int) -> None:
        """The launches of one chunk that lies in the staging buffer, on the current stream."""
        from . import launch

        target, tables = self._target, self._target.tables
        for number in range(waves):
            launch.move_wave(target.arena, self._staging, chunk.AT_WAVE + 2 * number)
        launch.finish_plan(target.arena, self._staging, tables.frame_of, tables.lease_pages)
        launch.translate_step(
            self._staging, tables.frame_of, tables.lease_pages, tables.bands, tables.tables, tables.writes, target.skip
        )

    def _build(self, sizes: tuple[RingSize, ...]) -> None:
        """Compile, capture and replay every graph once, on empty chunks, and wait for all of it."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(self._stream)
        with torch.cuda.stream(side):
            self._launch(chunk.WAVES_PER_CHUNK)  # compiles; the staging buffer is all zeros, so there is no work in it
            side.synchronize()
            gc.collect()  # a dead arena's graphs and events must not be destroyed in the middle of a capture
            for size in sizes:
                pinned = torch.zeros((size.slots, size.words), dtype=torch.int32).pin_memory()
                self._pinned.append(pinned)
                ring = Ring(size.words)
                for number in range(size.slots):
                    graphs = {waves: self._capture(pinned[number], waves) for waves in WAVE_SHAPES}
                    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    ring.slots.append(Slot(pinned[number].numpy(), graphs, event))
                self._rings.append(ring)
            for ring in self._rings:
                for slot in ring.slots:
                    for graph in slot.graphs.values():
                        graph.replay()
                    slot.event.record(side)
            self.done.record(side)
        side.synchronize()
        self._stream.wait_stream(side)

    def _capture(self, pinned: Tensor, waves: int) -> torch.cuda.CUDAGraph:
        """One graph: upload from this pinned slot, then the launches."""
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            self._staging[: pinned.numel()].copy_(pinned, non_blocking=True)
            self._launch(waves)
            graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        return graph

    def run(self, work: Work) -> None:
        """Apply all of the work on the arena's stream: usually one replay."""
        if torch._C._cuda_getCurrentRawStream(self._device.index) == self._raw_stream:
            self._run(work)
            return
        with torch.cuda.stream(self._stream):
            self._run(work)

    def _run(self, work: Work) -> None:
        bands = len(self._target.units)
        words = work.words(bands)
        largest = self._rings[-1].capacity
        whole = words <= largest and len(work.waves) <= chunk.WAVES_PER_CHUNK
        for part in (work,) if whole else split(work, largest, bands):
            needed = words if whole else part.words(bands)
            slot = next(ring for ring in self._rings if needed <= ring.capacity).take()
            pack(part, self._target.units, slot.words)
            waves = len(part.waves)
            slot.graphs[waves if waves in slot.graphs else chunk.WAVES_PER_CHUNK].replay()
            slot.event.record(self._stream)
            self.done = slot.event


def warm(device: torch.device) -> None:
    """Compile every kernel of a plan on tiny tensors: before the arena is sized, so that memory profiles include
    them.
    """
    from . import launch

    with torch.cuda.device(device):
        words = torch.zeros(64, dtype=torch.int64, device=device)
        ints = torch.zeros(chunk.HEADER_WORDS, dtype=torch.int32, device=device)
        bands = torch.zeros((1, chunk.BAND_WORDS), dtype=torch.int64, device=device)
        launch.move_wave(words, ints, chunk.AT_WAVE)
        launch.finish_plan(words, ints, ints, ints)
        launch.translate_step(ints, ints, ints, bands, ints, words)
        for ids in (ints, words):
            for out in (ints.clone(), words.clone()):
                launch.translate_ids(ids[:16].view(2, 8), ints, out[:16].view(2, 8))
                launch.translate_ids(ids[:16].view(2, 8), ints, out[:16].view(2, 8), ints[:2])
            for positions in (ints, words):
                launch.translate_slots(ids[:16], positions[:16], ints, words[16:32], 16)
        torch.cuda.synchronize(device)


def warm_stores(views: LayerViews) -> None:
    """Compile the store kernel for these views by storing no rows; the first real store then compiles nothing."""
    from . import launch

    for (layer, tensor), view in views.items():
        if tensor == "v" or not view.is_floating_point():
            continue
        value_view = views.get((layer, "v")) if tensor == "k" else None
        for dtype in {view.dtype, torch.bfloat16}:
            rows = [None if one is None else one.new_empty((0, *one.shape[2:]), dtype=dtype) for one in (view, value_view)]
            slots = torch.empty(0, dtype=torch.int64, device=view.device)
            assert rows[0] is not None
            launch.store_rows(rows[0], view, slots, rows[1], value_view)
