"""Relief moves the fewest bytes that any relief could, in few waves, and every byte survives."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from attrs import evolve

from core_pure.advance import allocate, release
from core_pure.band import nearest_holes
from core_pure.chain import Claim
from core_pure.event import content_digest
from core_pure.fits import NOW, RELIEF, Fit, Refusal, fits
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin
from core_pure.plan import encode
from core_pure.relief import cheapest_windows
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify
from invariants.brute import NOW as AS_IT_STANDS
from invariants.brute import BruteBand, BruteChain, feasible, optimum_bytes, reachable_by_moves, with_ask
from invariants.interpreter import Occupancy, check_hazards
from invariants.reference import Reference
from tests.core_states import bound_pages, build, bytes_moved, sets_of, where
from tests.test_brute import random_chain

WORLDS_PER_SHARD = 2_500
SHARDS = 20
"""20 shards of 2,500 worlds are 50,000; the first two run everywhere, the others with the evidence."""
SEARCHED = 2_000


def occupancy(state: ArenaState) -> Occupancy:
    """Who holds which frames, for the plan checker."""
    pages: list[dict[int, int]] = []
    waiting: list[dict[int, frozenset[int]]] = []
    for band, sets in zip(state.bands, sets_of(state, (0,) * len(state.bands)).bands, strict=True):
        frames = band.live_frames()
        ids = band.page_of.read(frames) + band.home.id_base
        pages.append(dict(zip(ids.tolist(), frames.tolist(), strict=True)))
        waiting.append(dict(sets.quarantined))
    pinned = tuple(frozenset(band.home.id_base + page for page in band.held.pins) for band in state.bands)
    return Occupancy(tuple(pages), tuple(waiting), pinned)


def judge(chain: BruteChain) -> str:
    """Allocate in one world and hold the answer to brute force. Returns: what happened."""
    state = build(chain)
    demand = tuple(band.ask for band in chain.bands)
    least = optimum_bytes(chain)
    answer = allocate(state, demand)
    assert isinstance(answer, Refusal) == (least is None), chain
    if isinstance(answer, Refusal):
        return "refused"
    assert bytes_moved(state, answer.plan) == least, (chain, answer.plan)
    assert len(answer.plan.waves) <= max(1, len(chain.bands) - 1), (chain, answer.plan.waves)
    assert list(check_hazards(encode(answer.plan), occupancy(state), state.layout)) == [], chain
    sources = [tuple(row[:2]) for wave in answer.plan.waves for row in wave.tolist()]
    assert len(set(sources)) == len(sources), "a frame moves twice"
    assert verify(answer.state) == [], chain
    return f"{len(answer.plan.waves)} waves"


@pytest.mark.parametrize(
    "shard", [pytest.param(at, marks=[pytest.mark.slow] if at > 1 else []) for at in range(SHARDS)]
)
def test_relief_is_the_optimum_of_all_window_vectors(shard: int) -> None:
    """In random worlds of 2–4 bands with pins and quarantine: granted iff a packing exists, fewest bytes, few waves."""
    rng, seen = random.Random(1000 + shard), Counter[str]()
    for _ in range(WORLDS_PER_SHARD):
        bands = rng.choice((2, 3, 3, 4))
        load = rng.choice((0.3, 0.5, 0.7))
        seen[judge(random_chain(rng, bands=bands, total=rng.randrange(16, 50), load=load))] += 1
    assert seen["refused"] > WORLDS_PER_SHARD // 10, seen
    assert seen["1 waves"] > WORLDS_PER_SHARD // 20, seen
    assert seen["2 waves"] > 0, seen


def test_relief_is_the_optimum_of_all_sequences_of_moves() -> None:
    """In 2,000 tiny worlds no sequence of single legal moves, however long, gets by with fewer bytes."""
    rng, seen = random.Random(77), Counter[str]()
    for _ in range(SEARCHED):
        bands = rng.choice((2, 2, 3))
        chain = random_chain(rng, bands=bands, total=rng.randrange(12, 17), load=0.4, sizes_of=(1, 2, 2, 3, 4))
        answer = allocate(build(chain), tuple(band.ask for band in chain.bands))
        by_moves = reachable_by_moves(chain)
        moved = None if isinstance(answer, Refusal) else bytes_moved(build(chain), answer.plan)
        assert moved == by_moves, chain
        seen["refused" if moved is None else "moved" if moved else "free"] += 1
    assert min(seen[kind] for kind in ("refused", "moved", "free")) > SEARCHED // 40, seen


def test_caps_take_part_in_the_optimum() -> None:
    """With minimum and maximum pages per band, relief still grants exactly what fits, with the fewest bytes."""
    rng, seen = random.Random(5), Counter[str]()
    for _ in range(1_500):
        chain = random_chain(rng, bands=rng.choice((2, 3)), total=rng.randrange(16, 44), load=0.4)
        capped = []
        for band in chain.bands:
            low = rng.choice((0, 0, 1, 2, len(band.live) + 1))
            high = rng.choice((None, None, low + rng.randrange(4), len(band.live) + 1))
            most = None if high is None or high < low else high
            capped.append(
                BruteBand(band.frame_bytes, band.live, band.quarantined, band.pinned, band.ask, low, most)
            )
        world = BruteChain(tuple(capped), chain.total_bytes, chain.sink_bytes)
        if any(chain.bands[at].ask for at in range(len(capped))) and feasible(with_ask(world, (0,) * len(capped)), AS_IT_STANDS):
            seen[judge(world)] += 1
    assert min(seen["refused"], seen["1 waves"]) > 30, seen


def test_bytes_survive_relief() -> None:
    """The plans of 400 reliefs, carried out word by word on real bytes, lose no byte and zero every new page."""
    rng, moved = random.Random(6), 0
    while moved < 400:
        chain = random_chain(rng, bands=rng.choice((2, 3, 4)), total=rng.randrange(20, 60), load=0.6)
        state = build(chain)
        answer = allocate(state, tuple(band.ask for band in chain.bands))
        if isinstance(answer, Refusal) or not answer.plan.waves:
            continue
        moved += 1
        model = Reference(state.layout)
        model.launched = state.launched
        held = occupancy(state)
        for at, band in enumerate(model.bands):
            band.pages = dict(held.pages[at])
            band.waiting = {frame: fence for fence, frames in held.quarantined[at].items() for frame in frames}
            band.pins.update(held.pinned[at])
            for frame in band.waiting:
                model.left_to_read[at, frame] = bytes(model._read(at, frame))
            for page, frame in band.pages.items():
                model.table[page] = frame
                model.write(page)
        model.absorb(encode(answer.plan), pages=answer.pages, demand=tuple(band.ask for band in chain.bands))
        assert [dict(band.pages) for band in model.bands] == [dict(pages) for pages in occupancy(answer.state).pages]


def test_windows_do_not_depend_on_page_names() -> None:
    """The same frames under other page ids give the same windows and the same frames moved."""
    rng = random.Random(8)
    for _ in range(200):
        chain = random_chain(rng, bands=3, total=40, load=0.6)
        state, demand = build(chain), tuple(band.ask for band in chain.bands)
        renamed = initial(state.layout)
        for at, band in enumerate(state.bands):
            order = rng.sample(range(band.live), band.live)
            frames = band.live_frames()[order]
            ids = np.arange(1, band.live + 1)
            other = build(chain).bands[at]
            pins = {int(page): 1 for page, frame in zip(ids, frames, strict=True) if int(frame) in chain.bands[at].pinned}
            other = evolve(
                other,
                frame_of=other.frame_of.write(ids, frames),
                page_of=other.page_of.write(frames, ids),
                held=evolve(other.held, pins=pins),
            )
            renamed = renamed.with_bands((*renamed.bands[:at], other, *renamed.bands[at + 1 :]))
        first, second = allocate(state, demand), allocate(renamed, demand)
        if isinstance(first, Outcome):
            assert isinstance(second, Outcome)
            assert [wave.tolist() for wave in first.plan.waves] == [wave.tolist() for wave in second.plan.waves]


def test_the_nearest_holes_are_the_nearest() -> None:
    """Bands of several blocks, holes scattered, in runs, or at block edges: exactly the k lowest, or the k highest, in order."""
    rng = random.Random(12)
    for _ in range(200):
        frames = rng.choice((1000, 1024, 1025, 3000, 5000))
        state = allocate(initial(Layout((BandSpec("a", 1),), frames + 1, frames + 1)), (frames,)).state
        start, count = rng.randrange(1, frames + 1), rng.randrange(1, frames)
        gone = rng.sample(range(1, frames + 1), count) if rng.random() < 0.5 else range(start, min(frames, start + count) + 1)
        band = release(state, np.array(gone)).state.bands[0]
        holes = band.hole_frames().tolist()
        if holes:
            wanted = rng.randint(1, len(holes))
            assert nearest_holes(band, wanted, from_top=False).tolist() == holes[:wanted]
            assert nearest_holes(band, wanted, from_top=True).tolist() == holes[::-1][:wanted]


# --- cases ---------------------------------------------------------------------------------------------------------------


def test_F20_one_pinned_page_and_the_rest_moves() -> None:
    """One page of the top band is pinned, its neighbour wants bytes: all others may move, the pinned one stays."""
    layout = Layout((BandSpec("low", 8), BandSpec("high", 4)), 8 + 160, 8 + 160)
    state = allocate(initial(layout), {"high": 40}).state
    pages = bound_pages(state)
    frames = where(state)
    by_frame = sorted(pages, key=lambda page: frames[page])
    kept = by_frame[20]
    state = release(state, by_frame[21:]).state
    state = pin(state, [kept]).state
    # 20 movable pages lie below the pinned one, 19 holes above: all but one can go up.
    obtainable = fits(state, {"low": 999})
    assert isinstance(obtainable, Refusal)
    pages_low = obtainable.bands[0].after_relief
    assert pages_low == 19 // 2
    granted = allocate(state, {"low": pages_low})
    assert isinstance(granted, Outcome)
    assert where(granted.state)[kept] == frames[kept]
    assert granted.plan.moves == 2 * pages_low
    assert isinstance(allocate(state, {"low": pages_low + 1}), Refusal)


def test_F22_relief_that_cannot_succeed_copies_nothing() -> None:
    """An ask one page above what packing can open is refused with the true figure; value unchanged, no plan."""
    rng, tried = random.Random(9), 0
    while tried < 300:
        chain = random_chain(rng, bands=3, total=48, load=0.5)
        state, at = build(chain), rng.randrange(3)
        refused = fits(state, tuple(10**6 if band == at else 0 for band in range(3)))
        assert isinstance(refused, Refusal)
        most = refused.bands[at].after_relief
        just_above = tuple(most + 1 if band == at else 0 for band in range(3))
        before = content_digest(state)
        answer = allocate(state, just_above)
        assert isinstance(answer, Refusal)
        assert content_digest(state) == before
        assert isinstance(fits(state, tuple(most if band == at else 0 for band in range(3))), Fit) or most == 0
        tried += most > 0


def test_F23_a_large_band_gives_way_with_the_fewest_bytes() -> None:
    """50,000 frames with 30 % holes, the neighbour asks for the bytes of 5,000 of them: only live frames in the way move."""
    frames, asked = 50_000, 5_000
    layout = Layout((BandSpec("low", 512), BandSpec("high", 256)), 512 + 256 * frames, 512 + 256 * frames)
    state = allocate(initial(layout), {"high": frames}).state
    rng = np.random.default_rng(3)
    state = release(state, rng.permutation(bound_pages(state))[: frames * 3 // 10]).state
    high = state.bands[1]
    in_the_way = int((high.live_frames() < 2 + asked).sum())
    answer = allocate(state, {"low": asked // 2})
    assert isinstance(answer, Outcome)
    assert answer.plan.moves == in_the_way
    assert 0.65 * asked < in_the_way < 0.75 * asked
    assert len(answer.plan.waves) == 1
    targets = answer.plan.waves[0][:, 2]
    assert len(np.unique(targets)) == in_the_way
    assert targets.min() >= 2 + asked
    assert not np.isin(targets, high.live_frames()).any()
    assert verify(answer.state) == []


def test_F24_a_float_gives_way_by_less_than_its_length() -> None:
    """Pressed from below, a float moves only the frames outside its new window, into frames that were free."""
    layout = Layout((BandSpec("low", 7), BandSpec("float", 5), BandSpec("high", 3)), 400, 400)
    state = allocate(initial(layout), {"float": 30}).state
    span = state.bands[1]
    answer = allocate(state, {"low": (span.low * 5 - 7) // 7 + 4})
    assert isinstance(answer, Outcome)
    after = answer.state.bands[1]
    assert span.low < after.low < span.high, "the windows overlap"
    assert answer.plan.moves == after.low - span.low
    sources, targets = answer.plan.waves[0][:, 1], answer.plan.waves[0][:, 2]
    assert sources.max() < after.low
    assert targets.min() >= span.high
    assert list(check_hazards(encode(answer.plan), occupancy(state), layout)) == []
    pressed = allocate(answer.state, {"high": 20, "low": 3})
    assert isinstance(pressed, Outcome)
    assert verify(pressed.state) == []


def test_ties_go_to_lower_edges() -> None:
    """Where two cuts cost the same, the lower one is taken: a frame in the middle of two gaps stays low."""
    live = np.array([4, 5, 6, 7])
    claims = [(Claim(1, 2), live[:0]), (Claim(1, 4), live), (Claim(1, 2), live[:0])]
    assert cheapest_windows(claims, 1, 12) == (0, [(1, 3), (3, 8), (8, 10)])


def test_modes_of_a_full_arena() -> None:
    """Nothing fits now, something fits after relief, and relief without pins packs everything that there is."""
    layout = Layout((BandSpec("low", 3), BandSpec("high", 2)), 64, 64)
    state = allocate(initial(layout), {"high": 30}).state
    pages = bound_pages(state)
    state = release(state, pages[::2]).state
    assert isinstance(fits(state, {"low": 10}, mode=NOW), Refusal)
    assert isinstance(fits(state, {"low": 10}, mode=RELIEF), Fit)
    answer = allocate(state, {"low": 10})
    assert isinstance(answer, Outcome)
    assert isinstance(fits(answer.state, {"low": 1}), Refusal)
    assert isinstance(fits(answer.state, {"high": 1}), Refusal)


def test_of_equal_ends_and_bytes_the_lower_edges_below_win() -> None:
    """Two ways to the same end at the same price: each band below stands as low as it can, from the top band down."""
    chain = [(Claim(2, 1, lean=-1), [3]), (Claim(2, 7), [5, 6, 8]), (Claim(2, 3), [10, 12, 13]), (Claim(3, 0, lean=1), [])]
    bands = [(claim, np.array(live, np.intp)) for claim, live in chain]
    assert cheapest_windows(bands, 3, 47) == (2, [(2, 3), (3, 10), (10, 14), (0, 0)])
