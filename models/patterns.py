"""Which layer is of which type, from every published way of writing it down.

A pattern is one word per layer: full, window, chunk, state, both (attention beside state), both-window, cross, none.
"""

from collections.abc import Callable
from typing import TypeAlias

from core_pure.errors import ConfigError
from models.attention_kinds import WINDOW_KEYS
from models.config_fields import LAYERS_MAX, Fields

Pattern: TypeAlias = Callable[[Fields, int], list[str]]

LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
LIST_KEYS = ("layer_types", "layers_block_type")
PERIOD_KEYS = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", "window_pattern")

WORDS = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "window",
    "local_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "recurrent": "state",
    "conv": "state",
    "hybrid": "both",
    "hybrid_sliding": "both-window",
    "cross_attention": "cross",
    "mlp": "none",
    "moe": "none",
}


def layer_count(fields: Fields) -> int:
    """Layers of the model, from its count or from the list that states one type per layer."""
    if not fields.has(*LAYER_KEYS):
        for key in (*LIST_KEYS, "hybrid_override_pattern"):
            if fields.has(key):
                return len(fields.text(key) if key == "hybrid_override_pattern" else fields.sequence(key))
    return fields.integer(*LAYER_KEYS, high=LAYERS_MAX)


def layer_words(fields: Fields, layers: int, pattern: Pattern) -> list[str]:
    """One word per layer: the explicit list if there is one, else the family's own rule.

    Raises: ConfigError for a list of another length or an unknown layer type.
    """
    key = fields.first(*LIST_KEYS)
    if key is None:
        return pattern(fields, layers)
    words: list[str] = []
    for value in fields.sequence(key):
        word = WORDS.get(value) if isinstance(value, str) else None
        if word is None:
            raise fields.error(key, value, f"layer types among {', '.join(WORDS)}")
        words.append(word)
    if len(words) != layers:
        raise fields.error(key, f"{len(words)} layer types", f"one for each of the {layers} layers")
    return words


def all_full(fields: Fields, layers: int) -> list[str]:
    """Every layer attends to everything."""
    return ["full"] * layers


def written_out(fields: Fields, layers: int) -> list[str]:
    """Families whose rule is only their published list: without it there is nothing to derive."""
    raise ConfigError(f"{fields.name}: field 'layer_types' is missing; expected one type for each of the {layers} layers")


def all_state(fields: Fields, layers: int) -> list[str]:
    """Every layer is recurrent."""
    return ["state"] * layers


def all_both(fields: Fields, layers: int) -> list[str]:
    """Every layer has attention beside a recurrent state."""
    return ["both"] * layers


def has_window(fields: Fields) -> bool:
    """Whether a window is stated at all (null and absent mean none)."""
    return fields.has(*WINDOW_KEYS)


def all_window(fields: Fields, layers: int) -> list[str]:
    """Every layer slides if a window is stated; a list of windows repeats over the layers, null meaning full."""
    key = fields.first(*WINDOW_KEYS)
    if key is None:
        return all_full(fields, layers)
    if not isinstance(fields.data[key], list | tuple):
        return ["window"] * layers
    windows = fields.sequence(key)
    if not windows or layers % len(windows):
        raise fields.error(key, f"{len(windows)} windows", f"a number of windows that divides the {layers} layers")
    return ["full" if windows[i % len(windows)] in (None, 0) else "window" for i in range(layers)]


def every(default: int) -> Pattern:
    """Layers ``period, 2·period, …`` (counted from 1) are full, the others slide; the period is a field or the default.

    The field may be a word such as 'LLLG' (local, global), repeated; then the last layer is global in any case.
    """

    def pattern(fields: Fields, layers: int) -> list[str]:
        if not has_window(fields):
            return all_full(fields, layers)
        key = fields.first(*PERIOD_KEYS)
        if key is not None and isinstance(fields.data[key], str):
            letters = fields.text(key)
            if not letters or set(letters) - set("LG"):
                raise fields.error(key, letters, "letters L (local) and G (global)")
            words = ["full" if letters[i % len(letters)] == "G" else "window" for i in range(layers)]
            return [*words[:-1], "full"]
        period = fields.integer(*PERIOD_KEYS, default=default, high=LAYERS_MAX)
        return ["window" if (i + 1) % period else "full" for i in range(layers)]

    return pattern


def first_of_every(default: int) -> Pattern:
    """Layers 0, period, 2·period, … are full, the others slide."""

    def pattern(fields: Fields, layers: int) -> list[str]:
        if not has_window(fields):
            return all_full(fields, layers)
        period = fields.integer(*PERIOD_KEYS, default=default, high=LAYERS_MAX)
        return ["window" if i % period else "full" for i in range(layers)]

    return pattern


def gemma4(fields: Fields, layers: int) -> list[str]:
    """Five sliding layers to one full; the last layer is full whatever the count."""
    return [*every(6)(fields, layers)[:-1], "full"]


def switched_window(fields: Fields, layers: int) -> list[str]:
    """Qwen: layers from ``max_window_layers`` on slide, if ``use_sliding_window`` says so."""
    if not fields.flag("use_sliding_window", False) or not has_window(fields):
        return all_full(fields, layers)
    first = fields.integer("max_window_layers", default=0, low=0)
    return ["window" if i >= first else "full" for i in range(layers)]


def mimo(fields: Fields, layers: int) -> list[str]:
    """MiMo-V2-Flash: a list of 0 (full) and 1 (window)."""
    return coded("hybrid_layer_pattern", {0: "full", 1: "window"})(fields, layers)


def chunked(fields: Fields, layers: int) -> list[str]:
    """Llama 4: layers with rotary positions attend within their chunk, the others to everything."""
    if not fields.has("attention_chunk_size"):
        return all_full(fields, layers)
    if fields.has("no_rope_layers"):
        return coded("no_rope_layers", {0: "full", 1: "chunk"})(fields, layers)
    interval = fields.integer("no_rope_layer_interval", high=LAYERS_MAX)
    return ["chunk" if (i + 1) % interval else "full" for i in range(layers)]


def coded(key: str, meaning: dict[object, str]) -> Pattern:
    """A list with one code per layer."""

    def pattern(fields: Fields, layers: int) -> list[str]:
        codes = fields.sequence(key)
        if len(codes) != layers:
            raise fields.error(key, f"{len(codes)} entries", f"one for each of the {layers} layers")
        for code in codes:
            if not isinstance(code, int | str) or code not in meaning:
                raise fields.error(key, code, f"one of {', '.join(map(str, meaning))}")
        return [meaning[code] for code in codes]

    return pattern


def interval(fields: Fields, layers: int) -> list[str]:
    """Gated delta nets: every ``full_attention_interval``-th layer is full attention, the others are recurrent."""
    period = fields.integer("full_attention_interval", high=LAYERS_MAX)
    return ["state" if (i + 1) % period else "full" for i in range(layers)]


def periodic(rest: str) -> Pattern:
    """Jamba and Zamba: layers offset, offset + period, … are ``rest``'s counterpart, the others recurrent."""

    def pattern(fields: Fields, layers: int) -> list[str]:
        period = fields.integer("attn_layer_period", high=LAYERS_MAX)
        offset = fields.integer("attn_layer_offset", low=0, high=LAYERS_MAX)
        return [rest if i % period == offset else "state" for i in range(layers)]

    return pattern


def listed(key: str, chosen: str) -> Pattern:
    """A list of the layer numbers that are ``chosen``; the others are recurrent."""

    def pattern(fields: Fields, layers: int) -> list[str]:
        picked = fields.indices(key, layers)
        return [chosen if i in picked else "state" for i in range(layers)]

    return pattern


def nemotron(fields: Fields, layers: int) -> list[str]:
    """Nemotron-H: one letter per layer; M Mamba, * attention, - MLP, E experts."""
    letters = fields.text("hybrid_override_pattern")
    meaning = {"M": "state", "*": "full", "-": "none", "E": "none"}
    if len(letters) != layers or set(letters) - set(meaning):
        wish = f"{layers} letters among M (Mamba), * (attention), - (MLP), E (experts)"
        raise fields.error("hybrid_override_pattern", letters, wish)
    return [meaning[letter] for letter in letters]


def kimi(fields: Fields, layers: int) -> list[str]:
    """Kimi Linear: two lists of layer numbers, counted from 1, that name every layer once."""
    inner = fields.child("linear_attn_config")
    states, full = inner.indices("kda_layers", layers, base=1), inner.indices("full_attn_layers", layers, base=1)
    if states & full or len(states | full) != layers:
        raise ConfigError(
            f"{inner.name}: 'kda_layers' and 'full_attn_layers' name {len(states)} and {len(full)} layers, "
            f"{len(states & full)} of them twice; expected each of the {layers} layers once"
        )
    return ["state" if i in states else "full" for i in range(layers)]


def group_end(fields: Fields, layers: int) -> list[str]:
    """Ling hybrids: the last layer of each group is full attention, and so is what remains after whole groups."""
    size = fields.integer("layer_group_size", high=LAYERS_MAX)
    whole = layers // size * size
    return ["full" if (i + 1) % size == 0 or i >= whole else "state" for i in range(layers)]


def recurrent_blocks(fields: Fields, layers: int) -> list[str]:
    """RecurrentGemma: a short list of block types, repeated; its attention blocks slide."""
    key = fields.first("block_types", "_block_types") or "block_types"
    blocks = fields.sequence(key)
    if not blocks or set(blocks) - {"recurrent", "attention"}:
        raise fields.error(key, blocks, "a list of 'recurrent' and 'attention'")
    return ["window" if blocks[i % len(blocks)] == "attention" else "state" for i in range(layers)]


def with_cross(fields: Fields, layers: int) -> list[str]:
    """Mllama: the listed layers attend to the image, the others to the text."""
    picked = fields.indices("cross_attention_layers", layers)
    return ["cross" if i in picked else "full" for i in range(layers)]
