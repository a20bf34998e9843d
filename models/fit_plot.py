"""Two panels against request length: the share of memory not in use, and requests at once, by policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.architectures import load_config
from models.planner import ARENA, FitPlan, Mix, plan_fit

POINTS = 24  # lengths per curve, evenly spaced on a logarithmic axis
SHORTEST = 128  # tokens


def draw(configs: Sequence[str], memory: int | str, path: Path, **options: Any) -> None:
    """Write the picture. One row of panels per model. options: as for ``plan_fit``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(configs), 2, figsize=(11, 3.6 * len(configs)), squeeze=False)
    for row, name in zip(axes, configs, strict=True):
        for policy, tokens, waste, counts in _curves(name, memory, options):
            # The arena is often equal to a rival, so it is wide and behind: a line on top of it leaves its edges in sight.
            look = {"linewidth": 4.0, "alpha": 0.5, "zorder": 1} if policy == ARENA else {"linewidth": 1.3}
            row[0].plot(tokens, waste, label=policy, **look)
            row[1].plot(tokens, counts, label=policy, **look)
        row[0].set(title=name, ylabel="memory not in use, %", xscale="log", ylim=(0, 100))
        row[1].set(title=name, ylabel="requests at once", xscale="log", yscale="log")
        for axis in row:
            axis.set_xlabel("tokens of a request")
            axis.grid(alpha=0.3)
        row[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _curves(name: str, memory: int | str, options: dict[str, Any]) -> list[tuple[str, list[int], list[float], list[int]]]:
    """(policy, tokens, waste in per cent, requests at once); lengths that do not fit once are left out."""
    model = load_config(name)
    lengths = sorted({int(x) for x in np.geomspace(SHORTEST, model.context_tokens, POINTS)})
    plans: list[tuple[int, FitPlan]] = []
    for tokens in lengths:
        plans.append((tokens, plan_fit(model, memory, mix=Mix(tokens, 1), lengths=(), **options)))
    curves = []
    for number, policy in enumerate(plans[0][1].policies):
        points = [(tokens, plan.policies[number]) for tokens, plan in plans]
        kept = [(tokens, one.waste_share * 100, one.concurrency) for tokens, one in points if one.concurrency]
        curves.append((policy.policy, [t for t, _, _ in kept], [w for _, w, _ in kept], [c for _, _, c in kept]))
    return curves
