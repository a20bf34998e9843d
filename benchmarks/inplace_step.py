"""The floor for a serving step: what page tables, lease rows and one upload cost when numpy arrays are written in place.

The same work as ``gpu_step.ArenaLoop``, without values, digests, plans of moves, neighbours, refusals or windows: what a host
allocator in numpy cannot save as long as it knows every page id. Steps must not run out of room; nothing tells them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.inplace import InPlaceBand
from core_pure.leases import flat
from core_pure.plan import Plan
from shell_gpu.arena import Arena

Ints = NDArray[np.int64]


class FloorLoop:
    """Steps of requests 0 … running - 1 in an arena that holds no lease; request i has lease row i for ever."""

    def __init__(self, arena: Arena, running: int, prompt: int) -> None:
        self.arena, self.prompt = arena, prompt
        self.full, self.state = arena.layout.index("full"), arena.layout.index("state")
        self.page = arena.layout.bands[self.full].slots_per_page
        self.bands = [InPlaceBand(frames) for frames in arena.layout.frames_max]
        self.width = arena.tables.widths[self.full]
        self.rows = np.zeros(running * self.width, np.int64)
        self.states = np.zeros(running, np.int64)
        self.everyone = np.arange(running)
        self.tokens = np.zeros(running, np.int64)
        self._take(self.everyone, np.full(running, prompt))

    def step(self, done: Ints) -> None:
        """These requests finish, as many start, every request gets a token."""
        held = -(-self.tokens[done] // self.page)
        self.bands[self.full].release(self.rows[flat(done * self.width, held)])
        self.bands[self.state].release(self.states[done])
        self.tokens[done] = 0
        after = self.tokens + 1
        after[done] = self.prompt + 1
        self._take(done, after)

    def _take(self, fresh: Ints, after: Ints) -> None:
        """Pages up to ``after`` tokens, states for the fresh requests, and all of it to the device."""
        end = -(-self.tokens // self.page)
        more = -(-after // self.page) - end
        cells = flat(self.everyone * self.width + end, more)
        self.rows[cells] = pages = self.bands[self.full].allocate(len(cells))
        self.states[fresh] = states = self.bands[self.state].allocate(len(fresh))
        tables, parts = self.arena.tables, ((self.full, cells, pages), (self.state, fresh, states))
        total, at = len(cells) + len(fresh), 0
        rows, writes = np.empty((total, 2), np.int32), np.empty((total, 2), np.int32)
        for band, places, ids in parts:
            part = slice(at, at := at + len(ids))
            writes[part, 0], writes[part, 1] = places + tables.lease_bases[band], ids + self.arena.layout.id_bases[band]
            rows[part, 0], rows[part, 1] = writes[part, 1], self.bands[band].frame_of[ids]
        batch = tables.batch_of(self.everyone, self.tokens, after)
        self.arena.executor.apply_plan(Plan(rows=rows), writes, batch)
        self.tokens = after

    def check(self) -> None:
        """Raise unless the block tables on the device are those of the rows."""
        for band, width, rows in ((self.full, self.width, self.rows), (self.state, 1, self.states)):
            frames = np.maximum(self.bands[band].frame_of[rows.reshape(-1, width)], 0)
            held = -(-self.tokens // self.page) if band == self.full else np.ones_like(self.tokens)
            wanted = np.where(np.arange(width) < held[:, None], frames, 0)
            if not np.array_equal(self.arena.tables.block_tables[band][: len(wanted)].cpu().numpy(), wanted):
                raise AssertionError("the floor's block table is wrong: nothing is timed")
