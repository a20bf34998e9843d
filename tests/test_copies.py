"""Copies: new pages with the bytes of others, in one event, whatever moves at the same time."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from core_pure.advance import allocate, release
from core_pure.copies import copy
from core_pure.errors import ArenaError, DemandError, FenceError, ForeignPage, PageNotBound, SinkPage
from core_pure.event import content_digest
from core_pure.fences import launch
from core_pure.fits import Fit, Refusal, fits
from core_pure.plan import encode
from core_pure.state import Outcome, initial
from tests.core_states import Carried, bound_pages, layout_of, random_layout, some, where


def test_copies_hold_the_bytes_of_their_sources() -> None:
    """Hundreds of copies among random events: new ids, equal bytes, sources untouched, moved ones copied from their new place."""
    rng, seen = random.Random(1), Counter[str]()
    for _ in range(80):
        carried = Carried(random_layout(rng, rng.choice((1, 2, 3)), 5))
        for number in range(40):
            if number % 8:
                carried.random_event(rng, 3)
                continue
            state = carried.state
            pages = some(rng, bound_pages(state), 3).tolist()
            pages += pages[:1] if rng.random() < 0.3 else []
            demand = tuple(sum(0 < p - band.home.id_base <= band.home.ids_max for p in pages) for band in state.bands)
            answer = copy(state, np.array(pages, np.int64))
            assert isinstance(answer, Outcome) == isinstance(fits(state, demand), Fit)
            if isinstance(answer, Refusal):
                seen["refused"] += 1
                continue
            assert [len(new) for new in answer.pages] == list(demand)
            assert len(answer.plan.fills) == 0
            carried.model.absorb(encode(answer.plan), pages=answer.pages, demand=demand)
            for band, new in zip(state.bands, answer.pages, strict=True):
                named = [page for page in pages if 0 < page - band.home.id_base <= band.home.ids_max]
                for source, target in zip(named, new.tolist(), strict=True):
                    assert carried.model.contents[source] == carried.model.contents[target]
                    assert where(answer.state)[source] != where(answer.state)[target]
            carried.state = answer.state
            carried.compare()
            seen["copied"] += len(pages)
            seen["moved"] += bool(answer.plan.waves)
            for target in np.concatenate(answer.pages).tolist():
                carried.model.write(target)  # what the copy's holder writes later is its own
    assert min(seen.values()) > 5, seen
    assert seen["copied"] > 200


def test_a_copy_waits_for_the_writer_of_its_source() -> None:
    """Beside a launched step the plan waits for it, room or no room; without a reader it does not."""
    state = launch(allocate(initial(layout_of((4, 3), 120)), (3, 3)).state).state
    beside, alone = copy(state, [1], reader=1), copy(state, [1])
    assert isinstance(beside, Outcome)
    assert isinstance(alone, Outcome)
    assert (beside.plan.wait, alone.plan.wait) == (1, None)
    assert beside.state == alone.state


@pytest.mark.parametrize(
    ("pages", "reader", "error"),
    [
        ([0], None, SinkPage),
        ([-3], None, SinkPage),
        ([2], None, PageNotBound),
        ([1, 2], None, PageNotBound),
        ([10**6], None, ForeignPage),
        ([1.0], None, DemandError),
        ([[1]], None, DemandError),
        ([1], 1, FenceError),
    ],
)
def test_bad_copies_change_nothing(pages: object, reader: int | None, error: type[ArenaError]) -> None:
    """Ids that hold nothing, are none, or a reader that was never launched: typed errors, value as before."""
    state = release(allocate(initial(layout_of((4, 3), 120)), (3, 3)).state, [2]).state
    before = content_digest(state)
    with pytest.raises(error):
        copy(state, pages, reader=reader)
    assert content_digest(state) == before


def test_a_copy_of_nothing_is_nothing() -> None:
    """No page named: an empty plan and the same value."""
    state = allocate(initial(layout_of((4, 3), 120)), (3, 3)).state
    answer = copy(state, [])
    assert isinstance(answer, Outcome)
    assert answer.plan.is_empty
    assert answer.state == state
