"""The live display of a run: requests done, running, waiting, memory. It only reads the loop, a few times a second."""

from __future__ import annotations

import time
from types import TracebackType

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from models.loop import ServingLoop, Status, StepRecord

REDRAW_SECONDS = 0.2  # fast enough to look alive, rare enough to cost nothing


@define
class Display:
    """One bar per policy. Use as a context manager around the runs; ``watch`` gives an observer for each."""

    console: Console
    _progress: Progress = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>15}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=self.console,
        )

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress.tasks:
            self._progress.stop()

    def watch(self, policy: str, requests: int) -> Watch:
        """A new bar, and the observer that moves it. The first starts the display: before it, bad input is told alone."""
        self._progress.start()
        return Watch(self._progress, self._progress.add_task(policy, total=requests, state=""))


@define
class Watch:
    """Moves one bar as the loop steps."""

    _progress: Progress
    _task: TaskID
    _drawn: float = 0.0

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        """Redraw if the last time was long enough ago."""
        now = time.monotonic()
        if now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self.draw(loop, f"step {record.number}, {record.running} running, {record.waiting} waiting")

    def draw(self, loop: ServingLoop, state: str) -> None:
        """Show how many requests have left the system, and a line of state."""
        gone = int((loop.requests.status >= Status.DONE).sum())
        self._progress.update(self._task, completed=gone, state=state)
