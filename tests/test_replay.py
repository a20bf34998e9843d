"""Replay: the arena under the one loop, the rivals at equal bytes, and checks that can fail."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from core_pure.door import Door
from core_pure.errors import ConfigError, LayoutError
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout, boot_floor, build_layout, order_chain
from core_pure.state import initial
from models.architectures import bands_of, bundled_ids, layout_for
from models.dry import DryArena
from models.loop import LoopOptions, ServingLoop, Status, StepRecord
from models.padded import padded_page
from models.progress import Display
from models.replay import POLICIES, ArenaRig, Setting, StampEquation, parse_policies, replay, rival
from models.replay_checks import PlanCheck
from models.replay_report import as_json, check_out, notes, tables, write_json, write_plots
from models.statistics import Meter, Statistics
from models.traces import Trace, load_trace

PAGE, CHUNK = 4, 24
OPTIONS = LoopOptions(prefill_tokens=CHUNK, running_max=8, speed_up=1.0)


def chain(frames: tuple[int, int, int]) -> tuple[BandSpec, ...]:
    """State, window and full bands with frame sizes off each other's grid."""
    return (
        BandSpec("state", frames[0], 1, "state"),
        BandSpec("window-10", frames[1], PAGE, "window", 10),
        BandSpec("full", frames[2], PAGE, "full"),
    )


def random_trace(seed: int, count: int = 25, most: int = 90) -> Trace:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 0.3, count))
    return Trace("random", arrivals - arrivals[0], rng.integers(1, most, count), rng.integers(1, 40, count))


class EveryStep:
    """Verifies the arena after every step and watches the oldest request advance."""

    def __init__(self) -> None:
        self.oldest = -1
        self.peak: tuple[int, ...] = ()

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        pool = loop.pool
        assert isinstance(pool, Door)
        assert pool.verify() == []
        report = pool.report()
        held = sum(band.live_bytes + band.hole_bytes + band.quarantined_bytes for band in report.bands)
        assert held + report.gap_bytes + report.sink_bytes == report.total_bytes
        assert record.batch.counts[0] >= 1 and int(record.batch.requests[0]) >= self.oldest
        self.oldest = int(record.batch.requests[0])


frame_sizes = st.tuples(st.integers(2_000, 9_000), st.integers(300, 2_500), st.integers(300, 2_500))


@settings(max_examples=60, deadline=None)
@given(frame_sizes, st.integers(0, 2**32 - 1), st.integers(0, 90_000))
def test_the_loop_serves_from_an_arena_of_any_frame_sizes(frames: tuple[int, int, int], seed: int, spare: int) -> None:
    """Off-grid bands, little memory: no step is refused, the oldest always advances, everything that fits alone is served
    in full, every invariant holds after every step, and the emptied arena equals the first one."""
    layout = arena_layout(frames, spare)
    arena = DryArena(layout, sequences=8, context=200, chunk=CHUNK)
    loop = ServingLoop(arena, random_trace(seed), OPTIONS, observers=[EveryStep()])
    loop.run()
    table = loop.requests
    for request in range(25):
        served = table.peak_tokens(request) <= arena.max_request_tokens()
        assert table.status[request] == (Status.DONE if served else Status.REFUSED)
        assert table.generated[request] == (table.outputs[request] if served else 0)
    assert arena.state == initial(layout)


def arena_layout(frames: tuple[int, int, int], spare: int) -> Layout:
    """An arena ``spare`` bytes above the boot floor."""
    floor = boot_floor(order_chain(chain(frames)), 200, CHUNK)
    return build_layout(chain(frames), floor + spare)


@settings(max_examples=20, deadline=None)
@given(frame_sizes, st.integers(0, 2**32 - 1))
def test_F08_at_the_boot_floor_a_clamped_request_runs_alone(frames: tuple[int, int, int], seed: int) -> None:
    """An arena of exactly the floor boots, and a request of max_request_tokens() runs to completion."""
    arena = DryArena(arena_layout(frames, 0), sequences=8, context=200, chunk=CHUNK)
    most = arena.max_request_tokens()
    assert most >= PAGE
    loop = ServingLoop(arena, Trace("one", np.zeros(1), np.array([most]), np.array([1])), OPTIONS, observers=[EveryStep()])
    loop.run()
    assert loop.requests.status[0] == Status.DONE


@settings(max_examples=60, deadline=None)
@given(frame_sizes, st.integers(1, 60), st.integers(0, 40), st.integers(0, 9), st.randoms(use_true_random=False))
def test_F30_the_arena_charges_what_a_request_then_holds_at_its_peak(
    frames: tuple[int, int, int], prompt: int, output: int, lookahead: int, random
) -> None:
    """Random chunked prefill, decode and lookahead slots: charged minus peak held is zero for state and full attention;
    a window, charged over all alignments, is never charged less than it holds."""
    arena = DryArena(build_layout(chain(frames), 1 << 20), sequences=8, context=200, chunk=CHUNK)
    budget = arena.admission()
    assert budget.admit(prompt, output + lookahead)
    handle, peak, left = arena.open(1), [0, 0, 0], prompt
    chunks: list[int] = []
    while left:
        chunks.append(random.randint(1, min(left, CHUNK)))
        left -= chunks[-1]
    for count in (*chunks, *[1] * output, *([lookahead] if lookahead else [])):
        assert not isinstance(arena.step(handle, np.array([count])), Refusal)
        peak = [max(most, band.live) for most, band in zip(peak, arena.state.bands, strict=True)]
    charged = dict(zip(arena.names, budget.budget.taken, strict=True))
    held = dict(zip(arena.names, peak, strict=True))
    assert charged["state"] == held["state"] and charged["full"] == held["full"]
    assert charged["window-10"] >= held["window-10"]


def test_the_same_load_gives_the_same_digest() -> None:
    """Two runs of one load end with the same digest and the same figures."""
    digests = []
    for _ in range(2):
        arena = DryArena(arena_layout((5_000, 700, 900), 20_000), sequences=8, context=200, chunk=CHUNK)
        loop = ServingLoop(arena, random_trace(7), OPTIONS)
        loop.run()
        digests.append((arena.state.digest, loop.now, loop.steps, loop.requests.retractions.sum()))
    assert digests[0] == digests[1] and digests[0][3] > 0


def test_padded_blocks_agree_with_the_published_planner() -> None:
    """Block tokens, block bytes and groups of every default row of the bundled table follow from the rule."""
    path = Path("models/data/vllm_0_33_waste.csv")
    checked = 0
    for row in csv.DictReader(path.open()):
        if row["variant"].startswith("bf16 KV, TP1"):
            page = padded_page(bands_of(row["model"]))
            found = (page.block_tokens, page.block_bytes, sum(kind.groups for kind in page.kinds))
            assert found == tuple(int(row[name]) for name in ("B", "bpb", "groups")), row["model"]
            checked += 1
    assert checked >= 40


def setting(requests: int = 40) -> Setting:
    layout = layout_for("tiiuae/Falcon-H1-0.5B-Instruct", "256MiB")
    return Setting("Falcon", layout, load_trace("azure-code", requests=requests), LoopOptions())


def rig(chosen: Setting) -> ArenaRig:
    meter = Meter(chosen.layout)
    arena = DryArena(chosen.layout, sequences=1_024, context=chosen.context, chunk=chosen.options.prefill_tokens)
    arena.watchers = (meter,)
    return ArenaRig(arena, meter, (lambda pool: pool.verify(),))


@pytest.mark.parametrize("model", random.Random(0).sample(bundled_ids(), 6))
def test_published_models_are_served_with_every_check(model: str) -> None:
    """Six bundled models drawn by seed, little memory: no violation in any step or plan, whatever bands they have."""
    try:
        layout = layout_for(model, "2GiB")
        trace = load_trace("mix", scale=1 / 16, requests=60)
        chosen = Setting(model, layout, trace, LoopOptions())
        plans = PlanCheck(layout)
        arena = DryArena(layout, sequences=1_024, context=chosen.context, chunk=8_192)
    except LayoutError as error:
        pytest.skip(f"2 GiB are too little: {error}")
    arena.watchers = (plans,)
    loop = ServingLoop(arena, trace, LoopOptions(), observers=[EveryStep()])
    loop.run()
    assert plans.violations == [] and plans.made >= loop.steps
    assert set(loop.requests.status.tolist()) <= {Status.DONE, Status.REFUSED} and arena.state == initial(layout)


def test_every_policy_gets_the_same_bytes() -> None:
    """Each rival's report adds up to exactly the arena's total, sinks and tails included."""
    chosen = setting()
    for policy in POLICIES[1:]:
        try:
            report = rival(policy, chosen).report()
        except Exception as error:  # a starved share cannot be built, and says so
            assert "no page" in str(error)
            continue
        held = report.live_bytes + report.hole_bytes + report.gap_bytes + report.sink_bytes
        assert held == report.total_bytes == chosen.layout.total_bytes


def test_a_replay_tells_what_could_not_be_built_and_what_was_served(tmp_path: Path) -> None:
    """A share too small for one page is a row of its own, not a crash; table, notes, JSON and plots cover every policy."""
    chosen = Setting("Falcon", layout_for("tiiuae/Falcon-H1-0.5B-Instruct", "96MiB"), setting().trace, LoopOptions())
    quiet = Console(file=(tmp_path / "shown").open("w"), width=200)
    with Display(quiet) as display:
        runs, partial = replay(chosen, POLICIES, lambda: rig(chosen), verify=True, display=display)
    assert not partial and [run.policy for run in runs] == list(POLICIES)
    failed = {run.policy for run in runs if run.failed}
    assert "static-10" in failed and "arena" not in failed
    told = "\n".join(notes(chosen, runs, verify=True, partial=False))
    assert "static-10:" in told and "0 violations" in told and "memory-bound" in told
    (wide,) = tables(runs, "title", 500)
    assert wide.row_count == len(POLICIES)
    narrow = list(tables(runs, "title", 80))
    assert len(narrow) > 1 and all(part.row_count == len(POLICIES) for part in narrow)
    named = [str(column.header) for part in narrow for column in part.columns[1:]]
    assert named == [str(column.header) for column in wide.columns[1:]], "every column once"
    content = json.loads(write_json(tmp_path / "replay.json", as_json(chosen, runs, partial, {})).read_text())
    assert len(content["policies"]) == len(POLICIES)
    assert len(write_plots(chosen, runs, tmp_path)) == 2 * (4 - ("static-default" in failed) - ("padded" in failed))


def test_a_violation_is_counted_and_told() -> None:
    """A check that finds something makes a violation with its step; the run goes on."""
    chosen = setting(10)
    faulty = rig(chosen)
    found = ArenaRig(faulty.pool, faulty.meter, (lambda pool: ["broken"] if pool.report().live_bytes else [],))
    with Display(Console(quiet=True)) as display:
        runs, _ = replay(chosen, ("arena",), lambda: found, verify=True, display=display)
    summary = runs[0].summary
    assert summary is not None and summary.completed == 10
    assert summary.violations == len(runs[0].violations) > 0 and runs[0].violations[0].startswith("step 1: broken")
    assert any("VIOLATION" in line for line in notes(chosen, runs, verify=True, partial=False))


def test_the_stamp_equation_can_fail() -> None:
    """A check too few or too many is shown as ≠; an idle run is told to say nothing about moves."""
    assert StampEquation(5, 3, 2, 3).holds and "=" in str(StampEquation(5, 3, 2, 3))
    assert not StampEquation(4, 3, 2, 3).holds and "≠" in str(StampEquation(4, 3, 2, 3))
    assert "nothing about moves" in str(StampEquation(3, 3, 0, 3))


def test_policies_are_named_groups_and_lists() -> None:
    """Names, groups and lists are understood, each policy once; an unknown one is an error naming the known."""
    assert parse_policies("padded, arena,compare") == ("arena", "static-default", "padded")
    assert parse_policies("all") == POLICIES and len(POLICIES) == 12
    with pytest.raises(ConfigError, match="static-default"):
        parse_policies("arena,nonsense")


def test_samples_are_thinned_and_keep_their_span() -> None:
    """Memory samples stay bounded on long runs and still reach from the start to the end."""
    stats = Statistics()
    arena = DryArena(arena_layout((5_000, 700, 900), 20_000), sequences=8, context=200, chunk=CHUNK)
    trace = Trace("long", np.arange(1_500) * 1.0, np.full(1_500, 8), np.full(1_500, 3))
    loop = ServingLoop(arena, trace, OPTIONS, observers=[stats])
    loop.run()
    assert len(stats.times) == 4_500 and len(stats.samples) < 2_000
    assert stats.samples[0].step <= 4 and stats.samples[-1].step >= 4_490


def test_an_output_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file where the folder should be is named before any work is done."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        check_out(tmp_path / "file" / "out")
