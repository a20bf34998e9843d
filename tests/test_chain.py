"""The chain's integer arithmetic against the plainest enumeration there is: every window vector, by ranges of bytes."""

from __future__ import annotations

import itertools
import random

from core_pure.chain import NOWHERE, Claim, ceilings, edge_above, edge_below, leans, refused_at, room, window, windows


def all_windows(claim: Claim, sink: int, total: int) -> list[tuple[int, int]]:
    """Every window that a claim accepts, alone in the arena."""
    size, need, first, end, _ = claim
    frames = range(-(-sink // size), total // size + 1)
    fitting = [(low, high) for low, high in itertools.combinations(frames, 2) if high - low >= need]
    return [(low, high) for low, high in fitting if low <= first and high >= end]


def exists(claims: tuple[Claim, ...], sink: int, total: int) -> bool:
    """Whether some vector of disjoint windows in byte order exists; what needs nothing takes no part."""
    edges = {sink}
    for claim in claims:
        if claim.need:
            fitting = all_windows(claim, sink, total)
            size = claim.frame_bytes
            edges = {high * size for low, high in fitting for edge in edges if edge <= low * size}
    return bool(edges)


def random_claims(rng: random.Random, total: int) -> tuple[Claim, ...]:
    """One to three bands, some with immovable frames that their need covers."""
    claims = []
    for at in range(rng.randint(1, 3)):
        size = rng.choice((1, 2, 3, 4, 5))
        need, first, end = rng.choice((0, 0, 1, 2, 3)), NOWHERE, 0
        if need and rng.random() < 0.5:
            first = rng.randrange(1, max(2, total // size))
            end = first + rng.randint(1, need)
        claims.append(Claim(size, need, first, end, at - 1))
    return tuple(claims)


def test_feasibility_equals_enumeration() -> None:
    """``refused_at``, ``ceilings`` and ``windows`` say the same as every window vector, in 4,000 chains of odd sizes."""
    rng, answers = random.Random(3), [0, 0]
    for _ in range(4_000):
        total = rng.randrange(8, 22)
        claims, sink = random_claims(rng, total), rng.randrange(1, 6)
        feasible = exists(claims, sink, total)
        assert (refused_at(claims, sink, total) < 0) == feasible, claims
        assert (ceilings(claims, total)[0] >= sink) == feasible, claims
        assert (windows(claims, sink, total) is not None) == feasible, claims
        answers[feasible] += 1
    assert min(answers) > 800


def test_the_first_band_without_a_window_is_named() -> None:
    """All bands below the one named fit by themselves; with it they do not."""
    rng, named = random.Random(4), 0
    for _ in range(2_000):
        claims, sink, total = random_claims(rng, 18), 3, 18
        at = refused_at(claims, sink, total)
        if at >= 0:
            assert exists(claims[:at], sink, total)
            assert not exists(claims[: at + 1], sink, total)
            named += 1
    assert named > 300


def test_room_is_the_most_that_a_band_can_hold() -> None:
    """With the other claims as they are, need = room is feasible and one more is not; -1 when the others do not fit."""
    rng, sizes = random.Random(5), [0, 0, 0]
    for _ in range(3_000):
        total = rng.randrange(8, 22)
        claims, sink = random_claims(rng, total), rng.randrange(1, 6)
        at = rng.randrange(len(claims))
        most = room(claims, sink, total, at)
        hull = claims[at].end - claims[at].first if claims[at].end else 0
        least = max(hull, 1)
        tried = [(n, (*claims[:at], claims[at]._replace(need=n), *claims[at + 1 :])) for n in range(least, total + 2)]
        feasible = [n for n, wanted in tried if exists(wanted, sink, total)]
        assert (feasible[-1] if feasible else 0) == max(0, most if most >= least else 0), (claims, at)
        sizes[0 if most < 0 else 1 if most == 0 else 2] += 1
    assert min(sizes) > 20, sizes


def test_edges_are_mirror_images() -> None:
    """The lowest end above an edge and the highest start below one are the same question seen from both ends."""
    rng = random.Random(6)
    for _ in range(3_000):
        size, total = rng.choice((1, 2, 3, 5)), 60
        frames = total // size
        first, end = NOWHERE, 0
        if rng.random() < 0.5:
            first = rng.randrange(frames)
            end = rng.randint(first + 1, frames)
        need, edge = rng.randint(1, 6), rng.randrange(total + 1)
        fitting = [
            (low, high)
            for low, high in itertools.combinations(range(frames + 1), 2)
            if high - low >= need and low <= first and high >= end
        ]
        above = [high * size for low, high in fitting if low * size >= edge]
        below = [low * size for low, high in fitting if high * size <= edge]
        assert edge_above(edge, total, size, need, first, end) == min(above, default=-1)
        assert edge_below(edge, size, need, first, end) == max(below, default=-1)
        assert edge_above(edge, total, size, 0, first, end) == edge == edge_below(edge, size, 0, first, end)


def test_windows_lean_as_they_should() -> None:
    """An end grows first into the gap that nobody else can use, a float into the larger gap, a new float sits in the middle."""
    assert leans(1) == (-1,)
    assert leans(4) == (-1, 0, 0, 1)
    assert window(2, 20, 4, NOWHERE, 0, -1) == (2, 6)
    assert window(2, 20, 4, NOWHERE, 0, 1) == (16, 20)
    assert window(2, 20, 4, NOWHERE, 0, 0) == (9, 13)
    assert window(2, 20, 6, 5, 9, -1) == (3, 9)
    assert window(2, 20, 8, 5, 9, -1) == (2, 10)
    assert window(2, 20, 6, 5, 9, 1) == (5, 11)
    assert window(2, 20, 6, 5, 9, 0) == (5, 11)  # 11 frames above, 3 below
    assert window(2, 12, 9, 7, 9, 0) == (2, 11)  # the larger gap is below; then the smaller
