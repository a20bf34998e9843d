"""Same events, same digest: in another run, from a recording, in another process; recordings stay small and say what is wrong."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core_pure.advance import advance
from core_pure.door import Door
from core_pure.errors import ArenaError, RecordingError
from core_pure.event import KINDS, Event, _keys, apply, content_digest, encode_event, multilinear64
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.recording import header, layout_facts, layout_from, read, replay, write
from core_pure.state import ArenaState, Outcome, initial
from tests.core_states import bound_pages, random_layout, some

EVENT_BYTES, ID_BYTES = 64, 8
"""Budget: a recording takes at most this much per event and per page id."""


def random_event(rng: random.Random, state: ArenaState) -> Event:
    """One event of any kind but clear, which is legal in this state (it may be refused)."""
    loose, flying = bound_pages(state, pinned=False), state.launched > state.retired
    reader = state.launched if flying and rng.random() < 0.3 else None
    demand = tuple(rng.choice((0, 1, 4)) for _ in state.bands)
    pinned = bound_pages(state, pinned=True)
    choices = [
        Event("allocate", demand=demand, reader=reader),
        Event("release", pages=some(rng, loose, 4), reader=reader),
        Event("advance", None, reader, demand, some(rng, loose, 4), rng.random() < 0.2),
        Event("compact", number=rng.choice((None, 0, 40))),
        Event("pin", pages=some(rng, loose, 1)),
        Event("unpin", pages=some(rng, pinned, 1)),
        Event("launch"),
        Event("retire", number=rng.randint(state.retired, state.launched)),
    ]
    return rng.choices(choices, (6, 4, 8, 1, 1, 2, 2, 3))[0]


def a_run(seed: int, length: int) -> tuple[Layout, list[Event], list[ArenaState]]:
    """A random run through the one door; refused events are part of it."""
    rng = random.Random(seed)
    state = initial(random_layout(rng, rng.choice((1, 2, 3, 4, 5)), 6))
    events, states = [], []
    for _ in range(length):
        event = random_event(rng, state)
        outcome = apply(state, event)
        state = outcome.state if isinstance(outcome, Outcome) else state
        events.append(event)
        states.append(state)
    return states[0].layout, events, states


def replayed(layout: Layout, events: Iterator[Event]) -> list[ArenaState]:
    """States after each event."""
    states = []
    for _, before, outcome in replay(layout, events):
        states.append(outcome.state if isinstance(outcome, Outcome) else before)
    return states


@pytest.mark.parametrize("seed", range(12))
def test_a_recording_gives_the_run_back(seed: int) -> None:
    """From its bytes: same layout, events, states, content and digest after every one of 150 events, refusals included."""
    layout, events, states = a_run(seed, 150)
    data = write(layout, events)
    back_layout, back_events = read(data)
    assert back_layout == layout
    back = list(back_events)
    assert back == events
    again = replayed(back_layout, iter(back))
    assert [state.digest for state in again] == [state.digest for state in states]
    assert again == states
    assert content_digest(again[-1]) == content_digest(states[-1])
    assert write(back_layout, back) == data
    ids = sum(len(event.pages) for event in events)
    assert len(data) - len(header(layout)) <= EVENT_BYTES * len(events) + ID_BYTES * ids
    assert all(len(encode_event(event).tobytes()) <= EVENT_BYTES + ID_BYTES * len(event.pages) for event in events)


SCRIPT = """
import sys
from core_pure.recording import read, replay
from core_pure.state import Outcome
from core_pure.event import content_digest
layout, events = read(open(sys.argv[1], "rb").read())
for _, before, outcome in replay(layout, events):
    state = outcome.state if isinstance(outcome, Outcome) else before
print(state.digest.hex(), content_digest(state).hex(), hash(state.layout.names[0]))
"""


def test_another_process_reaches_the_same_digest(tmp_path: Path) -> None:
    """Two fresh processes with other string hashes replay a recording to the digest and the contents of this one."""
    layout, events, states = a_run(99, 400)
    path = tmp_path / "run.kvarena"
    path.write_bytes(write(layout, events))
    seen = []
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path)],
            capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        )  # fmt: skip
        seen.append(done.stdout.split())
    assert seen[0][:2] == seen[1][:2] == [states[-1].digest.hex(), content_digest(states[-1]).hex()]
    assert seen[0][2] != seen[1][2], "the processes do hash strings differently"


def test_each_event_moves_the_digest() -> None:
    """No two prefixes of a run have one digest; a refusal moves nothing; leaving out, repeating or swapping events shows."""
    rng = random.Random(5)
    layout, events, states = a_run(7, 120)
    digests = [state.digest for state in states]
    changed = [a != b for a, b in itertools.pairwise(digests)]
    outcomes = [isinstance(outcome, Outcome) for _, _, outcome in replay(layout, iter(events))]
    assert changed == outcomes[1:]
    assert len(set(digests)) == 1 + sum(changed)
    altered = Counter[str]()
    for _ in range(60):
        at = rng.randrange(len(events) - 1)
        other = list(events)
        if rng.random() < 0.5:
            del other[at]
        else:
            other[at], other[at + 1] = other[at + 1], other[at]
        if other == events or not outcomes[at]:
            continue
        try:
            last = replayed(layout, iter(other))[-1]
        except RecordingError:
            altered["misuse"] += 1
            continue
        differ = last.digest != digests[-1]
        altered["differ" if differ else "same"] += 1
        if not differ:
            assert not outcomes[at + 1], "only a swap with a refusal can stay unseen"
    assert altered["differ"] > 5


def test_the_digest_tells_histories_apart_that_end_alike() -> None:
    """Two ways to the same contents: equal values, equal content digests, different digests."""
    layout = Layout((BandSpec("a", 4), BandSpec("b", 3)), 80, 80)
    there = apply(initial(layout), Event("allocate", demand=(2, 2)))
    back = apply(there.state, Event("release", pages=bound_pages(there.state)))
    assert back.state == initial(layout)
    assert content_digest(back.state) == content_digest(initial(layout))
    assert back.state.digest != initial(layout).digest


def test_content_digest_sees_every_fact() -> None:
    """One page more, another frame, a pin, a quarantine, another id order: each changes the content digest and equality."""
    layout = Layout((BandSpec("a", 4), BandSpec("b", 3)), 80, 80)
    base = apply(initial(layout), Event("allocate", demand=(4, 4))).state
    launched = apply(base, Event("launch")).state
    others = [
        apply(base, Event("allocate", demand=(1, 0))).state,
        apply(base, Event("release", pages=np.array([2]))).state,
        apply(base, Event("release", pages=np.array([1]))).state,
        apply(base, Event("pin", pages=np.array([2]))).state,
        apply(apply(base, Event("pin", pages=np.array([2]))).state, Event("pin", pages=np.array([2]))).state,
        apply(launched, Event("release", pages=np.array([2]), reader=1)).state,
        apply(apply(base, Event("release", pages=np.array([2]))).state, Event("compact")).state,
        apply(base, Event("release", pages=np.array([2, 3]))).state,
        apply(base, Event("release", pages=np.array([3, 2]))).state,
    ]
    digests = [content_digest(state) for state in (base, *others)]
    assert len(set(digests)) == len(digests)
    assert all(one != two for one, two in itertools.combinations((base, *others), 2))
    assert launched == base, "fences tell history"
    assert content_digest(launched) == content_digest(base)


def test_the_hash_sees_every_word() -> None:
    """Changing, dropping, adding or swapping words of a plan changes its hash; odd lengths count too."""
    rng = np.random.default_rng(4)
    for length in (1, 2, 3, 12, 13, 200, 1025):
        words = rng.integers(1, 2**31 - 1, length).astype(np.int32)
        whole, others = multilinear64(words), set()
        for at in range(length):
            changed = words.copy()
            changed[at] ^= 1
            others.add(multilinear64(changed))
        assert whole not in others
        assert len(others) == length
        if length > 1:
            assert multilinear64(words[::-1].copy()) != whole
        keys = [int(key) for key in _keys(2048)]
        pairs = [int.from_bytes(words[at : at + 2].tobytes(), "little") for at in range(0, length - 1, 2)]
        exact = sum(pair * key for pair, key in zip(pairs, keys, strict=False))
        if length % 2:
            exact += int(words[-1]) * keys[len(pairs)]
        assert whole % 2**64 == exact % 2**64


def test_every_kind_passes_the_door() -> None:
    """Each kind of event gives what its function gives, with the digest moved on."""
    layout = build_layout([BandSpec("a", 700), BandSpec("b", 500)], 1 << 16)
    state, seen, kinds = initial(layout), [], set()
    for event in (
        Event("allocate", demand=(5, 5)),
        Event("advance", demand=(1, 1), pages=np.array([1, 2])),
        Event("release", pages=np.array([3])),
        Event("pin", pages=np.array([4])),
        Event("unpin", pages=np.array([4])),
        Event("launch"),
        Event("release", pages=np.array([4]), reader=1),
        Event("retire", number=1),
        Event("compact", number=None),
        Event("copy", pages=np.array([5])),
        Event("resize", number=1 << 15),
        Event("clear"),
    ):
        outcome = apply(state, event)
        assert isinstance(outcome, Outcome)
        assert len(outcome.state.digest) == 16
        assert outcome.state.digest not in seen
        seen.append(outcome.state.digest)
        if event.kind == "advance":
            plain = advance(state, release=event.pages, demand=event.demand)
            assert plain.state == outcome.state
            assert plain.plan == outcome.plan
        state = outcome.state
        kinds.add(event.kind)
    assert kinds == set(KINDS)
    assert state.layout.total_bytes == 1 << 15
    assert all(band.is_empty for band in state.bands)


def test_misuse_in_a_recording_is_named_with_its_number() -> None:
    """An event that does not belong to the run it is in raises RecordingError with its number and kind."""
    layout = Layout((BandSpec("a", 4),), 80, 80)
    events = [Event("allocate", demand=(2,)), Event("launch"), Event("release", pages=np.array([9]))]
    with pytest.raises(RecordingError, match=r"event 2 \(release\).*page 9"):
        list(replay(*read(write(layout, events))))
    with pytest.raises(RecordingError, match=r"event 0 \(allocate\)"):
        list(replay(layout, iter([Event("allocate", demand=(2, 2))])))


def test_damaged_recordings_are_refused() -> None:
    """Another magic, no layout, a layout of nonsense, half a word, half an event: RecordingError, not half a run."""
    layout, events, _ = a_run(3, 20)
    data = write(layout, events)
    for damaged in (b"", b"kvarena", data[:10], b"X" + data[1:], data[: data.index(b"\n") + 1], header(layout)[:-5] + b"\n"):
        with pytest.raises(RecordingError):
            read(damaged)
    with pytest.raises(RecordingError, match="middle of a word"):
        read(data[:-3])
    cut = data[: len(header(layout)) + 8 * (sum(len(encode_event(event)) for event in events[:7]) + 1)]
    with pytest.raises(RecordingError):
        list(read(cut)[1])
    for facts in (None, [], {}, {"bands": [], "total_bytes": 1, "capacity_bytes": 1}, {**layout_facts(layout), "total_bytes": "x"}):
        with pytest.raises(RecordingError):
            layout_from(facts)


def test_a_door_records_what_it_does() -> None:
    """Every event of a served run is told to the recorder after it happened; replayed, state and digest are the door's."""
    layout = build_layout(
        [
            BandSpec("state", 700, retention="state"),
            BandSpec("window-8", 300, slots_per_page=4, retention="window", window=8),
            BandSpec("full", 260, slots_per_page=4),
        ],
        8 * 4096,
    )
    events: list[Event] = []
    door = Door(layout, sequences=8, context=100, chunk=16, draft_tokens=4, recorder=events.append)
    a, b, c = (int(handle) for handle in door.open(3))
    refused = 0
    for number in range(12):
        result = door.step(np.array([a, b, c]), np.array([5, 1, 2 + number % 3]), slid=None)
        refused += isinstance(result, Refusal)
        if number == 4:
            door.trim(np.array([a]), door.leases.facts.copy()[[a & 0xFFFFF], 1])
        if number == 6:
            door.launch()
            door.compact(5_000)
            door.retire(1)
        if number == 7:
            door.pin(a)
            door.compact()
            door.unpin(a)
    child = door.fork(a)
    assert isinstance(child, int)
    door.step(np.array([], np.int64), np.array([], np.int64), np.array([a, child]))
    door.resize(7 * 4096)
    last = replayed(layout, iter(events))[-1]
    assert refused == 0
    assert last == door.state
    assert last.digest == door.state.digest
    count = len(events)
    with pytest.raises(ArenaError):
        door.step(np.array([a]), np.array([1]))
    assert len(events) == count, "what did not happen is not recorded"
    data = write(layout, events)
    assert len(data) - len(header(layout)) <= EVENT_BYTES * count + ID_BYTES * sum(len(event.pages) for event in events)
