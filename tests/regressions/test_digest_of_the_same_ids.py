"""Page ids in int32 gave another digest than the same ids read back from a recording, and a wave could pass for a copy."""

from __future__ import annotations

import numpy as np
import pytest

from core_pure.advance import allocate
from core_pure.errors import DemandError
from core_pure.event import Event, apply, chained
from core_pure.layout import BandSpec, Layout
from core_pure.plan import Plan
from core_pure.recording import read, replay, write
from core_pure.state import initial

LAYOUT = Layout((BandSpec("a", 4), BandSpec("b", 6)), 120, 120)


@pytest.mark.parametrize("kind", ["release", "pin", "compact"])
@pytest.mark.parametrize(
    "pages",
    [
        [1, 2, 3],
        (1, 2, 3),
        np.array([1, 2, 3], np.int32),
        np.array([1, 2, 3], np.uint8),
        np.array([1, 9, 2, 9, 3])[::2],
        np.array([1, 9, 2, 9, 3], np.int32)[::2],
    ],
)
def test_ids_of_any_whole_dtype_are_the_same_event(kind: str, pages: object) -> None:
    """Live and replayed runs have one digest, whatever integer array, list or strided view named the pages."""
    events = [Event("allocate", demand=(5, 2)), Event("launch"), Event(kind, pages=pages, reader=1 if kind == "compact" else None)]
    if kind == "compact":
        events[-1] = Event(kind, pages=pages, reader=1, flag=True)
    state = initial(LAYOUT)
    for event in events:
        state = apply(state, event).state
    *_, (_, _, last) = replay(*read(write(LAYOUT, events)))
    assert last.state.digest == state.digest


def test_a_wave_is_no_copy() -> None:
    """Plans that hold the same rows under another name have other digests, and so has one row more or less."""
    rows = np.array([[0, 3, 4], [1, 5, 6]], np.int32)
    event = Event("compact")
    plans = [
        Plan(waves=(rows,)),
        Plan(copies=rows),
        Plan(waves=(rows[:1], rows[1:])),
        Plan(waves=(rows[:1],), copies=rows[1:]),
        Plan(waves=(rows[:1],)),
        Plan(rows=rows[:, :2].copy()),
        Plan(rows=rows[:, :2].copy(), wait=0),
        Plan(),
    ]
    assert len({chained(b"", event, plan) for plan in plans}) == len(plans)


def test_rejected_ids_move_no_digest() -> None:
    """Ids of a wrong kind raise before anything is hashed."""
    state = allocate(initial(LAYOUT), (2, 2)).state
    for pages in ([1.0], ["1"], [[1]], None):
        with pytest.raises(DemandError, match="page ids"):
            apply(state, Event("release", pages=pages))
