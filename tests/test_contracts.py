"""CrossHair contracts on the shipped integer functions: confirmed, satisfiable, and able to fail."""

import pytest

from invariants.contracts import CONFIRMED, OPEN, REFUTED, Contract, examine, refute, witness_failures
from invariants.contracts_list import CONTRACTS

pytest.importorskip("crosshair")
every = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)


@every
def test_witness_satisfies_the_contract(contract: Contract) -> None:
    """Some input satisfies every precondition, and the shipped function meets the postcondition there."""
    assert list(witness_failures(contract)) == []


@every
def test_contract_is_confirmed(contract: Contract) -> None:
    """CrossHair confirms every postcondition over all paths; "nothing found" does not count."""
    verdict = examine(contract)
    assert verdict.verdict == CONFIRMED, verdict.message


@every
def test_twin_is_refuted(contract: Contract) -> None:
    """The same contract over a planted bug is refuted with an example."""
    verdict = refute(contract)
    assert verdict.verdict == REFUTED, f"twin ({contract.twin.wrong}): {verdict.verdict} {verdict.message}"


def test_every_name_once() -> None:
    """Contracts have distinct names, so that a matrix cell names one of them."""
    names = [contract.name for contract in CONTRACTS]
    assert len(set(names)) == len(names)


def _says_nothing(value: int) -> int:
    """No postcondition.

    pre: value >= 0
    """
    return value


def test_contract_without_postcondition_is_not_confirmed() -> None:
    """A function without a postcondition is not taken for a proof."""
    empty = Contract(_says_nothing, (), {"value": 1}, CONTRACTS[0].twin, "")
    assert examine(empty).verdict == OPEN
