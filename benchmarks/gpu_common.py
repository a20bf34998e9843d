"""What the GPU benchmarks share: device timing, the copy rate of this run, and the committed file of results.

Every row carries commit, GPU, versions and command. A benchmark checks its result first and refuses to time a wrong one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"
COPY_BYTES = 8 << 30
"""Bytes of the plain device copy that rates are compared with: far beyond the L2."""


@cache
def _provenance() -> dict[str, str]:
    """Where and with what this run happens."""
    import triton

    commit = os.environ.get("KVARENA_COMMIT", "")
    if not commit:
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        commit = asked.stdout.strip() or "unknown"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": np.__version__,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def record(what: str, **numbers: Any) -> None:
    """Append one row to the results file (``KVARENA_RESULTS`` names another) and print it."""
    path = Path(os.environ.get("KVARENA_RESULTS", RESULTS / "gpu.jsonl"))
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {"what": what, **numbers}
    with path.open("a") as file:
        file.write(json.dumps({**row, **_provenance()}) + "\n")
    print(json.dumps(row), flush=True)


def device_us(work: Callable[[], object], repeat: int = 20, warm: int = 3) -> float:
    """Median device time of one call, in microseconds, between two events."""
    for _ in range(warm):
        work()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeat)]
    torch.cuda.synchronize()
    for start, end in pairs:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs)


def graph_us(work: Callable[[], object], launches: int = 100, repeat: int = 20) -> float:
    """Device time of one call inside a captured graph of many, in microseconds: launch gaps are the graph's, not the host's."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            work()
    return device_us(graph.replay, repeat) / launches


@cache
def copy_rate() -> float:
    """Bytes read and written per second by a plain device copy, in this run."""
    source, target = (torch.empty(COPY_BYTES // 8, dtype=torch.int64, device="cuda") for _ in range(2))
    source.random_()
    rate = 2 * COPY_BYTES / (device_us(lambda: target.copy_(source)) * 1e-6)
    record("plain device copy", terabytes_per_second=round(rate / 1e12, 3), gigabytes=COPY_BYTES >> 30)
    return rate
