"""Planted bugs: every one is noticed, so every check can fail."""

from __future__ import annotations

import pytest

from invariants import mutants, walks
from invariants.catalogue import BY_ID
from invariants.mutants import Mutant, StaleMutant, UnknownMutant, function_of, hunt, planted
from invariants.mutants_blind import BLIND
from invariants.mutants_list import MUTANTS
from invariants.serving import SERVING_TARGETS, hunt_serving

OWN = [pytest.param(mutant, id=mutant.name) for mutant in MUTANTS if mutant.target.split(":")[0] not in SERVING_TARGETS]
WALKED = [pytest.param(mutant, id=mutant.name) for mutant in BLIND if mutant.target.split(":")[0] not in SERVING_TARGETS]
SERVED = [pytest.param(mutant, id=mutant.name) for mutant in mutants.every() if mutant.target.split(":")[0] in SERVING_TARGETS]


@pytest.mark.parametrize("mutant", OWN)
def test_mutant_is_killed_by_the_claim_it_names(mutant: Mutant) -> None:
    """Random walks over the planted core violate one of the claims that the mutant names."""
    found = hunt(mutant, claims=mutant.killers)
    assert found is not None, f"survives: {mutant.wrong}"
    assert set(mutant.killers) <= set(BY_ID)


@pytest.mark.parametrize("mutant", WALKED)
def test_mutant_written_blind_is_killed(mutant: Mutant) -> None:
    """A bug planted by someone who knew none of the checks is noticed by some claim of the catalogue."""
    found = hunt(mutant)
    assert found is not None, f"survives: {mutant.wrong}"
    assert found.violation.claim in BY_ID


@pytest.mark.parametrize("mutant", SERVED)
def test_mutant_of_serving_is_killed(mutant: Mutant) -> None:
    """A bug in leases, steps or rollback is noticed by the serving walks."""
    found = hunt_serving(mutant)
    assert found is not None, f"survives: {mutant.wrong}"
    assert found.claim in mutant.killers


def test_healthy_core_survives_the_hunt() -> None:
    """The same walks over the core as shipped find nothing: it is the planted bug that they find."""
    for number, shape in enumerate(walks.SHAPES * 3):
        found = walks.run(shape, walks.moves(number, shape, 120))
        assert found is None, found


def test_planting_is_undone() -> None:
    """After a hunt, functions and names are the shipped ones again."""
    before = {mutant.target: function_of(mutant.target).__code__ for mutant in MUTANTS}
    for mutant in MUTANTS:
        with planted(mutant):
            pass
    assert {target: function_of(target).__code__ for target in before} == before


def test_there_are_enough() -> None:
    """At least 40 mutants, 10 of them written blind, names distinct."""
    everyone = mutants.every()
    assert len(everyone) >= 40 and len(BLIND) >= 10
    assert len({mutant.name for mutant in everyone}) == len(everyone)


def test_unknown_and_stale_mutants_are_named() -> None:
    """A name that nobody planted, and a text that is not in the source any more, are errors."""
    with pytest.raises(UnknownMutant, match="no-such"):
        mutants.by_name("no-such")
    stale = Mutant("stale", "chain:room", "", ("CAP-1",), text=("not in the source", ""))
    with pytest.raises(StaleMutant, match="0 times"), planted(stale):
        pass


def test_lazy_and_eager_are_told_apart() -> None:
    """LAZY-1 can fail: a compaction that loses pages' bytes, or a refusal of one side only, is noticed."""
    from attrs import evolve

    from invariants import runs

    def lossy(original: object, state: object, **kwargs: object) -> object:
        outcome = original(state, **kwargs)  # type: ignore[operator]
        return evolve(outcome, plan=evolve(outcome.plan, waves=()))

    mutant = Mutant("lossy-compaction", "compact:compact", "", ("PLAN-1",), wrap=lossy)
    with planted(mutant):
        assert any(runs.lazy_is_eager(shape, seed, 80) for seed in range(4) for shape in walks.SHAPES[:4])
    for shape in walks.SHAPES[:4]:
        with walks.blocks_of(shape.block_bits):
            assert runs.lazy_is_eager(shape, 3, 80) is None
