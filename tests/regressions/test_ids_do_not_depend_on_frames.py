"""A step handed released pages straight on only where nothing had to move, so that page ids depended on frame positions."""

from __future__ import annotations

import random

import numpy as np

from core_pure.advance import advance
from core_pure.compact import compact
from core_pure.door import Door
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, build_layout
from core_pure.state import Outcome, initial
from tests.core_states import bound_pages, random_layout, some

LAYOUT = build_layout(
    [
        BandSpec("state", 700, retention="state"),
        BandSpec("window-16", 300, slots_per_page=4, retention="window", window=16),
        BandSpec("full", 520, slots_per_page=4),
    ],
    7 * 4096,
)


def served(eager: bool, seed: int) -> list[object]:
    """The pages of every lease after each of 100 steps, with or without compaction after each."""
    rng, door, story, alive = random.Random(seed), Door(LAYOUT, sequences=16, context=400, chunk=16), [], []
    for _ in range(100):
        ended = [lease for lease in alive if rng.random() < 0.12]
        fresh = door.open(2 if rng.random() < 0.4 and len(alive) < 12 else 0).tolist()
        alive = [lease for lease in alive if lease not in ended] + fresh
        tokens = np.array([rng.choice((1, 1, 1, 7, 16)) if lease in fresh else 1 for lease in alive], np.int64)
        result = door.step(np.array(alive, np.int64), tokens, np.array(ended, np.int64))
        if isinstance(result, Refusal):
            door.step(alive[:0], alive[:0], np.array(alive + ended, np.int64))
            alive = []
        story.append([[pages.tolist() for pages in door.pages(lease)] for lease in alive])
        if eager:
            door.compact()
    return story


def test_served_lazily_or_eagerly_each_lease_has_the_same_pages() -> None:
    """Twenty traces through the door: compaction after every step changes frames, never which pages a lease holds."""
    assert all(served(False, seed) == served(True, seed) for seed in range(20))


def test_a_packed_arena_hands_out_the_same_ids() -> None:
    """The same step on a value and on its compacted twin: same ids in the same order, and the same ids free afterwards."""
    rng, relieved = random.Random(3), 0
    for _ in range(150):
        state = initial(random_layout(rng, rng.choice((2, 3)), 4))
        for _ in range(15):
            gone, demand = some(rng, bound_pages(state), 5), tuple(rng.randrange(4) for _ in state.bands)
            first, second = (advance(each, release=gone, demand=demand) for each in (state, compact(state).state))
            assert isinstance(first, Refusal) == isinstance(second, Refusal)
            if isinstance(first, Outcome) and isinstance(second, Outcome):
                relieved += bool(first.plan.waves) != bool(second.plan.waves)
                assert [pages.tolist() for pages in first.pages] == [pages.tolist() for pages in second.pages]
                for one, two in zip(first.state.bands, second.state.bands, strict=True):
                    assert (one.live, one.spare, one.fresh) == (two.live, two.spare, two.fresh)
                    assert one.ids.read(slice(0, one.spare)).tolist() == two.ids.read(slice(0, two.spare)).tolist()
                state = first.state
    assert relieved > 10
