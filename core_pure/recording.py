"""A recording: the layout and every event, as bytes. Reading gives the run back; files are the caller's business.

Format: the line ``kvarena-recording 1``; one line of JSON with the layout; then, per event, its int64 words (they carry
their own length). At most 64 bytes per event of up to five bands, and 8 per page id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
from attrs import asdict

from .errors import ArenaError, LayoutError, RecordingError
from .event import Event, apply, decode_event, encode_event
from .fits import Refusal
from .layout import IDS_LIMIT, BandSpec, Layout, check_band, is_whole
from .state import ArenaState, Outcome, initial

MAGIC = b"kvarena-recording 1\n"


def layout_facts(layout: Layout) -> dict[str, object]:
    """The layout as plain data, without the model's geometry (the core does not need it)."""
    bands = [{k: v for k, v in asdict(band, recurse=False).items() if k != "geometry"} for band in layout.bands]
    return {"bands": bands, "total_bytes": layout.total_bytes, "capacity_bytes": layout.capacity_bytes}


def layout_from(facts: object) -> Layout:
    """The inverse of ``layout_facts``. Raises: RecordingError."""
    try:
        assert isinstance(facts, dict)
        layout = Layout(tuple(BandSpec(**band) for band in facts["bands"]), facts["total_bytes"], facts["capacity_bytes"])
        for band in layout.bands:
            check_band(band)
        assert is_whole(layout.total_bytes) and is_whole(layout.capacity_bytes), "arena bytes are whole numbers"
        assert layout.bands and layout.sink_bytes <= layout.total_bytes <= layout.capacity_bytes, "arena bytes contradict"
        assert layout.ids_total <= IDS_LIMIT, "too many page ids"
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError, LayoutError) as error:
        raise RecordingError(f"the recording's layout cannot be understood: {error!r}") from error
    return layout


def header(layout: Layout) -> bytes:
    """What a recording starts with."""
    return MAGIC + json.dumps(layout_facts(layout), sort_keys=True).encode() + b"\n"


def write(layout: Layout, events: Iterable[Event]) -> bytes:
    """A whole recording."""
    return header(layout) + b"".join(encode_event(event).tobytes() for event in events)


def read(data: bytes) -> tuple[Layout, Iterator[Event]]:
    """Layout and events. Raises: RecordingError, at once for a bad header, and while iterating for a damaged event."""
    if not data.startswith(MAGIC):
        named = data[: len(MAGIC)].rstrip(b"0123456789\n") == MAGIC.rstrip(b"0123456789\n")
        what = "a recording of another version, or cut off" if named else "not a kvarena recording"
        raise RecordingError(f"{what}: it starts with {data[:20]!r}, expected {MAGIC!r}")
    end = data.find(b"\n", len(MAGIC))
    if end < 0:
        raise RecordingError(f"the recording is cut off inside its layout, after {len(data)} bytes; record it again")
    try:
        facts = json.loads(data[len(MAGIC) : end])
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"the recording's layout is no JSON: {error}") from error
    body = data[end + 1 :]
    if len(body) % 8:
        raise RecordingError(f"the recording ends in the middle of a word: {len(body)} bytes of events")
    return layout_from(facts), _events(np.frombuffer(body, np.int64))


def _events(words: np.ndarray) -> Iterator[Event]:
    at = number = 0
    while at < len(words):
        try:
            event, used = decode_event(words[at:])
        except RecordingError as error:
            raise RecordingError(f"event {number} is damaged or cut off ({error}); events before it are whole") from error
        at, number = at + used, number + 1
        yield event


def replay(layout: Layout, events: Iterable[Event]) -> Iterator[tuple[Event, ArenaState, Outcome | Refusal]]:
    """Apply events from the empty arena; yields each event, the state before it, and what came of it.

    Raises: RecordingError, naming the event's number, where an event is misuse on the state it meets.
    """
    state = initial(layout)
    for number, event in enumerate(events):
        try:
            outcome = apply(state, event)
        except ArenaError as error:
            raise RecordingError(f"event {number} ({event.kind}) does not belong to this layout or run: {error}") from error
        yield event, state, outcome
        if isinstance(outcome, Outcome):
            state = outcome.state
