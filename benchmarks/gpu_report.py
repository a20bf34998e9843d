"""Writes docs/GPU.md and docs/img/gpu-step.png from the newest rows of benchmarks/results/gpu.jsonl.

``python -m benchmarks.gpu_report``. The file of results stays the source: nothing here is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gpu.jsonl"
PAGE = ROOT / "docs" / "GPU.md"
PLOT = ROOT / "docs" / "img" / "gpu-step.png"
PROVENANCE = ("date", "commit", "gpu", "python", "torch", "triton", "numpy", "command")


@frozen
class Budget:
    """What was asked of rows before they were measured: a column, the most (or least) that it may be, and of which rows."""

    column: str
    limit: float
    least: bool = False
    note: str = ""
    asked: Callable[[dict[str, Any]], bool] = lambda row: True

    def __str__(self) -> str:
        return f"{self.column.replace('_', ' ')} {'≥' if self.least else '≤'} {self.limit}{self.note}"

    def met(self, row: dict[str, Any]) -> bool | None:
        """Whether a row is within; None where nothing was asked, or it was measured without the peer."""
        value = row.get(self.column) if self.asked(row) else None
        return None if value is None else bool(value >= self.limit if self.least else value <= self.limit)


BUDGETS = {
    "serving step, host": Budget("ratio", 0.25, note=", without a flush in the step", asked=lambda row: not row["flush"]),
    "allocate, host": Budget("ratio", 0.4),
    "release, host": Budget("ratio", 0.4),
    "drain, host": Budget("ratio", 0.25, note=" (allocate into holes)"),
    "flush, host": Budget(
        "ratio_move_for_move", 0.1, note=" at 4,096 moves of the peer", asked=lambda row: (row["peer_moves"] or 0) >= 4096
    ),
    "scattered moves": Budget("kernel_of_copy", 0.9, least=True, note="; plan: packing and uploads included"),
    "shift of 10 GiB": Budget("plan_of_copy", 0.9, least=True),
    "translate 8192 ids": Budget("ratio", 1.2, note=" of an empty kernel"),
}


def newest(path: Path = RESULTS) -> dict[str, list[dict[str, Any]]]:
    """Rows by what they measure; of rows with equal parameters only the last one."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        numbers = {"us", "ratio", "of", "second", "moves"}
        key = json.dumps({k: v for k, v in row.items() if k not in PROVENANCE and not numbers & set(k.split("_"))})
        groups.setdefault(row["what"], {})[key] = row
    return {what: list(rows.values()) for what, rows in groups.items()}


def table(rows: list[dict[str, Any]], budget: Budget | None) -> str:
    """One markdown table of rows that measure the same thing, and whether each is within its budget."""
    columns = [name for name in rows[-1] if name not in PROVENANCE and name != "what"]
    verdict = [] if budget is None else ["within"]
    lines = ["| " + " | ".join([*(name.replace("_", " ") for name in columns), *verdict]) + " |"]
    lines.append("|" + "---|" * (len(columns) + len(verdict)))
    for row in rows:
        cells = ["–" if row.get(name) is None else f"{row[name]}" for name in columns]
        cells += [] if budget is None else [{True: "yes", False: "**no**", None: "–"}[budget.met(row)]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def step_plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Host time per serving step without flushes: arena, in-place floor and peer, with the budget on the peer's bars."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if not row["flush"] and row.get("peer_us")]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots()
    bars = (
        ("arena_us", "arena", "#2b6cb0"),
        ("floor_us", "numpy in place (floor)", "#90cdf4"),
        ("peer_us", "SGLang 0.5.23", "#c05621"),
    )
    for place, (name, label, colour) in enumerate(bars):
        drawn = axes.bar([at + 0.28 * place for at in range(len(shown))], [row.get(name, 0.0) for row in shown], 0.26, color=colour)
        drawn.set_label(label)
        axes.bar_label(drawn, fmt="%.0f", fontsize=7)
    for at, row in enumerate(shown):
        line = axes.hlines(row["peer_us"] / 4, at - 0.14, at + 0.7, colors="black", linewidth=1)
        line.set_label("" if at else "budget: a quarter of SGLang")
    axes.set_xticks([at + 0.28 for at in range(len(shown))], [f"{row['running']} requests\npage {row['page']}" for row in shown])
    axes.set_ylabel("host µs per serving step")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Write page and plot."""
    groups = newest()
    last = next(reversed(list(groups.values())))[-1]
    met = [verdict for what, budget in BUDGETS.items() for row in groups.get(what, ()) if (verdict := budget.met(row)) is not None]
    where = ", ".join(f"{name} {last[name]}" for name in PROVENANCE[:-1])
    page = [
        "# GPU measurements",
        "",
        "Generated by `python -m benchmarks.gpu_report` from `benchmarks/results/gpu.jsonl`; do not edit. Each row there carries",
        f"its commit, GPU, versions and command. Newest: {where}.",
        "",
        "The peer is SGLang 0.5.23's own allocator in the same run on the same GPU; its page copies are stubbed out, the arena's",
        "are not. Host time is what the calling thread spends; the device is idle before each call. The floor is the same host",
        "work on numpy arrays in place, without values, plans, neighbours or refusals, and the same upload.",
        "",
        f"Of {len(met)} rows with a budget {sum(met)} are within it. Why the others are not: docs/DECISIONS.md 23.",
        "",
    ]
    for what, rows in groups.items():
        page += [f"## {what[0].upper()}{what[1:]}", ""]
        if what in BUDGETS:
            page += [f"Budget: {BUDGETS[what]}.", ""]
        if what == "serving step, host":
            step_plot(rows, PLOT)
            page += ["![host time per serving step](img/gpu-step.png)", ""]
        page += [table(rows, BUDGETS.get(what)), ""]
    PAGE.write_text("\n".join(page))


if __name__ == "__main__":
    main()
