"""The serving layer's door: holds the current value, turns calls into transitions, hands each plan to a projection.

The only file of this package with a mutable field, and it has one: ``_value``. It decides nothing about memory. ``DryArena``
(models) projects nowhere; ``Arena`` (shell_gpu) projects plans to a buffer and device tables. The new value is kept only
after the projection took it, so a projection that raises leaves the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from . import step as steps
from .admission import AdmissionBudget, eviction_advice, max_request_tokens
from .capacity import Evictor, Ints, StepResult
from .errors import CorruptState, LeaseError, PromiseBroken, RecordingError
from .event import Event, apply
from .fits import RELIEF, Fit, Mode, Refusal, fits, is_feasible
from .layout import Demand, Layout, check_boot, is_whole
from .leases import NONE, Leases, RowWrite, empty_leases, open_leases, pages_of, share, split
from .plan import Plan
from .report import Report, report
from .rollback import undo
from .state import ArenaState, Outcome, demand_of, initial
from .step import StepOutcome
from .verify import Violation, verify

Recorder = Callable[[Event], None]


class DoorObserver(Protocol):
    """Something that counts what a door does (metrics). It must not change the door."""

    def committed(self, plan: Plan) -> None:
        """A transition was projected and kept."""
        ...

    def refused(self, refusal: Refusal) -> None:
        """A demand did not fit; nothing changed."""
        ...


@frozen
class Serving:
    """Everything the door knows, as one value."""

    state: ArenaState
    leases: Leases


class Door:
    """An arena behind the capacity protocol.

    Args: layout. sequences: most leases at once. context: most tokens of one. chunk: most tokens that one lease gets in one
    step. draft_tokens: speculative tokens on top of the context. strict: ``verify`` raises. recorder: told every event.
    Raises: LayoutError below the boot floor; LeaseError for counts that are no whole numbers or out of range.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        sequences: int,
        context: int,
        chunk: int,
        draft_tokens: int = 0,
        strict: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        if not is_whole(chunk) or chunk < 1:
            raise LeaseError(f"chunk of {chunk!r} tokens a step; expected at least 1")
        leases = empty_leases(layout, sequences=sequences, context=context, draft_tokens=draft_tokens)
        check_boot(layout, context, chunk)
        self.chunk = chunk
        self.context = context
        self.strict = strict
        self.recorder = recorder
        self.observers: tuple[DoorObserver, ...] = ()
        self._value = Serving(initial(layout), leases)

    # --- for subclasses ------------------------------------------------------------------------------------------------

    def _project(self, before: Serving, after: Serving, plan: Plan, writes: tuple[RowWrite, ...]) -> None:
        """Apply a plan and the changed row cells to wherever the bytes are. The base class has none."""

    def _commit(self, after: Serving, plan: Plan, writes: tuple[RowWrite, ...], event: Event | None) -> None:
        self._project(self._value, after, plan, writes)
        self._value = after
        if self.recorder is not None and event is not None:
            self.recorder(event)
        for observer in self.observers:
            observer.committed(plan)

    def _refused(self, refusal: Refusal) -> Refusal:
        for observer in self.observers:
            observer.refused(refusal)
        return refusal

    def _apply(self, event: Event) -> Outcome | Refusal:
        outcome = apply(self.state, event)
        if isinstance(outcome, Outcome):
            self._commit(Serving(outcome.state, self._value.leases), outcome.plan, (), event)
            return outcome
        return self._refused(outcome)

    # --- the value -----------------------------------------------------------------------------------------------------

    @property
    def value(self) -> Serving:
        """The current value. Kept, it stays as it is; it costs the differences since."""
        return self._value

    @property
    def state(self) -> ArenaState:
        """The arena's value."""
        return self._value.state

    @property
    def leases(self) -> Leases:
        """Who holds which pages."""
        return self._value.leases

    @property
    def layout(self) -> Layout:
        """The bands, and the bytes there are now."""
        return self._value.state.layout

    @property
    def names(self) -> tuple[str, ...]:
        """Band names in byte order."""
        return self.layout.names

    # --- steps ---------------------------------------------------------------------------------------------------------

    def open(self, count: int) -> Ints:
        """New leases that hold nothing yet. Raises: LeaseError when the slots do not suffice."""
        leases, handles = open_leases(self.leases, count)
        self._value = Serving(self._value.state, leases)
        return handles

    def demand_of(self, handles: Ints, new_tokens: Ints) -> Demand:
        """Pages that a step with these tokens takes, net of what its slide frees."""
        return steps.pages_wanted(self.leases, handles, new_tokens)

    def step(
        self,
        handles: Ints,
        new_tokens: Ints,
        finished: Ints = NONE,
        slid: Ints | None = None,
        *,
        reader: int | None = None,
        withhold: bool = False,
    ) -> StepResult | Refusal:
        """One serving step (see ``core_pure.step.step``), projected. Raises: PromiseBroken if ``fits`` had said yes."""
        outcome = steps.step(
            self.state, self.leases, handles, new_tokens, finished, slid, reader=reader, withhold=withhold
        )
        if isinstance(outcome, Refusal):
            demand = steps.pages_wanted(self.leases, handles, new_tokens, slid)
            if reader is None and not withhold and is_feasible(self.state, demand, RELIEF):
                raise PromiseBroken(f"fits admits {demand}, but the step refused: {outcome}")
            return self._refused(outcome)
        self._take(outcome)
        return StepResult(outcome, self._bytes_moved(outcome.plan))

    def _take(self, outcome: StepOutcome) -> None:
        self._commit(Serving(outcome.state, outcome.leases), outcome.plan, outcome.writes, outcome.event)

    def undo(self, before: Serving, step: StepOutcome) -> None:
        """Take the newest step back: value and tables exactly, and the bytes of every page that lived before and after.

        Args: before: ``value`` as it was before the step. What the step released has its bytes back only if it ran with
        ``withhold=True``. Raises: LeaseError when something happened since; RecordingError while events are recorded.
        """
        if self._value.state is not step.state or self._value.leases is not step.leases:
            raise LeaseError("only the newest step can be undone, and something has happened since")
        if self.recorder is not None:
            raise RecordingError("a run that is being recorded cannot be undone: its events would not lead to its state")
        writes = tuple(
            RowWrite(cells, rows.read(cells)) for (cells, _), rows in zip(step.writes, before.leases.rows, strict=True)
        )
        self._commit(before, undo(before.state, step.plan), writes, None)

    def _bytes_moved(self, plan: Plan) -> int:
        if not plan.waves:
            return 0
        sizes = np.array([band.frame_bytes for band in self.layout.bands])
        return sum(int(sizes[wave[:, 0]].sum()) for wave in plan.waves)

    def trim(self, handles: Ints, tokens: Ints, *, reader: int | None = None) -> StepOutcome:
        """Shrink leases: rejected drafts, aborted prefill."""
        outcome = steps.trim(self.state, self.leases, handles, tokens, reader=reader)
        self._take(outcome)
        return outcome

    def fork(self, handle: int, *, reader: int | None = None) -> int | Refusal:
        """A second lease with the same tokens: whole pages shared, the partial page and states copied. Returns its handle."""
        forked = steps.fork(self.state, self.leases, handle, reader=reader)
        if isinstance(forked, Refusal):
            return self._refused(forked)
        self._take(forked[0])
        return forked[1]

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let an empty lease hold the first ``tokens`` of another's pages too. Raises: LeaseError, LeaseStale."""
        leases, writes = share(self.leases, source, target, tokens)
        self._commit(evolve(self._value, leases=leases), Plan(), writes, None)

    def split(self, handle: int, target: int, tokens: int) -> None:
        """Cut a lease at a page boundary; the empty lease ``target`` takes the rest. Raises: LeaseError, LeaseStale."""
        leases, writes = split(self.leases, handle, target, tokens)
        self._commit(evolve(self._value, leases=leases), Plan(), writes, None)

    def pages(self, handle: int) -> tuple[NDArray[np.int32], ...]:
        """Page ids of one lease per band, in position order."""
        return pages_of(self.leases, handle)

    def extents(self, handle: int) -> list[tuple[str, int, int, int]]:
        """(band, position, byte offset, bytes) of every page of a pinned lease."""
        return steps.extents(self.state, self.leases, handle)

    # --- the arena's own transitions -----------------------------------------------------------------------------------

    def pin(self, handle: int) -> None:
        """Pin every page of a lease for a transfer."""
        self._apply(Event("pin", pages=self._all_pages(handle)))

    def unpin(self, handle: int) -> None:
        """Give the pins back."""
        self._apply(Event("unpin", pages=self._all_pages(handle)))

    def apply(self, event: Event) -> Outcome | Refusal:
        """Any transition, for callers that keep their own books of pages instead of leases (adapters to other engines)."""
        return self._apply(event)

    def _all_pages(self, handle: int) -> NDArray[np.int64]:
        return np.concatenate(self.pages(handle)).astype(np.int64)

    def launch(self) -> int:
        """A step is launched. Returns: its fence."""
        self._apply(Event("launch"))
        return self.state.launched

    def retire(self, fence: int) -> None:
        """All steps up to ``fence`` have passed."""
        self._apply(Event("retire", number=fence))

    def compact(self, bytes_limit: int | None = None, *, reader: int | None = None, written: Ints | None = None) -> int:
        """Lazy compaction within a budget. Returns: bytes moved."""
        pages = NONE if written is None else written
        outcome = self._apply(Event("compact", number=bytes_limit, reader=reader, pages=pages, flag=written is not None))
        assert isinstance(outcome, Outcome)
        return self._bytes_moved(outcome.plan)

    def resize(self, total_bytes: int) -> Outcome | Refusal:
        """Give up or take back bytes at the top, within the capacity built for."""
        return self._apply(Event("resize", number=total_bytes))

    def clear(self) -> None:
        """Forget everything; every lease becomes stale."""
        outcome = apply(self.state, Event("clear"))
        assert isinstance(outcome, Outcome)
        held = self.leases
        draft = held.context - self.context
        emptied = empty_leases(self.layout, sequences=held.sequences, context=self.context, draft_tokens=draft)
        self._commit(Serving(outcome.state, evolve(emptied, serial=held.serial + 1)), outcome.plan, (), Event("clear"))

    # --- the capacity protocol -----------------------------------------------------------------------------------------

    def fits(
        self, demand: Mapping[str, int] | Sequence[int], *, mode: Mode = RELIEF, evictable: Demand | None = None
    ) -> Fit | Refusal:
        """Whether the demand fits, and if not, why."""
        return fits(self.state, demand, mode=mode, evictable=evictable)

    def check_decode(self, demand: Demand, evictor: Evictor | None = None) -> bool:
        """Evict what helps, then tell whether the demand fits. A step after a yes does not refuse. Raises: DemandError."""
        demand = demand_of(self.state, demand)
        self.evict_to_free(demand, evictor)
        return is_feasible(self.state, demand, RELIEF)

    def evict_to_free(self, demand: Demand, evictor: Evictor | None) -> int:
        """Evict the fewest bytes that let the demand fit, or nothing when nothing helps. Returns: units evicted.

        Raises: PromiseBroken when the evictor says it evicted but the pages are still held; DemandError.
        """
        demand = demand_of(self.state, demand)
        if evictor is None or is_feasible(self.state, demand, RELIEF):
            return 0
        units = list(evictor.units())
        advice = eviction_advice(self.state, demand, [unit.pages for unit in units])
        if isinstance(advice, Refusal) or not advice.units:
            return 0
        evictor.evict([units[at].key for at in advice.units])
        if not is_feasible(self.state, demand, RELIEF):
            raise PromiseBroken(f"evicting {advice.pages} pages makes {demand} fit, but the evictor released something else")
        return len(advice.units)

    def max_request_tokens(self) -> int:
        """The longest request that fits alone, at most the context."""
        return max_request_tokens(self.layout, self.chunk, self.context)

    def admission(self, promised: Demand | None = None) -> DoorBudget:
        """A budget on top of what is held and ``promised``."""
        return DoorBudget(AdmissionBudget.of(self.state, self.chunk, promised))

    def verify(self) -> list[Violation]:
        """The cheap invariants; empty when healthy. Raises CorruptState only where the door is strict."""
        found = verify(self.state)
        if found and self.strict:
            raise CorruptState("; ".join(f"{each.claim}: {each.text}" for each in found))
        return found

    def report(self) -> Report:
        """Who holds which bytes, adding up to the total."""
        return report(self.state)


class DoorBudget:
    """A running fold of admissions; the pure value is ``AdmissionBudget``."""

    def __init__(self, budget: AdmissionBudget) -> None:
        self.budget = budget
        self.refusal: Refusal | None = None

    def admit(self, tokens_now: int, tokens_reserved: int = 0) -> bool:
        """Take one more request; False, taking nothing, when it does not fit jointly with all before it."""
        folded = self.budget.fold(tokens_now, tokens_reserved)
        if isinstance(folded, Refusal):
            self.refusal = folded
            return False
        self.budget = folded
        return True
