"""Where bands may stand: integer arithmetic on the chain, without tables. CrossHair runs on this file as it is.

A band takes part with four ints: its frame size, the frames that its window must hold (``need``), and the hull
[first, end) of the frames that may not leave the window. A band without such frames has first = NOWHERE, end = 0.
A band that needs nothing is skipped, not rounded to its grid (case F44).
"""

from __future__ import annotations

from typing import NamedTuple

NOWHERE = 1 << 62
"""First immovable frame of a band that has none."""


class Claim(NamedTuple):
    """What one band asks of the chain. Units: frames of that band; ``lean`` is -1, 0 or +1 (see ``leans``)."""

    frame_bytes: int
    need: int
    first: int = NOWHERE
    end: int = 0
    lean: int = 0


def edge_above(edge: int, total: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    """The lowest byte edge at which a band can end that starts at or above ``edge``; -1 when it cannot.

    pre: 0 <= edge <= total and frame_bytes > 0 and need >= 0 and first >= 0 and end >= 0
    """
    if need == 0:
        return edge
    low = -(-edge // frame_bytes)
    if low > first:
        return -1
    high = low + need
    if high < end:
        high = end
    if high > total // frame_bytes:
        return -1
    return high * frame_bytes


def edge_below(edge: int, frame_bytes: int, need: int, first: int, end: int) -> int:
    """The highest byte edge at which a band can start that ends at or below ``edge``; -1 when it cannot."""
    if need == 0:
        return edge
    high = edge // frame_bytes
    if high < end:
        return -1
    low = high - need
    if low > first:
        low = first
    if low < 0:
        return -1
    return low * frame_bytes


def refused_at(claims: tuple[Claim, ...], sink: int, total: int) -> int:
    """The first band, in byte order, for which no window is left; -1 when every band has one."""
    edge = sink
    for at, (frame_bytes, need, first, end, _) in enumerate(claims):
        edge = edge_above(edge, total, frame_bytes, need, first, end)
        if edge < 0:
            return at
    return -1


def ceilings(claims: tuple[Claim, ...], total: int) -> list[int]:
    """For each band the byte edge that it must end below for the bands above it to fit; the last entry is ``total``.

    Length len(claims) + 1, entry i bounds where band i may *start*; -1 when bands i.. cannot fit.
    """
    edges = [total]
    for frame_bytes, need, first, end, _ in reversed(claims):
        edges.append(edge_below(edges[-1], frame_bytes, need, first, end) if edges[-1] >= 0 else -1)
    edges.reverse()
    return edges


def window(low: int, high: int, need: int, first: int, end: int, lean: int) -> tuple[int, int]:
    """The window of one band inside the room [low, high): its hull, grown until it holds ``need`` frames.

    A band at an end of the arena grows first into the gap that no other band can use; a float grows into the larger gap
    first; a new float takes the middle. Requires: low <= first, end <= high, need <= high - low (``ceilings`` gives it).
    """
    if end <= first:  # no hull yet
        slack = high - low - need
        start = low + (slack // 2 if lean == 0 else 0 if lean < 0 else slack)
        return start, start + need
    extra = max(0, need - (end - first))
    below, above = first - low, high - end
    if lean < 0 or (lean == 0 and below > above):
        down = min(extra, below)
        return first - down, end + (extra - down)
    up = min(extra, above)
    return first - (extra - up), end + up


def windows(claims: tuple[Claim, ...], sink: int, total: int) -> list[tuple[int, int]] | None:
    """One window [low, high) per band, (0, 0) for a band that needs nothing; None when they do not fit.

    It succeeds exactly when ``refused_at`` is -1 (a lemma of invariants/lemmas.py and a test). Cost: O(bands).
    """
    bounds = ceilings(claims, total)
    if bounds[0] < sink:
        return None
    placed, edge = [], sink
    for at, (frame_bytes, need, first, end, lean) in enumerate(claims):
        if need == 0:
            placed.append((0, 0))
            continue
        low, high = window(-(-edge // frame_bytes), bounds[at + 1] // frame_bytes, need, first, end, lean)
        placed.append((low, high))
        edge = high * frame_bytes
    return placed


def room(claims: tuple[Claim, ...], sink: int, total: int, band: int) -> int:
    """The most frames that one band could hold while every other band keeps its claim; -1 when these do not fit.

    The closed form behind every "obtainable" figure: the room between the lower bands packed down and the upper packed up.
    """
    edge = sink
    for frame_bytes, need, first, end, _ in claims[:band]:
        edge = edge_above(edge, total, frame_bytes, need, first, end)
        if edge < 0:
            return -1
    bound = ceilings(claims[band + 1 :], total)[0]
    frame_bytes, _, first, end, _ = claims[band]
    low, high = -(-edge // frame_bytes), bound // frame_bytes
    if bound < 0 or (end > first and (low > first or high < end)):
        return -1
    return max(0, high - low)


def leans(bands: int) -> tuple[int, ...]:
    """Which way each position grows: the first band down to the sink, the last up to the top, floats either way."""
    return tuple(-1 if at == 0 else 1 if at == bands - 1 else 0 for at in range(bands))
