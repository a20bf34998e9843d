"""Layouts: chain order from any declaration, sink, ids, floors, and errors that itemise."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from core_pure.admission import max_request_tokens
from core_pure.advance import allocate
from core_pure.door import Door
from core_pure.errors import DemandError, LayoutError
from core_pure.fits import Fit, fits
from core_pure.geometry import CrossAttention, FullAttention, Layer, RecurrentState, SlidingWindow, StateTensor, group_bands
from core_pure.layout import BandSpec, Layout, boot_floor, build_layout, check_boot, floor_demand, order_chain, smallest_total
from core_pure.state import initial

HYBRID = (
    BandSpec("full", 3 * 256, slots_per_page=16),
    BandSpec("window-64", 5 * 256, slots_per_page=16, retention="window", window=64),
    BandSpec("window-8", 2 * 256, slots_per_page=16, retention="window", window=8),
    BandSpec("state", 7 * 256, retention="state", pages_fixed=2),
)


def test_any_declaration_order_gives_an_equal_arena() -> None:
    """All 24 orders of four bands give equal layouts, equal empty arenas and equal arenas after the same demand."""
    layouts = [build_layout(order, 1 << 20) for order in itertools.permutations(HYBRID)]
    assert len(set(layouts)) == 1
    assert layouts[0].names == ("state", "window-64", "window-8", "full")
    states = [allocate(initial(layout), {"full": 9, "state": 2}).state for layout in layouts[:4]]
    assert len(set(states)) == 1


def test_the_largest_frame_is_the_low_end() -> None:
    """Whatever its kind, the band with the largest frame starts at the sink, where it loses nothing to rounding."""
    big_full = BandSpec("full", 96 * 256, slots_per_page=16)
    chain = order_chain([*HYBRID[1:], big_full])
    assert [band.name for band in chain] == ["full", "state", "window-64", "window-8"]
    layout = build_layout(chain, 1 << 20)
    assert layout.sink_bytes == big_full.frame_bytes
    assert allocate(initial(layout), {"full": 1}).state.bands[0].low == 1
    chunked = BandSpec("chunk-32", 256, retention="chunked", window=32)
    assert order_chain([HYBRID[0], chunked])[1].name == "chunk-32"  # the larger frame stays first


def test_F09_the_budget_is_floored_once() -> None:
    """A budget that is no multiple of any frame: arena bytes = budget floored to 4096, and all of them can be used."""
    for budget in (4096 * 50 + 1, 4096 * 51 - 1, 12_345_678, (1 << 32) + 5):
        layout = build_layout(HYBRID, budget)
        assert layout.total_bytes == layout.capacity_bytes == budget // 4096 * 4096
        for at, band in enumerate(layout.bands):
            above = layout.total_bytes // band.frame_bytes
            first = -(-layout.sink_bytes // band.frame_bytes)
            assert layout.frames_max[at] == above - first
            alone = tuple(layout.frames_max[at] if other == at else 0 for other in range(4))
            assert isinstance(fits(initial(layout), alone), Fit) if budget < 1 << 30 else True


def test_ids_are_unique_across_bands_and_dense() -> None:
    """Band after band, ids count on; id 0 is the sink; the device table has one entry per id."""
    layout = build_layout(HYBRID, 1 << 16)
    state = initial(layout)
    assert layout.ids_total == 1 + sum(layout.frames_max)
    assert layout.id_bases[0] == 0
    for at in range(3):
        assert layout.id_bases[at + 1] == layout.id_bases[at] + layout.frames_max[at]
    full = allocate(state, {"full": layout.frames_max[3]})
    assert full.pages[3].tolist() == list(range(layout.id_bases[3] + 1, layout.ids_total))
    assert np.flatnonzero(full.state.table()).tolist() == full.pages[3].tolist()


def test_F06_one_sink_for_layout_and_boot_check() -> None:
    """State entry 139 MB, KV entry 45 KB, 256 tokens a page: the sink is one state, and boot check and layout agree."""
    state = BandSpec("state", 139_000_000 // 16 * 16, retention="state")
    full = BandSpec("full", 45 * 1024 * 256, slots_per_page=256)
    layout = build_layout([full, state], 1 << 34)
    assert layout.sink_bytes == max(state.frame_bytes, full.frame_bytes) == state.frame_bytes
    floor = boot_floor(layout.bands, 1 << 20, 8192)
    assert floor == -(-(layout.sink_bytes + 3 * state.frame_bytes + full.frame_bytes) // 4096) * 4096 or floor % 4096 == 0
    check_boot(build_layout([full, state], floor), 1 << 20, 8192)


@pytest.mark.parametrize("seed", range(40))
def test_F08_boot_floor_to_the_page(seed: int) -> None:
    """4096 bytes below the floor: an itemised error with remedies. At the floor: boots, and the longest request runs alone."""
    rng = random.Random(seed)
    bands = [
        BandSpec("state", rng.randrange(1, 40) * 256 + 16, retention="state", pages_fixed=rng.choice((1, 3))),
        BandSpec("window", rng.randrange(1, 9) * 272, slots_per_page=rng.choice((1, 4, 16)), retention="window", window=24),
        BandSpec("full", rng.randrange(1, 9) * 304, slots_per_page=rng.choice((1, 4, 16))),
    ]
    bands = rng.sample(bands, rng.choice((1, 2, 3, 3)))
    chain, chunk, context = order_chain(bands), 8, 10_000
    floor = boot_floor(chain, context, chunk)
    assert floor % 4096 == 0
    assert floor == smallest_total(chain, floor_demand(chain, context, chunk))
    with pytest.raises(LayoutError) as raised:
        check_boot(Layout(chain, floor - 4096, floor - 4096), context, chunk)
    for part in ("sink = ", "remedies", str(floor), *(f"{band.name} = " for band in chain)):
        assert part in str(raised.value)
    layout = build_layout(bands, floor)
    door = Door(layout, sequences=2, context=context, chunk=chunk)
    tokens = door.max_request_tokens()
    assert tokens == max_request_tokens(layout, chunk, context) > 0
    assert door.admission().admit(tokens, 0)
    if tokens < context:
        assert not door.admission().admit(tokens + 1, 0)
    handles, held = door.open(1), 0
    while held < min(tokens, 600):
        step = min(chunk, tokens - held) if held < 200 else 1
        assert door.check_decode(door.demand_of(handles, np.array([step])))
        door.step(handles, np.array([step]))
        held += step
    assert door.verify() == []


@pytest.mark.parametrize(
    ("bands", "total", "text"),
    [
        ([], 1 << 20, "at least one band"),
        ([BandSpec("a", 16), BandSpec("a", 32)], 1 << 20, "differ"),
        ([BandSpec("a", 0)], 1 << 20, "frame of 0 bytes"),
        ([BandSpec("a", -16)], 1 << 20, "-16"),
        ([BandSpec("a", 16, slots_per_page=0)], 1 << 20, "0 slots"),
        ([BandSpec("a", 16, retention="state", pages_fixed=0)], 1 << 20, "0 fixed"),
        ([BandSpec("a", 16, retention="sometimes")], 1 << 20, "sometimes"),
        ([BandSpec("a", 16, retention="window")], 1 << 20, "window None"),
        ([BandSpec("a", 16, window=4)], 1 << 20, "window 4"),
        ([BandSpec("a", 16, retention="chunked", window=0)], 1 << 20, "window 0"),
        ([BandSpec("a", 16, pages_min=5, pages_max=4)], 1 << 20, "contradict"),
        ([BandSpec("a", 16, pages_min=-1)], 1 << 20, "-1"),
        ([BandSpec("a", 16.0)], 1 << 20, "whole"),  # type: ignore[arg-type]
        ([BandSpec("a", 16, pages_max="9")], 1 << 20, "whole"),  # type: ignore[arg-type]
        ([BandSpec("a", 4096, pages_min=9), BandSpec("b", 5000)], 1 << 15, "a = 36864, .*needs|b = .*a = "),
        ([BandSpec("a", 4096)], 4096, "needs 8192"),
        ([BandSpec("a", 1)], 1 << 33, "int32"),
    ],
)
def test_layouts_that_cannot_be(bands: list[BandSpec], total: int, text: str) -> None:
    """No band, two of a name, nonsense fields, minima that do not fit, too few bytes, too many ids: LayoutError naming it."""
    with pytest.raises(LayoutError, match=text):
        build_layout(bands, total)


def test_demands_by_name_or_in_order() -> None:
    """A mapping and a row mean the same; numpy integers count; an unknown name lists the known ones."""
    layout = build_layout(HYBRID, 1 << 20)
    assert layout.demand({"full": 2, "state": np.int32(1)}) == layout.demand([1, 0, 0, np.int64(2)]) == (1, 0, 0, 2)
    assert layout.demand(np.array([1, 0, 0, 2])) == (1, 0, 0, 2)
    with pytest.raises(DemandError, match="state, window-64"):
        layout.demand({"attention": 1})
    assert layout.index("full") == 3


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_only_pages_of_one_token_come_unzeroed(slots: int) -> None:
    """A page that the step which takes it fills whole is not zeroed; longer pages, states and encoder pages are."""
    kinds = (
        FullAttention(2, 64, 64, "bfloat16"),
        SlidingWindow(2, 64, 64, "bfloat16", window=32),
        RecurrentState((StateTensor("conv", (4, 8), "bfloat16"),)),
        CrossAttention(2, 64, 64, "bfloat16", tokens=9),
    )
    bands = group_bands([Layer(index, kind) for index, kind in enumerate(kinds)], slots)
    zeroed = {band.retention: BandSpec.of(band).zero_on_bind for band in bands}
    assert zeroed == {"full": slots > 1, "window": slots > 1, "state": True, "cross": True}
