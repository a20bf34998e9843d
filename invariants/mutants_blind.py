"""Planted bugs written by someone who had read the design and the core, and none of the checks or tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .mutants import Mutant


def _too_early(original: Callable[..., Any], band: Any, fence: int) -> Any:
    return original(band, fence + 1)


def _backwards(original: Callable[..., Any], moves: Any) -> Any:
    return tuple(reversed(original(moves)))


PLACING: tuple[Mutant, ...] = (
    Mutant(
        "floor-walks-down",
        "chain:edge_above",
        "Feasibility rounds the edge of the band below down to the next band's grid, so it promises up to a frame too much.",
        ("FIT-1", "STATE-1"),
        ("low = -(-edge // frame_bytes)", "low = edge // frame_bytes"),
    ),
    Mutant(
        "window-off-grid",
        "chain:windows",
        "A band is placed from the frame in which the band below ends, so the two share bytes when frame sizes do not divide.",
        ("CHAIN-1", "SINK-1"),
        ("window(-(-edge // frame_bytes),", "window(edge // frame_bytes,"),
    ),
    Mutant(
        "grows-past-its-room",
        "chain:window",
        "A band that grows down takes all it needs below itself, whatever its neighbour left there.",
        ("CHAIN-1", "SINK-1"),
        ("down = min(extra, below)", "down = extra"),
    ),
    Mutant(
        "capacity-rounded-up",
        "chain:room",
        "The room of a band is rounded up at its top, so the figure in a refusal is one page more than can be had.",
        ("FIT-1",),
        ("bound // frame_bytes", "-(-bound // frame_bytes)"),
    ),
    Mutant(
        "quarantine-booked-twice",
        "fits:frames_kept",
        "Frames in quarantine are not part of what a band needs, so their bytes are promised once more.",
        ("FIT-1",),
        ("band.live - evicted + band.held.count", "band.live - evicted"),
    ),
    Mutant(
        "cap-one-short",
        "fits:over_maximum",
        "A band is refused its last page below pages_max, though the refusal says it could have it.",
        ("FIT-1",),
        ("> most:", ">= most:"),
    ),
    Mutant(
        "pinned-counted-evictable",
        "fits:refusal",
        "What could be had after eviction counts pinned pages as given up, which no engine can do.",
        ("FIT-1",),
        ("tuple(band.live - len(band.held.pins) for band", "tuple(band.live for band"),
    ),
    Mutant(
        "shrink-without-moving",
        "advance:resize",
        "A smaller total is accepted as soon as relief could serve it, and nothing is moved below the new top.",
        ("CHAIN-1",),
        ("nothing, NOW)", "nothing, RELIEF)"),
    ),
)

BANDS: tuple[Mutant, ...] = (
    Mutant(
        "single-hole-kept",
        "band:bind",
        "Taking exactly one hole leaves it in the block's count: the next search believes in a hole that is live.",
        ("HOLE-1",),
        ("if own:", "if own > 1:"),
    ),
    Mutant(
        "ids-restart-too-soon",
        "band:unbind",
        "The id stack is reset while one page is still live, so its id is handed out a second time.",
        ("IDS-1", "PAGE-1"),
        ("restart and not left", "restart and left <= 1"),
    ),
    Mutant(
        "low-edge-stays",
        "band:retreat",
        "The low edge of the last band does not retreat over holes, so its neighbours never get the bytes.",
        ("EDGE-1",),
        ("if band.page_of.item(low) == FREE:", "if band.page_of.item(low) == FREE and band.home.lean <= 0:"),
    ),
    Mutant(
        "stale-last-block",
        "band:_drop_holes",
        "An edge that retreats over several blocks of frames leaves one hole too many counted in the last of them.",
        ("HOLE-1",),
        ("stop - (last << BLOCK_BITS)", "stop - (last << BLOCK_BITS) - 1"),
    ),
    Mutant(
        "block-search-stops-short",
        "band:nearest_holes",
        "A search for holes that needs several blocks of frames leaves the last block out.",
        ("PAGE-1", "LIVE-1", "STATE-1"),
        ("searchsorted(count)) + 1]", "searchsorted(count))]"),
    ),
    Mutant(
        "pins-not-in-hull",
        "band:hull_of",
        "Once a band has quarantine, its pins no longer hold its window, and relief moves a page whose address is out.",
        ("PIN-1",),
        ("if pins:", "if pins and not batches:"),
    ),
    Mutant(
        "quarantine-hull-short",
        "band:quarantine",
        "The last quarantined frame lies outside the immovable hull.",
        ("PIN-1",),
        ("int(frames.max()) + 1", "int(frames.max())"),
    ),
    Mutant(
        "dissolved-one-fence-early",
        "band:dissolve",
        "Quarantine of the fence after the one that passed becomes holes too, under a reader that still runs.",
        ("QUAR-1",),
        wrap=_too_early,
    ),
    Mutant(
        "unpin-once",
        "pins:_recounted",
        "A page named twice in one call is claimed once only, so an early unpin sets it free.",
        ("PIN-1",),
        ("step * times", "step"),
    ),
    Mutant(
        "old-stack-aliased",
        "table:Table.write",
        "A version keeps a view of the base array instead of what stood there: an old value changes under its holder.",
        ("PAGE-1", "IDS-1"),
        ("cells[index].copy() if type(index) is slice else cells[index]", "cells[index]"),
    ),
)

MOVING: tuple[Mutant, ...] = (
    Mutant(
        "relief-counts-frames",
        "relief:_extend",
        "Frames left above a window cost one each, whatever their bytes: relief keeps the wrong band's frames.",
        ("RELIEF-1",),
        ("base + size * (len(live) - np.searchsorted", "base + (len(live) - np.searchsorted"),
    ),
    Mutant(
        "last-stayer-forgotten",
        "relief:stay_claims",
        "The highest frame that was to stay is not part of the hull, so the window may end below it.",
        ("RELIEF-1",),
        ("int(staying[-1]) + 1", "int(staying[-1])"),
    ),
    Mutant(
        "first-above-not-moved",
        "relief:displaced",
        "The frame right above the new window stays where it is, in bytes that were given to a neighbour.",
        ("CHAIN-1",),
        ("max(high, band.low)", "max(high + 1, band.low)"),
    ),
    Mutant(
        "seats-beside-the-old-span",
        "relief:seats",
        "A window that lies beyond the span is seated right beside the span instead.",
        ("CHAIN-1",),
        ("max(low, band.high), min(high, band.low)", "band.high, band.low"),
    ),
    Mutant(
        "one-wave",
        "waves:schedule",
        "Moves that wait for a neighbour's frames to leave run in the first wave, over them.",
        ("PLAN-1",),
        ("(level - 1, ~inside)", "(0, ~inside)"),
    ),
    Mutant(
        "waves-backwards",
        "waves:schedule",
        "The waves come in the opposite order.",
        ("PLAN-1",),
        wrap=_backwards,
    ),
    Mutant(
        "reused-without-waiting",
        "advance:advance_split",
        "A step that takes frames of the reader's quarantine carries no wait.",
        ("PLAN-1",),
        ("wait = reader", "wait = None"),
    ),
    Mutant(
        "withheld-under-an-old-fence",
        "advance:advance_split",
        "What a withheld step releases waits for the step before it, so that its bytes are gone when it is undone.",
        ("QUAR-1",),
        ("state.launched + 1 if withhold", "state.launched if withhold"),
    ),
    Mutant(
        "vacated-at-once",
        "compact:compact",
        "Compaction beside a running reader gives back the old frames at once, though the reader still reads them.",
        ("PLAN-1",),
        ("hold = reader if written is not None else None", "hold = None"),
    ),
    Mutant(
        "written-page-moved",
        "compact:_moves_into",
        "Exactly the pages that the running step writes are moved.",
        ("PLAN-1",),
        ("~np.isin", "np.isin"),
    ),
    Mutant(
        "budget-rounded-up",
        "compact:_moves_into",
        "The byte budget is rounded up to whole frames, so compaction copies more than it may.",
        ("COMPACT-1",),
        ("bytes_left // band.spec.frame_bytes", "-(-bytes_left // band.spec.frame_bytes)"),
    ),
)

PROMISES: tuple[Mutant, ...] = (
    Mutant(
        "handed-on-crosswise",
        "advance:_exchanged",
        "Pages that change hands within a step get each other's frames in the plan, not in the table.",
        ("PLAN-1",),
        ("holders[at][:kept].astype", "holders[at][:kept][::-1].astype"),
    ),
    Mutant(
        "exchange-forgets-the-rest",
        "advance:_exchanged",
        "A step that frees more than it takes has no rows for the ids that are gone: the device table keeps them.",
        ("PLAN-1",),
        ("[*_bound_rows(bound), *gone]", "_bound_rows(bound)"),
    ),
    Mutant(
        "gone-from-the-wrong-end",
        "advance:_rows",
        "Ids that the same step takes again are unbound in the plan, and those that are gone stay.",
        ("PLAN-1",),
        ("ids[: max(0, len(ids) - again)]", "ids[again:]"),
    ),
    Mutant(
        "first-page-not-zeroed",
        "advance:_fills",
        "The first page handed out in each band keeps the bytes of whoever had the frame before.",
        ("PLAN-1",),
        ("bound[at].frames, ZERO", "bound[at].frames[1:], ZERO"),
    ),
    Mutant(
        "last-id-is-the-sink",
        "state:ArenaState.frames_of",
        "The highest page id of each band translates to the sink.",
        ("PAGE-1",),
        ("index <= band.home.ids_max", "index < band.home.ids_max"),
    ),
    Mutant(
        "digest-without-reader",
        "event:chained",
        "Two runs whose releases wait for different fences have one digest.",
        ("DIGEST-1",),
        ("_number(event.reader), *event.demand", "*event.demand"),
    ),
    Mutant(
        "report-of-the-capacity",
        "report:report",
        "After a resize the gap is counted up to the capacity, and the report does not add up to the total.",
        ("BYTES-1",),
        ("gap += state.layout.total_bytes - edge", "gap += state.layout.capacity_bytes - edge"),
    ),
    Mutant(
        "growth-not-reserved",
        "admission:AdmissionBudget.fold",
        "Admission charges a request's tokens now and forgets those reserved for it.",
        ("ADMIT-1",),
        ("tokens_now + tokens_reserved", "tokens_now"),
    ),
    Mutant(
        "undo-in-forward-order",
        "rollback:undo",
        "Moves are undone first wave first, over frames that later waves have still to vacate.",
        ("PLAN-1",),
        ("reversed(plan.waves)", "plan.waves"),
    ),
)

HOLDING: tuple[Mutant, ...] = (
    Mutant(
        "last-but-one-holder",
        "leases:let_go",
        "A shared page is released when one holder is left.",
        ("LEASE-1",),
        ("named[left < 0]", "named[left <= 0]"),
    ),
    Mutant(
        "slid-rows-stay",
        "step:_row_write",
        "Row cells of pages that slid out keep their ids, which belong to somebody else by now.",
        ("LEASE-1",),
        ("if p.cut is p.begin or not np.count_nonzero(gone := p.cut - p.begin):", "if (gone := p.cut - p.begin) is not None:"),
    ),
    Mutant(
        "window-one-short",
        "step:first_visible",
        "The window is taken to be one token shorter, so a page goes while its last token can still be seen.",
        ("LEASE-1",),
        ("tokens - spec.window + 1", "tokens - spec.window + 2"),
    ),
    Mutant(
        "chunk-freed-while-filled",
        "step:_positions",
        "A step that crosses the end of a chunk frees that chunk before its own tokens have read it.",
        ("LEASE-1",),
        ("first_visible(spec, committed)", "first_visible(spec, after)"),
    ),
)

BLIND: tuple[Mutant, ...] = (*PLACING, *BANDS, *MOVING, *PROMISES, *HOLDING)
