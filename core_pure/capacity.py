"""The capacity protocol: what a serving loop asks of memory, whether it is an arena or a static split.

A loop written against ``Pool`` has no branch on the kind of pool: it asks ``check_decode`` before a step, folds admissions
into a budget, makes one joint ``step``, and is never surprised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from .fits import Fit, Refusal
from .layout import Demand
from .report import Report
from .step import StepOutcome
from .verify import Violation

Ints = NDArray[np.int64]


@frozen
class Unit:
    """Something an engine can evict: its own key for it, and the pages per band that this frees."""

    key: Any
    pages: Demand


class Evictor(Protocol):
    """The engine's evictable units, oldest first."""

    def units(self) -> Sequence[Unit]:
        """What could be evicted now. Pinned pages are never among it."""
        ...

    def evict(self, keys: Sequence[Any]) -> None:
        """Evict these: afterwards their pages are released in the pool."""
        ...


@frozen
class StepResult:
    """A step that was made. ``outcome`` is the arena's; a pool that only counts has none."""

    outcome: StepOutcome | None = None
    bytes_moved: int = 0


class Budget(Protocol):
    """Admissions of one step, folded one by one."""

    def admit(self, tokens_now: int, tokens_reserved: int) -> bool:
        """Take one more request; False, taking nothing, when it does not fit jointly with all before it."""
        ...


class Pool(Protocol):
    """Memory as a serving loop sees it. Arrays are int64[n]; demands are pages per band in ``names`` order."""

    @property
    def names(self) -> tuple[str, ...]:
        """Band names."""
        ...

    def open(self, count: int) -> Ints:
        """New leases that hold nothing yet."""
        ...

    def demand_of(self, handles: Ints, new_tokens: Ints) -> Demand:
        """Pages that a step with these tokens takes, net of what its slide frees."""
        ...

    def step(self, handles: Ints, new_tokens: Ints, finished: Ints = ..., slid: Ints | None = None) -> StepResult | Refusal:
        """One joint serving step; a refusal changes nothing."""
        ...

    def check_decode(self, demand: Demand, evictor: Evictor | None = None) -> bool:
        """Evict what helps, then tell whether the demand fits. A step after a yes does not refuse."""
        ...

    def evict_to_free(self, demand: Demand, evictor: Evictor | None) -> int:
        """Evict the fewest bytes that let the demand fit, or nothing when nothing helps. Returns: units evicted."""
        ...

    def fits(self, demand: Mapping[str, int] | Sequence[int]) -> Fit | Refusal:
        """Whether the demand fits, and if not, why."""
        ...

    def max_request_tokens(self) -> int:
        """The longest request that fits alone."""
        ...

    def admission(self, promised: Demand | None = None) -> Budget:
        """A budget on top of what is held and ``promised``."""
        ...

    def verify(self) -> list[Violation]:
        """What is wrong; empty when healthy. Never raises unless the pool is strict."""
        ...

    def report(self) -> Report:
        """Who holds which bytes, adding up to the total."""
        ...
