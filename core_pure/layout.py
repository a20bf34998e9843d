"""The static shape of one arena: which bands stand in which byte order, and how many bytes there are.

Nothing here changes while the arena runs, except ``total_bytes`` on a resize (tables and page ids keep the capacity they
were built for). Boot floor, layout and admission use the same numbers, so they cannot disagree (case F06).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import index

from attrs import field, frozen

from .chain import NOWHERE, Claim, edge_above, leans
from .errors import DemandError, LayoutError
from .geometry import (
    ARENA_GRANULE,
    BandGeometry,
    align,
    ceil_div,
    first_visible,
    floor_arena,
    sink_bytes,
    window_pages_max,
)

Demand = tuple[int, ...]
"""Pages wanted, per band in byte order."""

FLOOR_STATE_SLOTS = 3
"""One worst-case request: its running state and two tracking slots."""
FIXED = ("state", "cross")
"""Retentions under which a request holds a fixed number of pages, whatever its length."""
IDS_LIMIT = 2**31 - 1
"""Page ids travel as int32."""


def is_whole(value: object) -> bool:
    """True for an int, or a numpy integer; False for bools, floats and everything else."""
    return type(value) is int or (hasattr(value, "dtype") and value.dtype.kind in "iu" and getattr(value, "ndim", 1) == 0)


@frozen
class BandSpec:
    """One cache kind's share of the arena: ints only, so that the core needs no model.

    Units: frame_bytes in bytes; slots_per_page in tokens (1 for states); window in tokens; pages_min, pages_max in pages;
    pages_fixed is what one request holds whatever its length: states (running, tracking, draft) or encoder pages.
    zero_on_bind: a page is zeroed when it is handed out, because kernels may read slots that nobody has written yet.
    """

    name: str
    frame_bytes: int
    slots_per_page: int = 1
    retention: str = "full"  # full, window, chunked, state or cross
    window: int | None = None
    pages_min: int = 0
    pages_max: int | None = None
    pages_fixed: int = 1  # read for retention state and cross only
    zero_on_bind: bool = True
    geometry: BandGeometry | None = field(default=None, repr=False)

    @classmethod
    def of(cls, geometry: BandGeometry, *, state_slots: int = 1) -> BandSpec:
        """The spec of a band whose bytes a model's layers define; a request holds ``state_slots`` states.

        A page of one token is not zeroed: the step that takes it writes all of it before anything reads it.
        """
        fixed = state_slots if geometry.retention == "state" else ceil_div(geometry.slots_fixed or 1, geometry.slots_per_page)
        grows = geometry.retention not in FIXED
        return cls(
            name=geometry.name,
            frame_bytes=geometry.frame_bytes,
            slots_per_page=geometry.slots_per_page,
            retention=geometry.retention,
            window=geometry.window,
            pages_fixed=fixed,
            zero_on_bind=not (grows and geometry.slots_per_page == 1),
            geometry=geometry,
        )

    @property
    def grows(self) -> bool:
        """True where pages follow the tokens of a request; False for states and encoder pages."""
        return self.retention not in FIXED

    @property
    def slides(self) -> bool:
        """True where old tokens become invisible and their pages go."""
        return self.window is not None

    def first_visible(self, tokens: int) -> int:
        """The oldest token that the token at position ``tokens`` can see."""
        return first_visible(tokens, self.window, self.retention == "chunked") if self.window else 0

    def pages_peak(self, tokens: int, chunk: int) -> int:
        """The most pages that one request of ``tokens`` holds at once when it is filled ``chunk`` tokens at a time."""
        if not self.grows:
            return self.pages_fixed
        everything = ceil_div(tokens, self.slots_per_page)
        if self.window is None:
            return everything
        return min(everything, window_pages_max(self.window, self.slots_per_page, max(1, chunk), tokens))


@frozen
class Layout:
    """The bands in byte order, the arena's bytes now, and the bytes that tables and ids were sized for.

    A chain sorts by: largest frame first (it starts exactly at the sink, so nothing is lost to rounding there), then
    states, windows by falling length, the rest; names break ties. Declaring bands in any order gives an equal layout.
    """

    bands: tuple[BandSpec, ...]
    total_bytes: int
    capacity_bytes: int

    @cached_property
    def sink_bytes(self) -> int:
        """The reserved low bytes: one frame of the largest kind."""
        return sink_bytes(band.frame_bytes for band in self.bands)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Band names in byte order."""
        return tuple(band.name for band in self.bands)

    @cached_property
    def frames_max(self) -> tuple[int, ...]:
        """The most frames each band can ever hold, alone."""
        return tuple(
            self.capacity_bytes // band.frame_bytes - ceil_div(self.sink_bytes, band.frame_bytes) for band in self.bands
        )

    @cached_property
    def id_bases(self) -> tuple[int, ...]:
        """Band b owns the page ids id_bases[b] + 1 … id_bases[b] + frames_max[b]; id 0 is the sink."""
        bases = [0]
        for frames in self.frames_max:
            bases.append(bases[-1] + frames)
        return tuple(bases[:-1])

    @cached_property
    def ids_total(self) -> int:
        """Length of the device's page → frame table: every id, and the sink's 0."""
        return 1 + sum(self.frames_max)

    @cached_property
    def has_minima(self) -> bool:
        """Whether some band reserves pages for itself."""
        return any(band.pages_min for band in self.bands)

    @cached_property
    def has_maxima(self) -> bool:
        """Whether some band may not take all it could."""
        return any(band.pages_max is not None for band in self.bands)

    def index(self, name: str) -> int:
        """The position of a band in byte order. Raises: DemandError."""
        if name not in self.names:
            raise DemandError(f"no band named {name!r}; this arena has {', '.join(self.names)}")
        return self.names.index(name)

    def demand(self, wanted: Mapping[str, int] | Sequence[int]) -> Demand:
        """A checked demand in byte order, from band names or already in order. Raises: DemandError."""
        if isinstance(wanted, Mapping):
            counts = [0] * len(self.bands)
            for name, pages in wanted.items():
                counts[self.index(name)] = pages
            wanted = counts
        if isinstance(wanted, str) or not hasattr(wanted, "__len__") or getattr(wanted, "ndim", 1) != 1:
            raise DemandError(f"a demand is a mapping or a row of pages per band, not {wanted!r}")
        if len(wanted) != len(self.bands):
            raise DemandError(f"a demand names {len(wanted)} bands; this arena has {len(self.bands)}: {self.names}")
        checked = []
        for name, pages in zip(self.names, wanted, strict=True):
            if not is_whole(pages) or not 0 <= index(pages) <= IDS_LIMIT:
                raise DemandError(f"{name}: {pages!r} pages wanted; expected a whole number from 0 to {IDS_LIMIT}")
            checked.append(index(pages))
        return tuple(checked)


def _chain_key(band: BandSpec) -> tuple[int, int, int, str]:
    kinds = {"state": 0, "window": 1, "chunked": 1}
    return (kinds.get(band.retention, 2), -(band.window or 0), -band.frame_bytes, band.name)


def order_chain(bands: Iterable[BandSpec]) -> tuple[BandSpec, ...]:
    """Bands in byte order: the largest frame is the low end, the others as states, windows (longest first), full."""
    ordered = sorted(bands, key=_chain_key)
    if ordered:
        first = max(ordered, key=lambda band: band.frame_bytes)  # max keeps the first of equals
        ordered.remove(first)
        ordered.insert(0, first)
    return tuple(ordered)


def check_band(band: BandSpec) -> None:
    """Raises: LayoutError for a field of the wrong kind, or one that contradicts another."""
    numbers = (band.frame_bytes, band.slots_per_page, band.pages_fixed, band.pages_min)
    given = tuple(n for n in (band.window, band.pages_max) if n is not None)
    if not isinstance(band.name, str) or not all(is_whole(n) for n in numbers + given):
        raise LayoutError(f"band {band.name!r}: bytes, slots, pages and window must be whole numbers; got {numbers + given}")
    if band.frame_bytes <= 0 or band.slots_per_page <= 0 or band.pages_fixed <= 0:
        raise LayoutError(
            f"band {band.name!r}: frame of {band.frame_bytes} bytes, {band.slots_per_page} slots a page, "
            f"{band.pages_fixed} fixed pages; each must be at least 1"
        )
    if band.retention not in ("full", "window", "chunked", "state", "cross"):
        raise LayoutError(f"band {band.name!r}: retention {band.retention!r} is none of full, window, chunked, state, cross")
    if (band.retention in ("window", "chunked")) != (band.window is not None) or (band.window is not None and band.window <= 0):
        raise LayoutError(f"band {band.name!r}: retention {band.retention} does not go with window {band.window}")
    if band.pages_min < 0 or (band.pages_max is not None and band.pages_max < band.pages_min):
        raise LayoutError(f"band {band.name!r}: minimum {band.pages_min} and maximum {band.pages_max} pages contradict")


def build_layout(bands: Iterable[BandSpec], total_bytes: int) -> Layout:
    """Order the chain, floor the budget to 4096 bytes and check that ids stay within int32.

    Raises: LayoutError when there is no band, a name stands twice, a field is nonsense, the minima do not fit, or the
    bytes hold not even the sink and one frame of some band.
    """
    declared = tuple(bands)
    for band in declared:
        check_band(band)
    chain = order_chain(declared)
    if not chain:
        raise LayoutError("an arena needs at least one band; every layer kind of this rank is absent")
    names = [band.name for band in chain]
    if len(set(names)) != len(names):
        raise LayoutError(f"band names must differ: {names}")
    if not is_whole(total_bytes):
        raise LayoutError(f"arena of {total_bytes!r} bytes; expected a whole number")
    total = floor_arena(index(total_bytes))
    layout = Layout(chain, total, total)
    floor = smallest_total(chain, tuple(max(1, band.pages_min) for band in chain))
    if total < floor:
        raise LayoutError(
            f"arena of {index(total_bytes)} bytes cannot hold the sink ({layout.sink_bytes}) and, together, the least pages of "
            + "every band: "
            + ", ".join(f"{b.name} = {max(1, b.pages_min) * b.frame_bytes}" for b in chain)
            + f"; needs {floor} bytes: give more memory or smaller pages"
            + (", or lower pages_min" if any(b.pages_min for b in chain) else "")
        )
    if layout.ids_total > IDS_LIMIT:
        raise LayoutError(f"{layout.ids_total} page ids exceed int32; use larger pages")
    return layout


def smallest_total(chain: Sequence[BandSpec], demand: Sequence[int]) -> int:
    """The least arena, in whole 4096 bytes, whose empty value admits ``demand``: the walk of ``fits`` with no ceiling."""
    edge = sink_bytes(band.frame_bytes for band in chain)
    ample = edge + sum((max(n, band.pages_min) + 1) * band.frame_bytes for band, n in zip(chain, demand, strict=True))
    for band, pages in zip(chain, demand, strict=True):
        edge = edge_above(edge, ample, band.frame_bytes, max(pages, band.pages_min), NOWHERE, 0)
    return align(edge, ARENA_GRANULE)


def floor_demand(chain: Sequence[BandSpec], context: int, chunk: int) -> Demand:
    """What every arena must be able to admit at boot; full attention beyond one page is not charged."""
    counts = []
    for band in chain:
        if band.retention == "state":
            counts.append(max(FLOOR_STATE_SLOTS, band.pages_fixed))
        elif band.window is not None:
            counts.append(window_pages_max(band.window, band.slots_per_page, chunk, context))
        else:
            counts.append(1 if band.grows else band.pages_fixed)
    return tuple(counts)


def boot_floor(chain: Sequence[BandSpec], context: int, chunk: int) -> int:
    """The least bytes of an arena for this chain, in whole 4096 bytes."""
    return smallest_total(chain, floor_demand(chain, context, chunk))


def check_boot(layout: Layout, context: int, chunk: int) -> None:
    """Refuse an arena under its boot floor, naming what the floor is made of. Equality passes. Raises: LayoutError."""
    floor = boot_floor(layout.bands, context, chunk)
    if layout.total_bytes >= floor:
        return
    wanted = floor_demand(layout.bands, context, chunk)
    items = [f"sink = {layout.sink_bytes}"]
    items += [f"{b.name} = {n} x {b.frame_bytes} = {n * b.frame_bytes}" for b, n in zip(layout.bands, wanted, strict=True)]
    raise LayoutError(
        f"memory of {layout.total_bytes} bytes is below the boot floor of {floor} bytes: {', '.join(items)}; "
        "remedies: more memory, smaller pages (--page-slots), a smaller prefill chunk, or more ranks (--tp)"
    )


def claims_of_empty(layout: Layout, demand: Demand) -> tuple[Claim, ...]:
    """The claims of ``demand`` on the empty arena, for questions about what could ever fit."""
    return tuple(
        Claim(band.frame_bytes, max(pages, band.pages_min), lean=lean)
        for band, pages, lean in zip(layout.bands, demand, leans(len(layout.bands)), strict=True)
    )
