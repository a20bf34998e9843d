"""What recurrent layers cache: conv windows and temporal states, sharded by heads or channels."""

from collections.abc import Callable
from typing import TypeAlias

from core_pure.geometry import RecurrentState, StateTensor
from models.attention_kinds import HIDDEN_KEYS
from models.choices import Context

StateBuilder: TypeAlias = Callable[[Context], RecurrentState]

CONV_KEYS = ("mamba_d_conv", "conv_kernel", "d_conv", "conv1d_width")
STATE_KEYS = ("mamba_d_state", "ssm_state_size", "state_size", "d_state")
EXPAND_KEYS = ("mamba_expand", "expand")
GROUP_KEYS = ("mamba_n_groups", "mamba_ngroups", "n_groups")


def _conv(context: Context, channels: int, *kernel_keys: str) -> tuple[StateTensor, ...]:
    """The conv window; a kernel of one keeps nothing."""
    columns = context.conv_columns(context.fields.integer(*kernel_keys))
    return (StateTensor("conv", (channels, columns), context.dtype),) if columns else ()


def _inner(context: Context, *stated: str) -> int:
    """Channels of the inner stream: stated, or expand × hidden size."""
    fields = context.fields
    if stated and fields.has(*stated):
        return fields.integer(*stated)
    return fields.integer(*EXPAND_KEYS, default=2) * fields.integer(*HIDDEN_KEYS)


def mamba1(context: Context) -> RecurrentState:
    """Mamba-1 (Jamba, Mamba, Falcon-Mamba): channels sharded; conv [inner, kernel − 1], temporal [inner, state]."""
    stated = () if context.fields.has("mamba_d_state") else ("intermediate_size",)
    inner = context.split("inner channels", _inner(context, *stated))
    temporal = StateTensor("temporal", (inner, context.fields.integer(*STATE_KEYS)), context.state_dtype(None))
    return RecurrentState((*_conv(context, inner, *CONV_KEYS), temporal))


def zamba1(context: Context) -> RecurrentState:
    """Zamba: Mamba-1 channels in heads; conv [inner, kernel − 1], temporal [heads, inner / heads, state]."""
    fields = context.fields
    inner, heads = _inner(context), fields.integer("n_mamba_heads")
    if inner % heads:
        raise fields.error("n_mamba_heads", heads, f"a divisor of the {inner} inner channels")
    local = context.split("n_mamba_heads", heads)
    shape = (local, inner // heads, fields.integer(*STATE_KEYS))
    temporal = StateTensor("temporal", shape, context.state_dtype(None))
    return RecurrentState((*_conv(context, local * (inner // heads), *CONV_KEYS), temporal))


def _mamba2(context: Context, heads_key: str, dim_key: str, default_dtype: str | None = None) -> RecurrentState:
    """Mamba-2: heads sharded, groups sharded or replicated; conv [inner + 2·groups·state, kernel − 1]."""
    fields = context.fields
    heads = fields.integer(heads_key)
    if fields.has(dim_key) and fields.data[dim_key] != "auto":
        width = fields.integer(dim_key)
    else:
        inner = _inner(context, "mamba_d_ssm")
        if inner % heads:
            raise fields.error(heads_key, heads, f"a divisor of the {inner} inner channels")
        width = inner // heads
    if fields.has("mamba_d_ssm") and fields.integer("mamba_d_ssm") != heads * width:
        raise fields.error("mamba_d_ssm", fields.data["mamba_d_ssm"], f"{heads} heads × {width} = {heads * width}")
    local = context.split(heads_key, heads)
    groups = context.split_or_copy(fields.first(*GROUP_KEYS) or GROUP_KEYS[0], fields.integer(*GROUP_KEYS, default=1))
    state = fields.integer(*STATE_KEYS)
    temporal = StateTensor("temporal", (local, width, state), context.state_dtype(default_dtype))
    return RecurrentState((*_conv(context, local * width + 2 * groups * state, *CONV_KEYS), temporal))


def mamba2(context: Context) -> RecurrentState:
    """Mamba-2 under the field names of Falcon-H1, Bamba and Granite-4.0-H."""
    return _mamba2(context, "mamba_n_heads", "mamba_d_head")


def mamba2_plain(context: Context) -> RecurrentState:
    """Mamba-2 under the field names of Mamba-2 itself."""
    return _mamba2(context, "num_heads", "head_dim")


def mamba2_zamba(context: Context) -> RecurrentState:
    """Mamba-2 under the field names of Zamba2."""
    return _mamba2(context, "n_mamba_heads", "mamba_headdim")


def mamba2_nemotron(context: Context) -> RecurrentState:
    """Mamba-2 under the field names of Nemotron-H; the temporal state is fp32 unless the checkpoint says otherwise."""
    return _mamba2(context, "mamba_num_heads", "mamba_head_dim", "float32")


def gated_delta(context: Context) -> RecurrentState:
    """Gated delta net: K and V heads sharded; conv over q, k and v channels, temporal [v heads, k dim, v dim]."""
    fields = context.fields
    key_heads = context.split("linear_num_key_heads", fields.integer("linear_num_key_heads"))
    value_heads = context.split("linear_num_value_heads", fields.integer("linear_num_value_heads"))
    key_dim, value_dim = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    temporal = StateTensor("temporal", (value_heads, key_dim, value_dim), context.state_dtype(None))
    return RecurrentState((*_conv(context, channels, "linear_conv_kernel_dim"), temporal))


def kimi_delta(context: Context) -> RecurrentState:
    """Kimi delta attention: conv over q, k and v, temporal [heads, dim, dim] in fp32."""
    if context.fields.has("linear_attn_config"):
        inner = context.fields.child("linear_attn_config")
        heads, dim = inner.integer("num_heads"), inner.integer("head_dim")
        kernel = inner.integer("short_conv_kernel_size")
    else:
        fields = context.fields
        heads, dim = fields.integer("linear_num_heads"), fields.integer("linear_head_dim")
        kernel = fields.integer("linear_conv_kernel_dim")
    return _delta_state(context, heads, dim, kernel)


def bailing_delta(context: Context) -> RecurrentState:
    """Kimi delta attention under the field names of Ling 2.5 hybrids: the heads of the attention layers."""
    fields = context.fields
    return _delta_state(
        context,
        fields.integer("num_attention_heads"),
        fields.integer("head_dim"),
        fields.integer("short_conv_kernel_size", default=4),
    )


def _delta_state(context: Context, heads: int, dim: int, kernel: int) -> RecurrentState:
    """The tensors of Kimi delta attention."""
    local = context.split("num_heads", heads)
    columns = context.conv_columns(kernel)
    conv = (StateTensor("conv", (3 * local * dim, columns), context.dtype),) if columns else ()
    return RecurrentState((*conv, StateTensor("temporal", (local, dim, dim), context.state_dtype("float32"))))


def lightning(context: Context) -> RecurrentState:
    """Lightning linear attention (MiniMax-01): one matrix [head dim, head dim] per head, no conv."""
    fields = context.fields
    heads = fields.integer("num_attention_heads")
    dim = fields.integer("head_dim", default=fields.integer(*HIDDEN_KEYS) // heads)
    local = context.split("num_attention_heads", heads)
    return RecurrentState((StateTensor("temporal", (local, dim, dim), context.state_dtype(None)),))


def short_conv(context: Context) -> RecurrentState:
    """Short convolution (LFM2): the newest kernel − 1 inputs of each channel, nothing else."""
    fields = context.fields
    channels = context.split("conv_dim", fields.integer("conv_dim", *HIDDEN_KEYS))
    columns = context.conv_columns(fields.integer("conv_L_cache", low=2))
    return RecurrentState((StateTensor("conv", (channels, columns), context.dtype),))


def gated_linear(context: Context) -> RecurrentState:
    """RG-LRU (RecurrentGemma): conv window and one fp32 number per channel."""
    fields = context.fields
    width = context.split("lru_width", fields.integer("lru_width", *HIDDEN_KEYS))
    temporal = StateTensor("temporal", (width,), context.state_dtype("float32"))
    return RecurrentState((*_conv(context, width, "conv1d_width"), temporal))
