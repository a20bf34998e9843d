"""A Prometheus collector for any arena: ``REGISTRY.register(ArenaCollector(arena))``. Needs the optional extra ``prometheus``.

A scrape comes on its own thread, so it reads only counts of the frozen value, never a table or the device. What happens
between scrapes is counted as the door tells it; a serving loop that takes observers also tells admissions and retractions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from core_pure.band import with_held
from core_pure.door import Door
from core_pure.fits import RELIEF, Refusal, obtainable
from core_pure.plan import Plan
from core_pure.report import report
from core_pure.state import ArenaState
from core_pure.verify import Violation

PREFIX = "kvarena"


def withheld_by_pins(state: ArenaState) -> tuple[int, ...]:
    """Pages of each band, alone, that could be had if nothing were pinned and cannot be had now. Reads counts and hulls only."""
    if not any(band.held.pins for band in state.bands):
        return (0,) * len(state.bands)
    loose = state.with_bands([with_held(band, band.held.batches, {}) for band in state.bands])
    return tuple(obtainable(loose, at, RELIEF) - obtainable(state, at, RELIEF) for at in range(len(state.bands)))


class ArenaCollector(Collector):  # type: ignore[misc]
    """Counts what one door does, and shows what its arena holds.

    Args: arena: any door; the collector joins its observers. labels: constant labels, to tell several arenas apart.
    """

    def __init__(self, arena: Door, labels: dict[str, str] | None = None) -> None:
        self._arena = arena
        self._names = tuple(labels or {})
        self._values = tuple((labels or {}).values())
        self._moves: Counter[str] = Counter()
        self._copies: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._violations: Counter[str] = Counter()
        self._plans = self._admissions = self._retractions = 0
        arena.observers = (*arena.observers, self)

    # --- what is told ------------------------------------------------------------------------------------------------------

    def committed(self, plan: Plan) -> None:
        """A plan was applied."""
        self._plans += 1
        for wave in plan.waves:
            self._count(wave, self._moves)
        if len(plan.copies):
            self._count(plan.copies, self._copies)

    def _count(self, rows: Any, frames: Counter[str]) -> None:
        layout = self._arena.layout
        for band, count in enumerate(np.bincount(rows[:, 0], minlength=len(layout.bands)).tolist()):
            frames[layout.names[band]] += count
            self._bytes[layout.names[band]] += count * layout.bands[band].frame_bytes

    def refused(self, refusal: Refusal) -> None:
        """A demand was refused."""
        self._refusals[refusal.band, refusal.reason] += 1

    def admitted(self, requests: int) -> None:
        """A serving layer admitted so many requests."""
        self._admissions += requests

    def retracted(self, requests: int) -> None:
        """A serving layer took back so many running requests."""
        self._retractions += requests

    def verified(self, violations: Sequence[Violation]) -> None:
        """What a ``verify`` found."""
        self._violations.update(each.claim for each in violations)

    def after_step(self, loop: Any, record: Any) -> None:
        """Observer of the serving loop."""
        self.admitted(record.admitted)
        self.retracted(record.retracted)

    # --- what is shown -------------------------------------------------------------------------------------------------------

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """One scrape."""
        state = self._arena.state
        held = report(state)  # of this very value: the door may go on meanwhile
        rows = [
            ((band.band, kind), amount)
            for band in held.bands
            for kind, amount in (
                ("live", band.live_bytes),
                ("hole", band.hole_bytes),
                ("quarantined", band.quarantined_bytes),
            )
        ]
        yield self._gauge("band_bytes", "Bytes of each band by state; with gap and sink they add up to the total.",
                          ("band", "state"), rows)  # fmt: skip
        yield self._gauge("pinned_bytes", "Of the live bytes, those that a transfer has pinned.", ("band",),
                          [((band.band,), band.pinned_bytes) for band in held.bands])  # fmt: skip
        for name, text, amount in (
            ("gap_bytes", "Bytes outside all spans, above the sink.", held.gap_bytes),
            ("sink_bytes", "The reserved low bytes.", held.sink_bytes),
            ("total_bytes", "The arena.", held.total_bytes),
        ):
            yield self._gauge(name, text, (), [((), amount)])
        withheld = withheld_by_pins(state)
        yield self._gauge("withheld_by_pins_pages", "Pages that could be had if nothing were pinned, and cannot be had now.",
                          ("band",), [((band.name,), n) for band, n in zip(state.bands, withheld, strict=True)])  # fmt: skip
        yield from self._counters(state)

    def _counters(self, state: ArenaState) -> Iterator[CounterMetricFamily]:
        bands = [band.name for band in state.bands]
        for name, text, counts in (
            ("moved_frames", "Frames moved by relief and compaction.", self._moves),
            ("copied_frames", "Frames duplicated: snapshots, shared partial pages.", self._copies),
            ("copied_bytes", "Bytes copied inside the arena, by moves and duplications.", self._bytes),
        ):
            yield self._counter(name, text, ("band",), [((band,), counts[band]) for band in bands])
        yield self._counter("refusals", "Demands that did not fit, by the band that ran out and the reason.",
                            ("band", "reason"), list(self._refusals.items()))  # fmt: skip
        yield self._counter("violations", "Violated invariants that verify() found, by claim.", ("claim",),
                            [((claim,), count) for claim, count in list(self._violations.items())])  # fmt: skip
        for name, text, count in (
            ("plans", "Plans applied.", self._plans),
            ("admissions", "Requests admitted.", self._admissions),
            ("retractions", "Running requests taken back to be recomputed.", self._retractions),
        ):
            yield self._counter(name, text, (), [((), count)])

    def _gauge(
        self, name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=(*self._names, *labels))
        for values, amount in rows:
            family.add_metric((*self._values, *values), amount)
        return family

    def _counter(
        self, name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=(*self._names, *labels))
        for values, amount in rows:
            family.add_metric((*self._values, *values), amount)
        return family
