"""The static split with bytes: one buffer per band, its own free stack, block tables of physical frames uploaded directly.

What engines do today, kept lean: no page ids, no translation, one upload per step. Counting and decisions are
``StaticPools``'; kernels read it through the same views as the arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_pure.capacity import StepResult
from core_pure.fits import Refusal
from core_pure.geometry import table_pages
from core_pure.layout import BandSpec
from core_pure.leases import flat
from models.loop import NO_INTS, Ints
from models.pools import StaticPools
from shell_gpu.buffer import view_of
from shell_gpu.decode.memory import Lanes, Memory
from shell_gpu.tables import StepSizes

UPLOADS = 4
BAND_GAP = 4  # int32 words: every region starts at 16 bytes


class StaticStore(StaticPools):
    """``StaticPools`` whose pages are frames of real buffers, and whose steps write block tables and write slots."""

    def __init__(
        self, specs: Sequence[BandSpec], pages_max: Sequence[int], total_bytes: int, chunk: int, *, sizes: StepSizes,
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(specs, pages_max, total_bytes, chunk)
        self.sizes, self.device = sizes, device
        self.widths = [
            table_pages(sizes.context_tokens, 0, spec.slots_per_page) if spec.grows else spec.pages_fixed for spec in self.specs
        ]
        self.buffers = [
            torch.zeros((pages + 1) * spec.frame_bytes, dtype=torch.uint8, device=device)
            for pages, spec in zip(self.pages_max, self.specs, strict=True)
        ]
        self._stacks = [np.arange(pages, 0, -1, dtype=np.int32) for pages in self.pages_max]  # frame 0 is the sink
        self._left = list(self.pages_max)
        slots = len(self._tokens)
        self._rows = [np.zeros((slots, width), np.int32) for width in self.widths]
        self._spans = np.zeros((len(self.specs), slots, 2), np.int64)
        self._build_outputs()

    def _build_outputs(self) -> None:
        """One packed device array of all block tables and write slots, and the pinned ring it is uploaded from."""
        sizes = [self.sizes.batch * width for width in self.widths] + [2 * self.sizes.tokens] * len(self.specs)
        ends = np.cumsum([-(-size // BAND_GAP) * BAND_GAP for size in sizes])
        starts = [0, *ends[:-1].tolist()]
        self.packed = torch.zeros(int(ends[-1]), dtype=torch.int32, device=self.device)
        pinned = torch.zeros((UPLOADS, int(ends[-1])), dtype=torch.int32)
        self._pinned = pinned.pin_memory() if self.device.type == "cuda" else pinned
        self._events: list[torch.cuda.Event | None] = [None] * UPLOADS
        self._turn = 0
        self._starts = list(zip(starts, sizes, strict=True))
        self.block_tables, self.write_slots = self._outputs(self.packed)
        self._staged = [[[t.numpy() for t in part] for part in self._outputs(row)] for row in self._pinned]

    def _outputs(self, packed: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        parts = [packed[start : start + size] for start, size in self._starts]
        bands = len(self.specs)
        tables = [part.view(self.sizes.batch, width) for part, width in zip(parts[:bands], self.widths, strict=True)]
        return tables, [part.view(torch.int64) for part in parts[bands:]]

    def memory(self, lanes: Lanes, tokens: Tensor) -> Memory:
        """The addresses as a model reads them."""
        views = {}
        for spec, buffer in zip(self.specs, self.buffers, strict=True):
            assert spec.geometry is not None
            views[spec.name] = {(v.layer, v.tensor): view_of(buffer, spec, v) for v in spec.geometry.views()}
        slots = {spec.name: held for spec, held in zip(self.specs, self.write_slots, strict=True) if spec.grows}
        tables = dict(zip(self.names, self.block_tables, strict=True))
        return Memory(MappingProxyType(views), MappingProxyType(tables), MappingProxyType(slots), lanes.device, tokens)

    def _grow(self) -> None:
        super()._grow()
        self._rows = [np.concatenate((rows, np.zeros_like(rows))) for rows in self._rows]
        self._spans = np.concatenate((self._spans, np.zeros_like(self._spans)), axis=1)

    # --- steps ---------------------------------------------------------------------------------------------------------

    def step(
        self, handles: Ints, new_tokens: Ints, finished: Ints = NO_INTS, slid: Ints | None = None
    ) -> StepResult | Refusal:
        """Count, then hand out frames and upload tables and slots."""
        slots, gone = self._slots(handles), self._slots(finished)
        before = self._tokens[slots].copy()
        result = super().step(handles, new_tokens, finished, slid)
        if isinstance(result, Refusal):
            return result
        after = self._tokens[slots]
        for band, spec in enumerate(self.specs):
            self._free_rows(band, gone, self._spans[band, gone, 0], self._spans[band, gone, 1])
            self._spans[band, gone] = 0
            if len(slots):
                self._extend(band, spec, slots, before if slid is None else slid, after)
        if len(slots):
            self._upload(slots, before, after)
        return result

    def _free_rows(self, band: int, slots: Ints, begin: Ints, end: Ints) -> None:
        """Give back the frames at page positions [begin, end) of each slot."""
        cells = flat(slots * self.widths[band] + begin, end - begin)
        if len(cells):
            rows = self._rows[band].reshape(-1)
            left = self._left[band]
            self._stacks[band][left : left + len(cells)] = rows[cells]
            self._left[band] = left + len(cells)
            rows[cells] = 0

    def _extend(self, band: int, spec: BandSpec, slots: Ints, committed: Ints, after: Ints) -> None:
        """Slide, then take the frames that the new tokens need."""
        begin, end = self._spans[band, slots].T
        if spec.grows:
            first = begin
            if spec.window is not None:
                chunked = spec.retention == "chunked"
                visible = committed // spec.window * spec.window if chunked else np.maximum(0, committed - spec.window + 1)
                first = np.minimum(np.maximum(begin, visible // spec.slots_per_page), end)
                self._free_rows(band, slots, begin, first)
            want = np.maximum(end, -(-after // spec.slots_per_page))
        else:
            first, want = begin, np.where(after > 0, spec.pages_fixed, end)
        cells = flat(slots * self.widths[band] + end, want - end)
        if len(cells):
            left = self._left[band] - len(cells)
            frames = self._stacks[band][left : self._left[band]]
            self._left[band] = left
            self._rows[band].reshape(-1)[cells] = frames
            if spec.retention == "state":
                self._clear(band, frames)
        self._spans[band, slots] = np.stack((first, want), axis=1)

    def _clear(self, band: int, frames: NDArray[np.int32]) -> None:
        """A new state starts at zero."""
        size = self.specs[band].frame_bytes
        ids = torch.from_numpy(frames.astype(np.int64))
        ids = ids.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else ids
        self.buffers[band].view(torch.int64).view(-1, size // 8).index_fill_(0, ids, 0)

    def _upload(self, slots: Ints, before: Ints, after: Ints) -> None:
        turn, self._turn = self._turn, (self._turn + 1) % UPLOADS
        event = self._events[turn]
        if event is not None and not event.query():
            event.synchronize()
        tables, writes = self._staged[turn]
        counts = after - before
        tokens = np.arange(int(counts.sum())) if len(counts) else np.empty(0, np.int64)
        owner = np.repeat(np.arange(len(slots)), counts)
        position = tokens - np.repeat(np.cumsum(counts) - counts, counts) + before[owner]
        for band, spec in enumerate(self.specs):
            own = self._rows[band][slots]
            tables[band][: len(slots)] = own
            if spec.grows:
                frames = own[owner, position // spec.slots_per_page].astype(np.int64)
                writes[band][: len(tokens)] = frames * spec.slots_per_page + position % spec.slots_per_page
        self.packed.copy_(self._pinned[turn], non_blocking=True)
        if self.device.type == "cuda":
            if event is None:
                event = self._events[turn] = torch.cuda.Event()
            event.record()
