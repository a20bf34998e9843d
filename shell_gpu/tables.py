"""The tables on the device: page -> frame, the pages each lease row holds, and the address-stable outputs of a step.

The host value is the truth; nothing here is ever read back. Outputs keep their addresses for the arena's life, so a
captured decode graph can read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from core_pure.errors import LeaseError
from core_pure.geometry import table_pages
from core_pure.layout import BandSpec, Layout
from core_pure.leases import most
from core_pure.plan import Rows

from . import chunk
from .chunk import BAND_WORDS
from .errors import StepTooLarge
from .packing import Batch

Integers = NDArray[np.integer[Any]]


@frozen
class StepSizes:
    """What the address-stable buffers are built for.

    sequences: lease rows; batch: rows of one step; tokens: new tokens of one step; context_tokens: the longest
    sequence, draft_tokens: speculative tokens on top of it.
    """

    sequences: int
    batch: int
    tokens: int
    context_tokens: int
    draft_tokens: int = 0

    @property
    def length_limit(self) -> int:
        """The longest sequence, drafts included, in tokens."""
        return self.context_tokens + self.draft_tokens


def width_of(spec: BandSpec, sizes: StepSizes) -> int:
    """Columns of a band's page table: the fixed pages, or the context with drafts and spare positions."""
    if not spec.grows:
        return spec.pages_fixed
    return table_pages(sizes.context_tokens, sizes.draft_tokens, spec.slots_per_page)


class DeviceTables:
    """All tables of one arena. Flat tensors, one region per band, so that one launch serves every band.

    frame_of int32[ids_total]; lease_pages int32[sequences * sum of widths]; tables int32, per band [batch, width];
    writes int64, per band [tokens]; bands int64[bands, BAND_WORDS].
    """

    def __init__(self, layout: Layout, sizes: StepSizes, device: torch.device) -> None:
        self.layout = layout
        self.sizes = sizes
        self.widths = tuple(width_of(spec, sizes) for spec in layout.bands)
        self.lease_bases = tuple(_bases(sizes.sequences * width for width in self.widths))
        table_bases = _bases(sizes.batch * width for width in self.widths)
        rows = [
            (
                chunk.GROWS if spec.grows else chunk.FIXED, spec.slots_per_page, width, lease, table,
                number * sizes.tokens, base, base + frames + 1,
            )
            for number, (spec, width, lease, table, base, frames) in enumerate(
                zip(
                    layout.bands, self.widths, self.lease_bases[:-1], table_bases[:-1], layout.id_bases,
                    layout.frames_max, strict=True,
                )
            )
        ]  # fmt: skip
        assert all(len(row) == BAND_WORDS for row in rows)
        self.bands = torch.tensor(rows, dtype=torch.int64, device=device)
        self.frame_of = torch.zeros(layout.ids_total, dtype=torch.int32, device=device)
        self.lease_pages = torch.zeros(self.lease_bases[-1], dtype=torch.int32, device=device)
        self.tables = torch.zeros(table_bases[-1], dtype=torch.int32, device=device)
        self.writes = torch.zeros(len(layout.bands) * sizes.tokens, dtype=torch.int64, device=device)
        self.block_tables = tuple(
            self.tables[start : start + sizes.batch * width].view(sizes.batch, width)
            for start, width in zip(table_bases[:-1], self.widths, strict=True)
        )
        self.write_slots = tuple(
            self.writes[number * sizes.tokens : (number + 1) * sizes.tokens] if spec.grows else self.block_tables[number]
            for number, spec in enumerate(layout.bands)
        )
        self._lengths = np.zeros(sizes.batch, np.int32)  # tokens that each batch row held at the last step
        self._rows = 0
        self.tokens = 0
        """New tokens of the newest step."""
        self._batch = np.empty((sizes.batch, chunk.BATCH_ROW_WORDS), np.int32)

    @property
    def bytes(self) -> int:
        """Bytes of all tables on the device."""
        held = (self.bands, self.frame_of, self.lease_pages, self.tables, self.writes)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def batch_of(self, lease_rows: Integers, before: Integers, after: Integers) -> Batch:
        """The batch rows of one step, with the stale tails that the step before left.

        Args: lease_rows, and the tokens held before and after the step: integers[n] each. The result is valid until the
        next call. Raises: StepTooLarge, LeaseError (a sequence beyond the page table); nothing has changed then.
        """
        count = len(lease_rows)
        if count > self.sizes.batch:
            raise StepTooLarge(f"a batch of {count} sequences; the arena was built for {self.sizes.batch}")
        new = after - before
        ends = np.add.accumulate(new)
        tokens = int(ends[-1]) if count else 0
        if tokens > self.sizes.tokens:
            raise StepTooLarge(f"a step of {tokens} new tokens; the arena was built for {self.sizes.tokens}")
        if (longest := most(after)) > self.sizes.length_limit:
            raise LeaseError(f"a sequence of {longest} tokens; page tables hold {self.sizes.length_limit}")
        rows = self._batch[: max(count, self._rows)]
        rows[:count, 0] = lease_rows
        rows[:count, 1] = before
        rows[:count, 2] = new
        rows[:count, 3] = ends - new
        rows[:, 4] = self._lengths[: len(rows)]
        if len(rows) > count:  # rows that the step before had and this one has not
            rows[count:, 0] = -1
            rows[count:, 1:4] = 0
            self._lengths[count:] = 0
        batch = Batch(rows, tokens, max(tokens, self.tokens))
        self._lengths[:count] = after
        self._rows, self.tokens = count, tokens
        return batch

    def project(self, frame_of: Rows, lease_pages: Rows | None = None) -> None:
        """Write whole tables from the host's value and clear the outputs: after a fault, a sleep or a clear."""
        self.frame_of.copy_(torch.from_numpy(frame_of))
        if lease_pages is None:
            self.lease_pages.zero_()
        else:
            self.lease_pages.copy_(torch.from_numpy(lease_pages))
        self.tables.zero_()
        self.writes.zero_()
        self._lengths[:] = 0
        self._rows = self.tokens = 0


def _bases(sizes: Iterable[int]) -> list[int]:
    """Start of each region, and the end of the last; regions start at multiples of 4 elements."""
    ends = [0]
    for size in sizes:
        ends.append(-(-(ends[-1] + size) // 4) * 4)
    return ends
