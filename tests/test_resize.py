"""Clearing gives the first value back; resizing moves the fewest bytes or refuses."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from core_pure.advance import advance, allocate, clear, resize
from core_pure.errors import LayoutError
from core_pure.fits import RELIEF, Fit, Refusal, fits
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin
from core_pure.state import Outcome, initial
from core_pure.verify import verify
from invariants import brute
from tests.core_states import bound_pages, bytes_moved, histories, layout_of, sets_of, some, where


def test_clear_gives_the_empty_arena() -> None:
    """Whatever is pinned, quarantined or live: afterwards the value equals the first one, and each live page has a row -1."""
    for number, state in zip(range(100), histories(3, bands=(1, 2, 3), frames=6, steps=30), strict=False):
        answer = clear(state)
        assert answer.state == initial(state.layout), number
        assert sorted(answer.plan.rows[:, 0].tolist()) == bound_pages(state).tolist()
        assert set(answer.plan.rows[:, 1].tolist()) <= {-1}


def test_resize_down_and_up_again() -> None:
    """Shrinking moves the fewest bytes or refuses; growing back to the capacity never moves; ids and bytes stay."""
    layout = Layout((BandSpec("a", 700), BandSpec("b", 500), BandSpec("c", 300)), 32_768, 32_768)
    state = allocate(initial(layout), (8, 8, 8)).state
    places = where(state)
    smaller = resize(state, 16_384 + 5)
    assert isinstance(smaller, Outcome)
    assert smaller.state.layout.total_bytes == 16_384
    assert verify(smaller.state) == []
    assert set(where(smaller.state)) == set(places)
    assert bytes_moved(state, smaller.plan) == 8 * 300 + 8 * 500, "the float stood in the middle, above the new top"
    assert isinstance(resize(smaller.state, 8_192), Refusal)
    back = resize(smaller.state, 32_768)
    assert isinstance(back, Outcome)
    assert back.plan.is_empty
    assert isinstance(fits(back.state, (20, 0, 0), mode=RELIEF), Fit)
    for bytes_wanted in (32_768 + 4096, 0, -4096):
        with pytest.raises(LayoutError, match="resize"):
            resize(state, bytes_wanted)


def test_resize_moves_the_fewest_bytes() -> None:
    """Random arenas of large frames shrunk by a third: granted iff what is live packs below, with the least bytes."""
    rng, seen = random.Random(15), Counter[str]()
    while sum(seen.values()) < 150:
        sizes = [rng.choice((410, 530, 690, 850)) for _ in range(rng.choice((1, 2, 3)))]
        state = initial(layout_of(sizes, 3 * 4096))
        for _ in range(12):
            answer = advance(
                state,
                release=some(rng, bound_pages(state), 4),
                demand=tuple(rng.randrange(3) for _ in sizes),
            )
            state = answer.state if isinstance(answer, Outcome) else state
        state = pin(state, some(rng, bound_pages(state), rng.choice((0, 0, 1)))).state
        chain = brute.BruteChain(sets_of(state, (0,) * len(sizes)).bands, 2 * 4096, state.layout.sink_bytes)
        smaller, least = resize(state, 2 * 4096), brute.optimum_bytes(chain)
        assert isinstance(smaller, Refusal) == (least is None)
        if isinstance(smaller, Outcome):
            assert bytes_moved(state, smaller.plan) == least
            assert verify(smaller.state) == []
        seen["refused" if least is None else "moved" if least else "free"] += 1
    assert min(seen.values()) > 5, seen
