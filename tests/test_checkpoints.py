"""Snapshots of states: how many are kept, and that optional ones never stop a request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_pure.checkpoints import Retention
from core_pure.door import Door
from core_pure.errors import LeaseError
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, build_layout

NO_TOKENS = np.empty(0, np.int64)


def hybrid(states: int) -> Door:
    """A door over states and full attention, with so many state slots at most beside a long prompt."""
    bands = [BandSpec("state", 8192, retention="state", pages_max=states), BandSpec("full", 256, 128)]
    layout = build_layout(bands, 8192 * (states + 1) + 256 * 440)
    return Door(layout, sequences=64, context=54_016, chunk=128)


def test_F38_snapshots_of_a_long_prompt_stay_within_the_bound() -> None:
    """One every 128 tokens of 54,000: never more than eight are held, they span the prompt, and the arena shows it."""
    policy, door = Retention(every=128, most=8), hybrid(states=10)
    request = int(door.open(1)[0])
    held: dict[int, int] = {}
    most = 0
    for tokens in range(128, 54_001, 128):
        assert not isinstance(door.step(np.array([request]), np.array([128])), Refusal)
        if policy.due(tokens):
            snapshot = door.fork(request)
            assert not isinstance(snapshot, Refusal)
            held[tokens] = snapshot
        gone = [held.pop(at) for at in set(held) - set(policy.kept(held))]
        door.step(NO_TOKENS, NO_TOKENS, finished=np.array(gone, np.int64))
        most = max(most, door.report().bands[0].pages)
    assert most == 1 + policy.most and len(held) <= policy.most
    assert max(held) == 53_888 and min(held) <= 54_000 // 4
    assert max(np.diff(sorted(held))) <= 2 * 54_000 // policy.most * 2
    assert door.verify() == []


def test_F39_a_snapshot_that_does_not_fit_is_skipped_and_the_request_goes_on() -> None:
    """With every state slot taken, the fork is refused with numbers and the next step of the request succeeds."""
    door = hybrid(states=3)
    requests = door.open(3)
    assert not isinstance(door.step(requests, np.array([128, 128, 128])), Refusal)
    skipped = door.fork(int(requests[0]))
    assert isinstance(skipped, Refusal) and (skipped.band, skipped.reason) == ("state", "maximum")
    assert not isinstance(door.step(requests, np.array([1, 1, 1])), Refusal)


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 200))
def test_kept_is_bounded_and_never_asks_back(every: int, most: int, count: int) -> None:
    """Dropping as one goes keeps what dropping at the end would keep, at most ``most``, the newest among it."""
    policy = Retention(every, most)
    going: tuple[int, ...] = ()
    for number in range(1, count + 1):
        going = policy.kept([*going, number * every])
        assert len(going) <= most and going[-1] == number * every
    assert going == policy.kept([number * every for number in range(1, count + 1)])


@pytest.mark.parametrize(("every", "most"), [(0, 1), (1, 0), (-128, 8)])
def test_a_policy_without_a_bound_is_refused(every: int, most: int) -> None:
    """Both numbers are positive, or the error names them."""
    with pytest.raises(LeaseError, match="at least 1"):
        Retention(every, most)
