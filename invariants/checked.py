"""The core and the reference side by side: every event given to both, every claim about the transition checked.

One ``Checked`` is one arena. ``step`` gives an event to the core, compares its verdict with what the reference expects, lets the
reference carry out the encoded plan on real bytes, and yields each broken claim. Random walks, stateful machines, mutants and
campaigns all drive this one checker; the ids are those of ``catalogue``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
from attrs import define, evolve, field

from core_pure.admission import AdmissionBudget, fits_empty, request_pages
from core_pure.advance import allocate
from core_pure.errors import ArenaError
from core_pure.event import Event, apply
from core_pure.fits import NOW, RELIEF, Refusal, fits, obtainable
from core_pure.layout import Layout
from core_pure.rollback import undo
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import Violation, verify

from . import brute
from .expected import chain_of, demand_of, expectation
from .interpreter import run_plan
from .plain import violations
from .reference import OUTCOME, REFUSAL, Reference

CAPACITY_EVERY, ADMISSION_EVERY, VERIFY_EVERY, FIGURES_EVERY, OLD_EVERY = 16, 32, 16, 10, 12
"""Claims that need many questions are asked in one transition of so many; everything else in each."""

HAZARDS = ("encoding", "number", "wait", "source", "target", "row", "fill")
SAYINGS = (
    ("lost its bytes", "BYTE-1"),
    ("changed under its reader", "BYTE-1"),
    ("the sink was written", "SINK-2"),
    ("handed out dirty", "BYTE-2"),
    ("is no copy", "BYTE-1"),
    ("is in use", "PLAN-1"),
    ("table differs", "PLAN-2"),
    ("bytes moved", "LIMIT-1"),
)


def content_of(state: ArenaState) -> bytes:
    """A fingerprint of everything a state holds, fences left out; cheaper than ``content_digest`` on tiny arenas. 8 bytes."""
    parts = []
    for band in state.bands:
        held = band.held
        counts = (band.live, band.spare, band.fresh, band.low, band.high, held.count)
        kept = (sorted(held.pins.items()), [(batch.fence, list(batch.frames)) for batch in held.batches]) if held.end else ()
        parts += [
            repr((counts, kept)).encode(),
            band.page_of.read(slice(band.low, band.high)).tobytes(),
            np.maximum(band.frame_of.copy(), -1).tobytes(),  # below 0 is unbound, whatever the mark
            band.ids.read(slice(0, band.spare)).tobytes(),
            band.blocks.tobytes(),
        ]
    return blake2b(b"|".join(parts), digest_size=8).digest()


def claim_of(text: str) -> str:
    """The claim that a sentence of the reference or the interpreter is about."""
    if text.startswith("undo:"):
        return "UNDO-1"
    if text.split(":", 1)[0] in HAZARDS:
        return "PLAN-1"
    return next((claim for words, claim in SAYINGS if words in text), "SETS-1")


@define
class Checked:
    """state: the core's. model: the reference's. steps: transitions checked. content: digest of ``state``'s contents."""

    state: ArenaState
    model: Reference
    content: bytes
    steps: int = 0
    result: Outcome | Refusal | ArenaError | None = field(default=None)
    moved: int = 0  # frames moved by the last step
    kept: list[tuple[ArenaState, bytes]] = field(factory=list)  # old values, and what they were
    thorough: str = ""  # the claim to ask in every transition, for shrinking

    def due(self, every: int, *claims: str) -> bool:
        """Whether claims that are asked once in so many transitions are asked in this one."""
        return self.thorough in claims or self.steps % every == 0

    @classmethod
    def of(cls, layout: Layout) -> Checked:
        """An empty arena."""
        state = initial(layout)
        return cls(state, Reference(layout), content_of(state))

    def step(self, event: Event) -> Iterator[Violation]:
        """Give one event to both. Stops at the first stage that finds something; then core and reference differ."""
        self.steps += 1
        self.moved = 0
        expected = expectation(self.model, event)
        try:
            self.result = apply(self.state, event)
        except ArenaError as error:
            self.result = error
        except Exception as error:
            self.result = None
            yield Violation("MISUSE-1", f"{event.kind} crashed: {error!r}")
            return
        found = [*self._verdict(event, expected), *self._inputs(event)]
        if not found:
            found = list(self._settle(event))
        yield from found

    # --- stages --------------------------------------------------------------------------------------------------------

    def _verdict(self, event: Event, expected: frozenset[str]) -> Iterator[Violation]:
        names = {Outcome: "outcome", Refusal: "refusal"}
        said = names.get(type(self.result), type(self.result).__name__)
        if said not in expected:
            claim = "FIT-1" if {said, *expected} <= {*OUTCOME, *REFUSAL} or said == "PromiseBroken" else "MISUSE-1"
            detail = "" if isinstance(self.result, Outcome) else f" ({self.result})"
            yield Violation(claim, f"{event.kind} {_short(event)}: said {said}{detail}, expected {sorted(expected)}")

    def _inputs(self, event: Event) -> Iterator[Violation]:
        if content_of(self.state) != self.content:
            yield Violation("INPUT-1", f"{event.kind} {_short(event)} changed the value that it was given")

    def _settle(self, event: Event) -> Iterator[Violation]:
        if isinstance(self.result, Refusal):
            yield from refusal_is_true(self.model, event, self.result, self.due(FIGURES_EVERY, "REFUSE-1"))
        if not isinstance(self.result, Outcome):
            return
        outcome = self.result
        self.moved = outcome.plan.moves
        yield from relief_is_optimal(self.model, event, outcome)
        gone = set(event.pages.tolist()) if event.kind == "advance" else set()
        before = [{p: f for p, f in band.pages.items() if p not in gone} for band in self.model.bands]
        old = self.state
        try:
            absorb(self.model, event, self.state, outcome)
            if outcome.plan.waves and event.kind != "compact":
                undone(self.model, old, before, outcome)
        except AssertionError as error:
            yield Violation(claim_of(str(error)), f"{event.kind} {_short(event)}: {error}")
            return
        self.state, self.content = outcome.state, content_of(outcome.state)
        yield from violations(self.state)
        yield from agreement(self.model, self.state)
        if self.due(VERIFY_EVERY):
            yield from verify(self.state)
        if self.due(OLD_EVERY, "INPUT-1"):
            yield from self._old_values()
        if self.due(CAPACITY_EVERY, "CAP-1"):
            yield from self._capacity()
        if self.due(ADMISSION_EVERY, "ADMIT-1", "PROGRESS-1"):
            many = self.thorough in ("ADMIT-1", "PROGRESS-1")
            for turn in range(40) if many else (self.steps // ADMISSION_EVERY,):
                yield from prefix_is_allocatable(self.state, turn)

    def _capacity(self) -> Iterator[Violation]:
        turns = range(len(self.state.bands)) if self.thorough == "CAP-1" else (self.steps // CAPACITY_EVERY,)
        for turn in turns:
            yield from capacity_is_obtainable(self.state, self.model, turn)

    def _old_values(self) -> Iterator[Violation]:
        """INPUT-1 for values older than the last: each is still what it was."""
        for state, content in self.kept:
            if content_of(state) != content:
                yield Violation("INPUT-1", "a value held for a while is not what it was")
        self.kept = [*self.kept[-1:], (self.state, self.content)]


def _short(event: Event) -> str:
    parts = {"demand": event.demand, "pages": tuple(event.pages.tolist()), "reader": event.reader, "number": event.number}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value not in ((), None))


# --- claims about one transition ---------------------------------------------------------------------------------------


def relief_is_optimal(model: Reference, event: Event, outcome: Outcome) -> Iterator[Violation]:
    """RELIEF-1: bytes moved = the least over all windows; WAIT-1: a reader is waited for only when nothing fits now."""
    if event.kind not in ("allocate", "advance", "release", "resize", "copy"):
        return
    plan = outcome.plan
    moved = sum(model.layout.bands[band].frame_bytes for wave in plan.waves for band in wave[:, 0].tolist())
    most = max(1, len(model.bands) - (event.kind != "resize"))  # only under a falling top does the last band move down
    if len(plan.waves) > most:
        yield Violation("RELIEF-1", f"{len(plan.waves)} waves > {most} for {len(model.bands)} bands")
    demand = demand_of(model, event)
    released = () if event.kind == "copy" else tuple(event.pages.tolist())
    if event.reader is not None and any(demand):
        leaving = chain_of(model, demand, released, event.reader)
        wait = None if brute.feasible(leaving, brute.NOW) else event.reader
        least = 0 if wait is None else brute.optimum_bytes(leaving, brute.after(event.reader))
        wait = event.reader if event.kind == "copy" else wait  # the reader may be writing what is copied
        if plan.wait != wait:
            yield Violation("WAIT-1", f"waits for {plan.wait}, needed is {wait}")
    elif moved:
        chain = chain_of(model, demand, released)
        if event.kind == "resize":
            chain = evolve(chain, total_bytes=outcome.state.layout.total_bytes)
        least = brute.optimum_bytes(chain)
    else:
        least = 0
    if moved != least:
        yield Violation("RELIEF-1", f"moved {moved} bytes != {least}, the least that makes {demand} fit")


def absorb(model: Reference, event: Event, before: ArenaState, outcome: Outcome) -> None:
    """Let the reference carry the plan out. Raises: AssertionError where a byte, a row or a hazard is wrong."""
    plan, pages = outcome.plan, event.pages.tolist()
    match event.kind:
        case "allocate" | "release" | "advance":
            reader = model.launched + 1 if event.flag else event.reader
            demand = demand_of(model, event)
            model.absorb(plan.words.tolist(), released=pages, pages=outcome.pages or None, demand=demand, reader=reader)
        case "copy":
            demand = demand_of(model, event)
            now = event.reader is None or brute.feasible(chain_of(model, demand), brute.NOW)
            words = evolve(plan, wait=None).words if now else plan.words  # a wait for the bytes alone frees no frame
            model.absorb(words.tolist(), pages=outcome.pages, demand=demand, reader=None if now else event.reader)
        case "compact":
            _absorb_compact(model, event, outcome)
        case "pin" | "unpin":
            model.pin(pages, 1 if event.kind == "pin" else -1)
        case "launch":
            model.launched += 1
        case "retire":
            model.retire(event.number or 0)
        case "resize":
            model.absorb(plan.words.tolist())
            assert outcome.state.layout.total_bytes == (event.number or 0) // 4096 * 4096, "the resize did not take effect"
            model.layout = outcome.state.layout
            model.check()
        case "clear":
            _absorb_clear(model, outcome)
            model.retired = model.launched
    if event.kind in ("pin", "unpin", "launch", "retire"):
        assert plan.is_empty, f"row: {event.kind} gives a plan with effects: {plan}"


def _absorb_clear(model: Reference, outcome: Outcome) -> None:
    live = sorted(page for band in model.bands for page in band.pages)
    rows = sorted(map(tuple, outcome.plan.rows.tolist()))
    assert rows == [(page, -1) for page in live], f"row: clear unbinds {rows}, live are {live}"
    fresh = Reference(model.layout)
    model.bands, model.contents, model.left_to_read = fresh.bands, {}, {}
    model.buffer, model.table = bytearray(model.buffer[:0] + b"\xa5" * len(model.buffer)), fresh.table


def _absorb_compact(model: Reference, event: Event, outcome: Outcome) -> None:
    """Without ``written`` the plan waits for the reader; with it, vacated frames wait and the written pages stay."""
    plan, pages, hold = outcome.plan, event.pages.tolist(), event.reader if event.flag else None
    moving = bool(plan.waves)
    wanted = event.reader if moving and not event.flag else None
    assert plan.wait == wanted, f"wait: compact beside reader {event.reader} waits for {plan.wait}, needed is {wanted}"
    left = {
        (int(band), int(source)): bytes(model._read(int(band), int(source)))
        for wave in plan.waves
        for band, source, _ in wave.tolist()
    }
    if event.flag:
        stay = {(at, band.pages[page]) for at, band in enumerate(model.bands) for page in pages if page in band.pages}
        assert not stay & left.keys(), f"source: compact moves {stay & left.keys()}, which the reader writes"
    model.absorb(evolve(plan, wait=None).words.tolist(), bytes_limit=event.number)
    if hold is not None:
        for (band, source), content in left.items():
            model.bands[band].waiting[source] = hold
            model.left_to_read[band, source] = content
        model.check()


def undone(model: Reference, old: ArenaState, before: list[dict[int, int]], outcome: Outcome) -> None:
    """UNDO-1: ``rollback.undo`` gives the table before, and the bytes of every page that lived before and after.

    Raises: AssertionError, starting with "undo:".
    """
    words = undo(old, outcome.plan).words.tolist()
    buffer, table = bytearray(model.buffer), list(model.table)
    kept = {page for pages in before for page in pages}
    in_use = {(at, frame) for at, band in enumerate(model.bands) for page, frame in band.pages.items() if page in kept}
    in_use |= {(at, frame) for at, band in enumerate(model.bands) for frame in band.waiting}
    try:
        run_plan(words, buffer, table, old.layout, in_use)
    except AssertionError as error:
        raise AssertionError(f"undo: {error}") from error
    assert table == old.table().tolist(), "undo: the table is not what it was"
    for at, pages in enumerate(before):
        for page, frame in pages.items():
            size = old.layout.bands[at].frame_bytes
            there = page in model.bands[at].pages
            assert not there or bytes(buffer[frame * size : (frame + 1) * size]) == model.contents[page], f"undo: page {page}"


def agreement(model: Reference, state: ArenaState) -> Iterator[Violation]:
    """SETS-1: pages, quarantine, pins and fences of the core are those of the reference; PLAN-2: so is the table."""
    pages, waiting, pins = [], [], []
    for band in state.bands:
        base = band.home.id_base
        pages.append({base + i: frame for i, frame in enumerate(band.frame_of.copy().tolist()) if frame > 0})
        waiting.append({int(frame): batch.fence for batch in band.held.batches for frame in batch.frames})
        pins.append({base + index: count for index, count in band.held.pins.items()})
    yield from (Violation("SETS-1", text) for text in model.differences(pages, waiting, pins))
    if (state.launched, state.retired) != (model.launched, model.retired):
        fences = (model.launched, model.retired)
        yield Violation("SETS-1", f"(launched, retired) {(state.launched, state.retired)} != {fences}")
    if state.table().tolist() != list(model.table):
        yield Violation("PLAN-2", f"table {state.table().tolist()} != replayed {list(model.table)}")


def refusal_is_true(model: Reference, event: Event, refusal: Refusal, figures: bool) -> Iterator[Violation]:
    """REFUSE-1: what a refusal says can be had is what a packing exists for, and one page more is not; its fence helps."""
    if event.kind not in ("allocate", "advance") or len(event.pages) or event.flag:
        return
    demand, joint = event.demand, tuple(band.joint for band in refusal.bands)
    if [band.wanted for band in refusal.bands] != list(demand):
        yield Violation("REFUSE-1", f"says {[band.wanted for band in refusal.bands]} were wanted, {demand} were")
    fences = sorted({fence for band in model.bands for fence in band.waiting.values()})
    helping = [k for k in fences if model.fits(demand, fence=k)]
    if refusal.fence != (helping[0] if helping else None):
        yield Violation("REFUSE-1", f"names fence {refusal.fence}; the first that helps is {helping[:1]}")
    most = max(joint)
    more = tuple(min(pages, most + 1) for pages in demand)
    if any(have > want for have, want in zip(joint, demand, strict=True)) or (refusal.mode == RELIEF and not model.fits(joint)):
        yield Violation("REFUSE-1", f"{joint} jointly, which cannot be had (wanted {demand})")
    elif refusal.mode == RELIEF and more != joint and model.fits(more):
        yield Violation("REFUSE-1", f"only {joint} jointly, but {more} fits")
    if not figures:
        return
    for index, band in enumerate(refusal.bands):
        free = [page for each in model.bands for page in each.pages if not each.pins[page]]
        yield from _most(model, index, band.now, "REFUSE-1 now", now=True)
        yield from _most(model, index, band.after_relief, "REFUSE-1 after relief")
        yield from _most(model, index, band.after_fence, "REFUSE-1 after waiting", fence=model.launched)
        yield from _most(model, index, band.after_eviction, "REFUSE-1 after eviction", leaving=free)


def _most(
    model: Reference, index: int, said: int, what: str, *, now: bool = False, fence: int = -1, leaving: Iterable[int] = ()
) -> Iterator[Violation]:
    """``said`` pages of one band fit, and one more does not."""
    claim, name = what.split(" ", 1)

    def holds(pages: int) -> bool:
        demand = tuple(pages if at == index else 0 for at in range(len(model.bands)))
        return model.fits(demand, now=now, fence=fence, leaving=leaving)

    if said and not holds(said):
        yield Violation(claim, f"{said} pages of band {index} {name}, which no packing has")
    if holds(said + 1):
        yield Violation(claim, f"only {said} pages of band {index} {name}, but {said + 1} fit")


def _refused(state: ArenaState, demand: tuple[int, ...]) -> bool:
    """Whether an allocation is refused; one that breaks its promise is."""
    try:
        return isinstance(allocate(state, demand), Refusal)
    except ArenaError:
        return True


def capacity_is_obtainable(state: ArenaState, model: Reference, turn: int) -> Iterator[Violation]:
    """CAP-1: the capacity reported for a band is what an allocation gets, and one more is refused."""
    index = turn % len(state.bands)
    for mode in (NOW, RELIEF):
        said = obtainable(state, index, mode)
        yield from _most(model, index, said, f"CAP-1 {mode}", now=mode == NOW)
    demand = tuple(said if at == index else 0 for at in range(len(state.bands)))
    if said and _refused(state, demand):
        yield Violation("CAP-1", f"{said} pages of band {index} reported, but the allocation is refused")


def prefix_is_allocatable(state: ArenaState, turn: int) -> Iterator[Violation]:
    """ADMIT-1: what an admission budget accepted, request by request, is allocated together; PROGRESS-1 on empty arenas."""
    budget, total = AdmissionBudget.of(state, 4), (0,) * len(state.bands)
    for tokens in (1 + turn % 3, 2, 1 + turn % 5, 1):
        folded = budget.fold(tokens, turn % 2)
        if not isinstance(folded, Refusal):
            budget, asked = folded, request_pages(state.layout, tokens + turn % 2, 4)
            total = tuple(a + b for a, b in zip(total, asked, strict=True))
    if budget.taken != total:
        yield Violation("ADMIT-1", f"the requests accepted take {total} pages, the budget says {budget.taken}")
    if _refused(state, budget.taken):
        yield Violation("ADMIT-1", f"the accepted prefix {budget.taken} is refused together")
    demand = tuple((turn * (7 + 4 * at) >> at) % (most + 2) for at, most in enumerate(state.layout.frames_max))
    demand = tuple(pages if at == turn % len(demand) else pages // 4 for at, pages in enumerate(demand))
    empty = initial(state.layout)
    alone, served = fits_empty(state.layout, demand), not _refused(empty, demand)
    if alone != served or alone != (not isinstance(fits(empty, demand), Refusal)):
        yield Violation("PROGRESS-1", f"{demand} alone in the empty arena: fits_empty {alone} != served {served}")


def pages_of(values: list[int]) -> np.ndarray:
    """Page ids as an event holds them."""
    return np.array(values, np.int64)
