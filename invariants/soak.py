"""A million random mixed steps on three bands of 10⁵ frames: ``python -m invariants.soak [--steps N] [--seed N]``.

Long histories at a real size, where the small worlds and the reference model cannot go: allocations, joint steps, releases with
and without readers, fences late and in order, pins, compaction within budgets. Every thousand steps all cheap invariants run; at
the end everything is released and the value must equal the first one. Memory of the process is read at a tenth of the way and
at the end: a value that grows with its history would show.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time

import numpy as np

from core_pure.advance import advance, release
from core_pure.compact import compact
from core_pure.fences import launch, retire
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.pins import pin, unpin
from core_pure.state import ArenaState, Outcome, initial
from core_pure.verify import verify

FRAMES = 100_000
CHECK_EVERY = 1_000
KINDS = ("step", "release", "reader", "retire", "pin", "unpin", "compact")
WEIGHTS = (50, 20, 10, 8, 4, 4, 4)


def soak_layout(frames: int = FRAMES) -> Layout:
    """Three bands whose frames share no grid, each able to hold about ``frames`` of its own alone."""
    bands = (
        BandSpec("state", 7 * 256, retention="state"),
        BandSpec("window", 5 * 256, 16, "window", 64),
        BandSpec("full", 6 * 256, 16),
    )
    return build_layout(bands, 7 * 256 * (frames + 1))


class Soak:
    """One run: the newest value, the pages it hands out, and counts of what happened."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.layout, self.rng = layout, random.Random(seed)
        self.state: ArenaState = initial(layout)
        self.held: list[list[int]] = [[] for _ in layout.bands]
        self.pinned: list[int] = []
        self.counts = dict.fromkeys((*KINDS, "refused", "moves"), 0)

    def take(self, most: int) -> list[int]:
        """Random pages out of what is held; pinned ones stay."""
        taken: list[int] = []
        for pages in self.held:
            for _ in range(min(len(pages), self.rng.randint(0, most))):
                at = self.rng.randrange(len(pages))
                if pages[at] not in self.pinned:
                    pages[at], pages[-1] = pages[-1], pages[at]
                    taken.append(pages.pop())
        return taken

    def kept(self, outcome: Outcome | Refusal, gone: list[int]) -> None:
        """Book an outcome; a refusal gives back what it did not release."""
        if isinstance(outcome, Refusal):
            self.counts["refused"] += 1
            for page in gone:
                band = max(at for at, base in enumerate(self.layout.id_bases) if base < page)
                self.held[band].append(page)
            return
        self.state = outcome.state
        self.counts["moves"] += outcome.plan.moves
        for pages, new in zip(self.held, outcome.pages, strict=False):
            pages.extend(new.tolist())

    def step(self) -> None:
        """One random event."""
        kind = self.rng.choices(KINDS, WEIGHTS)[0]
        self.counts[kind] += 1
        most = 400 if self.rng.random() < 0.02 else 12
        if kind in ("step", "reader"):
            gone = self.take(most)
            demand = tuple(self.rng.randint(0, most if self.rng.random() < 0.6 else 3 * most) for _ in self.held)
            if kind == "reader":
                self.state = launch(self.state).state
            reader = self.state.launched if kind == "reader" else None
            self.kept(advance(self.state, release=np.array(gone, np.int64), demand=demand, reader=reader), gone)
        elif kind == "release":
            self.kept(release(self.state, np.array(self.take(2 * most), np.int64)), [])
        elif kind == "retire":
            self.kept(retire(self.state, self.rng.randint(0, self.state.launched)), [])
        elif kind == "pin":
            page = self.rng.choice(self.rng.choice([p for p in self.held if p] or [[0]]))
            if page:
                self.kept(pin(self.state, [page]), [])
                self.pinned.append(page)
        elif kind == "unpin" and self.pinned:
            self.kept(unpin(self.state, [self.pinned.pop(self.rng.randrange(len(self.pinned)))]), [])
        elif kind == "compact":
            self.kept(compact(self.state, bytes_limit=self.rng.choice((0, 1 << 14, 1 << 20))), [])

    def empty(self) -> None:
        """Give everything back."""
        if self.pinned:
            self.state = unpin(self.state, self.pinned).state
        self.pinned = []
        pages = [page for band in self.held for page in band]
        self.state = retire(release(self.state, np.array(pages, np.int64)).state, self.state.launched).state


def main() -> int:
    """Run, print, and return 1 on a violation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    run = Soak(soak_layout(), asked.seed)
    begun, memory = time.time(), 0
    for number in range(asked.steps):
        run.step()
        if number % CHECK_EVERY == 0 and (found := verify(run.state)):
            print(f"step {number}: {found}")
            return 1
        if number == asked.steps // 10:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    live = [band.live for band in run.state.bands]
    run.empty()
    equal = run.state == initial(run.layout)
    print(f"{asked.steps:,} steps in {time.time() - begun:.0f} s, seed {asked.seed}: {run.counts}; live at the end {live}")
    print(f"peak memory grew by {grown / 1024:.1f} MiB after the first tenth; emptied value equals the first: {equal}")
    return 0 if equal and not verify(run.state) else 1


if __name__ == "__main__":
    sys.exit(main())
