"""The evidence run fails when anything planted is not noticed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from attrs import evolve

from core_pure.geometry import ceil_div
from invariants import contracts_list, exhaust, lemmas_list, mutants, mutants_list
from invariants.evidence import run_task, tasks
from invariants.mutants import Mutant

pytest.importorskip("crosshair")
pytest.importorskip("z3")


def test_parts_hold() -> None:
    """One part of each quick kind: it holds, and its row says what was shown for which values."""
    for task in (
        ("contract", "ceil_div_is_least"),
        ("lemma", "room-most"),
        ("mutant", "id-lost"),
        ("serving", "0"),
        ("machine", "3"),
    ):
        row = run_task(task)
        assert row.holds, row
        assert row.claim and row.method


def test_every_part_is_listed() -> None:
    """All contracts, lemmas, worlds and mutants are among the tasks, once."""
    listed = list(tasks())
    assert len(set(listed)) == len(listed)
    kinds = {kind: sum(1 for each, _ in listed if each == kind) for kind in ("contract", "lemma", "world", "mutant")}
    assert kinds == {
        "contract": len(contracts_list.CONTRACTS),
        "lemma": len(lemmas_list.LEMMAS),
        "world": len(exhaust.WORLDS),
        "mutant": len(mutants.every()),
    }


def test_twin_that_passes_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract whose twin is right proves nothing, and is said to fail."""
    first = contracts_list.CONTRACTS[0]
    monkeypatch.setattr(contracts_list, "CONTRACTS", (evolve(first, twin=evolve(first.twin, function=ceil_div)),))
    row = run_task(("contract", first.name))
    assert not row.holds and "twin passes" in row.verdict


def test_twin_of_a_lemma_that_passes_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lemma whose twin is proved, too, is said to fail."""
    lemma = next(each for each in lemmas_list.LEMMAS if each.name == "room-most")
    monkeypatch.setattr(lemmas_list, "LEMMAS", (evolve(lemma, twin=lemma.claim),))
    assert "twin passes" in run_task(("lemma", lemma.name)).verdict


def test_mutant_that_survives_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug that is none survives, and is said to fail."""

    def same(original: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    harmless = Mutant("harmless", "fences:launch", "nothing is wrong", ("SETS-1",), wrap=same)
    monkeypatch.setattr(mutants_list, "MUTANTS", (harmless,))
    monkeypatch.setattr(mutants, "hunt", partial(mutants.hunt, walks_most=4))
    assert "survives" in run_task(("mutant", "harmless")).verdict


def test_error_is_a_failure() -> None:
    """A part that cannot run is not passed over."""
    row = run_task(("lemma", "no-such"))
    assert not row.holds
