"""Tiny configurations of published architectures, in the field names of their config.json, at two sizes."""

from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "head_dim": 8,
    **EXPERTS,
}
INDEX = {**LATENT, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 4}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4,
          "mamba_expand": 2}  # fmt: skip
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
         "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "shared_expert_intermediate_size": 16}  # fmt: skip
MAMBA1 = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 8, "use_mamba_kernels": False}
GLOBAL = {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_hidden_layers": 12}
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64, "num_kv_shared_layers": 4}
WINDOW = {"sliding_window": 8}

DENSE = ("llama", "gemma", "olmo", "olmo2", "phi", "cohere", "glm", "glm4", "granite", "stablelm", "nemotron", "helium",
         "exaone", "internlm3", "seed_oss", "arcee", "apertus", "hunyuan_v1_dense", "ernie4_5", "diffllama", "nanochat",
         "gpt_neox", "gpt2", "bloom", "mpt", "opt", "persimmon", "biogpt", "xglm", "gpt_bigcode", "smollm3",
         "bitnet", "hyperclovax", "iquestcoder", "jais2", "gpt_neox_japanese", "ctrl", "hy_v3", "doge")  # fmt: skip
SPARSE = (
    "olmoe",
    "flex_olmo",
    "glm4_moe",
    "granitemoe",
    "minimax_m2",
    "solar_open",
    "qwen2_moe",
    "qwen3_moe",
    "dots1",
    "sarvam_moe",
    "aria_text",
    "mellum",
)
LATENTS = ("deepseek_v2", "deepseek_v3", "minicpm3", "glm4_moe_lite", "axk1", "youtu", "sarvam_mla")

FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {} for name in DENSE},
    **dict.fromkeys(SPARSE, EXPERTS),
    **dict.fromkeys(LATENTS, LATENT),
    "falcon": {"head_dim": None, "multi_query": True},
    "jetmoe": {**EXPERTS, "kv_channels": 16, "head_dim": None},
    "hunyuan_v1_moe": {**EXPERTS, "moe_topk": 2},
    "mistral": WINDOW,
    "ministral3": WINDOW,
    "mixtral": {**WINDOW, **EXPERTS},
    "phi3": WINDOW,
    "phimoe": {**WINDOW, **EXPERTS},
    "starcoder2": WINDOW,
    "ministral": WINDOW,
    "qwen2": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {**WINDOW, "use_sliding_window": False},
    "gemma2": WINDOW,
    "vaultgemma": WINDOW,
    "gpt_oss": {**WINDOW, **EXPERTS},
    "gemma3_text": {**WINDOW, "num_hidden_layers": 7, "sliding_window_pattern": 3},
    "gemma3n_text": {**WINDOW, **PER_LAYER, "num_hidden_layers": 10, "altup_num_inputs": 2, "laurel_rank": 4},
    "gemma4_text": {**WINDOW, **GLOBAL, **PER_LAYER},
    "gemma4_unified_text": {**WINDOW, **GLOBAL},
    "cohere2": {**WINDOW, "sliding_window_pattern": 2},
    "olmo3": WINDOW,
    "exaone4": WINDOW,
    "exaone_moe": {**WINDOW, **EXPERTS},
    "afmoe": {**WINDOW, **EXPERTS, "global_attn_every_n_layers": 2},
    "cwm": WINDOW,
    "granite_swa": WINDOW,
    "granitemoe_swa": {**WINDOW, **EXPERTS},
    "kolibri1": {**WINDOW, **EXPERTS, "num_hidden_layers": 5},
    "cohere2_moe": {**WINDOW, **EXPERTS, "layer_types": ["full_attention", "sliding_attention"] * 2},
    "flint": {**WINDOW, **EXPERTS, "layer_types": ["full_attention", "sliding_attention"] * 2},
    "mimo_v2_flash": {**WINDOW, **EXPERTS, "v_head_dim": 12, "swa_num_key_value_heads": 4, "swa_head_dim": 16,
                      "swa_v_head_dim": 12, "hybrid_layer_pattern": [0, 1, 1, 1]},
    "llama4_text": {**EXPERTS, "attention_chunk_size": 8, "no_rope_layer_interval": 4, "intermediate_size_mlp": 64},
    "longcat_flash": {**LATENT, "num_hidden_layers": None, "num_layers": 2, "zero_expert_num": 2, "moe_topk": 2,
                      "expert_ffn_hidden_size": 32, "ffn_hidden_size": 32},
    "deepseek_v32": INDEX,
    "glm_moe_dsa": INDEX,
    "axk2": INDEX,
    "mamba": {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": None, "state_size": 12,
              "conv_kernel": 3, "expand": 2, "intermediate_size": 128},
    "falcon_mamba": {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": None, "state_size": 12,
                     "conv_kernel": 4, "expand": 2, "intermediate_size": 128},
    "mamba2": {"num_attention_heads": None, "num_key_value_heads": None, "num_heads": 8, "expand": 2, "state_size": 12,
               "n_groups": 2, "conv_kernel": 4},
    "jamba": {**EXPERTS, **MAMBA1, "num_hidden_layers": 8, "attn_layer_period": 4, "attn_layer_offset": 2},
    "zamba": {**MAMBA1, "num_hidden_layers": 6, "n_mamba_heads": 2, "attn_layer_period": 3, "attn_layer_offset": 2,
              "head_dim": None, "attention_head_dim": 32, "attention_hidden_size": 128,
              "layers_block_type": ["mamba", "mamba", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3], "mamba_d_state": 8,
               "mamba_d_conv": 4, "mamba_expand": 2, "mamba_headdim": 16, "mamba_ngroups": 2, "n_mamba_heads": 8,
               "head_dim": None, "attention_head_dim": 16, "num_mem_blocks": 1, "adapter_rank": 8,
               "use_mamba_kernels": False},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 128},
    "bamba": {**MAMBA2, "attn_layer_indices": [1]},
    "granitemoehybrid": {**EXPERTS, **MAMBA2, "layer_types": ["mamba", "attention"] * 2},
    "nemotron_h": {**EXPERTS, "hybrid_override_pattern": "M-M*EM*-", "num_hidden_layers": 8, "ssm_state_size": 12,
                   "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "conv_kernel": 4,
                   "moe_shared_expert_intermediate_size": 16},
    "qwen3_next": {**EXPERTS, **DELTA},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {**EXPERTS, **DELTA},
    "olmo_hybrid": DELTA,
    "kimi_linear": {**LATENT, "linear_attn_config": {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 3,
                                                     "head_dim": 16, "short_conv_kernel_size": 4}},
    "bailing_hybrid": {**LATENT, "layer_group_size": 2, "linear_num_key_heads": 2},
    "minimax": {**EXPERTS, "layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2": {"full_attn_idxs": [1, 3], "conv_L_cache": 3},
    "lfm3": {**WINDOW, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 5},
    "lara_mini": {
        **WINDOW,
        **EXPERTS,
        **DELTA,
        "layer_types": ["linear_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    "lfm2_moe": {**EXPERTS, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3},
    "mllama_text_model": {"cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
}  # fmt: skip

# Sizes that may double together without breaking what the classes check of each other.
SCALED = ("head_dim", "kv_lora_rank", "qk_rope_head_dim", "index_head_dim", "global_head_dim", "swa_head_dim",
          "mamba_d_state", "ssm_state_size", "state_size", "linear_key_head_dim", "linear_value_head_dim", "v_head_dim",
          "swa_v_head_dim", "sliding_window", "attention_chunk_size", "num_key_value_heads", "num_attention_heads",
          "swa_num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads")  # fmt: skip
FIXED = {
    "mamba2": {"head_dim"},
    "helium": {"head_dim", "num_attention_heads"},
    "bitnet": {"head_dim", "num_attention_heads"},
    "zamba": {"num_attention_heads", "num_key_value_heads"},
}
# Families whose heads share out the hidden size, whatever a 'head_dim' field says.
SHARED_OUT = ("gpt2", "gpt_neox_japanese",
              "ctrl", "gpt_neox", "bloom", "mpt", "opt", "persimmon", "biogpt", "xglm", "gpt_bigcode", "falcon",
              "olmoe", "stablelm", "mllama_text_model")  # fmt: skip


def tiny(model_type: str, size: int) -> dict[str, Any]:
    """The config.json of a tiny model of a family; size 2 has twice the heads, head widths, windows and states."""
    config = {"model_type": model_type, **BASE, **FAMILIES[model_type]}
    if model_type in SHARED_OUT:
        config["head_dim"] = None
    config = {key: value for key, value in config.items() if value is not None}
    if size == 1:
        return config
    fixed = FIXED.get(model_type, set())
    config = {key: 2 * value if key in SCALED and key not in fixed else value for key, value in config.items()}
    if model_type in SHARED_OUT:
        config["hidden_size"] *= 2
    return config
