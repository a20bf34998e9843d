"""Every kernel against its plain torch twin, on random buffers full of poison, in the interpreter where there is no
GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from core_pure.errors import RecordingError
from core_pure.plan import POISON, ZERO, Plan, encode, triples
from shell_gpu import chunk, launch, ops
from shell_gpu.errors import AlreadyPhysical, TensorError
from shell_gpu.kernels import twins
from shell_gpu.launch import INTERPRETED, TUNED
from shell_gpu.packing import Batch, Work, pack, read_plan, split

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TUNING = TUNED if DEVICE.type == "cuda" else INTERPRETED
UNITS = (48, 5)  # 16-byte units per frame of two bands; neither divides the other


def noise(words: int, seed: int) -> torch.Tensor:
    """Random int64 words: any bit pattern, so also NaNs of every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (words,), generator=generator).to(DEVICE)


def packed(plan: Plan, **more: object) -> torch.Tensor:
    """The one chunk of a plan, on the device."""
    work = read_plan(encode(plan))
    for name, value in more.items():
        setattr(work, name, value)
    out = np.full(8192, -7, np.int32)
    pack(work, UNITS, out)
    return torch.from_numpy(out).to(DEVICE)


@pytest.mark.parametrize("runs", [False, True])
def test_a_wave_moves_the_same_bytes_as_its_twin(runs: bool) -> None:
    """Frames of two bands move to the same places with the same bytes, runs merged or not, and nothing else changes."""
    rng = np.random.default_rng(1)
    big = np.arange(100) if runs else rng.permutation(100)[:70]
    small = rng.permutation(400)[:40] + 4900  # byte ranges of the two bands do not meet
    wave = np.concatenate([triples(0, 1 + big, 400 + big), triples(1, small, small + 420)])
    staging = packed(Plan(waves=(wave,)))
    arena = noise(UNITS[0] * 2 * 600, seed=2)
    expected = arena.cpu().clone()
    twins.move_wave(expected, staging.cpu(), chunk.AT_WAVE)
    launch.move_wave(arena, staging, chunk.AT_WAVE, TUNING)
    assert torch.equal(arena.cpu(), expected)
    if runs:
        first = int(staging[chunk.AT_WAVE])
        assert int(staging[first + 3]) > 1, "neighbouring frames were not merged"


def test_finish_writes_tables_and_fills_like_its_twin() -> None:
    """Table rows, lease writes, zeroed and poisoned frames equal the twin's; -1 becomes the sink's frame 0."""
    rows = np.array([[5, 7], [6, -1], [900, 3]], np.int32)
    fills = np.array([[0, 2, ZERO], [1, 90, POISON], [0, 4, ZERO], [1, 93, ZERO]], np.int32)
    writes = np.stack([np.arange(700) * 3 % 1009, np.arange(700)], axis=1).astype(np.int32)
    staging = packed(Plan(fills=fills, rows=rows), writes=writes)
    arena = noise(UNITS[0] * 2 * 20, seed=3)
    frame_of = torch.full((1000,), 11, dtype=torch.int32, device=DEVICE)
    leases = torch.full((1009,), -5, dtype=torch.int32, device=DEVICE)
    expected = [tensor.cpu().clone() for tensor in (arena, frame_of, leases)]
    twins.finish_plan(expected[0], staging.cpu(), expected[1], expected[2])
    launch.finish_plan(arena, staging, frame_of, leases, TUNING)
    for got, wanted in zip((arena, frame_of, leases), expected, strict=True):
        assert torch.equal(got.cpu(), wanted)
    assert int(frame_of[6]) == 0 and int(frame_of[5]) == 7


def test_poison_reads_as_nan_in_every_float_dtype() -> None:
    """A poisoned frame is NaN whatever float dtype a band reads it as."""
    staging = packed(Plan(fills=np.array([[0, 1, POISON]], np.int32)))
    arena = torch.zeros(UNITS[0] * 2 * 3, dtype=torch.int64, device=DEVICE)
    table = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    launch.finish_plan(arena, staging, table, table.clone(), TUNING)
    frame = arena.cpu()[UNITS[0] * 2 : UNITS[0] * 4]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2):
        assert frame.view(dtype).float().isnan().all()
    assert not arena.cpu()[: UNITS[0] * 2].any() and not arena.cpu()[UNITS[0] * 4 :].any()


@pytest.mark.parametrize("out_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_F16_unmapped_ids_give_the_sink(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    """Ids -1, 0, unbound and one past the end give frame 0, for both id dtypes, and columns past a row's length too."""
    frame_of = torch.arange(100, dtype=torch.int32, device=DEVICE) * 3
    frame_of[17] = 0  # unbound
    ids = torch.randint(1, 100, (6, 40), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1)).to(dtype)
    ids[0, :5] = torch.tensor([-1, 0, 17, 100, 2**31 - 1], dtype=dtype)
    lengths = torch.tensor([40, 0, 1, 39, 17, 40], dtype=torch.int32, device=DEVICE)
    out = torch.full(ids.shape, 77, dtype=out_dtype, device=DEVICE)
    wanted = out.clone()
    twins.translate_ids(ids, frame_of, wanted, lengths)
    launch.translate_ids(ids, frame_of, out, lengths)
    assert torch.equal(out, wanted)
    assert out[0, :5].tolist() == [0] * 5 and not out[1].any() and not out[2, 1:].any() and int(out[2, 0]) > 0


def test_F16_translation_in_place() -> None:
    """Output may be the input: every id is read before its place is written."""
    frame_of = torch.randperm(500, dtype=torch.int32).to(DEVICE)
    ids = torch.randint(-2, 520, (777,), device=DEVICE, dtype=torch.int32)
    wanted = torch.empty_like(ids)
    twins.translate_ids(ids, frame_of, wanted)
    launch.translate_ids(ids, frame_of, ids)
    assert torch.equal(ids, wanted)


@pytest.mark.parametrize("slots", [1, 16])
def test_write_slots_equal_their_twin(slots: int) -> None:
    """A token's write slot is frame * slots + position % slots; a token whose page holds nothing writes to the sink."""
    frame_of = torch.arange(300, dtype=torch.int32, device=DEVICE) + 2**27  # slots beyond 2**31 must not wrap
    ids = torch.randint(-1, 310, (500,), device=DEVICE)
    positions = torch.randint(0, 9999, (500,), device=DEVICE, dtype=torch.int32)
    out, wanted = torch.full((2, 500), -9, device=DEVICE)
    twins.translate_slots(ids, positions, frame_of, wanted, slots)
    launch.translate_slots(ids, positions, frame_of, out, slots)
    assert torch.equal(out, wanted)
    held = (ids > 0) & (ids < 300)
    assert torch.equal(out[held], (ids[held] + 2**27) * slots + positions[held] % slots) and not out[~held].any()


def bands_of(batch: int, width: int, tokens: int, slots: int, fixed: int) -> tuple[torch.Tensor, int, int, int]:
    """Parameters of one paged and one fixed band, and the lengths of the lease table, tables and write slots."""
    rows = [
        [chunk.GROWS, slots, width, 0, 0, 0, 0, 301],
        [chunk.FIXED, 1, fixed, 8 * width, batch * width, tokens, 300, 401],
    ]
    return torch.tensor(rows), 8 * (width + fixed), batch * (width + fixed), 2 * tokens


@pytest.mark.parametrize("skip", [frozenset(), frozenset({"tables"}), frozenset({"writes"})])
def test_F16_a_step_translates_like_its_twin(skip: frozenset[str]) -> None:
    """Block tables and write slots of a step equal the twin's, tails of rows that were longer before are zeroed."""
    batch, width, tokens, slots = 6, 50, 700, 16
    bands, leases_words, table_words, write_words = bands_of(batch, width, tokens, slots, fixed=2)
    rng = np.random.default_rng(4)
    frame_of = torch.from_numpy(rng.integers(0, 90, 401).astype(np.int32))
    frame_of[0] = 0
    leases = torch.from_numpy(rng.integers(-1, 402, leases_words).astype(np.int32))
    rows = np.array(
        [[3, 500, 1, 0, 800], [0, 0, 600, 1, 0], [7, 31, 1, 601, 33], [-1, 0, 0, 602, 480], [5, 799, 1, 602, 0]],
        np.int32,
    )
    staging = packed(Plan(), batch=Batch(rows, tokens=603, stale_tokens=650))
    tables = torch.full((table_words,), 55, dtype=torch.int32)
    writes = torch.full((write_words,), 66, dtype=torch.int64)
    wanted = (tables.clone(), writes.clone())
    twins.translate_step(staging.cpu(), frame_of, leases, bands, *wanted, skip)
    tables, writes = tables.to(DEVICE), writes.to(DEVICE)
    launch.translate_step(staging, frame_of.to(DEVICE), leases.to(DEVICE), bands.to(DEVICE), tables, writes, skip, TUNING)
    assert torch.equal(tables.cpu(), wanted[0])
    assert torch.equal(writes.cpu(), wanted[1])
    paged = wanted[0][: batch * width].view(batch, width)
    assert not paged[0, 32:50].any() and (paged[0, :32] != 55).all(), "501 tokens are 32 pages"
    assert not paged[3, :30].any() and (paged[3, 30:] == 55).all(), "a row that left"
    assert not wanted[1][603:650].any() and (wanted[1][650:tokens] == 66).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2])
def test_stores_into_strided_views_equal_their_twin(dtype: torch.dtype) -> None:
    """Rows of unequal K and V width land at their slots, cast to the view's dtype, and no other byte changes."""
    frames, slots = 9, 4
    size = dtype.itemsize
    k_row, v_row = (2, 12), (2, 8)
    stride = 256
    arena = noise(frames * slots * stride // 8, seed=5).view(torch.uint8)
    wanted = arena.clone()
    keys = (torch.randn(30, *k_row) * 100).to(torch.bfloat16).to(DEVICE)
    values = torch.randn(30, 3, *v_row).to(torch.bfloat16).to(DEVICE)[:, 1]  # rows contiguous, row stride is not
    if DEVICE.type == "cpu":  # the interpreter rounds to 8-bit floats wrongly; give it what needs no rounding
        keys, values = twins.cast_to(keys, dtype).bfloat16(), twins.cast_to(values, dtype).bfloat16()
    places = torch.randperm((frames - 1) * slots)[:30] + slots
    places[4], places[9] = 0, slots - 1  # sink lanes
    places = places.to(DEVICE)

    def views(buffer: torch.Tensor) -> list[torch.Tensor]:
        typed = buffer.view(dtype)
        shape = (frames, slots)
        steps = (slots * stride // size, stride // size)
        return [typed.as_strided((*shape, *row), (*steps, row[1], 1), at // size) for row, at in ((k_row, 0), (v_row, 112))]

    view_k, view_v = views(wanted)
    twins.store_rows(keys, view_k, places)
    twins.store_rows(values, view_v, places)
    view_k, view_v = views(arena)
    launch.store_rows(keys, view_k, places, values, view_v, programs=4 if DEVICE.type == "cpu" else 64)
    assert torch.equal(arena, wanted)


def test_F15_fp8_is_stored_as_fp8_and_reads_back() -> None:
    """1.5 written through an fp8 view reads back as 1.5, and the stored byte is fp8's; beyond the range it
    saturates.
    """
    view = torch.zeros(3, 1, 4, dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn)
    rows = torch.tensor([[1.5, -1.5, 1e9, -1e9]], dtype=torch.bfloat16, device=DEVICE)
    launch.store_rows(rows, view, torch.tensor([2], device=DEVICE), None, None)
    assert view.float()[2, 0].tolist() == [1.5, -1.5, 448.0, -448.0]
    assert twins.cast_to(torch.tensor([float("nan")]), torch.float8_e4m3fn).float().isnan().all()
    assert view.view(torch.uint8)[2, 0, 0].item() == 0x3C
    assert not view.view(torch.uint8)[:2].any()


def test_F50_physical_slots_cannot_be_translated_again() -> None:
    """Write slots of a step are no tensor: a second translation is refused by type."""
    locs = ops.WriteLocs(("full",), (torch.arange(4),), 4)
    frame_of = torch.zeros(5, dtype=torch.int32)
    with pytest.raises(AlreadyPhysical, match="physical already"):
        ops.translate(locs, frame_of, torch.zeros(4, dtype=torch.int64))  # type: ignore[arg-type]
    assert ops.WriteLocs(("full",), locs.slots, 4).of("full") is locs.slots[0]


def test_wrong_tensors_are_refused_before_any_launch() -> None:
    """Wrong dtype, shape, layout or partner raises TensorError and writes nothing."""
    frame_of = torch.ones(5, dtype=torch.int32, device=DEVICE)
    ids = torch.ones(2, 4, dtype=torch.int64, device=DEVICE)
    out = torch.full((2, 4), 9, device=DEVICE)
    slots = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    view = torch.zeros(3, 1, 4, device=DEVICE)
    bad: list[Callable[[], None]] = [
        lambda: ops.translate(ids.float(), frame_of, out),
        lambda: ops.translate(ids, frame_of.long(), out),
        lambda: ops.translate(ids, frame_of, out[:, :2]),
        lambda: ops.translate(ids, frame_of, out.t()),
        lambda: ops.translate(ids, frame_of, out, torch.ones(3, dtype=torch.int32, device=DEVICE)),
        lambda: ops.translate([1], frame_of, out),  # type: ignore[arg-type]
        lambda: ops.translate_writes(ids[0], ids[0], frame_of, out[0].int(), 1),
        lambda: ops.translate_writes(ids[0], ids[0, :2], frame_of, out[0], 1),
        lambda: ops.store(torch.ones(2, 4, device=DEVICE), view, slots.int()),
        lambda: ops.store(torch.ones(2, 3, device=DEVICE), view, slots),
        lambda: ops.store(torch.ones(2, 4, device=DEVICE, dtype=torch.int32), view, slots),
        lambda: ops.store(torch.ones(4, 2, device=DEVICE).t(), view, slots),
        lambda: ops.store(torch.ones(2, 4, device=DEVICE), view, slots, torch.ones(2, 4, device=DEVICE)),
        lambda: ops.translate(ids.to("meta"), frame_of, out),
    ]
    for call in bad:
        with pytest.raises(TensorError):
            call()
    assert (out == 9).all() and not view.any()


def test_a_large_plan_is_cut_in_order_and_loses_nothing() -> None:
    """Chunks of a plan too large for one hold its rows once each, in order, every chunk within its capacity."""
    rng = np.random.default_rng(6)
    waves = tuple(triples(0, rng.integers(1, 99, n), rng.integers(100, 199, n)) for n in (500, 1, 300, 7))
    copies = triples(1, rng.integers(1, 99, 40), rng.integers(100, 199, 40))
    fills = np.stack([np.zeros(200), np.arange(200), np.zeros(200)], axis=1).astype(np.int32)
    rows = np.stack([np.arange(300), np.arange(300)], axis=1).astype(np.int32)
    work = read_plan(encode(Plan(waves, copies, fills, rows)))
    work.writes = rows[:111]
    work.batch = Batch(np.ones((20, chunk.BATCH_ROW_WORDS), np.int32), 20, 20)
    parts = list(split(work, capacity=512, bands=2))
    assert len(parts) > 5
    for number, part in enumerate(parts):
        assert len(part.waves) <= chunk.WAVES_PER_CHUNK
        assert pack(part, UNITS, np.zeros(2048, np.int32)) <= 512
        if len(part.rows) or len(part.fills):
            assert not any(later.waves for later in parts[number + 1 :])
    moved = np.concatenate([wave for part in parts for wave in part.waves])
    assert np.array_equal(moved, np.concatenate([*waves, copies]))
    assert np.array_equal(np.concatenate([part.fills for part in parts]), fills)
    assert np.array_equal(np.concatenate([part.rows for part in parts]), rows)
    assert np.array_equal(np.concatenate([part.writes for part in parts]), work.writes)
    assert [len(part.batch.rows) for part in parts] == [0] * (len(parts) - 1) + [20]
    with pytest.raises(RecordingError):
        list(split(Work([], batch=Batch(np.ones((999, chunk.BATCH_ROW_WORDS), np.int32))), 512, 2))
