"""Bytes of published checkpoints, worked by hand; ranks; layers described by hand; what is refused and how."""

import copy
import csv
import itertools
import json
import re
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_pure.errors import ArenaError, ConfigError
from core_pure.geometry import RecurrentState, SlidingWindow, rows_of
from models.architectures import bands_of, bundled_ids, layers_of, layout_for, load_config, specs_of, stage_of
from models.config_fields import parse_bytes

# Worked bytes per slot (one token, or one state) of each band in bf16, with the arithmetic. Sources: the published
# config.json of each checkpoint (models/data/model_configs.json names where it was read).
WORKED = {
    "google/gemma-2-2b": {"full": 13 * 4 * 256 * 2 * 2, "window-4096": 13 * 4 * 256 * 2 * 2},
    "google/gemma-2-9b-it": {"full": 21 * 8 * 256 * 2 * 2, "window-4096": 21 * 8 * 256 * 2 * 2},
    "google/gemma-2-27b-it": {"full": 23 * 16 * 128 * 2 * 2, "window-4096": 23 * 16 * 128 * 2 * 2},
    "google/gemma-3-1b-it": {"full": 4 * 1 * 256 * 2 * 2, "window-512": 22 * 1 * 256 * 2 * 2},
    "google/gemma-3-4b-it": {"full": 5 * 4 * 256 * 2 * 2, "window-1024": 29 * 4 * 256 * 2 * 2},
    "google/gemma-3-12b-it": {"full": 8 * 8 * 256 * 2 * 2, "window-1024": 40 * 8 * 256 * 2 * 2},
    "google/gemma-4-12B-it": {"full": 8 * 1 * 512 * 2 * 2, "window-1024": 40 * 8 * 256 * 2 * 2},
    "google/gemma-4-26B-A4B-it": {"full": 5 * 2 * 512 * 2 * 2, "window-1024": 25 * 8 * 256 * 2 * 2},
    "google/gemma-4-31B-it": {"full": 10 * 4 * 512 * 2 * 2, "window-1024": 50 * 16 * 256 * 2 * 2},
    "mistralai/Ministral-8B-Instruct-2410": {"full": 9 * 8 * 128 * 2 * 2, "window-32768": 27 * 8 * 128 * 2 * 2},
    "mistralai/Ministral-3-8B-Base-2512": {"full": 34 * 8 * 128 * 2 * 2},
    "mistralai/Mistral-Small-24B-Instruct-2501": {"full": 40 * 8 * 128 * 2 * 2},
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": {"full": 12 * 8 * 128 * 4, "chunk-8192": 36 * 8 * 128 * 4},
    "ai21labs/Jamba-v0.1": {"full": 4 * 8 * 128 * 4, "state": 28 * (8192 * 3 * 2 + 8192 * 16 * 2)},
    "tiiuae/Falcon-H1-0.5B-Instruct": {"full": 36 * 2 * 64 * 4, "state": 36 * (1792 * 3 * 2 + 24 * 64 * 128 * 2)},
    "tiiuae/Falcon-H1-34B-Instruct": {"full": 72 * 4 * 128 * 4, "state": 72 * (5120 * 3 * 2 + 32 * 128 * 256 * 2)},
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {"full": 12 * 2 * 256 * 4, "state": 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 2)},
    "Qwen/Qwen3.5-9B": {"full": 8 * 4 * 256 * 4, "state": 24 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)},
    "Qwen/Qwen3.5-397B-A17B": {"full": 15 * 2 * 256 * 4, "state": 45 * (12288 * 3 * 2 + 64 * 128 * 128 * 4)},
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": {
        "latent": 7 * (512 + 64) * 2,
        "state": 20 * (3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4),
    },
    "openai/gpt-oss-20b": {"full": 12 * 8 * 64 * 4, "window-128": 12 * 8 * 64 * 4},
    "nvidia/Nemotron-H-8B-Base-8K": {"full": 4 * 8 * 128 * 4, "state": 24 * (10240 * 3 * 2 + 128 * 64 * 128 * 4)},
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {"full": 4 * 8 * 128 * 4, "state": 27 * (12288 * 3 * 2 + 128 * 80 * 128 * 4)},
    "ibm-ai-platform/Bamba-9B-v2": {"full": 3 * 8 * 128 * 4, "state": 29 * (8448 * 3 * 2 + 128 * 64 * 128 * 2)},
    "ibm-granite/granite-4.0-h-tiny": {"full": 4 * 4 * 128 * 4, "state": 36 * (3328 * 3 * 2 + 48 * 64 * 128 * 2)},
    "MiniMaxAI/MiniMax-Text-01": {"full": 10 * 8 * 128 * 4, "state": 70 * 64 * 128 * 128 * 2},
    "LiquidAI/LFM2-1.2B": {"full": 6 * 8 * 64 * 4, "state": 10 * 2048 * 2 * 2},
    "Zyphra/Zamba2-2.7B-Instruct-v2": {"full": 9 * 32 * 160 * 4, "state": 54 * (5248 * 3 * 2 + 80 * 64 * 64 * 2)},
    "deepseek-ai/DeepSeek-V3": {"latent": 61 * (512 + 64) * 2},
    "deepseek-ai/DeepSeek-V3.2-Exp": {"latent": 61 * ((512 + 64) * 2 + 128 + 4)},
    "meta-llama/Llama-3.2-11B-Vision-Instruct": {"full": 32 * 8 * 128 * 4, "cross": 8 * 8 * 128 * 4},
}


@pytest.mark.parametrize("model", sorted(WORKED))
def test_bytes_of_published_models_are_the_worked_ones(model):
    """Bytes per slot of every band equal the product worked from the published sizes."""
    assert {band.name: band.payload_bytes for band in bands_of(model)} == WORKED[model]


def test_every_bundled_config_gives_a_layout():
    """Each of the 44 bundled checkpoints gives an arena at 80 GiB, its bands in one chain."""
    assert len(bundled_ids()) == 44
    for model in bundled_ids():
        layout = layout_for(model, "80GiB")
        assert set(layout.names) == {band.name for band in bands_of(model)}
        assert all(frames > 0 for frames in layout.frames_max)


def rows_of_csv():
    """Measured rows of vLLM 0.33's planning code."""
    text = (resources.files("models") / "data" / "vllm_0_33_waste.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("row", rows_of_csv(), ids=lambda row: f"{row['model']} {row['variant']}")
def test_layer_bytes_equal_those_of_a_real_engine(row):
    """Attention bytes per token and layer, and state bytes per layer, are vLLM 0.33's own, also per rank and in fp8."""
    ranks = re.search(r"TP(\d+)", row["variant"])
    fp8 = "fp8" if "fp8" in row["variant"] else None
    layers = layers_of(row["model"], tp=int(ranks.group(1)) if ranks else 1, kv_dtype=fp8)
    sizes = {True: set(), False: set()}
    for layer in layers:
        is_state = isinstance(layer.kind, RecurrentState)
        sizes[is_state].add(sum(one.payload_bytes for one in rows_of(layer)))
    assert int(row["a"]) in sizes[False]
    assert sizes[True] == ({int(row["m"])} if row["m"] else set())


def test_shared_layers_own_no_cache():
    """The last layers of Gemma 3n read earlier ones' caches: only the owners are counted."""
    config = {"model_type": "gemma3n_text", "num_hidden_layers": 10, "num_attention_heads": 8, "num_key_value_heads": 2,
              "head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 4}  # fmt: skip
    layers = layers_of(load_config(config))
    assert [layer.index for layer in layers] == [0, 1, 2, 3, 4, 5]
    assert sum(isinstance(layer.kind, SlidingWindow) for layer in layers) == 5


PATTERNS = {
    "list": {"layer_types": ["sliding_attention", "full_attention"] * 3},
    "period": {"sliding_window_pattern": 2},
    "old period": {"_sliding_window_pattern": 2},
    "letters": {"sliding_window_pattern": "LG"},
    "per layer": {"sliding_window": [64, None, 64, None, 64, None], "model_type": "mistral"},
    "short list": {"sliding_window": [64, None], "model_type": "mistral"},
    "switch": {"use_sliding_window": True, "max_window_layers": 0, "model_type": "qwen2", "layer_types": None},
}


@pytest.mark.parametrize("form", sorted(PATTERNS))
def test_every_published_pattern_form_is_read(form):
    """Lists, periods, letters and per-layer windows that mean the same give the same layers."""
    base = {"model_type": "gemma3_text", "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 64, "sliding_window": 64}  # fmt: skip
    layers = layers_of(load_config({**base, **PATTERNS[form]}))
    windows = [layer.index for layer in layers if isinstance(layer.kind, SlidingWindow)]
    assert windows == (list(range(6)) if form == "switch" else [0, 2, 4])


@pytest.mark.parametrize("model", bundled_ids())
def test_F29_bytes_per_rank_follow_what_is_sharded(model):
    """Planned for 1, 4 and 8 ranks: heads and states divide, latents and lone kv heads are replicated."""
    alone = {band.name: band.payload_bytes for band in bands_of(model)}
    for tp in (4, 8):
        try:
            ranks = {band.name: band.payload_bytes for band in bands_of(model, tp=tp)}
        except ConfigError as error:
            assert "parallel ranks" in str(error)
            continue
        for name, size in ranks.items():
            if name == "latent":
                assert size == alone[name]
            else:
                assert alone[name] <= size * tp  # never less than the share; more where something is replicated
                assert size <= alone[name]


def test_F29_fewer_kv_heads_than_ranks_are_replicated():
    """Two kv heads on 8 ranks: one on each; 16 heads on 8 ranks: two on each; 3 heads on 8 ranks: refused."""
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 48, "head_dim": 64}
    for heads, each in ((2, 1), (16, 2), (8, 1), (1, 1)):
        kind = layers_of(load_config({**config, "num_key_value_heads": heads}), tp=8)[0].kind
        assert kind.kv_heads == each
    with pytest.raises(ConfigError, match=r"num_key_value_heads.*3.*8 tensor-parallel"):
        layers_of(load_config({**config, "num_key_value_heads": 3}), tp=8)


@pytest.mark.parametrize(("layers", "stages"), [(27, 1), (27, 2), (27, 4), (5, 5), (48, 7)])
def test_pipeline_stages_partition_the_layers(layers, stages):
    """Stages cover all layers once, in order, and differ by at most one layer."""
    parts = [stage_of(layers, stages, rank) for rank in range(stages)]
    assert parts[0][0] == 0 and parts[-1][1] == layers
    assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
    sizes = [last - first for first, last in parts]
    assert max(sizes) - min(sizes) <= 1


def test_F12_stages_without_a_kind_have_no_band_of_it():
    """A stage of Nemotron-H with only state layers has one band; one with only MLP layers has nothing to lay out."""
    model = "nvidia/Nemotron-H-8B-Base-8K"
    names = [{band.name for band in bands_of(model, pp=26, pp_rank=rank)} for rank in range(26)]
    assert {"state"} in names and {"state", "full"} not in names[:3]
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "*-", "num_hidden_layers": 2, "head_dim": 64,
              "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
    assert [band.name for band in bands_of(load_config(config), pp=2, pp_rank=0)] == ["full"]
    with pytest.raises(ConfigError, match="nothing to lay out"):
        layout_for(load_config(config), "1GiB", pp=2, pp_rank=1)


def test_draft_layers_join_the_bands_they_keep_tokens_with():
    """Multi-token-prediction layers and a draft model add their bytes to the bands of equal retention."""
    model = "Qwen/Qwen3.5-9B"
    alone = {band.name: band.payload_bytes for band in bands_of(model)}
    mtp = {band.name: band.payload_bytes for band in bands_of(model, mtp_layers=1)}
    assert mtp == {**alone, "full": alone["full"] // 8 * 9}
    draft = {band.name: band.payload_bytes for band in bands_of(model, draft="openai/gpt-oss-20b")}
    assert draft["full"] == alone["full"] + WORKED["openai/gpt-oss-20b"]["full"]
    assert draft["window-128"] == WORKED["openai/gpt-oss-20b"]["window-128"]


def test_F46_tracking_and_draft_slots_are_a_layout_parameter():
    """A request that tracks two states and drafts one is charged four; without, one."""
    bands = bands_of("tiiuae/Falcon-H1-0.5B-Instruct")
    charge = {spec.name: spec.pages_fixed for spec in specs_of(bands, tracking=2, draft_slots=1)}
    assert charge["state"] == 4
    assert {spec.name: spec.pages_fixed for spec in specs_of(bands)}["state"] == 1


def test_layers_described_by_hand_equal_the_family_table(tmp_path):
    """The JSON form for unknown architectures, read from a file, gives the bytes of the model that it describes."""
    described = {
        "name": "by hand",
        "context_tokens": 1000,
        "kvarena_layers": [
            {"kind": "latent", "kv_lora_rank": 512, "rope_dim": 64, "repeat": 7},
            {
                "kind": "state",
                "repeat": 20,
                "tensors": [
                    {"name": "conv", "shape": [12288, 3], "shard": 0},
                    {"name": "temporal", "shape": [32, 128, 128], "shard": 0, "dtype": "float32"},
                ],
            },
            {"kind": "none"},
            [{"kind": "full", "kv_heads": 8, "head_dim": 64}, {"kind": "window", "window": 9, "kv_heads": 2,
                                                              "head_dim_k": 16, "head_dim_v": 8}],
            {"kind": "chunk", "window": 32, "kv_heads": 1, "head_dim": 8},
            {"kind": "cross", "tokens": 77, "kv_heads": 4, "head_dim": 8},
        ],
    }  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(described))
    config = load_config(path)
    assert (config.name, config.context_tokens) == ("by hand", 1000)
    for tp in (1, 4):
        kimi = {band.name: band.payload_bytes for band in bands_of("moonshotai/Kimi-Linear-48B-A3B-Instruct", tp=tp)}
        mine = {band.name: band.payload_bytes for band in bands_of(config, tp=tp)}
        assert {name: mine[name] for name in kimi} == kimi
        assert mine["full"] == 8 // tp * 64 * 2 * 2
        assert mine["window-9"] == max(1, 2 // tp) * (16 + 8) * 2
    assert {layer.index for layer in layers_of(config)} == set(range(31)) - {27}


GOOD = {"model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "full_attention_interval": 4, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4, "max_position_embeddings": 64}  # fmt: skip

BROKEN = [
    ({"num_key_value_heads": 0}, ["num_key_value_heads", "0", "from 1"]),
    ({"num_key_value_heads": "8"}, ["num_key_value_heads", "'8'", "integer"]),
    ({"num_key_value_heads": -2}, ["num_key_value_heads", "-2"]),
    ({"num_key_value_heads": 2.0}, ["num_key_value_heads", "2.0"]),
    ({"head_dim": True}, ["head_dim", "True"]),
    ({"head_dim": 10**30}, ["head_dim", "1000000", "from 1 to"]),
    ({"head_dim": None, "hidden_size": 63}, ["hidden_size", "63", "multiple"]),
    ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "1000000000"]),
    ({"num_hidden_layers": None}, ["num_hidden_layers", "missing"]),
    ({"linear_num_value_heads": None}, ["linear_num_value_heads", "missing"]),
    ({"layer_types": ["full_attention"]}, ["layer_types", "1 layer types", "4 layers"]),
    ({"layer_types": ["full_attention", "telepathy"] * 2}, ["layer_types", "telepathy"]),
    ({"layer_types": "full_attention"}, ["layer_types", "a list"]),
    ({"layer_types": [["full_attention"]] * 4}, ["layer_types", "layer types among"]),
    ({"layer_types": ["chunked_attention"] * 4}, ["attention_chunk_size", "missing"]),
    ({"layer_types": ["sliding_attention"] * 4}, ["sliding_window", "missing"]),
    ({"model_type": "perceptron"}, ["model_type", "perceptron", "kvarena_layers"]),
    ({"model_type": 7}, ["model_type", "7", "text"]),
    ({"model_type": None}, ["model_type", "missing"]),
    ({"torch_dtype": "int4"}, ["torch_dtype", "int4", "bfloat16"]),
    ({"torch_dtype": 16}, ["torch_dtype", "16"]),
    ({"mamba_ssm_dtype": "float12"}, ["mamba_ssm_dtype", "float12"]),
    ({"max_position_embeddings": 0}, ["max_position_embeddings", "0"]),
    ({"num_kv_shared_layers": 4}, ["num_kv_shared_layers", "4", "fewer"]),
    ({"num_kv_shared_layers": 1}, ["num_kv_shared_layers", "1", "earlier layer"]),
    ({"text_config": 5, "num_hidden_layers": None}, ["text_config", "5", "object"]),
    ({"per_layer_config": 5}, ["per_layer_config", "5", "object"]),
    ({"per_layer_config": {"x": {}}}, ["per_layer_config", "layer number"]),
    ({"kvarena_layers": []}, ["kvarena_layers", "at least one layer"]),
    ({"kvarena_layers": [5]}, ["kvarena_layers[0]", "5", "kind"]),
    ({"kvarena_layers": [{"kind": "magic"}]}, ["layer 0", "kind", "magic"]),
    ({"kvarena_layers": [{"kind": "state", "tensors": [{"name": "a", "shape": [0]}]}]}, ["layer 0", "'a'", "shape"]),
    ({"kvarena_layers": [{"kind": "full", "kv_heads": 1, "head_dim": 1, "repeat": 10**9}]}, ["repeat", "1000000000"]),
]


@pytest.mark.parametrize(("change", "says"), BROKEN, ids=lambda value: str(value)[:40])
def test_nonsense_is_one_line_with_field_value_and_wish(change, says):
    """Missing, contradictory and nonsense fields give a ConfigError of one line that names them."""
    assert bands_of(load_config(GOOD))
    with pytest.raises(ConfigError) as error:
        bands_of(load_config({**GOOD, **change}))
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    for word in says:
        assert word in str(error.value)


@pytest.mark.parametrize("nest", [["text_config"], ["llm_config"], ["thinker_config", "text_config"]])
def test_wrappers_of_several_modalities_are_opened(nest):
    """The language model inside a wrapper is found, and a dtype stated outside counts inside."""
    config = dict(GOOD)
    for key in reversed(nest):
        config = {"model_type": "some_vision_wrapper", "torch_dtype": "float16", "vision_config": {}, key: config}
    layers = layers_of(load_config(config))
    assert layers == layers_of(load_config({**GOOD, "torch_dtype": "float16"}))
    assert {row.dtype for layer in layers for row in rows_of(layer)} == {"float16"}


def test_files_that_are_no_config_are_one_line(tmp_path):
    """A missing file, no JSON, no object and a folder without a config each say what was expected."""
    for name, text, says in (("a.json", "{", "no JSON"), ("b.json", "[1]", "JSON object"), ("c.json", "\x00", "no JSON")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=says):
            load_config(tmp_path / name)
    (tmp_path / "d.json").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="no JSON"):
        load_config(tmp_path / "d.json")
    for missing, says in ((tmp_path / "nothing.json", "neither a file nor a bundled id"), (tmp_path, "without a config.json")):
        with pytest.raises(ConfigError, match=says):
            load_config(missing)
    with pytest.raises(ConfigError, match="did you mean openai/gpt-oss-20b"):
        load_config("gpt-oss-20b")


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2**31), ("1.5 GB", 1_500_000_000), ("80gib", 80 * 2**30), (4096, 4096), ("512M", 512 * 10**6), ("7b", 7)],
)
def test_sizes_in_bytes_are_exact(text, count):
    """Binary and decimal units give exact integers."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-3GiB", "1e9", "3 apples", "0", 0, "0.1b", True, "1.2.3GB"])
def test_sizes_that_are_none_are_refused(text):
    """Anything but a positive size with a known unit is refused with an example."""
    with pytest.raises(ConfigError, match="80GiB"):
        parse_bytes(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_change_of_one_field_is_a_layout_or_a_typed_error(data):
    """Whatever one field of a bundled config is replaced by, the answer is bands or an ArenaError, never a crash."""
    model = data.draw(st.sampled_from(bundled_ids()))
    config = json.loads(load_config(model).text)
    inner = config.get("text_config", config)
    key = data.draw(st.sampled_from(sorted(inner)))
    junk = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**12), st.text(max_size=4), st.floats(),
                     st.lists(st.integers(-1, 9), max_size=3), st.dictionaries(st.text(max_size=2), st.integers()))  # fmt: skip
    changed = copy.deepcopy(inner)
    changed[key] = data.draw(junk)
    try:
        bands = bands_of(load_config({**config, "text_config": changed} if "text_config" in config else changed))
    except ArenaError as error:
        assert "\n" not in str(error)
    else:
        assert all(band.frame_bytes > 0 for band in bands)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(bundled_ids()), st.integers(1, 4))
def test_members_that_differ_in_sizes_only_give_a_layout(model, scale):
    """Every bundled family at other sizes (more kv and query heads, longer windows and contexts) gives a layout."""
    config = json.loads(load_config(model).text)
    inner = config.get("text_config", config)
    keys = ("num_key_value_heads", "num_attention_heads", "hidden_size", "mamba_n_heads", "mamba_d_ssm", "n_mamba_heads",
            "mamba_num_heads", "linear_num_key_heads", "linear_num_value_heads", "max_position_embeddings",
            "attention_hidden_size", "conv_dim", "kv_lora_rank", "attention_chunk_size")  # fmt: skip
    for key in keys:
        if isinstance(inner.get(key), int):
            inner[key] *= scale
    before = {band.name.split("-")[0]: band.payload_bytes for band in bands_of(model)}
    after = {band.name.split("-")[0]: band.payload_bytes for band in bands_of(load_config(config))}
    assert after.keys() == before.keys()
    assert all(after[name] >= before[name] for name in before)
