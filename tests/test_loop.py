"""The one serving loop: who computes what and when, over a pool that only counts."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_pure.errors import ConfigError, PromiseBroken
from core_pure.layout import BandSpec
from models.loop import Batch, LoopOptions, ServingLoop, Status, StepCost, StepRecord
from models.pools import StaticPools
from models.traces import Trace

PAGE = 16
BANDS = (
    BandSpec("state", 4096, 1, "state"),
    BandSpec("window-40", 1024, PAGE, "window", window=40),
    BandSpec("full", 1024, PAGE, "full"),
)
OPTIONS = LoopOptions(prefill_tokens=64, running_max=10, speed_up=1.0)


def pool_of(states: int, windows: int, pages: int) -> StaticPools:
    return StaticPools(BANDS, (states, windows, pages), 1 << 22, OPTIONS.prefill_tokens)


def trace_of(*requests: tuple[float, int, int]) -> Trace:
    arrivals, inputs, outputs = zip(*requests, strict=True)
    return Trace("test", np.array(arrivals, float), np.array(inputs, np.int64), np.array(outputs, np.int64))


def random_trace(seed: int, count: int, most: int = 200) -> Trace:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 1, count))
    return Trace("random", arrivals - arrivals[0], rng.integers(1, most, count), rng.integers(1, 60, count))


class Watch:
    """Checks in every step what must hold in every step, and keeps the records."""

    def __init__(self, pool: StaticPools) -> None:
        self.pool = pool
        self.records: list[StepRecord] = []
        self.progress = -1

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        self.records.append(record)
        batch = record.batch
        assert self.pool.verify() == []
        assert (np.diff(loop.running) > 0).all(), "running requests stand in order of age"
        assert not loop.waiting or not len(loop.running) or loop.waiting[0] > loop.running[-1]
        assert batch.counts.sum() <= loop.options.prefill_tokens and (batch.counts > 0).all()
        assert record.running <= loop.options.running_max
        assert batch.requests[0] == min(batch.requests) and len(set(batch.requests.tolist())) == len(batch.requests)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(8, 30), st.integers(9, 40), st.sampled_from([0.0, 0.3, 1.0]))
def test_every_request_is_done_or_refused_and_the_pool_ends_empty(
    seed: int, states: int, windows: int, pages: int, reserve: float
) -> None:
    """Whatever the memory: each request that fits alone is served in full, others are refused, nothing stays held."""
    pool = pool_of(states, windows, pages)
    watch = Watch(pool)
    loop = ServingLoop(pool, random_trace(seed, 25, 400), LoopOptions(64, 10, 1.0, reserve), observers=[watch])
    loop.run()
    table = loop.requests
    for request in range(25):
        fits_alone = table.peak_tokens(request) <= pool.max_request_tokens()
        assert table.status[request] == (Status.DONE if fits_alone else Status.REFUSED)
        assert table.generated[request] == (table.outputs[request] if fits_alone else 0)
    assert sum(pool.pages_held) == 0 and pool.verify() == []
    if reserve == 1.0:
        assert table.retractions.sum() == 0, "a fully reserved request is never retracted"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(9, 20))
def test_F32_the_oldest_request_advances_in_every_step(seed: int, pages: int) -> None:
    """Prompts near the ceiling in a small pool: in every step the oldest running request computes a token."""
    pool = pool_of(6, 40, pages)

    class Oldest(Watch):
        def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
            super().after_step(loop, record)
            assert record.batch.counts[0] >= 1
            oldest = int(record.batch.requests[0])
            assert oldest >= self.progress, "the oldest is never overtaken before it is done"
            self.progress = oldest

    loop = ServingLoop(pool, random_trace(seed, 12, pages * PAGE - 60), OPTIONS, observers=[Oldest(pool)])
    loop.run()
    assert (loop.requests.status == Status.DONE).all()


def test_F11_a_request_that_can_never_fit_is_refused_at_submit_with_numbers() -> None:
    """Too long for the empty pool: refused at once, naming its tokens and the longest that fits; others are served."""
    pool = pool_of(2, 10, 10)
    loop = ServingLoop(pool, trace_of((0, 161, 1), (0, 20, 3), (0, 160, 2), (0, 160, 1)), OPTIONS)
    assert loop.tokens_max == 160
    loop.run()
    refusal = "needs 161 tokens; the largest request that fits alone has 160"
    assert loop.requests.refusals == {0: refusal, 2: refusal}
    assert loop.requests.status.tolist() == [Status.REFUSED, Status.DONE, Status.REFUSED, Status.DONE]


def test_F31_two_that_wait_for_each_other_do_not() -> None:
    """Seven pages; A holds four and needs one, B holds three and needs one: B is preempted, both finish."""
    pool = pool_of(4, 40, 7)
    watch = Watch(pool)
    loop = ServingLoop(pool, trace_of((0, 4 * PAGE, 20), (0, 3 * PAGE, 20)), LoopOptions(200, 10, 1.0), observers=[watch])
    loop.run()
    assert loop.requests.retractions.tolist() == [0, 1]
    assert loop.requests.generated.tolist() == [20, 20]
    assert loop.requests.finished_at[0] < loop.requests.finished_at[1]


def test_retraction_is_decided_before_anything_is_allocated() -> None:
    """No step of a whole run is ever refused: check_decode and admission have decided before."""

    class Strict(StaticPools):
        refused = 0

        def step(self, *args, **options):
            result = super().step(*args, **options)
            self.refused += type(result).__name__ == "Refusal"
            return result

    pool = Strict(BANDS, (5, 12, 14), 1 << 22, 64)
    loop = ServingLoop(pool, random_trace(1, 60, 120), OPTIONS)
    loop.run()
    assert loop.requests.retractions.sum() > 0 and pool.refused == 0


def test_a_pool_that_breaks_its_word_is_a_crash() -> None:
    """check_decode said yes and the step refuses: PromiseBroken, never a retry."""

    class Liar(StaticPools):
        def check_decode(self, demand, evictor=None) -> bool:
            return True

    pool = Liar(BANDS, (5, 40, 14), 1 << 22, 64)
    with pytest.raises(PromiseBroken, match="check_decode"):
        ServingLoop(pool, random_trace(1, 60, 120), OPTIONS).run()


def test_prefill_is_chunked_under_the_budget_and_decode_comes_first() -> None:
    """A prompt of 150 beside a decoding request is computed as the budget less one token per step."""
    pool = pool_of(4, 40, 40)
    watch = Watch(pool)
    ServingLoop(pool, trace_of((0, 10, 30), (0.0001, 150, 2)), OPTIONS, observers=[watch]).run()
    chunks = [r.batch.counts[r.batch.requests == 1].tolist() for r in watch.records]
    assert [chunk[0] for chunk in chunks if chunk] == [63, 63, 24, 1]
    assert [r.prefill_tokens for r in watch.records[:5]] == [10, 63, 63, 24, 0]


def test_time_passes_by_the_stated_cost() -> None:
    """A step takes 10 ms + 0.05 ms per prefill token + 0.02 ms per decode token; arrivals are sped up."""
    pool = pool_of(4, 40, 40)
    watch = Watch(pool)
    loop = ServingLoop(pool, trace_of((0, 20, 2), (8, 10, 1)), LoopOptions(64, 10, speed_up=4.0), observers=[watch])
    loop.run()
    assert [r.now for r in watch.records] == pytest.approx([0.011, 0.02102, 2.0105])
    assert StepCost().seconds(1000, 100) == pytest.approx(0.062)
    assert loop.requests.admitted_at.tolist() == [0.0, 2.0]


def test_a_step_is_memory_bound_when_memory_alone_stops_the_next() -> None:
    """Waiting for memory is memory-bound; waiting for the token budget or for a place is not."""
    budget = Watch(pool_of(9, 90, 90))
    ServingLoop(budget.pool, trace_of(*[(0, 60, 2)] * 4), OPTIONS, observers=[budget]).run()
    assert not any(record.memory_bound for record in budget.records)
    memory = Watch(pool_of(1, 90, 90))
    ServingLoop(memory.pool, trace_of(*[(0, 20, 3)] * 2), OPTIONS, observers=[memory]).run()
    assert [record.memory_bound for record in memory.records] == [True, True, True, False, False, False]


class Echo:
    """A runner that writes tokens of its own: request · 1000 + position; some requests end early, some are given up."""

    def __init__(self, ends: dict[int, int], gives_up: dict[int, int] | None = None) -> None:
        self.ends, self.gives_up, self.calls = ends, gives_up or {}, 0
        self.tokens: dict[int, list[int]] = {}
        self.left: list[tuple[int, Status]] = []

    def forward(self, batch: Batch) -> tuple[np.ndarray, float | None]:
        self.calls += 1
        ended = np.zeros(len(batch.requests), bool)
        for i in np.flatnonzero(batch.complete):
            request = int(batch.requests[i])
            self.tokens.setdefault(request, []).append(request * 1000 + int(batch.starts[i] + batch.counts[i]))
            ended[i] = len(self.tokens[request]) == self.ends.get(request, -1)
        return ended, 0.5

    def released(self, requests: np.ndarray, status: Status) -> None:
        self.left += [(request, status) for request in requests.tolist()]

    def cancelled(self) -> Sequence[int]:
        return [request for request, call in self.gives_up.items() if call == self.calls]


def test_a_runner_ends_requests_by_its_end_token_and_keeps_the_time() -> None:
    """A request stops at the end token or at its limit; the runner's seconds pass instead of the model's."""
    runner = Echo({0: 4})
    loop = ServingLoop(pool_of(4, 40, 40), trace_of((0, 10, 50), (0, 12, 6)), OPTIONS, runner=runner)
    loop.run()
    assert [len(runner.tokens[r]) for r in (0, 1)] == [4, 6] and loop.now == 3.0
    assert loop.requests.generated.tolist() == [4, 6]
    assert runner.left == [(0, Status.DONE), (1, Status.DONE)]


def test_a_retracted_request_is_recomputed_to_the_same_tokens() -> None:
    """Retraction forgets the cache and not the answer: each token is written once, at the right position."""
    runner = Echo({})
    trace = random_trace(3, 40, 100)
    loop = ServingLoop(pool_of(6, 40, 13), trace, OPTIONS, runner=runner)
    loop.run()
    assert loop.requests.retractions.sum() > 0
    for request in np.flatnonzero(loop.requests.status == Status.DONE).tolist():
        first = int(trace.inputs[request])
        expected = [request * 1000 + first + i for i in range(int(trace.outputs[request]))]
        assert runner.tokens[request] == expected


def test_a_cancelled_request_gives_its_pages_back_before_the_next_step() -> None:
    """Given up while running, while waiting and before arriving: released, dropped, never started."""
    pool = pool_of(1, 40, 40)
    runner = Echo({}, gives_up={0: 2, 1: 3, 2: 3})
    loop = ServingLoop(pool, trace_of((0, 10, 50), (0, 10, 50), (1e6, 10, 50), (0.1e7, 10, 2)), OPTIONS, runner=runner)
    loop.run()
    table = loop.requests
    assert table.status.tolist() == [Status.CANCELLED, Status.CANCELLED, Status.CANCELLED, Status.DONE]
    assert table.generated.tolist() == [2, 1, 0, 2] and sum(pool.pages_held) == 0
    loop.cancel(3)
    assert not loop.step(), "cancelling what is done does nothing"
    assert table.status[3] == Status.DONE


@pytest.mark.parametrize("options", [{"prefill_tokens": 8, "running_max": 8}, {"speed_up": 0.0}, {"reserve": 1.5}])
def test_options_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    """A budget that lets the oldest starve, a speed-up of zero, a reserve beyond one: refused by name."""
    with pytest.raises(ConfigError, match=r"budget|speed-up|reserve"):
        LoopOptions(**options)
