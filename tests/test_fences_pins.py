"""Fences and pins: integers in, quarantine out, in order; pins are counted; hazards are named in the plan."""

from __future__ import annotations

import random

import pytest
from attrs import evolve

from core_pure.advance import advance, allocate, release
from core_pure.compact import compact
from core_pure.errors import ArenaError, DemandError, FenceError, ForeignPage, PageNotBound, PagePinned, PinError, SinkPage
from core_pure.event import content_digest
from core_pure.fences import launch, retire
from core_pure.fits import RELIEF, Refusal, obtainable
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin, unpin
from core_pure.plan import encode
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify
from invariants.interpreter import check_hazards
from tests.core_states import Carried, bound_pages, histories, layout_of, random_layout, some, where
from tests.test_relief import occupancy


def full_arena(launched: int = 1) -> ArenaState:
    """One band of ten frames, all live, some steps launched."""
    state = allocate(initial(layout_of((4,), 4 + 40)), (10,)).state
    for _ in range(launched):
        state = launch(state).state
    return state


# --- fences ----------------------------------------------------------------------------------------------------------------


def test_fences_pass_in_order() -> None:
    """retire(k) gives back all quarantine up to k; an older fence is a no-op; contents never depend on how often it was said."""
    rng = random.Random(1)
    for _ in range(100):
        carried = Carried(random_layout(rng, rng.choice((1, 2, 3)), 6))
        for _ in range(25):
            carried.random_event(rng, 3)
        state = carried.state
        once = retire(state, state.launched).state
        stepwise = state
        for fence in range(state.retired, state.launched + 1):
            stepwise = retire(stepwise, fence).state
            left = [batch.fence for band in stepwise.bands for batch in band.held.batches]
            assert all(waiting > fence for waiting in left)
            assert verify(stepwise) == []
        assert stepwise == once
        assert all(band.quarantined == 0 for band in once.bands)
        for fence in range(once.retired + 1):
            assert retire(once, fence).state == once
            assert retire(once, fence).state.retired == once.retired
        assert where(once) == where(state)


@pytest.mark.parametrize("fence", [2, 99, -1, True, 1.0, "1", None])
def test_fences_of_the_future_are_refused(fence: object) -> None:
    """A fence that was never launched, or is none, raises FenceError with its value and the newest; nothing changes."""
    state = release(full_arena(), [1], reader=1).state
    before = content_digest(state)
    with pytest.raises(FenceError, match="newest is 1"):
        retire(state, fence)
    assert content_digest(state) == before


def test_F17_a_move_follows_its_writer() -> None:
    """A launched step writes a page that relief wants to move: the plan waits for that fence, and a checker rejects it without."""
    layout = layout_of((4, 3), 66)
    state = allocate(initial(layout), (0, 20)).state
    state = release(state, bound_pages(state)[:10]).state
    state = launch(state).state
    answer = allocate(state, (5, 0), reader=1)
    assert isinstance(answer, Outcome)
    assert answer.plan.moves > 0
    assert answer.plan.wait == 1
    assert list(check_hazards(encode(answer.plan), occupancy(state), layout, reader=1)) == []
    careless = evolve(answer.plan, wait=None)
    assert any(text.startswith("wait:") for text in check_hazards(encode(careless), occupancy(state), layout, reader=1))


def test_F17_compaction_never_copies_a_page_being_written() -> None:
    """Beside a running step that names what it writes, compaction moves other pages only, or waits for the step."""
    rng, seen = random.Random(2), 0
    for _ in range(100):
        carried = Carried(random_layout(rng, rng.choice((1, 2, 3)), 8))
        for _ in range(10):
            carried.advance(some(rng, bound_pages(carried.state), 6).tolist(), [rng.randrange(5) for _ in carried.state.bands])
        fence = carried.launch()
        written = some(rng, bound_pages(carried.state), 5)
        places = where(carried.state)
        beside = compact(carried.state, reader=fence, written=written)
        assert beside.plan.wait is None
        assert all(where(beside.state)[page] == places[page] for page in written.tolist())
        assert sum(band.quarantined for band in beside.state.bands) == beside.plan.moves
        seen += beside.plan.moves
        waits = compact(carried.state, reader=fence)
        assert waits.plan.wait == (fence if waits.plan.moves else None)
    assert seen > 50


def test_F18_reuse_follows_its_reader() -> None:
    """Frames freed while a step reads them are in no plan before it is retired, whoever asks, without or with the reader."""
    state = release(full_arena(), [1, 2, 3], reader=1).state
    freed = {int(f) for batch in state.bands[0].held.batches for f in batch.frames}
    refused = allocate(state, (1,))
    assert isinstance(refused, Refusal)
    assert refused.fence == 1
    waits = allocate(state, (2,), reader=1)
    assert isinstance(waits, Outcome)
    assert waits.plan.wait == 1, "stream-side, the frames may be reused at once"
    handed = allocate(retire(state, 1).state, (3,))
    assert isinstance(handed, Outcome)
    assert set(handed.plan.fills[:, 1].tolist()) == freed
    mixed = advance(state, release=[4], demand=(1,), reader=1)
    assert isinstance(mixed, Outcome)
    assert mixed.plan.wait == 1


def test_F18_no_frame_under_a_reader_is_written() -> None:
    """In 2,000 transitions no fill, move target or bound frame without a wait touches a frame still in quarantine."""
    rng, checked = random.Random(5), 0
    for before in (state for state, _ in zip(histories(6, bands=(1, 2, 3), frames=6, steps=60), range(2_000), strict=False)):
        quarantined = {
            (at, int(frame)) for at, band in enumerate(before.bands) for batch in band.held.batches for frame in batch.frames
        }
        flying = before.launched > before.retired
        reader = before.launched if flying and rng.random() < 0.5 else None
        answer = advance(
            before,
            release=some(rng, bound_pages(before, pinned=False), 2),
            demand=tuple(rng.randrange(3) for _ in before.bands),
            reader=reader,
        )
        if not isinstance(answer, Outcome) or not quarantined:
            continue
        written = {(int(b), int(f)) for b, f, _ in answer.plan.fills}
        written |= {(int(b), int(t)) for wave in answer.plan.waves for b, _, t in wave}
        checked += 1
        if answer.plan.wait is None:
            assert not written & quarantined
    assert checked > 300


def test_F19_two_batches_under_one_fence() -> None:
    """Two compactions and a release before one fence passes: all their frames come back together when it does."""
    state = allocate(initial(layout_of((4,), 4 + 80)), (20,)).state
    state = launch(release(state, bound_pages(state)[::2]).state).state
    first = compact(state, bytes_limit=4, reader=1, written=[]).state
    second = compact(first, bytes_limit=4, reader=1, written=[]).state
    third = release(second, bound_pages(second)[:1], reader=1).state
    assert [len(batch.frames) for batch in third.bands[0].held.batches] == [1, 1, 1]
    assert third.bands[0].quarantined == 3
    assert verify(third) == []
    done = retire(third, 1).state
    assert done.bands[0].quarantined == 0
    assert obtainable(done, 0, RELIEF) == 20 - 9
    assert verify(done) == []


# --- pins --------------------------------------------------------------------------------------------------------------------


def test_pins_are_counted() -> None:
    """Two pins need two unpins; a page named twice in one call is pinned twice; in between it cannot be released."""
    state = pin(full_arena(), [3, 3, 4]).state
    state = pin(state, [3]).state
    for left in (2, 1):
        state = unpin(state, [3]).state
        assert state.bands[0].held.pins == {3: left, 4: 1}
        with pytest.raises(PagePinned, match="band0: page 3"):
            release(state, [2, 3])
    state = unpin(state, [3, 4]).state
    assert state == full_arena()
    assert state.bands[0].held.pins == {}
    assert release(state, [3, 4]).state.bands[0].live == 8


@pytest.mark.parametrize(
    ("change", "pages", "error", "text"),
    [
        (pin, [0], SinkPage, "page 0"),
        (pin, [-5], SinkPage, "-5"),
        (pin, [2], PageNotBound, "band0: page 2"),
        (pin, [10**6], ForeignPage, "1000000"),
        (pin, [1.0], DemandError, "float64"),
        (pin, [[1]], DemandError, "shape"),
        (pin, "1", DemandError, "shape"),
        (unpin, [1], PinError, "band0: page 1 is unpinned 1 times but pinned 0"),
        (unpin, [3, 3], PinError, "band0: page 3 is unpinned 2 times but pinned 1"),
        (unpin, [3, 1], PinError, "page 1"),
        (unpin, [2], PageNotBound, "page 2"),
        (unpin, [0], SinkPage, "page 0"),
    ],
)
def test_bad_pins_change_nothing(change, pages: object, error: type[ArenaError], text: str) -> None:
    """Unpin without a pin, and pins of what is not there, raise with band, id and counts; no other page of the call changes."""
    state = pin(release(full_arena(), [2]).state, [3]).state
    before = content_digest(state)
    with pytest.raises(error, match=text):
        change(state, pages)
    assert content_digest(state) == before
    assert verify(state) == []


def test_F20_capacity_around_a_pin_stays_obtainable() -> None:
    """With random pins in random states: what is reported for each band can be had, one more cannot, and no pin moves."""
    rng, moved = random.Random(8), 0
    for state in (state for state, _ in zip(histories(9, bands=(2, 3), frames=8, steps=40), range(0, 800), strict=False)):
        pinned = pin(state, some(rng, bound_pages(state), 2)).state
        stay = {page: frame for page, frame in where(pinned).items() if page in set(bound_pages(pinned, pinned=True).tolist())}
        for at in range(len(state.bands)):
            most = obtainable(pinned, at, RELIEF)
            assert most <= obtainable(state, at, RELIEF)
            granted = allocate(pinned, tuple(most if band == at else 0 for band in range(len(state.bands))))
            assert isinstance(granted, Outcome)
            assert {page: where(granted.state)[page] for page in stay} == stay
            assert isinstance(
                allocate(pinned, tuple(most + 1 if band == at else 0 for band in range(len(state.bands)))), Refusal
            )
            moved += granted.plan.moves > 0 and bool(stay)
    assert moved > 50


def test_pins_survive_everything_but_unpin() -> None:
    """Pins follow their pages through relief of the neighbours, compaction, launches and retires; clear forgets them."""
    layout = Layout((BandSpec("a", 5), BandSpec("b", 3)), 5 + 90, 5 + 90)
    state = allocate(initial(layout), (6, 6)).state
    kept = bound_pages(state)[[1, 8]]
    state = pin(state, kept).state
    places = where(state)
    state = release(state, [page for page in bound_pages(state) if page not in kept]).state
    state = compact(launch(state).state).state
    state = retire(state, 1).state
    answer = allocate(state, (1, 1))
    assert isinstance(answer, Outcome)
    assert [where(answer.state)[page] for page in kept.tolist()] == [places[page] for page in kept.tolist()]
    assert sorted(bound_pages(answer.state, pinned=True).tolist()) == sorted(kept.tolist())
