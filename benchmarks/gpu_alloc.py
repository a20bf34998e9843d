"""Allocate, release, drain holes and compact in the peer harness's pattern: host time, core, packing and upload included.

220 runs of n pages are allocated, shuffled, most of them released, and 65 more allocated into the holes; then a flush. The
peer does the same in the same run where it is importable. Beside both runs the floor: numpy tables written in place, without
values, plans, neighbours or refusals, and the same upload. Tables are checked before anything is recorded.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import peer_sglang
from benchmarks.gpu_common import record
from benchmarks.gpu_step import layout_of
from benchmarks.inplace import InPlaceBand
from core_pure.advance import advance
from core_pure.compact import compact
from core_pure.plan import Plan
from core_pure.state import ArenaState, Outcome, initial
from shell_gpu.buffer import obtain
from shell_gpu.executor import Executor
from shell_gpu.tables import DeviceTables, StepSizes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

RUNS = (1, 16, 256, 4096)
ALLOCATIONS, RELEASES, DRAINS = 220, 170, 65
WARM = {"allocate": 20, "release": 20, "drain": 5}
SLOT_BYTES = 2048


def fits_harness(pages: int, page: int) -> bool:
    """The harness leaves out what would not fit in its arena."""
    return pages * page * 230 * SLOT_BYTES <= peer_sglang.ARENA_BYTES


class Ours:
    """The core and the executor as an engine would call them for one band: no leases, arrays of pages."""

    def __init__(self, page: int) -> None:
        self.layout = layout_of(page, peer_sglang.ARENA_BYTES)
        self.tables = DeviceTables(self.layout, StepSizes(8, 8, 64, 640), torch.device("cuda"))
        self.executor = Executor(self.layout, obtain(self.layout, torch.device("cuda")), self.tables)
        self.state: ArenaState = initial(self.layout)
        self.full = self.layout.index("full")
        self.demand = [0] * len(self.layout.bands)

    def allocate(self, pages: int) -> Any:
        """Take pages: a new value, one upload."""
        self.demand[self.full] = pages
        return self._made(advance(self.state, demand=tuple(self.demand))).pages[self.full]

    def release(self, pages: Any) -> None:
        """Give pages back."""
        self._made(advance(self.state, release=pages))

    def _made(self, outcome: Any) -> Outcome:
        assert isinstance(outcome, Outcome), outcome
        self.executor.apply_plan(outcome.plan)
        self.state = outcome.state
        return outcome

    def flush(self) -> int:
        """Compact everything; page copies included. Returns: pages moved."""
        outcome = compact(self.state, bytes_limit=None)
        self._made(outcome)
        return outcome.plan.moves

    def check(self) -> None:
        """Raise unless the device's table is the core's."""
        if not np.array_equal(self.tables.frame_of.cpu().numpy(), self.state.table()):
            raise AssertionError("the device's table is wrong: nothing is recorded")


class Floor:
    """The least that a host allocator in numpy costs here: one band in place, its rows uploaded as the arena uploads them."""

    def __init__(self, ours: Ours) -> None:
        self.ours, self.base = ours, ours.layout.id_bases[ours.full]
        self.band = InPlaceBand(ours.layout.frames_max[ours.full])

    def allocate(self, pages: int) -> Any:
        """Take pages."""
        ids = self.band.allocate(pages)
        self._upload(ids, self.band.frame_of[ids])
        return ids

    def release(self, pages: Any) -> None:
        """Give pages back."""
        self.band.release(pages)
        self._upload(pages, -1)

    def _upload(self, ids: Any, frames: Any) -> None:
        rows = np.empty((len(ids), 2), np.int32)
        rows[:, 0], rows[:, 1] = ids + self.base, frames
        self.ours.executor.apply_plan(Plan(rows=rows))

    def check(self) -> None:
        """Raise unless the device's table is the band's."""
        table = self.ours.tables.frame_of[self.base : self.base + len(self.band.frame_of)].cpu().numpy()
        if not np.array_equal(table[1:], np.maximum(self.band.frame_of[1:], 0)):
            raise AssertionError("the floor's table is wrong: nothing is recorded")


class Theirs:
    """The peer, asked for tokens."""

    def __init__(self, peer: peer_sglang.Peer) -> None:
        self.peer = peer
        peer.clear()

    def allocate(self, pages: int) -> Any:
        """Take pages."""
        return self.peer.full.alloc(pages * self.peer.page)

    def release(self, pages: Any) -> None:
        """Give pages back, lazily."""
        self.peer.full.free(pages)

    def flush(self) -> int:
        """Opportunistic compaction, page copies stubbed out."""
        return int(self.peer.full.flush_opportunistic())

    def urgent(self) -> int:
        """Compaction before an allocation."""
        return int(self.peer.full.flush_for_allocation())

    def check(self) -> None:
        """The peer has its own tests."""


def timed(work: Callable[[], object], count: int, warm: int) -> float:
    """Median host time in microseconds; the device is idle before each call."""
    times = []
    for number in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if number >= warm:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def flush_time(who: Any, name: str = "flush") -> tuple[float, int]:
    """Host time of one flush, and the pages it moved."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    moves = getattr(who, name)()
    return (time.perf_counter() - start) * 1e6, moves


def runs(who: Any, pages: int, row: dict[str, Any]) -> list[Any]:
    """Allocate, release and drain in the harness's pattern. Returns: what is held then."""
    held: list[Any] = []
    row["allocate"] = timed(lambda: held.append(who.allocate(pages)), ALLOCATIONS, WARM["allocate"])
    random.seed(0)
    random.shuffle(held)
    row["release"] = timed(lambda: who.release(held.pop()), RELEASES, WARM["release"])
    row["drain"] = timed(lambda: held.append(who.allocate(pages)), DRAINS, WARM["drain"])
    who.check()
    return held


def pattern(who: Any, pages: int) -> dict[str, Any]:
    """The harness's pattern for one run length, flushes included."""
    row: dict[str, Any] = {}
    held = runs(who, pages, row)
    row["flush"], row["flush_moves"] = flush_time(who)
    singles = [who.allocate(1) for _ in range(2 * pages)]
    for page in singles[::2]:
        who.release(page)
    row["urgent"], row["urgent_moves"] = flush_time(who, "urgent" if isinstance(who, Theirs) else "flush")
    for page in singles[1::2]:
        who.release(page)
    while held:
        who.release(held.pop())
    who.check()
    return row


def floor(ours: Ours, pages: int) -> dict[str, Any]:
    """The same pattern by the floor, without flushes; needs, and leaves, an arena that holds nothing."""
    row: dict[str, Any] = {}
    who = Floor(ours)
    for held in runs(who, pages, row):
        who.release(held)
    return row


def measured(benchmark: Any, page: int) -> dict[int, tuple[dict[str, Any], ...]]:
    """Rows of arena, floor and peer by run length, one right after the other, so that all see the same machine."""
    ours = Ours(page)
    peer = peer_sglang.load(page)
    rows = {
        pages: (pattern(ours, pages), floor(ours, pages), pattern(Theirs(peer), pages) if peer else {})
        for pages in RUNS if fits_harness(pages, page)
    }  # fmt: skip
    held = [ours.allocate(256)]

    def cycle() -> None:
        ours.release(held.pop())
        held.append(ours.allocate(256))

    benchmark.pedantic(cycle, rounds=100, warmup_rounds=10)
    ours.check()
    return rows


@pytest.mark.parametrize("page", (1, 16))
def test_allocate_release_flush(benchmark: Any, page: int) -> None:
    """Allocate and release cost at most 0.4 of the peer, with holes 0.25; a flush 0.1, move for move."""
    for pages, (row, least, other) in measured(benchmark, page).items():
        for what in ("allocate", "release", "drain"):
            record(
                f"{what}, host", pages=pages, page=page, arena_us=round(row[what], 1), floor_us=round(least[what], 1),
                **against(other, what, ratio=row[what], floor_ratio=least[what]),
            )  # fmt: skip
        for what in ("flush", "urgent"):
            moves, theirs = row[f"{what}_moves"], other.get(f"{what}_moves")
            each = row[what] / moves * theirs if theirs else 0.0  # as if as many pages had moved
            record(
                f"{what}, host", pages=pages, page=page, arena_us=round(row[what], 1), moves=moves, peer_moves=theirs,
                **against(other, what, ratio=row[what], ratio_move_for_move=each),
            )  # fmt: skip


def against(other: dict[str, Any], what: str, **ours: float) -> dict[str, Any]:
    """The peer's time, and each of ours as a share of it; nothing where there is no peer."""
    if not other:
        return {"peer_us": None}
    return {"peer_us": round(other[what], 1), **{name: round(us / other[what], 3) for name, us in ours.items()}}
