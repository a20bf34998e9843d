"""Decode steps over memory that moves: outputs never change by one bit, and every way to get it wrong shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core_pure.errors import LeaseError
from core_pure.fits import Refusal
from shell_gpu.arena import BuildOptions
from shell_gpu.decode import launch, twins, words
from shell_gpu.decode.graph import CapturedDecode
from shell_gpu.decode.memory import LaneBatch
from shell_gpu.decode.model import PromptChunk, Weights
from shell_gpu.decode.shape import SEVEN_B, TOY
from shell_gpu.errors import AlreadyPhysical, GraphStale, StepTooLarge
from shell_gpu.ops import translate
from tests.decode_world import DecodeWorld, Schedule, Turn, crash_after_every_effect, relative_error, run_together
from tests.dense_decode import Dense

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here; tests/gpu runs them")
SEATS, CONTEXT, PAGE = 3, 40, 4
SMALL, LARGE = 3 << 15, 1 << 20
TOLERANCE = 1e-5  # float32 against float64, three layers deep


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of 16 positions and tiles of 16 rows, so that toy sizes have several."""
    monkeypatch.setattr(launch, "SPAN_TOKENS", 16)
    monkeypatch.setattr(launch, "PROMPT_ROWS", 16)


def world(moving: bool = True, total: int = SMALL, **more: object) -> DecodeWorld:
    """A toy world on the CPU."""
    weights = Weights.random(TOY, CPU)
    return DecodeWorld(TOY, weights, page_slots=PAGE, total=total, seats=SEATS, context=CONTEXT, moving=moving, **more)  # type: ignore[arg-type]


def run(worlds: list[DecodeWorld], steps: int, dense: Dense | None = None) -> tuple[int, float]:
    """Drive worlds with one schedule; see ``run_together``."""
    return run_together(worlds, Schedule(SEATS, CONTEXT), steps, dense)


def test_moving_memory_changes_no_bit_of_any_output() -> None:
    """With relocations before every step, outputs equal those of an arena that never moved, and a dense reference."""
    moving, still = world(), world(moving=False, total=LARGE)
    differ, worst = run([moving, still], 150, Dense(TOY, still.model.weights, SEATS, CONTEXT))
    assert differ == 0 and worst < TOLERANCE
    assert moving.moved > 150, "the test must move pages in about every step"
    assert moving.arena.verify() == []


def test_poisoned_free_bytes_are_never_read() -> None:
    """Free frames full of NaN leave every output as it was."""
    poisoned, still = world(options=BuildOptions(poison=True)), world(moving=False, total=LARGE)
    assert run([poisoned, still], 40)[0] == 0


@pytest.mark.parametrize("site", ["tables", "writes"])
def test_each_missed_translation_shows(site: str) -> None:
    """With one translation left out, frames of moving pages are wrong and outputs differ."""
    broken, still = world(options=BuildOptions(skip=frozenset({site}))), world(moving=False, total=LARGE)
    assert run([broken, still], 30)[0] > 10


@interpreted
def test_kernels_in_the_interpreter_give_the_same_bits_wherever_frames_are(short_splits: None) -> None:
    """The Triton kernels, with moving and with still memory: equal bit for bit, and near the dense reference."""
    moving, still = world(ops=launch), world(moving=False, total=LARGE, ops=launch)
    differ, worst = run([moving, still], 6, Dense(TOY, still.model.weights, SEATS, CONTEXT))
    assert differ == 0 and worst < TOLERANCE and moving.moved > 0


# --- kernels against their twins ---------------------------------------------------------------------------------------


def paged(frames: int = 40, slots: int = 4, heads: int = 2, dim: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views full of noise, NaN in the sink, and a table of scattered frames."""
    generator = torch.Generator().manual_seed(5)
    keys, values = (torch.randn(frames, slots, heads, dim, generator=generator) for _ in range(2))
    keys[0], values[0] = torch.nan, torch.nan
    table = torch.zeros(3, 12, dtype=torch.int32)
    table[:2] = (torch.randperm(frames - 1, generator=generator)[:24] + 1).view(2, 12).int()
    return keys, values, table


@interpreted
@pytest.mark.parametrize("window", [0, 12, 20])
def test_decode_attention_equals_its_twin(window: int, short_splits: None) -> None:
    """Split and combined attention of scattered pages equals the twin's; a padded lane gives zeros, the sink is not read."""
    keys, values, table = paged()
    if window:
        table[1, : (37 - window) // 4] = 0  # slid out
    lanes = torch.zeros(words.LANE_WORDS, 3, dtype=torch.int32)
    lanes[words.LANE_ROW] = torch.tensor([1, -1, 0])
    lanes[words.LANE_LENGTH] = torch.tensor([37, 9, 2])
    queries = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(6))
    got, wanted = torch.full((2, 3, 4, 16), 9.0).unbind(0)
    work = launch.scratch(3, 4, 16, launch.splits_of(table.shape[1], 4, window), CPU)
    launch.decode_attention(queries, keys, values, table, lanes, got, work, window)
    twins.decode_attention(queries, keys, values, table, lanes, wanted, work, window)
    assert relative_error(got, wanted) < TOLERANCE and not got[1].any()


@interpreted
@pytest.mark.parametrize("window", [0, 6])
def test_prompt_attention_equals_its_twin(window: int, short_splits: None) -> None:
    """Packed prompt chunks of two sequences, one of them continued, equal the twin's."""
    keys, values, table = paged()
    tiles = torch.tensor([[0, 0, 3, 8], [0, 8, 11, 8], [1, 16, 0, 5]], dtype=torch.int32)
    queries = torch.randn(21, 4, 16, generator=torch.Generator().manual_seed(7))
    got, wanted = torch.full((2, 21, 4, 16), 9.0).unbind(0)
    launch.prompt_attention(queries, keys, values, table, tiles, got, window)
    twins.prompt_attention(queries, keys, values, table, tiles, wanted, window)
    assert relative_error(got, wanted) < TOLERANCE


@interpreted
@pytest.mark.parametrize("single", [True, False])
def test_state_scan_equals_its_twin_and_skips_the_sink(single: bool) -> None:
    """States are updated in place in their frames; padded runs and the sink's frame change nothing."""
    generator = torch.Generator().manual_seed(8)
    state = torch.randn(10, 1, 2, 8, 16, generator=generator)
    other, before = state.clone(), state.clone()
    table = torch.tensor([[3], [7], [0]], dtype=torch.int32)
    mixed, gates = torch.randn(12, 2 * (2 * 16 + 8), generator=generator), torch.randn(12, 4, generator=generator)
    runs = torch.tensor([[1, 0, -1, 2], [0, 5, 9, 0], [5, 4, 3, 2]], dtype=torch.int32)
    if single:
        runs = torch.cat((runs, torch.zeros(2, 4, dtype=torch.int32)))
    got, wanted = torch.zeros(2, 4 if single else 12, 16).unbind(0)
    launch.delta_scan(mixed, gates, state, table, runs, got, single=single)
    twins.delta_scan(mixed, gates, other, table, runs, wanted, single=single)
    assert relative_error(got, wanted) < TOLERANCE and relative_error(state, other) < TOLERANCE
    changed = (state != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [3, 7]


def test_a_prompt_in_chunks_ends_like_token_by_token() -> None:
    """Two chunks of a prompt and one decode step leave the logits of the same tokens decoded one by one."""
    tokens = torch.arange(11) * 5 % TOY.vocabulary
    one, many = world(), world(moving=False, total=LARGE, chunk=7)
    handles = many.arena.open(1)
    for start, count in ((0, 7), (7, 4)):
        result = many.arena.step(handles, np.array([count]))
        outcome = result.outcome  # type: ignore[union-attr]
        slots, zero = outcome.slots.astype(np.int64), np.zeros(1, np.int64)
        chunk = PromptChunk.pack(
            many.model, tokens[start : start + count], zero, np.array([start]), np.array([count]), zero, slots
        )
        wanted = many.model.prompt(many.decode.memory, chunk)
    for at in range(11):
        turn = Turn([0], np.array([at + 1]), np.array([1]), [0] if at == 0 else [], [])
        lanes = one.serve(turn)
        got = one.decode.replay(LaneBatch.of(lanes.sources, lanes.lengths, tokens[at : at + 1].numpy()))
    assert relative_error(got, wanted) < TOLERANCE
    assert int(many.decode.memory.tokens[slots[0]]) == int(wanted.argmax())


# --- cases and bad input -----------------------------------------------------------------------------------------------


def test_F24_a_float_that_gives_way_takes_its_data_along() -> None:
    """Neighbours press on the middle band until its new window overlaps the old one; every later output stays as it was."""
    moving, still = world(chunk=CONTEXT, total=1 << 15), world(moving=False, total=LARGE)
    schedule = Schedule(SEATS, CONTEXT, churn=0.0)
    arena, partly = moving.arena, 0
    filler = arena.open(1)
    for number in range(30):
        turn = schedule.turn()
        if number % 3 == 2:  # somebody asks for as much as there is, and gives it back
            old = set(arena.state.bands[1].live_frames().tolist())
            most = next(n for n in range(CONTEXT, 0, -1) if arena.check_decode(arena.demand_of(filler, np.array([n]))))
            assert not isinstance(arena.step(filler, np.array([most])), Refusal)
            moved = old - set(arena.state.bands[1].live_frames().tolist())
            partly += 0 < len(moved) < len(old)
            arena.step(np.empty(0, np.int64), np.empty(0, np.int64), filler)
            filler = arena.open(1)
        assert torch.equal(moving.step(turn), still.step(turn))
    assert partly > 0 and arena.verify() == []


def test_F49_a_page_released_and_handed_out_in_one_step_has_one_row() -> None:
    """A step that ends one sequence and begins another recycles ids in one plan: one row each, and outputs stay right."""
    moving, still = world(), world(moving=False, total=LARGE)
    schedule = Schedule(SEATS, CONTEXT, churn=1.0)
    recycled = 0
    for _ in range(40):
        turn = schedule.turn()
        held = {page for seat in turn.gone for page in moving.pages_of(seat).tolist()}
        assert torch.equal(moving.step(turn), still.step(turn))
        rows = moving.last_plan.rows
        assert len(np.unique(rows[:, 0])) == len(rows), "one row for each id, the final one"
        recycled += bool(held & {int(page) for page, frame in rows.tolist() if frame > 0})
    assert recycled > 5


def test_F50_write_slots_are_used_as_they_are() -> None:
    """The slots of a step serve the keys and values of every layer; handing them to a translation is a typed error."""
    moving = world()
    handles = moving.arena.open(1)
    result = moving.arena.step(handles, np.array([1]))
    with pytest.raises(AlreadyPhysical):
        translate(result.write_locs, moving.arena.tables.frame_of, result.write_locs)  # type: ignore[union-attr, arg-type]
    assert moving.decode.memory.slots["full"].data_ptr() == result.write_locs.of("full").data_ptr()  # type: ignore[union-attr]


def test_F51_the_last_token_of_a_full_context_is_right_and_one_more_is_refused() -> None:
    """A lane may reach the last position of the page table; one token more is a typed error that changes nothing."""
    moving, still = world(), world(moving=False, total=LARGE)
    for length in range(1, CONTEXT + 1):
        turn = Turn([0], np.array([length]), np.array([3]), [0] if length == 1 else [], [])
        assert torch.equal(moving.step(turn), still.step(turn))
    before = moving.arena.state
    with pytest.raises(LeaseError, match=r"page table"):
        moving.arena.step(np.array([moving.leases[0]]), np.array([1]))
    assert moving.arena.state == before
    with pytest.raises(LeaseError, match="longer context"):
        moving.decode.replay(LaneBatch.of(np.array([0]), np.array([CONTEXT + 1])))


def test_a_batch_beyond_the_captured_sizes_is_refused() -> None:
    """More lanes than any captured graph serves: a typed error naming both numbers; smaller sizes are padded."""
    moving = world(sizes=(1, 2))
    lanes = moving.serve(Turn([0, 1, 2], np.ones(3, np.int64), np.arange(3), [0, 1, 2], []))
    with pytest.raises(StepTooLarge, match=r"batch of 3.* up to 2"):
        moving.decode.replay(lanes)
    with pytest.raises(StepTooLarge):
        CapturedDecode.over(moving.arena, moving.model, sizes=())


def test_a_graph_is_refused_after_a_resize() -> None:
    """A graph captured before a resize does not run; one captured after it does, and gives the same bits."""
    moving, still = world(), world(moving=False, total=LARGE)
    schedule = Schedule(SEATS, CONTEXT, churn=0.0)
    for _ in range(8):
        turn = schedule.turn()
        assert torch.equal(moving.step(turn), still.step(turn))
    moving.arena.resize(SMALL - 8192)
    turn = schedule.turn()
    lanes = moving.serve(turn)
    with pytest.raises(GraphStale, match="capture again"):
        moving.decode.replay(lanes)
    moving.decode = CapturedDecode.over(moving.arena, moving.model, sizes=(SEATS,))
    assert torch.equal(moving.decode.replay(lanes), still.step(turn))


@pytest.mark.parametrize("what", ["step", "compaction"])
def test_F40_a_crash_after_every_effect_of_a_plan_is_detected(what: str) -> None:
    """Break off after k of n effects, for every k: step and replay are refused until the arena recovers, and every page that
    recovery does not name as lost has its bytes.
    """
    assert crash_after_every_effect(world, what) >= 5


def test_the_seven_billion_shape_has_seven_billion_weights() -> None:
    """The benchmark's shape is what it says, and caches three kinds."""
    assert 7.0e9 < SEVEN_B.parameters < 7.3e9
    assert {SEVEN_B.band_of(layer) for layer in range(32)} == {"state", "window-1024", "full"}
