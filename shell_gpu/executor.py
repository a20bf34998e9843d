"""Applies encoded plans to the buffer and the tables, on one stream, and remembers whether a plan broke off.

Order of one plan: wait for its fence on the stream, waves of moves, fills and table rows, lease-table writes, then the
step's translation. Nothing is read back. After a failure inside a plan every further call is refused until the tables
have been written again from the host's value.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from core_pure.errors import ContentsLost, FenceError
from core_pure.layout import Layout
from core_pure.plan import NO_ROWS, Plan, Rows

from . import chunk
from .buffer import check_units, words_of
from .errors import InjectedFault
from .packing import NO_STEP, Batch, Work, read_plan, work_of
from .runner import GraphRunner, HostRunner, Runner, Target
from .tables import DeviceTables

FENCES_KEPT = 64
"""Events of launched steps that a plan may wait for; an older fence waits for a later one, which passes after it."""


class Executor:
    """One arena's plan executor. ``fault_after`` is a test hook: break off after that many effects of the next plan."""

    def __init__(
        self, layout: Layout, buffer: Tensor, tables: DeviceTables, *, stream: torch.cuda.Stream | None = None,
        skip: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Compile, capture and warm everything; nothing is allocated on the device afterwards.

        Args: buffer uint8[total_bytes]; stream: the forward's stream, default the current one; skip: translation sites
        ("tables", "writes") that a test leaves out.
        """
        check_units(layout)
        units = tuple(band.frame_bytes // chunk.UNIT_BYTES for band in layout.bands)
        target = Target(words_of(buffer), tables, units, skip)
        self.tables = tables
        self.stream: torch.cuda.Stream | None = None
        self._runner: Runner
        if buffer.is_cuda:
            self.stream = stream or torch.cuda.current_stream(buffer.device)
            self._runner = GraphRunner(target, self.stream)
        else:
            self._runner = HostRunner(target)
        self.fault_after: int | None = None
        self.fault: str | None = None
        self._fences: deque[tuple[int, torch.cuda.Event | None]] = deque(maxlen=FENCES_KEPT)
        kept = FENCES_KEPT if buffer.is_cuda else 0
        self._spare = [torch.cuda.Event() for _ in range(kept)]  # type: ignore[no-untyped-call]

    def launched(self, fence: int, stream: torch.cuda.Stream | None = None) -> None:
        """Note that the step with this fence was launched on ``stream``: its event is recorded there.

        Raises: FenceError unless fences rise.
        """
        if self._fences and fence <= self._fences[-1][0]:
            raise FenceError(f"fence {fence} after fence {self._fences[-1][0]}; fences rise")
        event = None
        if self._spare:
            event = self._spare[fence % FENCES_KEPT]
            event.record(stream if stream is not None else torch.cuda.current_stream(self.tables.frame_of.device))
        self._fences.append((fence, event))

    def _wait(self, fence: int) -> None:
        """Make the arena's stream wait for a launched step. The host does not wait."""
        event = next((event for number, event in self._fences if number >= fence), None)
        if not self._fences or fence > self._fences[-1][0]:
            raise FenceError(f"a plan waits for fence {fence}, which was never launched")
        if event is not None and self.stream is not None:
            self.stream.wait_event(event)

    def ready(self, stream: torch.cuda.Stream) -> None:
        """Make another stream wait until the newest plan is applied. The host does not wait."""
        if isinstance(self._runner, GraphRunner):
            stream.wait_event(self._runner.done)

    def check(self) -> None:
        """Raise ContentsLost after a fault."""
        if self.fault is not None:
            raise ContentsLost(
                f"a plan broke off ({self.fault}); the buffer may be half moved. Call recover() to write the tables "
                "again from the host's value and learn which pages lost their bytes, or rebuild the arena"
            )

    def apply(self, words: Rows, writes: Rows = NO_ROWS, batch: Batch = NO_STEP) -> None:
        """Apply one encoded plan, the lease-table writes and the step's translation.

        Args: words int32 from ``core_pure.plan.encode``; writes int32[n, 2] of (flat index, page).
        Raises: ContentsLost after an earlier fault; RecordingError for words that are no plan (nothing is applied);
        FenceError; any device error, after which the executor refuses further work.
        """
        self.check()
        self._apply(read_plan(words), writes, batch)

    def apply_plan(self, plan: Plan, writes: Rows = NO_ROWS, batch: Batch = NO_STEP) -> None:
        """The same for a plan at hand: its arrays go into the upload directly."""
        self.check()
        self._apply(work_of(plan), writes, batch)

    def _apply(self, work: Work, writes: Rows, batch: Batch) -> None:
        work.writes = writes
        work.batch = batch
        if work.wait >= 0:
            self._wait(work.wait)
        try:
            if self.fault_after is not None:
                self._break_off(work)
            self._runner.run(work)
        except BaseException as error:
            self.fault = f"{type(error).__name__}: {error}"
            raise

    def _break_off(self, work: Work) -> None:
        """Test hook: apply the first effects of a plan and fail. A plan with fewer effects is applied whole."""
        left = self.fault_after
        assert left is not None
        total = sum(map(len, (*work.waves, work.fills, work.rows)))
        if left >= total:
            return
        self.fault_after = None
        cut = Work([])
        for wave in work.waves:
            if left and len(wave):
                cut.waves.append(wave[:left])
            left -= min(left, len(wave))
        cut.fills = work.fills[:left]
        cut.rows = work.rows[: max(0, left - len(work.fills))]
        self._runner.run(cut)
        raise InjectedFault(f"after {self._done(cut)} of {total} effects")

    @staticmethod
    def _done(work: Work) -> int:
        return sum(map(len, (*work.waves, work.fills, work.rows)))

    def recover(self, frame_of: Rows, lease_pages: Rows | None = None) -> None:
        """Write the tables again from the host's value and accept work again. Bytes are the caller's to judge."""
        self.tables.project(np.ascontiguousarray(frame_of, np.int32), lease_pages)
        self.fault = None
