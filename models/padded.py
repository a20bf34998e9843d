"""vLLM 0.33's padded common page, from its rule: what a block holds, what it costs, how layers are grouped.

Written from the rule in words, none of that project's code. It answers for one model on one rank; the pool that
counts blocks is ``pools.PaddedPages``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import frozen

from core_pure.errors import LayoutError
from core_pure.geometry import BandGeometry, ceil_div, rows_of
from core_pure.layout import BandSpec

KERNEL_BLOCK = 16  # tokens: vLLM's default block size, and the granule of its common attention kernels
LATENT_STATE_BLOCK = 128  # tokens: the least block of an MLA model that also has state
EVEN_GROUPS = (3, 2)  # group size is the largest layer count if that is under 1.5 times the smallest


@frozen
class LayerKind:
    """Layers that one group may hold. Units: ``bytes`` per token (per state for a state layer), window in tokens.

    slots_fixed: what a request holds whatever its length (1 state, its encoder tokens), None where it grows.
    """

    retention: str
    window: int | None
    bytes: int
    slots_fixed: int | None = None


@frozen
class PaddedGroups:
    """Groups of one kind: how many, tokens per block, and how many layers they have together."""

    kind: LayerKind
    groups: int
    layers: int
    block_tokens: int


@frozen
class PaddedPage:
    """The common page of one model. Units: tokens, bytes. A block costs ``block_bytes`` in whichever group."""

    block_tokens: int
    page_bytes: int
    group_layers: int
    kinds: tuple[PaddedGroups, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: one padded page in each layer of a group."""
        return self.page_bytes * self.group_layers

    def specs(self) -> tuple[BandSpec, ...]:
        """One band per kind, whose page is a block in every group of that kind."""
        return tuple(
            BandSpec(
                name=_name(groups.kind),
                frame_bytes=self.block_bytes * groups.groups,
                slots_per_page=groups.block_tokens,
                retention=groups.kind.retention,
                window=groups.kind.window,
                pages_fixed=ceil_div(groups.kind.slots_fixed or 1, groups.block_tokens),
            )
            for groups in self.kinds
        )


def _name(kind: LayerKind) -> str:
    suffix = f"-{kind.window}" if kind.window is not None else ""
    return f"{kind.retention}{suffix}-{kind.bytes}"


def padded_page(bands: Iterable[BandGeometry], kernel_block: int = KERNEL_BLOCK) -> PaddedPage:
    """The common page of a model whose layers are given as bands.

    K = kernel block, at least 128 for MLA with state; with state B = K ceil(m / (K a)), without B = K. Every state page
    is padded to B a. Where attention layers differ, pages are unified to the largest: a narrower layer holds more tokens.
    Raises: LayoutError for a model without attention, where no page is common.
    """
    counts: Counter[LayerKind] = Counter()
    has_latent = False
    for band in bands:
        has_latent = has_latent or band.name == "latent"
        for layer in band.layers:
            size = sum(row.payload_bytes for row in rows_of(layer))
            counts[LayerKind(band.retention, band.window, size, band.slots_fixed)] += 1
    attention = [kind.bytes for kind in counts if kind.retention != "state"]
    states = [kind.bytes for kind in counts if kind.retention == "state"]
    if not attention:
        raise LayoutError("a padded common page needs an attention layer; this rank has only states")
    widest = max(attention)
    unit = max(kernel_block, LATENT_STATE_BLOCK) if has_latent and states else kernel_block
    block = unit * ceil_div(max(states), unit * widest) if states else unit
    page = block * widest
    smallest, largest = min(counts.values()), max(counts.values())
    per_group = largest if largest * EVEN_GROUPS[1] < smallest * EVEN_GROUPS[0] else smallest
    kinds = tuple(
        PaddedGroups(kind, ceil_div(layers, per_group), layers, 1 if kind.retention == "state" else page // kind.bytes)
        for kind, layers in sorted(counts.items(), key=lambda item: _name(item[0]))
    )
    return PaddedPage(block, page, per_group, kinds)
