"""The planner's trace mode: a trace served by the one serving loop from a pool that only counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from core_pure.errors import ConfigError
from models.loop import LoopOptions, ServingLoop, StepRecord
from models.pools import CountingPool
from models.traces import Trace

LOW = 5  # percentile: what is running in the worst twentieth of the steps
RUNNING_MAX = 4_096  # requests at once, unless the caller asks for fewer
AT_ONCE = 1e9  # speed-up of arrivals: everything waits from the start, so that memory alone decides


class _Running:
    """Requests running after each step in which memory kept the next one out."""

    def __init__(self) -> None:
        self.bound: list[int] = []
        self.all: list[int] = []

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        """Book one step."""
        self.all.append(record.running)
        if record.memory_bound:
            self.bound.append(record.running)


def server(trace: Trace, *, chunk: int, max_batch: int | None = None) -> Callable[[CountingPool], tuple[float, float]]:
    """A function that serves ``trace`` from a pool: mean and 5th percentile of requests running at once.

    All requests wait from the start; only steps in which memory kept the next request out count (all, if there is
    none). Requests that could never run alone are refused, as in a replay. chunk: token budget of one step.
    """
    if not len(trace):
        raise ConfigError("a trace without requests cannot be planned for")
    most = min(max_batch or RUNNING_MAX, chunk - 1)

    def serve(pool: CountingPool) -> tuple[float, float]:
        seen = _Running()
        options = LoopOptions(prefill_tokens=chunk, running_max=most, speed_up=AT_ONCE)
        ServingLoop(pool, trace, options, observers=(seen,)).run()
        counts = seen.bound or seen.all
        if not counts:
            return 0.0, 0.0
        return float(np.mean(counts)), float(np.percentile(counts, LOW))

    return serve
