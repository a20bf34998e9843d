"""Rival pools: a static split counts tokens as engines do, a padded page follows vLLM's rule; both keep the protocol."""

from collections import deque
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_pure.errors import ConfigError, DemandError, LayoutError, LeaseStale
from core_pure.fits import Fit, Refusal
from core_pure.geometry import BandGeometry, CrossAttention, FullAttention, RecurrentState, SlidingWindow, StateTensor, group_bands
from core_pure.geometry import Layer as ModelLayer
from core_pure.layout import BandSpec, build_layout
from models.loop import NO_INTS, LoopOptions, ServingLoop, Status
from models.padded import padded_page
from models.pools import PaddedPages, StaticPools, pages_while, split_bytes
from models.traces import Trace

PAGE = 16
STATE = BandSpec("state", 4096, 1, "state")
FULL = BandSpec("full", 1024, PAGE, "full")
WINDOW = BandSpec("window-40", 1024, PAGE, "window", window=40)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def pools(states: int, pages: int, chunk: int = 64) -> StaticPools:
    return StaticPools((STATE, FULL), (states, pages), 1 << 20, chunk)


def random_trace(rng: np.random.Generator, count: int, most: int) -> Trace:
    arrivals = np.cumsum(rng.exponential(0.02, count))
    return Trace("random", arrivals - arrivals[0], rng.integers(1, most, count), rng.integers(1, 40, count))


class PlainStatic:
    """Token counting as a static engine does it: free pages, free states, a list of requests. Written on its own."""

    def __init__(self, trace: Trace, states: int, pages: int, budget: int, places: int) -> None:
        self.trace, self.budget, self.places = trace, budget, places
        self.states, self.pages, self.most = states, pages, pages
        self.queue, self.running, self.log, self.now, self.next = deque(), [], [], 0.0, 0
        self.done = dict.fromkeys(range(len(trace)), 0)  # tokens generated
        self.cached: dict[int, int] = {}

    def cost(self, request: int) -> int:
        return -(-self.cached[request] // PAGE)

    def drop(self, request: int) -> None:
        self.pages += self.cost(request)
        self.states += 1
        self.running.remove(request)
        del self.cached[request]

    def plan(self) -> list[tuple[int, int]]:
        known = {r: int(self.trace.inputs[r]) + self.done[r] - self.cached[r] for r in self.running}
        left = self.budget - sum(1 for r in self.running if known[r] == 1)
        work = []
        for r in self.running:
            tokens = 1 if known[r] == 1 else min(known[r], left)
            if known[r] > 1:
                left -= tokens
            if tokens:
                work.append((r, tokens))
        return work

    def need(self, work: list[tuple[int, int]]) -> int:
        return sum(-(-(self.cached[r] + n) // PAGE) - self.cost(r) for r, n in work)

    def arrive(self) -> bool:
        while self.next < len(self.trace):
            if self.trace.arrivals[self.next] > self.now and (self.running or self.queue):
                break
            self.now = max(self.now, float(self.trace.arrivals[self.next]))
            total = int(self.trace.inputs[self.next] + self.trace.outputs[self.next] - 1)
            if -(-total // PAGE) <= self.most:
                self.queue.append(self.next)
            self.next += 1
        return bool(self.running or self.queue)

    def step(self) -> bool:
        if not self.arrive():
            return False
        retracted = []
        while self.need(work := self.plan()) > self.pages and len(self.running) > 1:
            retracted.append(self.running[-1])
            self.drop(self.running[-1])
            self.queue.appendleft(retracted[-1])
        room, pages, states, admitted = self.budget - sum(n for _, n in work), self.pages - self.need(work), self.states, []
        while self.queue and not retracted and room > 0 and len(self.running) < self.places:
            r = self.queue[0]
            known = int(self.trace.inputs[r]) + self.done[r]
            if -(-known // PAGE) > pages or states < 1:
                break
            pages, states = pages - -(-known // PAGE), states - 1
            self.queue.popleft()
            self.running.append(r)
            self.cached[r] = 0
            work.append((r, min(known, room)))
            admitted.append(r)
            room -= known
        self.pages -= self.need(work)
        self.states = states
        finished = []
        for r, n in work:
            self.cached[r] += n
            if self.cached[r] == int(self.trace.inputs[r]) + self.done[r]:
                self.done[r] += 1
                if self.done[r] == self.trace.outputs[r]:
                    finished.append(r)
        decode = sum(1 for r, n in work if n == 1 and self.cached[r] == int(self.trace.inputs[r]) + self.done[r] - 1)
        self.now += 0.010 + 0.000_05 * (sum(n for _, n in work) - decode) + 0.000_02 * decode
        for r in finished:
            self.drop(r)
        self.log.append((tuple(work), len(retracted), len(admitted), len(finished), self.pages, self.states))
        return True


class Log:
    """An observer that writes down what the loop decided."""

    def __init__(self, pool: StaticPools) -> None:
        self.pool, self.log = pool, []

    def after_step(self, loop, record) -> None:
        work = tuple(zip(record.batch.requests.tolist(), record.batch.counts.tolist(), strict=True))
        states, pages = (m - h for m, h in zip(self.pool.pages_max, self.pool.pages_held, strict=True))
        self.log.append((work, record.retracted, record.admitted, record.finished, pages, states))


@pytest.mark.parametrize("seed", range(12))
def test_static_pools_decide_step_by_step_like_plain_token_counting(seed: int) -> None:
    """Under the one loop a static split makes the decisions of an inline static loop, in every step."""
    rng = np.random.default_rng(seed)
    states, pages = int(rng.integers(3, 12)), int(rng.integers(20, 60))
    trace = random_trace(rng, 120, 400)
    plain = PlainStatic(trace, states, pages, budget=100, places=10)
    while plain.step():
        pass
    pool = pools(states, pages)
    log = Log(pool)
    ServingLoop(pool, trace, LoopOptions(prefill_tokens=100, running_max=10, speed_up=1.0), observers=[log]).run()
    assert log.log == plain.log
    assert sum(row[1] for row in log.log) > 0, "the case must retract to mean anything"


def test_a_refusal_changes_nothing() -> None:
    """A joint step that does not fit is refused with numbers, and the pool is as before."""
    pool = pools(4, 10)
    handles = pool.open(2)
    pool.step(handles, ints(60, 60))
    before = pool.report()
    refusal = pool.step(handles, ints(40, 40))
    assert isinstance(refusal, Refusal) and refusal.band == "full"
    row = refusal.bands[1]
    assert (row.wanted, row.now, row.after_eviction) == (6, 2, 10)
    assert pool.report() == before and pool.verify() == []


def test_stale_double_and_unknown_leases_are_typed_errors() -> None:
    """A lease that ended, one named twice, or a made-up handle raises and changes nothing."""
    pool = pools(4, 10)
    handles = pool.open(2)
    pool.step(handles, ints(16, 16))
    pool.step(NO_INTS, NO_INTS, finished=handles[:1])
    before = pool.report()
    for call in (
        lambda: pool.step(handles[:1], ints(1)),
        lambda: pool.step(NO_INTS, NO_INTS, finished=handles[:1]),
        lambda: pool.demand_of(ints(-5), ints(1)),
        lambda: pool.step(ints(12345 << 20), ints(1)),
    ):
        with pytest.raises(LeaseStale):
            call()
    with pytest.raises(DemandError):
        pool.step(handles[[1, 1]], ints(1, 1))
    with pytest.raises(DemandError):
        pool.step(handles[1:], ints(1), finished=handles[1:])
    assert pool.report() == before
    again = pool.open(1)
    assert again[0] % (1 << 20) == handles[0] % (1 << 20) and again[0] != handles[0]


def test_the_report_adds_up_to_the_total() -> None:
    """Live, hole, gap and sink of every rival add up to the bytes given, empty and full."""
    layout = build_layout((STATE, FULL, WINDOW), 1 << 20)
    for pool in (StaticPools.split(layout, Fraction(1, 3), 64), PaddedPages(padded_page(tiny_bands()), 1 << 20, 64)):
        handles = pool.open(3)
        for _ in range(2):
            report = pool.report()
            assert all(row.hole_bytes >= 0 for row in report.bands) and report.gap_bytes >= 0
            held = report.live_bytes + report.hole_bytes + report.gap_bytes + report.sink_bytes
            assert held == report.total_bytes == 1 << 20
            pool.step(handles, ints(5, 70, 33))


@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 20))
def test_F33_the_longest_request_is_exactly_what_one_can_have(pages: int, states: int, chunk: int) -> None:
    """max_request_tokens is admitted in an empty pool and one token more is not."""
    pool = pools(states, pages, chunk)
    longest = pool.max_request_tokens()
    assert pool.admission().admit(longest, 0) and not pool.admission().admit(longest + 1, 0)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 40)), min_size=10, max_size=10))
def test_F47_an_accepted_prefix_can_be_held_together_and_no_longer_one(asks: list[tuple[int, int]]) -> None:
    """Ten admissions folded in one step: what is accepted fits jointly, and the first refusal is a true one."""
    pool = pools(6, 24)
    budget = pool.admission()
    accepted: list[int] = []
    refused = 0
    for now, reserved in asks:
        if budget.admit(now, reserved):
            accepted.append(now + reserved)
        else:
            refused = now + reserved
            break
    if accepted:
        assert not isinstance(pool.step(pool.open(len(accepted)), ints(*accepted)), Refusal)
    if refused:
        assert isinstance(pool.step(pool.open(1), ints(refused)), Refusal)


@given(st.integers(1, 300), st.integers(0, 60), st.integers(0, 9), st.randoms(use_true_random=False))
def test_F30_pages_charged_are_the_peak_pages_held(prompt: int, output: int, lookahead: int, random) -> None:
    """Random chunked prefill, decode and lookahead slots: what admission charges is the peak that is then held."""
    pool = pools(2, 100, chunk=512)
    budget = pool.admission()
    assert budget.admit(prompt, output + lookahead)
    handle, peak, left = pool.open(1), (0, 0), prompt
    while left:
        chunk = random.randint(1, left)
        left -= chunk
        pool.step(handle, ints(chunk))
        peak = tuple(max(pair) for pair in zip(peak, pool.pages_held, strict=True))
    for extra in (*[1] * output, *([lookahead] if lookahead else [])):
        pool.step(handle, ints(extra))
        peak = tuple(max(pair) for pair in zip(peak, pool.pages_held, strict=True))
    assert budget.pages == peak


@given(st.integers(1, 300), st.integers(1, 50), st.sampled_from([WINDOW, BandSpec("chunk-48", 64, PAGE, "chunked", 48)]))
def test_window_pages_are_those_that_a_later_token_can_see(tokens: int, new: int, spec: BandSpec) -> None:
    """A window holds exactly the pages with a position that some token of the step reads or writes, found one by one."""
    if spec.retention == "chunked":
        first = next(p for p in range(tokens + 1) if p // 48 == tokens // 48)
    else:
        first = next(p for p in range(tokens + 1) if tokens - p < 40)
    seen = {position // PAGE for position in range(first, tokens + new)}
    assert pages_while(spec, ints(tokens), ints(tokens + new))[0] == len(seen)


def test_split_shares_are_of_all_bytes() -> None:
    """A share goes to state; the rest is split between window and full by 0.8 tokens per token."""
    budgets = split_bytes((STATE, WINDOW, FULL), 1_000_000, Fraction(1, 4))
    assert budgets[0] == 250_000 and sum(budgets) <= 1_000_000
    assert budgets[1] / budgets[2] == pytest.approx(0.8, rel=1e-4)
    assert split_bytes((FULL,), 1000, Fraction(1, 2)) == (1000,)
    assert split_bytes((STATE,), 1000, Fraction(1, 2)) == (1000,)
    assert split_bytes((WINDOW, FULL), 1000, Fraction(1, 4)) == (250, 750)


def test_a_split_without_a_page_is_refused_by_name() -> None:
    """A share too small for one page beside the sink names the pool that starves."""
    with pytest.raises(LayoutError, match="state"):
        StaticPools.split(build_layout((STATE, FULL), 1 << 15), Fraction(1, 10), 64)
    with pytest.raises(ConfigError, match="share"):
        split_bytes((STATE, FULL), 1000, Fraction(3, 2))


def tiny_bands() -> tuple[BandGeometry, ...]:
    layers = [ModelLayer(i, FullAttention(1, 8, 8, "bfloat16")) for i in range(2)]
    layers += [ModelLayer(2 + i, RecurrentState((StateTensor("ssm", (40, 8), "float32"),))) for i in range(5)]
    return group_bands(layers, PAGE)


def test_padded_page_follows_the_rule() -> None:
    """State inflates the block: B = K ceil(m / (K a)); five state layers in groups of two waste one layer."""
    page = padded_page(tiny_bands())
    assert (page.block_tokens, page.page_bytes, page.group_layers) == (48, 48 * 32, 2)
    assert [(g.kind.retention, g.groups, g.layers) for g in page.kinds] == [("full", 1, 2), ("state", 3, 5)]
    pool = PaddedPages(page, 40 * page.block_bytes, 64)
    pool.step(pool.open(1), ints(49))
    assert pool.blocks_max == 39 and pool._blocks(pool.pages_held) == 2 + 3


def test_padded_page_unifies_unequal_attention() -> None:
    """Without state the block is the kernel's; a narrower layer's page holds more tokens."""
    layers = [ModelLayer(i, FullAttention(1, 8, 8, "bfloat16")) for i in range(2)]
    layers += [ModelLayer(2 + i, SlidingWindow(4, 8, 8, "bfloat16", window=128)) for i in range(10)]
    page = padded_page(group_bands(layers, PAGE))
    assert (page.block_tokens, page.page_bytes) == (16, 16 * 128)
    assert {g.kind.retention: g.block_tokens for g in page.kinds} == {"full": 64, "window": 16}


def test_padded_page_charges_encoder_tokens() -> None:
    """A request holds the blocks of all its encoder tokens from its first token on, and no more later."""
    layers = [ModelLayer(0, FullAttention(1, 8, 8, "bfloat16")), ModelLayer(1, CrossAttention(1, 8, 8, "bfloat16", 100))]
    pool = PaddedPages(padded_page(group_bands(layers, PAGE)), 1 << 16, 64)
    handle = pool.open(1)
    held = []
    for tokens in (1, 30):
        pool.step(handle, ints(tokens))
        held.append(dict(zip([spec.retention for spec in pool.specs], pool.pages_held, strict=True)))
    assert held == [{"cross": 7, "full": 1}, {"cross": 7, "full": 2}]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(8, 40))
def test_padded_pool_serves_a_trace_and_ends_empty(seed: int, blocks: int) -> None:
    """Every request that fits alone is served, every other is refused, and no block is left held."""
    page = padded_page(tiny_bands())
    pool = PaddedPages(page, blocks * page.block_bytes, 64)
    loop = ServingLoop(pool, random_trace(np.random.default_rng(seed), 30, 600), LoopOptions(100, 10, 1.0))
    loop.run()
    assert set(loop.requests.status.tolist()) <= {Status.DONE, Status.REFUSED}
    assert sum(pool.pages_held) == 0 and pool.verify() == []


def test_fits_says_what_is_obtainable() -> None:
    """fits agrees with step, and its refusal tells what one band alone could have."""
    pool = pools(2, 10)
    assert isinstance(pool.fits({"full": 10, "state": 2}), Fit)
    refusal = pool.fits({"full": 11})
    assert isinstance(refusal, Refusal) and refusal.bands[1].now == 10
