"""A serving run kept in dictionaries beside the core: tokens and pages of every lease, and real bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core_pure import step as steps
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.leases import Leases, empty_leases, open_leases, pages_of
from core_pure.plan import encode
from core_pure.state import initial
from core_pure.step import StepOutcome, block_table, pages_wanted, trim, write_slots
from core_pure.verify import verify
from invariants.reference import Reference
from tests.core_states import bound_pages

CONTEXT, DRAFT, CHUNK = 120, 5, 12

ATTENTION = (
    BandSpec("window-10", 640, slots_per_page=4, retention="window", window=10),
    BandSpec("full", 272, slots_per_page=2),
)
HYBRID = (
    BandSpec("state", 1_104, retention="state", pages_fixed=2),
    BandSpec("chunk-8", 208, slots_per_page=2, retention="chunked", window=8),
    BandSpec("cross", 336, slots_per_page=4, retention="cross", pages_fixed=3),
    *ATTENTION,
)


class Served:
    """State and leases, real bytes beside them, and for each lease its tokens and its pages by position, in dictionaries."""

    def __init__(self, bands: Sequence[BandSpec], total_bytes: int, sequences: int = 12) -> None:
        self.layout: Layout = build_layout(bands, total_bytes)
        self.state = initial(self.layout)
        self.leases: Leases = empty_leases(self.layout, sequences=sequences, context=CONTEXT, draft_tokens=DRAFT)
        self.model = Reference(self.layout)
        self.tokens: dict[int, int] = {}
        self.pages: dict[int, list[dict[int, int]]] = {}

    # --- what a lease must hold, from its tokens alone --------------------------------------------------------------------

    def open(self, count: int) -> list[int]:
        """New leases."""
        self.leases, handles = open_leases(self.leases, count)
        for handle in handles.tolist():
            self.tokens[handle], self.pages[handle] = 0, [{} for _ in self.layout.bands]
        return handles.tolist()

    def held(self, handle: int) -> list[dict[int, int]]:
        """Pages by position as the core says."""
        slot = handle & ((1 << 20) - 1)
        facts = self.leases.facts.copy()[slot]
        found = []
        for band, pages in enumerate(pages_of(self.leases, handle)):
            begin, end = int(facts[2 + 2 * band]), int(facts[3 + 2 * band])
            found.append(dict(zip(range(begin, end), pages.tolist(), strict=True)))
        return found

    def visible_pages(self, band: int, tokens: int) -> set[int]:
        """Positions that hold some token from the oldest that position ``tokens`` can see."""
        spec = self.layout.bands[band]
        first = 0
        if spec.window:
            first = tokens // spec.window * spec.window if spec.retention == "chunked" else max(0, tokens - spec.window + 1)
        return {token // spec.slots_per_page for token in range(first, tokens)}

    def compare(self) -> None:
        """Live pages are exactly the held ones; no page is in two places unless shared; the value is sound."""
        assert verify(self.state) == []
        held = [page for lease in self.pages.values() for band in lease for page in band.values()]
        assert set(held) == set(bound_pages(self.state).tolist())
        assert self.leases.shared == len(held) - len(set(held))
        for handle in self.pages:
            assert self.held(handle) == self.pages[handle]

    # --- transitions -----------------------------------------------------------------------------------------------------

    def absorb(self, outcome: StepOutcome) -> None:
        """Carry the plan out on bytes and keep the values."""
        demand = tuple(len(pages) for pages in outcome.pages) if outcome.event.kind == "copy" else outcome.event.demand
        released = [] if outcome.event.kind == "copy" else outcome.event.pages.tolist()
        demand = demand or (0,) * len(self.layout.bands)
        self.model.absorb(encode(outcome.plan), released=released, pages=outcome.pages, demand=demand)
        self.state, self.leases = outcome.state, outcome.leases

    def step(self, new: dict[int, int], finished: Sequence[int] = (), slid: dict[int, int] | None = None) -> StepOutcome | Refusal:
        """One serving step, with everything that follows from it checked."""
        handles = np.array(list(new), np.int64)
        counts = np.array(list(new.values()), np.int64)
        committed = None if slid is None else np.array([slid[handle] for handle in new], np.int64)
        wanted = pages_wanted(self.leases, handles, counts, committed)
        outcome = steps.step(self.state, self.leases, handles, counts, np.array(finished, np.int64), committed)
        if isinstance(outcome, Refusal):
            return outcome
        before = {handle: self.pages[handle] for handle in new}
        net = [band.live for band in self.state.bands]
        self.absorb(outcome)
        for handle in finished:
            del self.tokens[handle], self.pages[handle]
        if not finished:
            grown = [band.live - was for band, was in zip(self.state.bands, net, strict=True)]
            assert [max(0, n) for n in grown] == list(wanted)
        for handle, count in new.items():
            done = self.tokens[handle] if slid is None else slid[handle]
            self.tokens[handle] += count
            now = self.held(handle)
            for band, spec in enumerate(self.layout.bands):
                kept = {at: page for at, page in now[band].items() if at in before[handle][band]}
                assert all(before[handle][band][at] == page for at, page in kept.items()), "a held page changed"
                gone = before[handle][band].keys() - now[band].keys()
                if not spec.grows:
                    assert len(now[band]) == (spec.pages_fixed if self.tokens[handle] else 0)
                    continue
                needed = self.visible_pages(band, done) | {
                    t // spec.slots_per_page for t in range(done, self.tokens[handle])
                }
                assert needed <= now[band].keys(), "a page that can be seen is missing"
                assert not gone & needed
                if not spec.window:
                    assert not gone
            self.pages[handle] = now
        self._check_arrays(outcome, list(new))
        self.compare()
        return outcome

    def _check_arrays(self, outcome: StepOutcome, handles: list[int]) -> None:
        """Write slots and block tables are what the dictionaries and the page table say."""
        for band, spec in enumerate(self.layout.bands):
            slots = write_slots(outcome, band)
            assert slots.dtype == np.int64
            expected = []
            for handle, before, after in zip(handles, outcome.before.tolist(), outcome.after.tolist(), strict=True):
                pages = self.pages[handle][band]
                if not spec.grows:
                    expected.append(self.frame(pages.get(0, 0)))
                    continue
                for token in range(before, after):
                    frame = self.frame(pages[token // spec.slots_per_page])
                    expected.append(frame * spec.slots_per_page + token % spec.slots_per_page)
            assert slots.tolist() == expected
            assert len(set(slots.tolist())) == len(slots) or not spec.grows
            width = self.leases.widths[band]
            table = block_table(self.state, self.leases, outcome.slots, band, width)
            assert table.dtype == np.int32
            for row, handle in zip(table.tolist(), handles, strict=True):
                assert row == [self.frame(self.pages[handle][band].get(at, 0)) for at in range(width)]

    def frame(self, page: int) -> int:
        """The frame of a page, the sink's for none."""
        return int(self.model.table[page]) if page else 0

    def trim(self, handle: int, tokens: int) -> None:
        """Rejected drafts, aborted prefill."""
        outcome = trim(self.state, self.leases, [handle], [tokens])
        self.absorb(outcome)
        self.tokens[handle] = tokens
        for band, spec in enumerate(self.layout.bands):
            last = -(-tokens // spec.slots_per_page) if spec.grows else spec.pages_fixed if tokens else 0
            self.pages[handle][band] = {at: page for at, page in self.pages[handle][band].items() if at < last}
        self.compare()


def shrink_limit(served: Served, handle: int) -> int:
    """The fewest tokens above 0 that a trim can leave: what the window still held allows, and no end in a shared page."""
    tokens, holders = served.tokens[handle], served.leases.holders
    for left in range(1, tokens + 1):
        pages = served.pages[handle]
        last = [(at, left // spec.slots_per_page) for at, spec in enumerate(served.layout.bands) if left % spec.slots_per_page]
        if any(holders.item(pages[at].get(page, 0)) for at, page in last):
            continue
        if all(served.visible_pages(at, left) <= pages[at].keys() for at, spec in enumerate(served.layout.bands) if spec.grows):
            return left
    return tokens
