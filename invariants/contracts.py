"""Running contracts through CrossHair: confirmed for all integers, refuted with a planted twin, or not good enough.

The exit status of CrossHair's command line does not tell "confirmed" from "nothing found", so its API is used, and only
MessageType.CONFIRMED for every postcondition counts. A twin replaces one function by a wrong one and runs the *same*
contract: a contract that its twin passes proves nothing.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

from attrs import frozen

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "not confirmed"
SECONDS_PER_CONDITION = 120.0  # several times the slowest contract; a slower machine still answers the same


@frozen
class Twin:
    """A planted bug: ``function`` stands in for ``name``, looked up as ``module.name``; what is wrong with it."""

    module: str
    name: str
    function: Callable[..., Any]
    wrong: str


@frozen
class Contract:
    """One statement about shipped functions.

    check: the function with ``pre:`` and ``post:`` lines. covers: the shipped functions, "module.function". witness: an
    input that satisfies the precondition. twin: a bug that the contract must refute. scope: for which values it holds.
    """

    check: Callable[..., Any]
    covers: tuple[str, ...]
    witness: Mapping[str, int]
    twin: Twin
    scope: str

    @property
    def name(self) -> str:
        """The contract's name."""
        return self.check.__name__

    @property
    def sentence(self) -> str:
        """What it states."""
        return (inspect.getdoc(self.check) or "").splitlines()[0]


@frozen
class Verdict:
    """What CrossHair found. seconds: CPU seconds."""

    contract: str
    verdict: str
    message: str
    seconds: float


def conditions(contract: Contract, kind: str) -> list[str]:
    """The expressions after ``pre:`` or ``post:``."""
    lines = (inspect.getdoc(contract.check) or "").splitlines()
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith(kind + ":")]


def witness_failures(contract: Contract) -> Iterator[str]:
    """What the witness does not satisfy: a precondition nothing satisfies would make every contract true."""
    scope = dict(vars(import_module(contract.check.__module__)))
    for expression in conditions(contract, "pre"):
        if not eval(expression, scope, dict(contract.witness)):  # the contract's own text
            yield f"{contract.name}: witness {dict(contract.witness)} does not satisfy {expression}"
    returned = contract.check(**contract.witness)
    for expression in conditions(contract, "post"):
        if not eval(expression, {**scope, **contract.witness, "__return__": returned}):
            yield f"{contract.name}: on its witness it returns {returned}, against {expression}"


@contextmanager
def planted(twin: Twin) -> Iterator[None]:
    """The twin in place of the function."""
    with mock.patch.object(import_module(twin.module), twin.name, twin.function):
        yield


def examine(contract: Contract, seconds: float = SECONDS_PER_CONDITION) -> Verdict:
    """Ask CrossHair. Confirmed only when every postcondition is."""
    from crosshair.core_and_libs import MessageType, analyze_function, run_checkables
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316], report_all=True, per_condition_timeout=seconds, per_path_timeout=seconds
    )
    start = time.process_time()
    messages = list(run_checkables(analyze_function(contract.check, options)))
    spent = time.process_time() - start
    wrong = [m for m in messages if m.state in (MessageType.POST_FAIL, MessageType.POST_ERR, MessageType.EXEC_ERR)]
    confirmed = [m for m in messages if m.state == MessageType.CONFIRMED]
    if wrong:
        return Verdict(contract.name, REFUTED, wrong[0].message, spent)
    if len(confirmed) == len(messages) == len(conditions(contract, "post")) > 0:
        return Verdict(contract.name, CONFIRMED, "", spent)
    unsure = "; ".join(f"{m.state.name}: {m.message}" for m in messages if m not in confirmed)
    return Verdict(contract.name, OPEN, unsure or "no postcondition was examined", spent)


def refute(contract: Contract, seconds: float = SECONDS_PER_CONDITION) -> Verdict:
    """Ask CrossHair about the contract with its twin planted; anything but REFUTED means that the contract cannot fail."""
    with planted(contract.twin):
        return examine(contract, seconds)
