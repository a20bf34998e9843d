"""A replay for people and for programs: the table, replay.json and the plots. Files appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict
from rich.table import Table

from core_pure.errors import ConfigError
from models.plots import plot_concurrency, plot_memory
from models.replay import ARENA, Run, Setting

MIB, GIB = 2**20, 2**30
COLUMNS = (
    "policy", "done", "tokens", "time s", "tok/s", "mean run", "peak", "retract", "refused", "mem-bound", "live",
    "hole", "gap", "moved B/tok", "wait p50", "p99 s", "wall s", "peak MiB",
)  # fmt: skip


def table(runs: Sequence[Run], title: str) -> Table:
    """One row per policy. Shares are of the whole arena; holes of a static pool are its own free pages."""
    shown = Table(title=title, title_justify="left", header_style="bold")
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for run in runs:
        row = run.summary
        if row is None:
            shown.add_row(run.policy, "cannot be built")
            continue
        refused = ", ".join(f"{count} {reason}" for reason, count in row.refusals.items()) or "0"
        shown.add_row(
            row.policy + (" (partial)" if row.partial else ""),
            f"{row.completed}/{row.requests}",
            f"{row.tokens:,}",
            f"{row.time:.1f}",
            f"{row.tokens_per_second:.0f}",
            f"{row.concurrency_mean:.1f}",
            str(row.concurrency_peak),
            str(row.retractions),
            refused,
            f"{row.memory_bound_share:.0%}",
            f"{row.live_share:.1%}",
            f"{row.hole_share:.1%}",
            f"{row.gap_share:.1%}",
            f"{row.moved_bytes_per_token:,.0f}",
            f"{row.wait_p50:.1f}",
            f"{row.wait_p99:.1f}",
            f"{row.wall:.1f}",
            f"{row.peak_process_bytes / MIB:.0f}",
            style="bold" if row.policy == ARENA else None,
        )
    return shown


def as_json(setting: Setting, runs: Sequence[Run], partial: bool, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Everything needed to read the result, and to make it again."""
    layout = setting.layout
    return {
        "partial": partial,
        "model": setting.model,
        "total_bytes": layout.total_bytes,
        "sink_bytes": layout.sink_bytes,
        "bands": [
            {
                "name": band.name,
                "frame_bytes": band.frame_bytes,
                "slots_per_page": band.slots_per_page,
                "retention": band.retention,
                "window": band.window,
            }
            for band in layout.bands
        ],
        "trace": {"name": setting.trace.name, "requests": len(setting.trace)},
        "options": asdict(setting.options),
        "policies": [
            {"policy": run.policy, "failed": run.failed, "max_request_tokens": run.max_request_tokens}
            | (asdict(run.summary) if run.summary else {})
            | {"checks_made": run.checks_made, "violations_told": run.violations[:20]}
            for run in runs
        ],
        **extra,
    }


def check_out(out: Path) -> None:
    """Refuse an output folder that cannot be written before any work is done. Raises: ConfigError."""
    there = out
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(f"--out {out}: {there} is no folder that can be written")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write whole or not at all: a temporary file beside it, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)


def write_plots(setting: Setting, runs: Sequence[Run], out: Path) -> list[Path]:
    """The memory map of the arena and of the first other policy, and everybody's concurrency."""
    out.mkdir(parents=True, exist_ok=True)
    served = {run.policy: run for run in runs if run.stats.samples}
    about = f"{setting.model}, {setting.layout.total_bytes / GIB:.3g} GiB, {setting.trace.name}"
    written: list[Path] = []
    for policy, run in served.items():
        written += plot_memory(run.stats.samples, f"{policy}: {about}", out / f"memory-{policy}")
    if served:
        stats = {policy: run.stats for policy, run in served.items()}
        written += plot_concurrency(stats, f"running requests: {about}", out / "concurrency")
    return written
