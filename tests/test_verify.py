"""Verify: corrupt exactly one fact, and exactly that violation is named; nothing raises, whatever is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core_pure.band import FREE, QUARANTINED, Band
from core_pure.event import Event, apply
from core_pure.layout import BandSpec, Layout
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import CHECKS, verify
from invariants.plain import violations

LAYOUT = Layout((BandSpec("low", 7), BandSpec("mid", 5), BandSpec("high", 3)), 150, 150)


def healthy() -> ArenaState:
    """Live pages, holes, quarantine, pins and a gap in every band."""
    taken = apply(initial(LAYOUT), Event("allocate", demand=(4, 7, 9)))
    assert isinstance(taken, Outcome)
    low, mid, high = taken.pages
    state = taken.state
    for event in (
        Event("launch"),
        Event("release", pages=np.array([low[1], mid[1], mid[0], high[2], high[3]])),
        Event("release", pages=np.array([mid[3], high[5]]), reader=1),
        Event("pin", pages=np.array([low[3], mid[6], high[8]])),
    ):
        outcome = apply(state, event)
        assert isinstance(outcome, Outcome)
        state = outcome.state
    assert verify(state) == list(violations(state)) == []
    return state


def with_band(state: ArenaState, at: int, change: Callable[[Band], Band]) -> ArenaState:
    """The state with one band changed."""
    bands = list(state.bands)
    bands[at] = change(bands[at])
    return state.with_bands(bands)


def live_frame(band: Band) -> int:
    """A live frame inside the span that is neither its first nor its last, nor pinned."""
    inner = [int(f) for f in band.live_frames()[1:-1] if int(f) not in set(band.pinned_frames().tolist())]
    return inner[0]


def _page_gone(band: Band) -> Band:
    frame = live_frame(band)
    return evolve(band, frame_of=band.frame_of.write(np.array([band.page_of.item(frame)]), -1))


def _frame_elsewhere(band: Band) -> Band:
    frame = live_frame(band)
    return evolve(band, frame_of=band.frame_of.write(np.array([band.page_of.item(frame)]), frame + 1))


def _blocks(band: Band) -> Band:
    blocks = band.blocks.copy()
    blocks[0] += 1
    return evolve(band, blocks=blocks)


def _unmarked(band: Band) -> Band:
    frame = int(band.held.batches[0].frames[0])
    return evolve(band, held=evolve(band.held, count=band.held.count + 1 if frame else 0))


def _old_fence(band: Band) -> Band:
    batch = band.held.batches[0]
    return evolve(band, held=evolve(band.held, batches=(evolve(batch, fence=0),)))


def _pin_of_nobody(band: Band) -> Band:
    free = int(band.ids.read(slice(0, 1))[0])
    return evolve(band, held=evolve(band.held, pins={**band.held.pins, free: 1}))


def _pins(count: int) -> Callable[[Band], Band]:
    return lambda band: evolve(band, held=evolve(band.held, pins=dict.fromkeys(band.held.pins, count)))


FACTS: dict[str, tuple[Callable[[Band], Band], str]] = {
    "live count": (lambda band: evolve(band, live=band.live + 1), "LIVE-1"),
    "hole summary": (_blocks, "HOLE-1"),
    "quarantine count": (_unmarked, "QUAR-1"),
    "quarantine fence": (_old_fence, "QUAR-1"),
    "frontier above": (lambda band: evolve(band, high=band.high + 1), "EDGE-1"),
    "frontier below": (lambda band: evolve(band, low=band.low - 1), "EDGE-1"),
    "table entry unbound": (_page_gone, "PAGE-1"),
    "table entry elsewhere": (_frame_elsewhere, "PAGE-1"),
    "free id count": (lambda band: evolve(band, spare=band.spare - 1), "IDS-1"),
    "fresh id": (lambda band: evolve(band, fresh=band.fresh + 1), "IDS-1"),
    "pin of an unbound page": (_pin_of_nobody, "PIN-1"),
    "pin count": (_pins(0), "PIN-1"),
    "immovable hull": (lambda band: evolve(band, held=evolve(band.held, end=band.held.end + 1)), "PIN-1"),
}

DEPENDENT = {
    "live count": {"LIVE-1", "IDS-1", "BYTES-1"},  # one count, compared with tables, with ids, and summed in the report
    "hole summary": {"HOLE-1", "BYTES-1"},
    "quarantine count": {"QUAR-1", "BYTES-1"},
    "frontier above": {"EDGE-1", "BYTES-1"},
    "frontier below": {"EDGE-1", "BYTES-1"},
    "table entry unbound": {"PAGE-1", "IDS-1"},
}
"""Where the plain telling checks the same fact in a second claim, which it then names too."""


@pytest.mark.parametrize("band", [0, 1, 2])
@pytest.mark.parametrize("fact", FACTS)
def test_F45_one_corrupt_fact_gives_exactly_its_violation(fact: str, band: int) -> None:
    """Verify names the one claim whose fact was corrupted, in that band, and no other; the state was healthy otherwise."""
    change, claim = FACTS[fact]
    state = healthy()
    if fact.startswith("quarantine") and not state.bands[band].held.batches:
        pytest.skip("this band has no quarantine")
    corrupt = with_band(state, band, change)
    found = verify(corrupt)
    assert {each.claim for each in found} <= DEPENDENT.get(fact, {claim}) - {"BYTES-1"}
    assert claim in {each.claim for each in found}
    assert all(each.text.startswith(state.bands[band].name) for each in found)
    plain = {each.claim for each in violations(corrupt)}
    assert claim in plain and plain <= DEPENDENT.get(fact, {claim})


def _marked(band: Band, frame: int, mark: int) -> Band:
    return evolve(band, page_of=band.page_of.write(np.array([frame]), mark))


@pytest.mark.parametrize("mark", [FREE, QUARANTINED])
def test_F45_a_live_frame_marked_otherwise_is_named(mark: int) -> None:
    """A frame that loses its page is a wrong count, a wrong table, and a hole or quarantine too many; all are named."""
    corrupt = with_band(healthy(), 1, lambda band: _marked(band, live_frame(band), mark))
    named = {each.claim for each in verify(corrupt)}
    assert named == {"LIVE-1", "PAGE-1", "HOLE-1" if mark == FREE else "QUAR-1"}
    assert named <= {each.claim for each in violations(corrupt)}


def _shifted(band: Band, by: int) -> Band:
    """The whole band, tables, counts and hulls, some frames higher: healthy in itself."""
    frames, quarantined = band.live_frames(), [int(f) for batch in band.held.batches for f in batch.frames]
    pages = band.page_of.read(frames).astype(np.intp)
    marks = np.full(len(band.page_of), FREE, np.int32)
    marks[frames + by] = pages
    marks[np.array(quarantined, np.intp) + by] = QUARANTINED
    moved = [evolve(batch, frames=np.asarray(batch.frames, np.intp) + by) for batch in band.held.batches]
    held = evolve(band.held, batches=tuple(moved), first=band.held.first + by, end=band.held.end + by)
    return evolve(
        band,
        page_of=band.page_of.write(slice(0, len(marks)), marks),
        frame_of=band.frame_of.write(pages, frames + by),
        low=band.low + by,
        high=band.high + by,
        held=held,
    )


@pytest.mark.parametrize(("band", "claim"), [(1, "CHAIN-1"), (0, "SINK-1"), (2, "CHAIN-1")])
def test_F45_overlap_is_named(band: int, claim: str) -> None:
    """A band that stands on its neighbour, in the sink or past the top gives that violation and no other."""
    state = healthy()
    onto_low = (state.bands[0].high * 7 - 1) // 5 - state.bands[1].low
    by = (-1, onto_low, 1)[band]
    corrupt = with_band(state, band, lambda one: _shifted(one, by))
    assert {each.claim for each in verify(corrupt)} == {claim}
    assert {each.claim for each in violations(corrupt)} <= {claim, "FRAME-1", "BYTES-1"}
    assert claim in {each.claim for each in violations(corrupt)}


def test_F45_id_that_stands_twice_is_named() -> None:
    """The free stack with one id twice, or with a bound id in it, is IDS-1 and nothing else."""
    for wrong in (lambda band: int(band.ids.read(slice(1, 2))[0]), lambda band: band.page_of.item(live_frame(band))):
        corrupt = with_band(healthy(), 1, lambda b, w=wrong: evolve(b, ids=b.ids.write(np.array([0]), w(b))))
        assert {each.claim for each in verify(corrupt)} == {"IDS-1"} == {each.claim for each in violations(corrupt)}


def test_F45_a_page_in_two_frames_is_named() -> None:
    """Two frames that name one page are PAGE-1, whichever of them the page knows."""

    def twice(band: Band) -> Band:
        first, second = band.live_frames()[1:3]
        return _marked(band, int(second), band.page_of.item(int(first)))

    named = {each.claim for each in verify(with_band(healthy(), 2, twice))}
    assert named == {"PAGE-1"}


BROKEN: tuple[tuple[str, Any], ...] = (
    ("held", None),
    ("blocks", None),
    ("frame_of", None),
    ("page_of", None),
    ("ids", None),
    ("blocks", np.zeros(0, np.int32)),
    ("low", -5),
    ("high", 1 << 40),
    ("spare", 1 << 20),
    ("live", -1),
    ("fresh", 0),
)


@pytest.mark.parametrize(("field", "value"), BROKEN, ids=[f"{name}={value!r:.20}" for name, value in BROKEN])
def test_F45_verify_never_raises(field: str, value: Any) -> None:
    """A state too broken to be read is a violation, not a crash, in both tellings."""
    corrupt = with_band(healthy(), 1, lambda band: evolve(band, **{field: value}))
    assert verify(corrupt)
    assert list(violations(corrupt))


def test_verify_reads_and_changes_nothing() -> None:
    """Verify leaves the state equal to what it was."""
    state, same = healthy(), healthy()
    verify(state)
    assert state == same
    assert len(CHECKS) >= 8
