"""The reference model stands on its own: its feasibility equals brute force, and it catches each kind of wrong plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from attrs import evolve

from invariants.brute import NOW, RELIEF, after, feasible
from invariants.interpreter import PlanText
from invariants.reference import Disagreement, Reference
from tests.test_brute import random_chain
from tests.test_reference_plans import NO_PLAN, TinyLayout, TinySpec, words_of

FIRST = PlanText((), (), ((0, 1, 0), (1, 8, 0), (1, 9, 0)), ((1, 1), (6, 9), (7, 8)), None)
"""Page 1 on frame 1 of band 0; pages 6 and 7 on frames 9 and 8 of band 1."""


def started() -> Reference:
    """A model of the tiny arena that holds one page in band 0 and two in band 1."""
    model = Reference(TinyLayout())
    model.absorb(words_of(FIRST), pages=([1], [6, 7]), demand=(1, 2))
    return model


def test_feasibility_equals_brute_force() -> None:
    """The model's own walk says the same as every window vector, now, after relief and after each fence."""
    rng, answers = random.Random(8), [0, 0]
    for _ in range(600):
        chain = random_chain(rng, bands=rng.choice((1, 2, 3)), total=rng.randrange(10, 31))
        sizes = [band.frame_bytes for band in chain.bands]
        counts = [chain.total_bytes // size for size in sizes]
        specs = [TinySpec(size) for size in sizes]
        bases = [sum(counts[:index]) for index in range(len(counts))]
        model = Reference(TinyLayout(specs, chain.total_bytes, chain.sink_bytes, bases, counts))
        for band, brute, base in zip(model.bands, chain.bands, bases, strict=True):
            band.pages = {base + frame: frame for frame in brute.live}
            band.pins.update(base + frame for frame in brute.pinned)
            band.waiting = {frame: fence for fence, frames in brute.quarantined.items() for frame in frames}
        demand = [band.ask for band in chain.bands]
        for mode, own in (
            (NOW, model.fits(demand, now=True)),
            (RELIEF, model.fits(demand)),
            (after(0), model.fits(demand, fence=0)),
            (after(1), model.fits(demand, fence=1)),
        ):
            assert own == feasible(chain, mode), (chain, mode)
            answers[own] += 1
    assert min(answers) > 300


def test_bytes_survive_moves_copies_and_quarantine() -> None:
    """A move, a copy, a release under a reader and its retirement keep every page's bytes, and the account is exact."""
    model = started()
    before = dict(model.contents)
    model.absorb(words_of(PlanText((((1, 9, 6),),), (), (), ((6, 6),), None)), bytes_limit=2)
    assert model.contents == before
    model.absorb(words_of(PlanText((), ((1, 6, 7),), (), ((8, 7),), None)), pages=([], [8]), demand=(0, 1))
    assert model.contents[8] == model.contents[6]
    model.launched = 1
    model.absorb(words_of(evolve(NO_PLAN, rows=((7, -1),))), released=[7], reader=1)
    assert list(model.differences([{1: 1}, {6: 6, 8: 7}], [{}, {8: 1}], [{}, {}])) == []
    assert len(list(model.differences([{1: 1}, {6: 6}], [{}, {8: 1}], [{}, {}]))) == 1
    model.retire(1)
    assert list(model.differences([{1: 1}, {6: 6, 8: 7}], [{}, {}], [{}, {}])) == []


@pytest.mark.parametrize(
    ("plan", "pages", "demand", "why"),
    [
        (PlanText((), (), (), ((2, 2),), None), ([2], []), (1, 0), "without being zeroed"),
        (PlanText((), (), ((0, 2, 0),), ((2, 2),), None), ([], []), (0, 0), "rows bind"),
        (PlanText((), (), ((0, 2, 0),), ((2, 2),), None), ([3], []), (1, 0), "rows bind"),
        (PlanText((), (), ((0, 2, 0),), ((2, 2),), None), ([], [2]), (0, 1), "is no id of band 1"),
        (PlanText((), (), ((0, 2, 0),), ((2, 2),), None), ([2], []), (2, 0), "handed out for demand"),
        (PlanText((), (), ((0, 5, 0),), ((2, 5),), None), ([2], []), (1, 0), "which page 7 holds"),
        (PlanText((), (), ((1, 2, 0),), ((8, 2),), None), ([], [8]), (0, 1), "which page 1 holds"),
        (PlanText((((1, 9, 6),),), (), (), (), None), ([], []), (0, 0), "moves 9 -> 6"),
        (PlanText((((1, 9, 6),),), (), (), ((6, 6),), 1), ([], []), (0, 0), "waits for fence 1"),
        (PlanText((((1, 9, 4),),), (), (), ((6, 4),), None), ([], []), (0, 0), "bytes moved, 1 allowed"),
    ],
)
def test_wrong_plans_are_caught(
    plan: PlanText, pages: Sequence[Sequence[int]], demand: Sequence[int], why: str
) -> None:
    """Dirty page, unasked page, wrong id, wrong count, overlap, missing row, stray wait, limit: each says why."""
    with pytest.raises(Disagreement, match=why):
        started().absorb(words_of(plan), pages=pages, demand=demand, bytes_limit=1)


def test_bands_out_of_order_are_caught() -> None:
    """A frame of the low band above the high band's frames breaks the chain although no byte overlaps."""
    model = Reference(TinyLayout())
    model.absorb(words_of(PlanText((), (), ((1, 2, 0),), ((6, 2),), None)), pages=([], [6]), demand=(0, 1))
    with pytest.raises(Disagreement, match="starts below"):
        model.absorb(words_of(PlanText((), (), ((0, 3, 0),), ((1, 3),), None)), pages=([1], []), demand=(1, 0))


@pytest.mark.parametrize(
    "damage",
    [
        lambda model: model.buffer.__setitem__(3, model.buffer[3] ^ 1),
        lambda model: model.buffer.__setitem__(0, 7),
        lambda model: model.table.__setitem__(6, 8),
        lambda model: model.table.__setitem__(9, 5),
        lambda model: model.bands[1].waiting.__setitem__(9, 1),
        lambda model: model.bands[1].pages.__setitem__(6, 8),
    ],
)
def test_check_sees_one_damaged_fact(damage: Callable[[Reference], None]) -> None:
    """One byte of a page or of the sink, one table entry, or one frame held twice is enough to be seen."""
    model = started()
    model.check()
    damage(model)
    with pytest.raises((Disagreement, KeyError)):
        model.check()


def test_F01_misuse_is_named() -> None:
    """Each bad id has its own verdict; a call that breaks two rules names both."""
    model = started()
    model.pin([6], 1)
    model.launched, model.retired = 2, 1
    assert model.expect_pages([1]) == {"outcome"}
    assert model.expect_pages([0]) == model.expect_pages([-1]) == {"SinkPage"}
    assert model.expect_pages([2]) == {"PageNotBound"}
    assert model.expect_pages([99]) == {"ForeignPage"}
    assert model.expect_pages([6]) == {"PagePinned"}
    assert model.expect_pages([6], to="pin") == {"outcome"}
    assert model.expect_pages([7], to="unpin") == {"PinError"}
    assert model.expect_pages([1, 1, 0]) == {"DuplicatePage", "SinkPage"}
    assert model.expect_advance([], (0, -1)) == model.expect_advance([], (1,)) == {"DemandError"}
    assert model.expect_advance([], (0, 0), reader=1) == model.expect_advance([], (0, 0), reader=3) == {"FenceError"}
    assert model.expect_advance([1], (5, 0), reader=2) == {"refusal"}
    assert model.expect_advance([1], (3, 0), reader=2) == {"outcome"}
