"""Which small worlds are exhausted, and the command that does it: ``python -m invariants.exhaust``.

The committed expectation holds states and transitions of every world; a run that covers fewer (or more) fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from .world_checks import STATE_CHECKS, STEP_CHECKS
from .worlds import Counts, World, WorldFailure, explore

EXPECTED = Path(__file__).with_name("expected_worlds.json")

WORLDS = (
    World("single", (1,), 7, ask_max=2, fences_max=2, pins_max=1),
    World("pair-fence", (5, 3), 31, ask_max=2, fences_max=1),
    World("pair-pins", (3, 2), 21, ask_max=1, pins_max=2),
    World("pair-steps", (3, 2), 16, ask_max=1, fences_max=2, steps=True),
    World("three-offgrid", (7, 5, 3), 45, ask_max=1),
    World("three-pins", (7, 5, 3), 38, ask_max=1, pins_max=1),
    World("three-fence", (7, 5, 3), 34, ask_max=1, fences_max=1),
    World("three-small", (3, 2, 1), 15, ask_max=1),
    World("three-rising", (2, 3, 5), 30, ask_max=1),
    World("three-all", (4, 3, 2), 18, ask_max=1, fences_max=1, pins_max=1),
    World("three-caps", (3, 2, 1), 20, ask_max=1, caps=((0, 3), (1, None), (0, 6))),
    World("two-floats", (5, 3, 2, 3), 27, ask_max=1),
)
LARGE = World("large", (7, 5, 3), 70, ask_max=2, fences_max=2, pins_max=1)
"""Millions of states: for ``--large STATES``, which visits that many breadth first."""


def exhaust(world: World, states_limit: int | None = None, progress: Callable[[int, int], None] | None = None) -> Counts:
    """Explore one world with every check on. Raises: WorldFailure."""
    return explore(world, STATE_CHECKS, STEP_CHECKS, states_limit=states_limit, progress=progress)


def expected() -> dict[str, dict[str, Any]]:
    """The committed counts by world name."""
    committed: dict[str, dict[str, Any]] = json.loads(EXPECTED.read_text())
    return committed


def world_named(name: str) -> World:
    """The world of this name. Raises: KeyError."""
    return {world.name: world for world in (*WORLDS, LARGE)}[name]


def _timed(world: World) -> tuple[World, Counts | str, float]:
    start = time.perf_counter()
    try:
        return world, exhaust(world), time.perf_counter() - start
    except WorldFailure as failure:
        return world, str(failure), time.perf_counter() - start


def _report(world: World, counts: Counts | str, seconds: float) -> None:
    if isinstance(counts, str):
        print(f"{world.name}: FAILED after {seconds:.0f} s\n{counts}")
        return
    chain = "·".join(map(str, world.frames))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.kinds.items()) if count)
    print(f"{world.name} ({chain} in {world.total_bytes}): {counts.states:,} states, {counts.transitions:,} transitions", end="")
    print(f", {seconds:.0f} s ({kinds})", flush=True)


def run_worlds(worlds: Iterable[World], cores: int) -> dict[str, Counts | str]:
    """Exhaust worlds in parallel, printing each as it ends."""
    results: dict[str, Counts | str] = {}
    with ProcessPoolExecutor(cores) as pool:
        for world, counts, seconds in pool.map(_timed, worlds):
            _report(world, counts, seconds)
            results[world.name] = counts
    return results


def _run_large(states: int) -> int:
    start = time.perf_counter()

    def progress(known: int, waiting: int) -> None:
        if known % 1000 == 0:
            print(f"\r{known:,} states known, {waiting:,} waiting, {time.perf_counter() - start:.0f} s", end="", file=sys.stderr)

    try:
        counts = exhaust(LARGE, states_limit=states, progress=progress)
    except WorldFailure as failure:
        print(failure)
        return 1
    _report(LARGE, counts, time.perf_counter() - start)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """0: every world as expected; 1: a claim broke or coverage changed; 2: wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m invariants.exhaust", description=__doc__)
    parser.add_argument("--world", action="append", help="only this world (may be repeated)")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--large", type=int, metavar="STATES", help="visit this many states of the large world, e.g. 10000000")
    parser.add_argument("--write", action="store_true", help="commit the counts of this run as the expectation")
    chosen = parser.parse_args(arguments)
    names = [world.name for world in WORLDS]
    unknown = [name for name in chosen.world or () if name not in names]
    if unknown or chosen.cores < 1 or (chosen.large is not None and chosen.large < 1):
        print(f"unknown world {unknown}; there are {', '.join(names)}" if unknown else "cores and states must be positive")
        return 2
    if chosen.large is not None:
        return _run_large(chosen.large)
    results = run_worlds([world for world in WORLDS if world.name in (chosen.world or names)], chosen.cores)
    found = {name: counts.as_json() for name, counts in results.items() if isinstance(counts, Counts)}
    if len(found) < len(results):
        return 1
    if chosen.write:
        EXPECTED.write_text(json.dumps((expected() if EXPECTED.exists() else {}) | found, indent=1) + "\n")
    changed = [name for name, counts in found.items() if expected().get(name) != counts]
    total = sum(counts["states"] for counts in found.values())
    print(f"{len(found)} worlds, {total:,} states; coverage " + (f"CHANGED in {changed}" if changed else "as expected"))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
