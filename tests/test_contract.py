"""The frozen contract: public names and signatures of the core, plan encoding v1 word by word, event encoding, recordings.

A change that fails here is seen by every user of the package: change the text below on purpose, or not at all.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import attrs
import numpy as np
import pytest

from core_pure.advance import allocate
from core_pure.errors import ArenaError, RecordingError
from core_pure.event import KINDS, Event, apply, chained, decode_event, encode_event
from core_pure.layout import BandSpec, Layout
from core_pure.plan import HEADER_WORDS, PLAN_VERSION, POISON, ZERO, Plan, decode, encode, encoded_words
from core_pure.recording import MAGIC, header, read, write
from core_pure.state import initial

CONTRACT = """
advance.advance(state: 'ArenaState', *, release: 'object' = array([], dtype=int32), demand: 'Mapping[str, int] | Sequence[int] | None' = None, reader: 'int | None' = None, withhold: 'bool' = False) -> 'Outcome | Refusal'
advance.allocate(state: 'ArenaState', demand: 'Mapping[str, int] | Sequence[int]', *, reader: 'int | None' = None) -> 'Outcome | Refusal'
advance.release(state: 'ArenaState', pages: 'object', *, reader: 'int | None' = None) -> 'Outcome'
advance.resize(state: 'ArenaState', total_bytes: 'int') -> 'Outcome | Refusal'
advance.clear(state: 'ArenaState') -> 'Outcome'
compact.compact(state: 'ArenaState', *, bytes_limit: 'int | None' = None, reader: 'int | None' = None, written: 'object' = None) -> 'Outcome'
fences.launch(state: 'ArenaState') -> 'Outcome'
fences.retire(state: 'ArenaState', fence: 'int') -> 'Outcome'
pins.pin(state: 'ArenaState', pages: 'object') -> 'Outcome'
pins.unpin(state: 'ArenaState', pages: 'object') -> 'Outcome'
fits.fits(state: 'ArenaState', demand: 'Mapping[str, int] | Sequence[int]', *, mode: 'Mode' = 'relief', evictable: 'Mapping[str, int] | Sequence[int] | None' = None) -> 'Fit | Refusal'
fits.after(fence: 'int') -> 'After'
fits.obtainable(state: 'ArenaState', at: 'int', mode: 'Mode', evicted: 'Demand | None' = None) -> 'int'
fits.joint_maximum(state: 'ArenaState', demand: 'Demand', mode: 'Mode', evicted: 'Demand | None' = None) -> 'Demand'
fits.is_feasible(state: 'ArenaState', demand: 'Demand', mode: 'Mode', evicted: 'Demand | None' = None) -> 'bool'
fits.Fit: mode
fits.Refusal: band, reason, mode, bands, fence
fits.BandRefusal: band, wanted, now, after_relief, after_fence, after_eviction, joint, bytes_held
fits.NOW = 'now'
fits.RELIEF = 'relief'
layout.BandSpec: name, frame_bytes, slots_per_page, retention, window, pages_min, pages_max, pages_fixed, zero_on_bind, geometry
layout.Layout: bands, total_bytes, capacity_bytes
layout.build_layout(bands: 'Iterable[BandSpec]', total_bytes: 'int') -> 'Layout'
layout.check_boot(layout: 'Layout', context: 'int', chunk: 'int') -> 'None'
layout.boot_floor(chain: 'Sequence[BandSpec]', context: 'int', chunk: 'int') -> 'int'
layout.floor_demand(chain: 'Sequence[BandSpec]', context: 'int', chunk: 'int') -> 'Demand'
layout.Layout.index(self, name: 'str') -> 'int'
layout.Layout.demand(self, wanted: 'Mapping[str, int] | Sequence[int]') -> 'Demand'
state.ArenaState: layout, bands, launched (not compared), retired (not compared), digest (not compared)
state.Outcome: state, plan, pages
state.initial(layout: 'Layout') -> 'ArenaState'
state.ArenaState.frames_of(self, pages: 'NDArray[np.integer]') -> 'NDArray[np.int32]'
state.ArenaState.table(self) -> 'NDArray[np.int32]'
band.Band: home, frame_of, page_of, ids, blocks, live, spare, fresh, low, high, held
plan.Plan: waves, copies, fills, rows, wait
plan.encode(plan: 'Plan', out: 'Rows | None' = None) -> 'Rows'
plan.decode(words: 'Rows') -> 'Plan'
event.Event: kind, number, reader, demand, pages, flag
event.apply(state: 'ArenaState', event: 'Event') -> 'Outcome | Refusal'
event.encode_event(event: 'Event') -> 'Words'
event.decode_event(words: 'Words') -> 'tuple[Event, int]'
event.content_digest(state: 'ArenaState') -> 'bytes'
recording.write(layout: 'Layout', events: 'Iterable[Event]') -> 'bytes'
recording.read(data: 'bytes') -> 'tuple[Layout, Iterator[Event]]'
recording.replay(layout: 'Layout', events: 'Iterable[Event]') -> 'Iterator[tuple[Event, ArenaState, Outcome | Refusal]]'
rollback.undo(before: 'ArenaState', plan: 'Plan') -> 'Plan'
verify.verify(state: 'ArenaState') -> 'list[Violation]'
verify.Violation: claim, text
report.report(state: 'ArenaState') -> 'Report'
report.Report: bands, gap_bytes, sink_bytes, total_bytes
report.BandReport: band, pages, live_bytes, hole_bytes, quarantined_bytes, pinned_bytes, low_byte, high_byte
leases.Leases: layout, sequences, context, widths, facts, rows, holders, idle, fresh, shared, has_parts, serial (not compared)
leases.RowWrite: cells, pages
leases.empty_leases(layout: 'Layout', *, sequences: 'int', context: 'int', draft_tokens: 'int' = 0) -> 'Leases'
leases.open_leases(leases: 'Leases', count: 'int') -> 'tuple[Leases, Handles]'
leases.share(leases: 'Leases', source: 'int', target: 'int', tokens: 'int') -> 'tuple[Leases, tuple[RowWrite, ...]]'
leases.split(leases: 'Leases', handle: 'int', target: 'int', tokens: 'int') -> 'tuple[Leases, tuple[RowWrite, ...]]'
leases.pages_of(leases: 'Leases', handle: 'int') -> 'tuple[NDArray[np.int32], ...]'
step.StepOutcome: state, leases, plan, pages, writes, slots, before, after, event
step.step(state: 'ArenaState', leases: 'Leases', handles: 'object', new_tokens: 'object', finished: 'object' = array([], dtype=int64), slid: 'object | None' = None, *, reader: 'int | None' = None, withhold: 'bool' = False) -> 'StepOutcome | Refusal'
step.trim(state: 'ArenaState', leases: 'Leases', handles: 'object', tokens: 'object', *, reader: 'int | None' = None) -> 'StepOutcome'
step.fork(state: 'ArenaState', leases: 'Leases', handle: 'int', *, reader: 'int | None' = None) -> 'tuple[StepOutcome, int] | Refusal'
step.extents(state: 'ArenaState', leases: 'Leases', handle: 'int') -> 'list[tuple[str, int, int, int]]'
step.pages_wanted(leases: 'Leases', handles: 'object', new_tokens: 'object', slid: 'object | None' = None) -> 'Demand'
step.write_slots(step: 'StepOutcome', band: 'int') -> 'NDArray[np.int64]'
step.block_table(state: 'ArenaState', leases: 'Leases', slots: 'Slots', band: 'int', columns: 'int') -> 'NDArray[np.int32]'
admission.AdmissionBudget: state, chunk, taken
admission.AdmissionBudget.of(state: 'ArenaState', chunk: 'int', promised: 'Demand | None' = None) -> 'AdmissionBudget'
admission.AdmissionBudget.fold(self, tokens_now: 'int', tokens_reserved: 'int' = 0) -> 'AdmissionBudget | Refusal'
admission.max_request_tokens(layout: 'Layout', chunk: 'int', context: 'int | None' = None) -> 'int'
admission.largest_concurrency(layout: 'Layout', tokens: 'int', chunk: 'int') -> 'int'
admission.request_pages(layout: 'Layout', tokens: 'int', chunk: 'int') -> 'Demand'
admission.eviction_advice(state: 'ArenaState', demand: 'Demand', units: 'Sequence[Demand]') -> 'Advice | Refusal'
admission.Advice: units, pages, freed_bytes, optimal
capacity.Unit: key, pages
capacity.StepResult: outcome, bytes_moved
capacity.Pool.names: property
capacity.Pool.open(self, count: 'int') -> 'Ints'
capacity.Pool.demand_of(self, handles: 'Ints', new_tokens: 'Ints') -> 'Demand'
capacity.Pool.step(self, handles: 'Ints', new_tokens: 'Ints', finished: 'Ints' = Ellipsis, slid: 'Ints | None' = None) -> 'StepResult | Refusal'
capacity.Pool.check_decode(self, demand: 'Demand', evictor: 'Evictor | None' = None) -> 'bool'
capacity.Pool.evict_to_free(self, demand: 'Demand', evictor: 'Evictor | None') -> 'int'
capacity.Pool.fits(self, demand: 'Mapping[str, int] | Sequence[int]') -> 'Fit | Refusal'
capacity.Pool.max_request_tokens(self) -> 'int'
capacity.Pool.admission(self, promised: 'Demand | None' = None) -> 'Budget'
capacity.Pool.verify(self) -> 'list[Violation]'
capacity.Pool.report(self) -> 'Report'
capacity.Evictor.units(self) -> 'Sequence[Unit]'
capacity.Evictor.evict(self, keys: 'Sequence[Any]') -> 'None'
capacity.Budget.admit(self, tokens_now: 'int', tokens_reserved: 'int') -> 'bool'
door.Door._project(self, before: 'Serving', after: 'Serving', plan: 'Plan', writes: 'tuple[RowWrite, ...]') -> 'None'
door.Door.value: property
door.Door.state: property
door.Door.leases: property
door.Door.names: property
door.Door.open(self, count: 'int') -> 'Ints'
door.Door.demand_of(self, handles: 'Ints', new_tokens: 'Ints') -> 'Demand'
door.Door.step(self, handles: 'Ints', new_tokens: 'Ints', finished: 'Ints' = array([], dtype=int64), slid: 'Ints | None' = None, *, reader: 'int | None' = None, withhold: 'bool' = False) -> 'StepResult | Refusal'
door.Door.trim(self, handles: 'Ints', tokens: 'Ints', *, reader: 'int | None' = None) -> 'StepOutcome'
door.Door.fork(self, handle: 'int', *, reader: 'int | None' = None) -> 'int | Refusal'
door.Door.share(self, source: 'int', target: 'int', tokens: 'int') -> 'None'
door.Door.split(self, handle: 'int', target: 'int', tokens: 'int') -> 'None'
door.Door.pages(self, handle: 'int') -> 'tuple[NDArray[np.int32], ...]'
door.Door.extents(self, handle: 'int') -> 'list[tuple[str, int, int, int]]'
door.Door.pin(self, handle: 'int') -> 'None'
door.Door.unpin(self, handle: 'int') -> 'None'
door.Door.launch(self) -> 'int'
door.Door.retire(self, fence: 'int') -> 'None'
door.Door.compact(self, bytes_limit: 'int | None' = None, *, reader: 'int | None' = None, written: 'Ints | None' = None) -> 'int'
door.Door.resize(self, total_bytes: 'int') -> 'Outcome | Refusal'
door.Door.clear(self) -> 'None'
door.Door.fits(self, demand: 'Mapping[str, int] | Sequence[int]', *, mode: 'Mode' = 'relief', evictable: 'Demand | None' = None) -> 'Fit | Refusal'
door.Door.check_decode(self, demand: 'Demand', evictor: 'Evictor | None' = None) -> 'bool'
door.Door.evict_to_free(self, demand: 'Demand', evictor: 'Evictor | None') -> 'int'
door.Door.max_request_tokens(self) -> 'int'
door.Door.admission(self, promised: 'Demand | None' = None) -> 'DoorBudget'
door.Door.verify(self) -> 'list[Violation]'
door.Door.report(self) -> 'Report'
door.Door(layout: 'Layout', *, sequences: 'int', context: 'int', chunk: 'int', draft_tokens: 'int' = 0, strict: 'bool' = False, recorder: 'Recorder | None' = None) -> 'None'
errors.ConfigError < ArenaError
errors.LayoutError < ArenaError
errors.RecordingError < ArenaError
errors.DemandError < ArenaError
errors.PageError < ArenaError
errors.PageNotBound < PageError
errors.SinkPage < PageError
errors.DuplicatePage < PageError
errors.ForeignPage < PageError
errors.PagePinned < PageError
errors.PinError < PageError
errors.FenceError < ArenaError
errors.LeaseStale < ArenaError
errors.LeaseError < ArenaError
errors.PromiseBroken < ArenaError
errors.CorruptState < ArenaError
errors.ContentsLost < ArenaError
errors.WrongThread < ArenaError
errors.UnsupportedRequirement < ArenaError
"""  # noqa: E501

DIGEST = "b7bd4b4045b32dab4a2b367c7c917190"


def described(name: str) -> str:
    """One line per public name: a function's signature, a value's fields, a class's methods, or a constant."""
    module, _, attribute = name.partition(".")
    thing: Any = importlib.import_module(f"core_pure.{module}")
    for part in attribute.split("."):
        thing = getattr(thing, part)
    if isinstance(thing, type) and attrs.has(thing):
        fields = [f"{field.name}{'' if field.eq else ' (not compared)'}" for field in attrs.fields(thing)]
        return f"{name}: {', '.join(fields)}"
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return f"{name} < {thing.__mro__[1].__name__}"
    if isinstance(thing, type) and issubclass(thing, tuple):
        return f"{name}: {', '.join(thing._fields)}"  # type: ignore[attr-defined]
    if callable(thing):
        return f"{name}{inspect.signature(thing)}"
    if isinstance(thing, property):
        return f"{name}: property"
    return f"{name} = {thing!r}"


def test_public_names_and_signatures_are_frozen() -> None:
    """Every public function, value and error has exactly the signature, fields and base that this file says."""
    lines = CONTRACT.strip().splitlines()
    now = [described(line.split("(")[0].split(":")[0].split(" ")[0]) for line in lines]
    assert now == lines


def test_every_error_is_an_arena_error_and_is_listed() -> None:
    """No error class of the core is missing from the contract, and all derive from ArenaError."""
    module = importlib.import_module("core_pure.errors")
    classes = {name for name, thing in vars(module).items() if isinstance(thing, type) and issubclass(thing, Exception)}
    listed = {line.split(".")[1].split(" ")[0] for line in CONTRACT.splitlines() if line.startswith("errors.")}
    assert classes == listed | {"ArenaError"}
    assert all(issubclass(getattr(module, name), ArenaError) for name in classes)


def test_frozen_values_are_frozen() -> None:
    """No field of any attrs value of the contract can be assigned to."""
    for line in CONTRACT.splitlines():
        name = line.split("(")[0].split(":")[0].split(" ")[0]
        module, _, attribute = name.partition(".")
        thing = getattr(importlib.import_module(f"core_pure.{module}"), attribute.split(".")[0]) if name else None
        if isinstance(thing, type) and attrs.has(thing):
            instance = thing.__new__(thing)
            for field in attrs.fields(thing):
                with pytest.raises(attrs.exceptions.FrozenInstanceError):
                    setattr(instance, field.name, 1)


# --- plans ---------------------------------------------------------------------------------------------------------------


def plan_by_hand() -> Plan:
    """Two waves, one copy, two fills, three rows, a wait above 32 bits."""
    rows = lambda *lines: np.array(lines, np.int32)  # noqa: E731
    return Plan(
        waves=(rows((0, 5, 2), (1, 9, 7)), rows((2, 40, 3))),
        copies=rows((1, 7, 12)),
        fills=rows((0, 6, ZERO), (2, 4, POISON)),
        rows=rows((3, 2), (101, 7), (4, -1)),
        wait=(5 << 32) + 6,
    )


WORDS = [
    *(1, 38, 2, 3, 1, 2, 3, 6, 5, 0, 0, 0),  # version, words, waves, moves, copies, fills, rows, wait low, wait high, 0, 0, 0
    *(2, 1),  # rows of each wave
    *(0, 5, 2, 1, 9, 7),  # wave 1: band, source, target
    *(2, 40, 3),  # wave 2
    *(1, 7, 12),  # copies
    *(0, 6, 0, 2, 4, 1),  # fills: band, frame, pattern
    *(3, 2, 101, 7, 4, -1),  # table rows: page id, frame or -1
]


def test_plan_encoding_version_1_word_by_word() -> None:
    """The plan above gives exactly these int32 words, and these words give the plan."""
    assert (PLAN_VERSION, HEADER_WORDS, ZERO, POISON) == (1, 12, 0, 1)
    words = encode(plan_by_hand())
    assert words.dtype == np.int32
    assert words.tolist() == WORDS
    assert encoded_words(plan_by_hand()) == len(WORDS)
    assert decode(words) == plan_by_hand()
    assert plan_by_hand().words.tolist() == WORDS
    assert not plan_by_hand().words.flags.writeable


def test_the_empty_plan() -> None:
    """Twelve words, no wait, and it knows that it is empty."""
    assert encode(Plan()).tolist() == [1, 12, 0, 0, 0, 0, 0, -1, -1, 0, 0, 0]
    assert Plan().is_empty
    assert not plan_by_hand().is_empty
    assert plan_by_hand().moves == 3


def test_encoding_into_a_ring() -> None:
    """A longer buffer takes the words at its start; a shorter one is refused and stays as it was."""
    ring = np.full(60, 77, np.int32)
    assert encode(plan_by_hand(), ring).tolist() == WORDS
    assert ring[len(WORDS) :].tolist() == [77] * (60 - len(WORDS))
    small = np.full(len(WORDS) - 1, 77, np.int32)
    with pytest.raises(RecordingError, match=str(len(WORDS))):
        encode(plan_by_hand(), small)
    assert (small == 77).all()


@pytest.mark.parametrize(
    ("at", "value"),
    [
        *((0, 2), (0, 0), (1, 37), (1, 39), (2, 1), (2, 3), (2, -1), (3, 2), (3, -3)),
        *((4, 2), (5, -2), (6, 4), (9, 1), (10, 1), (11, -1), (12, 3), (12, 0), (13, -1)),
    ],
)
def test_damaged_plans_are_refused(at: int, value: int) -> None:
    """One wrong header or size word is a RecordingError, never a half-read plan."""
    words = np.array(WORDS, np.int32)
    words[at] = value
    with pytest.raises(RecordingError):
        decode(words)


def test_cut_and_lengthened_plans_are_refused() -> None:
    """Every proper prefix of a plan, a plan with one word more, and a wait below -1 are RecordingErrors."""
    for length in range(len(WORDS)):
        with pytest.raises(RecordingError):
            decode(np.array(WORDS[:length], np.int32))
    with pytest.raises(RecordingError):
        decode(np.array([*WORDS, 0], np.int32))
    negative = np.array(WORDS, np.int32)
    negative[7:9] = (-2, -1)
    with pytest.raises(RecordingError):
        decode(negative)


def test_random_plans_survive_encoding() -> None:
    """decode(encode(p)) == p for 500 random plans, and any one changed payload word gives another plan."""
    rng = np.random.default_rng(1)
    for _ in range(500):
        block = lambda rows, width: rng.integers(-1, 2**31 - 1, (rows, width)).astype(np.int32)  # noqa: E731
        plan = Plan(
            waves=tuple(block(int(rng.integers(1, 5)), 3) for _ in range(int(rng.integers(0, 4)))),
            copies=block(int(rng.integers(0, 3)), 3),
            fills=block(int(rng.integers(0, 4)), 3),
            rows=block(int(rng.integers(0, 5)), 2),
            wait=None if rng.random() < 0.5 else int(rng.integers(0, 2**62)),
        )
        words = encode(plan)
        assert decode(words) == plan
        assert hash(decode(words)) == hash(plan)
        if len(words) > HEADER_WORDS + len(plan.waves):
            words[-1] ^= 1
            assert decode(words) != plan


# --- events --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event("allocate", demand=(3, 0, 1)), [3 << 16, -1, -1, 3, 0, 1]),
        (Event("release", pages=np.array([7, 9]), reader=4), [1 | 2 << 32, -1, 4, 7, 9]),
        (Event("advance", None, 2, (1, 2), np.array([5]), True), [2 | 1 << 8 | 2 << 16 | 1 << 32, -1, 2, 1, 2, 5]),
        (Event("compact", number=4096), [3, 4096, -1]),
        (Event("compact", reader=3, pages=np.array([8]), flag=True), [3 | 1 << 8 | 1 << 32, -1, 3, 8]),
        (Event("pin", pages=np.array([6])), [4 | 1 << 32, -1, -1, 6]),
        (Event("unpin", pages=np.array([6])), [5 | 1 << 32, -1, -1, 6]),
        (Event("launch"), [6, -1, -1]),
        (Event("retire", number=3), [7, 3, -1]),
        (Event("clear"), [8, -1, -1]),
        (Event("resize", number=8192), [9, 8192, -1]),
        (Event("copy", reader=2, pages=np.array([5, 3])), [10 | 2 << 32, -1, 2, 5, 3]),
    ],
)
def test_event_encoding_word_by_word(event: Event, words: list[int]) -> None:
    """Each kind gives exactly these int64 words: kind, flag and lengths; number; reader; demand; pages. And back."""
    encoded = encode_event(event)
    assert encoded.dtype == np.int64
    assert encoded.tolist() == words
    decoded, used = decode_event(np.concatenate((encoded, encoded)))
    assert (decoded, used) == (event, len(words))


def test_kinds_keep_their_numbers() -> None:
    """The numbers of the kinds are part of every recording."""
    assert KINDS == ("allocate", "release", "advance", "compact", "pin", "unpin", "launch", "retire", "clear", "resize", "copy")


@pytest.mark.parametrize(
    "words",
    [[], [0, -1], [11, -1, -1], [-1, -1, -1], [2 << 8, -1, -1], [0, -2, -1], [0, -1, -2], [1 << 32, -1, -1]],
)
def test_damaged_events_are_refused(words: list[int]) -> None:
    """Too short, an unknown kind, a flag above 1, numbers below -1, more pages than there are: RecordingError."""
    with pytest.raises(RecordingError):
        decode_event(np.array(words, np.int64))


def test_unknown_kinds_are_refused() -> None:
    """An event of no kind raises, and the value is untouched."""
    state = initial(Layout((BandSpec("a", 4),), 40, 40))
    with pytest.raises(RecordingError, match="nonsense"):
        apply(state, Event("nonsense"))


def test_digest_of_a_known_event() -> None:
    """The digest of one allocation in a known arena is this constant: on every machine, under every numpy."""
    state = apply(initial(Layout((BandSpec("a", 4), BandSpec("b", 6)), 60, 60)), Event("allocate", demand=(2, 3))).state
    assert state.digest.hex() == DIGEST
    assert allocate(initial(state.layout), (2, 3)).state.digest == b"", "only the door moves the digest"
    again = chained(b"", Event("allocate", demand=(2, 3)), allocate(initial(state.layout), (2, 3)).plan)
    assert again.hex() == DIGEST


def test_recordings_start_with_their_name() -> None:
    """Magic line, one line of JSON, then words; a recording of nothing is its header."""
    layout = Layout((BandSpec("a", 4), BandSpec("b", 6, pages_max=9)), 60, 80)
    assert MAGIC == b"kvarena-recording 1\n"
    assert write(layout, []) == header(layout)
    assert header(layout).startswith(MAGIC)
    assert header(layout).count(b"\n") == 2
    back, found = read(write(layout, [Event("launch"), Event("retire", number=1)]))
    assert back == layout
    assert list(found) == [Event("launch"), Event("retire", number=1)]
