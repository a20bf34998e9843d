"""Which verdicts are right for an event, told by the reference and by brute force alone."""

from __future__ import annotations

from attrs import evolve

from core_pure.event import Event

from . import brute
from .brute import BruteBand, BruteChain
from .interpreter import band_of
from .reference import OUTCOME, REFUSAL, Reference


def expectation(model: Reference, event: Event) -> frozenset[str]:
    """The verdicts that are right for an event, from the reference alone."""
    pages, reader = event.pages.tolist(), event.reader
    match event.kind:
        case "allocate" | "release" | "advance":
            demand = demand_of(model, event)
            if event.flag:
                misuse = model.expect_pages(pages)
                waiting = dict.fromkeys(pages, model.launched + 1)
                return misuse if misuse != OUTCOME else _withheld(model, demand, waiting)
            return model.expect_advance(pages, demand, reader=reader)
        case "compact":
            late = reader is not None and not 0 <= reader <= model.launched
            return frozenset({"FenceError"}) if late else OUTCOME
        case "pin" | "unpin":
            return model.expect_pages(pages, to=event.kind) - {"DuplicatePage"} or OUTCOME
        case "copy":
            wrong = model.expect_pages(pages, to="pin") - {"DuplicatePage"} - OUTCOME
            verdict = model.expect_advance((), demand_of(model, event), reader=reader)
            return wrong | (verdict - OUTCOME - REFUSAL) if wrong else verdict
        case "retire":
            return OUTCOME if 0 <= (event.number or 0) <= model.launched else frozenset({"FenceError"})
        case "resize":
            return _resized(model, event.number or 0)
        case _:
            return OUTCOME


def demand_of(model: Reference, event: Event) -> tuple[int, ...]:
    """Pages per band that an event takes: of a copy, one per page named."""
    if event.kind == "copy":
        owners = [band_of(model.layout, page) for page in event.pages.tolist()]
        return tuple(owners.count(index) for index in range(len(model.bands)))
    return event.demand or (0,) * len(model.bands)


def _withheld(model: Reference, demand: tuple[int, ...], waiting: dict[int, int]) -> frozenset[str]:
    """Released pages stay where they are until the commit, and nothing moves: does the demand fit now?"""
    if not any(demand):
        return OUTCOME
    for band, wanted, spec in zip(model.bands, demand, model.layout.bands, strict=True):
        most = getattr(spec, "pages_max", None)
        left = sum(1 for page in band.pages if page not in waiting)
        if wanted and most is not None and left + wanted > most:
            return REFUSAL
    free = brute.feasible(chain_of(model, demand, capped=False), brute.NOW)
    return OUTCOME if free else REFUSAL


def _resized(model: Reference, number: int) -> frozenset[str]:
    layout = model.layout
    total = number // 4096 * 4096
    if not layout.sink_bytes <= total <= layout.capacity_bytes:  # type: ignore[attr-defined]
        return frozenset({"LayoutError"})
    chain = evolve(chain_of(model, (0,) * len(model.bands)), total_bytes=total)
    return OUTCOME if brute.feasible(chain, brute.RELIEF) else REFUSAL


def chain_of(
    model: Reference, demand: tuple[int, ...], released: tuple[int, ...] = (), reader: int | None = None, *, capped: bool = True
) -> BruteChain:
    """The reference's sets as a brute-force question; released pages are gone, or wait for ``reader``."""
    bands = []
    for index, (band, spec) in enumerate(zip(model.bands, model.layout.bands, strict=True)):
        pages = {page: frame for page, frame in band.pages.items() if page not in released}
        fences: dict[int, frozenset[int]] = {}
        for frame, fence in band.waiting.items():
            fences[fence] = fences.get(fence, frozenset()) | {frame}
        if reader is not None:
            freed = frozenset(frame for page, frame in band.pages.items() if page in released)
            fences[reader] = fences.get(reader, frozenset()) | freed
        bands.append(
            BruteBand(
                frame_bytes=spec.frame_bytes,
                live=frozenset(pages.values()),
                quarantined=fences,
                pinned=frozenset(frame for page, frame in pages.items() if band.pins[page]),
                ask=demand[index],
                pages_min=getattr(spec, "pages_min", 0),
                pages_max=getattr(spec, "pages_max", None) if capped else None,
            )
        )
    return BruteChain(tuple(bands), model.layout.total_bytes, model.layout.sink_bytes)
