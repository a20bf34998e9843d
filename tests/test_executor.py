"""The executor: encoded plans against a byte array, larger plans in pieces, fences, faults, and the buffer's views."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core_pure.advance import advance
from core_pure.compact import compact
from core_pure.errors import ContentsLost, FenceError, LeaseError, RecordingError, UnsupportedRequirement
from core_pure.geometry import FullAttention, Layer, RecurrentState, StateTensor, group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.plan import ZERO, Plan, encode, triples
from core_pure.state import ArenaState, Outcome, initial
from shell_gpu import requirements
from shell_gpu.buffer import check_device, obtain, view_of, views_of, words_of
from shell_gpu.errors import DeviceError, InjectedFault, StepTooLarge, TensorError
from shell_gpu.executor import Executor
from shell_gpu.packing import NO_STEP
from shell_gpu.requirements import Requirements
from shell_gpu.runner import GraphRunner, HostRunner, Target
from shell_gpu.tables import DeviceTables, StepSizes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = StepSizes(sequences=8, batch=6, tokens=64, context_tokens=200)
BANDS = (
    BandSpec("state", 7 * 256, retention="state", pages_fixed=2),
    BandSpec("window-64", 80, slots_per_page=4, retention="window", window=64),
    BandSpec("full", 96, slots_per_page=4),
)


def build(total: int = 1 << 16, bands: tuple[BandSpec, ...] = BANDS) -> tuple[Layout, torch.Tensor, Executor]:
    """A small arena of three bands whose frames share no grid."""
    layout = build_layout(bands, total)
    buffer = obtain(layout, DEVICE)
    return layout, buffer, Executor(layout, buffer, DeviceTables(layout, SIZES, DEVICE))


def stamp_of(page: int, size: int) -> torch.Tensor:
    """Bytes that tell one page from every other."""
    return (torch.arange(size) * 7 + page * 13 + page // 256).to(torch.uint8)


def frame(buffer: torch.Tensor, layout: Layout, band: int, number: int) -> torch.Tensor:
    """The bytes of one frame."""
    size = layout.bands[band].frame_bytes
    return buffer[number * size : (number + 1) * size]


def random_step(state: ArenaState, held: list[int], rng: np.random.Generator) -> tuple[Outcome | None, list[int]]:
    """Release some pages and ask for some, or compact; None where the demand is refused."""
    if rng.random() < 0.15:
        return compact(state, bytes_limit=int(rng.integers(1, 20000))), []
    gone = [page for page in held if rng.random() < rng.choice([0.02, 0.4])]
    free = 1.0 if rng.random() < 0.5 else 0.25
    demand = [int(rng.integers(0, max(1, int(free * limit)))) for limit in (8, 60, 120)]
    outcome = advance(state, release=np.array(gone, np.int32), demand=demand)
    return (outcome, gone) if isinstance(outcome, Outcome) else (None, [])


@pytest.mark.parametrize("words", [1 << 16, 200])
def test_every_live_byte_survives_every_plan(words: int) -> None:
    """Stamps of all bound pages and the table equal the host value after each of 150 mixed plans, whole or in
    pieces.
    """
    layout, buffer, executor = build()
    if DEVICE.type == "cpu":
        units = tuple(band.frame_bytes // 16 for band in layout.bands)
        executor._runner = HostRunner(Target(words_of(buffer), executor.tables, units), words)
    rng = np.random.default_rng(words)
    state, moved, refused = initial(layout), 0, 0
    held: dict[int, tuple[int, torch.Tensor]] = {}
    for _ in range(150):
        outcome, gone = random_step(state, list(held), rng)
        if outcome is None:
            refused += 1
            continue
        if rng.random() < 0.5:
            executor.apply(encode(outcome.plan))
        else:
            executor.apply_plan(outcome.plan)
        state = outcome.state
        moved += outcome.plan.moves
        for page in gone:
            del held[page]
        table = state.table()
        for band, pages in enumerate(outcome.pages):
            for page in pages.tolist():
                own = frame(buffer, layout, band, int(table[page]))
                assert not own.any(), "a page is handed out zeroed"
                held[page] = (band, stamp_of(page, own.numel()))
                own.copy_(held[page][1])
        assert np.array_equal(executor.tables.frame_of.cpu().numpy(), table)
        for page, (band, stamp) in held.items():
            assert torch.equal(frame(buffer, layout, band, int(table[page])).cpu(), stamp), (page, band)
    assert moved > 100 and refused > 0


def test_tables_and_write_slots_follow_a_step() -> None:
    """Lease writes and a batch in the upload of a plan give block tables, write slots and states of that very plan."""
    layout, _, executor = build()
    outcome = advance(initial(layout), demand={"state": 2, "window-64": 3, "full": 4})
    assert isinstance(outcome, Outcome)
    tables = executor.tables
    writes = []
    for band, pages in enumerate(outcome.pages):
        width = tables.widths[band]
        writes += [(tables.lease_bases[band] + 5 * width + place, page) for place, page in enumerate(pages.tolist())]
    one = np.array([1], np.int32)
    batch = tables.batch_of(5 * one, 7 * one, 10 * one)
    executor.apply(encode(outcome.plan), np.array(writes, np.int32), batch)
    table = outcome.state.table()
    frames = [table[pages] for pages in outcome.pages]
    for band, live in enumerate((2, 3, 3)):  # ten tokens are three pages of four; the fourth page is not shown yet
        assert tables.block_tables[band][0, :live].tolist() == frames[band][:live].tolist()
        assert not tables.block_tables[band][0, live:].any() and not tables.block_tables[band][1:].any()
    for band in (1, 2):
        expected = [int(frames[band][t // 4]) * 4 + t % 4 for t in (7, 8, 9)]
        assert tables.write_slots[band][:3].tolist() == expected and not tables.write_slots[band][3:].any()
    executor.apply(encode(Plan()), batch=tables.batch_of(one[:0], one[:0], one[:0]))
    assert not tables.tables.any() and not tables.writes.any(), "an empty batch leaves nothing stale behind"


def test_F51_the_last_token_has_a_slot_and_one_more_is_refused() -> None:
    """A sequence may fill the context to its last token, drafts included; the table has a column for it; one more is
    typed.
    """
    layout = build_layout(BANDS, 1 << 16)
    tables = DeviceTables(layout, StepSizes(2, 2, 8, context_tokens=31, draft_tokens=3), DEVICE)
    one = np.array([1], np.int32)
    assert tables.batch_of(one, 33 * one, 34 * one).tokens == 1
    assert all(width * 4 >= 34 + 4 for width in tables.widths[1:])
    with pytest.raises(LeaseError, match="35 tokens"):
        tables.batch_of(one, 34 * one, 35 * one)
    with pytest.raises(StepTooLarge, match="batch of 3"):
        tables.batch_of(np.zeros(3, np.int32), np.zeros(3, np.int32), np.zeros(3, np.int32))
    with pytest.raises(StepTooLarge, match="9 new tokens"):
        tables.batch_of(one, one, 10 * one)


def test_words_that_are_no_plan_change_nothing() -> None:
    """Damaged words raise RecordingError before any effect, and the executor stays usable."""
    _, buffer, executor = build()
    words = encode(Plan(waves=(triples(2, [30], [40]),), fills=triples(2, [50], ZERO)))
    before = buffer.clone()
    for place, value in ((0, 2), (1, 99), (3, 2), (4, -1), (6, 7)):
        bad = words.copy()
        bad[place] = value
        with pytest.raises(RecordingError):
            executor.apply(bad)
    with pytest.raises(RecordingError):
        executor.apply(words[:5])
    assert torch.equal(buffer, before) and not executor.tables.frame_of.any()
    executor.apply(words)


def test_a_plan_waits_only_for_launched_fences() -> None:
    """A wait for a fence never launched is refused before any effect; older and current fences pass; fences rise."""
    _, _, executor = build()
    words = encode(Plan(rows=np.array([[3, 4]], np.int32), wait=2))
    with pytest.raises(FenceError):
        executor.apply(words)
    assert not executor.tables.frame_of.any()
    executor.launched(1)
    executor.launched(3)
    with pytest.raises(FenceError, match="rise"):
        executor.launched(3)
    executor.apply(words)
    assert executor.tables.frame_of[3] == 4


def test_F40_a_plan_that_breaks_off_is_detected_after_every_effect() -> None:
    """However many effects came through, the executor refuses further work until the tables are written again."""
    plan = Plan(
        waves=(triples(2, [30, 31], [40, 41]), triples(1, [90], [91])),
        fills=triples(2, [50, 51], ZERO),
        rows=np.array([[3, 4], [5, -1]], np.int32),
    )
    for effects in range(7):
        layout, buffer, executor = build()
        table = np.arange(layout.ids_total, dtype=np.int32)
        executor.tables.project(table)
        buffer.copy_(torch.arange(len(buffer), device=DEVICE) % 251)
        before = buffer.clone()
        executor.fault_after = effects
        with pytest.raises(InjectedFault, match=f"after {effects} of 7"):
            executor.apply(encode(plan))
        done = [
            not torch.equal(frame(buffer, layout, band, number), frame(before, layout, band, number))
            for band, number in ((2, 40), (2, 41), (1, 91), (2, 50), (2, 51))
        ]
        assert done == [number < effects for number in range(5)]
        for _ in range(2):
            with pytest.raises(ContentsLost, match="recover"):
                executor.apply(encode(plan), batch=NO_STEP)
        executor.recover(table)
        assert np.array_equal(executor.tables.frame_of.cpu().numpy(), table)
        executor.apply(encode(plan))
        assert executor.tables.frame_of[3] == 4 and executor.tables.frame_of[5] == 0


# Buffer and views
# ------------------------------------------------------------------------------------------------------


def hybrid(dtype: str = "bfloat16", storage: str | None = None, token_major: bool = False) -> Layout:
    """Two attention layers with unequal widths and a state layer of two dtypes, page of four slots."""
    layers = [
        Layer(0, FullAttention(2, 24, 16, dtype, storage)),
        Layer(1, FullAttention(2, 24, 16, dtype, storage)),
        Layer(2, RecurrentState((StateTensor("conv", (6, 3), "bfloat16"), StateTensor("temporal", (2, 4, 8), "float32")))),
    ]
    return build_layout([BandSpec.of(band) for band in group_bands(layers, 4, token_major=token_major)], 1 << 16)


@pytest.mark.parametrize("token_major", [False, True])
def test_F28_bands_of_different_dtypes_do_not_alias(token_major: bool) -> None:
    """Tagged values written through every view of every live page change no byte of any other live page."""
    layout = hybrid(token_major=token_major)
    buffer = obtain(layout, DEVICE)
    state = advance(initial(layout), demand={"state": 7, "full": 20})
    assert isinstance(state, Outcome)
    table = state.state.table()
    owner = torch.zeros(len(buffer), dtype=torch.int32)
    tag = 0
    for band, spec in enumerate(layout.bands):
        views = views_of(buffer, spec)
        for page in state.pages[band].tolist():
            tag += 1
            before = buffer.clone()
            for view in views.values():
                view[int(table[page])] = torch.randn(view.shape[1:]).to(view.dtype).to(DEVICE)
            changed = (buffer != before).cpu()
            assert changed.any() and not owner[changed].any(), "a byte of another page changed"
            low = int(table[page]) * spec.frame_bytes
            owner[low : low + spec.frame_bytes] = tag
            assert not changed[:low].any() and not changed[low + spec.frame_bytes :].any()
    assert tag == 27 and not owner[: layout.sink_bytes].any()


def test_F15_views_keep_logical_and_stored_dtype() -> None:
    """fp8 stored as bytes is read through its logical dtype; a wider logical dtype is read as what is stored."""
    for logical, storage, expected in (
        ("float8_e4m3fn", "uint8", torch.float8_e4m3fn),
        ("bfloat16", "float8_e4m3fn", torch.float8_e4m3fn),
        ("bfloat16", None, torch.bfloat16),
    ):
        layout = hybrid(logical, storage)
        buffer = obtain(layout, DEVICE)
        spec = layout.bands[layout.index("full")]
        key = views_of(buffer, spec)[(0, "k")]
        assert key.dtype == expected and key.shape[1:] == (4, 2, 24)
        key[3, 1] = torch.full((2, 24), 1.5).to(expected)
        assert (key[3, 1].float() == 1.5).all()
        start = 3 * spec.frame_bytes + 1 * spec.geometry.views()[0].slot_stride  # type: ignore[union-attr]
        stored = buffer[start : start + 48 * expected.itemsize]
        assert torch.equal(stored.view(expected).float().cpu(), torch.full((48,), 1.5))


def test_a_buffer_of_the_caller_is_used_as_it_is() -> None:
    """The arena lives in the caller's bytes; only the sink is zeroed; a buffer that cannot serve is refused."""
    layout = build_layout(BANDS, 1 << 14)
    mine = torch.full((layout.total_bytes + 64,), 7, dtype=torch.uint8, device=DEVICE)
    buffer = obtain(layout, DEVICE, mine)
    assert buffer.data_ptr() == mine.data_ptr() and len(buffer) == layout.total_bytes
    assert not mine[: layout.sink_bytes].any() and (mine[layout.sink_bytes :] == 7).all()
    bad = [mine[: layout.total_bytes - 1], mine.view(torch.int8), mine.view(2, -1), mine[8:], mine.to("meta"), None]
    for one in bad[:-1]:
        with pytest.raises(TensorError):
            obtain(layout, DEVICE, one)
    with pytest.raises(TensorError, match="16"):
        spec = BandSpec("odd", 24)
        Executor(build_layout([spec], 1 << 14), buffer, DeviceTables(build_layout([spec], 1 << 14), SIZES, DEVICE))


def test_devices_that_cannot_run_are_named_with_the_alternative() -> None:
    """No GPU, or another accelerator: a clear error that names the CPU device; too many bytes: asked and free."""
    with pytest.raises(DeviceError, match="cpu"):
        check_device(torch.device("meta"))
    if DEVICE.type == "cpu":
        with pytest.raises(DeviceError, match="cpu"):
            check_device(torch.device("cuda"))
    huge = build_layout([BandSpec("full", 1 << 40)], 1 << 50)
    with pytest.raises(DeviceError, match=f"{huge.total_bytes} bytes"):
        obtain(huge, DEVICE)


def test_F42_a_page_of_another_size_than_the_tile_is_refused_with_sizes_that_work() -> None:
    """Kernel tile 32 and page 48: the refusal names 32 and 64; a page of 64 passes; state bands have no tile."""
    bands = (BandSpec("state", 4096, retention="state"), BandSpec("full", 48 * 64, slots_per_page=48))
    with pytest.raises(UnsupportedRequirement, match="32 or 64"):
        requirements.check(Requirements(kernel_tile=32), build_layout(bands, 1 << 20), DEVICE)
    fitting = (bands[0], BandSpec("full", 64 * 64, slots_per_page=64))
    requirements.check(Requirements(kernel_tile=32), build_layout(fitting, 1 << 20), DEVICE)


def test_requirements_that_cannot_be_met_are_refused_by_name() -> None:
    """Every unsupported feature, an unreadable dtype, unstrided kernels and capture on the CPU are named."""
    layout, cpu = hybrid(), torch.device("cpu")
    for feature in requirements.NOT_SUPPORTED:
        with pytest.raises(UnsupportedRequirement, match=feature):
            requirements.check(Requirements(features=(feature,)), layout, cpu)
    for wanted, name in (
        (Requirements(features=("levitation",)), "levitation"),
        (Requirements(dtypes=("float16",)), "bfloat16"),
        (Requirements(strided_views=False), "strided"),
        (Requirements(capture="decode"), "CUDA"),
        (Requirements(capture="sometimes"), "sometimes"),
    ):
        with pytest.raises(UnsupportedRequirement, match=name):
            requirements.check(wanted, layout, cpu)
    requirements.check(Requirements(dtypes=("bfloat16", "float32")), layout, cpu)


def test_a_view_that_cannot_be_typed_is_refused() -> None:
    """A view whose bytes are no multiple of its item size raises TensorError naming layer and tensor."""
    layout = hybrid()
    spec = layout.bands[layout.index("state")]
    view = spec.geometry.views()[1]  # type: ignore[union-attr]
    from attrs import evolve

    with pytest.raises(TensorError, match="temporal"):
        view_of(obtain(layout, DEVICE), spec, evolve(view, offset=view.offset + 2))


def test_cuda_runs_graphs_and_the_cpu_runs_twins() -> None:
    """The device decides which runner applies plans."""
    _, _, executor = build()
    assert isinstance(executor._runner, GraphRunner if DEVICE.type == "cuda" else HostRunner)
