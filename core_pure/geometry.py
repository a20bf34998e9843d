"""All byte arithmetic: what a layer caches, how bands group layers, and where every tensor lies inside a page.

Reading order: integer functions (plain ints, so that CrossHair can run on them), layer kinds, rows, bands.
It does not know how many bytes an arena has; that is ``layout``.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, assert_never

from attrs import field, frozen

from core_pure.errors import LayoutError

ROW_ALIGNMENT = 16  # bytes: the widest vector load of GPU kernels, and a multiple of every item size
ARENA_GRANULE = 4096  # bytes: arenas are whole host pages

ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {
        "bfloat16": 2,
        "float16": 2,
        "float32": 4,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int8": 1,
        "uint8": 1,
    }
)

Retention: TypeAlias = Literal["full", "window", "chunked", "state", "cross"]


# Integer functions ---------------------------------------------------------------------------------------------------


def ceil_div(value: int, unit: int) -> int:
    """Smallest n with n * unit >= value. Requires unit >= 1."""
    return -(-value // unit)


def align(value: int, unit: int) -> int:
    """Smallest multiple of ``unit`` that is >= value. Requires unit >= 1."""
    return ceil_div(value, unit) * unit


def floor_arena(budget_bytes: int) -> int:
    """Arena bytes that a byte budget gives: whole granules of 4096 bytes, rounded down."""
    return budget_bytes // ARENA_GRANULE * ARENA_GRANULE


def sink_bytes(frame_bytes: Iterable[int]) -> int:
    """Reserved low bytes: one frame of the largest band, so that frame 0 of every band is inside. Of no bands, 0.

    A state frame holds one state, so the page size never multiplies it.
    """
    return max(frame_bytes, default=0)


def row_offset(bytes_before: int, slots_per_page: int, token_major: bool) -> int:
    """Byte of slot 0 of a row inside its page; ``bytes_before`` sums the strides of the rows before it in one slot."""
    return bytes_before if token_major else bytes_before * slots_per_page


def slot_offset(bytes_before: int, row_stride: int, entry_bytes: int, slots_per_page: int, slot: int,
                token_major: bool) -> int:  # fmt: skip
    """Byte of one slot of one row inside its page, closed form. At one slot per page both orders agree."""
    step = entry_bytes if token_major else row_stride
    return row_offset(bytes_before, slots_per_page, token_major) + slot * step


def first_visible(tokens: int, window: int, chunked: bool) -> int:
    """Position of the oldest token that the next token (position ``tokens``) may read.

    A sliding window of W lets position t read t - W + 1 … t; a chunk of C lets it read from the start of its chunk.
    """
    if chunked:
        return tokens // window * window
    return max(0, tokens - window + 1)


def window_pages(tokens: int, window: int, slots_per_page: int, chunked: bool) -> int:
    """Pages held by a request of ``tokens`` cached tokens once everything no later token can read is released."""
    return ceil_div(tokens, slots_per_page) - first_visible(tokens, window, chunked) // slots_per_page


def window_pages_max(window: int, slots_per_page: int, tokens_step: int, tokens_max: int) -> int:
    """Most pages that a sliding window holds while ``tokens_step`` tokens are written, over all alignments.

    The boot floor charges this much: ``ceil(min(tokens_max, window - 1 + tokens_step) / page) + 1``.
    """
    return ceil_div(min(tokens_max, window - 1 + tokens_step), slots_per_page) + 1


def table_pages(context_tokens: int, draft_tokens: int, slots_per_page: int) -> int:
    """Width of a page table: the context, draft tokens and 4 spare positions for padded lanes."""
    return ceil_div(context_tokens + TABLE_SPARE_TOKENS + draft_tokens, slots_per_page)


TABLE_SPARE_TOKENS = 4  # graph padding may ask for a few positions beyond the last token


def check_tile(slots_per_page: int, tile_slots: int) -> None:
    """Raise LayoutError unless a page is a whole number of kernel tiles, naming the sizes that would work."""
    if tile_slots < 1:
        raise LayoutError(f"kernel tile is {tile_slots} slots, expected at least 1")
    if slots_per_page < 1 or slots_per_page % tile_slots:
        above = align(max(slots_per_page, 1), tile_slots)
        below = above - tile_slots
        sizes = f"{below} or {above}" if below else f"{above}"
        raise LayoutError(f"page of {slots_per_page} slots is no multiple of the kernel tile of {tile_slots}: {sizes} would work")


# Layer kinds ---------------------------------------------------------------------------------------------------------


@frozen
class FullAttention:
    """Keys and values of every token. K and V may differ in width. ``storage_dtype`` None means stored as ``dtype``."""

    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    dtype: str
    storage_dtype: str | None = None


@frozen
class SlidingWindow:
    """Keys and values of the newest ``window`` tokens, or of the current chunk of ``window`` tokens if ``chunked``."""

    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    dtype: str
    storage_dtype: str | None = None
    window: int = field(kw_only=True)
    chunked: bool = field(default=False, kw_only=True)


@frozen
class LatentAttention:
    """MLA: one compressed latent and one rotary key per token, shared by all heads.

    ``index_bytes``: bytes per token of a sparse-attention index cache beside it (0 if none), kept as raw bytes.
    """

    kv_lora_rank: int
    rope_dim: int
    dtype: str
    storage_dtype: str | None = None
    index_bytes: int = 0


@frozen
class StateTensor:
    """One tensor of a recurrent state, per request."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@frozen
class RecurrentState:
    """State of constant size per request: conv windows and temporal states, each with its own dtype."""

    tensors: tuple[StateTensor, ...]


@frozen
class CrossAttention:
    """Keys and values of ``tokens`` encoder tokens, written once per request and kept until it finishes."""

    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    dtype: str
    tokens: int
    storage_dtype: str | None = None


LayerKind: TypeAlias = FullAttention | SlidingWindow | LatentAttention | RecurrentState | CrossAttention


@frozen
class Layer:
    """One cache of one model layer. A layer with parallel attention and state is two of these with equal index."""

    index: int
    kind: LayerKind


def retention_of(kind: LayerKind) -> tuple[Retention, str]:
    """Which tokens a kind keeps, and the band that it belongs to; kinds of one band share pages."""
    match kind:
        case FullAttention():
            return "full", "full"
        case LatentAttention():
            return "full", "latent"
        case SlidingWindow():
            return ("chunked", f"chunk-{kind.window}") if kind.chunked else ("window", f"window-{kind.window}")
        case RecurrentState():
            return "state", "state"
        case CrossAttention():
            return "cross", "cross"
        case _:
            assert_never(kind)


# Rows ----------------------------------------------------------------------------------------------------------------


@frozen
class Part:
    """One tensor inside a row: its shape per slot and its byte inside the row."""

    tensor: str
    shape: tuple[int, ...]
    offset: int


@frozen
class Row:
    """The contiguous bytes that one layer keeps of one slot under one dtype; rounded to 16 bytes in the page."""

    layer: int
    name: str
    dtype: str
    storage_dtype: str
    parts: tuple[Part, ...]
    payload_bytes: int

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next in a layer-major page."""
        return align(self.payload_bytes, ROW_ALIGNMENT)


def rows_of(layer: Layer) -> tuple[Row, ...]:
    """Rows of one layer in byte order.

    Raises: LayoutError naming layer and row where a size is no positive integer or a dtype has no whole bytes.
    """
    kind = layer.kind
    match kind:
        case FullAttention() | SlidingWindow() | CrossAttention():
            if isinstance(kind, CrossAttention) and (type(kind.tokens) is not int or kind.tokens < 1):
                raise LayoutError(f"layer {layer.index}: {kind.tokens!r} encoder tokens; expected an integer >= 1")
            key = _row(layer, "k", kind.dtype, kind.storage_dtype, (("k", (kind.kv_heads, kind.head_dim_k)),))
            value = _row(layer, "v", kind.dtype, kind.storage_dtype, (("v", (kind.kv_heads, kind.head_dim_v)),))
            return (key, value)
        case LatentAttention():
            # One row, so that MLA kernels read latent and rotary part with one slot stride.
            parts: list[tuple[str, tuple[int, ...]]] = [("latent", (kind.kv_lora_rank,))]
            if kind.rope_dim:
                parts.append(("rope", (kind.rope_dim,)))
            latent = _row(layer, "latent", kind.dtype, kind.storage_dtype, tuple(parts))
            if not kind.index_bytes:
                return (latent,)
            return (latent, _row(layer, "index", "uint8", None, (("index", (kind.index_bytes,)),)))
        case RecurrentState():
            if not kind.tensors:
                raise LayoutError(f"layer {layer.index}: a recurrent state without tensors; expected at least one")
            return tuple(_row(layer, one.name, one.dtype, None, ((one.name, one.shape),)) for one in kind.tensors)
        case _:
            assert_never(kind)


def _row(layer: Layer, name: str, dtype: str, storage_dtype: str | None,
         parts: tuple[tuple[str, tuple[int, ...]], ...]) -> Row:  # fmt: skip
    """Check sizes and dtypes, and place the parts one after another."""
    where = f"layer {layer.index}, row {name!r}"
    stored = dtype if storage_dtype is None else storage_dtype
    for one in (dtype, stored):
        if one not in ITEMSIZE:
            known = ", ".join(ITEMSIZE)
            raise LayoutError(f"{where}: dtype {one!r} has no whole bytes per item; expected one of {known}")
    placed: list[Part] = []
    end = 0
    for tensor, shape in parts:
        items = 1
        for size in shape:
            if type(size) is not int or size < 1:
                raise LayoutError(f"{where}: shape {shape} of {tensor!r}; expected positive integers")
            items *= size
        placed.append(Part(tensor, shape, end))
        end += items * ITEMSIZE[stored]
    return Row(layer.index, name, dtype, stored, tuple(placed), end)


@frozen
class View:
    """Where one tensor of one layer lies in a page.

    Units: ``offset`` is the byte of slot 0 inside the page, ``slot_stride`` bytes between slots, ``shape`` is per slot
    and contiguous. ``dtype`` is what the numbers mean, ``storage_dtype`` what the bytes are.
    """

    layer: int
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    storage_dtype: str
    offset: int
    slot_stride: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of this tensor, without rounding."""
        items = 1
        for size in self.shape:
            items *= size
        return items * ITEMSIZE[self.storage_dtype]


@frozen
class BandGeometry:
    """Layers of one rank that keep the same tokens, and the page they share.

    ``window`` is tokens for retention window and chunked, else None. A state band has one slot per page.
    """

    name: str
    retention: Retention
    window: int | None
    slots_per_page: int
    layers: tuple[Layer, ...]
    token_major: bool = False
    rows: tuple[Row, ...] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        """Derive the rows once and check the page."""
        if type(self.slots_per_page) is not int or self.slots_per_page < 1:
            raise LayoutError(f"band {self.name!r}: page of {self.slots_per_page!r} slots; expected an integer >= 1")
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise LayoutError(f"band {self.name!r}: window of {self.window!r} tokens; expected an integer >= 1")
        if not self.layers:
            raise LayoutError(f"band {self.name!r} has no layers; a kind with no layers on this rank does not exist")
        object.__setattr__(self, "rows", tuple(row for layer in self.layers for row in rows_of(layer)))

    @property
    def entry_bytes(self) -> int:
        """Bytes of one slot over all layers, every row rounded to 16 bytes."""
        return sum(row.stride for row in self.rows)

    @property
    def payload_bytes(self) -> int:
        """Bytes of one slot over all layers that carry numbers: ``entry_bytes`` without the rounding."""
        return sum(row.payload_bytes for row in self.rows)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one page."""
        return self.entry_bytes * self.slots_per_page

    @property
    def slots_fixed(self) -> int | None:
        """Slots that a request holds whatever its length: 1 state, or the encoder tokens; None where it grows."""
        kinds = [layer.kind for layer in self.layers]
        if self.retention == "state":
            return 1
        if self.retention == "cross":
            return max(kind.tokens for kind in kinds if isinstance(kind, CrossAttention))
        return None

    def views(self) -> tuple[View, ...]:
        """Every tensor of every layer, in byte order of its row."""
        entry = self.entry_bytes
        before = 0
        views: list[View] = []
        for row in self.rows:
            start = row_offset(before, self.slots_per_page, self.token_major)
            stride = entry if self.token_major else row.stride
            for part in row.parts:
                views.append(View(row.layer, part.tensor, part.shape, row.dtype, row.storage_dtype, start + part.offset, stride))
            before += row.stride
        return tuple(views)


def group_bands(layers: Iterable[Layer], page_slots: int, *, token_major: bool = False) -> tuple[BandGeometry, ...]:
    """Group layers into bands, sorted by name; a kind without layers has no band.

    Args: page_slots: tokens per page of every token band; a state band has one state per page whatever it says.
    Raises: LayoutError for a page, window, shape or dtype that cannot be laid out.
    """
    if type(page_slots) is not int or page_slots < 1:
        raise LayoutError(f"page of {page_slots!r} slots; expected an integer >= 1")
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(retention_of(layer.kind)[1], []).append(layer)
    bands: list[BandGeometry] = []
    for name in sorted(groups):
        members = sorted(groups[name], key=lambda layer: layer.index)
        kind = members[0].kind
        retention = retention_of(kind)[0]
        window = kind.window if isinstance(kind, SlidingWindow) else None
        slots = 1 if retention == "state" else page_slots
        bands.append(BandGeometry(name, retention, window, slots, tuple(members), token_major))
    return tuple(bands)
