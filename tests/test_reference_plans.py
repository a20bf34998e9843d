"""The plan interpreter and its hazards: a sound plan passes and does what it says; each single fault is named."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from attrs import evolve, frozen

from invariants.interpreter import (
    HEADER_WORDS,
    Occupancy,
    PlanBroken,
    PlanText,
    band_of,
    check_hazards,
    frame_is_legal,
    read_plan,
    run_plan,
)

NO_PLAN = PlanText((), (), (), (), None)


@frozen
class TinySpec:
    """A band of a few bytes per frame."""

    frame_bytes: int
    zero_on_bind: bool = True


@frozen
class TinyLayout:
    """Two bands off each other's grid: 3 and 2 bytes, sink of 3, 20 bytes in all."""

    bands: Sequence[TinySpec] = (TinySpec(3), TinySpec(2))
    total_bytes: int = 20
    sink_bytes: int = 3
    id_bases: Sequence[int] = (0, 5)
    frames_max: Sequence[int] = (5, 8)


LAYOUT = TinyLayout()
# Band 0 holds frames 1, 2 (bytes 3-9); band 1 frames 7, 8 (14-18), and frame 9 (18-20) until fence 4 has passed.
BEFORE = Occupancy(pages=({1: 1, 2: 2}, {6: 7, 7: 8}), quarantined=({}, {4: frozenset({9})}))


def words_of(plan: PlanText) -> list[int]:
    """The encoding, written by hand from its description."""
    triples = [*plan.moves, *plan.copies, *plan.fills]
    wait = -1 if plan.wait is None else plan.wait
    counts = [len(plan.waves), len(plan.moves), len(plan.copies), len(plan.fills), len(plan.rows)]
    body = [len(wave) for wave in plan.waves] + [word for row in (*triples, *plan.rows) for word in row]
    return [1, HEADER_WORDS + len(body), *counts, wait, -1 if wait < 0 else 0, 0, 0, 0, *body]


# Page 7 moves to frame 6, then page 3 is bound to band 0 frame 3 and page 8 to the vacated frame 8; page 2 is copied.
SOUND = PlanText(
    waves=(((1, 8, 6),),),
    copies=((0, 2, 3),),
    fills=((1, 8, 0),),
    rows=((7, 6), (3, 3), (8, 8)),
    wait=None,
)


def hazards(plan: PlanText, **given: object) -> list[str]:
    return list(check_hazards(words_of(plan), BEFORE, LAYOUT, **given))  # type: ignore[arg-type]


def rules(plan: PlanText, **given: object) -> set[str]:
    return {hazard.split(":")[0] for hazard in hazards(plan, **given)}


def test_sound_plan_has_no_hazard_and_runs() -> None:
    """Moves, copies, fills and rows happen in this order and nothing else changes."""
    assert hazards(SOUND) == []
    buffer = bytearray(range(1, 21))
    table = [0, 1, 2, 0, 0, 0, 7, 8, 0, 0, 0, 0, 0, 0]
    run_plan(words_of(SOUND), buffer, table, LAYOUT, [(0, 1), (0, 2), (1, 7), (1, 8), (1, 9)])
    expected = bytearray(range(1, 21))
    expected[12:14] = bytes([17, 18])  # frame 8 of band 1 to frame 6
    expected[9:12] = bytes([7, 8, 9])  # frame 2 of band 0 copied to frame 3
    expected[16:18] = bytes(2)  # frame 8 zeroed for its new page
    assert buffer == expected
    assert table == [0, 1, 2, 3, 0, 0, 7, 6, 8, 0, 0, 0, 0, 0]


def test_read_plan_inverts_the_encoding() -> None:
    """Any plan comes back as it was written, the wait fence in full 64 bits."""
    rng = random.Random(0)
    for _ in range(200):
        rows = [[(rng.randrange(3), rng.randrange(99), rng.randrange(99)) for _ in range(rng.randrange(4))] for _ in "abc"]
        waves = tuple(tuple([(0, 1, 2)] * rng.randrange(1, 4)) for _ in range(rng.randrange(3)))
        plan = PlanText(waves, tuple(rows[0]), tuple(rows[1]), tuple((a, b - 1) for a, b, _ in rows[2]), None)
        assert read_plan(words_of(plan)) == plan
    words = words_of(NO_PLAN)
    words[7:9] = [-5, 3]
    assert read_plan(words).wait == 3 * 2**32 + 2**32 - 5


def test_damaged_encoding_is_refused() -> None:
    """A changed version, length, count, spare word, negative wait, or a missing or trailing word never passes."""
    good = words_of(SOUND)
    for at in (0, 1, 2, 3, 4, 5, 6, 9, 10, 11, HEADER_WORDS):
        for change in (-1, 1):
            bad = list(good)
            bad[at] += change
            with pytest.raises(PlanBroken):
                read_plan(bad)
    for bad in (good[:-1], [*good, 0], [], good[:11]):
        with pytest.raises(PlanBroken):
            read_plan(bad)
    bad = words_of(NO_PLAN)
    bad[7] = -2
    with pytest.raises(PlanBroken):
        read_plan(bad)
    assert next(check_hazards(bad, BEFORE, LAYOUT)).startswith("encoding")


def test_F24_targets_are_disjoint_from_everything_occupied() -> None:
    """A target on a live byte, on its wave's source, on another target or on the sink is named, and never written."""
    occupied = [(0, 1), (0, 2), (1, 7), (1, 8), (1, 9)]
    for wave in (((1, 8, 4),), ((1, 8, 7), (1, 7, 6)), ((1, 8, 6), (1, 7, 6)), ((0, 2, 3), (1, 8, 5)), ((1, 8, 9),)):
        rows = {6: 7, 7: 8}
        moved = {(band, source): target for band, source, target in wave}
        final = [(page, moved[1, frame]) for page, frame in rows.items() if (1, frame) in moved]
        final += [(2, 3)] if (0, 2) in moved else []
        plan = PlanText((wave,), (), (), tuple(final), None)
        assert rules(plan) == {"target"}, wave
        with pytest.raises(PlanBroken):
            run_plan(words_of(plan), bytearray(20), [0] * 14, LAYOUT, occupied)
    assert rules(PlanText((((1, 8, 1),),), (), (), ((7, 1),), None)) == {"number"}


def test_vacated_frames_are_free_in_the_next_wave_only() -> None:
    """The same two moves are sound in two waves and a hazard in one."""
    one = PlanText((((1, 7, 6), (1, 8, 7)),), (), (), ((6, 6), (7, 7)), None)
    two = PlanText((((1, 7, 6),), ((1, 8, 7),)), (), (), ((6, 6), (7, 7)), None)
    assert rules(one) == {"target"}
    assert rules(two) == set()


def test_F17_a_move_beside_a_reader_names_the_fence() -> None:
    """With an off-stream reader every move waits for it; without one no plan waits."""
    move = PlanText((((1, 8, 6),),), (), (), ((7, 6),), None)
    assert rules(move, reader=5) == {"wait"}
    assert rules(evolve(move, wait=4), reader=5) == {"wait"}
    assert rules(evolve(SOUND, wait=5), reader=5) == set()
    assert rules(evolve(SOUND, wait=5)) == {"wait"}
    assert rules(SOUND, reader=5) == {"wait", "target"}  # and page 8 would take a frame that is still read


def test_pages_that_the_reader_does_not_write_move_beside_it() -> None:
    """Named as not written, a page moves without a wait, but the frame it leaves stays taken; a written page may not."""
    move = PlanText((((1, 8, 6),),), (), (), ((7, 6),), None)
    assert rules(move, reader=5, written=[6]) == set()
    assert rules(move, reader=5, written=[7]) == {"wait"}
    chase = PlanText((((1, 8, 6),), ((1, 7, 8),)), (), (), ((7, 6), (6, 8)), None)
    assert rules(chase, reader=5, written=[1]) == {"target"}
    assert rules(evolve(chase, wait=5), reader=5, written=[1]) == set()


def test_F18_quarantined_bytes_are_taken_only_behind_their_fence() -> None:
    """A quarantined frame is bound only by a plan that waits for its fence; so is the frame of a page just released."""
    bind = PlanText((), (), ((1, 9, 0),), ((8, 9),), None)
    assert rules(bind, reader=5) == {"target"}
    assert rules(evolve(bind, wait=3), reader=5) == {"target"}
    assert rules(evolve(bind, wait=4), reader=5) == set()
    reuse = PlanText((), (), ((1, 8, 0),), ((7, 8),), None)
    assert rules(reuse, released=[7]) == set()
    assert rules(reuse, released=[7], reader=5) == {"target"}
    assert rules(evolve(reuse, wait=5), released=[7], reader=5) == set()


def test_F49_one_final_row_per_page() -> None:
    """A page released and handed out again has one row; two rows, a missing row or a wrong frame are named."""
    again = PlanText((), (), ((1, 8, 0),), ((7, 8),), None)
    assert rules(again, released=[7]) == set()
    assert rules(evolve(again, rows=((7, -1), (7, 8))), released=[7]) == {"row"}
    assert rules(NO_PLAN, released=[7]) == {"row"}
    assert rules(evolve(SOUND, rows=((3, 3), (8, 8)))) == {"row"}
    assert rules(evolve(SOUND, rows=((7, 5), (3, 3), (8, 8)))) >= {"row"}
    assert rules(PlanText((), (), (), ((6, -1),), None)) == {"row"}
    assert rules(PlanText((), (), (), ((9, -1),), None)) == {"row"}


def test_fills_touch_exactly_the_new_frames() -> None:
    """A missing fill, a fill on a live frame, on a move or copy target, or twice on one frame is named."""
    assert rules(evolve(SOUND, fills=())) == {"fill"}
    for extra in ((1, 7, 0), (1, 6, 0), (0, 3, 0), (1, 8, 0)):
        assert rules(evolve(SOUND, fills=((1, 8, 0), extra))) == {"fill"}, extra


def test_sources_are_live_movable_and_move_once() -> None:
    """Moving a hole, a quarantined or pinned frame, or one page twice is named; so is copying from a hole."""
    assert rules(PlanText((((1, 5, 6),),), (), (), (), None)) == {"source"}
    assert rules(PlanText((((1, 9, 6),),), (), (), (), None)) == {"source"}
    pinned = evolve(BEFORE, pinned=(frozenset(), frozenset({7})))
    assert [text.split(":")[0] for text in check_hazards(words_of(SOUND), pinned, LAYOUT)] == ["source"]
    twice = PlanText((((1, 8, 6),), ((1, 6, 5),)), (), (), ((7, 5),), None)
    assert "source" in rules(twice)
    assert rules(evolve(SOUND, copies=((0, 4, 3),))) == {"source"}


def test_numbers_that_name_nothing() -> None:
    """Bands, frames, patterns and pages outside the layout are named before anything is judged."""
    for plan in (
        PlanText((((2, 7, 6),),), (), (), (), None),
        PlanText((((1, 7, 10),),), (), (), (), None),
        PlanText((), ((0, 0, 3),), (), (), None),
        PlanText((), (), ((1, 1, 0),), (), None),
        PlanText((), (), ((1, 7, 2),), (), None),
        PlanText((), (), (), ((0, 4),), None),
        PlanText((), (), (), ((14, 4),), None),
        PlanText((), (), (), ((8, 10),), None),
    ):
        assert rules(plan) == {"number"}, plan
    assert [band_of(LAYOUT, page) for page in (-1, 0, 1, 5, 6, 13, 14)] == [None, None, 0, 0, 1, 1, None]
    assert [frame_is_legal(LAYOUT, 1, frame) for frame in (1, 2, 9, 10)] == [False, True, True, False]
