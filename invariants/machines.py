"""A Hypothesis state machine: every event, misuse included, over a bundle of old values, each checked against the reference.

Every rule continues from *some* value met before, not only from the newest, so that persistence is part of what is tested: a
value must stay what it was whatever was done to its successors. A subclass in ``tests`` carries the plans out with torch twins and
Triton kernels too.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from core_pure.errors import ArenaError
from core_pure.event import Event
from core_pure.state import Outcome

from .checked import Checked
from .walks import SHAPES, Failure, Move, Shape, blocks_of, event_of, squeezed

picks = st.lists(st.integers(0, 63), min_size=1, max_size=4).map(tuple)
demands = st.lists(st.integers(0, 6), min_size=4, max_size=4).map(tuple)
small = st.integers(0, 90)


class ClaimBroken(AssertionError):
    """A rule met a violation; ``failure`` has the events that lead to it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.violation.claim}: {failure.violation.text}")
        self.failure = failure


class Point:
    """One value of the arena, the reference in the same state, and the events that led here. Never changed."""

    def __init__(self, checked: Checked, events: tuple[Event, ...]) -> None:
        self.checked = checked
        self.events = events


def copied(checked: Checked) -> Checked:
    """The same core value beside a reference of its own."""
    model = copy.copy(checked.model)
    model.bands = copy.deepcopy(model.bands)
    model.buffer, model.table = bytearray(model.buffer), list(model.table)
    model.contents, model.left_to_read = dict(model.contents), dict(model.left_to_read)
    return Checked(checked.state, model, checked.content, checked.steps)


class ArenaMachine(RuleBasedStateMachine):
    """Rules for every event. ``shapes`` and ``carried_out`` are what subclasses change."""

    shapes: tuple[Shape, ...] = SHAPES
    transitions = 0
    points = Bundle("points")

    @initialize(target=points, which=st.integers(0, 99))
    def begin(self, which: int) -> Point:
        """An empty arena."""
        self.shape = self.shapes[which % len(self.shapes)]
        with blocks_of(self.shape.block_bits):
            return Point(Checked.of(self.shape.layout()), ())

    def carried_out(self, before: Point, event: Event, after: Checked) -> None:
        """Hook: a plan was accepted and the reference has carried it out."""

    def _take(self, point: Point, move: Move) -> Point:
        """Give one move to the core from an old value; the old value must stay usable."""
        with blocks_of(self.shape.block_bits):
            return self._taken(point, move)

    def _taken(self, point: Point, move: Move) -> Point:
        bands = len(self.shape.frames)
        move = move._replace(demand=move.demand[:bands])
        concrete = squeezed(point.checked.state, move) if move.kind == "squeeze" else move
        checked = copied(point.checked)
        event = None if concrete is None else event_of(checked.model, self.shape.layout(), concrete)
        if event is None:
            return point
        ArenaMachine.transitions += 1
        for violation in checked.step(event):
            raise ClaimBroken(Failure(self.shape, (), (*point.events, event), violation))
        if isinstance(checked.result, Outcome):
            self.carried_out(point, event, checked)
        refused = isinstance(checked.result, ArenaError)
        return Point(checked, point.events if refused else (*point.events, event))

    @rule(target=points, point=points, demand=demands, flag=st.integers(0, 1))
    def allocate(self, point: Point, demand: tuple[int, ...], flag: int) -> Point:
        """Take pages."""
        return self._take(point, Move("allocate", demand, flag=flag))

    @rule(target=points, point=points, number=small)
    def squeeze(self, point: Point, number: int) -> Point:
        """Take what only relief can give."""
        return self._take(point, Move("squeeze", number=number))

    @rule(target=points, point=points, picks=picks, flag=st.integers(0, 1))
    def release(self, point: Point, picks: tuple[int, ...], flag: int) -> Point:
        """Give pages back."""
        return self._take(point, Move("release", picks=picks, flag=flag))

    @rule(target=points, point=points, demand=demands, picks=picks, flag=st.integers(0, 2))
    def advance(self, point: Point, demand: tuple[int, ...], picks: tuple[int, ...], flag: int) -> Point:
        """A whole serving step."""
        return self._take(point, Move("advance", demand, picks, flag=flag))

    @rule(target=points, point=points, limit=st.integers(-1, 40), picks=picks, flag=st.sampled_from((0, 1, 3)))
    def compact(self, point: Point, limit: int, picks: tuple[int, ...], flag: int) -> Point:
        """Compaction, limited or not, beside a reader or not."""
        return self._take(point, Move("compact", (), picks, limit, flag))

    @rule(target=points, point=points, picks=picks, number=st.integers(0, 1), flag=st.integers(0, 1))
    def copy(self, point: Point, picks: tuple[int, ...], number: int, flag: int) -> Point:
        """Copy pages, some twice."""
        return self._take(point, Move("copy", (), picks, number, flag))

    @rule(target=points, point=points, picks=picks)
    def pin(self, point: Point, picks: tuple[int, ...]) -> Point:
        """Pin pages."""
        return self._take(point, Move("pin", picks=picks))

    @rule(target=points, point=points, number=small)
    def unpin(self, point: Point, number: int) -> Point:
        """Give a pin back."""
        return self._take(point, Move("unpin", number=number))

    @rule(target=points, point=points)
    def launch(self, point: Point) -> Point:
        """A step is launched; its fence may retire late, in order with others, or never."""
        return self._take(point, Move("launch"))

    @rule(target=points, point=points, number=small)
    def retire(self, point: Point, number: int) -> Point:
        """Some launched step has passed, and all before it."""
        return self._take(point, Move("retire", number=number))

    @rule(target=points, point=points)
    def clear(self, point: Point) -> Point:
        """Forget everything."""
        return self._take(point, Move("clear"))

    @rule(target=points, point=points, number=st.integers(0, 8))
    def resize(self, point: Point, number: int) -> Point:
        """Move the top."""
        return self._take(point, Move("resize", number=number))

    @rule(target=points, point=points, number=small)
    def misuse(self, point: Point, number: int) -> Point:
        """Name what is not there."""
        return self._take(point, Move("misuse", number=number))


def machine_settings(examples: int, steps: int) -> Any:
    """No deadline, no database: a campaign keeps its own record."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )


def search(number: int, *, examples: int = 12, steps: int = 30, machine: type[ArenaMachine] = ArenaMachine) -> Failure | None:
    """Some examples of the machine from a seed. Returns: the shrunk failure, or None."""

    class Seeded(machine):  # type: ignore[valid-type, misc]
        """Hypothesis keys its seed by the test; each search has its own."""

    try:
        run_state_machine_as_test(seed(number)(Seeded), settings=machine_settings(examples, steps))
    except ClaimBroken as broken:
        return broken.failure
    return None
