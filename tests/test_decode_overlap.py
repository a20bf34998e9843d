"""Plans beside running forwards: nothing that a forward may touch is reused or moved before its fence allows it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import evolve

from core_pure.door import Serving
from core_pure.errors import FenceError
from core_pure.event import Event
from core_pure.fits import Refusal
from core_pure.leases import RowWrite
from core_pure.plan import Plan
from core_pure.state import ArenaState
from invariants.interpreter import Occupancy, check_hazards
from shell_gpu.errors import StepTooLarge
from shell_gpu.overlap import Flight, Overlap
from tests.overlap_world import OverlapWorld

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")
TOTAL = 1 << 14
NONE = np.empty(0, np.int64)


def world(**more: object) -> OverlapWorld:
    """Short of memory, three steps in flight."""
    settings = {"total": TOTAL, "batch": 9, "depth": 3} | more
    return OverlapWorld(CPU, **settings)  # type: ignore[arg-type]


def planned(answer: Flight | Refusal) -> Flight:
    """A flight, not a refusal."""
    assert isinstance(answer, Flight)
    return answer


def test_forwards_in_flight_see_only_their_own_bytes() -> None:
    """500 micro-batches, three in flight, each run as late as allowed: no byte differs, though frames move and are reused."""
    busy = world()
    assert busy.run(500) == 0
    assert busy.moved > 50 and busy.waited > 50 and busy.released > 50
    assert busy.arena.verify() == []


def test_without_quarantine_forwards_see_corrupted_bytes() -> None:
    """The same run planned as if nothing were in flight corrupts: the check can fail, and quarantine is what prevents it."""
    assert world(quarantine=False).run(200) > 0


def occupancy(state: ArenaState) -> Occupancy:
    """Who holds which frames, as the plan checker reads it."""
    pages, quarantined = [], []
    for band in state.bands:
        frames = band.live_frames()
        ids = band.page_of.read(frames) + band.home.id_base
        pages.append(dict(zip(ids.tolist(), frames.tolist(), strict=True)))
        quarantined.append({batch.fence: frozenset(int(frame) for frame in batch.frames) for batch in band.held.batches})
    return Occupancy(tuple(pages), tuple(quarantined))


def test_F17_a_plan_that_moves_what_a_running_step_writes_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan made beside a running step passes the hazard checker, and each one that waits is rejected without its wait."""
    busy = world()
    arena, commit = busy.arena, busy.arena._commit
    waited: list[bool] = []

    def checked(after: Serving, plan: Plan, writes: tuple[RowWrite, ...], event: Event | None) -> None:
        if event is not None and event.kind in ("advance", "compact"):
            before = occupancy(arena.state)
            facts = {"reader": event.reader}
            facts |= {"written": event.pages.tolist()} if event.flag else {"released": event.pages.tolist()}
            if event.kind == "compact" and not event.flag:
                facts = {"reader": event.reader}
            assert list(check_hazards(plan.words, before, arena.layout, **facts)) == []
            if plan.wait is not None:
                without = evolve(plan, wait=None)
                waited.append(any(check_hazards(without.words, before, arena.layout, **facts)))
        commit(after, plan, writes, event)

    monkeypatch.setattr(arena, "_commit", checked)
    assert busy.run(200) == 0
    assert len(waited) > 10 and all(waited)


def test_F18_frames_of_a_running_step_are_not_handed_out_before_it_is_retired() -> None:
    """A sequence ends while a forward reads it, and somebody asks for all memory at once: its frames come only after retire."""
    busy = world(batch=2)
    overlap, arena = busy.overlap, busy.arena
    (first,) = arena.open(1)
    read: list[bool] = []
    flight = planned(overlap.step(np.array([first]), np.array([40])))
    overlap.launch(flight, lambda: read.append(True))
    held = [band.live_frames() for band in arena.state.bands]
    flight = planned(overlap.step(NONE, NONE, np.array([first])))
    assert [band.quarantined for band in arena.state.bands] == [len(frames) for frames in held]
    overlap.launch(flight, lambda: None)
    handles = arena.open(2)
    planned(overlap.step(handles, np.array([30, 30])))
    for band, frames in zip(arena.state.bands, held, strict=True):
        assert read or not np.intersect1d(band.live_frames(), frames).size, "frames of a running reader were handed out"
    overlap.retire_oldest()
    assert read


def test_steps_are_launched_in_the_order_they_are_planned() -> None:
    """A second plan before the first is launched, a launch of another flight, no depth: typed errors."""
    busy = world()
    handles = busy.arena.open(1)
    flight = planned(busy.overlap.step(handles, np.array([1])))
    with pytest.raises(FenceError, match="launch"):
        busy.overlap.step(handles, np.array([1]))
    busy.overlap.launch(flight, lambda: None)
    with pytest.raises(FenceError, match="last"):
        busy.overlap.launch(flight, lambda: None)
    with pytest.raises(StepTooLarge):
        Overlap(busy.arena, 0)
