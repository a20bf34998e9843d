"""Stamped sequences served with several forwards in flight: a forward checks every byte it may read, then writes its own.

Sequences belong to one of ``depth`` groups, each served by its own micro-batches on its own stream. A forward is plain
torch over its flight's own tables: every visible key carries sequence and position, the state carries the count of tokens.
Each difference adds to a counter per stream that stays on the device until the end.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from core_pure.fits import Refusal
from core_pure.geometry import FullAttention, Layer, RecurrentState, SlidingWindow, StateTensor, group_bands
from core_pure.layout import BandSpec, build_layout
from shell_gpu.arena import Arena, BuildOptions
from shell_gpu.overlap import Flight, Overlap

WINDOW, PAGE, DIM = 12, 4, 8
POSITIONS = 64  # most tokens of a sequence; a stamp is serial * POSITIONS + position, exact in float32
SERIALS = 1 << 17
UPLOADS = 16
LAYERS = (
    Layer(0, RecurrentState((StateTensor("count", (64,), "float32"),))),
    Layer(1, SlidingWindow(1, DIM, DIM, "float32", window=WINDOW)),
    Layer(2, FullAttention(1, DIM, DIM, "float32")),
)


class OverlapWorld:
    """Random sequences that come and go, under memory so short that frames are reused and moved all the time."""

    def __init__(
        self, device: torch.device, *, total: int, batch: int, depth: int, quarantine: bool = True, cycles: int = 0, seed: int = 0
    ) -> None:
        """Args: cycles: GPU clock cycles that every forward idles before it reads."""
        cuda = device.type == "cuda"
        self.device, self.batch, self.cycles = device, batch, cycles
        layout = build_layout([BandSpec.of(band) for band in group_bands(LAYERS, PAGE)], total)
        plans = torch.cuda.Stream(device) if cuda else None
        self.arena = Arena.build(
            layout, device=device, sequences=2 * batch, context=POSITIONS, chunk=POSITIONS, options=BuildOptions(stream=plans)
        )
        self.overlap = Overlap(self.arena, depth, quarantine=quarantine)
        self.streams = [torch.cuda.Stream(device) if cuda else None for _ in range(depth)]
        self.rng = np.random.default_rng(seed)
        self.held: dict[int, list[int]] = {}  # handle -> serial, tokens
        self.serial = self.turns = self.refused = self.moved = self.waited = self.released = 0
        self.wrong = torch.zeros(depth, dtype=torch.int64, device=device)
        self._positions = torch.arange(POSITIONS, device=device)
        pinned = torch.zeros((UPLOADS, 3, batch), dtype=torch.int64)
        self._pinned = pinned.pin_memory() if cuda else pinned

    def step(self) -> None:
        """Plan and launch one micro-batch: ends, beginnings, growth by one token or a chunk; now and then a compaction."""
        self.turns += 1
        if self.rng.random() < 0.2:
            self.moved += self.overlap.compact(int(self.rng.integers(1, self.arena.layout.total_bytes))) > 0
        gone = [handle for handle, pair in self.held.items() if pair[1] >= POSITIONS - 9 or self.rng.random() < 0.04]
        self.released += len(gone)
        for handle in gone:
            del self.held[handle]
        if len(self.held) < self.batch:
            self.serial = (self.serial + 1) % SERIALS
            self.held[int(self.arena.open(1)[0])] = [self.serial, 0]
        group = self.turns % len(self.streams)
        handles = np.array([h for h, pair in sorted(self.held.items()) if pair[0] % len(self.streams) == group], np.int64)
        fresh = np.array([self.held[handle][1] == 0 for handle in handles.tolist()], bool)
        new = np.where(fresh, self.rng.integers(1, POSITIONS // 2, len(handles)), self.rng.integers(1, 5, len(handles)))
        flight = self.overlap.step(handles, new, np.array(gone, np.int64))
        if isinstance(flight, Refusal):  # with nothing in flight either: too many sequences for the memory
            self.refused += 1
            for handle in [*gone, *sorted(self.held)[: len(self.held) // 2]]:
                self.held.pop(handle, None)
                self.arena.step(np.empty(0, np.int64), np.empty(0, np.int64), np.array([handle]))
            return
        assert flight.result is not None and flight.result.outcome is not None
        self.moved += flight.result.bytes_moved > 0
        self.waited += flight.result.outcome.plan.wait is not None
        pairs = [self.held[handle] for handle in handles.tolist()]
        facts = np.array([[*pair, count] for pair, count in zip(pairs, new, strict=True)], np.int64).reshape(-1, 3)
        for handle, count in zip(handles.tolist(), new.tolist(), strict=True):
            self.held[handle][1] += count
        turn = self.turns
        self.overlap.launch(flight, lambda: self._forward(flight, facts, turn), self.streams[group])

    def _forward(self, flight: Flight, facts: np.ndarray, turn: int) -> None:
        """Check what a model would read, then write what it would write. ``facts``: serial, tokens before, new tokens."""
        count = len(facts)
        pinned = self._pinned[turn % UPLOADS]
        pinned[:, :count] = torch.from_numpy(facts.T.copy())
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        serials, before, new = pinned.to(self.device, non_blocking=True)[:, :count].unbind(0)
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for band, spec in enumerate(self.arena.layout.bands):
            views = list(self.arena.views[spec.name].values())
            if spec.grows:
                first = (before - WINDOW + 1).clamp(min=0) if spec.slides else torch.zeros_like(before)
                wrong += self._rows(flight.block_tables[band][:count], views, serials, first, before, new)
            else:
                wrong += self._states(flight.block_tables[band][:count, 0].long(), views[0], serials, before, new)
        self.wrong[turn % len(self.streams)] += wrong

    def _rows(
        self, table: Tensor, views: list[Tensor], serials: Tensor, first: Tensor, before: Tensor, new: Tensor
    ) -> Tensor:
        positions = self._positions
        stamps = (serials[:, None] * POSITIONS + positions).float()
        frames = table[:, (positions // PAGE).clamp(max=table.shape[1] - 1)].long()
        seen = (positions >= first[:, None]) & (positions < before[:, None])
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        mine = (positions >= before[:, None]) & (positions < (before + new)[:, None])
        target = torch.where(mine, frames, 0)  # everything else goes to the sink
        for view in views:
            held = view[frames, positions % PAGE, 0]
            wrong += ((held != stamps[..., None]).any(-1) & seen).sum() + (mine & (frames == 0)).sum()
            place = (target, positions.expand_as(target) % PAGE, torch.zeros_like(target))
            view.index_put_(place, stamps[..., None].expand_as(held))
        return wrong

    @staticmethod
    def _states(frames: Tensor, view: Tensor, serials: Tensor, before: Tensor, new: Tensor) -> Tensor:
        held = view[frames, 0]
        expected = torch.where(before > 0, serials * POSITIONS + before, 0).float()
        wrong = (held != expected[:, None]).any(-1).sum() + (frames == 0).sum()
        view.index_put_((frames, torch.zeros_like(frames)), (serials * POSITIONS + before + new).float()[:, None].expand_as(held))
        return wrong

    def run(self, steps: int) -> int:
        """So many steps, then everything in flight. Returns: mismatches seen by forwards."""
        for _ in range(steps):
            self.step()
        self.overlap.drain()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return int(self.wrong.sum())
