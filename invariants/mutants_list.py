"""Planted bugs of the kinds that the field reports: rounding, direction, sink, grid, double count, lost frame, missing wait.

Each names the claims of the catalogue that must notice it. Written by the author of the checks; ``mutants_blind`` is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from . import mutant_wraps as wraps
from .mutants import Mutant

Wrapped = Callable[..., Any]
FIT, PLAN, SETS = "FIT-1", "PLAN-1", "SETS-1"
PLACED = (FIT, PLAN, SETS, "CHAIN-1", "MISUSE-1", "SINK-1", "FRAME-1", "BYTE-1")
"""What a wrong placement may break first: it is refused, crashes, or lands on somebody."""


def text(name: str, target: str, old: str, new: str, wrong: str, *killers: str, shape: str = "") -> Mutant:
    """A mutant by replacement of source text."""
    return Mutant(name, target, wrong, killers, text=(old, new), shape=shape)


def wrap(name: str, target: str, function: Wrapped, wrong: str, *killers: str, shape: str = "") -> Mutant:
    """A mutant by wrapping."""
    return Mutant(name, target, wrong, killers, wrap=function, shape=shape)


# --- the list ----------------------------------------------------------------------------------------------------------

MUTANTS: tuple[Mutant, ...] = (
    # rounding, direction, grid
    text(
        "edge-rounds-down",
        "chain:edge_above",
        "-(-edge // frame_bytes)",
        "edge // frame_bytes",
        "the start of a window is rounded down",
        *PLACED,
    ),
    text(
        "top-frame-lost",
        "chain:edge_above",
        "if high > total // frame_bytes",
        "if high >= total // frame_bytes",
        "the last frame is never used",
        FIT,
    ),
    text(
        "empty-float-rounded",
        "chain:edge_above",
        "if need == 0:",
        "if need < 0:",
        "an empty band is rounded to its grid (F44)",
        FIT,
    ),
    text(
        "hull-start-touched",
        "chain:edge_above",
        "if low > first:",
        "if low >= first:",
        "an immovable frame at the edge refuses",
        FIT,
    ),
    text(
        "hull-end-ignored",
        "chain:edge_above",
        "if high < end:",
        "if high < 0:",
        "the end of the immovable hull is ignored",
        *PLACED,
    ),
    text(
        "below-rounds-up",
        "chain:edge_below",
        "high = edge // frame_bytes",
        "high = -(-edge // frame_bytes)",
        "a ceiling is rounded up",
        *PLACED,
    ),
    text("below-ignores-hull", "chain:edge_below", "if low > first:", "if low < 0:", "a ceiling leaves the hull outside", *PLACED),
    text(
        "bands-overlap",
        "chain:windows",
        "edge = high * frame_bytes",
        "edge = low * frame_bytes",
        "a window starts inside its neighbour",
        *PLACED,
    ),
    text(
        "window-short",
        "chain:window",
        "extra = max(0, need - (end - first))",
        "extra = max(0, need - (end - first) - 1)",
        "a window is one frame short",
        *PLACED,
    ),
    text(
        "room-one-more",
        "chain:room",
        "return max(0, high - low)",
        "return max(0, high - low + 1)",
        "capacity counts one frame too many",
        "CAP-1",
        "REFUSE-1",
    ),
    text(
        "room-rounds-down",
        "chain:room",
        "low, high = -(-edge // frame_bytes)",
        "low, high = edge // frame_bytes",
        "capacity starts below the edge",
        "CAP-1",
        "REFUSE-1",
    ),
    # counts
    text(
        "quarantine-not-counted",
        "fits:frames_kept",
        "return band.live - evicted + band.held.count",
        "return band.live - evicted",
        "quarantined frames need no room",
        *PLACED,
    ),
    text(
        "now-may-move",
        "fits:claim",
        "if mode == NOW:",
        "if mode == 'never':",
        "in mode now live frames count as movable",
        *PLACED,
        "WAIT-1",
    ),
    text(
        "after-one-fence-late",
        "fits:claim",
        "if batch.fence > mode.fence",
        "if batch.fence >= mode.fence",
        "waiting for k forgets k itself",
        FIT,
        "REFUSE-1",
        "WAIT-1",
    ),
    text(
        "minimum-ignored",
        "fits:claim",
        "need if need > spec.pages_min else spec.pages_min",
        "need",
        "a band's minimum is not kept",
        FIT,
        "REFUSE-1",
        "CAP-1",
        shape="capped",
    ),
    text("maximum-strict", "fits:over_maximum", "> most", ">= most", "a band never reaches its maximum", FIT, shape="capped"),
    wrap("maximum-ignored", "fits:over_maximum", wraps.ignores_cap, "a band exceeds its maximum", FIT, "REFUSE-1", shape="capped"),
    wrap("obtainable-boasts", "fits:obtainable", wraps.sees_one_more, "capacity reports one page too many", "CAP-1", "REFUSE-1"),
    wrap("joint-too-small", "fits:joint_maximum", wraps.joint_of_one, "the joint maximum hides a page (F02)", "REFUSE-1"),
    text(
        "last-fence-advised",
        "fits:refusal",
        "waiting = sorted({",
        "waiting = sorted({-1} - {",
        "a refusal names no fence although one would help",
        "REFUSE-1",
    ),
    # relief
    wrap("relief-packs-all", "relief:cheapest_windows", wraps.cheap, "relief packs whole bands", "RELIEF-1"),
    text(
        "cost-below-free",
        "relief:_extend",
        "base = cost[open_] + size * np.searchsorted(live, low)",
        "base = cost[open_] + 0 * np.searchsorted(live, low)",
        "frames below the window cost nothing",
        "RELIEF-1",
    ),
    text(
        "stay-one-short",
        "relief:stay_claims",
        "int(staying[-1]) + 1",
        "int(staying[-1])",
        "the last frame that stays is left outside",
        "RELIEF-1",
        *PLACED,
    ),
    wrap("mover-forgotten", "relief:displaced", wraps.drops_one_source, "one frame outside the window is not moved", *PLACED),
    wrap("all-in-one-wave", "waves:_levels", wraps.one_wave, "moves that must follow others run with them (F24)", PLAN),
    # bands
    wrap("no-quarantine", "band:unbind", wraps.unbind_now, "a page freed under a reader is reusable at once (F18)", PLAN, SETS),
    wrap("edge-stays", "band:retreat", lambda original, band: band, "the frontier never retreats", "EDGE-1", "HOLE-1", FIT),
    wrap("edge-one-short", "band:retreat", wraps.stop_short, "the frontier stops one frame short", "EDGE-1", "HOLE-1"),
    wrap(
        "live-drifts",
        "band:bind",
        wraps.band_result(lambda band: evolve(band, live=band.live + 1)),
        "bind counts one page twice",
        "LIVE-1",
    ),
    wrap(
        "holes-drift",
        "band:bind",
        wraps.band_result(lambda band: evolve(band, blocks=band.blocks + (band.holes > 1))),
        "the hole summary is stale",
        "HOLE-1",
    ),
    wrap("id-twice", "band:next_ids", wraps.same_id_twice, "one id is handed out twice", SETS, "IDS-1", "PAGE-1", PLAN),
    wrap(
        "id-lost",
        "band:unbind",
        wraps.band_result(lambda band: evolve(band, spare=max(0, band.spare - 1))),
        "a freed id is lost",
        "IDS-1",
    ),
    wrap(
        "one-batch-per-fence",
        "band:dissolve",
        wraps.dissolve_one,
        "of two batches under one fence one comes back (F19)",
        SETS,
        "QUAR-1",
    ),
    text(
        "fence-strict",
        "band:dissolve",
        "if batch.fence <= fence]",
        "if batch.fence < fence]",
        "the fence itself does not retire",
        SETS,
        "QUAR-1",
    ),
    wrap("hull-one-short", "band:quarantine", wraps.hull_one_short, "the immovable hull ends one frame early", "PIN-1"),
    wrap("quarantine-loses-frame", "band:quarantine", wraps.forgets_last, "a frame is marked, but in no batch", "QUAR-1", SETS),
    wrap("pins-ignored", "band:hull_of", wraps.no_pins, "a pinned frame may move (F20)", "PIN-1", FIT),
    text(
        "source-not-freed",
        "band:reseat",
        "write(sources, FREE if reader is None else QUARANTINED)",
        "write(sources[1:], FREE if reader is None else QUARANTINED)",
        "a vacated frame stays occupied",
        "PAGE-1",
        "LIVE-1",
        SETS,
    ),
    text(
        "pinned-released",
        "band:frames_held",
        "if band.held.pins and",
        "if False and",
        "a pinned page can be released",
        "MISUSE-1",
        "PIN-1",
    ),
    text(
        "double-free",
        "band:frames_held",
        "if frames[frames.argmin()] < 0:",
        "if False:",
        "a page can be released twice (F01)",
        "MISUSE-1",
    ),
    # plans
    wrap("never-zeroed", "advance:_fills", wraps.no_fills, "pages are handed out dirty (F36)", PLAN, "BYTE-2"),
    wrap("moved-zeroed", "advance:_fills", wraps.fills_moved, "zeroing hits a move's target (F49)", PLAN, "BYTE-1"),
    wrap("unbind-row-missing", "advance:_rows", wraps.no_rows_of_minus_one, "released ids keep their table row", PLAN, "PLAN-2"),
    wrap(
        "move-row-missing",
        "advance:_rows",
        wraps.rows_without_moved,
        "moved pages keep their old frame in the table",
        PLAN,
        "PLAN-2",
    ),
    wrap("row-twice", "advance:_rows", wraps.rows_twice, "one id has two table rows", PLAN),
    wrap(
        "wait-forgotten",
        "advance:advance_split",
        wraps.plan_result(lambda plan: evolve(plan, wait=None)),
        "a move does not wait for its reader (F17)",
        PLAN,
        "WAIT-1",
    ),
    wrap("withhold-ignored", "advance:advance", wraps.not_withheld, "withheld pages are reusable at once", PLAN, SETS, FIT),
    wrap("any-reader", "advance:check_reader", wraps.any_reader, "a fence of the future is accepted as reader", "MISUSE-1", FIT),
    wrap(
        "resize-forgotten",
        "advance:resize",
        wraps.keeps_total,
        "a resize does not take effect",
        FIT,
        "CHAIN-1",
        SETS,
        "LIMIT-1",
        shape="resized",
    ),
    wrap(
        "clear-without-rows",
        "advance:clear",
        wraps.plan_result(lambda plan: evolve(plan, rows=plan.rows[:0])),
        "clear leaves the device's table",
        PLAN,
    ),
    wrap("band-zero", "plan:triples", wraps.first_band, "moves and fills name the wrong band", PLAN, "BYTE-2"),
    # tables, ids, pins, fences
    wrap(
        "old-value-corrupt", "table:Table.write", wraps.links_new_values, "a write damages the version before it", "INPUT-1", SETS
    ),
    wrap("sink-accepted", "state:by_band", wraps.drops_sink, "the sink can be named", "MISUSE-1"),
    wrap("last-id-missed", "state:ArenaState.frames_of", wraps.next_bands_frame, "translation misses the last id (F16)", "PLAN-2"),
    wrap("pins-not-counted", "pins:_recounted", wraps.pin_once, "a second pin is not counted", SETS, "MISUSE-1"),
    text(
        "unpin-too-often",
        "pins:_recounted",
        "if left < 0:",
        "if left < -1:",
        "unpinning below zero is accepted",
        "MISUSE-1",
        "PIN-1",
    ),
    wrap("retire-one-only", "fences:retire", wraps.ends_at_first, "retire passes one fence only", SETS, "QUAR-1"),
    wrap("launch-forgotten", "fences:launch", wraps.launches_nothing, "a launch gives no new fence", SETS),
    text(
        "retire-the-future",
        "fences:retire",
        "not 0 <= fence <= state.launched",
        "fence < 0",
        "a future fence can be retired",
        "MISUSE-1",
    ),
    # compaction, admission, report
    wrap("compact-no-limit", "compact:_moves_into", wraps.no_limit, "compaction ignores its byte limit", "LIMIT-1"),
    wrap(
        "compact-moves-written",
        "compact:_moves_into",
        wraps.written_move_too,
        "compaction moves pages that the reader writes (F17)",
        PLAN,
    ),
    wrap(
        "compact-no-wait",
        "compact:compact",
        wraps.plan_result(lambda plan: evolve(plan, wait=None)),
        "compaction beside a reader does not wait",
        PLAN,
    ),
    wrap("fold-forgets", "admission:added", wraps.forgets_before, "a budget forgets what it accepted (F47)", "ADMIT-1"),
    wrap("empty-arena-shy", "admission:fits_empty", wraps.empty_cannot, "a request that fits alone is turned away", "PROGRESS-1"),
    wrap("report-loses-a-byte", "report:report", wraps.reports_no_tail, "the report does not add up (F43)", "BYTES-1"),
    # serving
    wrap("slot-off-by-one", "step:write_slots", wraps.next_slot, "tokens are written one slot further (F50, F51)", "SLOT-1"),
)
