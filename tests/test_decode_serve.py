"""The serving experiment at toy size on the CPU: the same code that measures on a GPU, and its rival with bytes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu_decode, gpu_serve
from benchmarks.gpu_serve import DEFAULT_SHARE, TOY_EXPERIMENT
from core_pure.fits import Refusal
from shell_gpu.decode.model import HybridModel, Weights, kernels_for
from shell_gpu.decode.shape import TOY

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def toy_model() -> HybridModel:
    """A model of toy shape."""
    return HybridModel(TOY, Weights.random(TOY, CPU), kernels_for(CPU))


def test_static_pools_with_bytes_give_the_bits_of_the_arena() -> None:
    """Equal sequences decode to equal bits from an arena and from static pools, while others come and go beside them."""
    pair = gpu_decode.sides(toy_model(), batch=4, context=60, page=16, total=1 << 20, chunk=8)
    assert gpu_decode.same_bits(pair, 4, 45)
    assert gpu_decode.same_bits(pair, 3, 20), "frames that were used before do not show"
    assert all(side.pool.verify() == [] for side in pair)


def test_static_pools_with_bytes_hold_what_they_count() -> None:
    """Frames handed out equal pages counted, each frame once, through growth, slides, ends and refusals."""
    _, side = gpu_decode.sides(toy_model(), batch=4, context=60, page=16, total=40 << 10, chunk=60)
    store, rng = side.pool, np.random.default_rng(3)
    assert isinstance(store, gpu_decode.StaticStore)
    held: dict[int, int] = {}
    refusals = 0
    for _ in range(200):
        gone = [handle for handle in held if held[handle] > 50 or rng.random() < 0.1]
        for handle in gone:
            del held[handle]
        if len(held) < 4:
            held[int(store.open(1)[0])] = 0
        handles = np.array(sorted(held), np.int64)
        result = store.step(handles, np.array([int(rng.integers(1, 9)) for _ in handles]), np.array(gone, np.int64))
        if isinstance(result, Refusal):
            refusals += 1
            store.step(np.empty(0, np.int64), np.empty(0, np.int64), np.array([*gone, *held], np.int64))
            held = {}
            continue
        held = {handle: int(store._tokens[handle % (1 << 20)]) for handle in handles.tolist()}
        for band, rows in enumerate(store._rows):
            frames = rows[rows > 0]
            assert len(np.unique(frames)) == len(frames) == store.pages_held[band]
            assert store._left[band] + len(frames) == store.pages_max[band]
            free = store._stacks[band][: store._left[band]]
            assert not np.intersect1d(free, frames).size and (free > 0).all()
    assert refusals > 0


def test_the_experiment_serves_every_policy_and_writes_its_page(tmp_path: Path) -> None:
    """Arena, best, default and worst split serve the toy trace; every result is a full row, and the page names all four."""
    target = tmp_path / "serve.json"
    rows = gpu_serve.run((TOY_EXPERIMENT,), TOY, CPU, (4, 8), target, {"mix": (20.0, 70.0)})
    assert json.loads(target.read_text()) == json.loads(json.dumps(rows))
    assert [row["policy"] for row in rows] == ["arena", "best static", "default static", "worst static"]
    assert [row["share"] for row in rows] == [None, 20.0, DEFAULT_SHARE, 70.0]
    served = [row["summary"]["completed"] for row in rows]
    assert served == [TOY_EXPERIMENT.requests] * 4
    assert len({row["summary"]["tokens"] for row in rows}) == 1, "equal work under every policy"
    page = gpu_serve.report(rows, tmp_path / "docs")
    assert all(row["policy"] in page for row in rows)
    assert {path.suffix for path in (tmp_path / "docs").iterdir()} == {".md", ".png"}


def test_a_run_out_of_time_says_what_it_left_out(tmp_path: Path) -> None:
    """Policies that would begin too late are named as not run, in the results and on the page."""
    rows = gpu_serve.run((TOY_EXPERIMENT,), TOY, CPU, (8,), tmp_path / "serve.json", {"mix": (20.0, 70.0)}, seconds=-1.0)
    assert all(row["left_out"] == "out of time" for row in rows) and len(rows) == 4
    assert gpu_serve.report(rows, tmp_path / "docs").count("not run") == 4


def test_the_step_time_benchmark_checks_before_it_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At toy size it gives a ratio; with different bits it refuses to time."""
    monkeypatch.setenv("KVARENA_RESULTS", str(tmp_path / "rows.jsonl"))
    asked = argparse.Namespace(batch=2, context=64, steps=3, rounds=2, gib=0.001, toy=True)
    assert gpu_decode.measure(TOY, CPU, asked) > 0
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["finite"] and row["live_bytes"] > 0
    monkeypatch.setattr(gpu_decode, "same_bits", lambda *_: False)
    with pytest.raises(SystemExit, match="different bits"):
        gpu_decode.measure(TOY, CPU, asked)
