"""What ``replay --verify`` asks of every plan and of the leases, in numpy at full size; the state's own claims are ``verify``'s.

A second telling of the catalogue's plan claims: the interpreter of ``invariants`` reads plans byte by byte and is meant for
tiny arenas; this one reads intervals, so that it keeps up with a serving loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from core_pure.capacity import Pool
from core_pure.door import Door
from core_pure.layout import Layout
from core_pure.leases import FIRST_BAND, HANDLE
from core_pure.plan import Plan
from core_pure.state import ArenaState
from core_pure.verify import Violation

Ints = NDArray[np.int64]


@define
class PlanCheck:
    """A watcher that checks each plan against the values before and after it.

    PLAN-1: one row per page; each wave's sources hold pages and its targets share no byte with what is occupied. PLAN-2:
    the rows, written on the old table, give the new one. BYTE-2: what is filled was bound by this plan.
    """

    layout: Layout
    made: int = 0
    violations: list[str] = field(factory=list)
    _before: ArenaState | None = None

    def before(self, state: ArenaState, plan: Plan) -> None:
        """Keep the value; it stays valid while the plan is carried out."""
        self._before = state

    def after(self, state: ArenaState, plan: Plan) -> None:
        """Check the plan that led from the kept value to ``state``."""
        before, self._before = self._before, None
        assert before is not None
        self.made += 1
        self.violations += [f"plan {self.made}: {text}" for text in self.check(before, plan, state)]

    def check(self, before: ArenaState, plan: Plan, after: ArenaState) -> Iterator[str]:
        """Everything wrong with one plan, a sentence each."""
        ids, frames = plan.rows[:, 0].astype(np.int64), plan.rows[:, 1].astype(np.int64)
        if len(np.unique(ids)) != len(ids):
            yield "PLAN-1: a page has two table rows"
        table = before.table()
        old = table[ids].astype(np.int64)
        table[ids] = np.maximum(frames, 0)
        differs = int((table != after.table()).sum())
        if differs:
            yield f"PLAN-2: {differs} cells of the new table are not the old ones with the plan's rows"
        moved = self._moved(ids, old, frames, plan)
        bands = self._bands(ids)
        gone = (old > 0) & ~moved
        yield from self._waves(before, plan, bands[gone], old[gone])
        new = (frames > 0) & ~moved
        bound = set(zip(bands[new].tolist(), frames[new].tolist(), strict=True))
        filled = [(band, frame) for band, frame, _ in plan.fills.tolist()]
        if len(set(filled)) != len(filled) or not bound.issuperset(filled):
            yield "BYTE-2: a fill names a frame twice, or one that this plan does not bind"

    def _bands(self, ids: Ints) -> Ints:
        found: Ints = np.searchsorted(np.array(self.layout.id_bases), ids, side="left") - 1
        return found

    def _moved(self, ids: Ints, old: Ints, new: Ints, plan: Plan) -> NDArray[np.bool_]:
        """Which rows are of pages that moved: their old frame is the source of a move to their new one."""
        moves = {(band, source, target) for wave in plan.waves for band, source, target in wave.tolist()}
        rows = zip(self._bands(ids).tolist(), old.tolist(), new.tolist(), strict=True)
        return np.array([row in moves for row in rows], np.bool_) if moves else np.zeros(len(ids), np.bool_)

    def _waves(self, before: ArenaState, plan: Plan, gone_bands: Ints, gone: Ints) -> Iterator[str]:
        """Follow the frames in use through the waves, band by band, as sets and as byte intervals."""
        if not plan.waves:
            return
        used = [set(band.live_frames().tolist()) for band in before.bands]
        for at, frame in zip(gone_bands.tolist(), gone.tolist(), strict=True):
            used[at].discard(frame)
        for number, wave in enumerate(plan.waves):
            rows = wave.tolist()
            if any(source not in used[band] for band, source, _ in rows):
                yield f"PLAN-1: wave {number} moves a frame that holds no page"
            occupied = [(band, frame) for band, frames in enumerate(used) for frame in frames]
            if self._overlap(occupied + [(band, target) for band, _, target in rows]):
                yield f"PLAN-1: a target of wave {number} shares bytes with a frame in use or another target"
            for band, source, target in rows:
                used[band].discard(source)
                used[band].add(target)

    def _overlap(self, places: list[tuple[int, int]]) -> bool:
        """Whether any two (band, frame) share a byte, or one reaches into the sink or past the end."""
        array = np.array(places, np.int64).reshape(-1, 2)
        sizes = np.array([band.frame_bytes for band in self.layout.bands], np.int64)[array[:, 0]]
        low = np.sort(array[:, 1] * sizes)
        high = np.sort((array[:, 1] + 1) * sizes)
        # Of disjoint intervals the k-th start and the k-th end belong together.
        apart = bool((low[1:] >= high[:-1]).all())
        return not apart or int(low[0]) < self.layout.sink_bytes or int(high[-1]) > self.layout.total_bytes


def leases_agree(pool: Pool) -> Iterator[Violation]:
    """LEASE-1. Without sharing, the pages in the lease rows are exactly the live pages, each held once."""
    assert isinstance(pool, Door)
    leases, state = pool.leases, pool.state
    facts = leases.facts.copy()[: leases.fresh]
    facts = np.where(facts[:, HANDLE : HANDLE + 1] > 0, facts, 0)
    for at, band in enumerate(state.bands):
        begin, end = facts[:, FIRST_BAND + 2 * at], facts[:, FIRST_BAND + 2 * at + 1]
        rows = leases.rows[at].copy()[: leases.fresh * leases.widths[at]].reshape(leases.fresh, leases.widths[at])
        columns = np.arange(leases.widths[at])
        pages = rows[(columns >= begin[:, None]) & (columns < end[:, None])]
        distinct, bound = len(np.unique(pages)), int((state.frames_of(pages) > 0).sum())
        if not len(pages) == distinct == bound == band.live:
            text = f"{band.name}: leases hold {len(pages)} pages, {distinct} distinct, {bound} bound; {band.live} are live"
            yield Violation("LEASE-1", text)
