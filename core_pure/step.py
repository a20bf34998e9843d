"""One serving step in arrays: who finished, who gets new tokens, which window pages slid out; one plan, no loop over requests.

``step`` is the whole path of a batch through the core: it frees what finished sequences and slid windows hold, takes the
pages that the new tokens need, as one ``advance``, and writes them into the lease rows. What the device needs besides the
plan are the row cells that changed; block tables and write slots follow from rows and the page table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from .advance import NOBODY, advance_split
from .errors import LeaseError, PinError
from .event import NO_PAGES, Event, apply, passed
from .fits import Refusal
from .layout import BandSpec, Demand
from .leases import (
    FIRST_BAND,
    HANDLE,
    NONE,
    TOKENS,
    Leases,
    RowWrite,
    Slots,
    closed,
    flat,
    hold_again,
    inherited,
    joined,
    least,
    let_go,
    most,
    open_leases,
    pages_held,
    rows_after,
    slots_of,
    whole_numbers,
    with_facts,
    with_rows,
)
from .plan import Plan
from .state import ArenaState, Outcome, Pages

Counts = NDArray[np.int64]
NO_CELLS: NDArray[np.intp] = np.empty(0, np.intp)


@frozen(eq=False)
class StepOutcome:
    """What a step gives. slots, before, after: per request of the step, its row and its tokens before and after.

    writes: per band the row cells that changed. pages: new ids per band.
    """

    state: ArenaState = field(repr=False)
    leases: Leases = field(repr=False)
    plan: Plan
    pages: tuple[Pages, ...]
    writes: tuple[RowWrite, ...] = field(repr=False)
    slots: Slots
    before: Counts
    after: Counts
    event: Event


class _Pages(NamedTuple):
    """One band's page positions per request: held [begin, end), begin after sliding, and pages to take beyond end."""

    begin: Counts
    end: Counts
    cut: Counts
    more: Counts


def _positions(spec: BandSpec, band: int, facts: Counts, after: Counts, committed: Counts) -> _Pages:
    begin, end = facts[:, FIRST_BAND + 2 * band], facts[:, FIRST_BAND + 2 * band + 1]
    if not spec.grows:
        return _Pages(begin, end, begin, (after > facts[:, TOKENS]) * (spec.pages_fixed - end))
    pages = after if spec.slots_per_page == 1 else -(-after // spec.slots_per_page)
    more = np.maximum(pages - end, 0)
    if spec.window is None:
        return _Pages(begin, end, begin, more)
    visible = first_visible(spec, committed)
    return _Pages(begin, end, np.minimum(np.maximum(begin, visible // spec.slots_per_page), end), more)


def first_visible(spec: BandSpec, tokens: Counts) -> Counts:
    """``BandSpec.first_visible`` of many lengths at once."""
    if spec.window is None:
        return np.zeros_like(tokens)
    if spec.retention == "chunked":
        return tokens // spec.window * spec.window
    return np.maximum(0, tokens - spec.window + 1)


def _check_whole(leases: Leases, facts: Counts, new: Counts) -> None:
    """Raise LeaseError where a lease gets tokens but is a part that lacks what they would see (case F37)."""
    before = facts[:, TOKENS]
    for band, spec in enumerate(leases.layout.bands):
        begin, end = facts[:, FIRST_BAND + 2 * band], facts[:, FIRST_BAND + 2 * band + 1]
        lacks = begin * spec.slots_per_page > first_visible(spec, before) if spec.grows else begin == end
        lacks &= (before > 0) & (new > 0)
        if lacks.any():
            raise LeaseError(
                f"{spec.name}: lease {int(facts[lacks.argmax(), HANDLE])} was split and lacks what token "
                f"{int(before[lacks.argmax()])} would see; serve the lease that holds it, or start again from nothing"
            )


def _asked(leases: Leases, facts: Counts, new_tokens: object, slid: object | None) -> tuple[Counts, list[_Pages]]:
    new = whole_numbers(new_tokens, "new tokens")
    before = facts[:, TOKENS]
    if new.shape != before.shape or least(new) < 0:
        raise LeaseError(f"{len(before)} leases, but new tokens {new.shape}, least {new.min() if new.size else 0}")
    if leases.has_parts:
        _check_whole(leases, facts, new)
    after = before + new
    longest = max(most(after), most(new))  # of both, because a sum may have wrapped
    if longest > leases.context:
        raise LeaseError(f"{longest} tokens exceed the page table's {leases.context}; trim, or build with more context")
    committed = before
    if slid is not None:
        committed = whole_numbers(slid, "slid")
        if committed.shape != before.shape or (committed > before).any() or (committed < 0).any():
            raise LeaseError("slid: committed tokens per lease, from 0 to what the lease holds")
    return after, [_positions(spec, band, facts, after, committed) for band, spec in enumerate(leases.layout.bands)]


def pages_wanted(leases: Leases, handles: object, new_tokens: object, slid: object | None = None) -> Demand:
    """Pages per band that a step with these tokens takes beyond what its slide frees, at least 0 each.

    Where a band's slide frees more than the step takes, the step may fit although ``fits`` of this demand says no; never the
    other way round. Raises: LeaseStale, LeaseError.
    """
    slots, facts = slots_of(leases, handles)
    _, asked = _asked(leases, facts, new_tokens, slid)
    wanted = []
    for band, p in enumerate(asked):
        freed = NOBODY
        if p.cut is not p.begin:  # a page with another holder is not freed when it slides out of one window
            _, freed = let_go(leases, pages_held(leases, band, slots, p.begin, p.cut))
        wanted.append(max(0, int(np.add.reduce(p.more)) - len(freed)))
    return tuple(wanted)


def step(
    state: ArenaState,
    leases: Leases,
    handles: object,
    new_tokens: object,
    finished: object = NONE,
    slid: object | None = None,
    *,
    reader: int | None = None,
    withhold: bool = False,
) -> StepOutcome | Refusal:
    """One serving step.

    Args: handles: int64[n] leases, each once. new_tokens: int[n], tokens that each gets now (prompt chunk, 1 for decode, 0).
    finished: leases that end; none of ``handles``. slid: int[n], tokens that are final per lease; window pages that no
    token after them can see are released (default: all tokens held before the step). reader, withhold: see ``advance``.
    Returns: a StepOutcome, or a Refusal; then nothing changed. Raises: LeaseStale, LeaseError, FenceError, PagePinned.
    Cost: O(pages changed + requests).
    """
    served, ended = whole_numbers(handles, "lease handles"), whole_numbers(finished, "finished leases")
    together, known = slots_of(leases, np.concatenate((served, ended)) if len(ended) else served)
    if np.count_nonzero(np.bincount(together) > 1):
        raise LeaseError("a lease is named twice in one step, or both served and finished")
    known.setflags(write=False)  # the older version keeps it, and callers see its tokens
    slots, leaving, facts = together[: len(served)], together[len(served) :], known[: len(served)]
    after, asked = _asked(leases, facts, new_tokens, slid)
    held, freed = _let_go_in_step(leases, slots, leaving, known[len(served) :], asked)
    demand = tuple([int(np.add.reduce(p.more)) for p in asked])
    bases = leases.layout.id_bases
    outcome = advance_split(state, {b: pages.astype(np.intp) - bases[b] for b, pages in freed.items()}, demand, reader, withhold)
    if isinstance(outcome, Refusal):
        return outcome
    event = Event("advance", None, reader, demand, _event_pages(freed), withhold)
    outcome = passed(outcome, event)
    writes, updated = [], known.copy()
    for band, p in enumerate(asked):
        write = _row_write(leases.widths[band], slots, p, outcome.pages[band])
        if len(leaving) and not leases.layout.bands[band].grows:  # else a later lease would read these states
            write = joined(write, _emptied(leaving, leases.widths[band]))
        writes.append(write)
        if len(outcome.pages[band]):
            updated[: len(served), FIRST_BAND + 2 * band + 1] += p.more
        if p.cut is not p.begin:
            updated[: len(served), FIRST_BAND + 2 * band] = p.cut
    updated[: len(served), TOKENS] = after
    updated[len(served) :] = 0
    idle, fresh = closed(held, leaving)
    rows = rows_after(held, tuple(writes))
    held = with_facts(held, held.facts.write(together, updated, known), rows, idle, fresh, held.serial)
    return StepOutcome(outcome.state, held, outcome.plan, outcome.pages, tuple(writes), slots, facts[:, TOKENS], after, event)


def _let_go_in_step(
    leases: Leases, slots: Slots, leaving: Slots, facts: Counts, asked: list[_Pages]
) -> tuple[Leases, dict[int, Pages]]:
    """Page ids per band that the step frees: all of the leases that end (``leaving``, ``facts``), and what slid out."""
    freed: dict[int, Pages] = {}
    for band, p in enumerate(asked):
        pages = pages_held(leases, band, leaving, facts[:, FIRST_BAND + 2 * band], facts[:, FIRST_BAND + 2 * band + 1])
        if p.cut is not p.begin:
            pages = np.concatenate((pages, pages_held(leases, band, slots, p.begin, p.cut)))
        leases, pages = let_go(leases, pages)
        if len(pages):
            freed[band] = pages
    return leases, freed


def _event_pages(freed: Mapping[int, Pages]) -> NDArray[np.int64]:
    """Page ids of all bands in one row."""
    return np.concatenate(list(freed.values())).astype(np.int64) if freed else NO_PAGES


def _emptied(leaving: Slots, width: int) -> RowWrite:
    """All cells of these rows, zeroed."""
    cells = leaving if width == 1 else flat(leaving * width, np.full(len(leaving), width))
    return RowWrite(cells, np.zeros(len(cells), np.int32))


def _cells(width: int, slots: Slots, start: Counts, counts: Counts, total: int) -> NDArray[np.intp]:
    """Flat row positions of ``counts`` pages from ``start`` on, request after request; ``total`` of them."""
    if not total:
        return NO_CELLS
    if total < len(slots):  # most requests take none
        taking = counts.nonzero()[0]
        slots, start, counts = slots[taking], start[taking], counts[taking]
    return flat(slots * width + start, counts)


def _row_write(width: int, slots: Slots, p: _Pages, pages: Pages) -> RowWrite:
    """New pages at their positions; slid positions are zeroed, so that a masked kernel reads the sink there."""
    new = _cells(width, slots, p.end, p.more, len(pages))
    if p.cut is p.begin or not np.count_nonzero(gone := p.cut - p.begin):
        return RowWrite(new, pages)
    old = flat(slots * width + p.begin, gone)
    return RowWrite(np.concatenate((old, new)), np.concatenate((np.zeros(len(old), np.int32), pages)))


# --- what kernels read -------------------------------------------------------------------------------------------------


def write_slots(step: StepOutcome, band: int) -> NDArray[np.int64]:
    """Physical slots of the step's new tokens, request after request, int64[sum of new tokens].

    In a state or encoder band: the first frame of each request, int64[n]; the sink for one without tokens, whose row may
    still name the pages of whoever had it before.
    """
    spec, width = step.leases.layout.bands[band], step.leases.widths[band]
    rows = step.leases.rows[band]
    if not spec.grows:
        first = np.where(step.after > 0, rows.read(step.slots * width), 0)
        return band_frames(step.state, band, first).astype(np.int64)
    counts = step.after - step.before
    single = len(counts) and int(counts.min()) == 1 == int(counts.max())
    slots, tokens = (step.slots, step.before) if single else (np.repeat(step.slots, counts), flat(step.before, counts))
    pages = rows.read(slots * width + tokens // spec.slots_per_page)
    return band_frames(step.state, band, pages).astype(np.int64) * spec.slots_per_page + tokens % spec.slots_per_page


def band_frames(state: ArenaState, band: int, pages: NDArray[np.int32]) -> NDArray[np.int32]:
    """Frames of page ids of one band, of any shape; 0 (the sink) for id 0. ``frames_of`` without the search for the band."""
    held = state.bands[band]
    index = np.maximum(pages.astype(np.intp) - held.home.id_base, 0)  # cell 0 is nobody's
    frames: NDArray[np.int32] = np.maximum(held.frame_of.read(index), 0)
    return frames


def block_table(state: ArenaState, leases: Leases, slots: Slots, band: int, columns: int) -> NDArray[np.int32]:
    """Frames by page position, int32[n, columns]; 0 (the sink) where a lease holds no page."""
    width = leases.widths[band]
    if columns > width:
        raise LeaseError(f"{columns} columns asked for; rows of {leases.layout.names[band]} are {width} wide")
    cells = slots[:, None] * width + np.arange(columns)
    facts = leases.facts.read(slots)
    begin, end = facts[:, FIRST_BAND + 2 * band], facts[:, FIRST_BAND + 2 * band + 1]
    inside = (np.arange(columns) >= begin[:, None]) & (np.arange(columns) < end[:, None])
    return band_frames(state, band, np.where(inside, leases.rows[band].read(cells), 0))


def extents(state: ArenaState, leases: Leases, handle: int) -> list[tuple[str, int, int, int]]:
    """Where a lease's bytes are: (band, page position, byte offset, bytes), by band and position, never by frame.

    For transfers; addresses hold while the pages are pinned. Raises: PinError when one is not, LeaseStale.
    """
    slots, facts = slots_of(leases, [handle])
    places = []
    for at, band in enumerate(state.bands):
        begin, end = facts[:, FIRST_BAND + 2 * at], facts[:, FIRST_BAND + 2 * at + 1]
        pages = pages_held(leases, at, slots, begin, end)
        loose = [int(page) for page in pages if int(page) - band.home.id_base not in band.held.pins]
        if loose:
            raise PinError(f"{band.name}: page {loose[0]} is not pinned; its address may change")
        size = band.spec.frame_bytes
        frames = state.frames_of(pages).tolist()
        places += [(band.name, int(begin[0]) + i, frame * size, size) for i, frame in enumerate(frames)]
    return places


# --- single leases -----------------------------------------------------------------------------------------------------


def trim(
    state: ArenaState, leases: Leases, handles: object, tokens: object, *, reader: int | None = None
) -> StepOutcome:
    """Shrink leases to ``tokens`` each (rejected drafts, aborted prefill); pages past the end go. States stay as they are.

    A lease trimmed to 0 tokens holds nothing, no state either, and starts afresh.
    Raises: LeaseError for more tokens than held, fewer than the window that has slid out allows, an end inside a page with
    another holder (its next token would be written over that holder's), or a lease named twice; LeaseStale.
    """
    slots, facts = slots_of(leases, handles)
    if len(np.unique(slots)) < len(slots):
        raise LeaseError("a lease is named twice in one trim")
    left = whole_numbers(tokens, "tokens to keep").copy()
    if left.shape != facts[:, TOKENS].shape or (left > facts[:, TOKENS]).any() or (left < 0).any():
        raise LeaseError(f"trim to {left.tolist()[:4]} tokens; the leases hold {facts[:, TOKENS].tolist()[:4]}")
    freed, writes, after = [], [], facts.copy()
    for band, spec in enumerate(leases.layout.bands):
        begin, end = facts[:, FIRST_BAND + 2 * band], facts[:, FIRST_BAND + 2 * band + 1]
        keep = np.minimum(end, -(-left // spec.slots_per_page)) if spec.grows else end
        if spec.slides and ((left > 0) & (begin * spec.slots_per_page > first_visible(spec, left))).any():
            raise LeaseError(f"{spec.name}: the window before token {left.tolist()[:4]} has slid out; recompute instead")
        if spec.grows and ((left > 0) & (keep < begin)).any():
            raise LeaseError(f"{spec.name}: the pages before token {left.tolist()[:4]} belong to another lease")
        keep = np.where(left > 0, np.maximum(keep, begin), begin)
        if spec.grows and leases.shared:
            _check_last_page(leases, band, slots, left, begin, keep)
        freed.append(pages_held(leases, band, slots, keep, end))
        cells = flat(slots * leases.widths[band] + keep, end - keep)
        writes.append(RowWrite(cells, np.zeros(len(cells), np.int32)))
        after[:, FIRST_BAND + 2 * band] = np.where(left > 0, begin, 0)  # from nothing, nothing has slid out
        after[:, FIRST_BAND + 2 * band + 1] = np.where(left > 0, keep, 0)
    after[:, TOKENS] = left
    held, released = let_go(leases, np.concatenate(freed))
    event = Event("advance", None, reader, (), released.astype(np.int64))
    outcome = apply(state, event)
    assert isinstance(outcome, Outcome)
    held = with_rows(evolve(held, facts=held.facts.write(slots, after)), tuple(writes))
    return StepOutcome(outcome.state, held, outcome.plan, outcome.pages, tuple(writes), slots, left, left, event)


def _check_last_page(leases: Leases, band: int, slots: Slots, left: Counts, begin: Counts, keep: Counts) -> None:
    """Raise LeaseError where ``left`` tokens end inside a page that another lease holds too."""
    spec = leases.layout.bands[band]
    partial = (left % spec.slots_per_page > 0) & (keep > begin)
    last = leases.rows[band].read((slots * leases.widths[band] + keep - 1)[partial])
    shared = leases.holders.read(last.astype(np.intp)) > 0
    if shared.any():
        tokens = int(left[partial][shared.argmax()])
        raise LeaseError(f"{spec.name}: {tokens} tokens end inside a page that another lease holds; trim to a page end, or to 0")


def fork(
    state: ArenaState, leases: Leases, handle: int, *, reader: int | None = None
) -> tuple[StepOutcome, int] | Refusal:
    """A second lease with the same tokens: whole pages are shared, the last partial page and the states are copied.

    reader: see ``copies.copy``: the plan waits for it, because it may be writing what is copied.
    Returns: the step (its plan carries the copies) and the new handle; or a Refusal, nothing changed.
    Raises: LeaseStale; LeaseError when no lease is free, or the lease is a part that lacks what its next token would see.
    """
    opened, (child,) = open_leases(leases, 1)
    (parent_slot, child_slot), facts = slots_of(opened, [handle, child])
    if opened.has_parts:
        _check_whole(opened, facts[:1], np.ones(1, np.int64))
    held, empty = facts
    tokens, after, kept, copied = int(held[TOKENS]), empty.copy(), [], []
    for band, spec in enumerate(opened.layout.bands):
        begin, end = int(held[FIRST_BAND + 2 * band]), int(held[FIRST_BAND + 2 * band + 1])
        if spec.grows:
            end = min(end, -(-tokens // spec.slots_per_page))
        whole = max(begin, tokens // spec.slots_per_page) if spec.grows else begin
        row = parent_slot * opened.widths[band]
        shared = opened.rows[band].read(slice(row + begin, row + whole))
        kept.append((begin, shared))
        copied.append(opened.rows[band].read(slice(row + whole, row + end)))
        after[FIRST_BAND + 2 * band : FIRST_BAND + 2 * band + 2] = begin, end
    event = Event("copy", reader=reader, pages=np.concatenate(copied).astype(np.int64))
    outcome = apply(state, event)
    if isinstance(outcome, Refusal):
        return outcome
    after[TOKENS] = tokens
    writes = []
    for band, (begin, shared) in enumerate(kept):
        opened = hold_again(opened, shared) if len(shared) else opened
        writes.append(inherited(opened, band, child_slot, begin, np.concatenate((shared, outcome.pages[band]))))
    opened = with_rows(evolve(opened, facts=opened.facts.write(np.array([child_slot]), after[None])), tuple(writes))
    counts = np.array([tokens])
    slots = np.array([child_slot])
    done = StepOutcome(outcome.state, opened, outcome.plan, outcome.pages, tuple(writes), slots, counts, counts, event)
    return done, int(child)
