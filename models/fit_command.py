"""``kvarena fit``: what fits, for people (tables), for programs (JSON) and for the eye (plots).

Only typing and typer are imported here; the planner and rich come when the command runs, torch never.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from models.planner import FitPlan

TRACE_REQUESTS = 1_000  # requests of a trace that are served for planning, unless told otherwise


def fit(
    configs: Annotated[list[str] | None, typer.Argument(help="bundled model ids, or paths of a config.json")] = None,
    memory: Annotated[str, typer.Option(help="bytes for caches on one rank, e.g. 80GiB")] = "80GiB",
    page_slots: Annotated[int, typer.Option(help="tokens per page")] = 16,
    tp: Annotated[int, typer.Option(help="tensor-parallel ranks")] = 1,
    pp: Annotated[int, typer.Option(help="pipeline stages")] = 1,
    dtype: Annotated[str | None, typer.Option(help="dtype of caches [the checkpoint's]")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="dtype of attention caches, e.g. fp8 [as dtype]")] = None,
    state_dtype: Annotated[str | None, typer.Option(help="dtype of temporal states [the checkpoint's]")] = None,
    prompt: Annotated[int, typer.Option(help="prompt tokens of a request")] = 2_048,
    output: Annotated[int, typer.Option(help="generated tokens of a request")] = 512,
    lookahead: Annotated[int, typer.Option(help="speculative slots beyond a request's last token")] = 0,
    max_batch: Annotated[int | None, typer.Option(help="requests at once that are wished for")] = None,
    chunk: Annotated[int, typer.Option(help="prefill token budget of one step")] = 8_192,
    tracking: Annotated[int, typer.Option(help="extra states per request for checkpoints")] = 0,
    draft: Annotated[str | None, typer.Option(help="draft model: an id or a config.json")] = None,
    draft_slots: Annotated[int, typer.Option(help="extra states per request for drafts")] = 0,
    mtp_layers: Annotated[int, typer.Option(help="multi-token-prediction layers that are run")] = 0,
    cross_tokens: Annotated[int | None, typer.Option(help="encoder tokens of a request [the largest image]")] = None,
    trace: Annotated[str | None, typer.Option(help="serve this trace too: azure-code, mooncake, mix, or a file")] = None,
    requests: Annotated[int | None, typer.Option(help="requests of the trace [1000]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object instead of tables")] = False,
    plot: Annotated[Path | None, typer.Option(help="write waste and concurrency against length to this .png or .svg")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="list the bundled models")] = False,
) -> None:
    """Say what fits: bytes, longest request, requests at once, what binds, and what other systems would waste."""
    from core_pure.errors import ConfigError
    from models.architectures import bundled_ids

    if show_list:
        return typer.echo("\n".join(bundled_ids()))
    if not configs:
        raise ConfigError("no model given; expected a bundled id (kvarena fit --list) or a config.json")
    if plot is not None:
        _check_plot(plot)
    choices: dict[str, Any] = {"tp": tp, "dtype": dtype, "kv_dtype": kv_dtype, "state_dtype": state_dtype, "draft": draft,
               "mtp_layers": mtp_layers, "cross_tokens": cross_tokens}  # fmt: skip
    from models.planner import Mix, plan_fit

    serve = _server(trace, requests, chunk, max_batch)
    mix = Mix(prompt, output, lookahead)
    plans = [
        plan_fit(one, memory, mix=mix, page_slots=page_slots, pp=pp, max_batch=max_batch, chunk=chunk,
                 tracking=tracking, draft_slots=draft_slots, serve=serve, **choices)
        for one in configs
    ]  # fmt: skip
    if as_json:
        typer.echo(as_text(plans))
    else:
        show(plans)
    if plot is not None:
        from models.fit_plot import draw

        draw(configs, memory, plot, page_slots=page_slots, pp=pp, chunk=chunk, tracking=tracking,
             draft_slots=draft_slots, **choices)  # fmt: skip
        typer.echo(f"written: {plot}", err=True)


def _server(trace: str | None, requests: int | None, chunk: int, max_batch: int | None) -> Any:
    """What serves the trace from a pool, None without a trace. Raises: ConfigError."""
    from core_pure.errors import ConfigError
    from models.planner_trace import server
    from models.traces import load_trace

    if trace is None:
        if requests is not None:
            raise ConfigError(f"--requests {requests}: of which trace? give --trace too")
        return None
    count = TRACE_REQUESTS if requests is None else requests
    return server(load_trace(trace, requests=count), chunk=chunk, max_batch=max_batch)


def _check_plot(plot: Path) -> None:
    """Refuse a plot that could not be written, before anything is planned."""
    from core_pure.errors import ConfigError
    from models.replay_report import check_file

    if plot.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--plot {plot}: suffix {plot.suffix!r}; expected .png, .svg or .pdf")
    if not plot.parent.is_dir():
        raise ConfigError(f"--plot {plot}: folder {plot.parent} does not exist")
    check_file(plot)


def as_text(plans: list[FitPlan]) -> str:
    """The plans as one JSON object, field names as in ``planner.FitPlan``."""
    import json

    from attrs import asdict

    return json.dumps({"plans": [asdict(plan) for plan in plans]}, indent=2)


def show(plans: list[FitPlan]) -> None:
    """Tables on the terminal: each model in full, and a comparison if there are several."""
    from rich.console import Console

    from models.fit_tables import compared, details

    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    for plan in plans:
        for part in details(plan):
            console.print(part, highlight=False)
    if len(plans) > 1:
        console.print(compared(plans), highlight=False)


TABLE_WIDTH = 160  # columns where there is no terminal


def waste(
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("docs/WASTE.md"),
) -> None:
    """Write the table of all bundled models and policies."""
    from core_pure.errors import ConfigError
    from models.replay_report import check_file, write_bytes
    from models.waste_report import report

    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: folder {out.parent} does not exist")
    check_file(out)
    write_bytes(out, report().encode())
    typer.echo(f"written: {out}")
