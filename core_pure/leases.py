"""Which sequence holds which pages at which positions: the value above the arena state.

A lease is a slot in these arrays and a serial; its handle carries both, so that a handle kept too long is found out. Pages
stand in rows, one row per lease and band, column = page position in the sequence. A page may have several holders; it is
released once, when the last one lets go. Nothing here touches frames: relief rewrites the arena's table, never a row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from .advance import NOBODY
from .errors import LeaseError, LeaseStale
from .geometry import table_pages
from .layout import Layout, is_whole
from .table import Table

Handles = NDArray[np.int64]
Slots = NDArray[np.intp]

SLOT_BITS = 20
SLOT_MASK = (1 << SLOT_BITS) - 1
HANDLE, TOKENS, FIRST_BAND = 0, 1, 2
"""Columns of ``facts``: the handle of the open lease (0: none), its tokens; band b has its first page position in column
2 + 2b and the position after its last in 3 + 2b."""

NONE: Handles = np.empty(0, np.int64)
NONE.flags.writeable = False


class RowWrite(NamedTuple):
    """Cells of one band's rows that changed: flat positions (slot · width + column) and the page ids there, 0 for none.

    Columns below a lease's first page hold 0, as do all columns of states and encoder pages that it does not hold; columns
    past its last page may keep ids of an earlier lease, and readers stop before them.
    """

    cells: NDArray[np.intp]
    pages: NDArray[np.integer]


@frozen
class Leases:
    """Rows, facts and holder counts of all sequences. Slots below ``fresh`` were used; free ones stand in ``idle``.

    facts: int64[sequences, 2 + 2 · bands]. rows: per band int32[sequences · width]. holders: int32[ids], holders beyond the
    first. shared: their sum, so that a run without sharing never looks; has_parts: whether a lease was split since the last
    time that none was open, for the same reason.
    """

    layout: Layout
    sequences: int
    context: int
    widths: tuple[int, ...]
    facts: Table
    rows: tuple[Table, ...]
    holders: Table
    idle: tuple[int, ...] = ()
    fresh: int = 0
    shared: int = 0
    has_parts: bool = False
    serial: int = field(default=1, eq=False)

    @property
    def open_count(self) -> int:
        """Leases that are open."""
        return self.fresh - len(self.idle)


def empty_leases(layout: Layout, *, sequences: int, context: int, draft_tokens: int = 0) -> Leases:
    """No sequence yet. Args: sequences: the most at once (below 2²⁰). context: the most tokens of one, drafts not counted."""
    if not (is_whole(sequences) and is_whole(context) and is_whole(draft_tokens)):
        raise LeaseError(f"{sequences!r} sequences of {context!r} + {draft_tokens!r} tokens; expected whole numbers")
    if not 0 < sequences <= SLOT_MASK or context < 1 or draft_tokens < 0:
        raise LeaseError(f"{sequences} sequences of {context} + {draft_tokens} tokens; expected 1 to {SLOT_MASK}, at least 1, 0")
    widths = tuple(
        table_pages(context, draft_tokens, band.slots_per_page) if band.grows else band.pages_fixed for band in layout.bands
    )
    return Leases(
        layout,
        sequences,
        context + draft_tokens,
        widths,
        Table.full((sequences, FIRST_BAND + 2 * len(widths)), 0, np.int64),
        tuple(Table.full(sequences * width, 0) for width in widths),
        Table.full(layout.ids_total, 0),
    )


# --- small tools on arrays ---------------------------------------------------------------------------------------------


COUNTING_MAX = 1 << 16
"""Longer counts are made anew, so that nothing large is kept."""


@lru_cache(maxsize=32)
def _counting(size: int) -> NDArray[np.intp]:
    """0, 1, 2 …: made once per size, which is a power of two."""
    numbers = np.arange(size)
    numbers.setflags(write=False)
    return numbers


def flat(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.intp]:
    """The runs start, start + 1, … of the given lengths, one after the other."""
    if len(counts) < 2:
        if not len(counts):
            return np.empty(0, np.intp)
        first = int(starts[0])
        return np.arange(first, first + int(counts[0]))
    ends = np.add.accumulate(counts)
    positions: NDArray[np.intp] = (starts - (ends - counts)).repeat(counts)
    total = int(ends[-1])
    positions += _counting(1 << total.bit_length())[:total] if total < COUNTING_MAX else np.arange(total)
    return positions


def whole_numbers(values: object, what: str) -> NDArray[np.int64]:
    """Values as int64[n]. Raises: LeaseError for floats, text, or an array of another device: nothing is cut to fit."""
    if type(values) is np.ndarray and values.dtype == np.int64 and values.ndim == 1:
        return values
    try:
        array = np.asarray(values)
    except Exception as error:
        raise LeaseError(f"{what} must be whole numbers in host memory, not {type(values).__name__}") from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise LeaseError(f"{what} must be one row of whole numbers, got shape {array.shape} of {array.dtype}")
    return array.astype(np.int64, copy=False)


def least(values: NDArray[np.integer]) -> int:
    """The smallest of them, 1 when there are none: ``min`` with its usual cost per call cut to a quarter."""
    return int(values[values.argmin()]) if len(values) else 1


def most(values: NDArray[np.integer]) -> int:
    """The largest of them, 0 when there are none, at the same cost."""
    return int(values[values.argmax()]) if len(values) else 0


def slots_of(leases: Leases, handles: object) -> tuple[Slots, NDArray[np.int64]]:
    """Slots of handles, and their facts, int64[n, …]. Raises: LeaseStale, naming the handle."""
    named = whole_numbers(handles, "lease handles")
    slots: Slots = named & SLOT_MASK
    slots.setflags(write=False)  # older versions of the tables keep it as an index, and callers see it
    try:
        facts = leases.facts.read(slots)
    except IndexError:
        raise LeaseStale(f"lease {int(named[slots.argmax()])} was never given out") from None
    if np.count_nonzero(facts[:, HANDLE] != named) or least(named) <= 0:
        stale = (facts[:, HANDLE] != named) | (named <= 0)
        raise LeaseStale(f"lease {int(named[stale.argmax()])} has ended; its pages may belong to another sequence")
    return slots, facts


def pages_held(leases: Leases, band: int, slots: Slots, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int32]:
    """Page ids of positions [begin, end) of each slot, one after the other."""
    if not len(slots):
        return NOBODY
    pages: NDArray[np.int32] = leases.rows[band].read(flat(slots * leases.widths[band] + begin, end - begin))
    return pages


def pages_of(leases: Leases, handle: int) -> tuple[NDArray[np.int32], ...]:
    """The pages of one lease per band, in position order."""
    slots, facts = slots_of(leases, [handle])
    return tuple(
        pages_held(leases, band, slots, facts[:, FIRST_BAND + 2 * band], facts[:, FIRST_BAND + 2 * band + 1])
        for band in range(len(leases.widths))
    )


# --- opening and closing -----------------------------------------------------------------------------------------------


def open_leases(leases: Leases, count: int) -> tuple[Leases, Handles]:
    """Open ``count`` sequences without pages. Raises: LeaseError when the slots do not suffice."""
    free = leases.sequences - leases.open_count
    if not is_whole(count) or not 0 <= count <= free:
        raise LeaseError(f"{count!r} sequences asked for; {free} of {leases.sequences} slots are free")
    kept = max(0, len(leases.idle) - count)
    reused = leases.idle[kept:]
    fresh = range(leases.fresh, leases.fresh + count - len(reused))
    slots = np.array([*reused, *fresh], np.intp)
    handles: Handles = (leases.serial << SLOT_BITS) + slots
    facts = np.zeros((count, FIRST_BAND + 2 * len(leases.widths)), np.int64)
    facts[:, HANDLE] = handles
    opened = leases.facts.write(slots, facts)
    return with_facts(leases, opened, leases.rows, leases.idle[:kept], leases.fresh + len(fresh), leases.serial + 1), handles


def with_facts(
    leases: Leases, facts: Table, rows: tuple[Table, ...], idle: tuple[int, ...], fresh: int, serial: int
) -> Leases:
    """The leases with these parts replaced: ``evolve`` on the path of every step, at a third of its cost."""
    return Leases(
        leases.layout, leases.sequences, leases.context, leases.widths, facts, rows, leases.holders, idle, fresh, leases.shared,
        leases.has_parts and fresh > 0, serial,
    )  # fmt: skip


def closed(leases: Leases, slots: Slots) -> tuple[tuple[int, ...], int]:
    """``idle`` and ``fresh`` once these slots are free; the first slots again when none is open."""
    if not len(slots):
        return leases.idle, leases.fresh
    idle = (*leases.idle, *slots.tolist())
    return ((), 0) if len(idle) == leases.fresh else (idle, leases.fresh)


def let_go(leases: Leases, pages: NDArray[np.int32]) -> tuple[Leases, NDArray[np.int32]]:
    """Take one holder off each page; returns the pages whose last holder that was. A page may be named several times."""
    if leases.shared == 0 or not len(pages):
        return leases, pages
    named, times = np.unique(pages, return_counts=True)
    left = leases.holders.read(named.astype(np.intp)) - times  # -1: nobody holds it any more
    holders = leases.holders.write(named.astype(np.intp), np.maximum(left, 0))
    gone = named[left < 0]
    return evolve(leases, holders=holders, shared=leases.shared - (len(pages) - len(gone))), gone


def hold_again(leases: Leases, pages: NDArray[np.integer]) -> Leases:
    """Add one holder to each page; every page is named once."""
    ids = pages.astype(np.intp)
    holders = leases.holders.write(ids, leases.holders.read(ids) + 1)
    return evolve(leases, holders=holders, shared=leases.shared + len(ids))


# --- sharing without copying -------------------------------------------------------------------------------------------


def share(leases: Leases, source: int, target: int, tokens: int) -> tuple[Leases, tuple[RowWrite, ...]]:
    """Let an empty lease hold the first ``tokens`` of another's pages too.

    Only whole pages, and only where nothing is missing: an arena with states needs ``fork`` from a checkpoint, and window
    pages that a later token can see must still be there (case F37). Raises: LeaseError, LeaseStale; nothing half shared.
    """
    (origin, heir), facts = slots_of(leases, [source, target])
    held, empty = facts
    if not is_whole(tokens) or not 0 < tokens <= held[TOKENS] or empty[TOKENS]:
        raise LeaseError(f"share {tokens!r} tokens of a lease of {held[TOKENS]} with one that holds {empty[TOKENS]}")
    after = empty.copy()
    after[TOKENS] = tokens
    writes, held_again = [], leases
    for band, spec in enumerate(leases.layout.bands):
        if not spec.grows or tokens % spec.slots_per_page:
            what = "has no copy for a second holder; fork a checkpoint" if not spec.grows else f"{tokens} tokens end inside a page"
            raise LeaseError(f"{spec.name}: cannot be shared: {what}")
        begin, end = int(held[FIRST_BAND + 2 * band]), tokens // spec.slots_per_page
        if begin * spec.slots_per_page > spec.first_visible(tokens):
            raise LeaseError(f"{spec.name}: tokens that position {tokens} can see have slid out; share a longer prefix")
        after[FIRST_BAND + 2 * band : FIRST_BAND + 2 * band + 2] = begin, end
        pages = leases.rows[band].read(slice(origin * leases.widths[band] + begin, origin * leases.widths[band] + end))
        held_again = hold_again(held_again, pages)
        writes.append(inherited(leases, band, heir, begin, pages))
    leases = held_again
    return with_rows(evolve(leases, facts=leases.facts.write(np.array([heir]), after[None])), tuple(writes)), tuple(writes)


def split(leases: Leases, handle: int, target: int, tokens: int) -> tuple[Leases, tuple[RowWrite, ...]]:
    """Cut a lease at a page boundary: it keeps [0, tokens), the empty lease ``target`` takes the rest and the states.

    No page changes. A part that lacks what its next token would see holds pages only: it can be shared, trimmed and ended,
    not served or forked. Raises: LeaseError, LeaseStale.
    """
    (head_slot, tail_slot), (held, empty) = slots_of(leases, [handle, target])
    if not is_whole(tokens) or not 0 < tokens < held[TOKENS] or empty[TOKENS]:
        raise LeaseError(f"split at {tokens!r} a lease of {held[TOKENS]} tokens into one that holds {empty[TOKENS]}")
    head, tail, writes = held.copy(), empty.copy(), []
    head[TOKENS], tail[TOKENS] = tokens, held[TOKENS]
    for band, spec in enumerate(leases.layout.bands):
        if spec.grows and tokens % spec.slots_per_page:
            raise LeaseError(f"{spec.name}: {tokens} tokens end inside a page of {spec.slots_per_page}")
        column = FIRST_BAND + 2 * band
        begin, end = int(held[column]), int(held[column + 1])
        cut = min(max(begin, tokens // spec.slots_per_page), end) if spec.grows else begin
        head[column : column + 2], tail[column : column + 2] = (begin, cut), (cut, end)
        width = leases.widths[band]
        pages = leases.rows[band].read(slice(head_slot * width + cut, head_slot * width + end))
        write = inherited(leases, band, tail_slot, cut, pages)
        if not spec.grows:  # the states are no longer the head's
            write = joined(write, RowWrite(head_slot * width + np.arange(end), np.zeros(end, np.int32)))
        writes.append(write)
    facts = leases.facts.write(np.array([head_slot, tail_slot]), np.stack((head, tail)))
    return with_rows(evolve(leases, facts=facts, has_parts=True), tuple(writes)), tuple(writes)


def inherited(leases: Leases, band: int, slot: int, begin: int, pages: NDArray[np.int32]) -> RowWrite:
    """Pages that an heir holds from column ``begin`` on; what an earlier lease left below it is zeroed."""
    row = slot * leases.widths[band]
    left = np.flatnonzero(leases.rows[band].read(slice(row, row + begin)))
    cells = np.concatenate((row + left, row + np.arange(begin, begin + len(pages))))
    return RowWrite(cells, np.concatenate((np.zeros(len(left), np.int32), pages)))


def joined(first: RowWrite, second: RowWrite) -> RowWrite:
    """Both writes as one. Requires: no cell in both."""
    return RowWrite(np.concatenate((first.cells, second.cells)), np.concatenate((first.pages, second.pages)))


def rows_after(leases: Leases, writes: tuple[RowWrite, ...]) -> tuple[Table, ...]:
    """The rows with cells rewritten, one RowWrite per band."""
    rows = list(leases.rows)
    for band, (cells, pages) in enumerate(writes):
        if len(cells):
            cells.setflags(write=False)  # older versions of the rows keep it as an index
            rows[band] = rows[band].write(cells, pages)
    return tuple(rows)


def with_rows(leases: Leases, writes: tuple[RowWrite, ...]) -> Leases:
    """The leases with row cells rewritten."""
    return evolve(leases, rows=rows_after(leases, writes))
