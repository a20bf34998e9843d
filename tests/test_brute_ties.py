"""The shipped feasibility, its refusals' figures and its eviction advice against brute force, in random reached states."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from core_pure.admission import Advice, eviction_advice
from core_pure.fits import NOW, RELIEF, Fit, Refusal, after, fits
from core_pure.state import Outcome, initial
from invariants import brute
from invariants.world_checks import chain_of
from invariants.worlds import Event, Node, World, events, try_event

CHAINS = (
    World("one", (1,), 7, fences_max=2, pins_max=2),
    World("two", (5, 3), 31, fences_max=2, pins_max=2),
    World("three", (7, 5, 3), 50, fences_max=2, pins_max=1),
    World("rising", (1, 2, 5), 30, fences_max=2, pins_max=1),
    World("floats", (4, 3, 1, 2), 30, fences_max=1, pins_max=1),
    World("caps", (3, 2, 1), 24, fences_max=2, pins_max=1, caps=((0, 3), (2, None), (1, 5))),
)
OFTEN = {"allocate": 6, "release": 4, "pin": 2, "launch": 4, "retire": 1, "advance": 2}


def reached(world: World, rng: random.Random, steps: int) -> Node:
    """A state after some random events, growth favoured."""
    node = Node.of(initial(world.layout()))
    for _ in range(steps):
        tried = [event for event in events(world, node) if event.kind in OFTEN]
        event = rng.choices(tried, [OFTEN[event.kind] for event in tried])[0]
        node = try_event(world, node, event).after
    return node


def some_demand(rng: random.Random, world: World) -> tuple[int, ...]:
    return tuple(rng.choice((0, rng.randrange(5))) for _ in world.frames)


@pytest.mark.parametrize("world", CHAINS, ids=lambda world: world.name)
def test_F03_fits_is_exact_in_every_mode(world: World) -> None:
    """Now, after relief, after each fence and after any eviction: yes exactly when some window vector exists."""
    rng, answers = random.Random(world.total_bytes), Counter[bool]()
    for _ in range(60):
        node = reached(world, rng, rng.randrange(4, 25))
        unpinned = [len(pages) - len(pins) for pages, pins in zip(node.pages, node.pins, strict=True)]
        for _ in range(6):
            demand = some_demand(rng, world)
            chain = chain_of(node, demand)
            asked = [(fits(node.state, demand, mode=NOW), brute.NOW), (fits(node.state, demand, mode=RELIEF), brute.RELIEF)]
            for fence in range(node.state.retired + 1, node.state.launched + 1):
                asked.append((fits(node.state, demand, mode=after(fence)), brute.after(fence)))
            gone = tuple(rng.randrange(pages + 1) for pages in unpinned)
            asked.append((fits(node.state, demand, evictable=gone), brute.evict(gone)))
            for said, mode in asked:
                assert isinstance(said, Fit) == brute.feasible(chain, mode), (node.key(), demand, mode)
                answers[isinstance(said, Fit)] += 1
    assert min(answers.values()) > 100, answers


@pytest.mark.parametrize("world", CHAINS, ids=lambda world: world.name)
def test_F02_figures_of_a_refusal_are_true(world: World) -> None:
    """What a refusal says of each band, alone and jointly, is what brute force can place, and one page more is not."""
    rng, refusals = random.Random(7 * world.total_bytes), 0
    for _ in range(60):
        node = reached(world, rng, rng.randrange(6, 25))
        demand = tuple(rng.randrange(1, 7) for _ in world.frames)
        said = fits(node.state, demand)
        if isinstance(said, Fit):
            continue
        refusals += 1
        nothing = chain_of(node, (0,) * len(demand))
        newest = brute.after(node.state.launched)
        for index, band in enumerate(said.bands):
            assert band.wanted == demand[index]
            assert band.now == brute.obtainable(nothing, index, brute.NOW)
            assert band.after_relief == brute.obtainable(nothing, index, brute.RELIEF)
            assert band.after_fence == brute.obtainable(nothing, index, newest)
        joint = tuple(band.joint for band in said.bands)
        cap = max(joint)
        assert joint == tuple(min(cap, pages) for pages in demand)
        assert brute.feasible(brute.with_ask(nothing, joint), brute.RELIEF)
        more = tuple(min(cap + 1, pages) for pages in demand)
        assert not brute.feasible(brute.with_ask(nothing, more), brute.RELIEF)
    assert refusals > 10


@pytest.mark.parametrize("world", CHAINS, ids=lambda world: world.name)
def test_F48_eviction_advice_frees_the_fewest_bytes(world: World) -> None:
    """Over all subsets of the units, the advice frees the fewest bytes; where no subset helps, nothing is advised."""
    rng, seen = random.Random(3 * world.total_bytes), Counter[str]()
    for _ in range(60):
        node = reached(world, rng, rng.randrange(6, 25))
        demand = some_demand(rng, world)
        free = [len(pages) - len(pins) for pages, pins in zip(node.pages, node.pins, strict=True)]
        units: list[tuple[int, ...]] = []
        for _ in range(rng.randrange(6)):
            unit = tuple(rng.randrange(min(left, 2) + 1) for left in free)
            free = [left - pages for left, pages in zip(free, unit, strict=True)]
            units.append(unit)
        chain = chain_of(node, demand)
        costs = []
        for chosen in itertools.product((0, 1), repeat=len(units)):
            gone = tuple(sum(unit[index] for unit, take in zip(units, chosen, strict=True) if take) for index in range(len(demand)))
            if brute.feasible(chain, brute.evict(gone)):
                costs.append(sum(pages * size for pages, size in zip(gone, world.frames, strict=True)))
        said = eviction_advice(node.state, demand, units)
        if isinstance(said, Refusal):
            assert not costs, (node.key(), demand, units)
            seen["refused"] += 1
            continue
        assert isinstance(said, Advice)
        advised = [units[position] for position in said.units]
        assert said.pages == tuple(sum(unit[index] for unit in advised) for index in range(len(demand)))
        assert said.freed_bytes == sum(pages * size for pages, size in zip(said.pages, world.frames, strict=True))
        assert brute.feasible(chain, brute.evict(said.pages))
        assert said.optimal
        assert said.freed_bytes == min(costs), (node.key(), demand, units)
        seen["advised" if said.units else "nothing needed"] += 1
    assert seen["nothing needed"] > 5, seen
    assert seen["refused"] + seen["advised"] > 5, seen


def test_F22_an_ask_just_above_capacity_is_refused_unchanged() -> None:
    """In every band, the capacity reported is granted, and one page more is refused and changes nothing."""
    rng = random.Random(22)
    for world in CHAINS:
        for _ in range(15):
            node = reached(world, rng, rng.randrange(4, 25))
            for index in range(len(world.frames)):
                most = brute.obtainable(chain_of(node, (0,) * len(world.frames)), index)
                demand = tuple(most * (other == index) for other in range(len(world.frames)))
                assert isinstance(try_event(world, node, Event("allocate", demand=demand)).result, Outcome)
                more = tuple((most + 1) * (other == index) for other in range(len(world.frames)))
                step = try_event(world, node, Event("allocate", demand=more))
                assert isinstance(step.result, Refusal)
                assert Node.of(node.state) == node
