"""The planner against the arena it speaks of: floors, longest requests, requests at once, charges, and refusals."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from core_pure.admission import fits_empty
from core_pure.door import Door
from core_pure.errors import ConfigError, LayoutError
from core_pure.geometry import ARENA_GRANULE, ceil_div, sink_bytes
from core_pure.layout import boot_floor, build_layout, check_boot
from models.architectures import bands_of, bundled_ids, layout_for, layout_for_pages, load_config, specs_of
from models.arena_counts import ArenaCounts, LcmPages
from models.dry import DryArena
from models.loop import LoopOptions, ServingLoop
from models.planner import ARENA, LCM, PADDED, STATIC_BEST, STATIC_DEFAULT, Mix, concurrency_of, plan_fit
from models.planner_trace import server
from models.traces import Trace, load_trace

FALCON = "tiiuae/Falcon-H1-0.5B-Instruct"
GEMMA = "google/gemma-3-1b-it"
CHUNK = 2_048


def equal_requests(count: int, prompt: int, output: int) -> Trace:
    """A trace of equal requests that all wait from the start."""
    return Trace("equal", np.zeros(count), np.full(count, prompt), np.full(count, output))


class Peak:
    """The most requests that ran at once."""

    def __init__(self):
        self.running = 0

    def after_step(self, loop, record):
        """Book one step."""
        self.running = max(self.running, record.running)


def drawn(seed: int, count: int):
    """Models, request lengths and memories drawn by seed: five to fifteen requests fit."""
    rng = np.random.default_rng(seed)
    for model in rng.permutation(bundled_ids())[:count]:
        specs = specs_of(bands_of(str(model)))
        prompt, output = int(rng.integers(100, 1_000)), int(rng.integers(120, 200))
        each = sum(spec.pages_peak(prompt + output, 1) * spec.frame_bytes for spec in specs)
        floor = boot_floor(build_layout(specs, 2**45).bands, load_config(str(model)).context_tokens, CHUNK)
        yield str(model), prompt, output, max(int(each * rng.uniform(5, 15)), floor + 2**20)


@pytest.mark.parametrize(("model", "prompt", "output", "memory"), list(drawn(seed=0, count=10)))
def test_F33_the_printed_capacity_is_what_replay_admits(model, prompt, output, memory):
    """Longest request and requests at once, for ten models drawn by seed, equal what the loop gets from the arena.

    A loop that reserves all output promises each window its growth without counting what slides out meanwhile, so with
    windows it may admit one request less.
    """
    plan = plan_fit(model, memory, mix=Mix(prompt, output), chunk=CHUNK)
    arena = DryArena(layout_for(model, memory), sequences=64, context=load_config(model).context_tokens, chunk=CHUNK)
    assert arena.max_request_tokens() == min(plan.max_request_tokens, plan.context_tokens)
    fresh = DryArena(layout_for(model, memory), sequences=64, context=prompt + output, chunk=CHUNK)
    peak = Peak()
    options = LoopOptions(prefill_tokens=CHUNK, running_max=CHUNK - 1, reserve=1.0)
    trace = equal_requests(2 * plan.concurrency + 2, prompt, output)
    ServingLoop(fresh, trace, options, observers=(peak,)).run()
    windows = any(band.window is not None for band in plan.bands)
    assert plan.concurrency - windows <= peak.running <= plan.concurrency


@pytest.mark.parametrize("model", [FALCON, GEMMA, "moonshotai/Kimi-Linear-48B-A3B-Instruct"])
def test_F33_one_page_more_than_the_longest_request_is_refused(model):
    """A request of exactly the printed length is admitted by an empty arena; one of a page more is not."""
    plan = plan_fit(model, "1GiB", chunk=CHUNK)
    arena = DryArena(layout_for(model, "1GiB"), sequences=4, context=plan.context_tokens, chunk=CHUNK)
    assert arena.admission().admit(plan.max_request_tokens, 0)
    assert not arena.admission().admit(plan.max_request_tokens + 16, 0)


def test_F34_a_batch_that_does_not_fit_is_answered_before_anything_is_built():
    """1,024 requests asked for, memory for 614 states: the answer is 614 and names the state band."""
    config = load_config({
        "name": "by hand",
        "context_tokens": 64,
        "kvarena_layers": [
            {"kind": "state", "tensors": [{"name": "temporal", "shape": [1024, 1024], "dtype": "float32"}]},
            {"kind": "full", "kv_heads": 1, "head_dim": 8},
        ],
    })  # fmt: skip
    state, page = 2**22, 16 * 32
    memory = state + 614 * state + 614 * page + state - page  # sink, 614 requests, and almost one state more
    plan = plan_fit(config, memory, mix=Mix(prompt=10, output=6), max_batch=1_024, chunk=64)
    assert (plan.concurrency, plan.batch, plan.batch_asked, plan.binding) == (614, 614, 1_024, "state")
    assert plan_fit(config, memory, mix=Mix(10, 6), max_batch=100, chunk=64).batch == 100


def test_F46_tracking_slots_are_charged_by_planner_floor_and_fits():
    """With two tracking slots a request costs three states everywhere: concurrency falls, and fits refuses on cue."""
    alone = plan_fit(FALCON, "1GiB", mix=Mix(16, 1))
    tracked = plan_fit(FALCON, "1GiB", mix=Mix(16, 1), tracking=2)
    assert next(band for band in tracked.bands if band.name == "state").pages_per_request == 3
    assert alone.concurrency // 3 - 1 <= tracked.concurrency <= alone.concurrency // 3 + 1
    layout = layout_for(FALCON, "1GiB", tracking=2)
    arena = DryArena(layout, sequences=256, context=1_024, chunk=CHUNK)
    budget, admitted = arena.admission(), 0
    while budget.admit(16, 0):
        admitted += 1
    assert admitted == tracked.concurrency


def test_F06_boot_check_and_layout_use_one_sink():
    """The sink in the layout, in the floor and in the plan is the largest frame of the bands: one number."""
    for model in (FALCON, GEMMA, "Qwen/Qwen3.5-397B-A17B"):
        plan = plan_fit(model, "40GiB")
        frames = [band.frame_bytes for band in bands_of(model)]
        assert dict(plan.floor_items)["sink"] == plan.sink_bytes == sink_bytes(frames) == max(frames)
        assert plan.floor_bytes >= sum(dict(plan.floor_items).values())


def test_F07_a_context_far_larger_than_the_arena_boots():
    """Llama 4's context of ten million tokens does not stop a small arena; the clamp says what is served instead."""
    model = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    plan = plan_fit(model, "4GiB", chunk=512)
    assert plan.context_tokens > 100 * plan.max_request_tokens > 0
    arena = DryArena(layout_for(model, "4GiB"), sequences=4, context=plan.context_tokens, chunk=512)
    assert not arena.admission().admit(plan.context_tokens, 0)


@pytest.mark.parametrize("model", [FALCON, GEMMA, "google/gemma-4-12B-it", "ibm-granite/granite-4.0-h-tiny"])
def test_F08_exactly_the_floor_boots_and_serves_its_longest_request(model):
    """4096 bytes below the floor is refused with every item and a remedy; the floor boots and runs its longest request."""
    context = load_config(model).context_tokens
    floor = boot_floor(build_layout(specs_of(bands_of(model)), 2**45).bands, context, 256)
    with pytest.raises(LayoutError) as error:
        plan_fit(model, floor - ARENA_GRANULE, chunk=256)
    for word in ("sink = ", "full = ", "remedies", str(floor)):
        assert word in str(error.value)
    layout = layout_for(model, floor)
    check_boot(layout, context, 256)
    longest = min(plan_fit(model, floor, chunk=256).max_request_tokens, context)
    arena = DryArena(layout, sequences=4, context=context, chunk=256)
    loop = ServingLoop(arena, equal_requests(1, longest, 1), LoopOptions(prefill_tokens=256, running_max=1))
    loop.run()
    assert loop.requests.generated.tolist() == [1]


def test_F09_no_page_is_lost_to_summing_counts_again():
    """For budgets off every grid, pages of a lone band equal those of the floored bytes; regained bytes are never lost."""
    model = "deepseek-ai/DeepSeek-V3"
    frame = bands_of(model)[0].frame_bytes
    for budget in (2**30, 2**30 + 1, 2**30 + 4095, 10**9 + 7):
        layout = layout_for(model, budget)
        assert layout.total_bytes == budget // 4096 * 4096
        assert layout.frames_max[0] == layout.total_bytes // frame - ceil_div(layout.sink_bytes, frame)
    for seed in range(20):
        budget = int(np.random.default_rng(seed).integers(2**30, 2**33))
        assert plan_fit(FALCON, budget).regained_bytes >= -ARENA_GRANULE


@pytest.mark.parametrize("model", [FALCON, GEMMA, "google/gemma-4-12B-it", "deepseek-ai/DeepSeek-V3"])
def test_F09_the_sum_path_holds_its_pages_and_the_budget_path_no_fewer(model):
    """An arena made for so many pages holds exactly those at once; a budget of the same bytes holds them too."""
    pages = {band.name: 7 + 5 * number for number, band in enumerate(bands_of(model))}
    capped = layout_for_pages(model, pages)
    wanted = capped.demand(pages)
    assert fits_empty(capped, wanted)
    for at in range(len(wanted)):
        assert not fits_empty(capped, tuple(n + (i == at) for i, n in enumerate(wanted)))
    assert fits_empty(layout_for(model, capped.total_bytes), wanted)
    assert not fits_empty(build_layout(specs_of(bands_of(model)), capped.total_bytes - ARENA_GRANULE), wanted)
    with pytest.raises(ConfigError, match="pages of band"):
        layout_for_pages(model, {name: count for name, count in pages.items() if name != capped.names[0]})
    with pytest.raises(ConfigError, match="attic"):
        layout_for_pages(model, {**pages, "attic": 1})


def test_F13_degenerate_models_are_planned_by_the_same_code():
    """A pure state model, a pure window model, one head, one layer and one-slot pages all get a plan."""
    mamba = {"model_type": "mamba2", "num_hidden_layers": 1, "num_heads": 2, "head_dim": 4, "state_size": 4,
             "conv_kernel": 4, "n_groups": 1, "hidden_size": 4, "expand": 2, "max_position_embeddings": 64}  # fmt: skip
    plan = plan_fit(load_config(mamba), "1MiB", chunk=64)
    assert plan.concurrency > 100 and {policy.policy for policy in plan.policies} >= {ARENA, STATIC_BEST}
    assert next(policy for policy in plan.policies if policy.policy == PADDED).concurrency == 0  # nothing in common
    window = {"model_type": "mistral", "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 1,
              "num_key_value_heads": 1, "sliding_window": 4, "max_position_embeddings": 64}  # fmt: skip
    assert plan_fit(load_config(window), "64KiB", page_slots=1, chunk=4).concurrency > 0


def test_counts_decide_as_an_arena_that_holds_the_pages():
    """``ArenaCounts`` says yes to a demand exactly where an arena with pages in it does, over random histories."""
    rng = np.random.default_rng(1)
    layout = layout_for(GEMMA, "40MiB")
    checked = {True: 0, False: 0}
    for _ in range(20):
        arena, counts = DryArena(layout, sequences=64, context=4_096, chunk=256), ArenaCounts(layout, 256)
        for _ in range(12):
            held, counted = arena.open(1), counts.open(1)
            tokens = rng.integers(1, 256, 1)
            arena.step(held, tokens)
            counts.step(counted, tokens)
            demand = tuple(int(n) for n in rng.integers(0, 60, len(layout.bands)))
            answer = arena.check_decode(demand)
            assert counts.check_decode(demand) == answer
            checked[answer] += 1
    assert min(checked.values()) > 20


def test_lcm_pages_hold_whole_small_pages():
    """A least-common-multiple page is a whole number of each kind's pages; kinds never share a large page."""
    bands = bands_of("google/gemma-4-12B-it")
    pool = LcmPages(bands, 10 * 2**30, CHUNK)
    assert all(pool.page_bytes % spec.frame_bytes == 0 for spec in pool.specs)
    per_page = [pool.page_bytes // spec.frame_bytes for spec in pool.specs]
    full = [n if i == 0 else 0 for i, n in enumerate(per_page)]
    assert pool._has_room(tuple(n * pool.pages_large for n in full))
    assert not pool._has_room(tuple(n * pool.pages_large + (i == 1) for i, n in enumerate(full)))


def test_policies_are_compared_at_equal_bytes():
    """The arena holds at least as many requests as the best static split, that at least as many as the default."""
    for model in bundled_ids():
        plan = plan_fit(model, "24GiB", mix=Mix(1_000, 200))
        counts = {policy.policy: policy.concurrency for policy in plan.policies}
        assert counts[ARENA] == plan.concurrency
        if len(plan.bands) > 1:
            assert counts[ARENA] >= counts[STATIC_BEST] >= counts[STATIC_DEFAULT]
        assert {PADDED, LCM} <= set(counts)
        for policy in plan.policies:
            assert 0 <= policy.waste_share <= 1


def test_the_stage_that_holds_fewest_requests_speaks_for_all():
    """With pipeline stages the answer is that of the stage with the fewest requests; a stage without caches never binds."""
    model = "nvidia/Nemotron-H-8B-Base-8K"
    plan = plan_fit(model, "4GiB", pp=4)
    alone = []
    for rank in range(4):
        layout = build_layout(specs_of(bands_of(model, pp=4, pp_rank=rank)), 2**32)
        alone.append(concurrency_of(ArenaCounts(layout, 8_192), Mix().tokens)[0])
    assert plan.concurrency == min(alone)
    assert plan.rank == alone.index(min(alone))


def test_a_trace_is_served_by_the_one_loop():
    """Planned on a trace, the mean lies at or above the 5th percentile and the arena at or above the default split."""
    serve = server(load_trace("azure-code", requests=120), chunk=CHUNK)
    plan = plan_fit(FALCON, "512MiB", chunk=CHUNK, serve=serve)
    traces = {policy.policy: policy.trace for policy in plan.policies if policy.trace}
    assert {ARENA, STATIC_BEST, STATIC_DEFAULT, PADDED} <= set(traces)
    assert all(mean >= low >= 1 for mean, low in traces.values())
    assert traces[ARENA][0] >= traces[STATIC_DEFAULT][0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mix": (0, 1)}, "prompt"),
        ({"mix": (1, -1)}, "output"),
        ({"memory": "0"}, "memory"),
        ({"memory": "lots"}, "memory"),
        ({"memory": 4096}, "sink"),
        ({"max_batch": 0}, "max batch"),
        ({"chunk": 0}, "chunk"),
        ({"page_slots": 0}, "slots"),
        ({"tp": 3}, "tensor-parallel"),
        ({"tp": 0}, "tensor-parallel"),
        ({"pp": 0}, "pipeline"),
        ({"pp": 99}, "pipeline"),
        ({"kv_dtype": "int3"}, "int3"),
        ({"draft": "nobody/nothing"}, "nobody/nothing"),
    ],
)
def test_nonsense_options_are_one_line(options, says):
    """Impossible options are typed errors of one line that name what was wrong."""
    options = dict(options)
    memory = options.pop("memory", "1GiB")
    with pytest.raises((ConfigError, LayoutError)) as error:
        mix = Mix(*options.pop("mix")) if "mix" in options else Mix()
        plan_fit(FALCON, memory, mix=mix, **options)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_the_planner_never_imports_torch():
    """In a fresh process, planning a model, its tables and its JSON leave torch, triton and matplotlib unimported."""
    code = (
        "import sys, json\n"
        "from models.planner import plan_fit\n"
        "from models.fit_command import as_text, show\n"
        f"plan = plan_fit({FALCON!r}, '1GiB')\n"
        "show([plan, plan]); json.loads(as_text([plan]))\n"
        "print(sorted({'torch', 'triton', 'matplotlib', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_json_says_what_the_library_call_says(capsys):
    """The JSON of ``kvarena fit`` has the fields of the plan, numbers unrounded."""
    from models.fit_command import fit

    fit([FALCON], memory="1GiB", as_json=True)
    (shown,) = json.loads(capsys.readouterr().out)["plans"]
    plan = plan_fit(FALCON, "1GiB")
    assert shown["concurrency"] == plan.concurrency
    assert shown["policies"][0]["waste_share"] == plan.policies[0].waste_share
    assert shown["bands"][1]["payload_bytes"] == plan.bands[1].payload_bytes


def test_the_plot_is_written_and_bad_names_are_refused(tmp_path):
    """``--plot`` writes a picture; an unknown suffix or folder is refused before anything is planned."""
    from models.fit_command import fit

    target = tmp_path / "fit.svg"
    fit([FALCON], memory="1GiB", plot=target)
    assert target.read_text().lstrip().startswith("<?xml") and ARENA in target.read_text()
    for bad in (tmp_path / "fit.txt", tmp_path / "nowhere" / "fit.png", Path("/proc/fit.png")):
        with pytest.raises(ConfigError):
            fit([FALCON], plot=bad)
    below = ({"tracking": -1}, {"mtp_layers": -1}, {"draft_slots": -1})
    for wrong in (*below, {"requests": 5}, {"trace": "azure-code", "requests": 0}):
        with pytest.raises(ConfigError):
            fit([FALCON], memory="1GiB", **wrong)


def test_doors_and_planner_name_the_same_longest_request():
    """The door's own answer, capped at its context, is the planner's."""
    plan = plan_fit(FALCON, "256MiB", chunk=64)
    door = Door(layout_for(FALCON, "256MiB"), sequences=2, context=10**6, chunk=64)
    assert door.max_request_tokens() == plan.max_request_tokens
