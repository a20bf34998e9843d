"""The one serving loop: continuous batching over the capacity protocol, for replay, planner and the real client alike.

Each step: cancel, take arrivals, give every running request its tokens (decode first, then prefill in order of age,
under a token budget), ask ``check_decode`` and retract the youngest until it says yes, admit from the queue, and make
ONE joint ``pool.step``. A retracted request goes back to the head of the queue and is recomputed. Requests are numbered
in order of arrival, so every running request is older than every waiting one and the oldest is never retracted.

Nothing here knows what kind of pool it drives, and there is no clock: time is the cost model's, or the runner's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from attrs import field, frozen

from core_pure.capacity import Pool, StepResult
from core_pure.errors import ConfigError, PromiseBroken
from core_pure.fits import Refusal
from models.requests import NO_HANDLE, NO_INTS, Ints, Mask, Requests, Status
from models.traces import Trace

__all__ = [
    "NO_INTS", "Batch", "Ints", "LoopOptions", "Mask", "Observer", "Requests", "Runner", "ServingLoop", "Status",
    "StepCost", "StepRecord", "parse_cost",
]  # fmt: skip


@frozen
class StepCost:
    """Seconds one step takes: a constant, and so much per token. The defaults are the comparison's (DECISIONS 1)."""

    base: float = 0.010
    prefill: float = 0.000_05
    decode: float = 0.000_02

    def seconds(self, prefill_tokens: int, decode_tokens: int) -> float:
        """Seconds of a step that computes so many prompt tokens and so many single tokens."""
        return self.base + self.prefill * prefill_tokens + self.decode * decode_tokens


def parse_cost(text: str) -> StepCost:
    """A cost model out of three numbers of milliseconds: base, per prefill token, per decode token. Raises: ConfigError."""
    try:
        base, prefill, decode = (float(word) / 1_000 for word in text.split(","))
    except ValueError:
        base = prefill = decode = -1.0
    if not (0 < base < float("inf") and 0 <= prefill < float("inf") and 0 <= decode < float("inf")):
        raise ConfigError(f"step cost {text!r}: expected milliseconds for base, prefill token, decode token, like 10,0.05,0.02")
    return StepCost(base, prefill, decode)


@frozen
class LoopOptions:
    """Limits of the loop. Units: tokens per step, requests, and the factor by which arrivals are sped up.

    ``reserve`` is the share of a request's unwritten output that admission charges beside its prompt: 0 admits boldly
    and retracts, 1 never retracts.
    """

    prefill_tokens: int = 8_192
    running_max: int = 1_024
    speed_up: float = 16.0
    reserve: float = 0.0
    cost: StepCost = StepCost()

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.running_max < self.prefill_tokens:
            # Decode comes first; without a token to spare the oldest prompt would never advance.
            raise ConfigError(
                f"at most {self.running_max} running requests under a budget of {self.prefill_tokens} tokens a step; "
                "the budget must be larger than the number of requests, and that at least 1"
            )
        if not 0 < self.speed_up < float("inf"):
            raise ConfigError(f"speed-up {self.speed_up}; expected a number above 0")
        if not 0 <= self.reserve <= 1:
            raise ConfigError(f"reserve {self.reserve}; expected a share from 0 to 1")


@frozen(eq=False)
class Batch:
    """What one step computes. Arrays of one length: request number, lease handle, first position, tokens, is complete.

    A request is complete in this step when all its known tokens are computed afterwards, so that a token comes out.
    ``result`` holds the pool's answer: block tables and write slots where the pool has a buffer.
    """

    requests: Ints
    handles: Ints
    starts: Ints
    counts: Ints
    complete: Mask
    result: StepResult


class Runner(Protocol):
    """A model that the loop drives. It owns the tokens; the loop owns who computes what, and when."""

    def forward(self, batch: Batch) -> tuple[Mask, float | None]:
        """Compute the batch; append one token to each complete request.

        Returns: which requests ended by an end token (mask over the batch), and the seconds taken or None for the
        cost model's.
        """
        ...

    def released(self, requests: Ints, status: Status) -> None:
        """These requests hold no pages any more: done, cancelled, or waiting again after a retraction."""
        ...

    def cancelled(self) -> Sequence[int]:
        """Requests that their callers gave up since the last call."""
        ...


@frozen(eq=False)
class StepRecord:
    """What observers are told after each step. Counts of requests and tokens; times in seconds."""

    number: int
    now: float
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    admitted: int
    retracted: int
    finished: int
    memory_bound: bool
    batch: Batch = field(repr=False)


class Observer(Protocol):
    """Anything that watches: progress display, checker, statistics. It must not change the pool."""

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        """Called once per step, after its finished requests were released."""
        ...


class ServingLoop:
    """Serves a trace from a pool, step by step."""

    def __init__(
        self,
        pool: Pool,
        trace: Trace,
        options: LoopOptions | None = None,
        *,
        runner: Runner | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.pool = pool
        self.options = options or LoopOptions()
        self.requests = Requests(trace, self.options.speed_up)
        self.runner = runner
        self.observers = tuple(observers)
        self.now = 0.0
        self.steps = 0
        self.tokens_max = pool.max_request_tokens()
        self.running: Ints = NO_INTS  # ascending, so the youngest is last
        self.waiting: deque[int] = deque()  # ascending, all younger than the running
        self._coming = 0  # first request that has not arrived
        self._cancels: set[int] = set()

    def run(self) -> None:
        """Serve until nothing is left."""
        while self.step():
            pass

    def cancel(self, request: int) -> None:
        """Give up a request: its pages are released before the next step. Of a finished one: nothing happens."""
        self._cancels.add(request)

    def step(self) -> bool:
        """Make one step. Returns False, having done nothing, when no request is left.

        Raises: PromiseBroken when the pool refuses what it said would fit.
        """
        self._drop_cancelled()
        self._arrive()
        if not len(self.running) and not self.waiting:
            return False
        requests, counts, demand, retracted = self._schedule()
        fresh, fresh_counts, blocked = self._admit(demand, int(counts.sum()), retracted)
        requests, counts = np.concatenate((requests, fresh)), np.concatenate((counts, fresh_counts))
        handles = self.requests.handles[requests]
        result = self.pool.step(handles, counts)
        if isinstance(result, Refusal):
            raise PromiseBroken(f"step {self.steps}: refused after check_decode and admission said yes: {result}")
        starts = self.requests.computed[requests]
        complete = starts + counts == self.requests.known[requests]
        batch = Batch(requests, handles, starts, counts, complete, result)
        self._finish(batch, len(fresh), retracted, blocked)
        return True

    # --- before the step ------------------------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        if self.runner is not None:
            self._cancels.update(self.runner.cancelled())
        if not self._cancels:
            return
        gone = np.array(sorted(self._cancels), np.int64)
        gone = gone[self.requests.status[gone] != Status.COMING]
        self._cancels.difference_update(gone.tolist())  # one that has not arrived is dropped when it does
        held = gone[self.requests.status[gone] == Status.RUNNING]
        queued = set(gone[self.requests.status[gone] == Status.WAITING].tolist())
        self.waiting = deque(request for request in self.waiting if request not in queued)
        if len(held):
            self._release(held, Status.CANCELLED)
        self.requests.status[list(queued)] = Status.CANCELLED

    def _arrive(self) -> None:
        """Take every request that has arrived; with nothing to do, time jumps to the next arrival."""
        table = self.requests
        while self._coming < len(table.arrivals):
            idle = not len(self.running) and not self.waiting
            if table.arrivals[self._coming] > self.now and not idle:
                return
            self.now = max(self.now, float(table.arrivals[self._coming]))
            self._submit(self._coming)
            self._coming += 1

    def _submit(self, request: int) -> None:
        """Queue a request, or refuse at once, with numbers, one that could never run even alone."""
        table = self.requests
        tokens = table.peak_tokens(request)
        if request in self._cancels:
            self._cancels.discard(request)
            table.status[request] = Status.CANCELLED
        elif tokens > self.tokens_max:
            table.status[request] = Status.REFUSED
            table.refusals[request] = f"needs {tokens} tokens; the largest request that fits alone has {self.tokens_max}"
        else:
            table.status[request] = Status.WAITING
            self.waiting.append(request)

    def _share(self) -> tuple[Ints, Ints]:
        """Who computes how many tokens: one each for decode, the rest of the budget to prefill in order of age."""
        table = self.requests
        left = table.known[self.running] - table.computed[self.running]
        is_decode = left == 1
        budget = self.options.prefill_tokens - int(is_decode.sum())
        prefill = np.where(is_decode, 0, left)
        before = np.cumsum(prefill) - prefill
        counts = np.where(is_decode, 1, np.clip(budget - before, 0, prefill))
        picked = counts > 0
        return self.running[picked], counts[picked]

    def _schedule(self) -> tuple[Ints, Ints, tuple[int, ...], int]:
        """Tokens for the running requests, after retracting the youngest until the pool says that they fit."""
        retracted = 0
        while True:
            requests, counts = self._share()
            demand = self.pool.demand_of(self.requests.handles[requests], counts)
            # The oldest alone fits by admission; if the pool denied that, its step refuses and the loop crashes.
            if len(self.running) <= 1 or self.pool.check_decode(demand):
                return requests, counts, demand, retracted
            victim = self.running[-1:]
            self._release(victim, Status.WAITING)
            self.waiting.appendleft(int(victim[0]))
            retracted += 1

    def _admit(self, demand: tuple[int, ...], tokens: int, retracted: int) -> tuple[Ints, Ints, bool]:
        """Admit from the head of the queue while tokens, places and memory last.

        Returns: the admitted, their tokens in this step, and whether memory alone stopped the next one.
        """
        table = self.requests
        room = self.options.prefill_tokens - tokens
        places = self.options.running_max - len(self.running)
        if not self.waiting or room <= 0 or places <= 0:
            return NO_INTS, NO_INTS, False
        if retracted:  # what was just taken away must not be handed straight back
            return NO_INTS, NO_INTS, True
        admitted: list[int] = []
        budget = self.pool.admission(self._promised(demand))
        blocked = False
        while self.waiting and room > 0 and len(admitted) < places:
            request = self.waiting[0]
            if not budget.admit(int(table.known[request]), int(self._reserved(np.array([request]))[0])):
                blocked = True
                break
            admitted.append(self.waiting.popleft())
            room -= int(table.known[request])
        if not admitted and not len(self.running):
            raise PromiseBroken(
                f"request {self.waiting[0]} was taken ({table.peak_tokens(self.waiting[0])} of {self.tokens_max} tokens) "
                "but an empty pool does not admit it"
            )
        fresh = np.array(admitted, np.int64)
        counts = table.known[fresh]
        if room < 0:  # only the last one can exceed the token budget: its first chunk is what is left
            counts[-1] += room
        self._enter(fresh)
        return fresh, counts, blocked

    def _reserved(self, requests: Ints) -> Ints:
        """Tokens of decode growth that admission sets aside beyond what is known. A last token is never fed back."""
        table = self.requests
        unwritten = table.inputs[requests] + table.outputs[requests] - 1 - table.known[requests]
        reserved: Ints = np.ceil(self.options.reserve * np.maximum(unwritten, 0)).astype(np.int64)
        return reserved

    def _promised(self, demand: tuple[int, ...]) -> tuple[int, ...]:
        """Pages that the running requests will still take: this step's, and what was reserved for them."""
        if not self.options.reserve or not len(self.running):
            return demand  # admission comes after every running prompt got all its tokens: nothing else is promised
        table = self.requests
        growth = table.known[self.running] - table.computed[self.running] + self._reserved(self.running)
        return self.pool.demand_of(table.handles[self.running], growth)

    def _enter(self, fresh: Ints) -> None:
        table = self.requests
        if len(fresh):
            table.handles[fresh] = self.pool.open(len(fresh))
            table.status[fresh] = Status.RUNNING
            first = fresh[np.isnan(table.admitted_at[fresh])]
            table.admitted_at[first] = self.now
            self.running = np.concatenate((self.running, fresh))

    # --- after the step -------------------------------------------------------------------------------------------

    def _finish(self, batch: Batch, admitted: int, retracted: int, blocked: bool) -> None:
        """Book the tokens, pass the time, release who is done, tell the observers."""
        table = self.requests
        is_decode = (batch.counts == 1) & batch.complete
        decode_tokens = int(is_decode.sum())
        prefill_tokens = int(batch.counts.sum()) - decode_tokens
        table.computed[batch.requests] += batch.counts
        table.known[batch.requests] += batch.complete
        done = batch.complete & (table.generated[batch.requests] >= table.outputs[batch.requests])
        seconds: float | None = None
        if self.runner is not None:
            ended, seconds = self.runner.forward(batch)
            done |= batch.complete & ended
        self.now += self.options.cost.seconds(prefill_tokens, decode_tokens) if seconds is None else seconds
        finished = batch.requests[done]
        if len(finished):
            table.finished_at[finished] = self.now
            self._release(finished, Status.DONE)
        self.steps += 1
        running = len(self.running) + len(finished)
        record = StepRecord(
            self.steps, self.now, prefill_tokens, decode_tokens, running, len(self.waiting), admitted, retracted,
            len(finished), blocked, batch,
        )  # fmt: skip
        for observer in self.observers:
            observer.after_step(self, record)

    def _release(self, gone: Ints, status: Status) -> None:
        """Give back every page of ``gone`` (running requests), and note why."""
        table = self.requests
        result = self.pool.step(NO_INTS, NO_INTS, finished=table.handles[gone])
        if isinstance(result, Refusal):
            raise PromiseBroken(f"a step that only releases was refused: {result}")
        table.handles[gone] = NO_HANDLE
        table.status[gone] = status
        if status is Status.WAITING:
            table.computed[gone] = 0
            table.retractions[gone] += 1
        self.running = self.running[~np.isin(self.running, gone)]
        if self.runner is not None:
            self.runner.released(gone, status)
