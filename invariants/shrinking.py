"""A walk that broke a claim, made short: moves left out, made smaller, joined; or another, denser story of the same claim."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from attrs import evolve

from .walks import SHAPES, Failure, Move, Run, Shape, run, walk

Judge = Callable[[Shape, Run], Failure | None]
"""What a whole run is to be told apart by; its failure, unless claims about whole runs are asked too."""


def shrink(failure: Failure, *, tries: int = 4_000, judge: Judge = lambda shape, run: run.failure) -> Failure:
    """A shorter walk that breaks the same claim: leave out runs of moves, then make each move smaller."""
    left = [tries]

    def attempt(chosen: list[Move]) -> Failure | None:
        left[0] -= 1
        if left[0] < 0:
            return None
        found = judge(failure.shape, walk(failure.shape, chosen, thorough=failure.violation.claim))
        if found is not None and not found.moves:
            found = evolve(found, moves=tuple(chosen))
        return found if found is not None and found.violation.claim == failure.violation.claim else None

    best = failure
    while left[0] > 0:
        before = (len(best.moves), _weight(best))
        best = _leave_out(best, attempt)
        best = _smaller(best, attempt)
        best = _joined(best, attempt)
        best = _leave_out_pairs(best, attempt)
        if (len(best.moves), _weight(best)) == before:
            break
    return best


EVENTS_WANTED, STORIES = 12, 2_500
"""A story of so many events is short enough; where leaving out does not get there, so many dense stories are tried afresh."""


def dense_story(seed: int, shape: Shape) -> Iterator[Move]:
    """A few moves that fill an arena, make holes, hold some frames, and then ask for what only relief can give."""
    rng = random.Random(f"dense {seed} {shape.name}")
    shares = [rng.random() + 0.05 for _ in shape.frames]
    filled = rng.choice((0.6, 0.8, 0.95)) / sum(shares)
    most = [int(filled * share * shape.total_bytes / size) for share, size in zip(shares, shape.frames, strict=True)]
    rounds = rng.choice((1, 2, 3))
    for _ in range(rounds):
        yield Move("allocate", tuple(rng.randint(0, count) for count in most))
        if rng.random() < 0.2:
            yield Move("launch")
        if rng.random() < 0.2:
            yield Move("pin", picks=(rng.randrange(64),))
        picks = tuple(rng.randrange(64) for _ in range(rng.randint(1, 12)))
        yield Move("release", picks=picks, flag=int(rng.random() < 0.2))
        yield Move("squeeze", number=rng.randrange(88))
    for _ in range(2):
        kind = rng.choice(("squeeze", "squeeze", "advance", "compact", "copy", "resize", "retire"))
        demand = tuple(rng.randint(0, 2) for _ in shape.frames) if kind == "advance" else ()
        picks = (rng.randrange(64), rng.randrange(64))
        yield Move(kind, demand, picks, rng.randrange(88) if kind != "compact" else -1, rng.choice((0, 0, 1, 2)))


def shortest(failure: Failure) -> Failure:
    """Shrink; where the story is still long, look for a dense one of the same claim, in any arena."""
    best = shrink(failure)
    for seed in range(STORIES):
        if len(best.moves) <= EVENTS_WANTED:
            break
        shape = SHAPES[seed % len(SHAPES)]
        found = run(shape, dense_story(seed, shape), thorough=failure.violation.claim)
        if found is not None and found.violation.claim == failure.violation.claim:
            found = shrink(found, tries=500)
            best = found if len(found.moves) < len(best.moves) else best
    return best


def _weight(failure: Failure) -> int:
    return sum(sum(move.demand) + len(move.picks) + sum(move.picks) + move.flag for move in failure.moves)


def _leave_out(best: Failure, attempt: Callable[[list[Move]], Failure | None]) -> Failure:
    size = max(1, len(best.moves) // 2)
    while size:
        at = 0
        while at < len(best.moves):
            shorter = attempt([*best.moves[:at], *best.moves[at + size :]])
            if shorter is not None:
                best = shorter
            else:
                at += size
        size //= 2
    return best


def _smaller(best: Failure, attempt: Callable[[list[Move]], Failure | None]) -> Failure:
    """Make single moves simpler."""
    for at in range(len(best.moves) - 1, -1, -1):
        if at >= len(best.moves):
            continue
        for simpler in _simpler(best.moves[at]):
            found = attempt([*best.moves[:at], simpler, *best.moves[at + 1 :]])
            if found is not None and len(found.moves) <= len(best.moves):
                best = found
                break
    return best


def _joined(best: Failure, attempt: Callable[[list[Move]], Failure | None]) -> Failure:
    """Make one move of two of a kind, wherever they stand."""
    at = 0
    while at < len(best.moves) - 1:
        first = best.moves[at]
        for other in range(at + 1, len(best.moves)):
            second = best.moves[other]
            if first.kind != second.kind or first.kind not in ("allocate", "release", "pin"):
                continue
            demand = tuple(a + b for a, b in zip(first.demand, second.demand, strict=True))
            joined = first._replace(demand=demand, picks=first.picks + second.picks)
            found = attempt([*best.moves[:at], joined, *best.moves[at + 1 : other], *best.moves[other + 1 :]])
            if found is not None and len(found.moves) < len(best.moves):
                best, at = found, at - 1
                break
        at += 1
    return best


PAIRS_MOST = 24
"""Walks of at most so many moves are tried without every two of them."""


def _leave_out_pairs(best: Failure, attempt: Callable[[list[Move]], Failure | None]) -> Failure:
    if len(best.moves) > PAIRS_MOST:
        return best
    for at in range(len(best.moves)):
        for other in range(at + 1, len(best.moves)):
            if other >= len(best.moves):
                break
            found = attempt([move for place, move in enumerate(best.moves) if place not in (at, other)])
            if found is not None:
                return found
    return best


def _simpler(move: Move) -> Iterator[Move]:
    if move.flag:
        yield move._replace(flag=0)
    if move.kind == "advance":
        yield Move("allocate", move.demand, flag=min(move.flag, 1))
        yield Move("release", (), move.picks, flag=min(move.flag, 1))
    for at, pages in enumerate(move.demand):
        if pages:
            yield move._replace(demand=(*move.demand[:at], 0, *move.demand[at + 1 :]))
            if pages > 1:
                yield move._replace(demand=(*move.demand[:at], pages - 1, *move.demand[at + 1 :]))
    for at, pick in enumerate(move.picks):
        if len(move.picks) > 1:
            yield move._replace(picks=move.picks[:at] + move.picks[at + 1 :])
        if pick:
            yield move._replace(picks=(*move.picks[:at], pick // 2, *move.picks[at + 1 :]))
