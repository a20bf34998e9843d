"""``Arena``: the serving layer's door with bytes behind it. The core decides; this projects each plan to one device
buffer.

It adds to ``Door`` what is physical: the buffer and its views, block tables and write slots of a step, sleep and
wake, and what to do after a plan broke off. Nothing on the device is ever read back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from core_pure.capacity import Ints, StepResult
from core_pure.door import Door, Recorder, Serving
from core_pure.errors import ContentsLost, LayoutError
from core_pure.fits import Refusal
from core_pure.layout import Layout
from core_pure.leases import NONE, RowWrite
from core_pure.plan import NO_ROWS, Plan, Rows
from core_pure.state import Outcome
from core_pure.step import StepOutcome

from . import poison, requirements
from .buffer import LayerViews, check_units, device_of, obtain, views_of
from .errors import GraphStale
from .executor import Executor
from .ops import WriteLocs
from .packing import NO_STEP, Batch
from .requirements import Requirements
from .runner import warm, warm_stores
from .tables import DeviceTables, StepSizes


@frozen(eq=False)
class ArenaStep(StepResult):
    """A step that was made: its block tables (per band int32[batch, width], address-stable) and its write slots."""

    block_tables: tuple[Tensor, ...] = ()
    write_locs: WriteLocs | None = None


@frozen
class BuildOptions:
    """How an arena is built on its device.

    step_tokens: most new tokens of one step; batch: most sequences of one step (None: all). stream: the forward's
    stream (None: the current one). poison: free bytes are filled with NaN after every plan, for tests. skip:
    translation sites ("tables", "writes") left out, for tests that must then fail. budgets: arena bytes of every
    rank, which must agree.
    """

    step_tokens: int | None = None
    batch: int | None = None
    stream: torch.cuda.Stream | None = None
    poison: bool = False
    skip: frozenset[str] = frozenset()
    budgets: tuple[int, ...] = ()


class Arena(Door):
    """The arena on a device. Build with ``Arena.build``; one thread; plans run on one stream."""

    def __init__(
        self, layout: Layout, device: torch.device, *, sequences: int, context: int, chunk: int, draft_tokens: int = 0,
        buffer: Tensor | None = None, options: BuildOptions, recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        strict = os.environ.get("KVARENA_STRICT") == "1"
        super().__init__(
            layout, sequences=sequences, context=context, chunk=chunk, draft_tokens=draft_tokens, strict=strict,
            recorder=recorder,
        )  # fmt: skip
        self.device = device
        self.sizes = StepSizes(
            sequences=sequences,
            batch=options.batch or sequences,
            tokens=options.step_tokens or sequences + chunk,
            context_tokens=context,
            draft_tokens=draft_tokens,
        )
        self.generation = 0
        self._options = options
        self._owns_buffer = buffer is None
        self._batch: Batch | None = None
        self._broken: Plan | None = None
        self._pairs: Rows = np.empty((4 * self.sizes.tokens, 2), np.int32)
        self._executor: Executor | None = None
        self._settle(buffer)

    @classmethod
    def build(
        cls, layout: Layout, *, device: str | torch.device = "cuda", sequences: int, context: int, chunk: int,
        draft_tokens: int = 0, buffer: Tensor | None = None, requirements: Requirements | None = None,
        options: BuildOptions | None = None, recorder: Recorder | None = None,
    ) -> Arena:  # fmt: skip
        """Check everything, then compile, allocate, capture and warm: nothing of that happens later.

        Args: sequences: most leases; context: most tokens of one; chunk: most new tokens of one in a step; buffer: the
        caller's uint8 tensor; requirements: what the serving layer's kernels need; options: see ``BuildOptions``.
        Raises: DeviceError, UnsupportedRequirement, TensorError, LayoutError (boot floor; ranks whose budgets differ).
        """
        place = device_of(device)
        chosen = options or BuildOptions()
        if place.type == "cuda" and place.index is None:
            place = torch.device("cuda", torch.cuda.current_device())
        _check_requirements(requirements or Requirements(), layout, place)
        check_units(layout)
        if len(set(chosen.budgets)) > 1:
            raise LayoutError(f"ranks were given different budgets, {sorted(set(chosen.budgets))} bytes; all must agree")
        if place.type == "cuda":
            warm(place)
        return cls(
            layout, place, sequences=sequences, context=context, chunk=chunk, draft_tokens=draft_tokens, buffer=buffer,
            options=chosen, recorder=recorder,
        )  # fmt: skip

    def _settle(self, buffer: Tensor | None) -> None:
        """Obtain the bytes, the tables and a warm executor for the current layout."""
        self.tables = DeviceTables(self.layout, self.sizes, self.device)
        self.buffer: Tensor | None = obtain(self.layout, self.device, buffer)
        self._executor = Executor(self.layout, self.buffer, self.tables, stream=self._options.stream, skip=self._options.skip)
        self.views: Mapping[str, LayerViews] = MappingProxyType(
            {spec.name: views_of(self.buffer, spec) for spec in self.layout.bands}
        )
        if self.device.type == "cuda":
            for views in self.views.values():
                warm_stores(views)
        self._poison()

    # --- steps ---------------------------------------------------------------------------------------------------------

    @property
    def executor(self) -> Executor:
        """The plan executor. Raises: ContentsLost while the arena sleeps."""
        if self._executor is None:
            raise ContentsLost("the arena sleeps: its buffer was given back; call wake() first")
        return self._executor

    @property
    def block_tables(self) -> tuple[Tensor, ...]:
        """Per band int32[batch, width]: frames by page position of the newest step; addresses stay for life."""
        return self.tables.block_tables

    def step(
        self, handles: Ints, new_tokens: Ints, finished: Ints = NONE, slid: Ints | None = None, *,
        reader: int | None = None, withhold: bool = False,
    ) -> ArenaStep | Refusal:  # fmt: skip
        """One serving step: one plan in one upload, then block tables and write slots on the device, before any replay.

        Batch row i belongs to handles[i]; its write slots follow each other, handle after handle. Args and errors: see
        ``Door.step``; StepTooLarge for more sequences or tokens than built for. A refusal or an error changes nothing.
        """
        self._batch = NO_STEP
        try:
            result = super().step(handles, new_tokens, finished, slid, reader=reader, withhold=withhold)
        finally:
            self._batch = None
        if isinstance(result, Refusal):
            return result
        outcome = result.outcome
        assert outcome is not None
        locs = WriteLocs(self.names, self.tables.write_slots, self.tables.tokens)
        return ArenaStep(outcome, result.bytes_moved, self.tables.block_tables, locs)

    def _take(self, outcome: StepOutcome) -> None:
        if self._batch is not None:  # a step, not a trim or fork: its batch is translated in the same upload
            self._batch = self.tables.batch_of(outcome.slots, outcome.before, outcome.after)
        super()._take(outcome)

    def _project(self, before: Serving, after: Serving, plan: Plan, writes: tuple[RowWrite, ...]) -> None:
        """Apply a plan, the changed row cells and the step's batch in one upload; after a failure the value is the old one."""
        executor = self.executor
        executor.check()
        batch = self._batch if self._batch is not None else NO_STEP
        if plan.is_empty and not writes and not len(batch.rows):
            return
        try:
            executor.apply_plan(plan, self._lease_writes(writes), batch)
        except BaseException:
            self._broken = plan if executor.fault else None
            raise
        self._poison(after)

    def _lease_writes(self, writes: tuple[RowWrite, ...]) -> Rows:
        """The changed cells of all bands as (flat index, page) rows of the device's lease table."""
        total = sum([len(write.cells) for write in writes])
        if not total:
            return NO_ROWS
        if total > len(self._pairs):
            self._pairs = np.empty((2 * total, 2), np.int32)
        at = 0
        for base, (cells, pages) in zip(self.tables.lease_bases, writes, strict=False):
            count = len(cells)
            if count:
                block = self._pairs[at : at + count]
                block[:, 0] = cells
                block[:, 0] += base
                block[:, 1] = pages
                at += count
        return self._pairs[:total]

    def launch(self, stream: torch.cuda.Stream | None = None) -> int:
        """A step was launched on ``stream`` (default the current one): its fence, with an event recorded there."""
        executor = self.executor
        fence = super().launch()
        executor.launched(fence, stream)
        return fence

    def ready(self, stream: torch.cuda.Stream) -> None:
        """Make another stream wait, on the device, until the newest plan is applied."""
        self.executor.ready(stream)

    # --- life of the buffer --------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything; every lease becomes stale; tables and outputs are cleared on the device."""
        self.executor.check()
        super().clear()
        self._reproject()

    def resize(self, total_bytes: int) -> Outcome | Refusal:
        """Give up or take back bytes at the top, within the capacity built for. The buffer keeps its address and
        length.

        Graphs captured before are stale by contract: see ``check_generation``.
        """
        outcome = super().resize(total_bytes)
        if isinstance(outcome, Outcome):
            self.generation += 1
        return outcome

    def sleep(self) -> None:
        """Give the buffer and all device tables back; the host value and every lease stay. Contents are lost."""
        executor = self.executor
        if executor.stream is not None:
            executor.stream.synchronize()
        self._executor = None
        self.buffer = None
        self.views = MappingProxyType({})
        self.generation += 1

    def wake(self, buffer: Tensor | None = None) -> tuple[Ints, ...]:
        """Obtain a buffer again and project the tables. The bytes are new: what was stored is lost.

        Args: buffer: the caller's tensor, if the arena was built with one. Returns: per band the pages whose contents
        are lost (all that are bound). Raises: as ``build``.
        """
        if self._executor is not None:
            raise ContentsLost("the arena is awake; sleep() first")
        if not self._owns_buffer and buffer is None:
            raise ContentsLost("this arena was built in the caller's buffer; wake(buffer) needs one")
        self._settle(buffer)
        self._reproject()
        return tuple(self._pages_of_frames(band, self.state.bands[band].live_frames()) for band in range(len(self.names)))

    def check_generation(self, generation: int) -> None:
        """Raise GraphStale where the arena was resized or slept since ``generation`` was read."""
        if generation != self.generation:
            raise GraphStale(
                f"captured at generation {generation}, the arena is at {self.generation}: it was resized or slept since; "
                "capture again"
            )

    def _reproject(self) -> None:
        """Write all tables from the host value, on the arena's stream."""
        rows = np.zeros(self.tables.lease_bases[-1], np.int32)
        for base, table in zip(self.tables.lease_bases, self.leases.rows, strict=False):
            cells = table.read(slice(0, None))
            rows[base : base + len(cells)] = cells
        self.executor.recover(self.state.table(), rows)

    def recover(self) -> tuple[Ints, ...]:
        """After a plan broke off: write the tables again from the host value, which is still the one before that plan.

        Returns: per band the pages whose bytes may be lost, because an effect of the plan may have written where they
        are. Everything else is as it was before the plan. The caller drops or recomputes what is named.
        """
        plan, self._broken = self._broken, None
        self._reproject()
        if plan is None:
            return tuple(np.empty(0, np.int64) for _ in self.names)
        sizes = np.array([band.frame_bytes for band in self.layout.bands], np.int64)
        written = [(wave[:, 0], wave[:, 2]) for wave in (*plan.waves, plan.copies)] + [(plan.fills[:, 0], plan.fills[:, 1])]
        bands = np.concatenate([pair[0] for pair in written]).astype(np.int64)
        low = np.concatenate([pair[1] for pair in written]) * sizes[bands]
        lost = []
        for band, size in enumerate(sizes.tolist()):
            frames = self.state.bands[band].live_frames()
            hit = poison.touches(frames * size, size, low, low + sizes[bands])
            lost.append(self._pages_of_frames(band, frames[hit]))
        return tuple(lost)

    def _pages_of_frames(self, band: int, frames: Ints) -> Ints:
        """The page ids that sit on these live frames."""
        held = self.state.bands[band]
        return held.page_of.read(frames).astype(np.int64) + held.home.id_base

    def _poison(self, after: Serving | None = None) -> None:
        """In poison mode, fill every free byte with the NaN pattern."""
        if self._options.poison and self.buffer is not None:
            poison.fill_free(self.buffer, (after or self._value).state)

    @property
    def device_bytes(self) -> int:
        """Bytes of the device tables, the buffer not counted."""
        return self.tables.bytes


def _check_requirements(wanted: Requirements, layout: Layout, device: torch.device) -> None:
    requirements.check(wanted, layout, device)
