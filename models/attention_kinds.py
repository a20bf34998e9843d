"""What attention layers cache: grouped heads, latents, windows, chunks, encoder tokens."""

from collections.abc import Callable
from typing import TypeAlias

from attrs import evolve

from core_pure.errors import ConfigError
from core_pure.geometry import (
    ITEMSIZE,
    CrossAttention,
    FullAttention,
    LatentAttention,
    LayerKind,
    SlidingWindow,
    ceil_div,
)
from models.choices import Context

# (context, layer number, "full" | "window" | "chunk") -> what that layer caches on one rank
AttentionBuilder: TypeAlias = Callable[[Context, int, str], LayerKind]

WINDOW_KEYS = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
HEADS_KEYS = ("num_attention_heads", "attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model", "dim")
HEAD_DIM_KEYS = ("head_dim", "attention_head_dim", "kv_channels", "d_kv")
INDEX_BLOCK = 128  # index keys are fp8 with one fp32 scale per 128 numbers (DeepSeek-V3.2 in vLLM: 132 B a token)


def window_tokens(context: Context, index: int) -> int:
    """Window of one layer in tokens: one number for all layers, or one per layer."""
    key = context.fields.first(*WINDOW_KEYS)
    if key is not None and isinstance(context.fields.data[key], list | tuple):
        windows = context.fields.sequence(key)
        value = windows[index % len(windows)] if windows else None
        if type(value) is not int or value < 1:
            raise context.fields.error(key, value, f"a window of at least 1 token for layer {index}")
        return value
    return context.fields.integer(*WINDOW_KEYS, high=2**40)


def grouped(
    context: Context,
    index: int,
    what: str,
    *,
    heads_keys: tuple[str, ...] = KV_HEADS_KEYS,
    head_dim: int | None = None,
    value_dim: int | None = None,
    heads: int | None = None,
) -> LayerKind:
    """Grouped, multi-query or multi-head attention; K and V of one width unless ``value_dim`` says otherwise."""
    fields = context.fields
    if heads is None:
        heads = fields.integer(*heads_keys, default=fields.integer(*HEADS_KEYS) if not fields.has(*heads_keys) else None)
    key_dim = head_dim if head_dim is not None else head_width(context)
    local = context.split_or_copy(fields.first(*heads_keys) or HEADS_KEYS[0], heads)
    return _attention(context, index, what, local, key_dim, value_dim or key_dim)


def head_width(context: Context) -> int:
    """Numbers per head: stated, or hidden size over query heads."""
    fields = context.fields
    if fields.has(*HEAD_DIM_KEYS):
        return fields.integer(*HEAD_DIM_KEYS)
    hidden, heads = fields.integer(*HIDDEN_KEYS), fields.integer(*HEADS_KEYS)
    if hidden % heads:
        key = fields.first(*HIDDEN_KEYS) or HIDDEN_KEYS[0]
        raise fields.error(key, hidden, f"a multiple of the {heads} attention heads, or a 'head_dim' field")
    return hidden // heads


def _attention(context: Context, index: int, what: str, heads: int, key_dim: int, value_dim: int) -> LayerKind:
    """The kind for one retention."""
    dtype, storage = context.dtype, context.kv_storage
    if what == "full":
        return FullAttention(heads, key_dim, value_dim, dtype, storage)
    if what == "window":
        window = window_tokens(context, index)
        return SlidingWindow(heads, key_dim, value_dim, dtype, storage, window=window)
    chunk = context.fields.integer("attention_chunk_size", high=2**40)
    return SlidingWindow(heads, key_dim, value_dim, dtype, storage, window=chunk, chunked=True)


def multi_query(context: Context, index: int, what: str) -> LayerKind:
    """GPT-BigCode and Falcon: one kv head if ``multi_query``, else all heads; a newer decoder counts its kv heads."""
    fields = context.fields
    if fields.flag("new_decoder_architecture", False):
        return grouped(context, index, what)
    if fields.flag("multi_query", True):
        return grouped(context, index, what, heads=1)
    return grouped(context, index, what, heads=fields.integer(*HEADS_KEYS))


def every_head(context: Context, index: int, what: str) -> LayerKind:
    """Multi-head attention of families that have no kv-head field."""
    return grouped(context, index, what, heads_keys=HEADS_KEYS)


def gemma4(context: Context, index: int, what: str) -> LayerKind:
    """Gemma 4: full layers have wider heads, and fewer of them where K and V share their projection."""
    fields = context.fields
    if what != "full" or fields.has("per_layer_config"):
        return grouped(context, index, what)
    heads = None
    if fields.has("num_global_key_value_heads") and fields.flag("attention_k_eq_v", True):
        heads = fields.integer("num_global_key_value_heads")
    return grouped(context, index, what, heads=heads, head_dim=fields.integer("global_head_dim", default=512))


def mimo(context: Context, index: int, what: str) -> LayerKind:
    """MiMo-V2-Flash: V narrower than K, heads of their own for window layers, and a size that leaves out the query."""
    fields = context.fields
    if what == "full":
        return grouped(context, index, what, value_dim=fields.integer("v_head_dim"))
    heads = fields.integer("swa_num_key_value_heads", default=fields.integer("num_key_value_heads"))
    key_dim = fields.integer("swa_head_dim", default=fields.integer("head_dim"))
    value_dim = fields.integer("swa_v_head_dim", default=fields.integer("v_head_dim"))
    kind = grouped(context, index, what, heads=heads, head_dim=key_dim, value_dim=value_dim)
    if fields.has("sliding_window_size") and isinstance(kind, SlidingWindow):
        return evolve(kind, window=fields.integer("sliding_window_size") + 1)
    return kind


def latent(context: Context, index: int, what: str) -> LayerKind:
    """MLA: one latent and one rotary key for all heads, replicated on every rank; no index cache."""
    return _latent(context, what, 0)


def latent_indexed(context: Context, index: int, what: str) -> LayerKind:
    """MLA with a sparse-attention indexer whose keys are cached per token, replicated on every rank."""
    width = context.fields.integer("index_head_dim")
    if context.choices.convention == "transformers":
        return _latent(context, what, width * ITEMSIZE[context.dtype])
    return _latent(context, what, width + 4 * ceil_div(width, INDEX_BLOCK))


def _latent(context: Context, what: str, index_bytes: int) -> LayerKind:
    """The one latent kind."""
    fields = context.fields
    if what != "full":
        raise ConfigError(f"{fields.name}: a latent-attention layer of type {what!r}; expected full attention")
    rank = fields.integer("kv_lora_rank")
    rope = fields.integer("qk_rope_head_dim", low=0)
    return LatentAttention(rank, rope, context.dtype, context.kv_storage, index_bytes)


def cross(context: Context) -> LayerKind:
    """Attention to encoder tokens, written once per request; how many depends on the request, so a bound is taken."""
    fields = context.fields
    tokens = context.choices.cross_tokens
    if tokens is None:
        tokens = _vision_tokens(context)
    if type(tokens) is not int or tokens < 1:
        raise ConfigError(f"{fields.name}: cross-attention over {tokens!r} encoder tokens; expected at least 1")
    kv = grouped(context, 0, "full")
    assert isinstance(kv, FullAttention)
    return CrossAttention(kv.kv_heads, kv.head_dim_k, kv.head_dim_v, kv.dtype, tokens, kv.storage_dtype)


def _vision_tokens(context: Context) -> int:
    """Tokens of the largest image: tiles × (patches + 1 class token), from the wrapper's vision fields."""
    name = context.fields.name
    vision = context.fields.outer.get("vision_config")
    if not isinstance(vision, dict):
        raise ConfigError(f"{name}: cross-attention layers, but no 'vision_config'; expected it, or encoder tokens given")
    fields = type(context.fields)(f"{name}.vision_config", vision, {})
    side = fields.integer("image_size") // fields.integer("patch_size")
    return (side * side + 1) * fields.integer("max_num_tiles")
