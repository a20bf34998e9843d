"""Host time of the pure core, every CPU row of the design's budget, with in-place numpy beside it.

``make bench``. Each group holds ``core`` and its floor, timed in the same run; ``benchmarks.cpu_report`` turns the saved JSON
into docs/BENCHMARKS.md. A benchmark checks what it times before and after.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.cpu_worlds import FULL, PROMPT, ROOM, CoreBand, OneBand, PlainBand, Serving, three_bands
from core_pure.advance import allocate, release
from core_pure.event import chained
from core_pure.fits import Fit, fits
from core_pure.plan import decode, encode
from core_pure.relief import relief_windows
from core_pure.state import Outcome, initial
from core_pure.verify import verify

MILLION = 1_000_000
SIZES = (10_000, 100_000, MILLION, 4_000_000)
KINDS = {"core": CoreBand, "one band": OneBand, "in place": PlainBand}


def rounds(benchmark: Any, work: Any, setup: Any = None, count: int = 200) -> None:
    """Time ``work`` that often, one call a round, after ten warm calls."""
    benchmark.pedantic(work, setup=setup, rounds=count, warmup_rounds=10, iterations=1)


def labelled(benchmark: Any, row: str, who: str, **parameters: Any) -> None:
    """Name the row of the table that this benchmark fills."""
    benchmark.group = f"{row} {parameters}"
    benchmark.extra_info.update(row=row, who=who, **parameters)


@pytest.mark.parametrize("count", (1, 256, 4096))
@pytest.mark.parametrize("holes", (0.0, 0.002, 0.3))
@pytest.mark.parametrize("who", KINDS)
def test_allocate(benchmark: Any, who: str, holes: float, count: int) -> None:
    """Pages of a band of 10⁶ frames: contiguous, into few holes, into many."""
    band = KINDS[who](MILLION, holes)
    if 0 < holes * MILLION < count:
        pytest.skip("more pages than holes")
    held: list[Any] = []

    def back() -> None:
        if held:
            band.release(held.pop())

    labelled(benchmark, "allocate", who, frames=MILLION, holes=holes, pages=count)
    rounds(benchmark, lambda: held.append(band.allocate(count)), setup=back)
    assert len(np.unique(held[-1])) == count


@pytest.mark.parametrize("count", (1, 256, 4096))
@pytest.mark.parametrize("who", KINDS)
def test_release_scattered(benchmark: Any, who: str, count: int) -> None:
    """Pages released in random order from a full band of 10⁶ frames."""
    band = KINDS[who](MILLION, 0.0)
    taken = iter(np.array_split(band.kept[: count * 220], 220))
    current: list[Any] = []
    labelled(benchmark, "release, scattered", who, frames=MILLION, pages=count)
    rounds(benchmark, lambda: band.release(current[0]), setup=lambda: current.__setitem__(slice(None), [next(taken)]))


@pytest.mark.parametrize("frames", SIZES)
@pytest.mark.parametrize("who", KINDS)
def test_growth(benchmark: Any, who: str, frames: int) -> None:
    """256 pages into 10 % holes and out again, from 10⁴ to 4·10⁶ frames."""
    band = KINDS[who](frames, 0.1)
    labelled(benchmark, "growth: allocate and release 256", who, frames=frames)
    rounds(benchmark, lambda: band.release(band.allocate(256)))


def test_fits_three_bands(benchmark: Any) -> None:
    """The feasibility question of every admission."""
    state = CoreBand(MILLION, 0.3).state
    labelled(benchmark, "fits, 3 bands", "core")
    assert isinstance(benchmark(lambda: fits(state, (1, 2, 3))), Fit)


@pytest.mark.parametrize("frames", (50_000, MILLION))
def test_relief_planning(benchmark: Any, frames: int) -> None:
    """Case F23: 30 % holes, a neighbour asks for the bytes of a tenth of the frames."""
    layout = three_bands(frames // 2)
    full = allocate(initial(layout), (4, 4, layout.frames_max[FULL] - 64))
    assert isinstance(full, Outcome)
    pages = full.pages[FULL]
    drop = np.random.default_rng(0).permutation(pages)[: int(len(pages) * 0.3)]
    state = release(full.state, drop).state
    demand = (frames // 20, 0, 0)
    labelled(benchmark, "relief, planning", "core", frames=len(pages), moves=len(_moved(state, demand)))
    rounds(benchmark, lambda: relief_windows(state, demand), count=60)


def _moved(state: Any, demand: tuple[int, ...]) -> np.ndarray[Any, Any]:
    outcome = allocate(state, demand)
    assert isinstance(outcome, Outcome) and outcome.plan.waves and not verify(outcome.state)
    return np.concatenate(outcome.plan.waves)


@pytest.mark.parametrize("running", (64, 256, 1024))
@pytest.mark.parametrize("page", (1, 16))
@pytest.mark.parametrize("part", ("core", "encode", "digest", "tables"))
def test_serving_step(benchmark: Any, part: str, page: int, running: int) -> None:
    """The peer's serving step on the CPU, and where its time goes."""
    loop = Serving(page, running)
    for _ in range(20):
        loop.step()
    event, plan = loop.made.event, loop.made.plan
    works = {
        "core": loop.step,
        "encode": lambda: encode(plan),
        "digest": lambda: chained(b"", event, plan),
        "tables": loop.tables,
    }
    labelled(benchmark, "serving step", part, page=page, running=running)
    rounds(benchmark, works[part], count=120)
    assert not verify(loop.door.state) and decode(encode(plan)) == plan


@pytest.mark.parametrize("running", (64, 256, 1024))
def test_serving_step_of_the_peer(benchmark: Any, running: int) -> None:
    """The peer's own step on the CPU, tables included, at page size 1 (its paged decode needs a GPU); skipped without it."""
    peer_sglang = pytest.importorskip("benchmarks.peer_sglang")
    if (peer := peer_sglang.load(1, "cpu", 4 << 30)) is None:
        pytest.skip("the peer is not importable here: benchmarks/peer_sglang.py says how to have it")
    loop = peer_sglang.PeerStep(peer, running, PROMPT, ROOM)
    count, turns = max(1, running // 64), iter(range(10_000))

    def prepare() -> None:
        if hasattr(loop, "taken"):
            loop.settle()
        turn = next(turns)
        loop.prepare([(turn * count + i) % running for i in range(count)])

    labelled(benchmark, "serving step", "peer", page=1, running=running)
    rounds(benchmark, lambda: loop.step(False), setup=prepare, count=60)
