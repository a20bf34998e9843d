"""A hybrid decoder behind the serving loop: decode lanes through captured graphs, prompt chunks packed and uncaptured.

The same runner serves from the arena and from a static split; only the ``Memory`` behind it differs. Tokens never come to
the host: a lane reads what it produced before from the device, and requests end by the trace's lengths.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.loop import Batch, Ints, Mask, Requests, Status
from models.pools import SLOTS_MAX
from shell_gpu.decode import words
from shell_gpu.decode.graph import CapturedDecode, Guard
from shell_gpu.decode.memory import LaneBatch, Lanes, Memory
from shell_gpu.decode.model import HybridModel, PromptChunk

REQUEST_STEP, POSITION_STEP = 104_729, 7919  # primes: a prompt's tokens tell request and place
IN_FLIGHT = 2
"""Steps that may run while the host prepares the next: enough to keep the GPU busy, few enough that times stay honest."""


class ServeRunner:
    """Computes the loop's batches on one GPU (or on the CPU at toy size), and says how long each step took.

    ``requests`` must be set to the loop's before the first step: it tells prompt from generated tokens.
    """

    def __init__(
        self, model: HybridModel, memory: Memory, lanes: Lanes, *, sizes: Sequence[int], context: int, guard: Guard
    ) -> None:
        self.model = model
        self.decode = CapturedDecode(model, memory, lanes, sizes=sizes, context=context, guard=guard)
        self.memory = memory
        self.requests: Requests | None = None
        self.host_seconds = 0.0
        self._flying: deque[torch.cuda.Event] = deque()
        self._last = time.perf_counter()
        self.logits: Tensor | None = None

    def forward(self, batch: Batch) -> tuple[Mask, float | None]:
        """Run decode lanes and prompt chunks; no request ends by itself.

        Returns: nobody ended, and seconds since the step before was handed over; steps overlap the host's work, so a
        step's time shows one or two steps later, and the sum is the wall time.
        """
        begun = time.perf_counter()
        assert self.requests is not None
        slots = batch.handles % SLOTS_MAX
        writes = np.cumsum(batch.counts) - batch.counts
        single = (batch.counts == 1) & (batch.starts >= self.requests.inputs[batch.requests])
        for lanes in self._cut(np.flatnonzero(single)):
            last = np.full(len(lanes), words.LAST_TOKEN)
            lengths = batch.starts[lanes] + 1
            self.logits = self.decode.replay(LaneBatch(lanes, writes[lanes], lengths, slots[lanes], last))
        rest = np.flatnonzero(~single)
        if len(rest):
            tokens = self._prompt(batch.requests[rest], batch.starts[rest], batch.counts[rest])
            chunk = PromptChunk.pack(
                self.model, tokens, rest, batch.starts[rest], batch.counts[rest], writes[rest], slots[rest]
            )
            self.logits = self.model.prompt(self.memory, chunk)
        self.host_seconds += time.perf_counter() - begun
        self._wait()
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return np.zeros(len(batch.requests), bool), seconds

    def _cut(self, lanes: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        most = self.decode.sizes[-1]
        return [lanes[start : start + most] for start in range(0, len(lanes), most)]

    def _prompt(self, requests: Ints, starts: Ints, counts: Ints) -> Tensor:
        """Tokens of prompt chunks, packed, int64."""
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        position = inside + np.repeat(starts, counts)
        tokens = (np.repeat(requests, counts) * REQUEST_STEP + position * POSITION_STEP) % self.model.shape.vocabulary
        held = torch.from_numpy(tokens.astype(np.int64))
        return held.pin_memory().to(self.model.device, non_blocking=True) if self.model.device.type == "cuda" else held

    def _wait(self) -> None:
        """Let at most IN_FLIGHT steps run ahead of the host."""
        if self.model.device.type != "cuda":
            return
        event = torch.cuda.Event()
        event.record()
        self._flying.append(event)
        if len(self._flying) > IN_FLIGHT:
            self._flying.popleft().synchronize()

    def finish(self) -> float:
        """Wait for everything. Returns: seconds since the last step was handed over."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - self._last

    def restart_clock(self) -> None:
        """Time counts from now."""
        self._last = time.perf_counter()

    def released(self, requests: Ints, status: Status) -> None:
        """Nothing is kept per request."""

    def cancelled(self) -> Sequence[int]:
        """Nobody gives up."""
        return ()
