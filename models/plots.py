"""Plots of a replay, as PNG and SVG: who held the arena's bytes over time, and how many requests ran at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.statistics import Sample, Statistics

MIB, GIB = 2**20, 2**30
SIZE_INCHES = (9.0, 4.5)
DOTS_PER_INCH = 120
# One hue per band, dark where live and pale where free inside the span; greys belong to nobody.
HUES = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#8c564b", "#e377c2")
PALE = 0.35
GAP_COLOUR, SINK_COLOUR, QUARANTINE_COLOUR = "#eeeeee", "#777777", "#444444"
# Colour, width and dash of the policies that are not one of a series.
LINES = {
    "arena": ("#d62728", 2.4, "solid"),
    "padded": ("black", 1.3, "dashed"),
    "static-default": ("black", 1.3, "dotted"),
}
MOMENTS_MAX = 600  # moments of a memory map
POINTS_MAX = 200  # points of a concurrency line


def plot_memory(samples: Sequence[Sample], title: str, target: Path) -> list[Path]:
    """The memory map over time by band and state, stacked to the arena's total. Writes target.png and target.svg."""
    samples = samples[:: len(samples) // MOMENTS_MAX + 1]
    times = np.array([sample.now for sample in samples])
    layers: list[tuple[str, Any, str, float]] = []
    first = samples[0].report
    layers.append(("sink", [sample.report.sink_bytes for sample in samples], SINK_COLOUR, 1.0))
    for at, row in enumerate(first.bands):
        hue = HUES[at % len(HUES)]
        layers.append((f"{row.band}: live", [sample.report.bands[at].live_bytes for sample in samples], hue, 1.0))
        layers.append((f"{row.band}: hole", [sample.report.bands[at].hole_bytes for sample in samples], hue, PALE))
    quarantined = [sum(row.quarantined_bytes for row in sample.report.bands) for sample in samples]
    if any(quarantined):
        layers.append(("quarantined", quarantined, QUARANTINE_COLOUR, 1.0))
    layers.append(("gap", [sample.report.gap_bytes for sample in samples], GAP_COLOUR, 1.0))
    unit, name = (GIB, "GiB") if first.total_bytes >= GIB else (MIB, "MiB")
    figure, axes = _figure(title, "serving time, s", name)
    stacks = axes.stackplot(
        times,
        *[np.array(values) / unit for _, values, _, _ in layers],
        labels=[name for name, _, _, _ in layers],
        colors=[colour for _, _, colour, _ in layers],
    )
    for stack, (_, _, _, alpha) in zip(stacks, layers, strict=True):
        stack.set_alpha(alpha)
    axes.set_xlim(times[0], max(times[-1], times[0] + 1e-9))
    axes.set_ylim(0, first.total_bytes / unit)
    return _save(figure, axes, target)


def plot_concurrency(runs: Mapping[str, Statistics], title: str, target: Path) -> list[Path]:
    """Running requests over time, one line per policy. Writes target.png and target.svg."""
    figure, axes = _figure(title, "serving time, s", "running requests")
    shades = _static_shades([name for name in runs if name not in LINES])
    for name, stats in runs.items():
        if not stats.times:
            continue
        pieces = np.array_split(np.arange(len(stats.times)), min(len(stats.times), POINTS_MAX))
        times = [stats.times[piece[-1]] for piece in pieces]
        means = [float(np.mean([stats.running[i] for i in piece])) for piece in pieces]
        colour, width, dash = LINES.get(name) or (shades[name], 0.9, "solid")
        axes.plot(times, means, label=name, color=colour, linewidth=width, linestyle=dash, zorder=2 + width)
    axes.set_ylim(bottom=0)
    return _save(figure, axes, target)


def _static_shades(names: Sequence[str]) -> dict[str, Any]:
    """A colour per split, from dark to light in the order of their shares."""
    from matplotlib import colormaps

    ramp = colormaps["viridis"]
    return {name: ramp(0.15 + 0.8 * at / max(1, len(names) - 1)) for at, name in enumerate(names)}


def _figure(title: str, across: str, up: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def _save(figure: Any, axes: Any, target: Path) -> list[Path]:
    from matplotlib import pyplot

    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    written = [target.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in written:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
    return written
