"""The door: the new value is kept only after its plan was projected; refusals, promises, eviction and reports are what they say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core_pure.advance import allocate
from core_pure.capacity import StepResult, Unit
from core_pure.door import Door, Serving
from core_pure.errors import CorruptState, DemandError, LayoutError, LeaseError, LeaseStale, PagePinned, PinError, PromiseBroken
from core_pure.event import Event, content_digest
from core_pure.fits import NOW, Fit, Refusal
from core_pure.layout import BandSpec, boot_floor, build_layout, order_chain
from core_pure.leases import RowWrite
from core_pure.plan import Plan
from core_pure.state import Outcome, initial
from tests.core_states import bound_pages

BANDS = (
    BandSpec("state", 1_200, retention="state"),
    BandSpec("window-8", 300, slots_per_page=4, retention="window", window=8),
    BandSpec("full", 260, slots_per_page=4),
)


class Projecting(Door):
    """A door with a device table, and a fault that can be switched on."""

    def __init__(self, total_bytes: int, **options: Any) -> None:
        super().__init__(build_layout(BANDS, total_bytes), sequences=12, context=100, chunk=16, draft_tokens=4, **options)
        self.table = initial(self.layout).table()
        self.rows = [np.zeros(12 * width, np.int32) for width in self.leases.widths]
        self.broken = False
        self.projected = 0

    def _project(self, before: Serving, after: Serving, plan: Plan, writes: tuple[RowWrite, ...]) -> None:
        assert before is self.value, "the value changes after the projection"
        if self.broken:
            raise RuntimeError("device fault")
        self.projected += 1
        self.table[plan.rows[:, 0]] = np.maximum(plan.rows[:, 1], 0)
        for row, write in zip(self.rows, writes, strict=False):
            row[write.cells] = write.pages
        assert np.array_equal(self.table, after.state.table())
        for row, table in zip(self.rows, after.leases.rows, strict=True):
            held = table.copy()
            assert np.array_equal(row, held), "row cells follow from the writes alone"


def served(door: Door, steps: int, seed: int = 1) -> list[int]:
    """Some traffic. Returns: the leases still open."""
    rng, alive = random.Random(seed), []
    for _ in range(steps):
        if rng.random() < 0.5 and len(alive) < 8:
            alive += door.open(1).tolist()
        ended = [lease for lease in alive if rng.random() < 0.1]
        alive = [lease for lease in alive if lease not in ended]
        used = door.leases.facts.copy()
        new = [min(100 - int(used[lease & 0xFFFFF, 1]), rng.choice((1, 1, 5, 16))) for lease in alive]
        result = door.step(np.array(alive, np.int64), np.array(new, np.int64), np.array(ended, np.int64))
        if isinstance(result, Refusal):
            door.step(np.array([], np.int64), np.array([], np.int64), np.array(alive + ended, np.int64))
            alive = []
    return alive


def test_tables_follow_from_plans_alone() -> None:
    """Every transition of a served run keeps device table and lease rows equal to the value, from plans and writes only."""
    door = Projecting(4096 * 6)
    alive = served(door, 60)
    alive += door.open(2).tolist()
    door.step(np.array(alive[-1:]), np.array([9]))
    child = door.fork(alive[-1])
    assert isinstance(child, int)
    door.launch()
    door.compact()
    door.retire(1)
    door.resize(4096 * 5)
    door.trim(np.array([child]), np.array([9]))
    assert door.projected > 60
    assert door.verify() == []
    door.rows = [np.zeros_like(row) for row in door.rows]  # a cleared arena has cleared rows
    door.clear()
    assert door.state == initial(door.layout)
    with pytest.raises(LeaseStale):
        door.step(np.array([child]), np.array([1]))
    fresh = door.open(3)
    assert not set(fresh.tolist()) & {*alive, child}
    door.step(fresh, np.array([4, 4, 4]))


def test_a_projection_that_fails_leaves_the_old_value() -> None:
    """A device fault in any transition: the door's value, digest and leases are those of before, and nothing is recorded."""
    events: list[Event] = []
    door = Projecting(4096 * 8, recorder=events.append)
    a, b = (int(lease) for lease in door.open(2))
    door.step(np.array([a]), np.array([12]))
    door.launch()
    before, told = door.value, len(events)
    content = content_digest(before.state)
    door.broken = True
    for attempt in (
        lambda: door.step(np.array([a]), np.array([4])),
        lambda: door.step(np.array([], np.int64), np.array([], np.int64), np.array([a])),
        lambda: door.trim(np.array([a]), np.array([0])),
        lambda: door.fork(a),
        lambda: door.pin(a),
        door.launch,
        lambda: door.retire(1),
        door.compact,
        door.clear,
        lambda: door.resize(4096 * 7),
        lambda: door.split(a, b, 8),
        lambda: door.apply(Event("allocate", demand=(1, 0, 0))),
    ):
        with pytest.raises(RuntimeError, match="device fault"):
            attempt()
        assert door.value is before
        assert len(events) == told
    assert content_digest(door.state) == content
    door.broken = False
    assert isinstance(door.step(np.array([a]), np.array([4])), StepResult)


def test_misuse_leaves_the_value_untouched() -> None:
    """Stale leases, bad demands, bad tokens and pins without a pin raise their own error; value and record stay."""
    events: list[Event] = []
    door = Projecting(4096 * 8, recorder=events.append)
    a, b = (int(lease) for lease in door.open(2))
    door.step(np.array([a]), np.array([12]))
    before, told = door.value, len(events)
    for attempt, error in (
        (lambda: door.step(np.array([a, 99]), np.array([1, 1])), LeaseStale),
        (lambda: door.step(np.array([a]), np.array([200])), LeaseError),
        (lambda: door.step(np.array([a]), np.array([0.5])), LeaseError),
        (lambda: door.demand_of(np.array([7]), np.array([1])), LeaseStale),
        (lambda: door.trim(np.array([a]), np.array([13])), LeaseError),
        (lambda: door.fork(3), LeaseStale),
        (lambda: door.share(a, b, 4), LeaseError),
        (lambda: door.split(a, b, 99), LeaseError),
        (lambda: door.unpin(a), PinError),
        (lambda: door.extents(a), PinError),
        (lambda: door.open(99), LeaseError),
        (lambda: door.resize(1 << 40), LayoutError),
        (lambda: door.fits({"nobody": 1}), DemandError),
        (lambda: door.check_decode((1, 2)), DemandError),
        (lambda: door.evict_to_free((-1, 0, 0), None), DemandError),
        (lambda: door.admission((1, 2)), DemandError),
        (lambda: door.admission().admit(-1), DemandError),
    ):
        with pytest.raises(error):
            attempt()
        assert door.value is before
        assert len(events) == told
    door.pin(a)
    with pytest.raises(PagePinned):
        door.step(np.array([], np.int64), np.array([], np.int64), np.array([a]))
    door.unpin(a)
    door.step(np.array([], np.int64), np.array([], np.int64), np.array([a]))


def test_below_the_boot_floor_no_door_opens() -> None:
    """One granule below the floor is an error that names it; the floor itself boots."""
    chain = order_chain(BANDS)
    floor = boot_floor(chain, 100, 16)
    with pytest.raises(LayoutError, match="boot floor"):
        Door(build_layout(BANDS, floor - 4096), sequences=1, context=100, chunk=16)
    assert Door(build_layout(BANDS, floor), sequences=1, context=100, chunk=16).max_request_tokens() > 0


# --- the capacity protocol -------------------------------------------------------------------------------------------------


class Cache:
    """Finished sequences kept as evictable leases, oldest first."""

    def __init__(self, door: Door, leases: Sequence[int]) -> None:
        self.door, self.leases, self.evicted = door, list(leases), 0

    def units(self) -> list[Unit]:
        """One unit per lease, with its page vector."""
        return [Unit(lease, tuple(len(pages) for pages in self.door.pages(lease))) for lease in self.leases]

    def evict(self, keys: Sequence[int]) -> None:
        """Release them."""
        self.evicted += len(keys)
        self.leases = [lease for lease in self.leases if lease not in keys]
        self.door.step(np.array([], np.int64), np.array([], np.int64), np.array(keys, np.int64))


def test_a_yes_of_check_decode_is_kept() -> None:
    """Over a long run with an evictor: after each yes the step is made, after each no it is refused; evictions are needed."""
    door, rng = Projecting(4096 * 5), random.Random(3)
    cache, running = Cache(door, []), door.open(2).tolist()
    answers = {True: 0, False: 0}
    for _ in range(300):
        used = door.leases.facts.copy()
        new = [min(100 - int(used[lease & 0xFFFFF, 1]), rng.choice((1, 2, 16))) for lease in running]
        demand = door.demand_of(np.array(running, np.int64), np.array(new, np.int64))
        fitted = isinstance(door.fits(demand), Fit)
        evicted = cache.evicted
        answer = door.check_decode(demand, cache)
        answers[answer] += 1
        assert not (fitted and cache.evicted > evicted), "nothing is evicted for what fits"
        assert answer or cache.evicted == evicted, "nothing is evicted in vain"
        result = door.step(np.array(running, np.int64), np.array(new, np.int64))
        assert isinstance(result, StepResult) == answer
        if not answer or (rng.random() < 0.15 and len(running) > 1) or len(running) == 12:
            cache.leases.append(running.pop(rng.randrange(len(running))))
        full = [lease for lease in running if int(door.leases.facts.copy()[lease & 0xFFFFF, 1]) >= 84]
        running = [lease for lease in running if lease not in full]
        cache.leases += full
        if len(running) + len(cache.leases) >= 12:
            cache.evict(cache.leases[:3])
        while len(running) < 2:
            running += door.open(1).tolist()
    assert answers[True] > 200
    assert cache.evicted > 10
    assert door.verify() == []


def test_an_evictor_that_lies_breaks_the_promise() -> None:
    """Units that are not released when evicted: PromiseBroken, a crash, not a retry."""
    door = Projecting(4096 * 5)

    class Liar(Cache):
        def evict(self, keys: Sequence[int]) -> None:
            """Does nothing."""

    leases = door.open(8).tolist()
    held = []
    for lease in leases:
        if isinstance(door.step(np.array([lease]), np.array([16])), Refusal):
            break
        held.append(lease)
    refused = door.fits((0, 0, 12))
    assert isinstance(refused, Refusal)
    with pytest.raises(PromiseBroken, match="evictor"):
        door.check_decode((0, 0, 12), Liar(door, held))
    assert door.check_decode((0, 0, 12), Cache(door, held))


def test_a_step_that_contradicts_fits_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the transition refuses what ``fits`` admits, the door raises PromiseBroken and keeps its value."""
    door = Projecting(4096 * 8)
    (a,) = door.open(1)
    refusal = door.fits((10**6, 0, 0))
    assert isinstance(refusal, Refusal)
    monkeypatch.setattr("core_pure.step.advance_split", lambda *args, **kwargs: refusal)
    before = door.value
    with pytest.raises(PromiseBroken, match="fits admits"):
        door.step(np.array([a]), np.array([4]))
    assert door.value is before


def test_refusals_change_nothing_and_are_told() -> None:
    """A refused step, fork and resize: same value, same digest, no event, and each is told to the observers."""
    events: list[Event] = []
    door = Projecting(4096 * 4, recorder=events.append)

    class Counter:
        def __init__(self) -> None:
            self.kept = self.refusals = 0

        def committed(self, plan: Plan) -> None:
            """Count."""
            self.kept += 1

        def refused(self, refusal: Refusal) -> None:
            """Count."""
            self.refusals += 1

    seen = Counter()
    door.observers = (seen,)
    a, b = (int(lease) for lease in door.open(2))
    door.step(np.array([a]), np.array([40]))
    before, told = door.value, len(events)
    assert isinstance(door.step(np.array([a, b]), np.array([50, 100])), Refusal)
    assert isinstance(door.resize(4096), Refusal)
    assert isinstance(door.apply(Event("allocate", demand=(0, 0, 10**6))), Refusal)
    assert door.value is before
    assert len(events) == told
    assert (seen.kept, seen.refusals) == (1, 3)
    assert door.layout.total_bytes == 4096 * 4


# --- verify and report -------------------------------------------------------------------------------------------------------


def test_strict_doors_raise_where_others_report() -> None:
    """A corrupt value is a list of violations; where the door is strict it is CorruptState with the same text."""
    for strict in (False, True):
        door = Projecting(4096 * 8, strict=strict)
        served(door, 5)
        assert door.verify() == []
        bands = list(door.state.bands)
        bands[0] = evolve(bands[0], live=bands[0].live + 1)
        door._value = evolve(door.value, state=door.state.with_bands(bands))
        if strict:
            with pytest.raises(CorruptState, match="LIVE-1"):
                door.verify()
        else:
            assert "LIVE-1" in {found.claim for found in door.verify()}


def test_F43_the_report_adds_up() -> None:
    """After every step of a run with pins and quarantine: live + hole + quarantined + gaps + sink = total, pinned within live."""
    door = Projecting(4096 * 8)
    rng = random.Random(5)
    for round_number in range(60):
        alive = served(door, 3, seed=round_number)
        if alive and rng.random() < 0.3:
            door.pin(alive[0])
        if rng.random() < 0.3:
            fence = door.launch()
            loose = bound_pages(door.state, pinned=False)
            door.apply(Event("release", pages=loose[:0], reader=fence))
        report = door.report()
        spans = sum(row.live_bytes + row.hole_bytes + row.quarantined_bytes for row in report.bands)
        assert spans + report.gap_bytes + report.sink_bytes == report.total_bytes == door.layout.total_bytes
        for row, band in zip(report.bands, door.state.bands, strict=True):
            assert row.pages == band.live
            assert row.live_bytes == band.live * band.spec.frame_bytes
            assert row.pinned_bytes == len(band.held.pins) * band.spec.frame_bytes <= row.live_bytes
            assert (row.low_byte, row.high_byte) == (band.low * band.spec.frame_bytes, band.high * band.spec.frame_bytes)
        if alive and rng.random() < 0.5 and bound_pages(door.state, pinned=True).size:
            door.apply(Event("unpin", pages=bound_pages(door.state, pinned=True)))
        pinned = set(bound_pages(door.state, pinned=True).tolist())
        free = [lease for lease in alive if not pinned & {int(page) for part in door.pages(lease) for page in part}]
        door.step(np.array([], np.int64), np.array([], np.int64), np.array(free, np.int64))
        if door.leases.open_count > 8:
            door.rows = [np.zeros_like(row) for row in door.rows]
            door.clear()


def test_questions_do_not_write() -> None:
    """fits, admission, report, verify, demand_of, max_request_tokens and extents leave the very same value."""
    door = Projecting(4096 * 8)
    alive = served(door, 8)
    if not alive:
        alive = door.open(1).tolist()
        door.step(np.array(alive), np.array([3]))
    door.pin(alive[0])
    before, content = door.value, content_digest(door.state)
    door.fits((1, 1, 1), mode=NOW)
    door.fits((10**6, 0, 0))
    budget = door.admission()
    while budget.admit(16, 8):
        pass
    assert isinstance(budget.refusal, Refusal)
    door.report(), door.verify(), door.max_request_tokens(), door.extents(alive[0]), door.pages(alive[0])
    door.demand_of(np.array(alive), np.ones(len(alive), np.int64))
    assert door.value is before
    assert content_digest(door.state) == content
    assert door.names == door.layout.names


def test_an_old_value_of_the_door_still_answers() -> None:
    """A value kept from before many steps: same contents, and the same event on it gives the same state."""
    door = Projecting(4096 * 8)
    served(door, 6)
    kept, content = door.value, content_digest(door.state)
    served(door, 30, seed=2)
    assert content_digest(kept.state) == content
    first, second = (allocate(kept.state, (1, 1, 1)) for _ in range(2))
    assert first == second
    assert isinstance(first, Outcome | Refusal)


def test_undo_takes_the_newest_step_back_exactly() -> None:
    """Value, lease rows and digest are those before the step; a step that is not the newest cannot be undone."""
    layout = build_layout([BandSpec("full", 256, 4), BandSpec("state", 768, retention="state")], 1 << 16)
    door = Door(layout, sequences=4, context=64, chunk=32)
    handles = door.open(2)
    door.step(handles, np.array([10, 20]))
    before = door.value
    result = door.step(handles[1:], np.array([9]), finished=handles[:1], withhold=True)
    assert not isinstance(result, Refusal) and result.outcome is not None
    door.undo(before, result.outcome)
    assert door.value is before and door.state.digest == before.state.digest and door.verify() == []
    assert [len(pages) for pages in door.pages(int(handles[0]))] == [1, 3]
    again = door.step(handles[1:], np.array([9]), finished=handles[:1])
    assert not isinstance(again, Refusal)
    with pytest.raises(LeaseError, match="newest"):
        door.undo(before, result.outcome)
