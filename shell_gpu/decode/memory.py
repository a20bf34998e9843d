"""What a model step reads of any memory, moving or not: views, tables, write slots and lanes, all at fixed addresses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from ..buffer import LayerViews
from ..errors import StepTooLarge
from . import words

Ints = NDArray[np.integer]
UPLOADS = 8
"""Pinned copies of the lanes: as many steps may be in flight before the host waits for the oldest upload."""


@frozen(eq=False)
class Memory:
    """Addresses of one step's inputs and of the bytes behind them.

    views: per band, by (layer, tensor). tables: per band int32[rows, columns] of frames. slots: per growing band
    int64[tokens], physical write slots. lanes: int32[LANE_WORDS, batch]. tokens: int64[sequences + 1], the last token of
    each sequence's place; the last entry serves padding.
    """

    views: Mapping[str, LayerViews]
    tables: Mapping[str, Tensor]
    slots: Mapping[str, Tensor]
    lanes: Tensor
    tokens: Tensor


@frozen(eq=False)
class LaneBatch:
    """Lanes of one decode step, host side. Arrays of one length.

    rows: of the block tables. writes: index of each lane's write slot. lengths: tokens with the new one. sources: places
    of the last tokens. tokens: what to read, LAST_TOKEN for what the lane produced before.
    """

    rows: Ints
    writes: Ints
    lengths: Ints
    sources: Ints
    tokens: Ints

    @classmethod
    def of(cls, slots: Ints, lengths: Ints, tokens: Ints | None = None) -> LaneBatch:
        """Every row of a step is a lane, in order. Args: slots: lease rows; lengths: tokens after the step."""
        rows = np.arange(len(slots))
        return cls(rows, rows, lengths, slots, np.full(len(slots), words.LAST_TOKEN) if tokens is None else tokens)


class Lanes:
    """The lanes on the device, and the pinned ring they are uploaded from."""

    def __init__(self, batch: int, dummy: int, device: torch.device) -> None:
        """Args: batch: most lanes. dummy: place of the token that padded lanes read and write."""
        self.batch = batch
        self._padding = np.zeros((words.LANE_WORDS, 1), np.int32)
        self._padding[words.LANE_ROW] = words.PADDING
        self._padding[words.LANE_SOURCE] = dummy
        self.device = torch.zeros((words.LANE_WORDS, batch), dtype=torch.int32, device=device)
        pinned = torch.zeros((UPLOADS, words.LANE_WORDS, batch), dtype=torch.int32)
        self._pinned = pinned.pin_memory() if device.type == "cuda" else pinned
        self._passed: list[torch.cuda.Event | None] = [None] * UPLOADS
        self._turn = 0

    def upload(self, batch: LaneBatch) -> None:
        """Write the lanes of one step and pad the rest, on the current stream. Raises: StepTooLarge."""
        count = len(batch.rows)
        if count > self.batch:
            raise StepTooLarge(f"a decode batch of {count}; lanes were built for {self.batch}: split it, or build larger")
        turn, self._turn = self._turn, (self._turn + 1) % UPLOADS
        event = self._passed[turn]
        if event is not None and not event.query():  # type: ignore[no-untyped-call]
            event.synchronize()
        held = self._pinned[turn].numpy()
        held[words.LANE_ROW, :count] = batch.rows
        held[words.LANE_WRITE, :count] = batch.writes
        held[words.LANE_LENGTH, :count] = batch.lengths
        held[words.LANE_SOURCE, :count] = batch.sources
        held[words.LANE_TOKEN, :count] = batch.tokens
        held[:, count:] = self._padding
        self.device.copy_(self._pinned[turn], non_blocking=True)
        if self.device.is_cuda:
            if event is None:
                event = self._passed[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
