"""Captured decode on a real GPU: 1,000 steps over memory that moves before every one, kernels at real shapes, overlap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import evolve

from core_pure.fits import Refusal
from shell_gpu.arena import BuildOptions
from shell_gpu.decode import launch, twins, words
from shell_gpu.decode.model import PromptChunk, Weights
from shell_gpu.decode.shape import FULL, STATE, WINDOW, HybridShape
from tests.decode_world import DecodeWorld, Schedule, Turn, crash_after_every_effect, relative_error, run_together
from tests.dense_decode import Dense
from tests.gpu.test_gpu_executor import no_sync, nothing_compiled
from tests.overlap_world import OverlapWorld

GPU = torch.device("cuda")
SEATS, CONTEXT, PAGE, STEPS = 8, 600, 16, 1000
SHAPE = HybridShape(
    pattern=(STATE, WINDOW, FULL, STATE, WINDOW, FULL), hidden=256, intermediate=512, heads=8, kv_heads=2, head_dim=64,
    window=100, state_heads=4, state_dim_k=64, state_dim_v=64, vocabulary=512, dtype="float32",
)  # fmt: skip
SMALL, LARGE = 16 << 20, 512 << 20
TOLERANCE = {"float32": 1e-4, "bfloat16": 4e-2}  # against float64: sums of 256 to 600 terms, six layers


def world(moving: bool = True, dtype: str = "float32", total: int = SMALL, **more: object) -> DecodeWorld:
    """A world on the GPU, weights equal for equal dtype."""
    shape = evolve(SHAPE, dtype=dtype)
    weights = Weights.random(shape, GPU)
    return DecodeWorld(
        shape, weights, page_slots=PAGE, total=total, seats=SEATS, context=CONTEXT, moving=moving, **more  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def several_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of 64 positions, so that the order of their sums matters."""
    monkeypatch.setattr(launch, "SPAN_TOKENS", 64)


def schedule() -> Schedule:
    """Sequences of some 200 tokens: several splits, windows that slide, ends and beginnings all the time."""
    return Schedule(SEATS, CONTEXT, churn=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_thousand_captured_steps_over_moving_memory_change_no_bit(dtype: str) -> None:
    """Relocation before every captured step, compaction before half of them: outputs equal an arena that never moved, bit
    for bit, and a dense reference within tolerance.
    """
    moving, still = world(dtype=dtype), world(moving=False, dtype=dtype, total=LARGE)
    dense = Dense(moving.shape, still.model.weights, SEATS, CONTEXT)
    differ, worst = run_together([moving, still], schedule(), STEPS, dense)
    print(f"{dtype}: {moving.moved} pages moved in {STEPS} steps, {differ} steps differ, worst error {worst:.2e}")
    assert differ == 0 and worst < TOLERANCE[dtype] and moving.moved > 5 * STEPS
    assert moving.arena.verify() == []


@pytest.mark.parametrize("site", ["tables", "writes"])
def test_each_missed_translation_shows(site: str) -> None:
    """With one translation left out, outputs differ from those of memory that never moved."""
    broken = world(options=BuildOptions(skip=frozenset({site})))
    assert run_together([broken, world(moving=False, total=LARGE)], schedule(), 40)[0] > 10


def test_poisoned_free_bytes_are_never_read() -> None:
    """Free frames full of NaN leave every output as it was."""
    poisoned = world(options=BuildOptions(poison=True))
    assert run_together([poisoned, world(moving=False, total=LARGE)], schedule(), 200)[0] == 0


@pytest.mark.parametrize("what", ["step", "compaction"])
def test_F40_a_crash_after_every_effect_of_a_plan_is_detected(what: str) -> None:
    """As on the CPU, with captured graphs: detected for every k, and recovery names every page that lost bytes."""
    assert crash_after_every_effect(lambda: world(total=8 << 20), what) >= 5


def test_F41_captured_steps_over_moving_memory_compile_allocate_and_wait_for_nothing() -> None:
    """200 captured steps, the first move ever among them: no compiler, no device memory, no wait for the device."""
    moving, turns = world(), schedule()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with nothing_compiled() as compiled, no_sync():
        for _ in range(200):
            moving.step(turns.turn())
    torch.cuda.synchronize()
    assert moving.moved > 200 and compiled == []
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


# --- kernels at real shapes --------------------------------------------------------------------------------------------


def paged(slots: int, heads: int, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views full of noise, NaN in the sink, and a table of scattered frames."""
    columns = -(-1040 // slots)
    keys, values = (torch.randn(3 * columns + 1, slots, heads, dim, device=GPU).to(dtype) for _ in range(2))
    keys.view(torch.uint8)[0], values.view(torch.uint8)[0] = 0xFF, 0xFF
    return keys, values, (torch.randperm(3 * columns, device=GPU) + 1).view(3, columns).int()


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize(
    ("slots", "heads", "group", "dim", "stored"),
    [(16, 2, 4, 64, "bfloat16"), (64, 8, 4, 128, "bfloat16"), (16, 1, 8, 256, "bfloat16"), (32, 2, 1, 96, "bfloat16"),
     (32, 2, 16, 128, "float8_e4m3fn"), (16, 2, 2, 64, "float32")],
)  # fmt: skip
def test_attention_equals_its_twin(slots: int, heads: int, group: int, dim: int, stored: str, window: int) -> None:
    """Decode and prompt attention at published head sizes, fp8 storage too, equal the twin within rounding."""
    keys, values, table = paged(slots, heads, dim, getattr(torch, stored))
    dtype = torch.float32 if stored == "float32" else torch.bfloat16
    tolerance = 1e-5 if stored == "float32" else 2e-2
    lanes = torch.zeros(words.LANE_WORDS, 4, dtype=torch.int32, device=GPU)
    lanes[words.LANE_ROW] = torch.tensor([2, -1, 0, 1])
    lanes[words.LANE_LENGTH] = torch.tensor([1040, 9, 333, 1])
    queries = torch.randn(4, heads * group, dim, device=GPU).to(dtype)
    got, wanted = torch.full((2, *queries.shape), 9.0, dtype=dtype, device=GPU).unbind(0)
    work = launch.scratch(4, heads * group, dim, launch.splits_of(table.shape[1], slots, window), GPU)
    launch.decode_attention(queries, keys, values, table, lanes, got, work, window)
    twins.decode_attention(queries, keys, values, table, lanes, wanted, work, window)
    assert relative_error(got, wanted) < tolerance and not got[1].any()
    step = launch.prompt_tokens(heads * group, heads)
    tiles = [[row, at + first, at + position, min(step, count - at)]
             for row, first, position, count in ((0, 0, 700, 200), (2, 200, 0, 131)) for at in range(0, count, step)]  # fmt: skip
    queries = torch.randn(331, heads * group, dim, device=GPU).to(dtype)
    got, wanted = torch.full((2, *queries.shape), 9.0, dtype=dtype, device=GPU).unbind(0)
    sent = torch.tensor(tiles, dtype=torch.int32, device=GPU)
    launch.prompt_attention(queries, keys, values, table, sent, got, window)
    twins.prompt_attention(queries, keys, values, table, sent, wanted, window)
    assert relative_error(got, wanted) < tolerance


@pytest.mark.parametrize("single", [True, False])
def test_state_scan_equals_its_twin(single: bool) -> None:
    """The state scan at 128 x 128 in float32 states equals the twin; padded runs and the sink change nothing."""
    state = torch.randn(9, 1, 4, 128, 128, device=GPU)
    other, sink = state.clone(), state[0].clone()
    table = torch.tensor([[3], [7], [0]], dtype=torch.int32, device=GPU)
    mixed, gates = torch.randn(40, 4 * 3 * 128, device=GPU).bfloat16(), torch.randn(40, 8, device=GPU).bfloat16()
    runs = torch.tensor([[1, 0, -1, 2], [0, 15, 29, 30], [15, 14, 3, 2]], dtype=torch.int32, device=GPU)
    if single:
        runs = torch.cat((runs, torch.zeros(2, 4, dtype=torch.int32, device=GPU)))
    got, wanted = torch.zeros(2, 4 if single else 40, 512, dtype=torch.bfloat16, device=GPU).unbind(0)
    launch.delta_scan(mixed, gates, state, table, runs, got, single=single)
    twins.delta_scan(mixed, gates, other, table, runs, wanted, single=single)
    assert relative_error(got, wanted) < 2e-2 and relative_error(state, other) < 1e-5
    assert torch.equal(state[0], sink)


def test_a_prompt_in_chunks_ends_like_token_by_token() -> None:
    """Two chunks of a prompt leave the logits of the same tokens decoded one by one through the captured graph."""
    tokens = torch.arange(211, device=GPU) * 5 % SHAPE.vocabulary
    one, many = world(), world(moving=False, total=LARGE, chunk=150)
    handles = many.arena.open(1)
    for start, count in ((0, 150), (150, 61)):
        result = many.arena.step(handles, np.array([count]))
        assert not isinstance(result, Refusal) and result.outcome is not None
        slots, zero = result.outcome.slots.astype(np.int64), np.zeros(1, np.int64)
        chunk = PromptChunk.pack(
            many.model, tokens[start : start + count], zero, np.array([start]), np.array([count]), zero, slots
        )
        wanted = many.model.prompt(many.decode.memory, chunk)
    for at in range(211):
        turn = Turn([0], np.array([at + 1]), np.array([1]), [0] if at == 0 else [], [])
        lanes = one.serve(turn)
        got = one.decode.replay(evolve(lanes, tokens=np.array([at * 5 % SHAPE.vocabulary])))
    assert relative_error(got, wanted) < TOLERANCE["float32"]


# --- overlap -----------------------------------------------------------------------------------------------------------

SLOW_CYCLES = 12_000_000  # about 6 ms, longer than the host takes for a step: plans are made while forwards have not begun to read


def test_ten_thousand_overlapped_steps_corrupt_no_byte() -> None:
    """Three slow micro-batches in flight on three streams, plans on a fourth, memory short: no forward sees a foreign byte."""
    busy = OverlapWorld(GPU, total=3 << 14, batch=48, depth=3, cycles=SLOW_CYCLES)
    wrong = busy.run(10_000)
    print(f"{busy.turns} steps, {busy.moved} with moves, {busy.waited} waited on the stream, {busy.overlap.waits} host waits, "
          f"{busy.released} sequences ended, {wrong} wrong")  # fmt: skip
    assert wrong == 0 and busy.moved > 1000 and busy.waited > 1000 and busy.arena.verify() == []


def test_without_quarantine_overlapped_steps_corrupt() -> None:
    """The same run planned as if nothing were in flight does corrupt: quarantine is what prevents it."""
    assert OverlapWorld(GPU, total=3 << 14, batch=48, depth=3, cycles=SLOW_CYCLES, quarantine=False).run(500) > 0
