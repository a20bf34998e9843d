"""Contracts of the chain arithmetic, for CrossHair: placement, refusal and capacity of one, two and three bands.

"Symbolic sizes" means that frame sizes are any integers too. Where CrossHair cannot decide products of unknowns, frame
sizes are the off-grid ones of case F03 scaled down (7, 5 and 96 : 7 : 5) and everything else stays any integer; the lemmas
of ``lemmas`` prove the same statements for all sizes. ``other`` and ``end_other`` describe any rival placement. An arena has at
most NOWHERE (2⁶²) bytes: beyond that the mark would be a frame, as CrossHair found.
"""

from __future__ import annotations

from core_pure.chain import NOWHERE, Claim, ceilings, edge_above, edge_below, leans, refused_at, room, window, windows

Windows = list[tuple[int, int]] | None


def edge_above_is_legal(edge: int, total: int, size: int, need: int, first: int, end: int) -> int:
    """The window it stands for starts above the edge, holds the need and the hull, and ends inside.

    pre: size >= 1 and need >= 1 and 0 <= edge <= total and 0 <= first and 0 <= end
    post: __return__ == -1 or (edge + need * size <= __return__ <= total and end * size <= __return__)
    """
    return edge_above(edge, total, size, need, first, end)


def edge_above_is_least(edge: int, total: int, size: int, need: int, first: int, end: int, other: int, end_other: int) -> int:
    """No legal window ends lower; where one exists there is an answer.

    pre: size >= 1 and need >= 1 and 0 <= edge <= total and 0 <= first and 0 <= end
    pre: edge <= other * size and other + need <= end_other and end_other * size <= total
    pre: other <= first and end <= end_other
    post: 0 <= __return__ <= end_other * size
    """
    return edge_above(edge, total, size, need, first, end)


def edge_below_is_legal(edge: int, size: int, need: int, first: int, end: int) -> int:
    """The mirror: the window ends below the edge, holds the need and the hull, and starts at or above 0.

    pre: size >= 1 and need >= 1 and 0 <= edge and 0 <= first and 0 <= end
    post: __return__ == -1 or (0 <= __return__ and __return__ + need * size <= edge and end * size <= edge)
    """
    return edge_below(edge, size, need, first, end)


def edge_below_is_highest(edge: int, size: int, need: int, first: int, end: int, other: int, end_other: int) -> int:
    """No legal window starts higher; where one exists there is an answer.

    pre: size >= 1 and need >= 1 and 0 <= edge and 0 <= first and 0 <= end
    pre: 0 <= other and other + need <= end_other and end_other * size <= edge
    pre: other <= first and end <= end_other
    post: __return__ >= other * size
    """
    return edge_below(edge, size, need, first, end)


def empty_band_is_skipped(edge: int, total: int, size: int, first: int, end: int) -> int:
    """A band that needs nothing takes nothing, not even its rounding (case F44).

    pre: size >= 1 and 0 <= edge <= total and 0 <= first and 0 <= end
    post: __return__ == edge == edge_below(edge, size, 0, first, end)
    """
    return edge_above(edge, total, size, 0, first, end)


def window_keeps_its_hull(low: int, high: int, need: int, first: int, end: int, lean: int) -> tuple[int, int]:
    """The window lies in its room, keeps the hull and holds exactly what is needed, or the hull if that is more.

    pre: -1 <= lean <= 1 and 0 <= low <= first < end <= high and 0 <= need <= high - low
    post: low <= __return__[0] <= first and end <= __return__[1] <= high
    post: __return__[1] - __return__[0] == max(need, end - first)
    """
    return window(low, high, need, first, end, lean)


def new_window_lies_in_its_room(low: int, high: int, need: int, lean: int) -> tuple[int, int]:
    """The same for a band without hull; a new float has its slack split evenly.

    pre: -1 <= lean <= 1 and 0 <= low and 0 <= need <= high - low
    post: low <= __return__[0] and __return__[1] == __return__[0] + need <= high
    post: lean != 0 or 0 <= (high - __return__[1]) - (__return__[0] - low) <= 1
    """
    return window(low, high, need, NOWHERE, 0, lean)


def one_band_placed_or_refused(size: int, need: int, first: int, end: int, sink: int, total: int) -> Windows:
    """One band, symbolic size: windows exist exactly when the walk does not refuse, and are legal.

    pre: size >= 1 and need >= 1 and 0 <= sink <= total and 0 <= first < end
    post: (__return__ is None) == (refused_at((Claim(size, need, first, end, -1),), sink, total) == 0)
    post: __return__ is None or sink <= __return__[0][0] * size
    post: __return__ is None or __return__[0][1] <= total // size
    post: __return__ is None or (__return__[0][0] <= first and end <= __return__[0][1])
    """
    return windows((Claim(size, need, first, end, -1),), sink, total)


def two_bands_placed_or_refused(
    need: int, first: int, end: int, need_b: int, first_b: int, end_b: int, sink: int, total: int
) -> Windows:
    """Two bands of 7 and 5 bytes with any hulls: windows exist exactly when the walk does not refuse; ordered, disjoint.

    pre: need >= 1 and need_b >= 1 and 0 <= sink <= total and 0 <= first < end and 0 <= first_b < end_b
    post: (__return__ is None) == (refused_at((Claim(7, need, first, end), Claim(5, need_b, first_b, end_b)), sink, total) >= 0)
    post: __return__ is None or (sink <= __return__[0][0] * 7 and __return__[0][1] * 7 <= __return__[1][0] * 5)
    post: __return__ is None or __return__[1][1] * 5 <= total
    """
    return windows((Claim(7, need, first, end, -1), Claim(5, need_b, first_b, end_b, 1)), sink, total)


def three_bands_placed_or_refused(need: int, need_b: int, need_c: int, sink: int, total: int) -> Windows:
    """Three bands of 96, 7 and 5 bytes: windows exist exactly when the walk does not refuse.

    pre: need >= 1 and need_b >= 1 and need_c >= 1 and 0 <= sink <= total
    post: (__return__ is None) == (refused_at((Claim(96, need), Claim(7, need_b), Claim(5, need_c)), sink, total) >= 0)
    """
    return windows((Claim(96, need, lean=-1), Claim(7, need_b), Claim(5, need_c, lean=1)), sink, total)


def two_bands_refused_only_if_impossible(need: int, need_b: int, sink: int, total: int, other: int, other_b: int) -> int:
    """Two bands of 7 and 5 bytes: where any placement exists (starts ``other``, ``other_b``), nothing is refused.

    pre: need >= 1 and need_b >= 1 and 0 <= sink <= total <= NOWHERE
    pre: sink <= other * 7 and (other + need) * 7 <= other_b * 5 and (other_b + need_b) * 5 <= total
    post: __return__ == -1
    """
    return refused_at((Claim(7, need), Claim(5, need_b)), sink, total)


def three_bands_refused_only_if_impossible(
    need: int, need_b: int, need_c: int, sink: int, over: int, over_b: int, over_c: int, spare: int
) -> int:
    """Three bands of 96, 7 and 5 bytes: where any placement exists (its gaps are the other arguments), nothing is refused.

    pre: need >= 1 and need_b >= 1 and need_c >= 1 and 0 <= sink and 0 <= over and 0 <= over_b and 0 <= over_c and 0 <= spare
    pre: sink < 2**40 and need < 2**40 and need_b < 2**40 and need_c < 2**40 and over < 2**40 and over_b < 2**40
    pre: over_c < 2**40 and spare < 2**40
    post: __return__ == -1
    """
    low = -(-sink // 96) + over
    low_b = -(-((low + need) * 96) // 7) + over_b
    low_c = -(-((low_b + need_b) * 7) // 5) + over_c
    total = (low_c + need_c) * 5 + spare
    return refused_at((Claim(96, need), Claim(7, need_b), Claim(5, need_c)), sink, total)


def nothing_promised_beyond_bytes(need: int, need_b: int, need_c: int, sink: int, total: int) -> int:
    """What is not refused fits in bytes: three bands, 96, 7 and 5 (case F05).

    pre: need >= 0 and need_b >= 0 and need_c >= 0 and 0 <= sink <= total
    post: __return__ >= 0 or sink + need * 96 + need_b * 7 + need_c * 5 <= total
    """
    return refused_at((Claim(96, need), Claim(7, need_b), Claim(5, need_c)), sink, total)


def ceilings_fall(need: int, need_b: int, sink: int, total: int) -> list[int]:
    """From the top down, edges fall by at least what each band needs, or are -1.

    pre: need >= 0 and need_b >= 0 and 0 <= sink <= total
    post: len(__return__) == 3 and __return__[2] == total
    post: __return__[0] == -1 or __return__[0] + need * 7 <= __return__[1] and __return__[1] + need_b * 5 <= total
    """
    return ceilings((Claim(7, need), Claim(5, need_b)), total)


def room_of_one_is_most(size: int, sink: int, total: int) -> int:
    """One band, symbolic size: its room is obtainable, and one frame more is refused.

    pre: size >= 1 and 0 <= sink <= total <= NOWHERE
    post: __return__ >= 0
    post: __return__ == 0 or refused_at((Claim(size, __return__),), sink, total) == -1
    post: refused_at((Claim(size, __return__ + 1),), sink, total) == 0
    """
    return room((Claim(size, 0),), sink, total, 0)


def room_of_two_is_most(need_b: int, sink: int, total: int) -> int:
    """Two bands of 7 and 5 bytes: the room of the lower is obtainable, and one frame more is refused.

    pre: need_b >= 0 and 0 <= sink <= total <= NOWHERE
    post: __return__ <= 0 or refused_at((Claim(7, __return__), Claim(5, need_b)), sink, total) == -1
    post: refused_at((Claim(7, __return__ + 1), Claim(5, need_b)), sink, total) >= 0 or __return__ < 0
    """
    return room((Claim(7, 0), Claim(5, need_b)), sink, total, 0)


def room_of_three_is_most(need: int, need_c: int, sink: int, total: int) -> int:
    """Three bands of 96, 7 and 5 bytes: the room of the float is obtainable, and one frame more is refused.

    pre: need >= 0 and need_c >= 0 and 0 <= sink <= total <= NOWHERE
    post: __return__ <= 0 or refused_at((Claim(96, need), Claim(7, __return__), Claim(5, need_c)), sink, total) == -1
    post: refused_at((Claim(96, need), Claim(7, __return__ + 1), Claim(5, need_c)), sink, total) >= 0 or __return__ < 0
    """
    return room((Claim(96, need), Claim(7, 0), Claim(5, need_c)), sink, total, 1)


def leans_point_outward(bands: int) -> tuple[int, ...]:
    """The first band leans down, the last up, all between neither way.

    pre: 2 <= bands <= 6
    post: len(__return__) == bands and __return__[0] == -1 and __return__[bands - 1] == 1
    post: all(lean == 0 for lean in __return__[1 : bands - 1])
    """
    return leans(bands)
