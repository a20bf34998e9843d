"""What a run of the loop amounts to: time series and one summary per policy. Observers; they change nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
from attrs import define, field, frozen

from core_pure.layout import Layout
from core_pure.plan import Plan
from core_pure.report import Report
from core_pure.state import ArenaState
from models.loop import ServingLoop, Status, StepRecord

SAMPLES_MAX = 2_000  # memory samples kept: enough for a plot; the interval doubles when they are full
MEDIAN, TAIL = 50, 99  # percentiles of the wait


@frozen
class Sample:
    """Who held which bytes at one moment. Time in seconds."""

    step: int
    now: float
    report: Report


@define
class Statistics:
    """Collects one run. Series have one entry per step; memory is sampled every ``interval`` steps."""

    interval: int = 1
    times: list[float] = field(factory=list)
    running: list[int] = field(factory=list)
    waiting: list[int] = field(factory=list)
    memory_bound: int = 0
    retractions: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    samples: list[Sample] = field(factory=list)

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        """Book one step."""
        self.times.append(record.now)
        self.running.append(record.running)
        self.waiting.append(record.waiting)
        self.memory_bound += record.memory_bound
        self.retractions += record.retracted
        self.prefill_tokens += record.prefill_tokens
        self.decode_tokens += record.decode_tokens
        if record.number % self.interval == 0:
            self.samples.append(Sample(record.number, record.now, loop.pool.report()))
            if len(self.samples) >= SAMPLES_MAX:  # thin out by half
                self.samples = self.samples[::2]
                self.interval *= 2


@define
class Meter:
    """Counts what plans do, independently of any checker: a watcher of plans and an observer of steps.

    Pages released follow from conservation: bound - still live.
    """

    layout: Layout
    plans: int = 0
    pages_bound: int = 0
    frames_moved: int = 0
    bytes_moved: int = 0

    def before(self, state: ArenaState, plan: Plan) -> None:
        """Nothing to count before a plan is carried out."""

    def after(self, state: ArenaState, plan: Plan) -> None:
        """Book the plan's moves and copies."""
        self.plans += 1
        for moves in (*plan.waves, plan.copies):
            self.frames_moved += len(moves)
            for at, count in Counter(moves[:, 0].tolist()).items():
                self.bytes_moved += count * self.layout.bands[at].frame_bytes

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        """Book the pages that the step's outcome handed out."""
        outcome = record.batch.result.outcome
        self.pages_bound += sum(len(pages) for pages in outcome.pages) if outcome else 0

    def pages_released(self, state: ArenaState) -> int:
        """Pages given back so far, of a run that began with an empty arena."""
        return self.pages_bound - sum(band.live for band in state.bands)


@frozen
class Summary:
    """One policy's row of the table. Times in seconds, shares of the arena between 0 and 1, bytes per generated token.

    ``time`` is the loop's own (cost model); ``wall`` what the computer took. Shares are means over sampled steps.
    """

    policy: str
    partial: bool
    steps: int
    requests: int
    completed: int
    tokens: int
    tokens_per_second: float
    time: float
    concurrency_mean: float
    concurrency_peak: int
    retractions: int
    refusals: dict[str, int]
    memory_bound_share: float
    live_share: float
    hole_share: float
    gap_share: float
    sink_share: float
    moved_bytes_per_token: float
    frames_moved: int
    recomputed_share: float
    wait_p50: float
    wait_p99: float
    wall: float
    peak_process_bytes: int
    violations: int


def summarise(
    policy: str, loop: ServingLoop, stats: Statistics, meter: Meter | None, *, wall: float, peak_process_bytes: int,
    partial: bool, violations: int,
) -> Summary:  # fmt: skip
    """The table's row of a run that ended, or was interrupted (``partial``)."""
    table = loop.requests
    done = table.status == Status.DONE
    tokens = int(table.generated[done].sum())
    generated = int(table.generated.sum())
    waits = (table.admitted_at - table.arrivals)[~np.isnan(table.admitted_at)]
    shares = _shares(stats)
    useful = int((table.inputs + np.maximum(table.generated - 1, 0))[done].sum())
    computed = stats.prefill_tokens + stats.decode_tokens
    refused = Counter(_reason(text) for text in table.refusals.values())
    steps = len(stats.times)
    return Summary(
        policy=policy,
        partial=partial,
        steps=steps,
        requests=len(table.inputs),
        completed=int(done.sum()),
        tokens=tokens,
        tokens_per_second=tokens / loop.now if loop.now else 0.0,
        time=loop.now,
        concurrency_mean=float(np.mean(stats.running)) if steps else 0.0,
        concurrency_peak=max(stats.running, default=0),
        retractions=stats.retractions,
        refusals=dict(refused),
        memory_bound_share=stats.memory_bound / steps if steps else 0.0,
        live_share=shares[0],
        hole_share=shares[1],
        gap_share=shares[2],
        sink_share=shares[3],
        moved_bytes_per_token=meter.bytes_moved / generated if meter and generated else 0.0,
        frames_moved=meter.frames_moved if meter else 0,
        recomputed_share=max(0, computed - useful) / computed if computed and not partial else 0.0,
        wait_p50=float(np.percentile(waits, MEDIAN)) if len(waits) else 0.0,
        wait_p99=float(np.percentile(waits, TAIL)) if len(waits) else 0.0,
        wall=wall,
        peak_process_bytes=peak_process_bytes,
        violations=violations,
    )


def _reason(text: str) -> str:
    return "too long" if text.startswith("needs ") else text


def _shares(stats: Statistics) -> tuple[float, float, float, float]:
    """Mean shares of the arena: live, hole (with quarantine), gap, sink."""
    if not stats.samples:
        return (0.0, 0.0, 0.0, 0.0)
    reports = [sample.report for sample in stats.samples]
    rows = np.array(
        [
            (
                report.live_bytes,
                report.hole_bytes + sum(band.quarantined_bytes for band in report.bands),
                report.gap_bytes,
                report.sink_bytes,
            )
            for report in reports
        ],
        np.float64,
    )
    live, hole, gap, sink = (rows.mean(axis=0) / reports[0].total_bytes).tolist()
    return live, hole, gap, sink
