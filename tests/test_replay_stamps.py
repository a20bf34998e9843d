"""Byte stamps, the meter and the plan check: right executions pass, and each planted fault is seen."""

from collections.abc import Callable

import numpy as np
import pytest
from attrs import evolve

from core_pure.advance import advance
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.plan import ZERO, Plan
from core_pure.state import ArenaState, Outcome, initial
from models.dry import DryArena
from models.replay_checks import PlanCheck, leases_agree
from models.stamps import Stamper
from models.statistics import Meter

BANDS = (BandSpec("state", 5 * 4096, 1, "state"), BandSpec("window-8", 1536, 4, "window", 8), BandSpec("full", 1032, 4))


def run(buffer: np.ndarray, layout: Layout, plan: Plan) -> None:
    """Carry out a plan on a numpy buffer, in the stated order of effects."""

    def frame(band: int, number: int) -> slice:
        size = layout.bands[band].frame_bytes
        return slice(number * size, (number + 1) * size)

    for wave in (*plan.waves, plan.copies):
        held = [buffer[frame(b, s)].copy() for b, s, _ in wave.tolist()]
        for (b, _, t), content in zip(wave.tolist(), held, strict=True):
            buffer[frame(b, t)] = content
    for b, f, pattern in plan.fills.tolist():
        buffer[frame(b, f)] = 0 if pattern == ZERO else 255


def churn(seed: int, fault: Callable[[int, np.ndarray, Plan], Plan] = lambda step, buffer, plan: plan) -> tuple[Stamper, Meter]:
    """Random releases and joint demands under pressure, with stamps around every plan; ends empty."""
    layout = build_layout(BANDS, 60 * 4096)
    state, rng = initial(layout), np.random.default_rng(seed)
    buffer = np.zeros(layout.total_bytes, np.uint8)
    stamper, meter, check = Stamper(layout, buffer), Meter(layout), PlanCheck(layout)
    held: list[int] = []
    for step in range(150):
        rng.shuffle(held)
        gone, held = (held[:4], held[4:]) if step < 149 else (held, [])
        demand = (0, 0, 0) if step == 149 else (int(rng.integers(0, 2)), int(rng.integers(0, 9)), int(rng.integers(0, 30)))
        outcome = advance(state, release=np.array(gone, np.int64), demand=demand)
        if not hasattr(outcome, "plan"):
            outcome = advance(state, release=np.array(gone, np.int64))
        stamper.before(state, outcome.plan)
        check.before(state, outcome.plan)
        run(buffer, layout, fault(step, buffer, outcome.plan))
        stamper.after(outcome.state, outcome.plan)
        check.after(outcome.state, outcome.plan)
        bound = [page for pages in outcome.pages for page in pages.tolist()]
        meter.after(outcome.state, outcome.plan)
        meter.pages_bound += len(bound)
        state, held = outcome.state, held + bound
    assert check.made == 150 and check.violations == []
    assert meter.pages_released(state) == meter.pages_bound, "all pages are given back at the end"
    return stamper, meter


@pytest.mark.parametrize("seed", range(4))
def test_checks_equal_pages_released_plus_frames_moved(seed: int) -> None:
    """Every released page and every moved frame is read back whole, once, and finds its own bytes."""
    stamper, meter = churn(seed)
    assert stamper.violations == []
    assert stamper.stamped == stamper.checked_released == meter.pages_bound > 0
    assert stamper.checked_moved == meter.frames_moved > 0 and meter.bytes_moved > 0


def test_a_move_that_is_not_made_is_seen() -> None:
    """Dropping the last move of one plan leaves a frame with foreign bytes."""

    def skip(step: int, buffer: np.ndarray, plan: Plan) -> Plan:
        return Plan(tuple(wave[:-1] for wave in plan.waves), plan.copies, plan.fills, plan.rows) if plan.waves else plan

    stamper, _ = churn(0, skip)
    assert any("moved" in text for text in stamper.violations)


def test_one_foreign_byte_in_a_live_frame_is_seen() -> None:
    """A single flipped byte anywhere in a live frame is a violation when its page leaves or moves."""

    def flip(step: int, buffer: np.ndarray, plan: Plan) -> Plan:
        if step == 100:
            buffer[BANDS[0].frame_bytes + 5000] ^= 1  # inside the first state frame above the sink
        return plan

    stamper, _ = churn(1, flip)
    assert len(stamper.violations) >= 1


def test_live_pages_can_be_checked_at_any_time() -> None:
    """check_live reads every live page and leaves the equation alone."""
    layout = build_layout(BANDS, 60 * 4096)
    state = initial(layout)
    buffer = np.zeros(layout.total_bytes, np.uint8)
    stamper = Stamper(layout, buffer)
    outcome = advance(state, demand=(1, 3, 5))
    stamper.before(state, outcome.plan)
    stamper.after(outcome.state, outcome.plan)
    assert stamper.check_live(outcome.state) == 9 and stamper.checked == 0 and stamper.violations == []
    buffer[:] = 0
    stamper.check_live(outcome.state)
    assert len(stamper.violations) == 9


def moving(seed: int = 0) -> tuple[Layout, ArenaState, Outcome]:
    """A state and an outcome whose plan has waves, fills, unbinds and binds."""
    layout = build_layout(BANDS, 60 * 4096)
    state, rng = initial(layout), np.random.default_rng(seed)
    held: list[int] = []
    while True:
        rng.shuffle(held)
        gone, kept = held[:4], held[4:]
        demand = (int(rng.integers(0, 2)), int(rng.integers(0, 9)), int(rng.integers(0, 30)))
        outcome = advance(state, release=np.array(gone, np.int64), demand=demand)
        if not isinstance(outcome, Outcome):
            outcome = advance(state, release=np.array(gone, np.int64))
            assert isinstance(outcome, Outcome)
        if outcome.plan.waves and len(outcome.plan.fills) and (outcome.plan.rows[:, 1] < 0).any():
            return layout, state, outcome
        state, held = outcome.state, kept + [page for pages in outcome.pages for page in pages.tolist()]


def changed(rows: np.ndarray, at: int, column: int, value: int) -> np.ndarray:
    """A copy of plan rows with one figure changed."""
    other = rows.copy()
    other[at, column] = value
    return other


@pytest.mark.parametrize(
    ("claim", "fault"),
    [
        ("PLAN-1", lambda p: evolve(p, rows=np.concatenate((p.rows, p.rows[:1])))),
        ("PLAN-2", lambda p: evolve(p, rows=p.rows[1:])),
        ("PLAN-2", lambda p: evolve(p, rows=changed(p.rows, 0, 1, 9))),
        ("PLAN-1: wave 0 moves", lambda p: evolve(p, waves=(changed(p.waves[0], 0, 1, 59), *p.waves[1:]))),
        ("PLAN-1: a target", lambda p: evolve(p, waves=(changed(p.waves[0], 0, 2, 0), *p.waves[1:]))),
        ("BYTE-2", lambda p: evolve(p, fills=np.concatenate((p.fills, p.fills[:1])))),
        ("BYTE-2", lambda p: evolve(p, fills=changed(p.fills, 0, 1, 1))),
    ],
)
def test_one_fault_in_a_plan_is_named(claim: str, fault: Callable[[Plan], Plan]) -> None:
    """A doubled row, a lost row, a wrong frame, a foreign source, a target in the sink, a stray fill: each is told."""
    layout, before, outcome = moving()
    check = PlanCheck(layout)
    assert list(check.check(before, outcome.plan, outcome.state)) == []
    found = list(check.check(before, fault(outcome.plan), outcome.state))
    assert any(text.startswith(claim) for text in found), found


def test_leases_and_pages_that_disagree_are_named() -> None:
    """A page that no lease holds, taken behind the leases' back, is a violation of exactly its band."""
    arena = DryArena(build_layout(BANDS, 60 * 4096), sequences=4, context=64, chunk=16)
    arena.step(arena.open(3), np.array([5, 9, 1]))
    assert list(leases_agree(arena)) == []
    outcome = advance(arena.state, demand=(0, 0, 1))
    assert isinstance(outcome, Outcome)
    arena._value = evolve(arena.value, state=outcome.state)
    assert [(each.claim, each.text.split(":")[0]) for each in leases_agree(arena)] == [("LEASE-1", "full")]
