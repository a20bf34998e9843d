"""The table of model families: for each ``model_type``, how its layers are laid out and what each of them caches."""

from collections.abc import Mapping

from attrs import frozen

from core_pure.errors import ConfigError
from core_pure.geometry import LayerKind
from models import attention_kinds as attention
from models import patterns
from models import state_kinds as states
from models.attention_kinds import AttentionBuilder
from models.choices import Context
from models.config_fields import Fields
from models.patterns import Pattern
from models.state_kinds import StateBuilder


@frozen
class Family:
    """One architecture. ``caches_per_layer`` counts attention blocks inside what the checkpoint calls one layer."""

    pattern: Pattern
    attention: AttentionBuilder = attention.grouped
    state: StateBuilder | None = None
    caches_per_layer: int = 1


_FULL = Family(patterns.all_full)
_WINDOW = Family(patterns.all_window)
_QWEN = Family(patterns.switched_window)
_EVERY_HEAD = Family(patterns.all_full, attention.every_head)
_LATENT = Family(patterns.all_full, attention.latent)
_INDEXED = Family(patterns.all_full, attention.latent_indexed)
_QWEN_HYBRID = Family(patterns.interval, state=states.gated_delta)
_MINIMAX = Family(
    patterns.coded("attn_type_list", {0: "state", 1: "full"}), attention.grouped, states.lightning
)  # fmt: skip


def _named(family: Family, *names: str) -> dict[str, Family]:
    """Several model types of one family."""
    return dict.fromkeys(names, family)


FAMILIES: Mapping[str, Family] = {
    # Full attention, grouped heads. Some of these carry a stray window field that their code ignores.
    **_named(_FULL, "llama", "gemma", "olmo", "olmo2", "olmoe", "flex_olmo", "phi", "cohere", "glm", "glm4", "glm4_moe"),
    **_named(_FULL, "chatglm", "granite", "granitemoe", "granitemoeshared", "stablelm", "nemotron", "helium", "exaone"),
    **_named(_FULL, "internlm2", "internlm3", "seed_oss", "arcee", "apertus", "hunyuan_v1_dense", "hunyuan_v1_moe"),
    **_named(_FULL, "hunyuan", "ernie4_5", "ernie4_5_moe", "minimax_m2", "jetmoe", "diffllama", "nanochat"),
    **_named(_FULL, "solar_open", "grok-1", "baichuan", "yi", "xverse", "aquila", "deepseek", "mobilellm"),
    **_named(_FULL, "bitnet", "hy_v3", "hyperclovax", "iquestcoder", "jais2", "sarvam_moe", "aria_text", "mellum", "doge"),
    **_named(_EVERY_HEAD, "gpt_neox_japanese", "ctrl"),
    **_named(_EVERY_HEAD, "gpt2", "gpt_neox", "gptj", "bloom", "mpt", "opt", "persimmon", "biogpt", "xglm", "codegen"),
    **_named(Family(patterns.all_full, attention.multi_query), "gpt_bigcode", "falcon", "RefinedWeb"),
    # Sliding windows.
    **_named(_WINDOW, "mistral", "ministral3", "mistral3", "mixtral", "phi3", "phimoe", "phi4_multimodal", "starcoder2"),
    **_named(_WINDOW, "ministral", "smollm3", "laguna"),
    **_named(_QWEN, "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "dots1"),
    **_named(_QWEN, "qwen2_5_vl_text", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"),
    **_named(Family(patterns.every(2)), "gemma2", "gpt_oss", "vaultgemma"),
    **_named(Family(patterns.every(4)), "cohere2", "olmo3", "exaone4", "exaone_moe", "afmoe"),
    **_named(Family(patterns.every(5)), "gemma3n", "gemma3n_text", "kolibri1"),
    **_named(Family(patterns.every(6)), "gemma3", "gemma3_text"),
    **_named(Family(patterns.first_of_every(4)), "cwm", "granite_swa", "granitemoe_swa"),
    **_named(Family(patterns.written_out), "cohere2_moe", "flint"),
    **_named(Family(patterns.gemma4, attention.gemma4), "gemma4", "gemma4_text", "gemma4_unified_text"),
    **_named(Family(patterns.mimo, attention.mimo), "mimo_v2_flash"),
    **_named(Family(patterns.chunked), "llama4", "llama4_text"),
    # Latents.
    **_named(_LATENT, "deepseek_v2", "deepseek_v3", "kimi_k2", "minicpm3", "glm4_moe_lite", "youtu", "axk1", "sarvam_mla"),
    **_named(Family(patterns.all_full, attention.latent, caches_per_layer=2), "longcat_flash"),
    **_named(_INDEXED, "deepseek_v32", "glm_moe_dsa", "axk2"),
    # Recurrent layers, alone and beside attention.
    **_named(Family(patterns.all_state, state=states.mamba1), "mamba", "falcon_mamba"),
    **_named(Family(patterns.all_state, state=states.mamba2_plain), "mamba2"),
    **_named(Family(patterns.periodic("full"), state=states.mamba1), "jamba"),
    **_named(Family(patterns.periodic("both"), state=states.zamba1), "zamba"),
    **_named(Family(patterns.listed("hybrid_layer_ids", "both"), state=states.mamba2_zamba), "zamba2"),
    **_named(Family(patterns.all_both, state=states.mamba2), "falcon_h1"),
    **_named(Family(patterns.listed("attn_layer_indices", "full"), state=states.mamba2), "bamba"),
    **_named(Family(patterns.all_state, state=states.mamba2), "granitemoehybrid"),
    **_named(Family(patterns.nemotron, state=states.mamba2_nemotron), "nemotron_h"),
    **_named(_QWEN_HYBRID, "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid"),
    **_named(Family(patterns.kimi, attention.latent, states.kimi_delta), "kimi_linear"),
    **_named(Family(patterns.group_end, attention.latent, states.bailing_delta), "bailing_hybrid"),
    **_named(_MINIMAX, "minimax", "minimax_text_01", "minimax_m1"),
    **_named(Family(patterns.listed("full_attn_idxs", "full"), state=states.short_conv), "lfm2", "lfm2_moe"),
    **_named(Family(patterns.written_out, state=states.short_conv), "lfm3"),
    **_named(Family(patterns.written_out, state=states.gated_delta), "lara_mini"),
    **_named(Family(patterns.recurrent_blocks, state=states.gated_linear), "recurrent_gemma"),
    # Encoder tokens.
    **_named(Family(patterns.with_cross), "mllama", "mllama_text_model"),
}


def family_of(fields: Fields, wrapper_type: str | None) -> Family:
    """The family of a config, by its own ``model_type`` or, failing that, its wrapper's.

    Raises: ConfigError naming the model type and the way out.
    """
    stated = fields.text("model_type", default=wrapper_type or "")
    for name in (stated, wrapper_type or ""):
        if name in FAMILIES:
            return FAMILIES[name]
    if not stated:
        raise ConfigError(f"{fields.name}: field 'model_type' is missing; expected a family name such as 'qwen3_next'")
    raise fields.error(
        "model_type",
        stated,
        "a known family; for another architecture describe its layers by hand in a JSON file with "
        "'kvarena_layers' (docs/LAYERS.md)",
    )


def kinds_of(context: Context, family: Family) -> list[tuple[LayerKind, ...]]:
    """What each layer of the whole model caches on one tensor-parallel rank; () for a layer that caches nothing."""
    fields = context.fields
    layers = patterns.layer_count(fields) * family.caches_per_layer
    words = patterns.layer_words(fields, layers, family.pattern)
    owners = _cache_owners(fields, words)
    return [_kinds(context.at(i), family, i, word) if owners[i] else () for i, word in enumerate(words)]


def _kinds(context: Context, family: Family, index: int, word: str) -> tuple[LayerKind, ...]:
    """What one layer caches."""
    match word:
        case "none":
            return ()
        case "cross":
            return (attention.cross(context),)
        case "state":
            return (_state(context, family, word),)
        case "both" | "both-window":
            what = "full" if word == "both" else "window"
            return (family.attention(context, index, what), _state(context, family, word))
        case _:
            return (family.attention(context, index, word),)


def _state(context: Context, family: Family, word: str) -> LayerKind:
    """The recurrent part; a family that has none met a layer type that needs one."""
    if family.state is None:
        raise context.fields.error("layer_types", word, "attention layers only, as this family has no recurrent ones")
    return family.state(context)


def _cache_owners(fields: Fields, words: list[str]) -> list[bool]:
    """Which layers own a cache: the last ``num_kv_shared_layers`` read an earlier layer's, and so do CLA groups."""
    layers = len(words)
    shared = fields.integer("num_kv_shared_layers", default=0, low=0)
    if shared and shared >= layers:
        raise fields.error("num_kv_shared_layers", shared, f"fewer than the {layers} layers")
    owners = [index < layers - shared for index in range(layers)]
    if shared and not set(words[layers - shared :]) <= set(words[: layers - shared]):
        raise fields.error("num_kv_shared_layers", shared, "an earlier layer of each type that shares its cache")
    if fields.flag("use_cla", False):
        factor = fields.integer("cla_share_factor", low=1, high=layers)
        owners = [owner and index % factor == 0 for index, owner in enumerate(owners)]
    return owners
