"""``fits`` is exact in every mode, its figures are what can be had, and the chain arithmetic behind it agrees with itself."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from core_pure.advance import allocate, release
from core_pure.chain import NOWHERE, Claim, refused_at, room, windows
from core_pure.errors import DemandError, FenceError
from core_pure.event import content_digest
from core_pure.fences import launch, retire
from core_pure.fits import NOW, RELIEF, Fit, Refusal, after, fits, joint_maximum, obtainable
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin, unpin
from core_pure.state import ArenaState, Outcome, initial
from invariants import brute
from tests.core_states import bound_pages, bytes_moved, histories, layout_of, random_event, sets_of

STATES_PER_SHARD = 2_500
SHARDS = 4
CAPACITY_STATES = 600
CAPACITY_SEED = 20_240_601


def yes(answer: object) -> bool:
    """A Fit is a yes, a Refusal a no."""
    assert isinstance(answer, Fit | Refusal)
    return isinstance(answer, Fit)


def pointed_demand(rng: random.Random, state: ArenaState, aim: str) -> tuple[int, ...]:
    """A demand near a boundary of one kind: what fits now, needs relief, or just does not fit; others ask a little.

    Empty where relief is aimed at and no band could gain by it.
    """
    figures = [(obtainable(state, at, NOW), obtainable(state, at, RELIEF)) for at in range(len(state.bands))]
    gaining = [at for at, (now, relief) in enumerate(figures) if relief > now]
    if aim == "relief" and not gaining:
        return ()
    at = rng.choice(gaining) if aim == "relief" else rng.randrange(len(state.bands))
    now, relief = figures[at]
    pages = {
        "now": rng.randint(0, max(0, now)),
        "relief": relief if rng.random() < 0.5 else rng.randint(min(now + 1, relief), relief),
        "beyond": relief + 1,
    }[aim]
    share = rng.random() < 0.3
    return tuple(
        pages if band == at else rng.choice((0, 0, 1, 2)) if share else 0 for band in range(len(state.bands))
    )


@pytest.mark.parametrize("shard", range(SHARDS))
def test_fits_equals_brute_force_in_every_mode(shard: int) -> None:
    """In 2,500 reachable states of 2–4 off-grid bands: now, relief, after each fence, after eviction; many of each answer."""
    rng, seen = random.Random(300 + shard), Counter[str]()
    states = histories(200 + shard, bands=(2, 3, 3, 4), frames=4, steps=60, most=3)
    asked = 0
    while asked < STATES_PER_SHARD:
        state = next(states)
        demand = pointed_demand(rng, state, rng.choices(("now", "relief", "beyond"), (1, 6, 3))[0])
        if not demand:
            continue
        asked += 1
        chain = sets_of(state, demand)
        now, relief = brute.feasible(chain, brute.NOW), brute.feasible(chain, brute.RELIEF)
        assert yes(fits(state, demand, mode=NOW)) == now, (chain, demand)
        assert yes(fits(state, demand)) == relief, (chain, demand)
        assert isinstance(allocate(state, demand), Outcome) == relief
        for fence in range(state.retired, state.launched + 1):
            assert yes(fits(state, demand, mode=after(fence))) == brute.feasible(chain, brute.after(fence)), (chain, fence)
        gone = tuple(rng.randint(0, len(band.live - band.pinned)) for band in chain.bands)
        evicted = brute.feasible(chain, brute.evict(gone))
        assert yes(fits(state, demand, evictable=gone)) == evicted, (chain, gone)
        free = chain.total_bytes - chain.sink_bytes - sum(
            band.frame_bytes * (len(band.live) + band.ask + sum(map(len, band.quarantined.values()))) for band in chain.bands
        )
        seen["refused"] += not relief
        seen["refused by rounding or pins alone"] += not relief and free >= 0
        seen["refused by rounding alone"] += (
            not relief and free >= 0 and not any(band.pinned or band.quarantined for band in chain.bands)
        )
        seen["needs relief"] += relief and not now
        seen["saved by a fence"] += not relief and brute.feasible(chain, brute.after(state.launched))
        seen["saved by eviction"] += not relief and evicted
    assert seen["refused"] >= 0.3 * STATES_PER_SHARD, seen
    assert seen["needs relief"] >= 0.3 * STATES_PER_SHARD, seen
    assert min(seen.values()) > 10, seen


def test_fits_with_caps_equals_brute_force() -> None:
    """Minimum and maximum pages per band, in 1,200 states reached under them: every mode as by brute force, moves the fewest."""
    rng, seen = random.Random(8), Counter[str]()
    for _ in range(20):
        bands = []
        for at in range(rng.choice((2, 3))):
            low = rng.choice((0, 0, 1, 2))
            high = rng.choice((None, None, low + rng.randrange(1, 5)))
            bands.append(BandSpec(f"b{at}", rng.choice((2, 3, 5, 7)), pages_min=low, pages_max=high))
        total = 7 + 5 * sum(band.frame_bytes for band in bands) + rng.randrange(7)
        state = initial(Layout(tuple(bands), total, total))
        for _ in range(60):
            outcome = random_event(rng, state, 4)
            state = outcome.state if isinstance(outcome, Outcome) else state
            demand = tuple(rng.choice((0, 1, 3)) for _ in bands)
            chain = sets_of(state, demand)
            now, relief = brute.feasible(chain, brute.NOW), brute.feasible(chain, brute.RELIEF)
            assert yes(fits(state, demand, mode=NOW)) == now
            assert yes(fits(state, demand)) == relief
            for fence in range(state.retired, state.launched + 1):
                assert yes(fits(state, demand, mode=after(fence))) == brute.feasible(chain, brute.after(fence))
            granted = allocate(state, demand)
            assert isinstance(granted, Outcome) == relief
            if isinstance(granted, Outcome) and any(demand):
                assert bytes_moved(state, granted.plan) == (0 if now else brute.optimum_bytes(chain))
            seen["now" if now else "relief" if relief else "refused"] += 1
    assert min(seen.values()) > 15, seen


def test_figures_of_a_refusal_are_exact() -> None:
    """Now, after relief, after waiting, after eviction and jointly: so many can be had by brute force, one more cannot."""
    rng, checked = random.Random(31), 0
    states = histories(32, bands=(2, 3), frames=5, steps=50)
    while checked < 250:
        state = next(states)
        demand = pointed_demand(rng, state, "beyond")
        answer = fits(state, demand)
        if not isinstance(answer, Refusal):
            continue
        checked += 1
        nothing = sets_of(state, (0,) * len(demand))
        chain = sets_of(state, demand)
        everything = tuple(len(band.live - band.pinned) for band in chain.bands)
        for at, row in enumerate(answer.bands):
            assert row.wanted == demand[at]
            assert row.now == brute.obtainable(nothing, at, brute.NOW)
            assert row.after_relief == brute.obtainable(nothing, at, brute.RELIEF)
            assert row.after_fence == brute.obtainable(nothing, at, brute.after(state.launched))
            assert row.after_eviction == brute.obtainable(nothing, at, brute.evict(everything))
            assert row.bytes_held == (state.bands[at].high - state.bands[at].low) * state.bands[at].spec.frame_bytes
        joint = tuple(row.joint for row in answer.bands)
        cap = max(joint)
        assert joint == tuple(min(pages, cap) for pages in demand)
        assert brute.feasible(brute.with_ask(chain, joint))
        assert not brute.feasible(brute.with_ask(chain, tuple(min(pages, cap + 1) for pages in demand)))
        helping = [k for k in range(1, state.launched + 1) if k > state.retired and brute.feasible(chain, brute.after(k))]
        assert answer.fence == (helping[0] if helping else None)
        assert answer.reason == ("fence" if helping else "bytes")
        refusing = [row.band for row in answer.bands]
        assert answer.band in refusing
        assert answer.band in str(answer)


def test_advice_of_a_refusal_works() -> None:
    """Waiting for the fence that a refusal names, then asking again, succeeds; one fence earlier it does not."""
    states, helped = histories(41, bands=(2, 3), frames=6, steps=60), 0
    rng = random.Random(42)
    while helped < 120:
        state = next(states)
        demand = pointed_demand(rng, state, "beyond")
        answer = fits(state, demand)
        if not isinstance(answer, Refusal) or answer.fence is None:
            continue
        helped += 1
        assert isinstance(allocate(retire(state, answer.fence).state, demand), Outcome)
        assert isinstance(allocate(retire(state, answer.fence - 1).state, demand), Refusal)


def capacity_states() -> list[ArenaState]:
    """600 random three-band states of a committed seed."""
    states = histories(CAPACITY_SEED, bands=(3,), frames=40, steps=120, most=12)
    return list(itertools.islice(states, 0, CAPACITY_STATES * 20, 20))


def test_capacity_reported_is_capacity_obtainable() -> None:
    """In 600 random three-band states each band's figure is allocated to the page and one more refused; joint likewise."""
    reported = over_promised = 0
    rng = random.Random(1)
    for state in capacity_states():
        for at in range(3):
            most = obtainable(state, at, RELIEF)
            ask = [0, 0, 0]
            ask[at] = most
            granted = allocate(state, tuple(ask))
            assert isinstance(granted, Outcome)
            assert [len(pages) for pages in granted.pages] == ask
            ask[at] = most + 1
            assert isinstance(allocate(state, tuple(ask)), Refusal)
            reported += most
        wanted = tuple(rng.choice((0, 5, 40, 200)) for _ in range(3))
        joint = joint_maximum(state, wanted, RELIEF)
        over_promised += isinstance(allocate(state, joint), Refusal)
        if joint != wanted:
            more = tuple(min(pages, max(joint) + 1) for pages in wanted)
            assert isinstance(allocate(state, more), Refusal)
    assert over_promised == 0
    assert reported > CAPACITY_STATES * 20


def test_windows_succeed_exactly_where_the_walk_does() -> None:
    """On 20,000 random claims: windows exist iff no band is refused, lie in order, hold hull and need; room is the maximum."""
    rng, answers = random.Random(51), Counter[bool]()
    for _ in range(20_000):
        total = rng.randrange(20, 90)
        claims = []
        for at in range(rng.randint(1, 4)):
            size = rng.choice((1, 2, 3, 5, 7))
            first, end = NOWHERE, 0
            if rng.random() < 0.4:
                first = rng.randrange(1, total // size + 1)
                end = first + rng.randint(1, 3)
            claims.append(Claim(size, rng.choice((0, 0, 1, 2, 5)) if end == 0 else rng.randint(end - first, 6), first, end, at - 1))
        sink = rng.randrange(1, 8)
        placed = windows(tuple(claims), sink, total)
        assert (placed is None) == (refused_at(tuple(claims), sink, total) >= 0), claims
        answers[placed is None] += 1
        if placed is None:
            continue
        edge = sink
        for at, (claim, (low, high)) in enumerate(zip(claims, placed, strict=True)):
            if claim.need == 0:
                assert (low, high) == (0, 0)
            else:
                assert low * claim.frame_bytes >= edge
                assert low <= min(claim.first, high - claim.need)
                assert high >= claim.end
                edge = high * claim.frame_bytes
            most = room(tuple(claims), sink, total, at)
            if most >= claim.need:
                wide = (*claims[:at], claim._replace(need=max(most, claim.need)), *claims[at + 1 :])
                more = (*claims[:at], claim._replace(need=most + 1), *claims[at + 1 :])
                assert refused_at(wide, sink, total) < 0
                assert refused_at(more, sink, total) >= 0
            else:
                assert claim.need == 0 or most >= claim.need
        assert edge <= total
    assert min(answers.values()) > 2_000


# --- cases ---------------------------------------------------------------------------------------------------------------


def test_F02_joint_is_less_than_the_marginals() -> None:
    """Two bands share one gap, each alone could take 4, together 2 of each: 4 of both is refused with exactly that."""
    layout = layout_of((1, 1), 5)
    answer = fits(initial(layout), {"band0": 4, "band1": 4})
    assert isinstance(answer, Refusal)
    assert [row.after_relief for row in answer.bands] == [4, 4]
    assert [row.joint for row in answer.bands] == [2, 2]
    assert answer.fence is None
    assert isinstance(allocate(initial(layout), (2, 2)), Outcome)
    assert isinstance(allocate(initial(layout), (3, 2)), Refusal)


def test_F03_off_grid_frontiers() -> None:
    """7·256, 5·256 and 96·256 bytes a frame: in every state reached, exactly the reported figure can be had in any band."""
    sizes = (7 * 256, 5 * 256, 96 * 256)
    rng = random.Random(61)
    for order in itertools.permutations(sizes):
        state = initial(layout_of(order, 12 * 96 * 256 + 4096))
        for _ in range(40):
            pages = bound_pages(state)
            if rng.random() < 0.4 and len(pages):
                state = release(state, rng.sample(pages.tolist(), rng.randint(1, len(pages)))).state
            else:
                mix = joint_maximum(state, tuple(rng.choice((0, 3, 40)) for _ in sizes), RELIEF)
                granted = allocate(state, mix)
                assert isinstance(granted, Outcome)
                state = granted.state
            for at in range(3):
                most = obtainable(state, at, RELIEF)
                demand = tuple(most if band == at else 0 for band in range(3))
                assert isinstance(allocate(state, demand), Outcome)
                assert isinstance(allocate(state, tuple(n + (band == at) for band, n in enumerate(demand))), Refusal)


def test_F10_an_infeasible_demand_is_refused_at_once() -> None:
    """More than the whole arena is refused although everything could be evicted; the figure after eviction says so."""
    state = allocate(initial(layout_of((7, 5), 400)), {"band0": 30}).state
    answer = fits(state, {"band1": 1000}, evictable={"band0": 30})
    assert isinstance(answer, Refusal)
    assert answer.bands[1].after_eviction == (400 - 10) // 5  # frame 0 and 1 overlap the sink of 7 bytes
    assert isinstance(allocate(initial(state.layout), {"band1": answer.bands[1].after_eviction}), Outcome)


def test_F13_degenerate_chains() -> None:
    """One band, two bands, two floats, three floats, frames of one byte: the same code fills each to its last byte."""
    for sizes in ((1,), (9,), (3, 2), (7, 5, 3), (7, 5, 3, 2), (7, 5, 5, 3, 2)):
        state = initial(layout_of(sizes, 100))
        for at in range(len(sizes)):
            most = obtainable(state, at, NOW)
            assert most == 100 // sizes[at] - -(-max(sizes) // sizes[at])
            demand = tuple(most if band == at else 0 for band in range(len(sizes)))
            full = allocate(state, demand).state
            assert isinstance(fits(full, tuple(int(band == at) for band in range(len(sizes)))), Refusal)
            emptied = release(full, bound_pages(full)).state
            assert emptied == state


def test_F18_quarantined_frames_are_not_handed_out() -> None:
    """Pages freed while a launched step reads them, then all memory asked for: their frames come only after retire."""
    layout = layout_of((4,), 4 + 40)
    state = allocate(initial(layout), (10,)).state
    state = launch(state).state
    state = release(state, bound_pages(state)[:4], reader=1).state
    assert obtainable(state, 0, RELIEF) == 0
    assert obtainable(state, 0, after(1)) == 4
    answer = fits(state, (4,))
    assert isinstance(answer, Refusal)
    assert (answer.reason, answer.fence) == ("fence", 1)
    assert isinstance(allocate(retire(state, 1).state, (4,)), Outcome)


def test_F21_each_answer_is_fresh() -> None:
    """Pin, ask, unpin, ask: the figure follows the pin each time, on every value, old and new."""
    layout = layout_of((5, 3), 66)
    state = allocate(initial(layout), {"band1": 20}).state
    pages = bound_pages(state)
    state = release(state, pages[5:]).state  # five pages at the top
    frames = sorted(state.bands[1].live_frames().tolist())
    free = obtainable(state, 0, RELIEF)
    lowest = [page for page in bound_pages(state) if state.frames_of([page])[0] == frames[0]]
    moved_down = allocate(state, {"band0": free}).state
    pinned = pin(state, lowest).state
    assert obtainable(pinned, 0, RELIEF) <= free
    assert obtainable(unpin(pinned, lowest).state, 0, RELIEF) == free
    assert obtainable(state, 0, RELIEF) == free
    assert obtainable(moved_down, 0, RELIEF) == 0
    shut = allocate(initial(layout), {"band1": 20}).state
    shut = release(shut, [page for page in bound_pages(shut) if shut.frames_of([page])[0] != shut.bands[1].low]).state
    open_ = obtainable(shut, 0, RELIEF)
    held = pin(shut, bound_pages(shut)).state
    assert obtainable(held, 0, RELIEF) < open_
    assert obtainable(unpin(held, bound_pages(held)).state, 0, RELIEF) == open_


def test_F44_an_empty_float_blocks_nobody() -> None:
    """Three bands off each other's grid, the middle one empty: the low end gets all that it would get without the float."""
    for middle in (2, 5, 7, 9):
        three, two = initial(layout_of((9, middle, 4), 400)), initial(layout_of((9, 4), 400))
        three = allocate(three, {"band2": 10}).state
        two = allocate(two, {"band1": 10}).state
        assert obtainable(three, 0, RELIEF) == obtainable(two, 0, RELIEF)
        most = obtainable(three, 0, NOW)
        assert isinstance(allocate(three, {"band0": most}), Outcome)
        emptied = release(allocate(three, {"band1": 3}).state, [three.layout.id_bases[1] + 1 + at for at in range(3)]).state
        assert emptied == three


def test_caps_name_their_band() -> None:
    """A maximum is a reason of its own; a minimum keeps its bytes from the others and is there when asked for."""
    layout = Layout((BandSpec("a", 4, pages_max=3), BandSpec("b", 4, pages_min=5)), 4 + 40, 4 + 40)
    state = initial(layout)
    answer = fits(state, {"a": 4})
    assert isinstance(answer, Refusal)
    assert (answer.band, answer.reason, answer.bands[0].after_relief) == ("a", "maximum", 3)
    assert isinstance(fits(state, {"a": 3, "b": 7}), Fit)
    assert isinstance(fits(state, {"a": 3, "b": 8}), Refusal)
    swapped = Layout((BandSpec("a", 4), BandSpec("b", 4, pages_min=5)), 4 + 40, 4 + 40)
    greedy = allocate(initial(swapped), {"a": 5}).state
    assert isinstance(fits(greedy, {"a": 1}), Refusal)
    assert isinstance(allocate(greedy, {"b": 5}), Outcome)


# --- bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda s: fits(s, {"nobody": 1}), DemandError, "nobody"),
        (lambda s: fits(s, (1,)), DemandError, "1 bands"),
        (lambda s: fits(s, (1, 2, 3)), DemandError, "3 bands"),
        (lambda s: fits(s, (-1, 0)), DemandError, "-1"),
        (lambda s: fits(s, (0, 1.0)), DemandError, "1.0"),
        (lambda s: fits(s, (0, True)), DemandError, "True"),
        (lambda s: fits(s, (10**30, 0)), DemandError, "band0"),
        (lambda s: fits(s, 7), DemandError, "7"),
        (lambda s: fits(s, "11"), DemandError, "11"),
        (lambda s: fits(s, (0, 0), mode="soon"), DemandError, "soon"),
        (lambda s: fits(s, (0, 0), mode=after(9)), FenceError, "9"),
        (lambda s: fits(s, (0, 0), mode=after(-1)), FenceError, "-1"),
        (lambda s: fits(s, (0, 0), mode=after(0.5)), FenceError, "0.5"),
        (lambda s: fits(s, (0, 0), evictable=(4, 0)), DemandError, "band0"),
        (lambda s: fits(s, (0, 0), evictable={"x": 1}), DemandError, "x"),
    ],
)
def test_bad_questions_are_named(ask, error, text) -> None:
    """Unknown bands, wrong counts, modes, fences and evictions raise their own error with the field, and change nothing."""
    state = allocate(initial(layout_of((4, 3), 80)), (3, 2)).state
    before = content_digest(state)
    with pytest.raises(error, match=text):
        ask(state)
    assert content_digest(state) == before
