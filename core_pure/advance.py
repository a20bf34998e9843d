"""One serving step of the arena: all releases, then one joint demand, one plan. Allocate and release are its halves.

Frames freed here are free for the same step's demand, unless an off-stream ``reader`` may still read them; then they wait
in quarantine. Nothing is moved while the demand fits as things stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import NamedTuple

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from .band import NO_FRAMES, Band, Frames, bind, check_distinct, dissolve, frames_held, reseat, unbind
from .chain import window, windows
from .errors import FenceError, LayoutError, PromiseBroken
from .fits import NOW, RELIEF, After, Refusal, claim, claims, is_feasible, over_maximum, refusal
from .geometry import floor_arena
from .layout import Demand, is_whole
from .plan import NO_MOVES, NO_ROWS, NOTHING, ZERO, Plan, Rows, stack, triples
from .relief import displaced, relief_windows, seats
from .state import ArenaState, Outcome, Pages, by_band, demand_of, initial, room_beside
from .waves import Moves, schedule

NOBODY: NDArray[np.int32] = np.empty(0, np.int32)
NOBODY.flags.writeable = False


Split = Mapping[int, NDArray[np.intp]]
"""Page indices by band position."""
Holders = Mapping[int, NDArray[np.int32]]
"""The frames of these pages."""


_RowBlock = tuple[NDArray[np.integer], "NDArray[np.intp] | int"]


class _Bound(NamedTuple):
    """What one band got: page ids, the frames behind them, the ids of pages that moved, and where to."""

    pages: Pages
    frames: Frames
    moved: Pages = NOBODY
    moved_to: Frames = NO_FRAMES


class _Placed(NamedTuple):
    bands: tuple[Band, ...]
    bound: dict[int, _Bound]
    waves: tuple[Rows, ...]


def check_reader(state: ArenaState, reader: int | None) -> None:
    """A reader is a launched step that has not passed. Raises: FenceError."""
    if reader is None:
        return
    if not is_whole(reader) or not 0 < reader <= state.launched:
        raise FenceError(f"reader {reader!r} was never launched; the newest fence is {state.launched}")
    if reader <= state.retired:  # nothing would ever give back what waits for it
        raise FenceError(f"reader {reader} has passed already; the newest retired fence is {state.retired}")


def advance(
    state: ArenaState,
    *,
    release: object = NOBODY,
    demand: Mapping[str, int] | Sequence[int] | None = None,
    reader: int | None = None,
    withhold: bool = False,
) -> Outcome | Refusal:
    """Release pages, then take the demanded ones, as one plan.

    Args: release: page ids of any bands, each once. demand: pages per band; None asks for nothing. reader: the newest
    launched step that may still read or write off-stream; None when plans run in the forward's own stream. withhold: keep
    what is released in quarantine until the next step's fence retires (the commit), and move nothing, so that the step can
    be undone with its bytes (``rollback.undo``).
    Returns: an Outcome whose ``pages`` are the new ids per band, or a Refusal; then nothing changed, the release neither.
    Raises: PageNotBound, SinkPage, ForeignPage, DuplicatePage, PagePinned, DemandError, FenceError; the value stays valid.
    Keeps: every claim of the catalogue. With a reader it moves nothing where the demand fits now; else it waits for the
    reader, stream-side, where that suffices; else it refuses. Cost: O(pages), and O(span) when frames move.
    """
    wanted = (0,) * len(state.bands) if demand is None else demand_of(state, demand)
    split = {} if release is NOBODY else by_band(state, release)
    return advance_split(state, split, wanted, reader, withhold, distinct=False)


def advance_split(
    state: ArenaState, released: Split, wanted: Demand, reader: int | None = None, withhold: bool = False, *, distinct: bool = True
) -> Outcome | Refusal:
    """``advance`` for a demand that is checked, and page indices that are split by band, in range, and distinct if so said."""
    check_reader(state, reader)
    freed = state
    if released:
        holders = {at: frames_held(state.bands[at], ids) for at, ids in released.items()}
        handed_on: Mapping[int, int] = {}
        if reader is None and not withhold and any(wanted[at] for at in released):
            if not distinct:
                for band, ids in released.items():
                    check_distinct(state.bands[band], ids)
            handed_on = {at: min(len(ids), wanted[at]) for at, ids in released.items() if wanted[at]}
            exchanged = _exchanged(state, released, holders, wanted, handed_on)
            if exchanged is not None:
                return exchanged
            # Ids are handed on all the same, so that they do not depend on where frames happen to stand: they go on top.
            distinct = True
            released = {at: np.roll(ids, -handed_on.get(at, 0)) for at, ids in released.items()}
            holders = {at: np.roll(frames, -handed_on.get(at, 0)) for at, frames in holders.items()}
        freed = _freed(state, released, holders, state.launched + 1 if withhold else reader, distinct, handed_on)
    if not any(wanted):
        return Outcome(freed, Plan(rows=_rows(freed, released, {})), (NOBODY,) * len(wanted))
    usable, wait = freed, None
    placed = _placed_now(usable, wanted)
    if placed is None and withhold:
        return refusal(freed, wanted, NOW)
    if placed is None and reader is not None:
        if not is_feasible(freed, wanted, After(reader)):
            return refusal(freed, wanted, NOW)
        wait = reader
        usable = freed.with_bands([dissolve(band, reader) for band in freed.bands])
        placed = _placed_now(usable, wanted)
    if placed is None:
        if not is_feasible(usable, wanted, RELIEF):
            return refusal(freed, wanted, RELIEF)
        placed = relieved(usable, wanted)
    return _outcome(usable.with_bands(placed.bands), placed, _rows(freed, released, placed.bound), wait)


def _outcome(after: ArenaState, placed: _Placed, rows: Rows, wait: int | None = None) -> Outcome:
    pages = [NOBODY] * len(after.bands)
    for at, got in placed.bound.items():
        pages[at] = got.pages
    return Outcome(after, Plan(placed.waves, NO_MOVES, _fills(after, placed.bound), rows, wait), tuple(pages))


def _exchanged(
    state: ArenaState, released: Split, holders: Holders, wanted: Demand, handed_on: Mapping[int, int]
) -> Outcome | None:
    """Hand released pages straight on, id and frame, as far as their band asks for pages; None when the rest needs relief.

    What a serving step frees and takes nearly cancels out, so most of its pages change hands without a table being touched.
    """
    again = [handed_on.get(at, 0) for at in range(len(wanted))]
    rest = {at: ids[again[at] :] for at, ids in released.items() if len(ids) > again[at]}
    freed = _freed(state, rest, {at: holders[at][again[at] :] for at in rest}, None, True, {})
    placed = _placed_now(freed, tuple([pages - kept for pages, kept in zip(wanted, again, strict=True)]))
    if placed is None:
        return None
    bound = placed.bound
    for at, kept in enumerate(again):
        if kept:
            pages, frames = named(state.bands[at], released[at][:kept]), holders[at][:kept].astype(np.intp)
            if at in bound:  # in the order of the stack: recycled ids, those handed on, fresh ones
                cut = min(len(bound[at].pages), state.bands[at].spare)
                pages = np.concatenate((bound[at].pages[:cut], pages, bound[at].pages[cut:]))
                frames = np.concatenate((bound[at].frames[:cut], frames, bound[at].frames[cut:]))
            bound[at] = _Bound(pages, frames)
    # What is left in ``rest`` is gone for good: its band got all it asked for from the pages handed on.
    gone = [(named(state.bands[at], ids), -1) for at, ids in rest.items()]
    return _outcome(freed.with_bands(placed.bands), placed, _row_block([*_bound_rows(bound), *gone]))


def resize(state: ArenaState, total_bytes: int) -> Outcome | Refusal:
    """Give up or take back bytes at the top, within the capacity that the tables were built for. Page ids stay.

    Moves the fewest bytes; refuses when what is live, pinned or quarantined does not fit below the new top.
    Raises: LayoutError for more than the capacity, less than the sink, or no whole number.
    """
    layout = state.layout
    total = floor_arena(index(total_bytes)) if is_whole(total_bytes) else -1
    if not layout.sink_bytes <= total <= layout.capacity_bytes:
        raise LayoutError(f"resize to {total_bytes!r} bytes; expected {layout.sink_bytes} to the capacity {layout.capacity_bytes}")
    resized = evolve(state, layout=evolve(layout, total_bytes=total))
    nothing = (0,) * len(state.bands)
    if is_feasible(resized, nothing, NOW):
        return Outcome(resized, NOTHING)
    if not is_feasible(resized, nothing, RELIEF):
        return refusal(resized, nothing, RELIEF)
    placed = relieved(resized, nothing)
    after = resized.with_bands(placed.bands)
    return Outcome(after, Plan(placed.waves, rows=_rows(resized, {}, placed.bound)))


def clear(state: ArenaState) -> Outcome:
    """Forget every page, pin and quarantine: the empty arena of the same layout, and one unbind per live page.

    The caller vouches that no launched step still reads or writes: all fences count as retired afterwards.
    """
    emptied = evolve(initial(state.layout), launched=state.launched, retired=state.launched, digest=state.digest)
    live = {at: band.page_of.read(band.live_frames()).astype(np.intp) for at, band in enumerate(state.bands)}
    return Outcome(emptied, Plan(rows=_rows(emptied, live, {})))


def allocate(
    state: ArenaState, demand: Mapping[str, int] | Sequence[int], *, reader: int | None = None
) -> Outcome | Refusal:
    """Take pages: ``advance`` without a release. With no reader it succeeds exactly when ``fits(mode=RELIEF)`` says yes."""
    return advance(state, demand=demand, reader=reader)


def release(state: ArenaState, pages: object, *, reader: int | None = None) -> Outcome:
    """Unbind pages; their frames become holes, or wait in quarantine for ``reader``.

    A hole at an edge is absorbed at once: the frontier retreats and the neighbours gain the bytes.

    Args: pages: ids of any bands, each once. reader: the last launched step that may still read them, off-stream.
    Raises: PageNotBound, SinkPage, ForeignPage, DuplicatePage, PagePinned (the state before stays valid). Cost: O(n).
    """
    outcome = advance(state, release=pages, reader=reader)
    assert isinstance(outcome, Outcome)
    return outcome


def _freed(
    state: ArenaState, released: Split, holders: Holders, reader: int | None, distinct: bool, handed_on: Mapping[int, int]
) -> ArenaState:
    """The state with the pages unbound; a band whose ids are handed on keeps its id stack even when nothing stays live."""
    if not released:
        return state
    bands = list(state.bands)
    for at, ids in released.items():
        bands[at] = unbind(bands[at], ids, holders[at], reader, distinct=distinct, restart=not handed_on.get(at))
    return state.with_bands(bands)


def _placed_now(state: ArenaState, wanted: Demand) -> _Placed | None:
    """Bind without moving anything; None when that does not fit."""
    if not any(wanted):
        return _Placed(state.bands, {}, ())
    if over_maximum(state, wanted) >= 0:
        return None
    spans = _spans_now(state, wanted)
    if spans is None:
        return None
    bands, bound = list(state.bands), {}
    for at, pages in enumerate(wanted):
        if pages:
            band = bands[at]
            seated = seats(band, spans[at], pages)
            bands[at], ids = bind(band, *seated)
            bound[at] = _Bound(named(band, ids), seated.frames)
    return _Placed(tuple(bands), bound, ())


def _spans_now(state: ArenaState, wanted: Demand) -> Sequence[tuple[int, int]] | None:
    """Where each band may stand when nothing moves; as they stand, when every band's holes are enough."""
    spans = [(band.low, band.high) for band in state.bands]
    growing = [at for at, pages in enumerate(wanted) if pages and pages > state.bands[at].holes]
    if not growing:
        return spans
    layout = state.layout
    if len(growing) > 1 or layout.has_minima:
        return windows(claims(state, wanted, NOW), layout.sink_bytes, layout.total_bytes)
    at = growing[0]  # one band grows between neighbours that stay: the same windows, without the walk
    low, high = room_beside(state, at)
    _, need, first, end, lean = claim(state.bands[at], wanted[at], NOW)
    if need > high - low:
        return None
    spans[at] = window(low, high, need, first, end, lean)
    return spans


def relieved(state: ArenaState, wanted: Demand) -> _Placed:
    """Move the fewest bytes that make room, then bind. Requires: the demand fits in mode RELIEF."""
    bands, bound, moves = list(state.bands), {}, []
    for at, chosen_window in enumerate(relief_windows(state, wanted)):
        band = bands[at]
        sources = displaced(band, chosen_window)
        chosen = seats(band, chosen_window, len(sources) + wanted[at]).frames
        if len(chosen) < len(sources) + wanted[at]:
            raise PromiseBroken(f"{band.name}: window {chosen_window} has {len(chosen)} seats for {len(sources)} + {wanted[at]}")
        targets, frames = chosen[: len(sources)], chosen[len(sources) :]
        moves.append(Moves(band, sources, targets))
        ids = moved = NO_FRAMES
        if len(sources):
            bands[at], moved = reseat(band, sources, targets)
        if len(frames):
            moved_on = bands[at]
            inside = (frames >= moved_on.low) & (frames < moved_on.high)
            frames = np.concatenate((frames[inside], frames[~inside]))
            low, high = int(frames.min()), int(frames.max()) + 1
            if moved_on.high:
                low, high = min(low, moved_on.low), max(high, moved_on.high)
            bands[at], ids = bind(moved_on, frames, int(inside.sum()), low, high)
        bound[at] = _Bound(named(band, ids), frames, named(band, moved), targets)
    return _Placed(tuple(bands), bound, schedule(moves))


def _fills(state: ArenaState, bound: dict[int, _Bound]) -> Rows:
    """Zero the pages handed out, so that bytes nobody wrote read as finite numbers; bands that opted out are left alone."""
    zeroed = [at for at, got in bound.items() if len(got.frames) and state.bands[at].home.spec.zero_on_bind]
    return stack([triples(at, bound[at].frames, ZERO) for at in zeroed], NO_MOVES)


def _rows(freed: ArenaState, released: Split, bound: dict[int, _Bound]) -> Rows:
    """One row per id whose frame changed, the final one: moved, bound, and released without being bound again.

    Args: freed: the state between release and bind; its id stacks tell which released ids the bind takes again.
    """
    blocks = _bound_rows(bound)
    for at, ids in released.items():
        band = freed.bands[at]
        again = len(bound[at].pages) if at in bound else 0
        if again and not band.spare:  # the band had emptied, so its ids start again from the first
            gone = ids[ids > again]
        else:  # a stack: the bind takes the newest first
            gone = ids[: max(0, len(ids) - again)]
        blocks.append((gone + band.home.id_base, -1))
    return _row_block(blocks)


def _bound_rows(bound: dict[int, _Bound]) -> list[_RowBlock]:
    blocks: list[_RowBlock] = []
    for got in bound.values():
        if len(got.moved):
            blocks.append((got.moved, got.moved_to))
        if len(got.pages):
            blocks.append((got.pages, got.frames))
    return blocks


def _row_block(blocks: Sequence[_RowBlock]) -> Rows:
    """int32[n, 2] rows of all blocks; a block is page ids, and their frames or -1 for all."""
    rows = np.empty((sum([len(pages) for pages, _ in blocks]), 2), np.int32)
    at = 0
    for pages, frames in blocks:
        end = at + len(pages)
        rows[at:end, 0] = pages
        rows[at:end, 1] = frames
        at = end
    return rows if at else NO_ROWS


def pairs(pages: NDArray[np.integer], frames: NDArray[np.intp] | int) -> Rows:
    """int32[n, 2] rows (page id, frame)."""
    return _row_block([(pages, frames)])


def named(band: Band, ids: NDArray[np.intp]) -> Pages:
    """Page indices of a band as page ids."""
    return (ids + band.home.id_base).astype(np.int32)
