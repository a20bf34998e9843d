"""Layers, rows and pages exactly at a bound (see docs/MUTATION.md)."""

from __future__ import annotations

import pytest

from core_pure.errors import LayoutError
from core_pure.geometry import (
    BandGeometry,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    RecurrentState,
    Retention,
    StateTensor,
    check_tile,
    group_bands,
    rows_of,
)
from core_pure.layout import BandSpec


@pytest.mark.parametrize(("slots", "tile", "works"), [(0, 1, "1"), (0, 16, "16"), (1, 2, "2"), (3, 2, "2 or 4"), (-1, 4, "4")])
def test_a_wrong_tile_is_told_the_nearest_sizes_that_work(slots: int, tile: int, works: str) -> None:
    """Sizes above zero on both sides of the page asked for, or the one above."""
    with pytest.raises(LayoutError, match=f": {works} would work"):
        check_tile(slots, tile)


def test_a_latent_row_has_a_rotary_part_where_the_model_has_one() -> None:
    """Latent, then rope of the width given, one behind the other in one row; without rope the latent alone, no index by default."""
    (row,) = rows_of(Layer(0, LatentAttention(512, 64, "bfloat16")))
    assert [(part.tensor, part.shape, part.offset) for part in row.parts] == [("latent", (512,), 0), ("rope", (64,), 1024)]
    (row,) = rows_of(Layer(0, LatentAttention(512, 0, "bfloat16")))
    assert [part.tensor for part in row.parts] == ["latent"] and row.payload_bytes == 1024


def test_the_index_cache_of_latent_attention_follows_it() -> None:
    """An index of n bytes per token is a row of n raw bytes behind the latent row."""
    first, second = rows_of(Layer(0, LatentAttention(512, 64, "bfloat16", index_bytes=132)))
    assert (first.name, second.name, second.dtype, second.payload_bytes) == ("latent", "index", "uint8", 132)


def test_pages_are_layer_major_unless_asked_otherwise() -> None:
    """By default the slots of one row are contiguous in a page; token-major, all rows of one slot are."""
    layers = (Layer(0, FullAttention(1, 16, 16, "float16")), Layer(1, FullAttention(1, 16, 16, "float16")))
    for bands, strides, offsets in (
        (group_bands(layers, 4), {32}, [0, 128, 256, 384]),
        (group_bands(layers, 4, token_major=True), {128}, [0, 32, 64, 96]),
    ):
        views = bands[0].views()
        assert {view.slot_stride for view in views} == strides and [view.offset for view in views] == offsets
    assert BandGeometry("full", "full", None, 4, layers) == group_bands(layers, 4)[0]


@pytest.mark.parametrize("slots", [0, -1, 1.5, True, "2"])
def test_a_page_of_no_whole_number_of_slots_is_refused(slots: object) -> None:
    """Zero, negative, half and anything that is no int: a LayoutError from the band and from the grouping, even of states."""
    layers = (Layer(0, FullAttention(1, 16, 16, "float16")),)
    with pytest.raises(LayoutError, match="expected an integer >= 1"):
        BandGeometry("full", "full", None, slots, layers)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="expected an integer >= 1"):
        group_bands([Layer(0, RecurrentState((StateTensor("conv", (4,), "float32"),)))], slots)  # type: ignore[arg-type]


def test_a_page_of_one_token_is_not_zeroed() -> None:
    """The step that takes it writes all of it. Larger pages, states and encoder pages are zeroed, whatever their size."""
    full = (Layer(0, FullAttention(1, 16, 16, "float16")),)
    state = (Layer(0, RecurrentState((StateTensor("conv", (4,), "float32"),))),)
    cross = (Layer(0, CrossAttention(1, 16, 16, "float16", 1)),)
    cases: tuple[tuple[Retention, tuple[Layer, ...], int, bool], ...] = (
        ("full", full, 1, False), ("full", full, 2, True), ("state", state, 1, True), ("cross", cross, 1, True),
        ("cross", cross, 2, True),
    )  # fmt: skip
    for retention, layers, slots, zeroed in cases:
        spec = BandSpec.of(BandGeometry(retention, retention, None, slots, layers))
        assert (spec.zero_on_bind, spec.slots_per_page, spec.pages_fixed) == (zeroed, slots, 1)


def test_encoder_layers_of_one_band_hold_the_longest() -> None:
    """A request holds as many slots as its layer with the most encoder tokens."""
    layers = tuple(Layer(at, CrossAttention(1, 16, 16, "float16", tokens)) for at, tokens in enumerate((3, 5, 4)))
    assert BandGeometry("cross", "cross", None, 2, layers).slots_fixed == 5


def test_encoder_tokens_are_counted_from_one() -> None:
    """One encoder token is a cache of one slot; none, or half of one, is refused."""
    assert BandGeometry("cross", "cross", None, 1, (Layer(0, CrossAttention(1, 16, 16, "float16", 1)),)).slots_fixed == 1
    for tokens in (0, -1, 0.5):
        with pytest.raises(LayoutError, match="encoder tokens"):
            rows_of(Layer(0, CrossAttention(1, 16, 16, "float16", tokens)))  # type: ignore[arg-type]


def test_a_band_of_no_layers_does_not_exist() -> None:
    """It is refused; and no layers at all are no bands."""
    with pytest.raises(LayoutError, match="no layers"):
        BandGeometry("full", "full", None, 1, ())
    assert group_bands([], 16) == ()


def test_a_state_band_has_one_state_per_page() -> None:
    """Whatever the page of the token bands."""
    state = Layer(0, RecurrentState((StateTensor("conv", (4, 4), "float32"),)))
    bands = group_bands([state, Layer(0, FullAttention(1, 16, 16, "float16"))], 16)
    assert {band.name: (band.slots_per_page, band.slots_fixed) for band in bands} == {"full": (16, None), "state": (1, 1)}
