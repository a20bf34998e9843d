"""A core state, its executor, and stamps on the device: what the GPU tests drive for thousands of steps."""

from __future__ import annotations

import numpy as np
import torch

from core_pure.advance import advance
from core_pure.compact import compact
from core_pure.fences import launch, retire
from core_pure.layout import BandSpec, build_layout
from core_pure.plan import encode
from core_pure.state import Outcome, initial
from shell_gpu.buffer import obtain, words_of
from shell_gpu.executor import Executor
from shell_gpu.tables import DeviceTables, StepSizes

DEVICE = torch.device("cuda")
SIZES = StepSizes(sequences=64, batch=64, tokens=512, context_tokens=1024)


class World:
    """Random releases, demands, compactions, fences; every page carries its id in its first, middle and last word."""

    def __init__(self, bands: tuple[BandSpec, ...], total: int, seed: int, stream: torch.cuda.Stream | None = None) -> None:
        self.layout = build_layout(bands, total)
        self.buffer = obtain(self.layout, DEVICE)
        self.tables = DeviceTables(self.layout, SIZES, DEVICE)
        self.executor = Executor(self.layout, self.buffer, self.tables, stream=stream)
        self.state = initial(self.layout)
        self.rng = np.random.default_rng(seed)
        self.held = [np.empty(0, np.int32) for _ in bands]
        self.moved = self.refused = self.compactions = 0
        words = words_of(self.buffer)
        self.frames = [
            words[: words.numel() // (band.frame_bytes // 8) * (band.frame_bytes // 8)].view(-1, band.frame_bytes // 8)
            for band in self.layout.bands
        ]

    def step(self, stamp: bool = True) -> None:
        """One transition, applied to the device. Stamps cost an upload of indices each; pinned, so that nothing waits."""
        self.state = launch(self.state).state
        self.executor.launched(self.state.launched)
        if self.rng.random() < 0.1:
            outcome = compact(self.state, bytes_limit=int(self.rng.integers(1, self.layout.total_bytes // 8)))
            self.compactions += 1
        else:
            share = self.rng.choice([0.02, 0.3])
            kept = self.held
            gone = [self.rng.random(len(pages)) < share for pages in kept]
            wanted = self._wanted()
            answer = advance(self.state, release=np.concatenate([p[g] for p, g in zip(kept, gone, strict=True)]), demand=wanted)
            if not isinstance(answer, Outcome):
                self.refused += 1
                return
            outcome = answer
            self.held = [np.concatenate((pages[~lost], new)) for pages, lost, new in zip(kept, gone, outcome.pages, strict=True)]
        self.executor.apply(encode(outcome.plan))
        self.state = retire(outcome.state, max(0, outcome.state.launched - 3)).state
        self.moved += outcome.plan.moves
        if stamp and outcome.pages:
            for band, pages in enumerate(outcome.pages):
                self.stamp(band, pages)

    def _wanted(self) -> list[int]:
        """A random mix of pages: mostly small, now and then more of one band than is free."""
        left = self.layout.total_bytes
        wanted = []
        for band in self.layout.bands:
            most = left // band.frame_bytes
            wanted.append(int(self.rng.integers(0, 1 + max(1, most // int(self.rng.choice([3, 20, 200]))))))
        return wanted

    def stamp(self, band: int, pages: np.ndarray) -> None:
        """Write page ids into new pages, through the device's own table."""
        if len(pages):
            ids = torch.from_numpy(pages.astype(np.int64)).pin_memory().to(DEVICE, non_blocking=True)
            frames = self.tables.frame_of[ids].long()
            length = self.frames[band].shape[1]
            for place in (0, length // 2, length - 1):
                self.frames[band][:, place].index_put_((frames,), ids)

    def check(self) -> None:
        """Every held page carries its id, and the device's table is the host's."""
        assert np.array_equal(self.tables.frame_of.cpu().numpy(), self.state.table())
        for band, pages in enumerate(self.held):
            frames = torch.from_numpy(self.state.frames_of(pages).astype(np.int64)).to(DEVICE)
            assert bool((frames > 0).all())
            length = self.frames[band].shape[1]
            for place in (0, length // 2, length - 1):
                got = self.frames[band][:, place][frames].cpu().numpy()
                assert np.array_equal(got, pages.astype(np.int64)), f"band {band}, word {place}"


BANDS = (
    BandSpec("state", 72 * 1024, retention="state"),
    BandSpec("window", 1536, slots_per_page=16, retention="window", window=128),
    BandSpec("full", 4096 + 512, slots_per_page=16),
)
