"""What unified memory is worth: one serving loop, a hybrid of 7B shapes, the arena against static splits at equal bytes.

    python -m benchmarks.gpu_serve --sweep            dry: every share under a cost model, names best and worst
    python -m benchmarks.gpu_serve --run              on a GPU: arena, best, default and worst, both traces
    python -m benchmarks.gpu_serve --report           table and plots in docs/ from the results

Traces are shortened to fit a measurement of minutes: every n-th request, prompts of the mix a fourth as long; arrivals are
sped up so that the queue is never empty for long. Everything that shapes a run stands in its result.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import asdict, frozen

from benchmarks.gpu_common import _provenance
from benchmarks.serve_runner import ServeRunner
from benchmarks.static_store import StaticStore
from core_pure.capacity import Pool
from core_pure.geometry import group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from models.dry import DryArena, Watched
from models.loop import LoopOptions, ServingLoop, StepCost
from models.pools import SGLANG_DEFAULT_SHARE, StaticPools
from models.statistics import Meter, Statistics, Summary, summarise
from models.traces import MIX_PROMPT_TOKENS, Trace, load_trace
from shell_gpu.arena import Arena, BuildOptions
from shell_gpu.decode.graph import arena_guard, memory_of, token_buffer
from shell_gpu.decode.memory import Lanes
from shell_gpu.decode.model import HybridModel, Weights, kernels_for
from shell_gpu.decode.shape import SEVEN_B, TOY, HybridShape
from shell_gpu.tables import StepSizes

RESULTS = Path(__file__).parent / "results" / "gpu_serve.json"
DOCS = Path(__file__).parent.parent / "docs"
GIB, MIB = 2**30, 2**20
SHARES = tuple(range(10, 100, 10))
DEFAULT_SHARE = round(float(100 * SGLANG_DEFAULT_SHARE), 1)
ARENA = "arena"


class GpuArena(Watched, Arena):
    """An arena on the device whose plans are counted."""


@frozen
class Experiment:
    """One trace under one memory. speed_up: of arrivals. every: keep each n-th request. shrink: of the mix's prompts."""

    trace: str
    every: int
    shrink: int
    requests: int
    speed_up: float
    memory: int
    page_slots: int = 64
    prefill_tokens: int = 4096
    running_max: int = 256


EXPERIMENTS = (
    Experiment("mix", every=8, shrink=4, requests=550, speed_up=256.0, memory=16 * GIB),
    Experiment("azure-code", every=1, shrink=1, requests=300, speed_up=1024.0, memory=4 * GIB),
)
TOY_EXPERIMENT = Experiment(
    "mix", every=220, shrink=1024, requests=20, speed_up=4000.0, memory=160 << 10, page_slots=16, prefill_tokens=64, running_max=8
)
COST = StepCost(base=0.008, prefill=0.000_03, decode=0.000_03)
"""Seconds of a step on an H200, roughly: only for the dry sweep that picks which static splits to measure."""
SIZES = (16, 64, 128, 192, 256)


def trace_of(experiment: Experiment) -> Trace:
    """The trace, thinned and shortened; long chats of a toy too, so that everything fits."""
    whole = load_trace(experiment.trace)
    inputs = np.where(whole.inputs >= MIX_PROMPT_TOKENS[0] if experiment.trace == "mix" else False,
                      -(-whole.inputs // experiment.shrink), whole.inputs)  # fmt: skip
    outputs = whole.outputs
    if experiment is TOY_EXPERIMENT:
        inputs, outputs = np.minimum(inputs, 48), np.minimum(outputs, 12)
    kept = slice(0, None, experiment.every)
    name = f"{whole.name}, every {experiment.every}, prompts / {experiment.shrink}"
    return Trace(name, whole.arrivals[kept], inputs[kept], outputs[kept]).head(experiment.requests)


def layout_for(experiment: Experiment, shape: HybridShape) -> Layout:
    """The arena's bands at the experiment's bytes."""
    return build_layout([BandSpec.of(band) for band in group_bands(shape.layers(), experiment.page_slots)], experiment.memory)


def context_of(trace: Trace) -> int:
    """The longest request of a trace, in tokens."""
    return int((trace.inputs + trace.outputs).max())


def options_of(experiment: Experiment) -> LoopOptions:
    """The loop's limits."""
    return LoopOptions(
        prefill_tokens=experiment.prefill_tokens, running_max=experiment.running_max, speed_up=experiment.speed_up, cost=COST
    )


def serve(
    policy: str, pool: Pool, trace: Trace, options: LoopOptions, meter: Meter | None, runner: ServeRunner | None
) -> tuple[Summary, Statistics]:
    """One policy over one trace, timed by the runner or by the cost model."""
    stats = Statistics()
    loop = ServingLoop(pool, trace, options, runner=runner, observers=[stats, *([meter] if meter else [])])
    if runner is not None:
        runner.requests = loop.requests
        runner.restart_clock()
    begun = time.perf_counter()
    loop.run()
    if runner is not None:
        loop.now += runner.finish()
    wall = time.perf_counter() - begun
    found = pool.verify()
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    summary = summarise(
        policy, loop, stats, meter, wall=wall, peak_process_bytes=peak, partial=False, violations=len(found)
    )
    return summary, stats


# --- dry sweep ---------------------------------------------------------------------------------------------------------


def sweep(experiment: Experiment, shape: HybridShape) -> list[Summary]:
    """Arena and every share under the cost model, without a buffer."""
    trace, layout, options = trace_of(experiment), layout_for(experiment, shape), options_of(experiment)
    rows = []
    meter = Meter(layout)
    dry = DryArena(layout, sequences=2 * options.running_max, context=context_of(trace), chunk=options.prefill_tokens)
    dry.watchers = (meter,)
    rows.append(serve(ARENA, dry, trace, options, meter, None)[0])
    for share in (*SHARES, DEFAULT_SHARE):
        pool = StaticPools.split(layout, Fraction(share) / 100, options.prefill_tokens)
        rows.append(serve(f"static-{share:g}", pool, trace, options, None, None)[0])
    return rows


def chosen_shares(rows: list[Summary]) -> tuple[float, float]:
    """The best and the worst static share of a sweep: served most first, then fastest."""
    static = [row for row in rows if row.policy != ARENA and row.policy != f"static-{DEFAULT_SHARE:g}"]
    ranked = sorted(static, key=lambda row: (row.completed, row.tokens_per_second))
    return tuple(float(row.policy.removeprefix("static-")) for row in (ranked[-1], ranked[0]))  # type: ignore[return-value]


# --- with bytes --------------------------------------------------------------------------------------------------------


def arena_rig(
    experiment: Experiment, model: HybridModel, trace: Trace, sizes: tuple[int, ...]
) -> tuple[Watched, Meter, ServeRunner]:
    """The arena on the model's device, with its captured decode."""
    layout = layout_for(experiment, model.shape)
    arena = GpuArena.build(
        layout, device=model.device, sequences=2 * experiment.running_max, context=context_of(trace),
        chunk=experiment.prefill_tokens,
        options=BuildOptions(batch=experiment.running_max, step_tokens=experiment.prefill_tokens),
    )  # fmt: skip
    assert isinstance(arena, GpuArena)
    meter = Meter(layout)
    arena.watchers = (meter,)
    lanes = Lanes(max(sizes), arena.sizes.sequences, model.device)
    memory = memory_of(arena, lanes, token_buffer(arena.sizes.sequences, model.device))
    limit = arena.sizes.length_limit
    return arena, meter, ServeRunner(model, memory, lanes, sizes=sizes, context=limit, guard=arena_guard(arena))


def static_rig(
    experiment: Experiment, model: HybridModel, trace: Trace, sizes: tuple[int, ...], share: float
) -> tuple[StaticStore, ServeRunner]:
    """A static split with buffers of its own, and the same decode over it."""
    layout = layout_for(experiment, model.shape)
    pages = StaticPools.split(layout, Fraction(share) / 100, experiment.prefill_tokens).pages_max
    context, device = context_of(trace), model.device
    step = StepSizes(2 * experiment.running_max, experiment.running_max, experiment.prefill_tokens, context)
    store = StaticStore(
        layout.bands, pages, layout.total_bytes, experiment.prefill_tokens, sizes=step, device=device
    )
    lanes = Lanes(max(sizes), 4 * experiment.running_max, device)
    memory = store.memory(lanes, token_buffer(4 * experiment.running_max, device))
    return store, ServeRunner(model, memory, lanes, sizes=sizes, context=context, guard=lambda: None)


def measure(
    experiment: Experiment, model: HybridModel, policy: str, share: float | None, sizes: tuple[int, ...]
) -> dict[str, Any]:
    """One policy with bytes: its summary, what the host spent, and series for plots."""
    trace, options = trace_of(experiment), options_of(experiment)
    meter: Meter | None = None
    pool: Pool
    if share is None:
        pool, meter, runner = arena_rig(experiment, model, trace, sizes)
    else:
        pool, runner = static_rig(experiment, model, trace, sizes, share)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    summary, stats = serve(policy, pool, trace, options, meter, runner)
    finite = runner.logits is not None and bool(runner.logits.isfinite().all())
    if not finite or summary.violations:
        raise AssertionError(f"{policy}: logits finite: {finite}, violations: {summary.violations}; not a measurement")
    pieces = np.array_split(np.arange(len(stats.times)), min(len(stats.times), 300))
    return {
        "experiment": asdict(experiment),
        "share": share,
        "summary": asdict(summary),
        "runner_host_seconds": runner.host_seconds,
        "times": [stats.times[piece[-1]] for piece in pieces],
        "running": [float(np.mean([stats.running[i] for i in piece])) for piece in pieces],
        "bands": _band_series(stats) if share is None else None,
    }


def _band_series(stats: Statistics) -> dict[str, list[float]]:
    """Live bytes per band over time, thinned."""
    samples = stats.samples[:: max(1, len(stats.samples) // 300)]
    series: dict[str, list[float]] = {"now": [sample.now for sample in samples]}
    for at, band in enumerate(samples[0].report.bands):
        series[band.band] = [sample.report.bands[at].live_bytes / GIB for sample in samples]
    return series


def run(
    experiments: tuple[Experiment, ...], shape: HybridShape, device: torch.device, sizes: tuple[int, ...], target: Path,
    chosen: dict[str, tuple[float, float]], seconds: float = 540.0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Arena, best, default and worst static split of every experiment; results are written after each policy.

    A policy that would begin after ``seconds`` is left out, and the result says so.
    """
    begun = time.perf_counter()
    model = HybridModel(shape, Weights.random(shape, device), kernels_for(device))
    results: list[dict[str, Any]] = []
    for experiment in experiments:
        best, worst = chosen[experiment.trace]
        policies = [(ARENA, None), ("best static", best), ("default static", DEFAULT_SHARE), ("worst static", worst)]
        for policy, share in policies:
            if time.perf_counter() - begun > seconds:
                results.append({"experiment": asdict(experiment), "policy": policy, "share": share, "left_out": "out of time"})
                continue
            row = measure(experiment, model, policy, share, sizes)
            results.append(row | {"policy": policy} | _provenance())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(results, indent=1))
            told = {k: row["summary"][k] for k in ("completed", "tokens_per_second", "concurrency_mean", "retractions", "wall")}
            print(experiment.trace, policy, share, json.dumps(told), flush=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return results


# --- report ------------------------------------------------------------------------------------------------------------


def report(results: list[dict[str, Any]], docs: Path) -> str:
    """Write docs/gpu-serve.md and its plots from measured results. Returns the page."""
    lines = ["# Serving from one arena, and from static splits", "", "Written by `python -m benchmarks.gpu_serve --report`.", ""]
    for name in dict.fromkeys(row["experiment"]["trace"] for row in results):
        rows = [row for row in results if row["experiment"]["trace"] == name]
        lines += [*_section(name, rows), ""]
        measured = [row for row in rows if "summary" in row]
        if measured:
            _plots(name, measured, docs)
    page = "\n".join(lines)
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "gpu-serve.md").write_text(page)
    return page


def _section(name: str, rows: list[dict[str, Any]]) -> list[str]:
    what = rows[0]["experiment"]
    done = [row for row in rows if "summary" in row]
    arena = next((row["summary"]["tokens_per_second"] for row in done if row["share"] is None), 0.0)
    ran = done[0] if done else {}
    lines = [
        f"## {name}",
        "",
        f"{what['requests']} requests at most, of the trace one in {what['every']}, prompts of the mix / {what['shrink']}, "
        f"arrivals x {what['speed_up']:g}; {what['memory'] / GIB:g} GiB for all caches, pages of {what['page_slots']} tokens, "
        f"at most {what['running_max']} running and {what['prefill_tokens']} tokens a step; {ran.get('gpu', '')}, "
        f"torch {ran.get('torch', '')}, triton {ran.get('triton', '')}, commit {ran.get('commit', '')}.",
        "",
        "| policy | state share | served | tokens/s | arena is | mean running | peak | retractions | recomputed | memory-bound "
        "| live | wait p50 | p99 | moved B/token | GPU peak GiB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "summary" not in row:
            lines.append(f"| {row['policy']} | {row['share']} | not run: {row['left_out']} |" + " |" * 12)
            continue
        s = row["summary"]
        share = "one arena" if row["share"] is None else f"{row['share']:g} %"
        times = f"{arena / s['tokens_per_second']:.2f} x" if s["tokens_per_second"] else "-"
        lines.append(
            f"| {row['policy']} | {share} | {s['completed']}/{s['requests']} | {s['tokens_per_second']:.0f} | {times} "
            f"| {s['concurrency_mean']:.1f} | {s['concurrency_peak']} | {s['retractions']} | {s['recomputed_share']:.1%} "
            f"| {s['memory_bound_share']:.0%} | {s['live_share']:.1%} | {s['wait_p50']:.1f} s | {s['wait_p99']:.1f} s "
            f"| {s['moved_bytes_per_token']:,.0f} | {s['peak_process_bytes'] / GIB:.1f} |"
        )
    plots = [f"![{what}](gpu-serve-{name}-{file}.png)" for what, file in (("running requests", "running"), ("live bytes", "bands"))]
    return [*lines, "", plots[0], "", plots[1]] if done else lines


def _plots(name: str, rows: list[dict[str, Any]], docs: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    docs.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(9.0, 4.0), layout="constrained")
    for row in rows:
        label = row["policy"] if row["share"] is None else f"{row['policy']} ({row['share']:g} % state)"
        axes.plot(row["times"], row["running"], label=label, linewidth=2.2 if row["share"] is None else 1.0)
    axes.set_xlabel("serving time, s")
    axes.set_ylabel("running requests")
    axes.set_title(f"{name}: {rows[0]['experiment']['memory'] / GIB:g} GiB of caches", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(docs / f"gpu-serve-{name}-running.png", dpi=120)
    pyplot.close(figure)
    arena = next((row for row in rows if row["bands"]), None)
    if arena is None:
        return
    figure, axes = pyplot.subplots(figsize=(9.0, 4.0), layout="constrained")
    bands = [band for band in arena["bands"] if band != "now"]
    axes.stackplot(arena["bands"]["now"], *[arena["bands"][band] for band in bands], labels=bands)
    axes.axhline(arena["experiment"]["memory"] / GIB, color="#777777", linewidth=0.8)
    axes.set_xlabel("serving time, s")
    axes.set_ylabel("live GiB in the arena")
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(docs / f"gpu-serve-{name}-bands.png", dpi=120)
    pyplot.close(figure)


def main() -> None:
    """See the module's first lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("sweep", "run", "report", "toy"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--trace", default="", help="only this trace")
    parser.add_argument("--results", type=Path, default=Path(os.environ.get("KVARENA_RESULTS", RESULTS)))
    parser.add_argument("--chosen", default="", help="trace=best,worst;… shares in per cent; default: sweep first")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no policy later than this")
    asked = parser.parse_args()
    shape, experiments, sizes = (TOY, (TOY_EXPERIMENT,), (4, 8)) if asked.toy else (SEVEN_B, EXPERIMENTS, SIZES)
    experiments = tuple(each for each in experiments if not asked.trace or each.trace == asked.trace)
    chosen: dict[str, tuple[float, float]] = {}
    for part in filter(None, asked.chosen.split(";")):
        trace, shares = part.split("=")
        best, worst = map(float, shares.split(","))
        chosen[trace] = (best, worst)
    nothing = not (asked.sweep or asked.run or asked.report)
    if (asked.run or nothing) and not (asked.toy or torch.cuda.is_available()):
        raise SystemExit("no CUDA GPU here: --toy runs the same code at toy size on the CPU, --sweep needs none")
    for experiment in experiments:
        if asked.sweep or ((asked.run or nothing) and experiment.trace not in chosen):
            rows = sweep(experiment, shape)
            chosen[experiment.trace] = chosen_shares(rows)
            for row in rows:
                print(f"{experiment.trace} {row.policy:>12} {row.completed}/{row.requests} {row.tokens_per_second:8.0f} tokens/s "
                      f"{row.time:7.1f} s, {row.concurrency_mean:6.1f} running (peak {row.concurrency_peak}), "
                      f"{row.retractions} retractions, memory-bound {row.memory_bound_share:.0%}")  # fmt: skip
            print(experiment.trace, "best and worst static share:", *chosen[experiment.trace], flush=True)
    if asked.run or nothing:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        run(experiments, shape, device, sizes, asked.results, chosen, asked.seconds)
    if asked.report or nothing:
        print(report(json.loads(asked.results.read_text()), DOCS))


if __name__ == "__main__":
    main()
