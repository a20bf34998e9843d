"""Every contract with its witness, its planted twin, and the values for which it holds.

Not among them, because CrossHair cannot confirm it: windows of two and three bands with *symbolic* frame sizes (products
of unknowns), the search loops of ``relief`` (numpy) and of ``admission`` (unbounded bisection). The first is proved by z3
in ``lemmas``; the others are held to brute force in small worlds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core_pure import chain, fits, layout

from . import contracts_chain as c
from . import contracts_core as k
from . import contracts_geometry as g
from . import contracts_twins as twins
from .contracts import Contract, Twin

ALL, OFF_GRID, SIXTEEN = "all integers", "frames of 96, 7, 5 bytes, all counts and edges", "pages of 16 slots, all other integers"
NOWHERE = chain.NOWHERE


def _twin(module: Any, name: str, function: Callable[..., Any], wrong: str) -> Twin:
    return Twin(module.__name__, name, function, wrong)


# --- the list ----------------------------------------------------------------------------------------------------------

_EDGE = {"edge": 10, "total": 100, "size": 7, "need": 2, "first": 5, "end": 6}
_BELOW = {"edge": 90, "size": 7, "need": 2, "first": 5, "end": 6}

GEOMETRY = (
    Contract(
        g.ceil_div_is_least,
        ("geometry.ceil_div",),
        {"value": 10, "unit": 3},
        _twin(g, "ceil_div", twins.floor_div, "rounds down"),
        ALL,
    ),
    Contract(
        g.align_is_next_multiple,
        ("geometry.align",),
        {"value": 10, "unit": 3},
        _twin(g, "align", lambda value, unit: value // unit * unit, "aligns down"),
        ALL,
    ),
    Contract(
        g.floor_arena_loses_less_than_a_granule,
        ("geometry.floor_arena",),
        {"budget": 9000},
        _twin(g, "floor_arena", lambda budget: budget, "does not floor"),
        ALL,
    ),
    Contract(
        g.row_lies_in_its_page,
        ("geometry.slot_offset",),
        {"before": 16, "stride": 32, "after": 0, "slots": 4, "slot": 3},
        _twin(g, "slot_offset", lambda b, r, e, n, s, major: b * n + s * e, "strides by the entry"),
        "pages of 1–4 slots, all other integers",
    ),
    Contract(
        g.token_row_lies_in_its_page,
        ("geometry.slot_offset",),
        {"before": 16, "stride": 32, "after": 0, "slots": 4, "slot": 3},
        _twin(g, "slot_offset", lambda b, r, e, n, s, major: b * n + s * e, "starts as if layer-major"),
        "pages of 1–4 slots, all other integers",
    ),
    Contract(
        g.slots_do_not_overlap,
        ("geometry.slot_offset",),
        {"before": 16, "stride": 32, "after": 0, "slot": 3, "major": 1},
        _twin(g, "slot_offset", lambda b, r, e, n, s, major: b + s * (r - 1), "a byte short"),
        "pages of 256 slots, all other integers",
    ),
    Contract(
        g.rows_do_not_overlap,
        ("geometry.slot_offset",),
        {"before": 16, "stride": 32, "next_stride": 16, "slot": 3, "other": 0},
        _twin(g, "slot_offset", lambda b, r, e, n, s, major: b + s * r, "rows start one slot apart"),
        SIXTEEN,
    ),
    Contract(
        g.one_slot_orders_agree,
        ("geometry.slot_offset",),
        {"before": 16, "stride": 32, "entry": 64},
        _twin(g, "slot_offset", lambda b, r, e, n, s, major: b * (n + 1 - major), "counts the page twice"),
        ALL,
    ),
    Contract(
        g.row_starts_after_rows_before,
        ("geometry.row_offset",),
        {"before": 16, "slots": 4},
        _twin(g, "row_offset", lambda b, n, major: b, "forgets the slots"),
        ALL,
    ),
    Contract(
        g.window_sees_its_tokens,
        ("geometry.first_visible",),
        {"tokens": 10, "window": 4},
        _twin(g, "first_visible", lambda t, w, chunked: max(0, t - w), "sees one token too many"),
        ALL,
    ),
    Contract(
        g.chunk_sees_its_tokens,
        ("geometry.first_visible",),
        {"tokens": 10, "window": 4},
        _twin(g, "first_visible", lambda t, w, chunked: max(0, t - w), "treats a chunk as a window"),
        ALL,
    ),
    Contract(
        g.window_pages_within_most,
        ("geometry.window_pages", "geometry.window_pages_max"),
        {"tokens": 50, "window": 20},
        _twin(g, "window_pages_max", lambda w, n, step, most: -(-min(most, w) // n), "forgets the alignment"),
        SIXTEEN,
    ),
    Contract(
        g.window_pages_cover_window,
        ("geometry.window_pages",),
        {"tokens": 50, "window": 20},
        _twin(g, "window_pages", lambda t, w, n, chunked: t // n - max(0, t - w + 1) // n, "drops the partial page"),
        SIXTEEN,
    ),
    Contract(
        g.window_most_covers_step,
        ("geometry.window_pages_max",),
        {"window": 20, "slots": 16, "step": 8, "most": 90},
        _twin(g, "window_pages_max", lambda w, n, step, most: min(most, w - 1 + step) // n + 1, "rounds down"),
        ALL,
    ),
    Contract(
        g.table_holds_context_and_drafts,
        ("geometry.table_pages",),
        {"context": 50, "drafts": 3, "slots": 16},
        _twin(g, "table_pages", lambda t, d, n: -(-(t + 4) // n), "forgets the drafts"),
        ALL,
    ),
)

CHAIN = (
    Contract(
        c.edge_above_is_legal, ("chain.edge_above",), _EDGE, _twin(c, "edge_above", twins.no_hull, "leaves the hull outside"), ALL
    ),
    Contract(
        c.edge_above_is_least,
        ("chain.edge_above",),
        {**_EDGE, "other": 4, "end_other": 8},
        _twin(c, "edge_above", twins.one_too_high, "one frame too high"),
        ALL,
    ),
    Contract(c.edge_below_is_legal, ("chain.edge_below",), _BELOW, _twin(c, "edge_below", twins.below_ceil, "rounds up"), ALL),
    Contract(
        c.edge_below_is_highest,
        ("chain.edge_below",),
        {**_BELOW, "other": 4, "end_other": 8},
        _twin(c, "edge_below", twins.below_too_low, "one frame too low"),
        ALL,
    ),
    Contract(
        c.empty_band_is_skipped,
        ("chain.edge_above", "chain.edge_below"),
        {"edge": 10, "total": 100, "size": 7, "first": 5, "end": 6},
        _twin(c, "edge_above", twins.rounds_empty, "rounds an empty band to its grid"),
        ALL,
    ),
    Contract(
        c.window_keeps_its_hull,
        ("chain.window",),
        {"low": 1, "high": 20, "need": 6, "first": 5, "end": 7, "lean": 0},
        _twin(c, "window", twins.drops_hull, "leaves the hull"),
        ALL,
    ),
    Contract(
        c.new_window_lies_in_its_room,
        ("chain.window",),
        {"low": 1, "high": 20, "need": 6, "lean": 0},
        _twin(c, "window", twins.never_centred, "a new float at the edge"),
        ALL,
    ),
    Contract(
        c.one_band_placed_or_refused,
        ("chain.windows", "chain.refused_at"),
        {"size": 7, "need": 2, "first": 5, "end": 6, "sink": 7, "total": 100},
        _twin(c, "windows", twins.windows_timid, "keeps a frame back"),
        ALL,
    ),
    Contract(
        c.two_bands_placed_or_refused,
        ("chain.windows", "chain.ceilings", "chain.refused_at"),
        {"need": 2, "first": 5, "end": 6, "need_b": 3, "first_b": 12, "end_b": 13, "sink": 7, "total": 100},
        _twin(c, "windows", twins.windows_overlap, "a window reaches into its neighbour"),
        OFF_GRID,
    ),
    Contract(
        c.three_bands_placed_or_refused,
        ("chain.windows", "chain.ceilings", "chain.refused_at"),
        {"need": 1, "need_b": 2, "need_c": 3, "sink": 96, "total": 400},
        _twin(c, "windows", twins.windows_timid, "keeps a frame back"),
        OFF_GRID,
    ),
    Contract(
        c.two_bands_refused_only_if_impossible,
        ("chain.refused_at",),
        {"need": 2, "need_b": 3, "sink": 7, "total": 100, "other": 2, "other_b": 8},
        _twin(c, "refused_at", twins.refused_early, "a byte kept back"),
        OFF_GRID,
    ),
    Contract(
        c.three_bands_refused_only_if_impossible,
        ("chain.refused_at",),
        {"need": 1, "need_b": 2, "need_c": 3, "sink": 96, "over": 1, "over_b": 30, "over_c": 50, "spare": 4},
        _twin(c, "refused_at", twins.refused_early, "a byte kept back"),
        OFF_GRID,
    ),
    Contract(
        c.nothing_promised_beyond_bytes,
        ("chain.refused_at",),
        {"need": 1, "need_b": 2, "need_c": 3, "sink": 96, "total": 400},
        _twin(c, "refused_at", twins.refused_by_pages, "rounds edges down"),
        OFF_GRID,
    ),
    Contract(
        c.ceilings_fall,
        ("chain.ceilings",),
        {"need": 1, "need_b": 2, "sink": 7, "total": 100},
        _twin(c, "ceilings", twins.ceilings_flat, "ignores the bands above"),
        OFF_GRID,
    ),
    Contract(
        c.room_of_one_is_most,
        ("chain.room",),
        {"size": 7, "sink": 7, "total": 100},
        _twin(c, "room", twins.room_by_bytes, "counts bytes, not frames"),
        ALL,
    ),
    Contract(
        c.room_of_two_is_most,
        ("chain.room",),
        {"need_b": 2, "sink": 7, "total": 100},
        _twin(c, "room", twins.room_by_bytes, "counts bytes, not frames"),
        OFF_GRID,
    ),
    Contract(
        c.room_of_three_is_most,
        ("chain.room",),
        {"need": 1, "need_c": 2, "sink": 96, "total": 400},
        _twin(c, "room", twins.room_less, "hides one frame"),
        OFF_GRID,
    ),
    Contract(
        c.leans_point_outward, ("chain.leans",), {"bands": 3}, _twin(c, "leans", twins.all_down, "all lean down"), "2–6 bands"
    ),
)

CORE = (
    Contract(
        k.claim_needs_what_is_kept,
        ("fits.claim", "fits.frames_kept"),
        {"live": 4, "waiting": 2, "pages": 1, "evicted": 1, "least": 0},
        _twin(fits, "frames_kept", twins.forgets_quarantine, "forgets the quarantine"),
        ALL,
    ),
    Contract(
        k.claim_now_keeps_the_span,
        ("fits.claim",),
        {"live": 4, "waiting": 2, "low": 1, "high": 9, "pages": 1},
        _twin(k, "claim", twins.claims_span, "span one frame short"),
        ALL,
    ),
    Contract(
        k.waiting_never_needs_more,
        ("fits.frames_kept",),
        {"live": 4, "fence": 2, "other": 5, "wait": 3},
        _twin(k, "frames_kept", twins.counts_all_batches, "counts quarantine that has passed"),
        "two batches, all other integers",
    ),
    Contract(
        k.peak_covers_tokens,
        ("layout.BandSpec.pages_peak",),
        {"tokens": 50, "chunk": 8},
        _twin(layout, "ceil_div", twins.floor_div, "rounds a request's pages down"),
        SIXTEEN,
    ),
    Contract(
        k.peak_of_window_is_bounded,
        ("layout.BandSpec.pages_peak",),
        {"tokens": 50, "chunk": 8, "window": 20},
        _twin(layout, "window_pages_max", lambda w, n, step, most: w // n, "charges the window rounded down"),
        SIXTEEN,
    ),
    Contract(
        k.peak_grows_with_tokens,
        ("layout.BandSpec.pages_peak",),
        {"tokens": 50, "more": 7, "chunk": 8},
        _twin(layout, "ceil_div", lambda value, unit: value % unit, "not monotone"),
        SIXTEEN,
    ),
    Contract(
        k.state_charge_is_fixed,
        ("layout.BandSpec.pages_peak",),
        {"tokens": 50, "chunk": 8, "fixed": 3},
        _twin(k, "BandSpec", lambda *a, **kw: layout.BandSpec("x", 7), "tracking slots are not charged"),
        ALL,
    ),
    Contract(
        k.fold_adds_every_band,
        ("admission.added",),
        {"a": 1, "b": 2, "more_a": 3, "more_b": 4},
        _twin(k, "added", twins.adds_first_twice, "adds the first band everywhere"),
        ALL,
    ),
    Contract(
        k.smaller_fold_fits_too,
        ("admission.fits_empty", "layout.claims_of_empty"),
        {"a": 3, "b": 2, "less_a": 1, "less_b": 2, "total": 100},
        _twin(k, "fits_empty", twins.fits_by_parity, "not monotone"),
        OFF_GRID,
    ),
    Contract(
        k.floor_admits_its_demand,
        ("layout.smallest_total", "admission.fits_empty"),
        {"a": 3, "b": 2},
        _twin(k, "smallest_total", twins.total_without_sink, "forgets the sink"),
        "two bands, demands up to 4,096",
    ),
    Contract(
        k.minimum_is_claimed,
        ("layout.claims_of_empty",),
        {"asked": 1, "least": 3},
        _twin(k, "claims_of_empty", twins.ignores_minimum, "ignores the minimum"),
        ALL,
    ),
)

CONTRACTS: tuple[Contract, ...] = (*GEOMETRY, *CHAIN, *CORE)
