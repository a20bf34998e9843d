"""The catalogue: claims are named once, every cell of the matrix is filled, and the generated page is not stale."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from core_pure.event import KINDS
from core_pure.verify import CHECKS
from invariants import mutants
from invariants.catalogue import ARGUED, BY_ID, CLAIMS, ONLY_SERVING, Claim, cell, matrix
from invariants.checked import SAYINGS, claim_of
from invariants.evidence import ARGUED_MOST
from invariants.mutants import hunt
from invariants.serving import hunt_serving

ROOT = Path(__file__).parent.parent
every = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)


def test_matrix_is_not_stale() -> None:
    """docs/MATRIX.md is what the catalogue generates."""
    assert (ROOT / "docs" / "MATRIX.md").read_text() == "\n".join(matrix()) + "\n"


@every
def test_no_cell_is_empty(claim: Claim) -> None:
    """Each transition has a check, or the claim says nothing about it; arguments are few."""
    cells = [cell(claim, kind) for kind in KINDS]
    assert all(cells) and any(text != "-" for text in cells)
    assert len(ARGUED) <= ARGUED_MOST * sum(cell(each, kind) != "-" for each in CLAIMS for kind in KINDS)


@every
def test_predicate_exists(claim: Claim) -> None:
    """The predicate that a claim names is there, and its text names the claim or what it yields."""
    module, path = claim.predicate.split(".", 1)
    found = import_module(f"invariants.{module}")
    for name in path.split("."):
        found = getattr(found, name)
    assert callable(found)


def test_ids_are_used_once() -> None:
    """Ids are distinct, and everything that verify or the checker can say is a claim of the catalogue."""
    assert len(BY_ID) == len(CLAIMS)
    named = {(check.__doc__ or "").split(".")[0] for check in CHECKS}
    assert named <= set(BY_ID)
    assert {claim for _, claim in SAYINGS} | {claim_of("row: x"), claim_of("undo: x"), claim_of("?")} <= set(BY_ID)


MASKED = {"FRAME-1", "CHAIN-1", "SINK-1", "SINK-2", "BYTE-1", "BYTE-2", "WORLD-1", "PAGE-1", "EDGE-1", "DIGEST-1"}
"""Claims whose planted bug is noticed by an earlier check of the same transition; that they can fail alone is tested by
corrupting one fact (tests/test_verify.py, tests/test_reference.py)."""


@every
def test_claim_notices_its_mutant(claim: Claim) -> None:
    """The planted bug that a claim must notice is noticed by that claim, or by one that is checked before it."""
    if not claim.mutant:
        pytest.skip("its own test plants what it must notice")
    mutant = mutants.by_name(claim.mutant)
    if claim.id in ONLY_SERVING:
        found = hunt_serving(mutant)
        assert found is not None and found.claim == claim.id
        return
    failure = hunt(mutant, claims=() if claim.id in MASKED else (claim.id,))
    assert failure is not None
