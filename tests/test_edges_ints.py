"""Integer questions exactly at a bound: the chain, layouts, demands, admission, checkpoints (see docs/MUTATION.md)."""

from __future__ import annotations

import itertools
import random

import pytest
from attrs import evolve

import core_pure.admission as admission
from core_pure.admission import Advice, eviction_advice, largest_concurrency, max_request_tokens
from core_pure.advance import allocate
from core_pure.chain import NOWHERE, Claim, ceilings, refused_at, room, windows
from core_pure.checkpoints import Retention
from core_pure.errors import DemandError, LayoutError
from core_pure.fits import NOW, RELIEF, Fit, Refusal, after, fits, frames_kept, over_maximum
from core_pure.geometry import BandGeometry, Layer, RecurrentState, StateTensor
from core_pure.layout import BandSpec, Layout, build_layout, floor_demand, order_chain
from core_pure.pins import pin
from core_pure.state import initial

IDS = 2**31 - 1


def test_a_byte_edge_of_zero_is_an_edge() -> None:
    """Where there is no sink and nothing is needed, byte 0 is as good an edge as any; -1 alone means that there is none."""
    nothing = Claim(10, 0)
    assert refused_at((nothing, Claim(10, 1)), 0, 10) == -1 and refused_at((nothing, Claim(10, 2)), 0, 10) == 1
    assert ceilings((nothing, Claim(10, 1)), 10) == [0, 0, 10] and room((nothing, Claim(10, 1)), 0, 50, 1) == 5
    assert ceilings((nothing, Claim(10, 1), Claim(10, 1)), 10) == [-1, -1, 0, 10]


def test_a_band_that_needs_nothing_has_the_window_of_no_frames() -> None:
    """Wherever it stands, its window is (0, 0), and the others are placed as if it were not there."""
    full = Claim(3, 4, lean=-1)
    for claims, at in (((full, Claim(7, 0)), 1), ((Claim(7, 0), full), 0)):
        placed = windows(claims, 7, 70)
        assert placed is not None and placed[at] == (0, 0) and placed[1 - at] == (3, 7)


def test_a_claim_without_a_hull_may_stand_anywhere() -> None:
    """A claim that names no immovable frames and no lean is that of a float: its window is the middle of its room."""
    assert Claim(1, 2) == Claim(1, 2, NOWHERE, 0, 0)
    assert windows((Claim(1, 2),), 0, 10) == [(4, 6)]
    assert refused_at((Claim(1, 5),), 2**62 - 5, 2**62) == -1, "in arenas of up to 2**62 bytes"


def test_page_ids_fill_int32_and_no_more() -> None:
    """A layout of 2**31 - 1 ids is built, one of an id more is refused; a demand may name as many pages, and no more."""
    layout = build_layout([BandSpec("a", 8192)], 8192 * 2**31 - 4096)
    assert layout.ids_total == IDS
    assert layout.demand([IDS]) == (IDS,)
    with pytest.raises(DemandError, match="whole number"):
        layout.demand([IDS + 1])
    with pytest.raises(LayoutError, match="int32"):
        build_layout([BandSpec("a", 8192)], 8192 * 2**31)


def test_a_request_holds_one_state_unless_more_are_asked_for() -> None:
    """The spec of a state band has one fixed page, or as many as its engine keeps."""
    layers = (Layer(0, RecurrentState((StateTensor("conv", (4, 4), "float32"),))),)
    geometry = BandGeometry("state", "state", None, 1, layers)
    assert BandSpec.of(geometry).pages_fixed == 1 and BandSpec.of(geometry, state_slots=3).pages_fixed == 3


def test_without_a_window_everything_stays_visible() -> None:
    """A band without a window keeps every token from the first on."""
    assert [BandSpec("a", 4096).first_visible(tokens) for tokens in (0, 1, 99)] == [0, 0, 0]


def test_maxima_hold_when_every_band_has_one() -> None:
    """No band, some band or all bands with a maximum: a demand above one is refused for it, and no other is."""
    for most in ((None, None), (2, None), (None, 2), (2, 2)):
        specs = tuple(BandSpec(name, 16, pages_max=n) for name, n in zip("ab", most, strict=True))
        state = initial(Layout(specs, 1024, 1024))
        assert state.layout.has_maxima == (most != (None, None)) and over_maximum(state, (0, 0)) == -1
        for at, n in enumerate(most):
            said = fits(state, tuple(3 if i == at else 0 for i in range(2)))
            assert isinstance(said, Fit) == (n is None)
            assert isinstance(said, Fit) or (said.reason, said.band) == ("maximum", "ab"[at])


def test_a_refusal_names_the_band_that_finds_no_room() -> None:
    """Of three bands the first, in byte order, for which the walk has no window left."""
    state = initial(Layout(tuple(BandSpec(name, 16) for name in "abc"), 1024, 1024))
    for demand, band in (((64, 0, 0), "a"), ((1, 63, 0), "b"), ((1, 1, 62), "c"), ((40, 40, 1), "b")):
        said = fits(state, demand)
        assert isinstance(said, Refusal) and (said.reason, said.band, said.fence) == ("bytes", band, None)


def test_the_boot_floor_charges_one_request() -> None:
    """Three states or more if a request holds more; a window and its chunk, and a page; one page of full; all encoder pages."""
    chain = (
        BandSpec("s", 64, retention="state"), BandSpec("t", 64, retention="state", pages_fixed=4),
        BandSpec("w", 16, slots_per_page=4, retention="window", window=9), BandSpec("f", 16, slots_per_page=4),
        BandSpec("x", 16, slots_per_page=4, retention="cross", pages_fixed=7),
    )  # fmt: skip
    assert floor_demand(chain, 100, 8) == (3, 4, 5, 1, 7) and floor_demand(chain, 10, 8) == (3, 4, 4, 1, 7)


def test_where_nothing_fits_nothing_is_obtainable() -> None:
    """A state whose bands do not fit below a new top: every figure of the refusal is 0 or what is held, never less."""
    held = allocate(initial(Layout((BandSpec("a", 16), BandSpec("b", 16)), 1024, 1024)), (20, 20))
    assert not isinstance(held, Refusal)
    assert [frames_kept(band, mode) for band in held.state.bands for mode in (NOW, RELIEF, after(0))] == [20] * 6
    small = evolve(held.state, layout=evolve(held.state.layout, total_bytes=256))
    said = fits(small, (0, 1))
    assert isinstance(said, Refusal)
    for row in said.bands:
        assert (row.now, row.after_relief, row.after_fence, row.after_eviction, row.joint) == (0, 0, 0, 15, 0)
        assert row.bytes_held == 320


def test_a_window_holds_one_page_more_than_its_step_touches() -> None:
    """A request's peak in a window of 4 grows with its chunk, which counts as one token at least."""
    spec = BandSpec("w", 16, retention="window", window=4)
    assert [spec.pages_peak(100, chunk) for chunk in (0, 1, 2, 5)] == [5, 5, 6, 9] and spec.pages_peak(3, 5) == 3


def test_a_minimum_may_equal_the_maximum() -> None:
    """Such a band has exactly that many pages; a maximum below the minimum is refused."""
    assert build_layout([BandSpec("a", 16, pages_min=3, pages_max=3)], 4096).bands[0].pages_max == 3
    with pytest.raises(LayoutError, match="contradict"):
        build_layout([BandSpec("a", 16, pages_min=3, pages_max=2)], 4096)


def test_pages_are_zeroed_unless_told_otherwise() -> None:
    """A band that says nothing has each page zeroed when it is handed out; one that declines has none."""
    layout = Layout((BandSpec("a", 16), BandSpec("b", 16, zero_on_bind=False)), 1024, 1024)
    got = allocate(initial(layout), (2, 3))
    assert not isinstance(got, Refusal)
    assert got.plan.fills.tolist() == [[0, int(frame), 0] for frame in got.state.frames_of(got.pages[0])]
    bare = allocate(initial(layout), (0, 3))
    assert not isinstance(bare, Refusal) and len(bare.plan.fills) == 0 and len(bare.plan.rows) == 3


def test_the_order_of_a_chain() -> None:
    """Behind the largest frame come states, then windows and chunks, the longest first, then the rest, large frames first."""
    largest = BandSpec("z", 900)
    rest = (
        BandSpec("s2", 80, retention="state"), BandSpec("s1", 70, retention="state"),
        BandSpec("w9", 60, retention="window", window=9), BandSpec("c8", 600, retention="chunked", window=8),
        BandSpec("w2", 60, retention="window", window=2), BandSpec("f2", 500), BandSpec("x1", 400, retention="cross"),
        BandSpec("f1", 300), BandSpec("f3", 300),
    )  # fmt: skip
    rng = random.Random(1)
    for _ in range(20):
        assert order_chain(rng.sample((*rest, largest), len(rest) + 1)) == (largest, *rest)


def test_where_not_one_token_fits_the_longest_request_is_zero() -> None:
    """A request whose states alone do not fit is not servable: 0 tokens, 0 at once, never a negative number."""
    layout = Layout((BandSpec("s", 64, retention="state", pages_fixed=20), BandSpec("a", 16)), 1024, 1024)
    assert max_request_tokens(layout, 8) == 0 and max_request_tokens(layout, 8, 100) == 0
    assert largest_concurrency(layout, 4, 8) == 0
    assert largest_concurrency(Layout((BandSpec("a", 16),), 1024, 1024), 0, 8) == 0, "a request of nothing needs no arena"


def test_of_units_of_equal_bytes_the_older_is_evicted() -> None:
    """Two kinds of unit of equal bytes that help alike: the earlier listed one is named, whatever comes behind it."""
    state = initial(Layout((BandSpec("a", 16), BandSpec("b", 16)), 16 * 9, 16 * 9))
    held = allocate(state, (4, 4))
    assert not isinstance(held, Refusal)
    for units in ([(1, 0), (0, 1), (1, 0)], [(0, 1), (1, 0), (0, 1)], [(1, 0), (0, 1)], [(0, 1), (0, 1), (1, 0)]):
        said = eviction_advice(held.state, (1, 0), units)
        assert isinstance(said, Advice) and said.units == (0,)


def test_pinned_pages_are_never_evictable() -> None:
    """Of four live pages with one pinned, three can be given up: four are misuse, and no unit is advised that needs four."""
    held = allocate(initial(Layout((BandSpec("a", 16),), 16 * 6, 16 * 6)), (4,))
    assert not isinstance(held, Refusal)
    state = pin(held.state, held.pages[0][:1]).state
    for mode in (RELIEF, after(0)):
        assert isinstance(fits(state, (4,), mode=mode, evictable=(3,)), Fit)
        assert isinstance(fits(state, (5,), mode=mode, evictable=(3,)), Refusal)
    with pytest.raises(DemandError, match="3 are live and not pinned"):
        fits(state, (5,), evictable=(4,))
    said = eviction_advice(state, (4,), [(4,)])
    assert isinstance(said, Advice) and said.units == (0,)
    assert isinstance(eviction_advice(state, (5,), [(4,)]), Refusal)


def test_an_advice_is_optimal_when_its_search_was_not_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a search of n questions, a bound of n + 1 leaves the advice optimal; one of n says that it may not be."""
    state = initial(Layout((BandSpec("a", 16), BandSpec("b", 24)), 16 * 21, 16 * 21))
    held = allocate(state, (8, 5))
    assert not isinstance(held, Refusal)
    units = [(1, 0), (0, 1), (2, 1), (0, 2), (1, 0), (2, 1)]
    asked: list[int] = []
    real = admission.is_feasible

    def counted(*arguments: object) -> bool:
        asked.append(1)
        return bool(real(*arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(admission, "is_feasible", counted)
    best = eviction_advice(held.state, (4, 1), units)
    assert isinstance(best, Advice) and best.optimal and len(best.units) > 1
    search = len(asked) - 1  # the first asks whether the demand fits as it is
    for bound, optimal in ((search + 1, True), (search, False), (1, False)):
        monkeypatch.setattr(admission, "SEARCH_STEPS", bound)
        asked.clear()
        said = eviction_advice(held.state, (4, 1), units)
        assert isinstance(said, Advice) and said.optimal == optimal
        assert not isinstance(fits(held.state, (4, 1), evictable=said.pages), Refusal)
        assert bound > 1 or len(asked) < search, "a search cut short asks less"


def test_an_advice_cut_short_names_no_unit_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a search, the units named let the demand fit, and without any one of them it would not."""
    monkeypatch.setattr(admission, "SEARCH_STEPS", 0)
    held = allocate(initial(Layout((BandSpec("a", 16), BandSpec("b", 24)), 16 * 21, 16 * 21)), (8, 5))
    assert not isinstance(held, Refusal)
    units = [(1, 0), (0, 1), (2, 1), (0, 2), (1, 0), (2, 1), (1, 0)]
    for demand in itertools.product(range(8), range(4)):
        said = eviction_advice(held.state, demand, units)
        if isinstance(said, Advice) and said.units:
            assert not said.optimal and not isinstance(fits(held.state, demand, evictable=said.pages), Refusal)
            for unit in said.units:
                fewer = tuple(n - gone for n, gone in zip(said.pages, units[unit], strict=True))
                assert isinstance(fits(held.state, demand, evictable=fewer), Refusal)


def test_kept_snapshots_are_the_newest_and_the_finest_multiples_that_are_few_enough() -> None:
    """Of snapshots at every multiple, those of every · 2ᵏ stay beside the newest, with the least k that makes at most ``most``."""
    for every, most in ((1, 1), (1, 2), (1, 3), (2, 4), (5, 2)):
        policy = Retention(every, most)
        for newest in range(1, 50):
            positions = range(every, newest * every + 1, every)
            steps = (every << k for k in range(60))
            rows = ([p for p in positions[:-1] if p % step == 0] + [positions[-1]] for step in steps)
            assert list(policy.kept(positions)) == next(row for row in rows if len(row) <= most)
        assert policy.kept(()) == ()


def test_a_snapshot_is_due_at_the_multiples_only() -> None:
    """Not at length 0, nor between two multiples."""
    assert [tokens for tokens in range(20) if Retention(5, 1).due(tokens)] == [5, 10, 15]
    assert [tokens for tokens in range(4) if Retention(1, 1).due(tokens)] == [1, 2, 3]


def test_a_refusal_says_in_words_what_it_says_in_figures() -> None:
    """The fence to wait for stands in the text where there is one; otherwise nothing about waiting."""
    state = initial(build_layout([BandSpec("a", 4096)], 1 << 16))
    said = fits(state, (99,))
    assert isinstance(said, Refusal) and "would fit after fence" not in str(said) and "wanted 99" in str(said)
    assert fits(state, (1,), mode=after(0)) == Fit(after(0))
