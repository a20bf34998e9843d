"""The door and steps exactly at a bound (see docs/MUTATION.md)."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray

from core_pure.advance import allocate
from core_pure.door import Door
from core_pure.errors import CorruptState, LeaseError, LeaseStale
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.leases import FIRST_BAND, Leases, empty_leases, open_leases, pages_of, slots_of, split
from core_pure.plan import Plan
from core_pure.state import ArenaState, initial
from core_pure.step import band_frames, fork, step, trim
from tests.test_door import Projecting


class Plans:
    """A door's observer that keeps what was committed."""

    def __init__(self) -> None:
        self.seen: list[Plan] = []

    def committed(self, plan: Plan) -> None:
        self.seen.append(plan)

    def refused(self, refusal: Refusal) -> None:
        raise AssertionError(f"nothing is refused here: {refusal}")


def test_a_trim_says_what_it_did() -> None:
    """The outcome of a trim is that of the door: its state and its leases are the door's, and its rows unbind what went."""
    door = Projecting(4096 * 6)
    lease = door.open(1)
    assert not isinstance(door.step(lease, np.array([16])), Refusal)
    gone = door.pages(int(lease[0]))[2][1:]
    outcome = door.trim(lease, np.array([4]))
    assert outcome.state is door.state and outcome.leases is door.leases
    assert set(gone.tolist()) <= set(outcome.plan.rows[:, 0].tolist()) and (outcome.plan.rows[:, 1] == -1).all()


def test_a_step_of_at_least_one_token() -> None:
    """A door whose steps may take one token is opened, one of none is refused."""
    layout = build_layout([BandSpec("a", 256)], 1 << 16)
    assert Door(layout, sequences=1, context=8, chunk=1).chunk == 1
    for chunk in (0, -1, 1.0, True):
        with pytest.raises(LeaseError, match="at least 1"):
            Door(layout, sequences=1, context=8, chunk=chunk)  # type: ignore[arg-type]


def test_nothing_is_evicted_where_nothing_need_be_or_can_be() -> None:
    """What fits, and what no evictor could help, evict no unit."""
    door = Projecting(4096 * 6)
    assert door.evict_to_free((1, 1, 1), None) == 0 and door.evict_to_free((999, 0, 0), None) == 0
    assert door.check_decode((1, 1, 1)) and not door.check_decode((999, 0, 0))


def test_only_the_newest_step_is_undone() -> None:
    """A lease opened since, or a fence launched, is in the way, though each changes one half of the value only."""
    for since in (lambda door: door.open(1), lambda door: door.launch(), None):
        door = Projecting(4096 * 6)
        lease, before = door.open(1), door.value
        result = door.step(lease, np.array([5]))
        assert not isinstance(result, Refusal) and result.outcome is not None
        if since is None:
            door.undo(before, result.outcome)
            assert door.state is before.state and door.leases is before.leases
            continue
        since(door)
        with pytest.raises(LeaseError, match="something has happened since"):
            door.undo(before, result.outcome)


def test_a_budget_takes_what_fits_and_reserves_nothing_unasked() -> None:
    """The longest request that fits alone is admitted, one token more is not; reserved tokens count like those now."""
    door = Door(build_layout([BandSpec("a", 256)], 1 << 13), sequences=2, context=99, chunk=8)
    most = door.max_request_tokens()
    assert most == (1 << 13) // 256 - 1 and door.leases.context == 99, "no draft tokens unless told"
    for tokens, fits in ((most, True), (most + 1, False)):
        assert door.admission().admit(tokens) == door.admission().admit(tokens - 3, 3) == fits


def test_a_door_is_not_strict_unless_told() -> None:
    """What is wrong with its value is reported; only a strict door raises."""
    for options in ({}, {"strict": False}, {"strict": True}):
        door = Projecting(4096 * 6, **options)
        broken = evolve(door.state.bands[0], live=3)
        door._value = evolve(door.value, state=door.state.with_bands([broken, *door.state.bands[1:]]))
        if options.get("strict"):
            with pytest.raises(CorruptState, match="LIVE-1"):
                door.verify()
        else:
            assert {found.claim for found in door.verify()} >= {"LIVE-1"}


def test_no_handle_is_given_out_again_after_a_clear() -> None:
    """Leases opened behind a clear have other handles than all before it, which are stale."""
    door = Projecting(4096 * 6)
    for _ in range(3):
        before = np.concatenate([door.open(1) for _ in range(3)])
        door.clear()
        after = door.open(6)
        assert set(before.tolist()).isdisjoint(after.tolist())
        for handle in before.tolist():
            with pytest.raises(LeaseStale):
                door.pages(handle)


def test_a_door_compacts_beside_its_reader() -> None:
    """Pages named as being written stay and nothing waits; without names the plan waits for the reader."""
    for written in (True, False):
        door = Projecting(4096 * 6)
        leases = door.open(4)
        assert not isinstance(door.step(leases, np.array([16, 16, 16, 16])), Refusal)
        assert not isinstance(door.step(leases[1:], np.array([1, 1, 1]), leases[:1]), Refusal)
        fence = door.launch()
        held = np.concatenate([page for handle in leases[1:] for page in door.pages(int(handle))]).astype(np.int64)
        before, plans = door.state.frames_of(held), Plans()
        door.observers = (plans,)
        moved = door.compact(reader=fence, written=held if written else None)
        assert (moved == 0) == written == bool((door.state.frames_of(held) == before).all())
        assert [plan.wait for plan in plans.seen] == [None if written else fence]


def one_lease(spec: BandSpec, tokens: int, step_tokens: int) -> tuple[ArenaState, Leases, NDArray[np.int64]]:
    """A lease of so many tokens, filled some at a time, in an arena of this band alone."""
    layout = Layout((spec,), 1 << 16, 1 << 16)
    state, (leases, handles) = initial(layout), open_leases(empty_leases(layout, sequences=3, context=64), 1)
    for _ in range(tokens // step_tokens):
        made = step(state, leases, handles, [step_tokens])
        assert not isinstance(made, Refusal)
        state, leases = made.state, made.leases
    return state, leases, handles


def test_one_lease_of_many_is_enough_to_refuse_a_trim() -> None:
    """More tokens than it holds, or fewer than none: one such lease, and none is trimmed; named twice, neither."""
    layout = Layout((BandSpec("a", 16, slots_per_page=2),), 1 << 14, 1 << 14)
    state, (leases, handles) = initial(layout), open_leases(empty_leases(layout, sequences=3, context=9), 3)
    made = step(state, leases, handles, [5, 6, 7])
    assert not isinstance(made, Refusal)
    for at in range(3):
        for left in (5 + at + 1, -1):
            tokens = [5, 5, 5]
            tokens[at] = left
            with pytest.raises(LeaseError, match="trim to"):
                trim(made.state, made.leases, handles, tokens)
    with pytest.raises(LeaseError, match="twice"):
        trim(made.state, made.leases, [*handles[:1], *handles[:1]], [1, 1])
    kept = trim(made.state, made.leases, handles, [0, 6, 3])
    assert [len(pages_of(kept.leases, int(handle))[0]) for handle in handles] == [0, 3, 2]


def test_page_0_is_in_the_sink_whoever_holds_the_last_page() -> None:
    """Id 0, and an id of no page, have frame 0 in every band, its last page bound or not."""
    layout = Layout((BandSpec("a", 16), BandSpec("b", 16)), 256, 256)
    for band, most in enumerate(layout.frames_max):
        got = allocate(initial(layout), tuple(most * (at == band) for at in range(2)))
        assert not isinstance(got, Refusal)
        last = int(got.pages[band].max())
        assert last == layout.id_bases[band] + most
        assert (band_frames(got.state, band, np.array([0, last])) > 0).tolist() == [False, True]


def test_one_lease_of_many_is_enough_to_refuse_a_step() -> None:
    """Past the context, fewer than no tokens, or slid further than it holds: wherever such a lease stands, no step is made."""
    layout = Layout((BandSpec("w", 16, slots_per_page=2, retention="window", window=4),), 1 << 14, 1 << 14)
    state, (leases, handles) = initial(layout), open_leases(empty_leases(layout, sequences=3, context=9), 3)
    made = step(state, leases, handles, [5, 5, 5])
    assert not isinstance(made, Refusal)
    for at in range(3):
        for new, slid, text in ((5, 5, "exceed the page table"), (-1, 5, "new tokens"), (4, 6, "slid"), (4, -1, "slid")):
            tokens, final = [4, 4, 4], [5, 5, 5]
            tokens[at], final[at] = new, slid
            with pytest.raises(LeaseError, match=text):
                step(made.state, made.leases, handles, tokens, slid=final)
    for tokens, final in (([4, 4], None), ([4] * 4, None), ([4] * 3, [5] * 2), ([4] * 3, [5] * 4)):
        with pytest.raises(LeaseError):
            step(made.state, made.leases, handles, tokens, slid=final)
    assert not isinstance(step(made.state, made.leases, handles, [4, 4, 4], slid=[5, 0, 5]), Refusal)


@pytest.mark.parametrize("retention", ["window", "chunked"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_trim_needs_what_the_next_token_would_see(retention: str, slots: int) -> None:
    """Tokens go back to any length whose visible tokens are all held still, or to none; to no other."""
    for window, size, tokens in ((1, 1, 18), (4, 1, 18), (5, 2, 18), (3, 6, 18), (1, 1, 2), (1, 1, 3), (2, 1, 4)):
        spec = BandSpec("w", 16, slots_per_page=slots, retention=retention, window=window)
        state, leases, handles = one_lease(spec, tokens, size)
        _, facts = slots_of(leases, handles)
        first = int(facts[0, FIRST_BAND]) * slots
        for left in range(tokens + 1):
            seen = left // window * window if retention == "chunked" else max(0, left - window + 1)
            if left == 0 or seen >= first:
                kept = trim(state, leases, handles, [left])
                held = pages_of(kept.leases, int(handles[0]))[0]
                assert len(held) == (-(-left // slots) - first // slots if left else 0)
            else:
                with pytest.raises(LeaseError, match="slid out"):
                    trim(state, leases, handles, [left])


@pytest.mark.parametrize("order", [1, -1])
def test_a_part_without_its_states_is_not_served(order: int) -> None:
    """Cut at one token of two: neither the head, without states, nor the tail, without the first token, gets one more."""
    layout = Layout((BandSpec("s", 64, retention="state"), BandSpec("a", 16))[::order], 1 << 16, 1 << 16)
    state, (leases, handles) = initial(layout), open_leases(empty_leases(layout, sequences=4, context=64), 2)
    leases, whole = open_leases(leases, 1)
    made = step(state, leases, [*handles[:1], *whole], [2, 3])
    assert not isinstance(made, Refusal)
    parts, _ = split(made.leases, int(handles[0]), int(handles[1]), 1)
    for wrong in (lambda: step(made.state, parts, handles[:1], [1]), lambda: fork(made.state, parts, int(handles[0]))):
        with pytest.raises(LeaseError, match="lacks what token 1 would see"):
            wrong()
    for handle, tokens in ((0, 0), (1, 0)):
        assert not isinstance(step(made.state, parts, handles[handle : handle + 1], [tokens]), Refusal)
    with pytest.raises(LeaseError, match="lacks what token 2 would see"):
        step(made.state, parts, handles[1:], [1])
    assert not isinstance(step(made.state, parts, whole, [1]), Refusal), "a whole lease beside them is served"
