"""A serving step: one plan for releases and demand, misuse named, values kept, lazy equal to eager, no leaks."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import numpy as np
import pytest

from core_pure.advance import advance, allocate, release
from core_pure.compact import compact
from core_pure.errors import (
    ArenaError,
    DemandError,
    DuplicatePage,
    FenceError,
    ForeignPage,
    PageNotBound,
    PagePinned,
    SinkPage,
)
from core_pure.event import content_digest
from core_pure.fences import launch, retire
from core_pure.fits import NOW, Fit, Refusal, after, fits
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin
from core_pure.plan import encode
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify
from tests.core_states import Carried, bound_pages, histories, layout_of, random_layout, some, where
from tests.test_table import interrupted

CHURN_STEPS = 100_000


# --- against the reference, with bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", range(4))
def test_histories_equal_the_reference_and_lose_no_byte(shard: int) -> None:
    """1,500 events per shard on 1–4 bands: verdicts, pages, quarantine, pins, table and all bytes as the model says."""
    rng, seen = random.Random(700 + shard), Counter[str]()
    for _ in range(25):
        carried = Carried(random_layout(rng, rng.choice((1, 2, 3, 4)), 4))
        for _ in range(60):
            carried.random_event(rng, 4)
        seen += carried.verdicts
    assert min(seen[kind] for kind in ("outcome", "refusal", "moved", "waited", "compacted")) > 10, seen


def test_lazy_equals_eager() -> None:
    """A trace run lazily and with compaction after every release ends with the same pages and the same bytes in them."""
    rng, moved = random.Random(21), Counter[str]()
    for _ in range(30):
        layout = random_layout(rng, rng.choice((1, 2, 3, 4)), 6)
        lazy, eager = Carried(layout), Carried(layout)
        for _ in range(50):
            gone = some(rng, bound_pages(lazy.state), 4).tolist()
            demand = tuple(rng.choice((0, 1, 3)) for _ in layout.bands)
            answers = []
            for run in (lazy, eager):
                run.advance(gone)
                if run is eager:
                    run.compact()
                answers.append(run.advance((), demand))
            assert isinstance(answers[0], Refusal) == isinstance(answers[1], Refusal)
            if isinstance(answers[0], Outcome) and isinstance(answers[1], Outcome):
                for first, second in zip(answers[0].pages, answers[1].pages, strict=True):
                    assert first.tolist() == second.tolist()
            assert lazy.model.contents == eager.model.contents
        moved += Counter(differ=where(lazy.state) != where(eager.state))
    assert moved["differ"] > 5, "frames may differ, and do"


def test_old_values_stay_usable() -> None:
    """Every tenth value of a long run, kept: unchanged in content at the end, and the same event on it gives the same outcome."""
    rng, kept, states = random.Random(5), [], histories(6, bands=(3,), frames=12, steps=400)
    for number, state in zip(range(400), states, strict=False):
        if number % 10 == 0:
            demand = tuple(rng.randrange(4) for _ in state.bands)
            answer = allocate(state, demand)
            reached = content_digest(answer.state) if isinstance(answer, Outcome) else None
            words = encode(answer.plan).tobytes() if isinstance(answer, Outcome) else str(answer)
            kept.append((state, content_digest(state), demand, reached, words))
    rng.shuffle(kept)
    for state, digest, demand, reached, words in kept:
        assert content_digest(state) == digest
        answer = allocate(state, demand)
        assert verify(state) == []
        if isinstance(answer, Outcome):
            assert content_digest(answer.state) == reached
            assert encode(answer.plan).tobytes() == words
        else:
            assert str(answer) == words
    assert len(kept) == 40


def test_a_reader_moves_only_what_it_must() -> None:
    """With reader r: no move where the demand fits now, a wait for r where that suffices, else a refusal."""
    seen = Counter[str]()
    states = histories(9, bands=(2, 3), frames=6, steps=60)
    rng = random.Random(10)
    while sum(seen.values()) < 1_500:
        state = next(states)
        if state.launched == state.retired:
            continue
        reader = rng.randint(state.retired + 1, state.launched)
        demand = tuple(rng.choice((0, 1, 2, 6)) for _ in state.bands)
        answer = allocate(state, demand, reader=reader)
        now = isinstance(fits(state, demand, mode=NOW), Fit)
        later = isinstance(fits(state, demand, mode=after(reader)), Fit)
        assert isinstance(answer, Outcome) == (now or later)
        if isinstance(answer, Outcome):
            assert answer.plan.wait == (None if now else reader)
            assert not (now and answer.plan.waves)
        seen["refused" if isinstance(answer, Refusal) else "free" if now else "waits"] += 1
    assert min(seen.values()) > 50, seen


def test_F25_churn_without_leaks() -> None:
    """100,000 random allocate, release, partial compaction, launch and retire steps: sound, and emptying gives the first value."""
    layout = Layout(tuple(BandSpec(f"b{at}", size) for at, size in enumerate((112, 80, 48))), 1 << 18, 1 << 18)
    first = state = initial(layout)
    rng, numbers = random.Random(1), np.random.default_rng(1)
    held: list[np.ndarray] = []
    refused = moved = 0
    for step in range(CHURN_STEPS):
        roll = rng.random()
        if roll < 0.45:
            demand = tuple(rng.choice((0, 0, 1, 8, 40)) for _ in range(3))
            answer = allocate(state, demand, reader=state.launched if roll < 0.05 and state.launched > state.retired else None)
            if isinstance(answer, Outcome):
                held += [pages for pages in answer.pages if len(pages)]
                moved += answer.plan.moves
                state = answer.state
            else:
                refused += 1
        elif roll < 0.9 and held:
            at = rng.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            pages = held.pop()
            if len(pages) > 4 and roll < 0.6:
                pages = numbers.permutation(pages)
                held.append(pages[len(pages) // 2 :])
                pages = pages[: len(pages) // 2]
            reader = state.launched if roll > 0.8 and state.launched > state.retired else None
            state = release(state, pages, reader=reader).state
        elif roll < 0.93:
            state = compact(state, bytes_limit=rng.choice((0, 500, 20_000))).state
        elif roll < 0.96:
            state = launch(state).state
        else:
            state = retire(state, state.launched).state
        if step % 10_000 == 0:
            assert verify(state) == []
    assert min(refused, moved) > 1_000
    assert verify(state) == []
    for band in state.bands:
        live, waiting = set(band.live_frames().tolist()), {int(f) for batch in band.held.batches for f in batch.frames}
        holes = set(band.hole_frames().tolist())
        assert not live & waiting | live & holes | waiting & holes
        assert live | waiting | holes == set(range(band.low, band.high))
    assert sum(map(len, held)) == sum(band.live for band in state.bands)
    assert sorted(np.concatenate(held).tolist()) == bound_pages(state).tolist()
    state = retire(release(state, np.concatenate(held)).state, state.launched).state
    assert state == first
    assert hash(state) == hash(first)
    assert content_digest(state) == content_digest(first)


def test_an_interrupted_step_leaves_every_value_right() -> None:
    """Ctrl-C before every eleventh opcode of a step with release, relief and demand: old values read as before, and go on."""
    interrupts, number = 0, 1
    while True:
        state = allocate(initial(layout_of((5, 3, 2), 120)), (4, 6, 10)).state
        older = release(state, bound_pages(state)[::2]).state
        state = allocate(older, (1, 1, 1)).state
        digests = [content_digest(older), content_digest(state)]
        pages = bound_pages(state)[:3]
        step = partial(advance, state, release=pages, demand=(6, 1, 3))
        raised = interrupted(number, step, "/core_pure/")
        assert [content_digest(older), content_digest(state)] == digests, f"opcode {number}"
        assert verify(older) == verify(state) == []
        if not raised:
            break
        interrupts, number = interrupts + 1, number + 11
        if number % 3 == 0:
            assert isinstance(step(), Outcome)
    assert interrupts > 150


# --- one plan per step -----------------------------------------------------------------------------------------------------


def test_F49_an_id_released_and_handed_out_in_one_step() -> None:
    """One table row for that id, the final one; zeroing hits only its new frame; no move in the plan starts there."""
    rng, recycled = random.Random(2), 0
    for _ in range(300):
        carried = Carried(random_layout(rng, rng.choice((1, 2, 3)), 5))
        carried.advance((), [rng.randrange(6) for _ in carried.state.bands])
        pages = some(rng, bound_pages(carried.state), 6).tolist()
        demand = [rng.randrange(5) for _ in carried.state.bands]
        answer = carried.advance(pages, demand)
        if not isinstance(answer, Outcome):
            continue
        ids = answer.plan.rows[:, 0].tolist()
        assert len(set(ids)) == len(ids)
        final = answer.state.frames_of(answer.plan.rows[:, 0])
        assert np.array_equal(np.where(final > 0, final, -1), answer.plan.rows[:, 1])
        new = np.concatenate(answer.pages)
        recycled += bool(set(new.tolist()) & set(pages))
        fills = {(int(band), int(frame)) for band, frame, _ in answer.plan.fills}
        assert fills == {
            (at, int(frame)) for at, got in enumerate(answer.pages) for frame in answer.state.frames_of(got)
        }
    assert recycled > 50


def test_a_joint_step_is_not_two_steps() -> None:
    """Released bytes pay for the same step's demand, without quarantine; a step that only just fits is granted."""
    state = allocate(initial(layout_of((5, 3), 36)), (0, 10)).state
    pages = bound_pages(state)
    answer = advance(state, release=pages, demand=(6, 0))
    assert isinstance(answer, Outcome)
    assert answer.plan.moves == 0
    refused = advance(state, release=pages[:-1], demand=(6, 0))
    assert isinstance(refused, Refusal)
    assert bound_pages(state).tolist() == pages.tolist(), "the release is undone by the refusal"


def test_bands_that_zero_nothing() -> None:
    """zero_on_bind=False: pages come without a fill."""
    layout = Layout((BandSpec("a", 4, zero_on_bind=False), BandSpec("b", 3)), 70, 70)
    answer = allocate(initial(layout), (2, 2))
    assert isinstance(answer, Outcome)
    assert answer.plan.fills[:, 0].tolist() == [1, 1]


# --- misuse ----------------------------------------------------------------------------------------------------------------


def misused() -> tuple[ArenaState, dict[str, int]]:
    """An arena with a free page, a pinned page, a page of each band, and a launched step."""
    layout = layout_of((7, 5, 3), 400)
    state = allocate(initial(layout), (4, 4, 4)).state
    state = release(state, [2]).state
    state = pin(state, [3]).state
    state = launch(launch(state).state).state
    return retire(state, 1).state, {"free": 2, "pinned": 3, "end": layout.ids_total, "never": layout.frames_max[0]}


@pytest.mark.parametrize(
    ("pages", "error", "text"),
    [
        ([1, 1], DuplicatePage, r"band0: page 1"),
        ([4, 1, 4], DuplicatePage, r"band0: page 4"),
        ([-1], SinkPage, "-1"),
        ([0], SinkPage, "page 0"),
        ([1, 0], SinkPage, "page 0"),
        ([2], PageNotBound, "band0: page 2"),
        ([1, 2], PageNotBound, "band0: page 2"),
        (["never"], PageNotBound, "band0: page"),
        (["end"], ForeignPage, "no band"),
        ([1, 2**40], ForeignPage, "no band"),
        ([3], PagePinned, "band0: page 3"),
        ([1, 3], PagePinned, "band0: page 3"),
        ([1.0], DemandError, "float64"),
        ([[1]], DemandError, "shape"),
        ([[1], [2, 3]], DemandError, "list"),
        ([True], DemandError, "bool"),
        (["1"], DemandError, "<U1"),
        (1, DemandError, "shape"),
        (None, DemandError, "object"),
        (np.array([1 << 63], np.uint64), SinkPage, "-"),
    ],
)
def test_F01_bad_ids_at_the_door(pages: object, error: type[ArenaError], text: str) -> None:
    """Each wrong id: its own error with band and id, the value before valid and equal, and sound ids afterwards."""
    state, names = misused()
    if isinstance(pages, list):
        pages = [names.get(page, page) if isinstance(page, str) else page for page in pages]
    before, table = content_digest(state), state.table()
    for attempt in (lambda: release(state, pages), lambda: advance(state, release=pages, demand=(1, 1, 1))):
        with pytest.raises(error, match=text):
            attempt()
        assert content_digest(state) == before
        assert verify(state) == []
        assert np.array_equal(state.table(), table)
    answer = allocate(state, (2, 2, 2))
    assert isinstance(answer, Outcome)
    fresh = np.concatenate(answer.pages).tolist()
    assert len(set(fresh)) == 6
    assert min(fresh) > 0
    assert not set(fresh) & set(bound_pages(state).tolist())
    assert len(set(where(answer.state).items())) == 3 + 4 + 4 + 6


def test_F01_the_same_page_twice_in_two_calls() -> None:
    """A second release of the same page is PageNotBound, also when its frame and id were handed out and freed again."""
    state = allocate(initial(layout_of((4, 3), 80)), (3, 3)).state
    freed = release(state, [2]).state
    with pytest.raises(PageNotBound, match="page 2"):
        release(freed, [2])
    again = release(allocate(freed, (1, 0)).state, [2]).state
    with pytest.raises(PageNotBound, match="page 2"):
        release(again, [2])
    assert release(state, [2]).state == freed, "on the old value the page is still bound"


def test_F01_a_page_of_another_band() -> None:
    """Ids are unique across bands: the first id past one band belongs to the next, or to nobody."""
    layout = layout_of((4, 3), 80)
    state = allocate(initial(layout), (layout.frames_max[0], 0)).state
    last = layout.id_bases[1]
    with pytest.raises(PageNotBound, match="band1"):
        release(state, [last + 1])
    assert release(state, [last]).state.bands[0].live == layout.frames_max[0] - 1


@pytest.mark.parametrize("demand", [{"x": 1}, (1,), (1, 2, 3, 4), (-1, 0, 0), (0, 0, 1 << 40), (0, 0.5, 0), "abc", 3])
def test_bad_demands_change_nothing(demand: object) -> None:
    """Unknown bands, wrong lengths and counts raise DemandError; nothing is released either."""
    state, _ = misused()
    before = content_digest(state)
    for attempt in (lambda: allocate(state, demand), lambda: advance(state, release=[1], demand=demand)):
        with pytest.raises(DemandError):
            attempt()
        assert content_digest(state) == before


@pytest.mark.parametrize("reader", [3, 1, 0, -1, "2", 2.0, True])
def test_bad_readers_change_nothing(reader: object) -> None:
    """A fence from the future, one that has passed, or no fence at all raises FenceError."""
    state, _ = misused()
    before = content_digest(state)
    for attempt in (
        lambda: allocate(state, (1, 0, 0), reader=reader),
        lambda: release(state, [1], reader=reader),
        lambda: advance(state, release=[1], demand=(1, 0, 0), reader=reader),
        lambda: compact(state, reader=reader),
    ):
        with pytest.raises(FenceError):
            attempt()
        assert content_digest(state) == before
