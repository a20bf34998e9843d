"""kvarena: one byte arena for every cache of a hybrid language model. Command line, and the library's public names.

Nothing heavy is imported until a command or a name needs it, so that ``kvarena fit`` answers without torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.fit_command import fit, waste

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from core_pure.capacity import Pool
    from core_pure.door import Recorder
    from core_pure.event import Event
    from core_pure.geometry import Layer
    from core_pure.layout import Layout
    from models.dry import Watcher
    from models.loop import Ints, Observer, Runner, ServingLoop
    from models.replay import ArenaRig, Setting

# Public names, listed once: name -> module. A test pins them.
PUBLIC = {
    "ArenaError": "core_pure.errors",
    "ConfigError": "core_pure.errors",
    "LayoutError": "core_pure.errors",
    "BandSpec": "core_pure.layout",
    "Layout": "core_pure.layout",
    "build_layout": "core_pure.layout",
    "layout_for": "models.architectures",
    "load_config": "models.architectures",
    "Fit": "core_pure.fits",
    "Refusal": "core_pure.fits",
    "fits": "core_pure.fits",
    "Outcome": "core_pure.state",
    "initial": "core_pure.state",
    "Plan": "core_pure.plan",
    "Door": "core_pure.door",
    "DryArena": "models.dry",
    "StaticPools": "models.pools",
    "PaddedPages": "models.pools",
    "ServingLoop": "models.loop",
    "LoopOptions": "models.loop",
    "load_trace": "models.traces",
    "Arena": "shell_gpu.arena",
    "BuildOptions": "shell_gpu.arena",
    "Requirements": "shell_gpu.requirements",
    "ArenaCache": "shell_gpu.arena_cache",
    "ArenaCollector": "shell_gpu.metrics",
    "SglangAllocator": "shell_gpu.adapters",
}
__all__ = [*PUBLIC, "main"]  # noqa: PLE0604 - the names are strings of a mapping

USAGE_ERROR, VIOLATED, INTERRUPTED = 2, 1, 130
TABLE_WIDTH = 200  # characters, where the output is no terminal
DEVICES = ("cpu", "cuda", "none")
ABOUT = "One byte arena for every cache of a hybrid language model: plan it, replay traces, serve from it, look into it."
POLICY_HELP = "comma-separated: all, compare, static, arena, padded, static-default, static-10 … static-90"
BUFFER_REQUESTS, DRY_REQUESTS = 1_600, 2_000  # default load with and without a buffer (docs/DECISIONS.md 1)

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=ABOUT
)


app.command()(fit)
app.command()(waste)


def __getattr__(name: str) -> Any:
    """A public name, imported when first asked for; ``__version__`` is that of the installed package."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("kvarena")
        except PackageNotFoundError:
            raise AttributeError("kvarena runs from its source tree: no version is installed") from None
    if name not in PUBLIC:
        raise AttributeError(f"module 'kvarena' has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)


def console(*, to_stderr: bool = False) -> Console:
    """A console as wide as the terminal, and wide enough for the tables where there is none."""
    from rich.console import Console

    shown = Console(stderr=to_stderr)
    return shown if shown.is_terminal else Console(stderr=to_stderr, width=TABLE_WIDTH)


@app.command()
def replay(
    model: Annotated[str, typer.Option(help="bundled model id, or a config.json")] = "tiiuae/Falcon-H1-0.5B-Instruct",
    memory: Annotated[str, typer.Option(help="bytes of the arena, e.g. 2GiB")] = "2GiB",
    trace: Annotated[str, typer.Option(help="azure-code, mooncake, mix (generated), or a .csv or .jsonl file")] = "azure-code",
    requests: Annotated[int | None, typer.Option(help="requests from the start [1600; 2000 on device none; mix: all]")] = None,
    scale: Annotated[float, typer.Option(help="factor on every length, for small arenas")] = 1.0,
    page_slots: Annotated[int, typer.Option(help="tokens per page")] = 16,
    policy: Annotated[str, typer.Option(help=POLICY_HELP)] = "all",
    device: Annotated[str, typer.Option(help="cpu or cuda: a real buffer; none: the same door without one")] = "cpu",
    verify: Annotated[bool, typer.Option(help="every invariant after every step, and every moved byte")] = False,
    record: Annotated[Path | None, typer.Option(help="write every event of the arena's run to this file")] = None,
    out: Annotated[Path, typer.Option(help="folder for replay.json and plots")] = Path("out/replay"),
    seed: Annotated[int, typer.Option(help="seed of the generated mix")] = 0,
    tp: Annotated[int, typer.Option(help="tensor-parallel ranks")] = 1,
    pp: Annotated[int, typer.Option(help="pipeline stages")] = 1,
    dtype: Annotated[str | None, typer.Option(help="dtype of caches [the checkpoint's]")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="dtype of attention caches, e.g. fp8 [as dtype]")] = None,
    prefill_tokens: Annotated[int, typer.Option(help="token budget of one step")] = 8_192,
    running_max: Annotated[int, typer.Option(help="most requests at once")] = 1_024,
    speed_up: Annotated[float, typer.Option(help="factor on the pace of arrivals")] = 16.0,
    reserve: Annotated[float, typer.Option(help="share of unwritten output that admission charges")] = 0.0,
    step_ms: Annotated[str, typer.Option(help="a step's cost: base, per prefill token, per decode token")] = "10,0.05,0.02",
) -> None:
    """Serve a request trace from one arena, and from the splits people use today, at equal bytes."""
    from core_pure.errors import ConfigError
    from models.architectures import layout_for
    from models.loop import LoopOptions, parse_cost
    from models.replay import ARENA, Setting, parse_policies
    from models.replay_report import check_file, check_out
    from models.traces import SHIFTING_MIX, load_trace

    policies = parse_policies(policy)
    if device not in DEVICES:
        raise ConfigError(f"--device {device!r} is none of {', '.join(DEVICES)}")
    options = LoopOptions(prefill_tokens, running_max, speed_up, reserve, parse_cost(step_ms))
    if requests is None and trace != SHIFTING_MIX:
        requests = DRY_REQUESTS if device == "none" else BUFFER_REQUESTS
    layout = layout_for(model, memory, page_slots, tp=tp, pp=pp, dtype=dtype, kv_dtype=kv_dtype)
    setting = Setting(model, layout, load_trace(trace, requests=requests, scale=scale, seed=seed), options)
    check_out(out)
    if record is not None:
        check_file(record)
        if ARENA not in policies:
            raise ConfigError(f"--record {record}: only the arena records, and --policy {policy} leaves it out")
    raise typer.Exit(_replay(setting, policies, device, verify, record, out))


def _replay(
    setting: Setting, policies: Sequence[str], device: str, verify: bool, record: Path | None, out: Path
) -> int:
    """Run, show, write. Returns: the exit code."""
    from core_pure import recording
    from models import replay_report
    from models.progress import Display
    from models.replay import replay

    events: list[Event] | None = [] if record else None
    shown = console()
    with Display(console(to_stderr=True)) as display:
        runs, partial = replay(setting, policies, lambda: _rig(setting, device, verify, events), verify=verify, display=display)
    for part in replay_report.tables(runs, replay_report.title(setting), shown.width):
        shown.print(part)
    lines = list(replay_report.notes(setting, runs, verify=verify, partial=partial))
    for line in lines:
        shown.print(line, highlight=False)
    content = replay_report.as_json(setting, runs, partial, {"device": device, "verify": verify})
    text = replay_report.markdown(setting, runs, lines).encode()
    written = [replay_report.write_json(out / "replay.json", content), replay_report.write_bytes(out / "replay.md", text)]
    written += replay_report.write_plots(setting, runs, out)
    if record is not None and events is not None:
        replay_report.write_bytes(record, recording.write(setting.layout, events))
        shown.print(f"recorded {len(events):,} steps to {record}", highlight=False)
    shown.print(f"written to {out}: {', '.join(path.name for path in written)}", highlight=False)
    if partial:
        return INTERRUPTED
    return VIOLATED if any(run.violations for run in runs) or not replay_report.equation_holds(runs) else 0


def _rig(setting: Setting, device: str, verify: bool, events: list[Event] | None) -> ArenaRig:
    """The arena of one replay, with a buffer or without, and what watches it."""
    from models.dry import DryArena
    from models.replay import ArenaRig
    from models.replay_checks import PlanCheck, leases_agree
    from models.stamps import Stamper
    from models.statistics import Meter

    layout, chunk, most = setting.layout, setting.options.prefill_tokens, setting.options.running_max
    meter = Meter(layout)
    recorder = None if events is None else events.append
    plan_check = PlanCheck(layout) if verify else None
    checks = (lambda pool: pool.verify(), leases_agree) if verify else ()
    watchers: list[Watcher] = [meter, *([plan_check] if plan_check else [])]
    if device == "none":
        dry = DryArena(layout, sequences=most, context=setting.context, chunk=chunk, recorder=recorder)
        dry.watchers = watchers
        return ArenaRig(dry, meter, checks, None, plan_check)
    arena = _watched_arena(setting, device, recorder)
    # Stamps read the buffer as numpy, so they need it in this machine's own memory.
    stamper = Stamper(layout, arena.buffer.numpy()) if verify and device == "cpu" and arena.buffer is not None else None
    arena.watchers = [*watchers, *([stamper] if stamper else [])]
    return ArenaRig(arena, meter, checks, stamper, plan_check)


def _watched_arena(setting: Setting, device: str, recorder: Recorder | None) -> Any:
    """The real arena, its plans seen by watchers."""
    import torch

    from models.dry import Watched
    from shell_gpu.arena import Arena, BuildOptions

    class WatchedArena(Watched, Arena):
        """The real arena under watch."""

    if device == "cpu":
        # Frames are small: on a shared machine the barrier of a second thread costs many times what it gains.
        torch.set_num_threads(1)
    options = setting.options
    return WatchedArena.build(
        setting.layout,
        device=device,
        sequences=options.running_max,
        context=setting.context,
        chunk=options.prefill_tokens,
        options=BuildOptions(step_tokens=options.prefill_tokens),
        recorder=recorder,
    )


@app.command("serve-demo")
def serve_demo(
    model: Annotated[Path | None, typer.Option(help="checkpoint folder, or config.json: random weights [tiny hybrid]")] = None,
    requests: Annotated[int, typer.Option(help="requests, all arriving at once")] = 32,
    memory: Annotated[str | None, typer.Option(help="bytes of the arena, e.g. 64MiB [room for all requests at once]")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    page_slots: Annotated[int, typer.Option(help="tokens per page")] = 16,
    seed: Annotated[int, typer.Option(help="seed of prompts and random weights")] = 0,
) -> None:
    """Serve a transformers model from the arena, many requests at once, and compare every token with one-at-a-time."""
    from core_pure.errors import ConfigError
    from models.config_fields import parse_bytes
    from models.progress import Display

    try:
        from shell_gpu.serve_demo import DEMO_MODEL, Demo, Parts, run
    except ImportError as error:
        raise ConfigError(f"serve-demo needs the extra 'transformers' ({error}): pip install 'kvarena[transformers]'") from None
    memory_bytes = None if memory is None else parse_bytes(memory)
    demo = Demo(model or DEMO_MODEL, requests, memory_bytes, device, page_slots, seed=seed)
    with Display(console(to_stderr=True)) as display:
        parts = Parts(_layers_of_fields, _demo_loop, _demo_static, display.watch)
        code = run(demo, parts, console())
    raise typer.Exit(code)


def _layers_of_fields(fields: Mapping[str, Any], **choices: Any) -> tuple[Layer, ...]:
    """What a loaded model caches, from its configuration's fields."""
    from models.architectures import layers_of, load_config

    return layers_of(load_config(fields), **choices)


def _demo_loop(
    pool: Pool, inputs: Ints, outputs: Ints, running: int, tokens: int, runner: Runner, observers: Sequence[Observer]
) -> ServingLoop:
    """The one serving loop over requests that all arrive at once."""
    import numpy as np

    from models.loop import LoopOptions, ServingLoop
    from models.traces import Trace

    trace = Trace("demo", np.zeros(len(inputs)), inputs, outputs)
    return ServingLoop(pool, trace, LoopOptions(tokens, running), runner=runner, observers=observers)


def _demo_static(layout: Layout, chunk: int) -> Pool:
    """The split that engines use today, at the same bytes."""
    from models.pools import SGLANG_DEFAULT_SHARE, StaticPools

    return StaticPools.split(layout, SGLANG_DEFAULT_SHARE, chunk)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="a recording made by replay --record")],
    at: Annotated[int | None, typer.Option(help="after how many steps [the last]")] = None,
) -> None:
    """Say who holds which bytes at one step of a recording, adding up to the total."""
    from models.inspection import look, table

    console().print(table(look(file, at)))


@app.command()
def campaign(
    minutes: Annotated[float, typer.Option(help="how long, fractions allowed; what was done before --resume counts")] = 5.0,
    cores: Annotated[int, typer.Option(help="worker processes")] = 2,
    seed: Annotated[int, typer.Option(help="seed of every walk")] = 0,
    resume: Annotated[bool, typer.Option(help="go on from --out/state.json")] = False,
    inject: Annotated[str | None, typer.Option(help="plant mutants: names with commas, or ten: ten by the seed")] = None,
    out: Annotated[Path, typer.Option(help="folder for the state and for what was found")] = Path("out/campaign"),
) -> None:
    """Search for a violated claim with random walks, machines and small worlds; shrink what is found to a recording."""
    import signal

    from invariants.campaign import Options, campaign_main

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: workers end, the state is saved
    raise typer.Exit(campaign_main(Options(minutes, cores, seed, resume, inject, out)))


@app.command()
def evidence(
    cores: Annotated[int, typer.Option(help="processes")] = 2,
    minutes: Annotated[float, typer.Option(help="length of the campaign at the end")] = 1.0,
) -> None:
    """Prove, exhaust, sample and plant bugs; end with a table: claim, method, scope, verdict."""
    from invariants.evidence import evidence_main

    raise typer.Exit(evidence_main(cores, minutes))


def main() -> None:
    """Run the command line. Bad input: one line on stderr and exit code 2; a wrong option: usage, too, and exit code 2."""
    from core_pure.errors import ArenaError, PromiseBroken

    try:
        app()
    except PromiseBroken:
        raise  # a defect of this package: a crash with its traceback, never a tidy message
    except ArenaError as error:
        print("kvarena: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(USAGE_ERROR)


if __name__ == "__main__":
    main()
