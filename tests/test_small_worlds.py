"""Small worlds: every reachable state of tiny arenas is sound, and each check that says so can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core_pure.errors import PageNotBound
from core_pure.fits import Refusal
from core_pure.plan import NO_MOVES, NO_ROWS, Plan
from core_pure.state import ArenaState, Outcome, initial
from invariants import exhaust, world_checks
from invariants.worlds import Event, Node, Step, World, WorldFailure, events, explore, pack, try_event, unpack

TINY = World("tiny", (3, 2, 1), 8, ask_max=1, fences_max=1, pins_max=1)
PLANTED = World("planted", (7, 5, 3), 38, ask_max=2, fences_max=1, pins_max=1)


def walk(world: World, *chosen: Event) -> Node:
    """The state after some events, each of which must succeed."""
    node = Node.of(initial(world.layout()))
    for event in chosen:
        step = try_event(world, node, event)
        assert isinstance(step.result, Outcome), (event, step.result)
        node = step.after
    return node


def relieved() -> Step:
    """A demand that is met by moving one frame: band1's page gives way to a second page of band0."""
    node = walk(PLANTED, Event("allocate", demand=(1, 1, 2)), Event("allocate", demand=(0, 0, 1)))
    for event in events(PLANTED, node):
        step = try_event(PLANTED, node, event)
        if event.kind == "allocate" and isinstance(step.result, Outcome) and step.result.plan.waves:
            return step
    raise AssertionError("no demand needs relief here")


def bare() -> Step:
    """A demand met without a move."""
    step = try_event(PLANTED, Node.of(initial(PLANTED.layout())), Event("allocate", demand=(1, 0, 1)))
    assert isinstance(step.result, Outcome)
    return step


def refused() -> Step:
    """A demand that nothing can meet."""
    node = walk(PLANTED, Event("allocate", demand=(2, 2, 0)))
    step = try_event(PLANTED, node, Event("allocate", demand=(2, 0, 0)))
    assert isinstance(step.result, Refusal)
    return step


def released() -> Step:
    """One page given back under a reader."""
    node = walk(PLANTED, Event("allocate", demand=(1, 1, 1)), Event("launch"))
    step = try_event(PLANTED, node, Event("release", pages=(1,), fence=1))
    assert isinstance(step.result, Outcome)
    return step


def compacted() -> Step:
    """A hole in an end is closed."""
    node = walk(PLANTED, Event("allocate", demand=(0, 0, 2)), Event("allocate", demand=(0, 0, 1)))
    top = max(node.pages[2], key=lambda page: node.pages[2][page])
    return try_event(PLANTED, walk_on(node, Event("release", pages=(top,))), Event("compact"))


def walk_on(node: Node, event: Event) -> Node:
    """One more event on a node."""
    step = try_event(PLANTED, node, event)
    assert isinstance(step.result, Outcome)
    return step.after


def with_plan(step: Step, **changes: Any) -> Step:
    """The same transition with another plan."""
    assert isinstance(step.result, Outcome)
    plan = step.result.plan
    parts = {"waves": plan.waves, "copies": plan.copies, "fills": plan.fills, "rows": plan.rows, "wait": plan.wait}
    return evolve(step, result=evolve(step.result, plan=Plan(**parts | changes)))


def said(step: Step) -> set[str]:
    """The claims that the checks find broken."""
    return {text.split(":")[0] for check in world_checks.STEP_CHECKS for text in check(step)}


def shifted(step: Step, by: int) -> Step:
    """The first move goes to another frame, and its table row says so."""
    assert isinstance(step.result, Outcome)
    waves = [wave.copy() for wave in step.result.plan.waves]
    rows, target = step.result.plan.rows.copy(), int(waves[0][0, 2])
    for row in rows:
        if row[1] == target:
            row[1] += by
    waves[0][0, 2] += by
    return with_plan(step, waves=tuple(waves), rows=rows)


PLANTED_STEPS: dict[str, tuple[Callable[[], Step], set[str]]] = {
    "nothing": (relieved, set()),
    "nothing, released": (released, set()),
    "nothing, compacted": (compacted, set()),
    "a wave is lost": (lambda: with_plan(relieved(), waves=()), {"optimum", "plan"}),
    "a move goes to the sink's neighbour": (lambda: shifted(relieved(), -3), {"plan"}),
    "a wait too many": (lambda: with_plan(relieved(), wait=1), {"plan", "wait"}),
    "moves beyond the bound": (lambda: with_plan(bare(), waves=(np.tile([[2, 9, 10]], (20, 1)),)), {"bound", "optimum"}),
    "a row is lost": (lambda: with_plan(bare(), rows=bare_plan().rows[1:]), {"plan"}),
    "a fill is lost": (lambda: with_plan(bare(), fills=bare_plan().fills[1:]), {"plan"}),
    "a fill too many": (lambda: with_plan(bare(), fills=np.vstack([bare_plan().fills] * 2)), {"plan"}),
    "an unbind is lost": (lambda: with_plan(released(), rows=NO_ROWS), {"plan"}),
    "a refusal hides room": (lambda: evolve(bare(), result=refused().result, after=bare().before), {"exact"}),
    "an outcome without room": (lambda: evolve(refused(), result=bare().result, after=bare().after), {"exact", "pages"}),
    "an error for a sound release": (lambda: evolve(released(), result=PageNotBound("no"), after=released().before), {"misuse"}),
    "a misuse that passes": (lambda: evolve(released(), event=Event("misuse", pages=(0,), fence=None)), {"misuse"}),
    "the reader is forgotten": (lambda: evolve(released(), after=evolve(released().after, waiting=({}, {}, {}))), {"quarantine"}),
    "a pin appears": (lambda: evolve(bare(), after=evolve(bare().after, pins=({1: 1}, {}, {}))), {"pins"}),
    "a page vanishes": (lambda: evolve(released(), after=evolve(released().after, pages=({}, {}, {}))), {"pages", "plan"}),
    "a fence passes by itself": (lambda: evolve(bare(), after=retired_twin(bare().after)), {"fences"}),
    "nothing is compacted": (lambda: uncompacted(compacted()), {"compact"}),
}


def bare_plan() -> Plan:
    result = bare().result
    assert isinstance(result, Outcome)
    return result.plan


def retired_twin(node: Node) -> Node:
    return evolve(node, state=ArenaState(node.state.layout, node.state.bands, 1, 1))


def uncompacted(step: Step) -> Step:
    nothing = Plan(waves=(), copies=NO_MOVES, fills=NO_MOVES, rows=NO_ROWS, wait=None)
    return evolve(step, result=Outcome(step.before.state, nothing), after=step.before)


@pytest.mark.parametrize("fault", PLANTED_STEPS)
def test_each_planted_fault_is_named(fault: str) -> None:
    """A transition with one planted fault breaks the claims that it should, and sound ones break none."""
    plant, claims = PLANTED_STEPS[fault]
    found = said(plant())
    assert claims <= found if claims else not found


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda node: evolve(node, pages=({1: 0}, {}, {})), "frames"),
        (lambda node: evolve(node, pages=({1: 1, 2: 1}, {}, {})), "frames"),
        (lambda node: evolve(node, pages=({}, {1: 2}, {})), "pages"),
        (lambda node: evolve(node, waiting=({1: 1}, {}, {})), "counts"),
        (lambda node: evolve(node, pins=({3: 1}, {}, {})), "pins"),
        (lambda node: evolve(node, pages=({}, {}, {})), "table"),
        (lambda node: evolve(node, state=with_band(node, 2, low=3)), "span"),
        (lambda node: evolve(node, state=with_band(node, 2, live=9)), "counts"),
        (lambda node: evolve(node, state=with_band(node, 2, live=9)), "verify"),
    ],
)
def test_each_planted_state_is_named(change: Callable[[Node], Node], claim: str) -> None:
    """A state in which one fact is wrong is not sound; the same state untouched is."""
    node = walk(PLANTED, Event("allocate", demand=(1, 1, 1)))

    def broken(node: Node) -> set[str]:
        return {text.split(":")[0] for check in world_checks.STATE_CHECKS for text in check(PLANTED, node)}

    assert broken(node) == set()
    assert claim in broken(change(node))


def with_band(node: Node, index: int, **changes: Any) -> ArenaState:
    bands = list(node.state.bands)
    bands[index] = evolve(bands[index], **changes)
    return node.state.with_bands(bands)


def test_packed_states_come_back_equal() -> None:
    """A state packed and unpacked is equal, has the same fences, and goes on in the same way."""
    node = walk(PLANTED, Event("allocate", demand=(1, 1, 2)), Event("launch"), Event("release", pages=(1,), fence=1))
    again = unpack(initial(PLANTED.layout()), pack(node.state))
    assert again == node.state
    assert Node.of(again).key() == node.key()
    for event in events(PLANTED, node):
        ours, theirs = try_event(PLANTED, node, event), try_event(PLANTED, Node.of(again), event)
        assert type(ours.result) is type(theirs.result)
        if isinstance(ours.result, Outcome) and isinstance(theirs.result, Outcome):
            assert ours.result.plan == theirs.result.plan
            assert ours.result.state == theirs.result.state


def test_a_tiny_world_is_exhausted() -> None:
    """Three bands in 8 bytes with a fence and a pin: every state and transition is visited and sound, twice alike."""
    counts = exhaust.exhaust(TINY)
    assert counts == explore(TINY, [], [])
    assert counts.states > 300
    assert counts.kinds["refusal"] > 100
    assert counts.kinds["relief"] > 10
    assert counts.kinds["wait"] > 10


def test_a_failure_tells_the_shortest_story() -> None:
    """The first broken claim ends the search, with the fewest events that lead there."""

    def no_two_pages(world: World, node: Node) -> Iterator[str]:
        if sum(map(len, node.pages)) == 2:
            yield "two pages"

    with pytest.raises(WorldFailure, match="two pages") as failure:
        explore(TINY, [no_two_pages], [])
    assert str(failure.value).count("\n") == 1  # a joint demand binds two pages in one event

    def no_pin(step: Step) -> Iterator[str]:
        if step.event.kind == "pin":
            yield "pinned"

    with pytest.raises(WorldFailure, match="pinned") as failure:
        explore(TINY, [], [no_pin])
    assert [line.split("kind='")[1].split("'")[0] for line in str(failure.value).splitlines()[1:]] == ["allocate", "pin"]


def test_states_limit_stops_the_search() -> None:
    """An exploration with a limit knows at most that many states."""
    assert explore(TINY, [], [], states_limit=50).states == 50


def test_the_expectation_covers_enough() -> None:
    """At least 10⁵ states in at least eight worlds, at least 5,000 in each with three bands or more, all of them listed."""
    committed = exhaust.expected()
    assert set(committed) == {world.name for world in exhaust.WORLDS}
    assert len(committed) >= 8
    assert sum(counts["states"] for counts in committed.values()) >= 100_000
    for world in exhaust.WORLDS:
        assert len(world.frames) < 3 or committed[world.name]["states"] >= 5_000, world.name


def test_wrong_arguments_give_two(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown world, no cores and no states are each a clear line and exit code 2."""
    for arguments in (["--world", "nowhere"], ["--cores", "0"], ["--large", "0"]):
        assert exhaust.main(arguments) == 2
        assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [world.name for world in exhaust.WORLDS])
def test_every_state_is_sound(name: str) -> None:
    """Every reachable state and every event of this world keeps every claim, and coverage is exactly the committed one."""
    assert exhaust.exhaust(exhaust.world_named(name)).as_json() == exhaust.expected()[name]
