"""Plans on a stream of their own while forwards run: what is read, written or moved when is decided by fences.

A step is planned (``step``), then launched (``launch``); up to ``depth`` launched steps are in flight, each a micro-batch
that reads its own copy of the block tables and write slots. Every plan names the newest launched step as its reader, so
frames that a forward may still touch are quarantined, or the plan waits for it on the stream. A step is retired when the
host has waited for it, always at the same places of the program, never because a query said so: ranks stay equal.

On the CPU a launched forward is kept and run as late as the rules allow, so a missing rule shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from attrs import define, field
from numpy.typing import NDArray
from torch import Tensor

from core_pure import step as steps
from core_pure.capacity import Ints
from core_pure.errors import FenceError
from core_pure.fits import Refusal
from core_pure.leases import NONE, flat

from .arena import Arena, ArenaStep
from .errors import StepTooLarge

Forward = Callable[[], None]


@define(eq=False)
class Flight:
    """One micro-batch: its step, and its own block tables and write slots, address-stable for graphs captured per flight."""

    tables: Tensor
    writes: Tensor
    block_tables: tuple[Tensor, ...]
    write_slots: tuple[Tensor, ...]
    applied: torch.cuda.Event | None
    done: torch.cuda.Event | None
    result: ArenaStep | None = None
    fence: int = 0
    written: NDArray[np.int64] = field(factory=lambda: NONE)
    forward: Forward | None = None


class Overlap:
    """Serving steps of one arena with several forwards in flight. One host thread.

    Args: arena: built with a stream of its own for plans (``BuildOptions.stream``) where forwards use others. depth: most
    steps in flight. quarantine: False is a test hook that plans as if nothing were in flight.
    """

    def __init__(self, arena: Arena, depth: int, *, quarantine: bool = True) -> None:
        if depth < 1:
            raise StepTooLarge(f"{depth} steps in flight; expected at least 1")
        self.arena = arena
        self.quarantine = quarantine
        self._cuda = arena.device.type == "cuda"
        # Fences are recorded here after each forward: one stream, so that they pass in order whatever the forwards do.
        self._order = torch.cuda.Stream(arena.device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._flights = [self._flight() for _ in range(depth)]
        self._turn = 0
        self._planned: Flight | None = None
        self._running: deque[Flight] = deque()
        self.waits = 0

    def _flight(self) -> Flight:
        tables = self.arena.tables
        copies = torch.zeros_like(tables.tables), torch.zeros_like(tables.writes)
        blocks = tuple(copies[0].as_strided(t.shape, t.stride(), t.storage_offset()) for t in tables.block_tables)
        slots = tuple(
            copies[1].as_strided(t.shape, t.stride(), t.storage_offset()) if spec.grows else block
            for t, spec, block in zip(tables.write_slots, self.arena.layout.bands, blocks, strict=True)
        )
        applied, done = (torch.cuda.Event() if self._cuda else None for _ in range(2))  # type: ignore[no-untyped-call]
        return Flight(*copies, blocks, slots, applied, done)

    @property
    def reader(self) -> int | None:
        """The newest launched step that may still run; None when all have been retired."""
        return self._running[-1].fence if self._running and self.quarantine else None

    def step(self, handles: Ints, new_tokens: Ints, finished: Ints = NONE, slid: Ints | None = None) -> Flight | Refusal:
        """Plan one step beside the running forwards. Waits on the host only for a flight to reuse, or to avoid a refusal.

        Returns: the flight to launch, or a Refusal when it does not fit with nothing in flight either.
        Raises: FenceError when the step planned before was not launched; what ``Arena.step`` raises.
        """
        if self._planned is not None:
            raise FenceError("a planned step was not launched; launch() it before planning the next")
        flight = self._flights[self._turn]
        while flight in self._running:
            self.retire_oldest()
        while True:
            if not self._cuda:
                self._wait_on_host(handles, new_tokens, finished, slid)
            result = self.arena.step(handles, new_tokens, finished, slid, reader=self.reader)
            if not isinstance(result, Refusal):
                break
            if not self._running:
                return result
            self.waits += 1
            self.retire_oldest()
        self._turn = (self._turn + 1) % len(self._flights)
        self._copy(flight)
        flight.result = result
        flight.written = self._written(result)
        self._planned = flight
        return flight

    def _copy(self, flight: Flight) -> None:
        """Give the flight its own tables, on the plans' stream: the next plan overwrites the arena's."""
        tables, stream = self.arena.tables, self.arena.executor.stream
        if stream is None:
            flight.tables.copy_(tables.tables)
            flight.writes.copy_(tables.writes)
            return
        with torch.cuda.stream(stream):
            flight.tables.copy_(tables.tables)
            flight.writes.copy_(tables.writes)
            assert flight.applied is not None
            flight.applied.record(stream)

    def _written(self, result: ArenaStep) -> NDArray[np.int64]:
        """Page ids that the step's forward writes: the pages of its new tokens, and every state."""
        made = result.outcome
        assert made is not None
        ids = [np.empty(0, np.int64)]
        for band, spec in enumerate(made.leases.layout.bands):
            width = made.leases.widths[band]
            if spec.grows:
                first = made.before // spec.slots_per_page
                counts = np.where(made.after > made.before, -(-made.after // spec.slots_per_page) - first, 0)
                cells = flat(made.slots * width + first, counts)
            else:
                cells = flat(made.slots * width, np.full(len(made.slots), width))
            ids.append(made.leases.rows[band].read(cells).astype(np.int64))
        pages = np.unique(np.concatenate(ids))
        return pages[pages > 0]

    def launch(self, flight: Flight, forward: Forward, stream: torch.cuda.Stream | None = None) -> int:
        """Run ``forward`` on ``stream`` once the plan is applied; the step's fence passes when it and all before it are done.

        Raises: FenceError for a flight that is not the planned one; ContentsLost after a fault.
        """
        if flight is not self._planned:
            raise FenceError("launch the flight that step() returned last")
        self.arena.executor.check()
        self._planned = None
        if self._order is None:
            flight.forward = forward
            flight.fence = self.arena.launch()
        else:
            place = stream or torch.cuda.current_stream(self.arena.device)
            assert flight.applied is not None and flight.done is not None
            place.wait_event(flight.applied)
            with torch.cuda.stream(place):
                forward()
            flight.done.record(place)
            self._order.wait_event(flight.done)
            flight.fence = self.arena.launch(self._order)
            flight.done.record(self._order)
        self._running.append(flight)
        return flight.fence

    def compact(self, bytes_limit: int | None = None) -> int:
        """Lazy compaction beside the running forwards: what they write stays, the rest is copied, old frames wait in
        quarantine. Returns: bytes moved.
        """
        if not self._running or not self.quarantine:
            return self.arena.compact(bytes_limit)
        written = np.unique(np.concatenate([flight.written for flight in self._running]))
        bound = written[self.arena.state.frames_of(written) > 0]
        return self.arena.compact(bytes_limit, reader=self.reader, written=bound)

    def retire_oldest(self) -> None:
        """Wait on the host for the oldest running step, and retire it."""
        flight = self._running.popleft()
        if flight.done is not None:
            flight.done.synchronize()
        if flight.forward is not None:
            flight.forward()
            flight.forward = None
        self.arena.retire(flight.fence)

    def drain(self) -> None:
        """Wait for everything in flight."""
        while self._running:
            self.retire_oldest()

    def _wait_on_host(self, handles: Ints, new_tokens: Ints, finished: Ints, slid: Ints | None) -> None:
        """On the CPU there is no stream to wait on: run the forwards that the coming plan waits for, and no others."""
        made = steps.step(self.arena.state, self.arena.leases, handles, new_tokens, finished, slid, reader=self.reader)
        if isinstance(made, Refusal) or made.plan.wait is None:
            return
        for flight in self._running:
            if flight.fence <= made.plan.wait and flight.forward is not None:
                flight.forward()
                flight.forward = None
