"""What the CPU benchmarks share: a band of many frames with and without holes, in the core and in place, and serving steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.inplace import InPlaceBand
from core_pure.advance import allocate, release
from core_pure.band import bind, frames_held, unbind
from core_pure.door import Door
from core_pure.fits import Refusal
from core_pure.geometry import FullAttention, Layer, RecurrentState, StateTensor, group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.relief import seats
from core_pure.state import ArenaState, Outcome, initial
from core_pure.step import StepOutcome, block_table, write_slots

SEED = 20261130
FULL = 2
"""The band under test is the last of three: state, window, full."""
PROMPT, ROOM = 512, 640
"""Tokens of a prompt, and of the longest request, in the serving step of the peer's harness."""


def three_bands(frames: int) -> Layout:
    """A state, a window and a full band; the full one can hold twice ``frames``."""
    bands = (
        BandSpec("full", 2048, 16),
        BandSpec("window", 2048, 16, "window", 64),
        BandSpec("state", 4096, retention="state"),
    )
    return build_layout(bands, 2048 * (2 * frames + 4096))


def held_out(frames: int, holes: float, seed: int = SEED) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices 1 … frames in two random parts: those to release at first, and the rest."""
    order = np.random.default_rng(seed).permutation(frames) + 1
    cut = int(frames * holes)
    return order[:cut], order[cut:]


class CoreBand:
    """The core's own transitions, one band asked; keeps only the newest value."""

    def __init__(self, frames: int, holes: float) -> None:
        start = allocate(initial(three_bands(frames)), (10, 100, frames))
        assert isinstance(start, Outcome)
        self.state: ArenaState = start.state
        self.base = self.state.bands[FULL].home.id_base
        gone, kept = held_out(frames, holes)
        self.kept = (kept + self.base).astype(np.int32)
        if len(gone):
            self.release(gone + self.base)

    def allocate(self, count: int) -> NDArray[np.int32]:
        """Take pages."""
        made = allocate(self.state, (0, 0, count))
        assert isinstance(made, Outcome)
        self.state = made.state
        return made.pages[FULL]

    def release(self, pages: NDArray[np.integer]) -> None:
        """Give pages back."""
        self.state = release(self.state, pages).state


class OneBand:
    """The transitions of one band alone: what the in-place floor does, on values, without neighbours and without a plan."""

    def __init__(self, frames: int, holes: float) -> None:
        core = CoreBand(frames, holes)
        self.band, self.kept, self.base = core.state.bands[FULL], core.kept, core.base
        self.room = (self.band.low - frames, self.band.high)  # it grows down: the full band is the last of the chain

    def allocate(self, count: int) -> NDArray[np.intp]:
        """Take pages."""
        low = self.band.low - max(0, count - self.band.holes)
        self.band, ids = bind(self.band, *seats(self.band, (max(self.room[0], low), self.room[1]), count))
        return ids + self.base

    def release(self, pages: NDArray[np.integer]) -> None:
        """Give pages back."""
        ids = pages.astype(np.intp) - self.base
        if int(np.maximum.reduce((ids - 1).view(np.uint64))) >= self.band.home.ids_max:
            raise KeyError("out of range")
        self.band = unbind(self.band, ids, frames_held(self.band, ids), None, distinct=False)


class PlainBand:
    """The same pattern on the in-place floor."""

    def __init__(self, frames: int, holes: float) -> None:
        self.band = InPlaceBand(2 * frames)
        self.band.allocate(frames)
        gone, kept = held_out(frames, holes)
        self.kept = kept.astype(np.int32)
        if len(gone):
            self.band.release(gone)

    def allocate(self, count: int) -> NDArray[np.intp]:
        """Take pages."""
        return self.band.allocate(count)

    def release(self, pages: NDArray[np.integer]) -> None:
        """Give pages back."""
        self.band.release(pages)


def peer_layout(page: int) -> Layout:
    """The shapes of the peer's harness: four attention layers, four state layers, 8 GiB."""
    layers = [Layer(n, FullAttention(2, 64, 64, "bfloat16")) for n in range(4)]
    tensors = (StateTensor("conv", (3, 128), "bfloat16"), StateTensor("temporal", (8, 64, 64), "float32"))
    layers += [Layer(n, RecurrentState(tensors)) for n in range(4)]
    return build_layout([BandSpec.of(band) for band in group_bands(layers, page)], 8 << 30)


class Serving:
    """The serving step of the peer's harness on the door alone: releases, admissions, one token each, and the tables."""

    def __init__(self, page: int, running: int) -> None:
        self.running, self.count, self.number = running, max(1, running // 64), 0
        self.door = Door(peer_layout(page), sequences=running + self.count, context=ROOM, chunk=PROMPT + 1)
        self.handles = self.door.open(running)
        self.tokens = np.full(running, PROMPT, np.int64)
        self.made = self._step(self.handles[:0])
        self.tokens[:] = 1

    def _step(self, finished: NDArray[np.int64]) -> StepOutcome:
        result = self.door.step(self.handles, self.tokens, finished)
        assert not isinstance(result, Refusal) and result.outcome is not None
        return result.outcome

    def step(self) -> None:
        """Core and plan: what a GPU shell needs from the host."""
        done = (self.number * self.count + np.arange(self.count)) % self.running
        self.number += 1
        finished = self.handles[done]
        self.handles[done] = self.door.open(self.count)
        self.tokens[done] = PROMPT + 1
        self.made = self._step(finished)
        self.tokens[done] = 1

    def tables(self) -> None:
        """Block tables and write slots on the host, as the CPU device makes them."""
        for band, spec in enumerate(self.door.layout.bands):
            block_table(self.door.state, self.door.leases, self.made.slots, band, self.door.leases.widths[band])
            if spec.grows:
                write_slots(self.made, band)
