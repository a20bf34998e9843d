"""Rivals of the arena under the same protocol: a static split per cache kind, and vLLM 0.33's padded common page.

They hold no bytes: they count pages, as those systems' schedulers do. What a request holds follows the same band specs
as in the arena, so a difference between policies comes from memory alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from core_pure.capacity import Evictor, StepResult
from core_pure.errors import ConfigError, DemandError, LayoutError, LeaseStale
from core_pure.fits import RELIEF, BandRefusal, Fit, Refusal
from core_pure.layout import BandSpec, Demand, Layout
from core_pure.report import BandReport, Report
from core_pure.step import first_visible
from core_pure.verify import Violation
from models.loop import NO_INTS, Ints
from models.padded import PaddedPage

SGLANG_STATE_TO_FULL = Fraction(9, 10)  # bytes: SGLang's --mamba-full-memory-ratio
SGLANG_DEFAULT_SHARE = SGLANG_STATE_TO_FULL / (1 + SGLANG_STATE_TO_FULL)
SGLANG_WINDOW_TO_FULL = Fraction(8, 10)  # tokens: SGLang's --swa-full-tokens-ratio
SLOT_BITS = 20  # a handle is serial · 2^20 + slot, as in the core's leases
SLOTS_MAX = 1 << SLOT_BITS
EMPTY_SLOT = -1


class CountingPool(ABC):
    """Counts pages per lease and band. Subclasses say what fits.

    Args: specs: the bands. total_bytes: everything, sinks and tails included. chunk: most tokens of one request in one
    step, for the peak of a window.
    """

    def __init__(self, specs: Sequence[BandSpec], total_bytes: int, chunk: int) -> None:
        self.specs = tuple(specs)
        self.names = tuple(spec.name for spec in self.specs)
        self.total_bytes = total_bytes
        self.chunk = chunk
        self._serial = 0
        self._tokens = np.zeros(16, np.int64)
        self._serials = np.full(16, EMPTY_SLOT, np.int64)
        self._held = np.zeros((len(self.specs), 16), np.int64)
        self._free: list[int] = list(range(15, -1, -1))
        self.pages_held: Demand = (0,) * len(self.specs)

    # --- leases ---------------------------------------------------------------------------------------------------

    def open(self, count: int) -> Ints:
        """New leases that hold nothing yet. Returns: handles int64[count]."""
        while len(self._free) < count:
            self._grow()
        slots = np.array([self._free.pop() for _ in range(count)], np.int64)
        serials = np.arange(self._serial, self._serial + count)
        self._serial += count
        self._serials[slots], self._tokens[slots], self._held[:, slots] = serials, 0, 0
        return serials * SLOTS_MAX + slots

    def _grow(self) -> None:
        size = len(self._tokens)
        if size >= SLOTS_MAX:
            raise DemandError(f"more than {SLOTS_MAX} leases at once")
        self._tokens = np.concatenate((self._tokens, np.zeros(size, np.int64)))
        self._serials = np.concatenate((self._serials, np.full(size, EMPTY_SLOT, np.int64)))
        self._held = np.concatenate((self._held, np.zeros_like(self._held)), axis=1)
        self._free += range(2 * size - 1, size - 1, -1)

    def _slots(self, handles: Ints) -> Ints:
        slots = handles % SLOTS_MAX
        bad = (handles < 0) | (slots >= len(self._serials))
        stale = bad | (self._serials[np.where(bad, 0, slots)] != handles // SLOTS_MAX)
        if stale.any():
            raise LeaseStale(f"lease {int(handles[stale][0])} has ended or was never opened")
        if len(np.unique(slots)) != len(slots):
            raise DemandError("a lease stands twice in one step")
        return slots

    # --- counting -------------------------------------------------------------------------------------------------

    def _pages(self, before: Ints, after: Ints) -> Ints:
        """Pages held per band and lease, int64[bands, leases]; see ``pages_while``."""
        return np.stack([pages_while(spec, before, after) for spec in self.specs])

    def demand_of(self, handles: Ints, new_tokens: Ints) -> Demand:
        """Pages per band that this joint step must newly take, net of what its slide gives back."""
        slots = self._slots(handles)
        tokens = self._tokens[slots]
        net = (self._pages(tokens, tokens + new_tokens) - self._held[:, slots]).sum(axis=1)
        return tuple(np.maximum(net, 0).tolist())

    def step(self, handles: Ints, new_tokens: Ints, finished: Ints = NO_INTS, slid: Ints | None = None) -> StepResult | Refusal:
        """Release ``finished``, then give each lease its new tokens, jointly; a refusal changes nothing.

        slid: tokens that are final per lease (default: all it holds); a window keeps what tokens after them can see.
        """
        slots, gone = self._slots(handles), self._slots(finished)
        if len(np.intersect1d(slots, gone)):
            raise DemandError("a lease both grows and finishes in one step")
        tokens = self._tokens[slots]
        pages = self._pages(tokens if slid is None else slid, tokens + new_tokens)
        change = (pages - self._held[:, slots]).sum(axis=1) - self._held[:, gone].sum(axis=1)
        wanted = tuple((np.array(self.pages_held) + change).tolist())
        if len(slots) and not self._has_room(wanted):
            return self._refusal(tuple(np.maximum(change, 0).tolist()))
        self._held[:, slots], self._tokens[slots] = pages, tokens + new_tokens
        self._held[:, gone], self._tokens[gone], self._serials[gone] = 0, 0, EMPTY_SLOT
        self._free += gone.tolist()
        self.pages_held = wanted
        return StepResult()

    # --- capacity -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _has_room(self, pages: Demand) -> bool:
        """Whether so many pages per band can be held at once, in all."""

    @abstractmethod
    def _obtainable(self, at: int) -> int:
        """Pages that band ``at`` alone could still take."""

    def fits(self, demand: Mapping[str, int] | Sequence[int]) -> Fit | Refusal:
        """Whether so many more pages per band fit, and if not, why."""
        asked = self._demand(demand)
        if self._has_room(_plus(self.pages_held, asked)):
            return Fit(RELIEF)
        return self._refusal(asked)

    def _demand(self, demand: Mapping[str, int] | Sequence[int]) -> Demand:
        return Layout(self.specs, self.total_bytes, self.total_bytes).demand(demand)

    def _refusal(self, asked: Demand) -> Refusal:
        rows = []
        for at, spec in enumerate(self.specs):
            free = self._obtainable(at)
            emptied = free + self.pages_held[at]
            held = self.pages_held[at] * spec.frame_bytes
            rows.append(BandRefusal(spec.name, asked[at], free, free, free, emptied, min(asked[at], free), held))
        band = next((row.band for row in rows if row.wanted > row.now), self.names[0])
        return Refusal(band, "bytes", RELIEF, tuple(rows))

    def check_decode(self, demand: Demand, evictor: Evictor | None = None) -> bool:
        """Whether the step's demand fits, after evicting what helps."""
        self.evict_to_free(demand, evictor)
        return self._has_room(_plus(self.pages_held, demand))

    def evict_to_free(self, demand: Demand, evictor: Evictor | None) -> int:
        """Evict oldest units until the demand fits; none if that would not suffice. Returns: units evicted."""
        if evictor is None or self._has_room(_plus(self.pages_held, demand)):
            return 0
        units = list(evictor.units())
        for count in range(1, len(units) + 1):
            freed = [sum(unit.pages[at] for unit in units[:count]) for at in range(len(self.specs))]
            left = tuple(max(0, held - less) for held, less in zip(self.pages_held, freed, strict=True))
            if self._has_room(_plus(left, demand)):
                evictor.evict([unit.key for unit in units[:count]])
                return count
        return 0

    def max_request_tokens(self) -> int:
        """The longest request that fits alone in the empty pool, at its peak. Units: tokens."""
        low, high = 0, 1
        while self._has_room(self.pages_peak(high)) and high < 1 << 40:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has_room(self.pages_peak(middle)) else (low, middle)
        return low

    def pages_peak(self, tokens: int) -> Demand:
        """The most pages per band that one request of ``tokens`` holds at once."""
        return tuple(spec.pages_peak(tokens, self.chunk) for spec in self.specs)

    def admission(self, promised: Demand | None = None) -> CountingBudget:
        """A budget that folds admissions one by one, on top of the pages held and ``promised`` in this step."""
        return CountingBudget(self, _plus(self.pages_held, promised or (0,) * len(self.specs)))

    # --- reports --------------------------------------------------------------------------------------------------

    def _limit_bytes(self, at: int) -> int:
        """Bytes set aside for band ``at`` alone, beyond its sink; what is shared counts as gap."""
        raise AssertionError("a subclass says what it sets aside")

    def _sink_bytes(self) -> int:
        """Bytes that are never handed out."""
        raise AssertionError("a subclass says what it reserves")

    def report(self) -> Report:
        """Who holds which bytes, adding up to the total. A pool's own free pages are holes; its place is nominal."""
        rows, edge = [], self._sink_bytes()
        for at, spec in enumerate(self.specs):
            live, most = self.pages_held[at] * spec.frame_bytes, self._limit_bytes(at)
            rows.append(BandReport(spec.name, self.pages_held[at], live, most - live, 0, 0, edge, edge + most))
            edge += most
        return Report(tuple(rows), self.total_bytes - edge, self._sink_bytes(), self.total_bytes)

    def verify(self) -> list[Violation]:
        """The counters against the leases: what is held in all is what the leases hold."""
        found = []
        for at, name in enumerate(self.names):
            total = int(self._held[at].sum())
            if total != self.pages_held[at]:
                found.append(Violation("COUNT-1", f"{name}: {self.pages_held[at]} pages counted, leases hold {total}"))
        if not self._has_room(self.pages_held):
            found.append(Violation("COUNT-2", f"{self.pages_held} pages held, more than the pool has"))
        return found


class CountingBudget:
    """Admissions of one step, folded: any prefix accepted fits together with what is held and promised."""

    def __init__(self, pool: CountingPool, pages: Demand) -> None:
        self._pool = pool
        self.pages = pages

    def admit(self, tokens_now: int, tokens_reserved: int) -> bool:
        """Charge one request's peak; False, charging nothing, if it does not fit on top of those before it."""
        charged = _plus(self.pages, self._pool.pages_peak(tokens_now + tokens_reserved))
        if not self._pool._has_room(charged):
            return False
        self.pages = charged
        return True


class StaticPools(CountingPool):
    """One pool per band with its own page limit and its own sink page: the split that engines use today."""

    def __init__(self, specs: Sequence[BandSpec], pages_max: Sequence[int], total_bytes: int, chunk: int) -> None:
        super().__init__(specs, total_bytes, chunk)
        self.pages_max: Demand = tuple(pages_max)
        if min(self.pages_max) < 1:
            short = self.names[self.pages_max.index(min(self.pages_max))]
            raise LayoutError(f"a static split of {total_bytes} bytes leaves no page for {short} beside its sink")

    @classmethod
    def split(cls, layout: Layout, share: Fraction | float, chunk: int) -> StaticPools:
        """Split ``layout.total_bytes``: ``share`` to state (without state: to windows), the rest as SGLang does.

        Raises: LayoutError when a pool gets no page beside its sink.
        """
        budgets = split_bytes(layout.bands, layout.total_bytes, Fraction(share))
        pages = [size // spec.frame_bytes - 1 for spec, size in zip(layout.bands, budgets, strict=True)]
        return cls(layout.bands, pages, layout.total_bytes, chunk)

    def _has_room(self, pages: Demand) -> bool:
        return all(wanted <= most for wanted, most in zip(pages, self.pages_max, strict=True))

    def _obtainable(self, at: int) -> int:
        return self.pages_max[at] - self.pages_held[at]

    def _limit_bytes(self, at: int) -> int:
        return self.pages_max[at] * self.specs[at].frame_bytes

    def _sink_bytes(self) -> int:
        return sum(spec.frame_bytes for spec in self.specs)


class PaddedPages(CountingPool):
    """One pool of equal blocks for all kinds; one block is the null block."""

    def __init__(self, page: PaddedPage, total_bytes: int, chunk: int) -> None:
        super().__init__(page.specs(), total_bytes, chunk)
        self.page = page
        self.blocks_max = total_bytes // page.block_bytes - 1
        self._weights = tuple(groups.groups for groups in page.kinds)
        if self.blocks_max < sum(self._weights):
            raise LayoutError(
                f"{total_bytes} bytes hold {self.blocks_max + 1} padded blocks of {page.block_bytes} bytes; one request "
                f"needs {sum(self._weights)} and the null block"
            )

    def _blocks(self, pages: Demand) -> int:
        return sum(count * weight for count, weight in zip(pages, self._weights, strict=True))

    def _has_room(self, pages: Demand) -> bool:
        return self._blocks(pages) <= self.blocks_max

    def _obtainable(self, at: int) -> int:
        return (self.blocks_max - self._blocks(self.pages_held)) // self._weights[at]

    def _limit_bytes(self, at: int) -> int:
        return self.pages_held[at] * self.specs[at].frame_bytes

    def _sink_bytes(self) -> int:
        return self.page.block_bytes


def split_bytes(specs: Sequence[BandSpec], total_bytes: int, share: Fraction) -> tuple[int, ...]:
    """Bytes per band: ``share`` to the states (to the windows where there are none), the rest by token ratio.

    Windows get 0.8 tokens per token of full attention; where only one side exists it takes everything.
    """
    states = [spec for spec in specs if spec.retention == "state"]
    windows = [spec for spec in specs if spec.window is not None]
    first = states or windows
    if not 0 < share < 1:
        raise ConfigError(f"a static split needs a share between 0 and 1; {float(share)} was given")
    if not first or len(first) == len(specs):
        share = Fraction(1) if first else Fraction(0)
    sides = ((first, share), ([spec for spec in specs if spec not in first], 1 - share))
    budgets: dict[str, int] = {}
    for members, part in sides:
        weights = {spec.name: _token_weight(spec) for spec in members}
        for name, weight in weights.items():
            budgets[name] = int(total_bytes * part * weight / sum(weights.values()))
    return tuple(budgets[spec.name] for spec in specs)


def _token_weight(spec: BandSpec) -> Fraction:
    """Bytes per token of the full-attention pool that this band gets."""
    per_token = Fraction(spec.frame_bytes, spec.slots_per_page)
    return per_token * SGLANG_WINDOW_TO_FULL if spec.window is not None else per_token


def pages_while(spec: BandSpec, before: Ints, after: Ints) -> Ints:
    """Pages a lease of ``after`` tokens holds in this band once everything that no token after ``before`` sees has slid."""
    if not spec.grows:
        return np.where(after > 0, spec.pages_fixed, 0)
    pages: Ints = -(-after // spec.slots_per_page) - first_visible(spec, before) // spec.slots_per_page
    return pages


def _plus(pages: Iterable[int], more: Iterable[int]) -> Demand:
    return tuple(a + b for a, b in zip(pages, more, strict=True))
