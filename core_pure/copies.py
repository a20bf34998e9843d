"""Copying pages: snapshots of states, and the partial page of a fork. One event, so that recordings and digests carry it."""

from __future__ import annotations

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from .advance import advance
from .band import Band
from .errors import PageNotBound
from .fits import Refusal
from .plan import NO_MOVES, stack, triples
from .state import ArenaState, Outcome, by_band


def copy(state: ArenaState, pages: object, *, reader: int | None = None) -> Outcome | Refusal:
    """Take one new page per page named, and give it the same bytes. The pages named keep theirs.

    Args: pages: page ids of any bands, pinned ones too; a page named twice gets two copies. reader: the newest launched step
    that may still run off-stream; it may be writing these pages, so the plan waits for it.
    Returns: an Outcome whose ``pages`` are the copies per band, in the order named; or a Refusal, nothing changed.
    Raises: PageNotBound, SinkPage, ForeignPage, DemandError, FenceError. Cost: that of ``allocate``.
    """
    sources = by_band(state, pages)
    for at, ids in sources.items():
        _check_bound(state.bands[at], ids)
    demand = tuple([len(sources[at]) if at in sources else 0 for at in range(len(state.bands))])
    outcome = advance(state, demand=demand, reader=reader)
    if isinstance(outcome, Refusal) or not sources:
        return outcome
    after = outcome.state
    copies = [
        triples(at, after.bands[at].frame_of.read(ids), after.frames_of(outcome.pages[at])) for at, ids in sorted(sources.items())
    ]
    return Outcome(after, evolve(outcome.plan, copies=stack(copies, NO_MOVES), fills=NO_MOVES, wait=reader), outcome.pages)


def _check_bound(band: Band, ids: NDArray[np.intp]) -> None:
    loose = ids[band.frame_of.read(ids) < 0]
    if len(loose):
        raise PageNotBound(f"{band.name}: page {band.home.id_base + int(loose[0])} holds nothing, so it cannot be copied")
