"""Lemmas for z3: what the chain arithmetic promises for all sizes, as formulas over unbounded integers.

A formula describes a shipped function as a relation between its arguments, its result, and the quotients it takes (z3 proves
nothing about division by an unknown, but everything about ``q · size <= edge < (q + 1) · size``). A tie test gives the
function's own results for random ints to the relation, which must accept them and reject every other result. A twin
is the lemma with one thing wrong: z3 must find a counterexample, or the lemma cannot fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import z3
from attrs import frozen

Formula = Any
Term = Any
PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
TIMEOUT_MS = 60_000
NOWHERE = 1 << 62


@frozen
class Lemma:
    """name; sentence; covers: functions whose formula it states; claim and twin: made when asked for; scope."""

    name: str
    sentence: str
    covers: tuple[str, ...]
    claim: Callable[[], Formula]
    twin: Callable[[], Formula]
    scope: str


def judge(formula: Formula) -> tuple[str, str, float]:
    """Verdict, counterexample, seconds: proved when its negation is unsatisfiable."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(z3.Not(formula))
    start = time.process_time()
    answer = solver.check()
    spent = time.process_time() - start
    if answer == z3.unsat:
        return PROVED, "", spent
    return (REFUTED, str(solver.model()), spent) if answer == z3.sat else (UNKNOWN, solver.reason_unknown(), spent)


def holds(formula: Formula) -> bool:
    """The value of a formula without unknowns."""
    return bool(z3.is_true(z3.simplify(formula)))


# --- relations: the shipped functions as formulas ----------------------------------------------------------------------


@frozen
class Band:
    """One band's claim, and the quotients that walks take on it: low = ceil(edge/size), high = edge//size."""

    size: Term
    need: Term
    first: Term
    end: Term

    @classmethod
    def of(cls, tag: str) -> Band:
        """A band of unknowns."""
        return cls(*z3.Ints(" ".join(f"{name}{tag}" for name in ("size", "need", "first", "end"))))

    @property
    def sane(self) -> Formula:
        """Sizes are positive, counts not negative, and a hull is an interval or absent."""
        hull = z3.Or(z3.And(0 <= self.first, self.first < self.end), z3.And(self.first == NOWHERE, self.end == 0))
        return z3.And(self.size >= 1, self.need >= 0, hull)


def largest(a: Term, b: Term) -> Term:
    """max."""
    return z3.If(a >= b, a, b)


def least(a: Term, b: Term) -> Term:
    """min."""
    return z3.If(a <= b, a, b)


def ceiling_of(edge: Term, size: Term, quotient: Term) -> Formula:
    """quotient == ceil_div(edge, size)."""
    return z3.And(quotient * size >= edge, (quotient - 1) * size < edge)


def floor_of(edge: Term, size: Term, quotient: Term) -> Formula:
    """quotient == edge // size."""
    return z3.And(quotient * size <= edge, (quotient + 1) * size > edge)


def above(band: Band, edge: Term, total: Term, low: Term, top: Term, result: Term) -> Formula:
    """result == chain.edge_above(edge, total, …), where low = ceil(edge/size) and top = total//size."""
    high = largest(low + band.need, band.end)
    taken = z3.If(z3.Or(low > band.first, high > top), -1, high * band.size)
    quotients = z3.And(ceiling_of(edge, band.size, low), floor_of(total, band.size, top))
    return z3.If(band.need == 0, result == edge, z3.And(quotients, result == taken))


def below(band: Band, edge: Term, high: Term, result: Term) -> Formula:
    """result == chain.edge_below(edge, …), where high = edge//size."""
    low = least(high - band.need, band.first)
    taken = z3.If(z3.Or(high < band.end, low < 0), -1, low * band.size)
    return z3.If(band.need == 0, result == edge, z3.And(floor_of(edge, band.size, high), result == taken))


def window_of(low: Term, high: Term, band: Band, lean: Term) -> tuple[Term, Term]:
    """chain.window(low, high, need, first, end, lean), as a pair of terms."""
    slack = high - low - band.need
    # slack // 2, without division of unknowns: z3's division by 2 is exact
    start = low + z3.If(lean == 0, slack / 2, z3.If(lean < 0, 0, slack))
    extra = largest(0, band.need - (band.end - band.first))
    room_below, room_above = band.first - low, high - band.end
    down = least(extra, room_below)
    up = least(extra, room_above)
    goes_down = z3.Or(lean < 0, z3.And(lean == 0, room_below > room_above))
    first = z3.If(goes_down, band.first - down, band.first - (extra - up))
    end = z3.If(goes_down, band.end + (extra - down), band.end + up)
    fresh = band.end <= band.first
    return z3.If(fresh, start, first), z3.If(fresh, start + band.need, end)


def legal(band: Band, edge: Term, total: Term, low: Term, high: Term, after: Term) -> Formula:
    """[low, high) is a window of the band above ``edge``, and ``after`` the edge it leaves; a band that needs nothing has none."""
    stands = z3.And(
        edge <= low * band.size,
        low + band.need <= high,
        low <= band.first,
        band.end <= high,
        high * band.size <= total,
        after == high * band.size,
    )
    return z3.If(band.need == 0, after == edge, stands)


# --- lemmas ------------------------------------------------------------------------------------------------------------


def _walk(bands: list[Band], sink: Term, total: Term) -> tuple[list[Formula], list[Term]]:
    """The walk of ``refused_at``: relations, each guarded by the success of the one before, and the edges."""
    edges, steps = [sink], []
    for at, band in enumerate(bands):
        low, top, edge = z3.Ints(f"low{at} top{at} edge{at}")
        steps.append(above(band, edges[-1], total, low, top, edge))
        edges.append(edge)
    return steps, edges


def refused_means_impossible(count: int, wrong: bool = False) -> Formula:
    """Any placement at all ⇒ the walk never says -1 and ends no higher than the placement."""
    bands, (sink, total) = [Band.of(str(at)) for at in range(count)], z3.Ints("sink total")
    steps, edges = _walk(bands, sink, total)
    rival, given = sink, [0 <= sink, sink <= total, total <= NOWHERE]
    for at, band in enumerate(bands):
        low, high, after = z3.Ints(f"rival_low{at} rival_high{at} rival_edge{at}")
        given += [band.sane, legal(band, rival, total, low, high, after)]
        rival = after
    # step by step: the walk's edge stays at or below the rival's
    claims, rival = [], sink
    known = list(given)
    for at in range(count):
        known.append(steps[at])
        rival = z3.Int(f"rival_edge{at}")
        good = z3.And(0 <= edges[at + 1], edges[at + 1] <= rival - (1 if wrong else 0))
        claims.append(z3.Implies(z3.And(*known), good))
        known.append(good)
    return z3.And(*claims)


def walk_is_a_placement(count: int, wrong: bool = False) -> Formula:
    """Where the walk succeeds, its own windows are legal: disjoint, in order, above the sink, inside the arena."""
    bands, (sink, total) = [Band.of(str(at)) for at in range(count)], z3.Ints("sink total")
    steps, edges = _walk(bands, sink, total)
    known = [0 <= sink, sink <= total, *(band.sane for band in bands), *steps, *(edge >= 0 for edge in edges)]
    good = []
    for at, band in enumerate(bands):
        low = z3.Int(f"low{at}")
        high = largest(low + band.need, band.end) - (1 if wrong else 0)
        good.append(legal(band, edges[at], total, low, high, edges[at + 1]))
    return z3.Implies(z3.And(*known), z3.And(*good))


def windows_step(wrong: bool = False) -> Formula:
    """One step of ``windows``: from edge <= ceiling, the window is legal and its edge stays below the next ceiling."""
    band, (edge, bound, ceiling) = Band.of(""), z3.Ints("edge bound ceiling")
    low, high, lean = z3.Ints("low high lean")
    known = [band.sane, band.need >= 1, 0 <= edge, -1 <= lean, lean <= 1, ceiling <= NOWHERE]
    known += [below(band, ceiling, high, bound), ceiling_of(edge, band.size, low), bound >= 0]
    known += [edge <= (ceiling if wrong else bound)]
    start, stop = window_of(low, high, band, lean)
    hull_kept = z3.Or(band.end <= band.first, z3.And(start <= band.first, band.end <= stop))
    good = z3.And(low <= start, stop <= high, stop - start >= band.need, hull_kept)
    stays = z3.And(start * band.size >= edge, stop * band.size <= ceiling)
    return z3.Implies(z3.And(*known), z3.And(good, stays))


def ceilings_are_reached(wrong: bool = False) -> Formula:
    """One band: it can be walked from ``edge`` to at most ``ceiling`` exactly when edge <= edge_below(ceiling)."""
    band, (edge, ceiling, bound, after) = Band.of(""), z3.Ints("edge ceiling bound after")
    low, top, high = z3.Ints("low top high")
    known = [band.sane, 0 <= edge, edge <= ceiling, ceiling <= NOWHERE]
    known += [above(band, edge, ceiling, low, top, after), below(band, ceiling, high, bound)]
    up = z3.And(after >= 0, after <= ceiling)
    down = edge < bound if wrong else edge <= bound
    return z3.Implies(z3.And(*known), up == down)


def walking_is_monotone(wrong: bool = False) -> Formula:
    """A higher edge, a larger need or a wider hull never gives a lower result, nor a yes where there was a no."""
    band, wider, (edge, later, total) = Band.of("a"), Band.of("b"), z3.Ints("edge later total")
    low, low_b, top, result, result_b = z3.Ints("low low_b top result result_b")
    known = [band.sane, wider.sane, band.size == wider.size, 0 <= edge, edge <= later, later <= total]
    known += [band.need <= wider.need, wider.first <= band.first]
    known += [] if wrong else [band.end <= wider.end]
    known += [total <= NOWHERE, above(band, edge, total, low, top, result), above(wider, later, total, low_b, top, result_b)]
    # a band in need of nothing is skipped, hull or not: it has no hull then
    known += [z3.Implies(band.need == 0, band.end == 0), z3.Implies(wider.need == 0, wider.end == 0)]
    return z3.Implies(z3.And(*known, result_b >= 0), z3.And(result >= 0, result <= result_b))


def room_is_most(wrong: bool = False) -> Formula:
    """Between the walked edge below and the ceiling above, room = high - low frames fit, and no window of more does."""
    band, (edge, ceiling, low, high) = Band.of(""), z3.Ints("edge ceiling low high")
    rival_low, rival_high = z3.Ints("rival_low rival_high")
    known = [band.size >= 1, 0 <= edge, edge <= ceiling, ceiling_of(edge, band.size, low), floor_of(ceiling, band.size, high)]
    room = largest(0, high - low)
    fits = z3.Implies(room > 0, z3.And(low * band.size >= edge, (low + room) * band.size <= ceiling))
    rival = z3.And(rival_low * band.size >= edge, rival_high * band.size <= ceiling, rival_low <= rival_high)
    most = z3.Implies(rival, rival_high - rival_low <= (room - 1 if wrong else room))
    return z3.Implies(z3.And(*known), z3.And(fits, most))


def step_is_least(wrong: bool = False) -> Formula:
    """One band: from an edge at or below a rival's, the walk ends at or below the rival's window; for any number of bands."""
    band, (edge, rival, total) = Band.of(""), z3.Ints("edge rival total")
    low, top, result, rival_low, rival_high, rival_edge = z3.Ints("low top result rival_low rival_high rival_edge")
    known = [band.sane, 0 <= edge, edge <= rival, rival <= total, total <= NOWHERE]
    known += [legal(band, rival, total, rival_low, rival_high, rival_edge), above(band, edge, total, low, top, result)]
    return z3.Implies(z3.And(*known), z3.And(0 <= result, result < rival_edge if wrong else result <= rival_edge))
