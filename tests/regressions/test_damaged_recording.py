"""A recording whose layout was damaged (a frame of 0 bytes, an arena above its capacity) crashed with an untyped error."""

from __future__ import annotations

import random

import pytest

from core_pure.errors import RecordingError
from core_pure.event import Event
from core_pure.layout import BandSpec, Layout
from core_pure.recording import header, read, replay, write

LAYOUT = Layout((BandSpec("a", 7), BandSpec("b", 5), BandSpec("c", 3)), 700, 700)
EVENTS = [
    Event("advance", demand=(3, 2, 1)),
    Event("launch"),
    Event("release", pages=[1, 2], reader=1),
    Event("pin", pages=[3]),
    Event("compact", number=100, reader=1),
    Event("retire", number=1),
    Event("unpin", pages=[3]),
    Event("resize", number=0),
]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"frame_bytes": 7', b'"frame_bytes": 0'),
        (b'"frame_bytes": 7', b'"frame_bytes": "7"'),
        (b'"frame_bytes": 7', b'"frame_bytes": 7.5'),
        (b'"total_bytes": 700', b'"total_bytes": 701'),
        (b'"total_bytes": 700', b'"total_bytes": -1'),
        (b'"capacity_bytes": 700', b'"capacity_bytes": true'),
        (b'"retention": "full"', b'"retention": "fool"'),
        (b'"name": "a", ', b""),
        (b'"name"', b'"nome"'),
        (b'{"bands"', b'{"bonds"'),
    ],
)
def test_a_layout_that_cannot_be_is_named(old: bytes, new: bytes) -> None:
    """Each damaged field is a RecordingError before any event is read."""
    good = header(LAYOUT)
    assert read(good)[0] == LAYOUT
    assert old in good
    with pytest.raises(RecordingError, match="layout"):
        read(good.replace(old, new, 1))


def test_no_damage_escapes_its_type() -> None:
    """Of 3,000 recordings with random bytes changed or cut off, each replays or raises RecordingError, nothing else."""
    rng, good = random.Random(2), write(LAYOUT, EVENTS[:-1])
    assert len(list(replay(*read(good)))) == len(EVENTS) - 1
    answers = {"replayed": 0, "refused": 0}
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 4))):
            data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), 48, 49, 34))
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            layout, events = read(bytes(data))
            if layout.capacity_bytes < 10**6:
                list(replay(layout, events))
            answers["replayed"] += 1
        except RecordingError:
            answers["refused"] += 1
    assert min(answers.values()) > 50, answers
