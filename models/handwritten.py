"""Layers described by hand, for architectures that the family table does not know: a small JSON form.

{"name": "mine", "context_tokens": 131072, "dtype": "bfloat16",
 "kvarena_layers": [
   {"kind": "full", "kv_heads": 8, "head_dim": 128, "repeat": 4},
   {"kind": "window", "window": 1024, "kv_heads": 8, "head_dim_k": 192, "head_dim_v": 128},
   {"kind": "chunk", "window": 8192, "kv_heads": 8, "head_dim": 128},
   {"kind": "latent", "kv_lora_rank": 512, "rope_dim": 64, "index_bytes": 132},
   {"kind": "state", "tensors": [{"name": "conv", "shape": [8192, 3], "shard": 0},
                                 {"name": "temporal", "shape": [32, 128, 128], "shard": 0, "dtype": "float32"}]},
   {"kind": "cross", "tokens": 6404, "kv_heads": 8, "head_dim": 128},
   {"kind": "none"},
   [{"kind": "full", …}, {"kind": "state", …}]]}

A list is one layer with several caches. ``kv_heads`` are those of the whole model; ``shard`` is the axis of a state
tensor that tensor parallelism divides (absent: replicated).
"""

from typing import Any

from core_pure.geometry import (
    CrossAttention,
    FullAttention,
    LatentAttention,
    LayerKind,
    RecurrentState,
    SlidingWindow,
    StateTensor,
)
from models.choices import Context, dtype_named
from models.config_fields import LAYERS_MAX, Fields

LAYERS_KEY = "kvarena_layers"
KINDS = ("full", "window", "chunk", "latent", "state", "cross", "none")


def kinds_by_hand(context: Context) -> list[tuple[LayerKind, ...]]:
    """What each described layer caches on one tensor-parallel rank.

    Raises: ConfigError naming the layer, the field, the value and what was expected.
    """
    layers: list[tuple[LayerKind, ...]] = []
    for entry in context.fields.sequence(LAYERS_KEY):
        number = len(layers)
        repeat = 1
        if isinstance(entry, dict):
            repeat = _fields(context, number, entry).integer("repeat", default=1, high=LAYERS_MAX)
        parts = entry if isinstance(entry, list) else [entry]
        kinds = tuple(kind for part in parts for kind in _kind(context, _fields(context, number, part)))
        layers.extend([kinds] * repeat)
    if not layers:
        raise context.fields.error(LAYERS_KEY, [], "at least one layer")
    if len(layers) > LAYERS_MAX:
        raise context.fields.error(LAYERS_KEY, f"{len(layers)} layers", f"at most {LAYERS_MAX}")
    return layers


def _fields(context: Context, number: int, part: object) -> Fields:
    """One described cache as fields that blame the layer."""
    if not isinstance(part, dict):
        raise context.fields.error(f"{LAYERS_KEY}[{number}]", part, "an object with a 'kind', or a list of such objects")
    return Fields(f"{context.fields.name}, layer {number}", part, {})


def _kind(context: Context, fields: Fields) -> tuple[LayerKind, ...]:
    """The caches of one described part: one, or none."""
    kind = fields.text("kind")
    dtype = dtype_named(fields.text("dtype"), f"{fields.name}: field 'dtype'") if fields.has("dtype") else context.dtype
    storage = context.kv_storage
    match kind:
        case "none":
            return ()
        case "state":
            return (RecurrentState(tuple(_tensor(context, fields, one, dtype) for one in fields.sequence("tensors"))),)
        case "latent":
            rank, rope = fields.integer("kv_lora_rank"), fields.integer("rope_dim", default=0, low=0)
            return (LatentAttention(rank, rope, dtype, storage, fields.integer("index_bytes", default=0, low=0)),)
        case "full" | "window" | "chunk" | "cross":
            heads = context.split_or_copy("kv_heads", fields.integer("kv_heads"))
            key, value = fields.integer("head_dim_k", "head_dim"), fields.integer("head_dim_v", "head_dim")
            if kind == "full":
                return (FullAttention(heads, key, value, dtype, storage),)
            if kind == "cross":
                return (CrossAttention(heads, key, value, dtype, fields.integer("tokens"), storage),)
            window = fields.integer("window", high=2**40)
            return (SlidingWindow(heads, key, value, dtype, storage, window=window, chunked=kind == "chunk"),)
        case _:
            raise fields.error("kind", kind, f"one of {', '.join(KINDS)}")


def _tensor(context: Context, fields: Fields, entry: Any, dtype: str) -> StateTensor:
    """One tensor of a described state, divided along its shard axis."""
    if not isinstance(entry, dict):
        raise fields.error("tensors", entry, "objects with 'name' and 'shape'")
    tensor = Fields(f"{fields.name}, tensor {entry.get('name')!r}", entry, {})
    name, shape = tensor.text("name"), list(tensor.sequence("shape"))
    if not shape or any(type(size) is not int or size < 1 for size in shape):
        raise tensor.error("shape", shape, "positive integers")
    if tensor.has("shard"):
        axis = tensor.integer("shard", low=0, high=len(shape) - 1)
        if shape[axis] % context.tp:
            raise tensor.error("shape", shape, f"axis {axis} divisible by {context.tp} tensor-parallel ranks")
        shape[axis] //= context.tp
    stated = tensor.text("dtype", default=dtype)
    return StateTensor(name, tuple(shape), dtype_named(stated, f"{tensor.name}: field 'dtype'"))
