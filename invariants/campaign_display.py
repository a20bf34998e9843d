"""How a campaign shows itself: a live table on a terminal, a line every ten seconds elsewhere, and the summary."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .campaign import Progress

LINE_SECONDS = 10.0
WIDTH = 160


def share(part: int, whole: int) -> str:
    """A share in percent."""
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _console(*, stderr: bool) -> Console:
    """As wide as the terminal, and wide enough for a line of progress where there is none."""
    shown = Console(stderr=stderr)
    return shown if shown.is_terminal else Console(stderr=stderr, width=WIDTH)


class Display:
    """Shows progress on stderr, and what is found on stdout."""

    def __init__(self) -> None:
        self.console, self.out = _console(stderr=True), _console(stderr=False)
        self.live: Live | None = None
        self.told = time.monotonic()
        self.began = (time.monotonic(), 0)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4)
            self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.__exit__(kind, error, trace)
            self.live = None

    def say(self, line: str) -> None:
        """One line of the result."""
        self.out.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """The state of things, now and then."""
        if self.live is not None:
            self.live.update(picture(progress))
        elif time.monotonic() - self.told >= LINE_SECONDS:
            self.told = time.monotonic()
            self.console.print(headline(progress), highlight=False)

    def summary(self, progress: Progress) -> None:
        """What was covered."""
        self.out.print(picture(progress))
        self.say(f"{progress.states:,} distinct states since the last start (estimated)")
        verdict = "no violation" if progress.failure is None else "VIOLATED"
        self.say(f"{progress.checked:,} transitions checked in {progress.seconds:.0f} s: {verdict}")


def headline(progress: Progress) -> str:
    """One line."""
    tally, seconds = progress.tally, max(progress.seconds, 1e-9)
    return (
        f"{progress.seconds:.0f} s: {progress.checked:,} transitions checked ({progress.checked / seconds:,.0f}/s), "
        f"{share(tally.refusals, tally.transitions)} refused, {share(tally.relief, tally.transitions)} with relief, "
        f"{progress.walks:,} walks"
    )


def picture(progress: Progress) -> Group:
    """Headline and two tables: transitions by kind, refusals and errors by reason."""
    kinds, reasons = Table(title="transitions by kind"), Table(title="refused or misused, by reason")
    for table in (kinds, reasons):
        table.add_column("what")
        table.add_column("count", justify="right")
    for kind, count in progress.tally.kinds.most_common():
        kinds.add_row(kind, f"{count:,}")
    kinds.add_row("by the Hypothesis machine", f"{progress.machine:,}")
    kinds.add_row("in exhausted neighbourhoods", f"{progress.neighbours:,}")
    for reason, count in progress.tally.reasons.most_common():
        reasons.add_row(reason, f"{count:,}")
    both = Table.grid(padding=(0, 4))
    both.add_row(kinds, reasons)
    return Group(Text(headline(progress)), both)
