"""Which moves can run together. A wave's targets are disjoint, in bytes, from everything occupied when it starts.

Targets inside a band's own old span are its own holes: free from the start, wave 1. A target beyond the span may lie on
bytes that a neighbour's moves vacate first. Bands keep their order, so those that move up wait only for bands above them,
and those that move down for bands below: levels are found from the top down and from the bottom up, and at most
max(1, bands - 1) of them exist, because the first band never moves up and the last never moves down. Under a falling top
(``resize``) the last does, and there may be one more.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from .band import Band, Frames
from .plan import NO_MOVES, Rows, stack, triples


@frozen
class Moves:
    """The moves of one band: its value before them, and frames pairwise."""

    band: Band
    sources: Frames
    targets: Frames


def _levels(moves: Sequence[Moves]) -> list[int]:
    """The wave, from 1, of each band's moves beyond its span; 1 also for bands without any."""
    levels = [1] * len(moves)
    for upward, order in ((True, range(len(moves) - 1, -1, -1)), (False, range(len(moves)))):
        waited: list[int] = []  # bands already done in this direction
        for at in order:
            band, targets = moves[at].band, moves[at].targets
            outside = targets >= band.high if upward else targets < band.low
            if outside.any():
                beyond, size = targets[outside], band.spec.frame_bytes
                low, high = int(beyond.min()) * size, (int(beyond.max()) + 1) * size
                blockers = [j for j in waited if len(moves[j].sources) and _overlaps(moves[j].band, low, high)]
                levels[at] = 1 + max((levels[j] for j in blockers), default=0)
            waited.append(at)
    return levels


def _overlaps(band: Band, low: int, high: int) -> bool:
    size = band.spec.frame_bytes
    return band.low * size < high and low < band.high * size


def schedule(moves: Sequence[Moves]) -> tuple[Rows, ...]:
    """Waves of rows (band, source, target) for the moves of all bands, in byte order; () when nothing moves."""
    if not any(len(each.sources) for each in moves):
        return ()
    levels = _levels(moves)
    waves: list[list[Rows]] = [[] for _ in range(max(levels))]
    for each, level in zip(moves, levels, strict=True):
        inside = (each.targets >= each.band.low) & (each.targets < each.band.high)
        if level == 1 or inside.all():
            waves[0].append(triples(each.band.home.index, each.sources, each.targets))
            continue
        for wave, chosen in ((0, inside), (level - 1, ~inside)):
            waves[wave].append(triples(each.band.home.index, each.sources[chosen], each.targets[chosen]))
    stacked = (stack(blocks, NO_MOVES) for blocks in waves)
    return tuple(rows for rows in stacked if len(rows))
