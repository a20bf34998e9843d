"""Compaction moved a small float into the middle of the gap that a band with reserved pages had been promised."""

from __future__ import annotations

import random

from core_pure.advance import allocate
from core_pure.compact import compact
from core_pure.fits import NOW, RELIEF, Fit, Refusal, fits
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin
from core_pure.state import Outcome, initial
from tests.core_states import random_event

LAYOUT = Layout(
    (BandSpec("low", 4), BandSpec("float", 4), BandSpec("kept", 4, pages_min=60), BandSpec("high", 4)), 404, 404
)


def test_a_float_is_not_centred_into_reserved_bytes() -> None:
    """After any compaction, and a pin after it, the reserved pages can still be had without a move."""
    state = allocate(initial(LAYOUT), {"float": 2}).state
    state = compact(state).state
    state = pin(state, [LAYOUT.id_bases[1] + 1]).state
    assert isinstance(fits(state, {"kept": 60}), Fit)
    assert isinstance(fits(state, {"kept": 60}, mode=NOW), Fit)


def test_minima_hold_in_every_reachable_state() -> None:
    """Over 8,000 random events with minima: asking nothing always fits now, and a grant is a grant iff ``fits``."""
    rng, refused = random.Random(4), 0
    for _ in range(40):
        sizes = [rng.choice((2, 3, 5, 7)) for _ in range(rng.choice((2, 3, 4)))]
        bands = tuple(BandSpec(f"b{at}", size, pages_min=rng.choice((0, 0, 3, 6))) for at, size in enumerate(sizes))
        total = max(sizes) + 14 * sum(sizes) + rng.randrange(7)
        state = initial(Layout(bands, total, total))
        for _ in range(200):
            outcome = random_event(rng, state, 4)
            if isinstance(outcome, Outcome):
                state = outcome.state
            nothing = (0,) * len(bands)
            assert isinstance(fits(state, nothing, mode=NOW), Fit)
            demand = tuple(rng.choice((0, 0, 2, 5)) for _ in bands)
            granted = allocate(state, demand)
            assert isinstance(granted, Refusal) == isinstance(fits(state, demand, mode=RELIEF), Refusal)
            refused += isinstance(granted, Refusal)
    assert refused > 400
