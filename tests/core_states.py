"""Arena states for the tests of the core: built from sets of frames, read back as sets, and reached by random histories."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from core_pure.advance import advance, allocate, release
from core_pure.band import BLOCK_BITS, FREE, QUARANTINED, Band, quarantine, with_held
from core_pure.compact import compact
from core_pure.fences import launch, retire
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout
from core_pure.pins import pin, unpin
from core_pure.plan import Plan, encode
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify
from invariants.brute import BruteBand, BruteChain
from invariants.reference import Reference

OFF_GRID = (2, 3, 5, 7, 11, 13)
"""Frame sizes of which none is a multiple of another."""


def layout_of(sizes: Sequence[int], total_bytes: int) -> Layout:
    """Bands in exactly this byte order, and exactly these bytes."""
    return Layout(tuple(BandSpec(f"band{at}", size) for at, size in enumerate(sizes)), total_bytes, total_bytes)


def random_layout(rng: random.Random, bands: int, frames: int) -> Layout:
    """Off-grid bands in any order; the total is about ``frames`` frames of the mean size per band, no multiple of any."""
    sizes = [rng.choice(OFF_GRID) for _ in range(bands)]
    return layout_of(sizes, max(sizes) + frames * sum(sizes) + rng.randrange(max(sizes)))


def build(chain: BruteChain) -> ArenaState:
    """A healthy state with exactly these frames live, pinned and in quarantine. Fence k of the chain is fence k + 1 here."""
    specs = tuple(
        BandSpec(f"band{at}", band.frame_bytes, pages_min=band.pages_min, pages_max=band.pages_max)
        for at, band in enumerate(chain.bands)
    )
    empty = initial(Layout(specs, chain.total_bytes, chain.total_bytes))
    bands = [_built(band, sets) for band, sets in zip(empty.bands, chain.bands, strict=True)]
    fences = [fence + 1 for band in chain.bands for fence in band.quarantined]
    return evolve(empty.with_bands(bands), launched=max(fences, default=0))


def _built(band: Band, sets: BruteBand) -> Band:
    frames = np.array(sorted(sets.live), np.intp)
    ids = np.arange(len(frames), 0, -1)  # page order differs from frame order
    waiting = {fence + 1: np.array(sorted(held), np.intp) for fence, held in sets.quarantined.items() if held}
    page_of = band.page_of.write(frames, ids)
    for held in waiting.values():
        page_of = page_of.write(held, QUARANTINED)
    used = np.concatenate([frames, *waiting.values()])
    low, high = (int(used.min()), int(used.max()) + 1) if len(used) else (0, 0)
    holes = page_of.find(FREE, low, high)
    built = evolve(
        band,
        frame_of=band.frame_of.write(ids, frames),
        page_of=page_of,
        blocks=np.bincount(holes >> BLOCK_BITS, minlength=len(band.blocks)),
        live=len(frames),
        fresh=len(frames) + 1,
        low=low,
        high=high,
    )
    for fence, held in waiting.items():
        built = evolve(built, held=quarantine(built.held, fence, held))
    pins = {int(page_of.item(frame)): 1 for frame in sets.pinned}
    return with_held(built, built.held.batches, pins)


def sets_of(state: ArenaState, demand: Sequence[int]) -> BruteChain:
    """The state as sets of frames, under a demand; fences as they are."""
    bands = []
    for band, asked in zip(state.bands, demand, strict=True):
        waiting: dict[int, frozenset[int]] = {}
        for batch in band.held.batches:
            waiting[batch.fence] = waiting.get(batch.fence, frozenset()) | frozenset(int(f) for f in batch.frames)
        live, pinned = frozenset(band.live_frames().tolist()), frozenset(band.pinned_frames().tolist())
        spec = band.spec
        bands.append(BruteBand(spec.frame_bytes, live, waiting, pinned, asked, spec.pages_min, spec.pages_max))
    return BruteChain(tuple(bands), state.layout.total_bytes, state.layout.sink_bytes)


def bound_pages(state: ArenaState, *, pinned: bool | None = None) -> NDArray[np.int64]:
    """Ids of all bound pages; with ``pinned`` only the pinned ones, or only the others."""
    found: list[int] = []
    for band in state.bands:
        for index in band.page_of.read(band.live_frames()).tolist():
            if pinned is None or (index in band.held.pins) == pinned:
                found.append(band.home.id_base + index)
    return np.array(sorted(found), np.int64)


def where(state: ArenaState) -> dict[int, int]:
    """Page id to frame of every bound page."""
    pages = bound_pages(state)
    return dict(zip(pages.tolist(), state.frames_of(pages).tolist(), strict=True))


def bytes_moved(state: ArenaState, plan: Plan) -> int:
    """Bytes that a plan moves."""
    sizes = [band.spec.frame_bytes for band in state.bands]
    return sum(sizes[int(band)] for wave in plan.waves for band in wave[:, 0])


def some(rng: random.Random, pages: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """A few of these pages, at most ``most``, in random order."""
    count = min(len(pages), rng.randint(0, most))
    return np.array(rng.sample(pages.tolist(), count), np.int64)


def random_event(rng: random.Random, state: ArenaState, most: int) -> Outcome | Refusal:
    """One legal transition of any kind, touching at most about ``most`` pages."""
    loose = bound_pages(state, pinned=False)
    flying = state.launched > state.retired
    reader = state.launched if flying and rng.random() < 0.5 else None
    kind = rng.choices(
        ("allocate", "release", "advance", "compact", "launch", "retire", "pin", "unpin"), (9, 6, 6, 1, 2, 3, 2, 3)
    )[0]
    demand = tuple(rng.choice((0, 0, rng.randint(0, most))) for _ in state.bands)
    if kind == "allocate":
        return allocate(state, demand, reader=reader)
    if kind == "release":
        return release(state, some(rng, loose, 2 * most), reader=reader)
    if kind == "advance":
        return advance(state, release=some(rng, loose, most), demand=demand, reader=reader)
    if kind == "compact":
        limit = rng.choice((None, 0, rng.randrange(1, 40)))
        written = rng.choice((None, some(rng, bound_pages(state), most))) if reader else None
        return compact(state, bytes_limit=limit, reader=reader, written=written)
    if kind == "launch":
        return launch(state)
    if kind == "retire":
        return retire(state, rng.randint(state.retired, state.launched))
    if kind == "pin":
        return pin(state, some(rng, loose, 1))
    return unpin(state, some(rng, bound_pages(state, pinned=True), 2))


def histories(seed: int, *, bands: Sequence[int], frames: int, steps: int, most: int = 4) -> Iterator[ArenaState]:
    """Endless states reached by random events from empty arenas; a new arena every ``steps`` events."""
    rng = random.Random(seed)
    while True:
        state = initial(random_layout(rng, rng.choice(bands), frames))
        for _ in range(steps):
            outcome = random_event(rng, state, most)
            if isinstance(outcome, Outcome):
                state = outcome.state
                yield state


class Carried:
    """An arena value with real bytes beside it: each plan is carried out word by word, each verdict expected beforehand."""

    def __init__(self, layout: Layout) -> None:
        self.state = initial(layout)
        self.model = Reference(layout)
        self.verdicts: Counter[str] = Counter()

    def advance(
        self, pages: Sequence[int] = (), demand: Sequence[int] | None = None, reader: int | None = None
    ) -> Outcome | Refusal:
        """One step in both; the model must have expected the answer. Bytes, table and hazards are checked."""
        wanted = tuple(demand) if demand is not None else (0,) * len(self.state.bands)
        expected = self.model.expect_advance(list(pages), wanted, reader=reader)
        answer = advance(self.state, release=np.array(pages, np.int64), demand=wanted, reader=reader)
        self.verdicts["outcome" if isinstance(answer, Outcome) else "refusal"] += 1
        assert ("outcome" if isinstance(answer, Outcome) else "refusal") in expected
        if isinstance(answer, Outcome):
            self.model.absorb(encode(answer.plan), released=list(pages), pages=answer.pages, demand=wanted, reader=reader)
            self.verdicts["moved"] += bool(answer.plan.waves)
            self.verdicts["waited"] += answer.plan.wait is not None
            self._keep(answer.state)
        return answer

    def compact(self, limit: int | None = None) -> None:
        """Compaction in both."""
        answer = compact(self.state, bytes_limit=limit)
        self.model.absorb(encode(answer.plan), bytes_limit=limit)
        self.verdicts["compacted"] += bool(answer.plan.waves)
        self._keep(answer.state)

    def pin(self, pages: Sequence[int], count: int) -> None:
        """Add a pin to each page, or give one back (-1)."""
        self._keep((pin if count > 0 else unpin)(self.state, np.array(pages, np.int64)).state, check=False)
        self.model.pin(pages, count)
        self.compare()

    def launch(self) -> int:
        """A step is launched in both. Returns: its fence."""
        self._keep(launch(self.state).state, check=False)
        self.model.launched += 1
        return self.state.launched

    def retire(self, fence: int) -> None:
        """All fences up to this one have passed in both."""
        self._keep(retire(self.state, fence).state, check=False)
        self.model.retire(fence)
        self.compare()

    def _keep(self, state: ArenaState, *, check: bool = True) -> None:
        self.state = state
        if check:
            self.compare()

    def compare(self) -> None:
        """Pages, quarantine and pins of both accounts are the same, and the core finds nothing wrong with itself."""
        assert verify(self.state) == []
        pages, waiting, pins = [], [], []
        for band, sets in zip(self.state.bands, sets_of(self.state, (0,) * len(self.state.bands)).bands, strict=True):
            base, frames = band.home.id_base, band.live_frames()
            pages.append(dict(zip((band.page_of.read(frames) + base).tolist(), frames.tolist(), strict=True)))
            waiting.append({frame: fence for fence, held in sets.quarantined.items() for frame in held})
            pins.append({base + page: count for page, count in band.held.pins.items()})
        assert list(self.model.differences(pages, waiting, pins)) == []

    def random_event(self, rng: random.Random, most: int) -> None:
        """One legal event of any kind."""
        loose = bound_pages(self.state, pinned=False)
        flying = self.state.launched > self.state.retired
        reader = self.state.launched if flying and rng.random() < 0.4 else None
        kind = rng.choices(("advance", "compact", "launch", "retire", "pin", "unpin"), (18, 2, 2, 3, 2, 3))[0]
        if kind == "advance":
            demand = [rng.choice((0, 0, rng.randint(0, most))) for _ in self.state.bands]
            self.advance(some(rng, loose, most).tolist(), demand, reader)
        elif kind == "compact":
            self.compact(rng.choice((None, rng.randrange(40))))
        elif kind == "launch":
            self.launch()
        elif kind == "retire" and flying:
            self.retire(rng.randint(self.state.retired + 1, self.state.launched))
        elif kind == "pin":
            self.pin(some(rng, loose, 1).tolist(), 1)
        elif kind == "unpin":
            self.pin(some(rng, bound_pages(self.state, pinned=True), 2).tolist(), -1)
