"""The one serving loop drives a real model from the arena: every answer equals one-at-a-time generation."""

import numpy as np
import pytest

from core_pure.admission import request_pages
from core_pure.errors import ConfigError
from core_pure.fits import Refusal
from core_pure.layout import boot_floor, build_layout, order_chain
from models.loop import LoopOptions, ServingLoop, Status
from models.pools import SGLANG_DEFAULT_SHARE, StaticPools
from models.traces import Trace
from tests.cache_tools import bands_for, build_model, torch

# isort: split
from shell_gpu.arena import Arena, BuildOptions
from shell_gpu.arena_cache import Served
from shell_gpu.serve import TransformersRunner, check_prompts, generate_alone, load_model, stock_cache

HYBRID = {"num_hidden_layers": 2, "full_attn_idxs": [1]}
CONTEXT, CHUNK, RUNNING = 96, 48, 32


class Watch:
    """Checks the arena after every step, and counts."""

    def __init__(self, arena=None):
        self.arena = arena
        self.running = self.retracted = self.moved = self.steps = 0
        self.progress = []

    def after_step(self, loop, record):
        self.steps += 1
        self.running = max(self.running, record.running)
        self.retracted += record.retracted
        self.moved += record.batch.result.bytes_moved
        self.progress.append(int(loop.requests.computed.sum()))
        if self.arena is not None:
            assert self.arena.verify() == []


class Setup:
    """A tiny hybrid, random prompts, and what each request answers alone."""

    def __init__(self, requests, prompt_tokens, output_tokens, seed=0, model_type="lfm2", kinds=None, end_token=None,
                 chunk=CHUNK):  # fmt: skip
        self.chunk = chunk
        random = np.random.default_rng(seed)
        self.model = build_model(model_type, **(HYBRID if model_type == "lfm2" else {}))
        self.bands = bands_for(self.model)
        self.end_token = end_token
        texts = [random.integers(3, 60, int(random.integers(*prompt_tokens))).tolist() for _ in range(kinds or requests)]
        self.prompts = [texts[int(random.integers(len(texts)))] if kinds else texts[number] for number in range(requests)]
        self.outputs = random.integers(*output_tokens, requests)
        longest = int(self.outputs.max())
        known = {tuple(text): generate_alone(self.model, text, longest, end_token) for text in texts}
        self.alone = [known[tuple(p)][:n] for p, n in zip(self.prompts, self.outputs.tolist(), strict=True)]

    def layout(self, peak_requests):
        """An arena that holds about so many of the mean request at their peak, at least the boot floor."""
        tokens = int(np.mean([len(p) for p in self.prompts]) + self.outputs.mean())
        each = sum(band.pages_peak(tokens, self.chunk) * band.frame_bytes for band in self.bands)
        floor = boot_floor(order_chain(self.bands), CONTEXT, self.chunk)
        return build_layout(self.bands, max(floor, int(peak_requests * each) + 8192))

    def arena(self, layout, poison=False, recorder=None):
        return Arena.build(layout, device="cpu", sequences=RUNNING, context=CONTEXT, chunk=self.chunk, recorder=recorder,
                           options=BuildOptions(poison=poison, step_tokens=self.chunk))  # fmt: skip

    def serve(self, pool, cache_of, watch, *, cancels=(), reserve=0.0):
        """Run the loop to the end. cancels: (step, request). Returns: loop, runner."""
        runner = TransformersRunner(self.model, self.prompts, cache_of, end_token=self.end_token, clock=None)
        trace = Trace("test", np.zeros(len(self.prompts)), np.array([len(p) for p in self.prompts]), self.outputs)
        options = LoopOptions(prefill_tokens=self.chunk, running_max=RUNNING, reserve=reserve)
        loop = ServingLoop(pool, trace, options, runner=runner, observers=(watch,))
        left = sorted(cancels)
        while loop.step():
            while left and left[0][0] <= watch.steps:
                runner.cancel(left.pop(0)[1])
        return loop, runner


def served(arena, model):
    """The runner's cache maker over an arena."""
    opened = Served(arena, model.config)
    return lambda handle: opened(np.array([handle]))


@pytest.mark.parametrize("model_type", ["lfm2", "gemma3_text"])
def test_32_concurrent_requests_equal_one_at_a_time(model_type):
    """With chunked prefill and NaN in all free memory, 32 requests at once answer as each does alone; the arena ends empty."""
    setup = Setup(32, (4, 40), (6, 14), model_type=model_type, chunk=200)
    arena = setup.arena(setup.layout(40), poison=True)
    watch = Watch(arena)
    loop, runner = setup.serve(arena, served(arena, setup.model), watch)
    assert runner.answers == setup.alone
    assert (loop.requests.status == Status.DONE).all() and watch.running == 32
    assert arena.report().live_bytes == 0 and arena.leases.open_count == 0 and runner.caches_held == 0


def test_retraction_recomputes_the_same_answers():
    """With memory for a third of the requests some are retracted, and every answer is still the unconstrained one."""
    setup = Setup(24, (4, 12), (14, 30), seed=4)
    arena = setup.arena(setup.layout(6), poison=True)
    watch = Watch(arena)
    loop, runner = setup.serve(arena, served(arena, setup.model), watch)
    assert watch.retracted > 0 and loop.requests.retractions.max() >= 1
    assert runner.answers == setup.alone
    assert arena.report().live_bytes == 0


def test_soak_with_cancellations_end_token_and_little_memory():
    """1,000 requests, a tenth cancelled, retractions and relief moves on the way: every answer is a prefix of, and every
    finished one equal to, the unconstrained answer; nothing waits for ever and the arena is empty at the end.
    """
    setup = Setup(1_000, (1, 24), (2, 9), seed=7, kinds=64, end_token=17)
    arena = setup.arena(setup.layout(7))
    watch = Watch(arena)
    random = np.random.default_rng(1)
    cancels = [(int(step), int(request)) for step, request in zip(
        np.sort(random.integers(0, 900, 100)), random.choice(1_000, 100, replace=False), strict=True)]  # fmt: skip
    loop, runner = setup.serve(arena, served(arena, setup.model), watch, cancels=cancels)
    status = loop.requests.status
    done = np.flatnonzero(status == Status.DONE)
    assert set(status.tolist()) <= {Status.DONE, Status.CANCELLED} and len(done) >= 900
    assert (status == Status.CANCELLED).sum() >= 1
    for request in range(1_000):
        answer = runner.answers[request]
        assert answer == setup.alone[request] if request in done else answer == setup.alone[request][: len(answer)]
    assert any(len(setup.alone[r]) < setup.outputs[r] for r in done), "an end token ended some request early"
    assert watch.retracted > 0 and watch.moved > 0
    assert arena.report().live_bytes == 0 and arena.leases.open_count == 0 and runner.caches_held == 0
    assert arena.state == type(arena).build(arena.layout, device="cpu", sequences=1, context=CONTEXT, chunk=CHUNK).state


def test_the_same_loop_serves_a_static_split():
    """The same loop, runner and bytes over a static split gives the same answers; the arena runs at least as many at once."""
    setup = Setup(24, (4, 40), (4, 12), seed=2)
    layout = setup.layout(10)
    arena = setup.arena(layout)
    seen = {}
    for name, pool, cache_of in (
        ("arena", arena, served(arena, setup.model)),
        ("static", StaticPools.split(layout, SGLANG_DEFAULT_SHARE, CHUNK), lambda handle: stock_cache(setup.model.config)),
    ):
        watch = Watch(arena if name == "arena" else None)
        loop, runner = setup.serve(pool, cache_of, watch)
        assert runner.answers == setup.alone and (loop.requests.status == Status.DONE).all()
        seen[name] = (watch.running, watch.steps)
    assert seen["arena"][0] >= seen["static"][0] and seen["arena"][1] <= seen["static"][1]


# --- what never happens --------------------------------------------------------------------------------------------------


def test_F11_a_request_that_can_never_fit_is_refused_at_submit_with_numbers():
    """An over-long request is refused at once, naming what it needs and the longest that fits; the others are served."""
    setup = Setup(4, (4, 9), (2, 5), seed=3)
    arena = setup.arena(setup.layout(3))
    most = arena.max_request_tokens()
    setup.prompts[2] = setup.prompts[2] * (most // len(setup.prompts[2]) + 1)
    loop, runner = setup.serve(arena, served(arena, setup.model), Watch(arena))
    assert loop.requests.status.tolist() == [Status.DONE, Status.DONE, Status.REFUSED, Status.DONE]
    needed = loop.requests.peak_tokens(2)
    assert loop.requests.refusals[2] == f"needs {needed} tokens; the largest request that fits alone has {most}"
    assert runner.answers[2] == [] and loop.steps < 20
    with pytest.raises(ConfigError, match=f"request 1: an empty prompt; give 1 to {most} tokens"):
        check_prompts([[3], []], 64, most)
    with pytest.raises(ConfigError, match=f"request 0: a prompt of {most + 1} tokens; give 1 to {most}"):
        check_prompts([[3] * (most + 1)], 64, most)
    with pytest.raises(ConfigError, match="request 0: token 64 is outside the vocabulary of 64"):
        check_prompts([[63, 64]], 64, most)


@pytest.mark.parametrize("chunk_seed", range(3))
def test_F30_pages_charged_at_admission_are_the_peak_pages_held(chunk_seed):
    """Filled in random chunks, with lookahead slots that are trimmed, a request's peak of pages is the charge exactly."""
    setup = Setup(1, (40, 41), (2, 3))
    arena = setup.arena(setup.layout(4))
    random = np.random.default_rng(chunk_seed)
    for _ in range(40):
        total, draft = int(random.integers(1, 80)), int(random.integers(0, 5))
        charged = request_pages(arena.layout, total + draft, CHUNK)
        handle, held, peak = arena.open(1), 0, (0,) * len(arena.names)
        while held < total:
            count = min(int(random.integers(1, 9)), total - held)
            assert not isinstance(arena.step(handle, np.array([count + draft])), Refusal)
            peak = tuple(max(a, len(b)) for a, b in zip(peak, arena.pages(int(handle[0])), strict=True))
            held += count
            arena.trim(handle, np.array([held]))
        assert peak == charged
        arena.step(handle[:0], handle[:0], finished=handle)


def test_F31_two_requests_that_hold_and_want_do_not_wait_for_ever():
    """Seven full pages; A holds 4 and B 3 when both want one more: the younger is retracted, both finish, A first."""
    setup = Setup(2, (5, 6), (2, 3), model_type="llama")
    page, frame = 4, setup.bands[0].frame_bytes
    setup.prompts = [setup.prompts[0][:1] * 16, setup.prompts[1][:1] * 12]
    setup.outputs = np.array([6, 6])
    setup.alone = [generate_alone(setup.model, prompt, 6) for prompt in setup.prompts]
    layout = build_layout(setup.bands, 8 * frame)
    assert layout.frames_max == (7,) and frame % 4096 == 0 and layout.bands[0].slots_per_page == page
    arena = Arena.build(layout, device="cpu", sequences=RUNNING, context=28, chunk=CHUNK)
    watch = Watch(arena)
    loop, runner = setup.serve(arena, served(arena, setup.model), watch)
    assert runner.answers == setup.alone
    assert loop.requests.retractions.tolist() == [0, 1]
    assert loop.requests.finished_at[0] < loop.requests.finished_at[1]


def test_F32_work_that_is_preempted_advances():
    """Prompts near the ceiling of a small arena: the oldest request's tokens never fall, and everyone finishes in turn."""
    setup = Setup(6, (60, 70), (4, 9), seed=5)
    arena = setup.arena(setup.layout(1.6))
    oldest = []

    class Oldest(Watch):
        def after_step(self, loop, record):
            super().after_step(loop, record)
            alive = np.flatnonzero(loop.requests.status <= Status.RUNNING)
            if len(alive):
                oldest.append((int(alive[0]), int(loop.requests.computed[alive[0]])))

    watch = Oldest(arena)
    loop, runner = setup.serve(arena, served(arena, setup.model), watch)
    assert (loop.requests.status == Status.DONE).all() and runner.answers == setup.alone
    assert oldest == sorted(oldest), "the pair (oldest request, its tokens) only rises"
    assert watch.steps < sum(len(prompt) for prompt in setup.prompts)


def test_F35_equal_ranks_that_apply_the_same_events_have_one_digest():
    """Two ranks with equal budgets serve the same trace, compactions included: equal values and digests after every step."""
    setup = Setup(10, (4, 20), (3, 8), seed=6)
    layout = setup.layout(5)
    digests = []
    for _ in range(2):
        arena = setup.arena(layout)
        seen = []

        class Digests(Watch):
            def after_step(self, loop, record, arena=arena, seen=seen):
                super().after_step(loop, record)
                if record.number % 5 == 0:
                    arena.compact()
                seen.append(arena.state.digest)

        setup.serve(arena, served(arena, setup.model), Digests(arena))
        digests.append(seen)
    assert digests[0] == digests[1] and len(set(digests[0])) == len(digests[0])


# --- models ------------------------------------------------------------------------------------------------------------


def test_models_load_from_fields_files_and_checkpoints(tmp_path):
    """Fields and a config.json give random weights, a checkpoint its own; the same seed gives the same weights."""
    model = build_model("lfm2", **HYBRID)
    model.config.save_pretrained(tmp_path / "config")
    for source in (tmp_path / "config", tmp_path / "config" / "config.json"):
        first, random = load_model(source)
        second, _ = load_model(source)
        assert random
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    model.save_pretrained(tmp_path / "checkpoint")
    loaded, random = load_model(tmp_path / "checkpoint")
    assert not random
    assert generate_alone(loaded, [5, 6, 7], 6) == generate_alone(model, [5, 6, 7], 6)


def test_models_that_cannot_be_loaded_are_refused_in_one_line(tmp_path):
    """A missing file, no JSON, no model type, an unknown type and weights beyond memory: a typed error naming each."""
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    huge = {"model_type": "llama", "hidden_size": 65_536, "intermediate_size": 1 << 20, "num_hidden_layers": 100}
    for source, text in (
        (tmp_path / "nowhere.json", "cannot be read"),
        (broken, "not JSON"),
        ({"hidden_size": 3}, "no 'model_type'"),
        ({"model_type": "no-such-model"}, "cannot build a 'no-such-model' model"),
        (huge, "random weights of"),
    ):
        with pytest.raises(ConfigError, match=text) as caught:
            load_model(source)
        assert "\n" not in str(caught.value)
