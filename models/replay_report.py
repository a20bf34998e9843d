"""A replay for people and for programs: the table, replay.json and the plots. Files appear whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from attrs import asdict
from rich.table import Table

from core_pure.errors import ConfigError
from models.plots import plot_concurrency, plot_memory
from models.replay import ARENA, GROUPS, PADDED, STATIC, STATIC_DEFAULT, VIOLATIONS_TOLD, Run, Setting
from models.statistics import Summary

MIB, GIB = 2**20, 2**30
CELL_FRAME = 3  # characters of a table cell beside its text
MAPPED = GROUPS["compare"]  # policies that get a memory map
COLUMNS = (
    "policy", "done", "tokens", "time s", "tok/s", "mean run", "peak", "retract", "refused", "mem-bound", "live",
    "hole", "gap", "moved B/tok", "wait p50", "p99 s", "wall s", "peak MiB",
)  # fmt: skip


def tables(runs: Sequence[Run], title: str, width: int) -> Iterator[Table]:
    """One row per policy; in as many tables as fit into ``width`` characters each, every one with the policy first.

    Shares are of the whole arena; holes of a static pool are its own free pages.
    """
    rows = [_cells(run) for run in runs]
    widths = [max(map(len, column)) + CELL_FRAME for column in zip(COLUMNS, *rows, strict=True)]
    groups: list[list[int]] = [[]]
    for at in range(1, len(COLUMNS)):
        if groups[-1] and 1 + widths[0] + sum(widths[i] for i in groups[-1]) + widths[at] > width:
            groups.append([])
        groups[-1].append(at)
    for number, group in enumerate(groups):
        shown = Table(title=None if number else title, title_justify="left", header_style="bold")
        for at in (0, *group):
            shown.add_column(COLUMNS[at], justify="right" if at else "left", no_wrap=True)
        for run, row in zip(runs, rows, strict=True):
            shown.add_row(*(row[at] for at in (0, *group)), style="bold" if run.policy == ARENA else None)
        yield shown


def markdown(setting: Setting, runs: Sequence[Run], lines: Sequence[str]) -> str:
    """The table and the notes under it, as Markdown."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    rows += [f"| {' | '.join(_cells(run))} |" for run in runs]
    return "\n".join([title(setting), "", *rows, "", *(f"* {line}" for line in lines), ""])


def _cells(run: Run) -> tuple[str, ...]:
    """One policy's row."""
    row = run.summary
    if row is None:
        return (run.policy, "cannot be built", *[""] * (len(COLUMNS) - 2))
    refused = ", ".join(f"{count} {reason}" for reason, count in row.refusals.items()) or "0"
    return (
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
    )


def sized(size: int) -> str:
    """Bytes for people: GiB from one GiB on, else MiB."""
    return f"{size / GIB:.4g} GiB" if size >= GIB else f"{size / MIB:.4g} MiB"


def title(setting: Setting) -> str:
    """What was served, from how many bytes, at which stated cost."""
    cost = setting.options.cost
    return (
        f"{setting.model}: {sized(setting.layout.total_bytes)}, {len(setting.trace)} requests of {setting.trace.name}, "
        f"arrivals x {setting.options.speed_up:g}; a step takes {cost.base * 1e3:g} ms + {cost.prefill * 1e3:g} ms per prefill "
        f"token + {cost.decode * 1e3:g} ms per decode token, at most {setting.options.prefill_tokens} tokens"
    )


def notes(setting: Setting, runs: Sequence[Run], *, verify: bool, partial: bool) -> Iterator[str]:
    """Lines under the table: the load's pressure, the checks' equation, what could not be built, what is partial."""
    for run in runs:
        if run.failed:
            yield f"{run.policy}: {run.failed}"
    arena = next((run for run in runs if run.policy == ARENA and run.summary), None)
    if arena and arena.summary:
        row = arena.summary
        yield (
            f"arena: {row.memory_bound_share:.0%} of {row.steps:,} steps memory-bound, {row.retractions:,} retractions, "
            f"{row.frames_moved:,} frames moved; longest request {arena.max_request_tokens:,} tokens"
        )
        yield from _comparison(row, runs)
    if arena and arena.stamps:
        yield f"bytes: {arena.stamps}"
    if verify:
        steps = sum(run.summary.steps for run in runs if run.summary)
        made, plans = sum(run.checks_made for run in runs), sum(run.plans_checked for run in runs)
        found = sum(len(run.violations) for run in runs)
        yield f"invariants: {made:,} checks after {steps:,} steps, {plans:,} plans checked, {found} violations"
    for run in runs:
        yield from (f"VIOLATION {run.policy}: {text}" for text in run.violations[:VIOLATIONS_TOLD])
    if partial:
        yield "interrupted: results are partial"


def _comparison(arena: Summary, runs: Sequence[Run]) -> Iterator[str]:
    """The arena against the best, the default and the worst static split and the padded page."""
    whole = [run.summary for run in runs if run.summary and not run.summary.partial and run.policy != ARENA]
    if arena.partial or not whole:
        return
    static = sorted((row for row in whole if row.policy in STATIC), key=lambda row: row.tokens_per_second)
    named = [("best static", static[-1]), ("worst static", static[0])] if static else []
    named += [("default static", row) for row in whole if row.policy == STATIC_DEFAULT]
    named += [("padded page", row) for row in whole if row.policy == PADDED]
    for name, row in named:
        if row.tokens_per_second and row.concurrency_mean:
            yield (
                f"arena against {name} ({row.policy}): {arena.tokens_per_second / row.tokens_per_second:.3f} x tokens/s, "
                f"{arena.concurrency_mean / row.concurrency_mean:.3f} x mean concurrency, "
                f"{arena.concurrency_peak / row.concurrency_peak:.3f} x peak, {arena.completed} and {row.completed} served"
            )


def equation_holds(runs: Sequence[Run]) -> bool:
    """Whether every finished run with byte stamps checked exactly what it released and moved."""
    return all(run.stamps.holds for run in runs if run.stamps and run.summary and not run.summary.partial)


def as_json(setting: Setting, runs: Sequence[Run], partial: bool, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Everything needed to read the result, and to make it again."""
    layout = setting.layout
    bands = ("name", "frame_bytes", "slots_per_page", "retention", "window")
    return {
        "partial": partial,
        "model": setting.model,
        "total_bytes": layout.total_bytes,
        "sink_bytes": layout.sink_bytes,
        "bands": [{name: getattr(band, name) for name in bands} for band in layout.bands],
        "trace": {"name": setting.trace.name, "requests": len(setting.trace)},
        "options": asdict(setting.options),
        **extra,
        "policies": [_run_json(run) for run in runs],
    }


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "failed": run.failed,
        "max_request_tokens": run.max_request_tokens,
        "checks_made": run.checks_made,
        "plans_checked": run.plans_checked,
        "stamps": asdict(run.stamps) if run.stamps else None,
        "violations_told": run.violations[:VIOLATIONS_TOLD],
        **(asdict(run.summary) if run.summary else {}),
    }


def check_out(out: Path) -> None:
    """Refuse an output folder that cannot be made or written, before any work is done. Raises: ConfigError."""
    there = out
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not _takes_files(there):
        raise ConfigError(f"output {out}: {there} is no folder that can be written")


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made there. Tried, not asked: permissions say nothing about a file system that takes none."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def check_file(path: Path) -> None:
    """Refuse a file that cannot be written; one that is there is replaced. Raises: ConfigError."""
    if path.is_dir():
        raise ConfigError(f"output {path}: is a folder; a file is expected")
    check_out(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write whole or not at all."""
    return write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write whole or not at all: a draft beside it, then a rename. Raises: ConfigError, where the disk does not take it."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        return draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise ConfigError(f"output {path}: cannot be written ({error.strerror})") from None


def write_plots(setting: Setting, runs: Sequence[Run], out: Path) -> list[Path]:
    """Memory maps of the arena and its named rivals (of the first policy where none of them ran); everybody's concurrency.

    Returns: what was written; nothing where matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        return []
    out.mkdir(parents=True, exist_ok=True)
    served = {run.policy: run for run in runs if run.stats.samples}
    about = f"{setting.model}, {sized(setting.layout.total_bytes)}, {setting.trace.name}"
    written: list[Path] = []
    for policy in [name for name in MAPPED if name in served] or list(served)[:1]:
        written += plot_memory(served[policy].stats.samples, f"{policy}: {about}", out / f"memory-{policy}")
    if served:
        stats = {policy: run.stats for policy, run in served.items()}
        written += plot_concurrency(stats, f"running requests: {about}", out / "concurrency")
    return written
