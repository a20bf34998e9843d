"""Looking into a recording: who holds which bytes at one step, adding up to the total."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen
from rich.table import Table

from core_pure.errors import ConfigError, RecordingError
from core_pure.event import Event
from core_pure.fits import Refusal
from core_pure.layout import Layout
from core_pure.recording import read, replay
from core_pure.report import Report, report
from core_pure.state import initial


@frozen
class Moment:
    """The arena after ``step`` of ``steps`` events. ``event`` is that last event, None at step 0."""

    step: int
    steps: int
    event: Event | None
    refused: bool
    pages_bound: int
    frames_moved: int
    report: Report


def load(path: Path) -> tuple[Layout, list[Event]]:
    """The layout and events of a recording. Raises: ConfigError for a file that cannot be read, RecordingError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"recording {path}: cannot be read ({error.strerror})") from error
    try:
        layout, events = read(data)
        return layout, list(events)
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error


def holders(layout: Layout, events: list[Event], at: int | None) -> Moment:
    """The arena after the first ``at`` events (None: all). Raises: ConfigError beyond the recording, RecordingError."""
    wanted = len(events) if at is None else at
    if not 0 <= wanted <= len(events):
        raise ConfigError(f"--at {wanted}: the recording has steps 0 to {len(events)}")
    state, refused, bound, moved = initial(layout), False, 0, 0
    for _, _, outcome in replay(layout, _first(events, wanted)):
        refused = isinstance(outcome, Refusal)
        if isinstance(outcome, Refusal):
            continue
        state = outcome.state
        bound = sum(len(pages) for pages in outcome.pages)
        moved = sum(len(wave) for wave in outcome.plan.waves)
    last = events[wanted - 1] if wanted else None
    return Moment(wanted, len(events), last, refused, bound, moved, report(state))


def look(path: Path, at: int | None) -> Moment:
    """The arena after ``at`` events of a recording (None: all). Raises: ConfigError, RecordingError, naming the file."""
    layout, events = load(path)
    try:
        return holders(layout, events, at)
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error


def _first(events: list[Event], count: int) -> Iterator[Event]:
    yield from events[:count]


def table(moment: Moment) -> Table:
    """Bands by state, gap and sink; the last row is their sum and the arena's total, which must be equal."""
    what = "empty arena" if moment.event is None else _told(moment)
    shown = Table(
        title=f"step {moment.step} of {moment.steps}: {what}", title_justify="left", header_style="bold", show_footer=False
    )
    shown.add_column("band")
    for name in ("pages", "live B", "hole B", "quarantined B", "of which pinned B", "bytes", "span"):
        shown.add_column(name, justify="right")
    summed = 0
    for row in moment.report.bands:
        held = row.live_bytes + row.hole_bytes + row.quarantined_bytes
        summed += held
        figures = (row.pages, row.live_bytes, row.hole_bytes, row.quarantined_bytes, row.pinned_bytes, held)
        shown.add_row(row.band, *(f"{n:,}" for n in figures), f"{row.low_byte:,} - {row.high_byte:,}")
    for name, size in (("gap", moment.report.gap_bytes), ("sink", moment.report.sink_bytes)):
        summed += size
        shown.add_row(name, "", "", "", "", "", f"{size:,}", "")
    sign = "=" if summed == moment.report.total_bytes else "≠"
    shown.add_section()
    shown.add_row("sum", "", "", "", "", "", f"{summed:,}", f"{sign} arena {moment.report.total_bytes:,}")
    return shown


def _told(moment: Moment) -> str:
    event = moment.event
    assert event is not None
    if moment.refused:
        return f"{event.kind} refused"
    return (
        f"{event.kind} released or named {len(event.pages):,} pages, bound {moment.pages_bound:,}, "
        f"moved {moment.frames_moved:,} frames"
    )
