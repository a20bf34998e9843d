"""z3 lemmas: proved for all sizes, able to fail, and stating the formulas of the shipped functions."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from core_pure.chain import Claim, ceilings, edge_above, edge_below, refused_at, room, window, windows
from core_pure.event import Event, apply
from core_pure.layout import BandSpec, Layout
from core_pure.leases import SLOT_BITS, empty_leases, open_leases
from core_pure.state import Outcome, first_frame, initial
from core_pure.step import StepOutcome, step, write_slots

z3 = pytest.importorskip("z3")

from invariants import lemmas, lemmas_list  # noqa: E402 - they need z3
from invariants.lemmas import NOWHERE, PROVED, REFUTED, Band, Lemma, holds, judge  # noqa: E402
from invariants.lemmas_list import LEMMAS  # noqa: E402

TRIES = 300
every = pytest.mark.parametrize("lemma", LEMMAS, ids=lambda lemma: lemma.name)


@every
def test_lemma_is_proved(lemma: Lemma) -> None:
    """The negation of every lemma is unsatisfiable."""
    verdict, model, _ = judge(lemma.claim())
    assert verdict == PROVED, model


@every
def test_twin_of_lemma_is_refuted(lemma: Lemma) -> None:
    """With one thing wrong, z3 finds a counterexample to every lemma."""
    assert judge(lemma.twin())[0] == REFUTED


def _numbers(rng: random.Random) -> tuple[int, int, int, int, int, int]:
    """edge, total, size, need, first, end: small, so that every branch is met."""
    first = rng.choice((NOWHERE, rng.randrange(20)))
    end = 0 if first == NOWHERE else first + rng.randint(1, 6)
    edge = rng.randrange(60)
    return edge, edge + rng.randrange(90), rng.randint(1, 9), rng.choice((0, rng.randint(1, 9))), first, end


def test_formula_above_is_edge_above() -> None:
    """The relation ``above`` accepts exactly the result of ``chain.edge_above``."""
    rng = random.Random(1)
    for _ in range(TRIES):
        edge, total, size, need, first, end = _numbers(rng)
        band, low, top = Band(size, need, first, end), -(-edge // size), total // size
        result = edge_above(edge, total, size, need, first, end)
        for said in (result - 1, result, result + 1):
            assert holds(lemmas.above(band, edge, total, low, top, z3.IntVal(said))) == (said == result)


def test_formula_below_is_edge_below() -> None:
    """The relation ``below`` accepts exactly the result of ``chain.edge_below``."""
    rng = random.Random(2)
    for _ in range(TRIES):
        edge, _, size, need, first, end = _numbers(rng)
        result = edge_below(edge, size, need, first, end)
        for said in (result - 1, result, result + 1):
            assert holds(lemmas.below(Band(size, need, first, end), edge, edge // size, z3.IntVal(said))) == (said == result)


def test_formula_window_is_window() -> None:
    """The terms of ``window_of`` are the window that ``chain.window`` gives."""
    rng = random.Random(3)
    for _ in range(TRIES):
        low = rng.randrange(9)
        high = low + rng.randint(1, 20)
        first, end = (NOWHERE, 0) if rng.random() < 0.5 else sorted(rng.sample(range(low, high + 1), 2))
        need, lean = rng.randint(0, high - low), rng.choice((-1, 0, 1))
        terms = lemmas.window_of(z3.IntVal(low), z3.IntVal(high), Band(*map(z3.IntVal, (1, need, first, end))), z3.IntVal(lean))
        said = tuple(z3.simplify(term).as_long() for term in terms)
        assert said == window(low, high, need, first, end, lean)


def _claims(rng: random.Random, count: int) -> tuple[Claim, ...]:
    claims = []
    for at in range(count):
        _, _, size, need, first, end = _numbers(rng)
        claims.append(Claim(size, need, first, end, -1 if at == 0 else 1 if at == count - 1 else 0))
    return tuple(claims)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_formula_walk_is_refused_at(count: int) -> None:
    """``refused_at`` names the first band at which the walk of ``above`` says -1; ``windows`` answers exactly otherwise."""
    rng, answers = random.Random(count), set()
    for _ in range(TRIES):
        claims, sink, total = _claims(rng, count), rng.randrange(12), rng.randrange(12, 160)
        edge, refused = sink, -1
        for at, claim in enumerate(claims):
            edge = edge_above(edge, total, *claim[:4])
            if edge < 0:
                refused = at
                break
        assert refused_at(claims, sink, total) == refused
        assert (windows(claims, sink, total) is None) == (refused >= 0)
        assert (0 <= sink <= ceilings(claims, total)[0]) == (refused < 0)
        answers.add(refused >= 0)
    assert answers == {True, False}


def test_formula_room_is_room() -> None:
    """``chain.room`` is high - low between the walked edge below and the ceiling above."""
    rng = random.Random(5)
    for _ in range(TRIES):
        claims, sink, total = _claims(rng, 3), rng.randrange(12), rng.randrange(12, 160)
        edge = edge_above(sink, total, *claims[0][:4])
        ceiling = edge_below(total, *claims[2][:4])
        if min(edge, ceiling) < 0 or claims[1].end:
            continue
        low, high = -(-edge // claims[1].frame_bytes), ceiling // claims[1].frame_bytes
        assert room(claims, sink, total, 1) == max(0, high - low)


def _layout(rng: random.Random) -> Layout:
    bands = tuple(BandSpec(name, rng.randint(1, 9), slots_per_page=rng.randint(1, 5)) for name in "abc")
    total = rng.randrange(80, 200)
    return Layout(bands, total, total)


def test_formula_page_id_is_the_layouts() -> None:
    """Ids of three bands are ``page_id`` of band and index, and the bases that the lemma derives are the layout's."""
    for seed in range(20):
        layout = _layout(random.Random(seed))
        outcome = apply(initial(layout), Event("allocate", demand=(2, 1, 2)))
        assert isinstance(outcome, Outcome)
        assert [b - a for a, b in pairwise(layout.id_bases)] == list(layout.frames_max[:2])
        bases = [z3.IntVal(base) for base in layout.id_bases]
        for band, pages in enumerate(outcome.pages):
            for at, page in enumerate(sorted(pages.tolist())):
                said = z3.simplify(lemmas_list.page_id(bases, z3.IntVal(band), z3.IntVal(at + 1))).as_long()
                assert said == page


def test_formula_first_frame_is_ceiling_of_sink() -> None:
    """``first_frame`` is the quotient that frames-disjoint takes for the sink."""
    for seed in range(20):
        state = initial(_layout(random.Random(seed)))
        for band in state.bands:
            size = band.spec.frame_bytes
            assert holds(
                lemmas.ceiling_of(z3.IntVal(state.layout.sink_bytes), z3.IntVal(size), z3.IntVal(first_frame(state, band)))
            )


def test_formula_write_slot_is_frame_and_place() -> None:
    """``write_slots`` gives frame · slots + place, place below slots, as slots-bijection and slots-64 state."""
    layout = _layout(random.Random(4))
    leases, handles = open_leases(empty_leases(layout, sequences=3, context=12), 2)
    done = step(initial(layout), leases, handles, np.array([7, 3]))
    assert isinstance(done, StepOutcome)
    for band, spec in enumerate(layout.bands):
        pages = [
            done.leases.rows[band].read(slice(int(s) * leases.widths[band], (int(s) + 1) * leases.widths[band])) for s in done.slots
        ]
        expected = [
            int(done.state.frames_of(pages[who][token // spec.slots_per_page : token // spec.slots_per_page + 1])[0])
            * spec.slots_per_page
            + token % spec.slots_per_page
            for who, tokens in enumerate((7, 3))
            for token in range(tokens)
        ]
        assert write_slots(done, band).tolist() == expected


def test_formula_handle_is_serial_and_slot() -> None:
    """A lease handle is serial · 2²⁰ + slot."""
    leases = empty_leases(_layout(random.Random(6)), sequences=9, context=8)
    assert SLOT_BITS == lemmas_list.SLOT_BITS
    for _ in range(3):
        serial = leases.serial
        leases, handles = open_leases(leases, 3)
        assert all(handle - serial * (1 << lemmas_list.SLOT_BITS) in range(9) for handle in handles.tolist())


def test_formula_word_is_the_kernels() -> None:
    """The kernels' twin moves exactly the words that move-64 bounds: frame · units · 2 up to the next frame's first word."""
    torch = pytest.importorskip("torch")
    from shell_gpu import chunk
    from shell_gpu.kernels import twins
    from shell_gpu.launch import INTERPRETED, TUNED

    units, source, target = 3, 5, 2
    staging = torch.zeros(64, dtype=torch.int32)
    staging[40:42] = torch.tensor([50, 1])
    staging[50 : 50 + chunk.SEGMENT_WORDS] = torch.tensor([60, 1, units, 1])
    staging[60:63] = torch.tensor([1, source, target])
    arena = torch.arange(8 * units * 2)
    twins.move_wave(arena, staging, 40)
    low, high = (
        z3.simplify(lemmas_list._word(z3.IntVal(f), z3.IntVal(units), z3.IntVal(0))[2]).as_long() for f in (target, target + 1)
    )
    changed = torch.nonzero(arena != torch.arange(8 * units * 2)).flatten().tolist()
    assert changed == list(range(low, high))
    assert all(lemmas_list.TILE_MIN <= tuning.tile_words <= lemmas_list.TILE_MAX for tuning in (TUNED, INTERPRETED))
