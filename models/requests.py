"""The requests of one run of the loop, as columns: where each stands and how far it has come."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from models.traces import Trace

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

NO_INTS: Ints = np.empty(0, np.int64)
NO_INTS.flags.writeable = False
NO_HANDLE = -1


class Status(IntEnum):
    """Where a request stands."""

    COMING = 0
    WAITING = 1
    RUNNING = 2
    DONE = 3
    REFUSED = 4
    CANCELLED = 5


class Requests:
    """Every request of a run, as columns indexed by request number. Changed by the loop only."""

    def __init__(self, trace: Trace, speed_up: float) -> None:
        count = len(trace)
        self.arrivals = trace.arrivals / speed_up
        self.inputs = trace.inputs
        self.outputs = trace.outputs
        self.known = trace.inputs.copy()  # prompt tokens and tokens generated so far
        self.computed = np.zeros(count, np.int64)  # tokens whose cache entries exist
        self.handles = np.full(count, NO_HANDLE, np.int64)
        self.status = np.full(count, Status.COMING, np.int8)
        self.retractions = np.zeros(count, np.int64)
        self.admitted_at = np.full(count, np.nan)
        self.finished_at = np.full(count, np.nan)
        self.refusals: dict[int, str] = {}

    @property
    def generated(self) -> Ints:
        """Tokens generated so far, per request."""
        return self.known - self.inputs

    def peak_tokens(self, request: int) -> int:
        """The most cache entries a request ever needs: its last token is never fed back."""
        return int(self.inputs[request] + self.outputs[request] - 1)
