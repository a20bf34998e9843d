"""A fork was recorded as a bare demand: its copies were in no recording and no digest, and did not wait for their writer."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.copies import copy
from core_pure.door import Door
from core_pure.errors import ForeignPage, PageNotBound, SinkPage
from core_pure.event import Event, content_digest
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, build_layout
from core_pure.pins import pin
from core_pure.plan import Plan
from core_pure.recording import read, replay, write
from core_pure.state import Outcome, initial

LAYOUT = build_layout([BandSpec("state", 96, retention="state"), BandSpec("full", 64, slots_per_page=4)], 4096)


class Planned(Door):
    """A door that keeps the plans it projects."""

    plans: tuple[Plan, ...] = ()

    def _project(self, before: object, after: object, plan: Plan, writes: object) -> None:
        self.plans = (*self.plans, plan)


def _forked(which: int, reader: int | None) -> tuple[Planned, list[Event]]:
    events: list[Event] = []
    door = Planned(LAYOUT, sequences=4, context=40, chunk=16, recorder=events.append)
    handles = door.open(2)
    door.step(handles, np.array([6, 6]))
    if reader is not None:
        door.launch()
    assert isinstance(door.fork(int(handles[which]), reader=reader), int)
    return door, events


def test_a_replayed_fork_copies_again() -> None:
    """The replayed plan of a fork is the plan that was projected, copies included; forks of other parents differ in digest."""
    door, events = _forked(0, None)
    *_, (_, _, outcome) = replay(*read(write(LAYOUT, events)))
    assert isinstance(outcome, Outcome)
    assert outcome.plan == door.plans[-1] and len(outcome.plan.copies) == 2 and not len(outcome.plan.fills)
    assert outcome.state.digest == door.state.digest != _forked(1, None)[0].state.digest
    assert content_digest(outcome.state) == content_digest(door.state)


def test_F17_a_copy_waits_for_the_step_that_may_write_its_source() -> None:
    """Beside a running step a fork carries the wait, also where its pages fit as things stand."""
    assert _forked(0, 1)[0].plans[-1].wait == 1
    assert _forked(0, None)[0].plans[-1].wait is None


def test_copies_of_pages() -> None:
    """One new page per page named, in that order, pinned ones too; an unbound page is an error, what does not fit a refusal."""
    door = Door(LAYOUT, sequences=4, context=40, chunk=16)
    door.step(door.open(1), np.array([8]))
    state = pin(door.state, [LAYOUT.id_bases[1] + 1]).state
    full = [LAYOUT.id_bases[1] + 2, LAYOUT.id_bases[1] + 1, LAYOUT.id_bases[1] + 2]
    outcome = copy(state, [*full, 1])
    assert isinstance(outcome, Outcome)
    assert [len(pages) for pages in outcome.pages] == [1, 3]
    sources = state.frames_of(np.array([1, *full])).tolist()
    targets = outcome.state.frames_of(np.concatenate(outcome.pages)).tolist()
    assert outcome.plan.copies.tolist() == [[int(at > 0), *pair] for at, pair in enumerate(zip(sources, targets, strict=True))]
    assert copy(state, []).plan == Plan()
    for pages, error in (([3], PageNotBound), ([0], SinkPage), ([LAYOUT.ids_total], ForeignPage)):
        with pytest.raises(error):
            copy(state, pages)
    assert isinstance(copy(state, [1] * 60), Refusal)
    assert copy(initial(LAYOUT), []).state == initial(LAYOUT)
