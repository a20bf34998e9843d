"""What can be promised: admissions of one step folded one by one, the longest request, the largest concurrency, and what to
evict. Everything asks ``fits`` with ints, and every conversion of cost rounds up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from .chain import refused_at
from .errors import DemandError
from .fits import RELIEF, Refusal, is_feasible, refusal
from .layout import Demand, Layout, claims_of_empty, is_whole
from .state import ArenaState, demand_of

SEARCH_STEPS = 20_000
"""Most feasibility questions that ``eviction_advice`` asks before it settles for an advice that is only irreducible."""


def request_pages(layout: Layout, tokens: int, chunk: int) -> Demand:
    """The most pages per band that one request of ``tokens`` holds at once, filled ``chunk`` tokens at a time."""
    return tuple(band.pages_peak(tokens, chunk) for band in layout.bands)


def fits_empty(layout: Layout, demand: Demand) -> bool:
    """Whether the demand fits in the empty arena."""
    capped = any(band.pages_max is not None and n > band.pages_max for band, n in zip(layout.bands, demand, strict=True))
    return not capped and refused_at(claims_of_empty(layout, demand), layout.sink_bytes, layout.total_bytes) < 0


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest n in [0, limit] for which the monotone ``holds`` is true; 0 is taken as true."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def max_request_tokens(layout: Layout, chunk: int, context: int | None = None) -> int:
    """The longest request that the arena could serve alone; 0 when not one token fits. ``context`` caps it if given."""
    widest = max(band.slots_per_page * frames for band, frames in zip(layout.bands, layout.frames_max, strict=True))
    bounded = any(band.grows and band.window is None for band in layout.bands)
    limit = widest if bounded else (1 << 40)  # without full attention length costs nothing
    limit = limit if context is None else min(limit, context)
    return _largest(limit, lambda tokens: fits_empty(layout, request_pages(layout, tokens, chunk)))


def largest_concurrency(layout: Layout, tokens: int, chunk: int) -> int:
    """How many equal requests of ``tokens`` the arena can hold at once, each at its peak."""
    each = request_pages(layout, tokens, chunk)
    bounds = [most // n for most, n in zip(layout.frames_max, each, strict=True) if n]
    return _largest(min(bounds, default=0), lambda n: fits_empty(layout, tuple(n * pages for pages in each)))


@frozen
class AdmissionBudget:
    """Requests accepted so far in one step, folded into one demand. Any accepted prefix can be allocated together."""

    state: ArenaState
    chunk: int
    taken: Demand

    @classmethod
    def of(cls, state: ArenaState, chunk: int, promised: Demand | None = None) -> AdmissionBudget:
        """A budget on top of ``promised`` pages (this step's demand and what running requests were assured)."""
        nothing = (0,) * len(state.bands)
        return cls(state, chunk, demand_of(state, promised) if promised is not None else nothing)

    def fold(self, tokens_now: int, tokens_reserved: int = 0) -> AdmissionBudget | Refusal:
        """Take one more request: the peak of its pages now and of its reserved growth. A Refusal leaves this value as it is.

        Raises: DemandError.
        """
        if not is_whole(tokens_now) or not is_whole(tokens_reserved) or tokens_now < 0 or tokens_reserved < 0:
            raise DemandError(f"tokens now {tokens_now!r} and reserved {tokens_reserved!r}: expected whole numbers from 0")
        return self.fold_pages(request_pages(self.state.layout, tokens_now + tokens_reserved, self.chunk))

    def fold_pages(self, pages: Demand) -> AdmissionBudget | Refusal:
        """Take one more demand, jointly with all taken before."""
        joint = added(self.taken, pages)
        if not is_feasible(self.state, joint, RELIEF):
            return refusal(self.state, joint, RELIEF)
        return evolve(self, taken=joint)


def added(a: Demand, b: Demand) -> Demand:
    """Two demands together."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


# --- eviction ----------------------------------------------------------------------------------------------------------


@frozen
class Advice:
    """Which units to evict, by position in the list given; ``optimal`` tells whether fewer bytes were ruled out."""

    units: tuple[int, ...]
    pages: Demand
    freed_bytes: int
    optimal: bool


def eviction_advice(state: ArenaState, demand: Demand, units: Sequence[Demand]) -> Advice | Refusal:
    """The units whose eviction lets the demand fit: the fewest bytes, and of units of equal bytes the older (earlier listed).

    A unit is a page vector over bands (one tree node frees bytes on several sides); the choice is checked jointly. An empty
    advice when the demand fits as it is; a Refusal, naming nothing to evict, when evicting everything would not help.
    Cost: units of one vector are counted, not listed, so the search is over counts per distinct vector.
    """
    nothing = (0,) * len(state.bands)
    sizes = [band.spec.frame_bytes for band in state.bands]
    groups: dict[Demand, list[int]] = {}
    for at, unit in enumerate(units):
        if any(unit):
            groups.setdefault(demand_of(state, unit), []).append(at)
    if is_feasible(state, demand, RELIEF):
        return Advice((), nothing, 0, True)
    # Largest first; of equal ones the youngest first, because the search tries none of a vector before it tries one.
    vectors = sorted(groups, key=lambda vector: (-sum(n * f for n, f in zip(vector, sizes, strict=True)), -groups[vector][0]))
    search = _Search(state, demand, vectors, [len(groups[v]) for v in vectors], sizes)
    if not search.feasible(search.most):
        return refusal(state, demand, RELIEF, _capped(state, search.pages(search.most)))
    counts = search.run()
    chosen = sorted(at for vector, n in zip(vectors, counts, strict=True) for at in groups[vector][:n])
    return Advice(tuple(chosen), search.pages(counts), search.bytes(counts), search.steps < SEARCH_STEPS)


def _capped(state: ArenaState, pages: Demand) -> Demand:
    return tuple(min(n, band.live - len(band.held.pins)) for n, band in zip(pages, state.bands, strict=True))


class _Search:
    """Depth-first over counts per distinct vector, largest vector first; the last count by bisection; bytes prune.

    The start is the irreducible choice that drops units from everything, so a search cut short still answers well.
    """

    def __init__(
        self, state: ArenaState, demand: Demand, vectors: Sequence[Demand], most: Sequence[int], sizes: Sequence[int]
    ) -> None:
        self.state, self.demand, self.vectors = state, demand, vectors
        self.most = tuple(most)
        self.weights = [sum(n * f for n, f in zip(vector, sizes, strict=True)) for vector in vectors]
        self.steps = 0

    def pages(self, counts: Sequence[int]) -> Demand:
        return tuple(
            sum(n * vector[band] for n, vector in zip(counts, self.vectors, strict=True))
            for band in range(len(self.state.bands))
        )

    def bytes(self, counts: Sequence[int]) -> int:
        return sum(n * weight for n, weight in zip(counts, self.weights, strict=True))

    def feasible(self, counts: Sequence[int]) -> bool:
        self.steps += 1
        return is_feasible(self.state, self.demand, RELIEF, _capped(self.state, self.pages(counts)))

    def _least(self, counts: list[int], at: int) -> int | None:
        """The least count of vector ``at`` that is enough beside ``counts``; None when all are not enough."""
        full = self.most[at]
        if not self.feasible([*counts[:at], full, *counts[at + 1 :]]):
            return None
        drop = _largest(full, lambda gone: self.feasible([*counts[:at], full - gone, *counts[at + 1 :]]))
        return full - drop

    def run(self) -> tuple[int, ...]:
        best = list(self.most)
        for at in range(len(best)):  # irreducible: drop as many of each as can go, largest vectors first
            least = self._least(best, at)
            best[at] = best[at] if least is None else least
        self._descend([0] * len(best), 0, best)
        return tuple(best)

    def _descend(self, counts: list[int], at: int, best: list[int]) -> None:
        if self.steps >= SEARCH_STEPS:
            return
        if at == len(counts) - 1:
            least = self._least(counts, at)
            if least is not None:
                counts[at] = least
                if self.bytes(counts) < self.bytes(best):
                    best[:] = counts
                counts[at] = 0
            return
        for n in range(self.most[at] + 1):
            counts[at] = n
            if self.bytes(counts) >= self.bytes(best):
                break
            self._descend(counts, at + 1, best)
        counts[at] = 0
