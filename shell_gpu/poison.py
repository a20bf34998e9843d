"""Poison mode: every byte that nobody holds reads as NaN, so that a read of foreign or stale bytes shows up in a test."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_pure.state import ArenaState

from .chunk import POISON_BYTE, UNIT_BYTES

Bytes = NDArray[np.int64]


def held_units(state: ArenaState) -> NDArray[np.bool_]:
    """Which 16-byte units of the arena are held: the sink, live frames, and quarantine that a reader may still read."""
    units = state.layout.total_bytes // UNIT_BYTES
    edges = np.zeros(units + 1, np.int64)
    edges[0] += 1
    edges[state.layout.sink_bytes // UNIT_BYTES] -= 1
    for band in state.bands:
        size = band.spec.frame_bytes // UNIT_BYTES
        frames = band.page_of.read(slice(band.low, band.high))
        held = band.low + np.flatnonzero(frames != -1)  # -1 marks a hole
        np.add.at(edges, held * size, 1)
        np.add.at(edges, held * size + size, -1)
    return np.cumsum(edges)[:-1] > 0


def fill_free(buffer: Tensor, state: ArenaState) -> None:
    """Fill every byte outside ``held_units`` with the NaN pattern. Cost: O(arena); for tests."""
    free = torch.from_numpy(~held_units(state)).to(buffer.device)
    whole = len(free) * UNIT_BYTES
    buffer[:whole].view(-1, UNIT_BYTES).masked_fill_(free[:, None], POISON_BYTE)


def touches(starts: Bytes, size: int, low: Bytes, high: Bytes) -> NDArray[np.bool_]:
    """Which of the ranges [start, start + size) meet any of the ranges [low, high)."""
    if not len(low):
        return np.zeros(len(starts), bool)
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    last = np.searchsorted(low, starts + size) - 1  # ranges that begin before this one ends
    return (last >= 0) & (reach[np.maximum(last, 0)] > starts)
