"""The geometry against the real thing: tiny models of transformers, run on CPU, their cache tensors weighed."""

import warnings
from collections import defaultdict

import numpy as np
import pytest

from core_pure.geometry import CrossAttention, LatentAttention, Layer, RecurrentState, SlidingWindow, rows_of
from models.architectures import layers_of, load_config
from models.families import FAMILIES as MODEL_FAMILIES
from tests.tiny_models import BASE, FAMILIES, tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = (5, 21)  # one below and one above the windows of 8 and 16 tokens
IMAGE_TOKENS = 33
# transformers keeps temporal states in fp32, except where the model's own dtype flows into them.
MODEL_DTYPE_STATES = ("minimax", "minimax_text_01")


def build(config, dtype):
    """A tiny random model, or None if this version of transformers cannot build it."""
    kwargs = {key: value for key, value in config.items() if key != "model_type"}
    torch.manual_seed(0)
    parsed = transformers.AutoConfig.for_model(config["model_type"], **kwargs)
    if config["model_type"] == "mllama_text_model":
        from transformers.models.mllama.modeling_mllama import MllamaForCausalLM

        return MllamaForCausalLM._from_config(parsed, dtype=dtype).eval()
    return transformers.AutoModelForCausalLM.from_config(parsed, dtype=dtype).eval()


def run(model, tokens):
    """The cache after a prompt of ``tokens`` tokens."""
    inputs = {"input_ids": torch.randint(3, 60, (1, tokens)), "use_cache": True}
    if model.config.model_type == "mllama_text_model":
        states = torch.zeros(1, IMAGE_TOKENS, model.config.hidden_size, dtype=model.dtype)
        inputs["cross_attention_states"] = states
    with torch.no_grad():
        output = model(**inputs)
    for name in ("past_key_values", "cache_params", "cache"):
        if output.get(name) is not None:
            return output[name]
    raise AssertionError(f"no cache in {list(output)}")


def size_of(tensor):
    """Bytes of one tensor."""
    return tensor.numel() * tensor.element_size()


def weigh(cache):
    """Layer number -> what it really holds: (row name -> (slots, bytes)); states have one slot."""
    held = defaultdict(dict)
    for index, layer in enumerate(cache.layers):
        for name in ("keys", "values", "indexer_keys"):
            tensor = getattr(layer, name, None)
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                held[index][name] = (tensor.shape[-2], size_of(tensor))
        for name in ("conv_states", "recurrent_states"):
            for tensor in (getattr(layer, name, None) or {}).values():
                if tensor is not None:
                    held[index][name] = (1, size_of(tensor))
    for index, tensor in enumerate(getattr(cache, "linear_cache", [])):
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            held[index]["recurrent_states"] = (1, size_of(tensor))
    return dict(held)


def slots_kept(kind, tokens):
    """Slots transformers keeps: of a window or chunk of W the newest W - 1, which is what the next token can see."""
    if isinstance(kind, CrossAttention):
        return IMAGE_TOKENS
    return min(tokens, kind.window - 1) if isinstance(kind, SlidingWindow) else tokens


def expected(layers: tuple[Layer, ...], tokens: int):
    """What the geometry says that each layer holds, under the names of the real tensors."""
    held = defaultdict(dict)
    for layer in layers:
        rows = {row.name: row for row in rows_of(layer)}
        if isinstance(layer.kind, RecurrentState):
            for name, real in (("conv", "conv_states"), ("temporal", "recurrent_states")):
                if name in rows:
                    held[layer.index][real] = (1, rows[name].payload_bytes)
            continue
        slots = slots_kept(layer.kind, tokens)
        if isinstance(layer.kind, LatentAttention):
            item = rows["latent"].payload_bytes // (layer.kind.kv_lora_rank + layer.kind.rope_dim)
            held[layer.index]["keys"] = (slots, slots * item * layer.kind.kv_lora_rank)
            held[layer.index]["values"] = (slots, slots * item * layer.kind.rope_dim)
            if "index" in rows:
                held[layer.index]["indexer_keys"] = (slots, slots * rows["index"].payload_bytes)
            continue
        held[layer.index]["keys"] = (slots, slots * rows["k"].payload_bytes)
        held[layer.index]["values"] = (slots, slots * rows["v"].payload_bytes)
    return dict(held)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_cache_bytes_of_real_models_equal_the_geometry(model_type, size):
    """Every cache tensor of a model that runs has exactly the bytes the geometry gives it, at two sizes and dtypes."""
    config = tiny(model_type, size)
    dtype = "bfloat16" if size == 1 else "float32"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = build(config, getattr(torch, dtype))
        except ValueError as error:
            if "nrecognized" not in str(error):
                raise
            pytest.skip(f"this version of transformers does not know {model_type}")
        state_dtype = dtype if model_type in MODEL_DTYPE_STATES else "float32"
        layers = layers_of(load_config(config), dtype=dtype, state_dtype=state_dtype, cross_tokens=IMAGE_TOKENS,
                           convention="transformers")  # fmt: skip
        for tokens in TOKENS:
            assert weigh(run(model, tokens)) == expected(layers, tokens)


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_saved_configs_give_the_same_layers(model_type):
    """The config.json that transformers writes for a model gives the same layers as the fields it was made from."""
    config = tiny(model_type, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kwargs = {key: value for key, value in config.items() if key != "model_type"}
            saved = transformers.AutoConfig.for_model(model_type, **kwargs).to_dict()
        except ValueError as error:
            if "nrecognized" not in str(error):
                raise
            pytest.skip(f"this version of transformers does not know {model_type}")
    saved = {key: value for key, value in saved.items() if key != "dtype"}
    assert layers_of(load_config(saved), cross_tokens=7) == layers_of(load_config(config), cross_tokens=7)


def test_the_scale_can_tell_wrong_bytes():
    """A geometry with one head too many is caught by the comparison (the comparison can fail)."""
    config = tiny("llama", 1)
    cache = run(build(config, torch.bfloat16), TOKENS[0])
    wrong = layers_of(load_config({**config, "num_key_value_heads": 4}), dtype="bfloat16")
    assert weigh(cache) != expected(wrong, TOKENS[0])
    assert np.prod(list(cache.layers[0].keys.shape)) == 2 * TOKENS[0] * 16


def test_states_inside_recurrent_gemma_equal_the_geometry():
    """RecurrentGemma keeps its states in its modules: kernel - 1 conv columns and one number per channel, in bytes."""
    config = {**BASE, "model_type": "recurrent_gemma", "num_hidden_layers": 3, "lru_width": 48, "conv1d_width": 4,
              "attention_window_size": 8, "block_types": ["recurrent", "recurrent", "attention"]}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(config, torch.bfloat16)
        with torch.no_grad():
            model(input_ids=torch.randint(3, 60, (1, 21)), use_cache=True)
    blocks = [layer.temporal_block for layer in model.model.layers[:2]]
    real = [(size_of(block.conv1d_state), size_of(block.rg_lru.recurrent_states)) for block in blocks]
    state = blocks[0].rg_lru.recurrent_states.dtype
    layers = layers_of(load_config(config), dtype="bfloat16", state_dtype=str(state))
    rows = [rows_of(layer) for layer in layers]
    assert real == [tuple(row.payload_bytes for row in pair) for pair in rows[:2]]
    assert isinstance(layers[2].kind, SlidingWindow) and layers[2].kind.window == 8


def test_every_kind_of_family_has_a_real_model():
    """Each way of reading a config is weighed against a real model; RecurrentGemma's states in the test above."""
    weighed = {MODEL_FAMILIES[name] for name in FAMILIES if name in MODEL_FAMILIES}
    unweighed = {name for name, family in MODEL_FAMILIES.items() if family not in weighed}
    assert unweighed == {"recurrent_gemma"}
