"""The brute-force judge is judged itself: against plain enumeration of windows, of sets of bytes, and of moves."""

from __future__ import annotations

import itertools
import random

import pytest

from invariants.brute import (
    NOW,
    RELIEF,
    BruteBand,
    BruteChain,
    Mode,
    after,
    evict,
    feasible,
    least_eviction_bytes,
    obtainable,
    optimum_bytes,
    reachable_by_moves,
    with_ask,
)


def random_chain(
    rng: random.Random, *, bands: int, total: int, load: float = 0.5, sizes_of: tuple[int, ...] = (1, 2, 3, 5, 7)
) -> BruteChain:
    """A chain with frames in any place, bands not even in order: only bytes may not overlap."""
    sizes = [rng.choice(sizes_of) for _ in range(bands)]
    sink = max(sizes)
    free = [True] * total
    placed: list[list[int]] = [[] for _ in sizes]
    edges = sorted(rng.randrange(sink, total + 1) for _ in range(bands - 1))
    starts, ends = [sink, *edges], [*edges, total]
    for index, size in enumerate(sizes):
        for frame in range(-(-starts[index] // size), ends[index] // size):
            if rng.random() < load and all(free[frame * size : (frame + 1) * size]):
                free[frame * size : (frame + 1) * size] = [False] * size
                placed[index].append(frame)
    built = []
    for size, frames in zip(sizes, placed, strict=True):
        kinds = {frame: rng.choice("l" * 14 + "pq") for frame in frames}
        live = frozenset(f for f, kind in kinds.items() if kind != "q")
        pinned = frozenset(f for f, kind in kinds.items() if kind == "p")
        waiting: dict[int, frozenset[int]] = {}
        for frame in sorted(frozenset(frames) - live):
            fence = rng.randrange(2)
            waiting[fence] = waiting.get(fence, frozenset()) | {frame}
        built.append(BruteBand(size, live, waiting, pinned, rng.choice((0, 0, 1, 1, 2, 3))))
    return BruteChain(tuple(built), total, sink)


def dumb_optimum(chain: BruteChain, mode: Mode) -> int | None:
    """All window vectors by one flat product, judged by sets of bytes."""
    per_band: list[list[range]] = []
    needs: list[int] = []
    for index, band in enumerate(chain.bands):
        waiting = {
            frame
            for fence, frames in band.quarantined.items()
            for frame in frames
            if mode.kind != "after" or fence > mode.fence
        }
        must_stay = waiting | (band.live if mode.kind == "now" else band.pinned)
        gone = mode.evicted[index] if mode.evicted else 0
        need = len(band.live) - gone + len(waiting) + band.ask
        needs.append(need)
        frames_total = chain.total_bytes // band.frame_bytes
        windows = [range(low, high) for low in range(frames_total) for high in range(low + 1, frames_total + 1)]
        fitting = [window for window in windows if len(window) >= need and must_stay <= set(window)]
        per_band.append(fitting if need else [range(0)])
    costs = []
    for vector in itertools.product(*per_band):
        spans = [
            (window[0] * band.frame_bytes, (window[-1] + 1) * band.frame_bytes)
            for band, window in zip(chain.bands, vector, strict=True)
            if len(window)
        ]
        starts, ends = [low for low, _ in spans], [high for _, high in spans]
        if all(end <= start for end, start in zip([chain.sink_bytes, *ends], starts, strict=False)):
            costs.append(
                sum(band.frame_bytes * len(band.live - set(w)) for band, w in zip(chain.bands, vector, strict=True))
            )
    return min(costs, default=None)


def test_optimum_equals_flat_enumeration_of_all_window_vectors() -> None:
    """In every mode, feasibility and least bytes equal one flat product over all windows of all bands."""
    rng = random.Random(4)
    answers: dict[tuple[str, bool], int] = {}
    for _ in range(250):
        chain = random_chain(rng, bands=rng.choice((1, 2, 2, 3)), total=rng.randrange(8, 15))
        for mode in (NOW, RELIEF, after(0), after(1)):
            expected = dumb_optimum(chain, mode)
            assert optimum_bytes(chain, mode) == expected, (chain, mode)
            assert feasible(chain, mode) == (expected is not None)
            answers[mode.kind, expected is not None] = answers.get((mode.kind, expected is not None), 0) + 1
        gone = tuple(rng.randrange(len(band.live - band.pinned) + 1) for band in chain.bands)
        assert feasible(chain, evict(gone)) == (dumb_optimum(chain, evict(gone)) is not None), (chain, gone)
    assert min(answers.values()) > 20, answers


def test_windows_cover_what_any_sequence_of_moves_can_reach() -> None:
    """Windows and a search over all legal single moves agree on feasibility, and on the least bytes moved."""
    rng = random.Random(14)
    refused = moved = 0
    for _ in range(900):
        bands = rng.choice((2, 2, 3))
        chain = random_chain(rng, bands=bands, total=rng.randrange(12, 17), load=0.3, sizes_of=(1, 2, 2, 3, 4))
        by_windows, by_moves = optimum_bytes(chain), reachable_by_moves(chain)
        assert by_moves == by_windows, chain
        refused += by_moves is None
        moved += by_moves is not None and by_moves > 0
    assert refused > 40
    assert moved > 40


def test_modes_are_ordered() -> None:
    """What fits now fits after relief, and what fits after relief fits after a fence and after any eviction."""
    rng = random.Random(3)
    for _ in range(500):
        chain = random_chain(rng, bands=3, total=24)
        assert feasible(chain, NOW) <= feasible(chain, RELIEF) <= feasible(chain, after(0)) <= feasible(chain, after(1))
        everything = tuple(len(band.live - band.pinned) for band in chain.bands)
        assert feasible(chain, RELIEF) <= feasible(chain, evict(everything))


def test_F44_an_empty_float_blocks_nobody() -> None:
    """A band that needs nothing is skipped, not rounded up to its grid."""
    low, middle, top = BruteBand(2, ask=3), BruteBand(7), BruteBand(1, live=frozenset({13}))
    chain = BruteChain((low, middle, top), total_bytes=14, sink_bytes=7)
    assert feasible(with_ask(chain, (2, 0, 1)), NOW)
    assert not feasible(with_ask(chain, (2, 1, 0)), RELIEF)


def test_F02_joint_demand_is_less_than_the_marginals() -> None:
    """Four pages of either band fit alone, two of each jointly, four of both never."""
    chain = BruteChain((BruteBand(1), BruteBand(1)), total_bytes=5, sink_bytes=1)
    assert obtainable(chain, 0) == obtainable(chain, 1) == 4
    assert feasible(with_ask(chain, (2, 2)), NOW)
    assert not feasible(with_ask(chain, (4, 4)), RELIEF)


def test_F20_a_pinned_page_stays_and_the_rest_moves() -> None:
    """One pinned frame bounds its band's window; every other frame still makes room."""
    band = BruteBand(1, live=frozenset({3, 5, 6}), pinned=frozenset({5}))
    chain = BruteChain((BruteBand(2), band), total_bytes=8, sink_bytes=2)
    assert optimum_bytes(with_ask(chain, (1, 0))) == 1
    assert reachable_by_moves(with_ask(chain, (1, 0))) == 1
    assert not feasible(with_ask(chain, (2, 0)))


def test_F04_least_eviction_frees_the_fewest_bytes() -> None:
    """One slot of 5 units over a gap of 2 needs three pages of 1 unit evicted, and a pinned page never counts."""
    full = BruteBand(1, live=frozenset(range(7, 15)), pinned=frozenset({14}))
    chain = BruteChain((BruteBand(5, ask=1), full), total_bytes=15, sink_bytes=5)
    assert not feasible(chain, RELIEF)
    assert least_eviction_bytes(chain, (0, 8)) == 3
    assert least_eviction_bytes(chain, (0, 2)) is None


def test_eviction_refuses_pinned_pages() -> None:
    """Evicting more than the unpinned live pages, and the optimum of an eviction, are questions without an answer."""
    band = BruteBand(1, live=frozenset({2, 3}), pinned=frozenset({3}))
    chain = BruteChain((band,), total_bytes=6, sink_bytes=1)
    assert feasible(chain, evict((1,)))
    with pytest.raises(ValueError, match="unpinned"):
        feasible(chain, evict((2,)))
    with pytest.raises(ValueError, match="eviction"):
        optimum_bytes(chain, evict((1,)))


def test_caps_bind_in_every_mode() -> None:
    """A maximum refuses an ask above it whatever the bytes; a minimum keeps its bytes from the neighbour."""
    capped = BruteBand(1, live=frozenset({2}), ask=2, pages_max=2)
    assert not feasible(BruteChain((capped,), total_bytes=20, sink_bytes=1), RELIEF)
    kept = BruteBand(1, pages_min=3)
    chain = BruteChain((BruteBand(2), kept), total_bytes=10, sink_bytes=2)
    assert obtainable(chain, 0) == 2
    assert obtainable(chain, 1) == 8
