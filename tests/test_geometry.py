"""Byte arithmetic of pages: offsets, alignment, sinks, windows, and the errors that name layer and row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_pure import geometry as g
from core_pure.errors import LayoutError

BF16 = "bfloat16"


def attention(index, heads=2, k=64, v=64, **kwargs):
    """A full-attention layer in bf16 unless told otherwise."""
    return g.Layer(index, g.FullAttention(heads, k, v, kwargs.pop("dtype", BF16), **kwargs))


def state(index, *tensors):
    """A recurrent layer from (name, shape, dtype) triples."""
    return g.Layer(index, g.RecurrentState(tuple(g.StateTensor(*one) for one in tensors)))


LAYERS = (
    attention(0, 2, 64, 128),
    attention(1, 1, 20, 12, storage_dtype="float8_e4m3fn"),
    g.Layer(2, g.LatentAttention(512, 64, BF16, index_bytes=132)),
    g.Layer(3, g.SlidingWindow(4, 256, 256, BF16, window=1024)),
    g.Layer(4, g.SlidingWindow(8, 128, 128, BF16, window=8192, chunked=True)),
    state(5, ("conv", (1792, 3), BF16), ("temporal", (24, 64, 128), "float32")),
    g.Layer(6, g.CrossAttention(8, 128, 128, BF16, 6404)),
    attention(7, 2, 64, 128),
)


@pytest.mark.parametrize("slots", [1, 2, 16, 256])
def test_offsets_have_a_closed_form(slots):
    """Layer-major: slot s of a row lies at slots * (strides before it) + s * its own stride."""
    band = g.group_bands([attention(0, 2, 64, 128), attention(3, 1, 20, 12, storage_dtype="float8_e4m3fn")], slots)[0]
    strides = [2 * 64 * 2, 2 * 128 * 2, 32, 16]  # 20 and 12 bytes of fp8 round up to whole 16-byte rows
    assert band.entry_bytes == sum(strides)
    assert band.payload_bytes == 2 * 64 * 2 + 2 * 128 * 2 + 20 + 12
    assert band.frame_bytes == slots * sum(strides)
    for position, view in enumerate(band.views()):
        assert (view.offset, view.slot_stride) == (slots * sum(strides[:position]), strides[position])
        for slot in (0, slots - 1):
            expected = slots * sum(strides[:position]) + slot * strides[position]
            assert (
                g.slot_offset(sum(strides[:position]), strides[position], sum(strides), slots, slot, False) == expected
            )


@pytest.mark.parametrize("slots", [1, 2, 16, 256])
def test_token_major_keeps_one_envelope_per_token(slots):
    """Token-major: slot s of every row lies s entries after slot 0, and slot 0 lies where one-slot pages put it."""
    for one, many in zip(g.group_bands(LAYERS, 1), g.group_bands(LAYERS, slots, token_major=True), strict=True):
        assert [view.offset for view in many.views()] == [view.offset for view in one.views()]
        assert {view.slot_stride for view in many.views()} == {many.entry_bytes}
        assert many.frame_bytes == many.entry_bytes * (1 if many.retention == "state" else slots)


def test_one_slot_pages_are_the_token_envelope():
    """At one slot per page both page orders give equal offsets: the running sum of rounded rows."""
    for layer_major, token_major in zip(
        g.group_bands(LAYERS, 1), g.group_bands(LAYERS, 1, token_major=True), strict=True
    ):
        assert [v.offset for v in layer_major.views()] == [v.offset for v in token_major.views()]
        before = 0
        for row in layer_major.rows:
            offsets = {v.offset - part.offset for v in layer_major.views() for part in row.parts
                       if (v.layer, v.tensor) == (row.layer, part.tensor)}  # fmt: skip
            assert offsets == {before}
            before += row.stride


@pytest.mark.parametrize("token_major", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 16, 256])
def test_views_tile_the_page_without_overlap(slots, token_major):
    """Every byte of a page belongs to at most one slot of one view, and only row rounding belongs to none."""
    for band in g.group_bands(LAYERS, slots, token_major=token_major):
        owners = np.zeros(band.frame_bytes, dtype=np.uint8)
        for view in band.views():
            assert view.offset % g.ITEMSIZE[view.storage_dtype] == 0
            assert view.slot_stride % g.ROW_ALIGNMENT == 0
            for slot in range(band.slots_per_page):
                start = view.offset + slot * view.slot_stride
                owners[start : start + view.slot_bytes] += 1
        assert owners.max() == 1
        assert int(owners.sum()) == band.payload_bytes * band.slots_per_page


def test_state_frames_of_no_power_of_two_round_trip():
    """State views over frames of an odd size read back what was written, frame by frame, tensor by tensor."""
    layers = [state(i, ("conv", (7, 3), BF16), ("temporal", (5, 3, 11), "float32")) for i in range(3)]
    band = g.group_bands(layers, 16)[0]
    assert band.slots_per_page == 1
    assert band.frame_bytes == 3 * (48 + 672)  # 42 -> 48 and 660 -> 672 bytes
    assert band.frame_bytes & (band.frame_bytes - 1)
    frames = 5
    buffer = np.zeros(frames * band.frame_bytes, dtype=np.uint8)
    rng = np.random.default_rng(0)
    written = {}
    for frame in range(frames):
        for view in band.views():
            dtype = np.float32 if view.dtype == "float32" else np.uint16
            start = frame * band.frame_bytes + view.offset
            target = buffer[start : start + view.slot_bytes].view(dtype).reshape(view.shape)
            values = rng.integers(1, 1000, view.shape).astype(dtype)
            target[...] = values
            written[frame, view.layer, view.tensor] = (target, values)
    assert len(written) == frames * 6
    for target, values in written.values():
        assert np.array_equal(target, values)


def test_F06_sink_is_one_state_or_one_page_of_tokens_never_both():
    """The sink is the larger of one state entry and 256 KV entries; the page size never multiplies a state."""
    kv = attention(0, 11, 1024, 1024)  # 45,056 bytes a token
    mamba = state(1, ("temporal", (139 * 10**6 // 64, 16), "float32"))
    bands = {band.name: band for band in g.group_bands([kv, mamba], 256)}
    assert bands["full"].entry_bytes == 45_056
    assert bands["state"].frame_bytes == bands["state"].entry_bytes == 139 * 10**6 // 64 * 64
    assert g.sink_bytes(b.frame_bytes for b in bands.values()) == max(139 * 10**6 // 64 * 64, 256 * 45_056)
    assert g.sink_bytes([]) == 0


def test_F12_absent_kinds_do_not_exist():
    """A rank with only state layers has one band, one with only attention another; none of them is empty."""
    mamba = [layer for layer in LAYERS if isinstance(layer.kind, g.RecurrentState)]
    full = [layer for layer in LAYERS if isinstance(layer.kind, g.FullAttention)]
    assert [band.name for band in g.group_bands(mamba, 16)] == ["state"]
    assert [band.name for band in g.group_bands(full, 16)] == ["full"]
    assert g.group_bands([], 16) == ()


def test_F13_degenerate_sizes_use_the_same_code():
    """One layer, one head, one slot: the entry is its two rows."""
    band = g.group_bands([attention(0, 1, 1, 1)], 1)[0]
    assert (band.entry_bytes, band.payload_bytes, band.frame_bytes) == (32, 4, 32)


def test_F15_logical_and_stored_dtype_are_two_facts():
    """fp8 storage halves the bytes of bf16 numbers, and the view keeps both names."""
    plain, packed = attention(0, 2, 64, 64), attention(0, 2, 64, 64, storage_dtype="float8_e4m3fn")
    bands = [g.group_bands([layer], 16)[0] for layer in (plain, packed)]
    assert bands[0].entry_bytes == 2 * bands[1].entry_bytes
    view = bands[1].views()[0]
    assert (view.dtype, view.storage_dtype, view.slot_bytes) == (BF16, "float8_e4m3fn", 128)


def test_band_order_of_layers_is_irrelevant():
    """Layers given in any order give equal bands; bands are named after what they keep."""
    assert g.group_bands(LAYERS, 16) == g.group_bands(LAYERS[::-1], 16)
    names = [band.name for band in g.group_bands(LAYERS, 16)]
    assert names == ["chunk-8192", "cross", "full", "latent", "state", "window-1024"]


def test_fixed_slots_are_states_and_encoder_tokens():
    """A request holds one state and all encoder tokens whatever its length; other bands grow."""
    fixed = {band.name: band.slots_fixed for band in g.group_bands(LAYERS, 16)}
    assert fixed == {
        "chunk-8192": None, "cross": 6404, "full": None, "latent": None, "state": 1, "window-1024": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (attention(4, dtype="int4"), ["layer 4", "'k'", "int4"]),
        (attention(4, storage_dtype="nvfp4"), ["layer 4", "'k'", "nvfp4"]),
        (attention(9, 0), ["layer 9", "'k'", "(0, 64)"]),
        (attention(9, 2, 64, -1), ["layer 9", "'v'", "(2, -1)"]),
        (attention(9, 2, 64, 1.5), ["layer 9", "'v'", "1.5"]),
        (attention(9, True), ["layer 9", "'k'", "True"]),
        (state(3, ("conv", (4, 0), BF16)), ["layer 3", "'conv'", "(4, 0)"]),
        (state(3), ["layer 3", "without tensors"]),
        (g.Layer(2, g.CrossAttention(1, 64, 64, BF16, 0)), ["layer 2", "encoder tokens"]),
        (g.Layer(2, g.SlidingWindow(1, 64, 64, BF16, window=0)), ["window-0", "window of 0"]),
    ],
)
def test_errors_name_layer_and_row(layer, says):
    """A row that cannot be laid out is a typed error that says which layer, which row, which value."""
    with pytest.raises(LayoutError) as error:
        g.group_bands([layer], 16)
    for word in says:
        assert word in str(error.value)


@pytest.mark.parametrize("slots", [0, -1, 2.0, True, "16"])
def test_page_of_no_slots_is_an_error(slots):
    """A page holds at least one whole slot."""
    with pytest.raises(LayoutError, match="slots"):
        g.group_bands([attention(0)], slots)


def test_F42_page_of_another_size_than_the_tile():
    """Kernel tile 32, page 48: refused with the sizes that would work; multiples pass."""
    with pytest.raises(LayoutError, match="32 or 64 would work"):
        g.check_tile(48, 32)
    with pytest.raises(LayoutError, match=": 32 would work"):
        g.check_tile(16, 32)
    g.check_tile(64, 32)


@given(st.integers(1, 300), st.integers(1, 200), st.integers(0, 3000), st.booleans())
def test_F27_window_pages_are_what_the_window_touches(window, slots, tokens, chunked):
    """Nothing visible is freed, nothing else is kept, and the count never exceeds what a window can touch."""
    if chunked:
        visible = [t for t in range(tokens) if t // window == tokens // window]
    else:
        visible = [t for t in range(tokens) if t > tokens - window]
    pages = {t // slots for t in visible}
    held = g.window_pages(tokens, window, slots, chunked)
    oldest = g.first_visible(tokens, window, chunked) // slots
    assert pages <= set(range(oldest, oldest + held))
    assert held <= len(pages) + 1  # a page part-filled by released tokens of the current position
    assert held <= g.window_pages_max(window, slots, 1, 10**9)


@pytest.mark.parametrize(("window", "slots"), [(11, 128), (128, 16), (1024, 16), (4096, 256), (3, 1), (1, 1)])
def test_F27_window_bookkeeping_over_all_alignments(window, slots):
    """Window 11 on pages of 128, 128 on 16 and others: the peak over all alignments is the closed form."""
    peak = max(g.window_pages(t, window, slots, False) for t in range(3 * (window + slots)))
    written = max(
        g.ceil_div(t + 1, slots) - g.first_visible(t, window, False) // slots for t in range(3 * (window + slots))
    )
    assert peak <= written == g.ceil_div(window - 1, slots) + 1 <= g.window_pages_max(window, slots, 1, 10**9)


def test_F27_window_larger_than_the_context_frees_nothing():
    """A window that covers the context keeps every page of it."""
    for tokens in range(200):
        assert g.window_pages(tokens, 4096, 16, False) == g.ceil_div(tokens, 16)


def test_F51_page_table_holds_the_last_speculative_token():
    """The table is wide enough for context, drafts and padding: the last token's page is inside it."""
    for context in (1, 15, 16, 17, 4096):
        for drafts in (0, 1, 7):
            for slots in (1, 16, 48):
                width = g.table_pages(context, drafts, slots)
                assert (context + drafts + g.TABLE_SPARE_TOKENS - 1) // slots == width - 1


@settings(max_examples=300)
@given(st.integers(-(10**30), 10**30), st.integers(1, 10**20))
def test_rounding_is_exact_at_any_size(value, unit):
    """ceil_div and align are the least multiples at or above, in exact integers."""
    assert (g.ceil_div(value, unit) - 1) * unit < value <= g.ceil_div(value, unit) * unit
    assert g.align(value, unit) == g.ceil_div(value, unit) * unit


def test_F09_arena_bytes_are_the_budget_floored():
    """A byte budget gives whole 4096-byte granules and loses less than one."""
    for budget in (0, 4095, 4096, 10**11 + 7):
        assert 0 <= budget - g.floor_arena(budget) < 4096
        assert g.floor_arena(budget) % 4096 == 0
