"""The arena's door on a GPU: whole serving steps without a synchronisation, an allocation or a read back."""

from __future__ import annotations

import numpy as np
import torch

from core_pure.fits import Refusal
from core_pure.layout import BandSpec, build_layout
from core_pure.step import block_table, write_slots
from shell_gpu import ops
from shell_gpu.arena import Arena, ArenaStep, BuildOptions
from tests.gpu.test_gpu_executor import no_sync, nothing_compiled

BANDS = (
    BandSpec("state", 72 * 1024, retention="state", pages_fixed=2),
    BandSpec("window", 1536, slots_per_page=16, retention="window", window=128),
    BandSpec("full", 4096 + 512, slots_per_page=16),
)
CONTEXT = 1024


def build(total: int) -> Arena:
    """Three bands; room for fewer requests than leases, so that relief and refusals happen."""
    return Arena.build(
        build_layout(BANDS, total), device="cuda", sequences=96, context=CONTEXT, chunk=256,
        options=BuildOptions(batch=64, step_tokens=4096),
    )  # fmt: skip


class Traffic:
    """Random admissions, decodes, finishes, compactions, launches and retirements."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self.arena, self.rng = arena, np.random.default_rng(seed)
        self.running, self.lengths = np.empty(0, np.int64), np.empty(0, np.int64)
        self.moved = self.refused = 0
        self.made: ArenaStep | None = None

    def step(self) -> None:
        """One serving step; a refusal drops half of the requests."""
        arena, rng = self.arena, self.rng
        done = (rng.random(len(self.running)) < 0.03) | (self.lengths + 1 > CONTEXT)
        joined = arena.open(int(min(rng.integers(0, 3), 64 - len(self.running) + done.sum())))
        handles = np.concatenate((self.running[~done], joined))
        tokens = np.concatenate((np.ones((~done).sum(), np.int64), rng.integers(1, 257, len(joined))))
        lengths = np.concatenate((self.lengths[~done], np.zeros(len(joined), np.int64))) + tokens
        made = arena.step(handles, tokens, self.running[done])
        if isinstance(made, Refusal):
            self.refused += 1
            half = len(self.running) // 2
            made = arena.step(self.running[:0], tokens[:0], np.concatenate((self.running[half:], joined)))
            self.running, self.lengths = self.running[:half], self.lengths[:half]
            assert isinstance(made, ArenaStep)
        else:
            self.running, self.lengths, self.made = handles, lengths, made
        self.moved += made.bytes_moved
        if rng.random() < 0.1:
            self.moved += arena.compact(int(rng.integers(1, 4 << 20)))
        fence = arena.launch()
        if fence > 3:
            arena.retire(fence - 3)

    def check(self) -> None:
        """Tables, block tables and write slots on the device are the core's."""
        arena = self.arena
        assert np.array_equal(arena.tables.frame_of.cpu().numpy(), arena.state.table())
        self.step()
        if self.made is None or self.made.outcome is None or self.made.outcome.state is not arena.state:
            return
        for band, spec in enumerate(arena.layout.bands):
            wanted = block_table(arena.state, arena.leases, self.made.outcome.slots, band, arena.tables.widths[band])
            got = self.made.block_tables[band].cpu().numpy()
            assert np.array_equal(got[: len(wanted)], wanted) and not got[len(wanted) :].any()
            if spec.grows:
                slots = write_slots(self.made.outcome, band)
                mine = arena.tables.write_slots[band].cpu().numpy()
                assert np.array_equal(mine[: len(slots)], slots) and not mine[len(slots) :].any()


def test_ten_thousand_serving_steps_never_synchronise() -> None:
    """Alloc, release, relief, compact, translate, launch and retire: no call waits for the device; tables stay right."""
    traffic = Traffic(build(7 << 20), seed=1)
    ids = torch.arange(512, device="cuda")
    out = torch.empty_like(ids)
    for _ in range(20):
        with no_sync():
            for _ in range(500):
                traffic.step()
                ops.translate(ids, traffic.arena.tables.frame_of, out)
        traffic.check()
    assert traffic.moved > 1 << 20 and traffic.refused > 10


def test_F41_serving_steps_compile_and_allocate_nothing() -> None:
    """After build, five hundred steps with relief and compaction call no compiler and take no device memory."""
    traffic = Traffic(build(8 << 20), seed=2)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]
    with nothing_compiled() as compiled:
        while traffic.moved == 0 or traffic.arena.state.launched < 500:
            traffic.step()
        torch.cuda.synchronize()
    assert compiled == []
    assert before == (torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0])
