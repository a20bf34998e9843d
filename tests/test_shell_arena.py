"""The arena behind the serving layer's door: bytes, tables and write slots follow the host value through whole
lives.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core_pure.errors import ContentsLost, CorruptState, LayoutError, LeaseStale, PromiseBroken, UnsupportedRequirement
from core_pure.fits import Fit, Refusal
from core_pure.geometry import FullAttention, Layer, RecurrentState, SlidingWindow, StateTensor, group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.plan import Plan
from core_pure.step import block_table, write_slots
from shell_gpu.arena import Arena, ArenaStep, BuildOptions
from shell_gpu.errors import DeviceError, GraphStale, InjectedFault, StepTooLarge, TensorError
from shell_gpu.ops import store
from shell_gpu.requirements import Requirements
from shell_gpu.runner import warm_stores

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE = 4
CONTEXT = 96


def hybrid_layout(total: int = 1 << 18) -> Layout:
    """Two full layers, a window layer of 24 tokens and a state layer: three bands, frames of three sizes."""
    layers = [
        Layer(0, FullAttention(2, 24, 16, "bfloat16")),
        Layer(1, SlidingWindow(1, 16, 16, "float32", window=24)),
        Layer(2, FullAttention(2, 24, 16, "bfloat16")),
        Layer(3, RecurrentState((StateTensor("conv", (6, 3), "bfloat16"), StateTensor("temporal", (2, 4, 40), "float32")))),
    ]
    return build_layout([BandSpec.of(band) for band in group_bands(layers, PAGE)], total)


def build(total: int = 1 << 18, sequences: int = 12, **options: object) -> Arena:
    """A small arena of that layout."""
    return Arena.build(
        hybrid_layout(total), device=DEVICE, sequences=sequences, context=CONTEXT, chunk=16,
        options=BuildOptions(**{"step_tokens": 400, **options}),  # type: ignore[arg-type]
    )  # fmt: skip


class Writer:
    """Writes a value of (request, position, layer) for every new token, and checks all that is visible."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.lengths: dict[int, int] = {}

    def value(self, handle: int, position: torch.Tensor, layer: int) -> torch.Tensor:
        """One number per token that fits in bfloat16 exactly."""
        return ((handle % 97) + position * 3 + layer * 7) % 251

    def write(self, made: ArenaStep, handles: np.ndarray, new: np.ndarray) -> None:
        """Store the step's tokens in all attention layers through its write slots, and the state of every request."""
        assert made.write_locs is not None
        position = torch.cat(
            [torch.arange(n) + self.lengths.get(h, 0) for h, n in zip(handles.tolist(), new.tolist(), strict=True)]
        )
        owner = [h for h, n in zip(handles.tolist(), new.tolist(), strict=True) for _ in range(n)]
        for name, views in self.arena.views.items():
            if name == "state":
                frames = made.write_locs.of(name)[: len(handles), 0].long()
                for (layer, tensor), view in views.items():
                    for row, handle in enumerate(handles.tolist()):
                        view[frames[row]] = float(self.value(handle, torch.tensor(0), layer)) if tensor == "temporal" else 1.0
                continue
            slots = made.write_locs.of(name)[: made.write_locs.tokens]
            for (layer, tensor), view in views.items():
                if tensor == "k":
                    per = torch.stack([self.value(h, position[i], layer) for i, h in enumerate(owner)]).float().to(DEVICE)
                    value_view = views[(layer, "v")]
                    rows = [per.view(-1, 1, 1).expand(-1, *each.shape[2:]).contiguous() for each in (view, value_view)]
                    store(rows[0], view, slots, rows[1], value_view)
        for handle, n in zip(handles.tolist(), new.tolist(), strict=True):
            self.lengths[handle] = self.lengths.get(handle, 0) + n

    def check(self, made: ArenaStep, handles: np.ndarray) -> None:
        """Read every visible token of every request back through the step's block tables."""
        for band, name in enumerate(self.arena.names):
            table = made.block_tables[band].cpu().long()
            spec = self.arena.layout.bands[band]
            for row, handle in enumerate(handles.tolist()):
                length = self.lengths[handle]
                first = spec.first_visible(length - 1)
                for (layer, tensor), view in self.arena.views[name].items():
                    if name == "state":
                        if tensor == "temporal":
                            wanted = self.value(handle, torch.tensor(0), layer)
                            assert (view[table[row, 0]].cpu() == wanted).all()
                        continue
                    position = torch.arange(first, length)
                    got = view[table[row, position // PAGE], position % PAGE].float().cpu()
                    wanted = self.value(handle, position, layer).view(-1, 1, 1)
                    assert (got == wanted).all(), (name, layer, tensor, handle)


def serve(arena: Arena, steps: int, seed: int) -> tuple[int, int]:
    """Random admissions, chunks, decodes and finishes, everything checked; returns bytes moved and refusals."""
    rng = np.random.default_rng(seed)
    writer, moved, refused = Writer(arena), 0, 0
    running: list[int] = []
    for _ in range(steps):
        done = [handle for handle in running if rng.random() < 0.1 or writer.lengths[handle] + 16 > CONTEXT]
        kept = [handle for handle in running if handle not in done]
        new = [int(rng.choice([1, 1, 1, 5])) for _ in kept]
        joined = arena.open(min(2, arena.sizes.sequences - len(running))).tolist()
        handles = np.array(kept + joined, np.int64)
        tokens = np.array(new + [int(rng.integers(1, 17)) for _ in joined], np.int64)
        made = arena.step(handles, tokens, np.array(done, np.int64))
        if isinstance(made, Refusal):
            refused += 1
            handles, tokens = handles[: len(kept) // 2], tokens[: len(kept) // 2]
            made = arena.step(handles, tokens, np.array(kept[len(kept) // 2 :] + done + joined, np.int64))
            assert isinstance(made, ArenaStep)
        moved += made.bytes_moved
        writer.write(made, handles, tokens)
        writer.check(made, handles)
        outcome = made.outcome
        assert outcome is not None
        for band, spec in enumerate(arena.layout.bands):
            width = arena.tables.widths[band]
            expected = block_table(arena.state, arena.leases, outcome.slots, band, width)
            got = made.block_tables[band].cpu().numpy()
            assert np.array_equal(got[: len(handles)], expected) and not got[len(handles) :].any()
            if spec.grows:
                slots = write_slots(outcome, band)
                mine = arena.tables.write_slots[band].cpu().numpy()
                assert np.array_equal(mine[: len(slots)], slots) and not mine[len(slots) :].any()
        running = handles.tolist()
        if rng.random() < 0.2:
            moved += arena.compact(int(rng.integers(1, 1 << 16)))
        assert arena.verify() == []
    return moved, refused


@pytest.mark.parametrize("poison", [False, True])
def test_what_a_request_wrote_it_reads_back(poison: bool) -> None:
    """Through relief, compaction and reuse, every visible token reads back through block tables; NaN-poisoned or
    not.
    """
    arena = build(1 << 16, poison=poison)
    moved, refused = serve(arena, 60, seed=1)
    assert moved > 10_000 and refused > 0
    assert np.array_equal(arena.tables.frame_of.cpu().numpy(), arena.state.table())


@pytest.mark.parametrize("site", ["tables", "writes"])
def test_a_skipped_translation_is_noticed(site: str) -> None:
    """With one translation site left out, the very run that passes otherwise fails."""
    with pytest.raises((AssertionError, PromiseBroken)):
        serve(build(1 << 16, poison=True, skip=frozenset({site})), 60, seed=1)


def test_F14_unwritten_slots_read_finite() -> None:
    """Pages of every band, taken from poisoned bytes, read finite in every slot although only some were written."""
    arena = build(poison=True)
    handles = arena.open(3)
    made = arena.step(handles, np.array([5, 1, 9]))
    assert isinstance(made, ArenaStep)
    assert arena.buffer is not None and bool((arena.buffer == 255).any()), "nothing is poisoned: the test shows nothing"
    for band, name in enumerate(arena.names):
        frames = made.block_tables[band][:3].flatten().unique().long()
        assert len(frames) >= 3
        for view in arena.views[name].values():
            assert view[frames].float().isfinite().all()


def test_F36_a_state_slot_comes_back_reset() -> None:
    """The state of a finished request is zero when its slot is handed to the next one."""
    arena = build()
    first = arena.open(1)
    made = arena.step(first, np.array([1]))
    assert isinstance(made, ArenaStep)
    slot = int(made.block_tables[arena.layout.index("state")][0, 0])
    for view in arena.views["state"].values():
        view[slot] = 3.0
    second = arena.open(1)
    made = arena.step(second, np.array([1]), first)
    assert isinstance(made, ArenaStep)
    again = int(made.block_tables[arena.layout.index("state")][0, 0])
    assert again == slot, "another slot was handed out: the test shows nothing"
    assert not any(view[again].any() for view in arena.views["state"].values())


def test_F40_a_fault_in_a_plan_is_detected_and_recovered() -> None:
    """After any number of effects: further work is refused, recover() re-applies tables and names every page that
    changed.
    """
    broke = 0
    for effects in range(0, 60, 3):
        arena = build(1 << 16)
        serve(arena, 12, seed=5)
        live = [band.live_frames() for band in arena.state.bands]
        assert arena.buffer is not None
        before, value = arena.buffer.clone(), arena.value
        arena.executor.fault_after = effects
        handles = arena.open(1)
        try:
            arena.step(handles, np.array([16]))
        except InjectedFault:
            broke += 1
        else:
            continue
        assert arena.value.state == value.state
        with pytest.raises(ContentsLost, match="recover"):
            arena.step(handles, np.array([16]))
        with pytest.raises(ContentsLost):
            arena.compact(1 << 20)
        lost = arena.recover()
        assert np.array_equal(arena.tables.frame_of.cpu().numpy(), arena.state.table())
        for band, frames in enumerate(live):
            size = arena.layout.bands[band].frame_bytes
            ids = arena._pages_of_frames(band, frames)
            changed = {
                int(page) for page, at in zip(ids, frames.tolist(), strict=True)
                if not torch.equal(arena.buffer[at * size : (at + 1) * size], before[at * size : (at + 1) * size])
            }  # fmt: skip
            assert changed <= set(lost[band].tolist())
        assert isinstance(arena.step(arena.open(1), np.array([3])), ArenaStep | Refusal)
    assert broke > 5


def test_sleep_keeps_leases_and_declares_contents_lost() -> None:
    """While asleep every step is refused; after waking the tables are projected, and all bound pages are named as
    lost.
    """
    arena = build()
    handles = arena.open(2)
    arena.step(handles, np.array([9, 16]))
    generation = arena.generation
    arena.sleep()
    with pytest.raises(ContentsLost, match="wake"):
        arena.step(handles, np.array([1, 1]))
    lost = arena.wake()
    assert sorted(np.concatenate(lost).tolist()) == sorted(
        np.concatenate([p for h in handles for p in arena.pages(int(h))]).tolist()
    )
    assert np.array_equal(arena.tables.frame_of.cpu().numpy(), arena.state.table())
    with pytest.raises(GraphStale, match="capture again"):
        arena.check_generation(generation)
    made = arena.step(handles, np.array([1, 1]))
    assert isinstance(made, ArenaStep) and made.outcome is not None
    expected = block_table(arena.state, arena.leases, made.outcome.slots, 0, arena.tables.widths[0])
    assert np.array_equal(made.block_tables[0].cpu().numpy()[:2], expected)
    with pytest.raises(ContentsLost, match="awake"):
        arena.wake()


def test_clear_makes_leases_stale_and_tables_empty() -> None:
    """After clear no page is bound on the device, old handles are stale, and the arena serves as a new one."""
    arena = build(1 << 16)
    serve(arena, 10, seed=3)
    old = arena.open(1)
    arena.clear()
    assert not arena.tables.frame_of.any() and not arena.tables.tables.any()
    with pytest.raises(LeaseStale):
        arena.step(old, np.array([1]))
    serve(arena, 10, seed=4)


def test_resize_gives_up_bytes_at_the_top_and_takes_them_back() -> None:
    """A smaller arena still serves and fits less; graphs captured before are stale; the capacity comes back."""
    arena = build(1 << 18)
    most = {"full": (1 << 18) // arena.layout.bands[arena.layout.index("full")].frame_bytes - 20}
    generation = arena.generation
    assert isinstance(arena.fits(most), Fit)
    arena.resize(1 << 17)
    assert isinstance(arena.fits(most), Refusal)
    with pytest.raises(GraphStale):
        arena.check_generation(generation)
    serve(arena, 10, seed=6)
    arena.clear()
    arena.resize(1 << 18)
    assert isinstance(arena.fits(most), Fit)
    serve(arena, 5, seed=7)


def test_a_batch_larger_than_built_for_changes_nothing() -> None:
    """More sequences or tokens than the buffers hold: a typed error that says what was built; the value stays."""
    arena = build(batch=2, step_tokens=20)
    handles = arena.open(3)
    before = arena.value
    with pytest.raises(StepTooLarge, match="built for 2"):
        arena.step(handles, np.array([1, 1, 1]))
    with pytest.raises(StepTooLarge, match="built for 20"):
        arena.step(handles[:2], np.array([16, 16]))
    assert arena.value is before and not arena.tables.frame_of.any()
    assert isinstance(arena.step(handles[:2], np.array([1, 16])), ArenaStep)


def test_F35_ranks_with_different_budgets_are_named_at_build() -> None:
    """Budgets of all ranks are given to build; different ones raise an error with both numbers."""
    with pytest.raises(LayoutError, match="262144, 266240"):
        build(budgets=(1 << 18, (1 << 18) + 4096))
    build(budgets=(1 << 18, 1 << 18))


def test_strict_mode_raises_where_verify_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """KVARENA_STRICT=1, read at build, turns a violation into CorruptState; otherwise verify reports it."""
    from attrs import evolve

    for strict in ("0", "1"):
        monkeypatch.setenv("KVARENA_STRICT", strict)
        arena = build()
        arena.step(arena.open(1), np.array([9]))
        bands = list(arena.state.bands)
        bands[0] = evolve(bands[0], live=bands[0].live + 1)
        arena._value = evolve(arena.value, state=arena.state.with_bands(bands))
        if strict == "1":
            with pytest.raises(CorruptState):
                arena.verify()
        else:
            assert arena.verify()


def test_bad_builds_are_refused_with_what_would_work() -> None:
    """Wrong device, wrong buffer, a tile that does not divide, an arena below its floor: typed errors at build."""
    layout = hybrid_layout()
    sizes = {"sequences": 4, "context": CONTEXT, "chunk": 16}
    with pytest.raises(UnsupportedRequirement, match="8 would work"):
        Arena.build(layout, device=DEVICE, requirements=Requirements(kernel_tile=8), **sizes)
    with pytest.raises(TensorError):
        Arena.build(layout, device=DEVICE, buffer=torch.zeros(99, dtype=torch.uint8, device=DEVICE), **sizes)
    with pytest.raises(LayoutError, match="bytes"):
        Arena.build(build_layout(layout.bands, 4096 * 2), device=DEVICE, **sizes)
    if DEVICE.type == "cpu":
        with pytest.raises(DeviceError, match="device='cpu'"):
            Arena.build(layout, **sizes)
    mine = torch.zeros(layout.total_bytes, dtype=torch.uint8, device=DEVICE)
    arena = Arena.build(layout, device=DEVICE, buffer=mine, **sizes)
    assert arena.buffer is not None and arena.buffer.data_ptr() == mine.data_ptr()
    arena.sleep()
    with pytest.raises(ContentsLost, match="wake\\(buffer\\)"):
        arena.wake()
    arena.wake(mine)


def test_a_fork_copies_the_partial_page_and_the_state() -> None:
    """The child reads what the parent wrote, and writing to one changes nothing of the other."""
    arena = build()
    writer = Writer(arena)
    parent = arena.open(1)
    made = arena.step(parent, np.array([10]))
    assert isinstance(made, ArenaStep)
    writer.write(made, parent, np.array([10]))
    child = arena.fork(int(parent[0]))
    assert isinstance(child, int)
    both = np.array([int(parent[0]), child])
    made = arena.step(both, np.array([1, 1]))
    assert isinstance(made, ArenaStep) and made.write_locs is not None
    full = arena.layout.index("full")
    own, theirs = made.block_tables[full][:2].cpu().long()
    assert torch.equal(own[:2], theirs[:2]) and own[2] != theirs[2], "whole pages are shared, the partial one is copied"
    key = arena.views["full"][(0, "k")]
    assert torch.equal(key[own[2], :2], key[theirs[2], :2]) and bool(key[own[2], :2].any())
    state = made.block_tables[arena.layout.index("state")][:2, 0].long()
    temporal = arena.views["state"][(3, "temporal")]
    assert state[0] != state[1] and torch.equal(temporal[state[0]], temporal[state[1]]) and bool(temporal[state[0]].any())


def test_device_tables_stay_small() -> None:
    """Page table and lease table of a byte-filling context take at most 8 bytes per frame."""
    layout = build_layout([BandSpec("full", 2048, slots_per_page=16)], 64 << 20)
    arena = Arena.build(layout, device=DEVICE, sequences=8, context=16 * 512, chunk=64, options=BuildOptions(batch=8))
    assert arena.device_bytes <= 8 * layout.frames_max[0] + 4 * arena.tables.tables.numel() + 4096


def test_one_step_is_one_plan() -> None:
    """The executor is called once per step, with the very plan of the core's outcome."""
    arena = build()
    seen: list[Plan] = []
    apply_plan = arena.executor.apply_plan

    def spy(plan: Plan, *rest: object) -> None:
        seen.append(plan)
        apply_plan(plan, *rest)  # type: ignore[arg-type]

    arena.executor.apply_plan = spy  # type: ignore[method-assign, assignment]
    made = arena.step(arena.open(2), np.array([3, 9]))
    assert isinstance(made, ArenaStep) and made.outcome is not None
    assert seen == [made.outcome.plan]


def test_warming_the_store_kernels_changes_no_byte() -> None:
    """Compiling the store kernel for every view of the arena writes nothing."""
    arena = build()
    assert arena.buffer is not None
    arena.buffer.fill_(7)
    for views in arena.views.values():
        warm_stores(views)
    assert bool((arena.buffer == 7).all())
