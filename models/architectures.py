"""From a model's description to the layers that cache something, and on to an arena's layout.

The public door of this package's model knowledge: ``load_config``, ``layers_of``, ``bands_of``, ``layout_for``.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from core_pure.errors import ConfigError
from core_pure.geometry import BandGeometry, Layer, LayerKind, RecurrentState, group_bands
from core_pure.layout import BandSpec, Layout, build_layout, order_chain, smallest_total
from models.choices import Choices, Context, Convention, context_of
from models.config_fields import CONTEXT_MAX, LAYERS_MAX, Fields, parse_bytes, text_fields
from models.families import family_of, kinds_of
from models.handwritten import LAYERS_KEY, kinds_by_hand

CONTEXT_KEYS = ("max_position_embeddings", "model_max_length", "context_tokens", "n_positions", "max_seq_len",
                "max_sequence_length", "seq_length", "n_ctx")  # fmt: skip
CONTEXT_DEFAULT = 131_072  # tokens: where a checkpoint states none; the most common published context


@frozen
class ModelConfig:
    """One model description: the language model's fields under a name to show.

    context_tokens: the longest sequence the checkpoint states, or the default.
    """

    name: str
    model_type: str
    context_tokens: int
    fields: Fields = field(repr=False, eq=False)
    text: str = field(repr=False)  # the description as canonical JSON: equality, and proof of what was read


@cache
def _bundled() -> Mapping[str, Mapping[str, Any]]:
    """Bundled configs by model id, amendments applied."""
    folder = resources.files("models") / "data"
    entries: dict[str, dict[str, Any]] = json.loads((folder / "model_configs.json").read_text())
    for name, amendment in json.loads((folder / "model_amendments.json").read_text()).items():
        if "config" in amendment:
            entries[name] = amendment
        else:
            entries[name]["config"].update(amendment["amends"])
    return {name: entry["config"] for name, entry in entries.items()}


Described = ModelConfig | str | Path | Mapping[str, Any]
"""A model: read already, a bundled id, the path of a config.json (or its folder), or the fields themselves."""


def bundled_ids() -> tuple[str, ...]:
    """Ids of the models that come with the project."""
    return tuple(_bundled())


def load_config(source: str | Path | Mapping[str, Any]) -> ModelConfig:
    """Read a model description: a bundled id, the path of a config.json (or its folder), or the fields themselves.

    Raises: ConfigError for an unknown id, an unreadable file, text that is no JSON object, or a context that is none.
    """
    if isinstance(source, Mapping):
        return _config_of(str(source.get("name") or source.get("_name_or_path") or "config"), source)
    name = str(source)
    if name in _bundled():
        return _config_of(name, _bundled()[name])
    path = Path(name)
    if name and path.is_dir():
        path = path / "config.json"
        if not path.exists():
            raise ConfigError(f"model {name!r} is a folder without a config.json")
    if not name or not path.exists():
        near = [one for one in bundled_ids() if name and name.lower() in one.lower()]
        hint = f"; did you mean {' or '.join(near[:3])}?" if near else ""
        raise ConfigError(f"model {name!r} is neither a file nor a bundled id{hint} (kvarena fit --list shows all ids)")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a config.json") from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON ({str(error)[:80]}); expected a config.json") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {type(data).__name__}; expected a JSON object of fields")
    return _config_of(str(data.get("name") or path), data)


def _config_of(name: str, data: Mapping[str, Any]) -> ModelConfig:
    """Descend to the language model and read what every description has."""
    fields = text_fields(name, data)
    wrapper = fields.outer.get("model_type")
    model_type = "by-hand" if fields.has(LAYERS_KEY) else fields.text("model_type", default=str(wrapper or ""))
    context = fields.integer(*CONTEXT_KEYS, default=CONTEXT_DEFAULT, high=CONTEXT_MAX)
    try:
        text = json.dumps(data, sort_keys=True, default=str)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: fields are no JSON ({error}); expected an object with text keys") from None
    return ModelConfig(name, model_type, context, fields, text)


def layers_of(
    config: Described,
    tp: int = 1,
    tp_rank: int = 0,
    pp: int = 1,
    pp_rank: int = 0,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    *,
    state_dtype: str | None = None,
    cross_tokens: int | None = None,
    convention: Convention = "engine",
    mtp_layers: int = 0,
) -> tuple[Layer, ...]:
    """The caches of one rank, by layer number; a layer with attention beside a state gives two.

    Args: tp, tp_rank, pp, pp_rank: ranks, from 0 (every tensor-parallel rank holds equally much). dtype, kv_dtype,
    state_dtype: names, None for the checkpoint's own. cross_tokens: encoder tokens of one request. convention: whose
    bookkeeping of states is meant. mtp_layers: draft layers of the checkpoint's multi-token prediction that are run;
    each caches what the last attention layer does, on the last pipeline stage.
    Returns: layers in order; empty if this stage caches nothing. Raises: ConfigError.
    """
    model = config if isinstance(config, ModelConfig) else load_config(config)
    _check_rank("tensor", tp, tp_rank)
    _check_rank("pipeline", pp, pp_rank)
    if cross_tokens is not None and (type(cross_tokens) is not int or cross_tokens < 1):
        raise ConfigError(f"{cross_tokens!r} encoder tokens of a request; expected at least 1")
    context = context_of(model.fields, Choices(tp, dtype, kv_dtype, state_dtype, convention, cross_tokens))
    kinds = _all_kinds(model, context)
    first, last = stage_of(len(kinds), pp, pp_rank)
    found = [Layer(index, kind) for index in range(first, last) for kind in kinds[index]]
    if type(mtp_layers) is not int or not 0 <= mtp_layers <= LAYERS_MAX:
        raise ConfigError(f"multi-token-prediction layers are {mtp_layers!r}; expected an integer from 0 to {LAYERS_MAX}")
    if mtp_layers and pp_rank == pp - 1:
        attention = [kind for layer in kinds for kind in layer if not isinstance(kind, RecurrentState)]
        if not attention:
            raise ConfigError(f"{model.name}: draft layers wanted, but the model has no attention layer to copy")
        found += [Layer(len(kinds) + number, attention[-1]) for number in range(mtp_layers)]
    return tuple(found)


def _all_kinds(model: ModelConfig, context: Context) -> list[tuple[LayerKind, ...]]:
    """What every layer of the whole model caches on one tensor-parallel rank."""
    if model.fields.has(LAYERS_KEY):
        return kinds_by_hand(context)
    wrapper = model.fields.outer.get("model_type")
    return kinds_of(context, family_of(model.fields, wrapper if isinstance(wrapper, str) else None))


def _check_rank(what: str, ranks: int, rank: int) -> None:
    """A rank lies below the number of ranks."""
    if type(ranks) is not int or ranks < 1:
        raise ConfigError(f"{what}-parallel ranks are {ranks!r}; expected an integer >= 1")
    if type(rank) is not int or not 0 <= rank < ranks:
        raise ConfigError(f"{what}-parallel rank is {rank!r}; expected 0 to {ranks - 1}")


def stage_of(layers: int, stages: int, rank: int) -> tuple[int, int]:
    """Layers [first, last) of one pipeline stage: equal shares, what remains to the stages before the last.

    The first stage also has the embedding and the last the head, so the extra layers go to the ones between.
    Raises: ConfigError for more stages than layers.
    """
    if stages > layers:
        raise ConfigError(f"{stages} pipeline stages for {layers} layers; expected at most one per layer")
    share, extra = divmod(layers, stages)
    counts = [share] * stages
    for number in range(extra):
        counts[(stages - 2 - number) % stages] += 1
    return sum(counts[:rank]), sum(counts[: rank + 1])


def bands_of(config: Described, page_slots: int = 16, *, token_major: bool = False,
             draft: Described | None = None, **choices: Any) -> tuple[BandGeometry, ...]:  # fmt: skip
    """Bands of one rank. A draft model's layers join the bands of their retention: they keep the same tokens.

    Args: choices: as for ``layers_of``. A draft model runs whole on the last pipeline stage.
    Raises: ConfigError, LayoutError.
    """
    layers = layers_of(config, **choices)
    if draft is not None and choices.get("pp_rank", 0) == choices.get("pp", 1) - 1:
        offset = 1 + max((layer.index for layer in layers), default=-1)
        kept = {key: value for key, value in choices.items() if key not in ("pp", "pp_rank", "mtp_layers")}
        layers += tuple(Layer(offset + layer.index, layer.kind) for layer in layers_of(draft, **kept))
    return group_bands(layers, page_slots, token_major=token_major)


def specs_of(bands: tuple[BandGeometry, ...], *, tracking: int = 0, draft_slots: int = 0,
             pages_max: Mapping[str, int] | None = None) -> tuple[BandSpec, ...]:  # fmt: skip
    """What the core needs of each band. A request holds 1 + tracking + draft_slots states. Raises: ConfigError."""
    for name, count in (("tracking", tracking), ("draft", draft_slots)):
        if type(count) is not int or count < 0:
            raise ConfigError(f"{name} slots of a request are {count!r}; expected an integer >= 0")
    caps = dict(pages_max or {})
    specs = []
    for band in bands:
        spec = BandSpec.of(band, state_slots=1 + tracking + draft_slots)
        specs.append(_capped(spec, caps.pop(band.name, None)))
    if caps:
        known = ", ".join(band.name for band in bands)
        raise ConfigError(f"page caps for {', '.join(caps)}; expected bands among {known}")
    return tuple(specs)


def _capped(spec: BandSpec, pages_max: int | None) -> BandSpec:
    """The spec with a cap on its pages."""
    return spec if pages_max is None else evolve(spec, pages_max=pages_max)


def layout_for(
    config: Described,
    memory_bytes: int | str,
    page_slots: int = 16,
    *,
    tracking: int = 0,
    draft_slots: int = 0,
    draft: Described | None = None,
    pages_max: Mapping[str, int] | None = None,
    token_major: bool = False,
    **choices: Any,
) -> Layout:
    """The arena of one rank.

    Args: memory_bytes: the profiled budget, or text such as '2GiB'. page_slots: tokens per page. tracking,
    draft_slots: extra states per request. pages_max: caps by band name. choices: as for ``layers_of``.
    Raises: ConfigError for the description or the choices, LayoutError for pages or bytes that cannot be laid out.
    """
    bands = bands_of(config, page_slots, token_major=token_major, draft=draft, **choices)
    if not bands:
        raise ConfigError("no layer of this rank caches anything, so there is nothing to lay out")
    specs = specs_of(bands, tracking=tracking, draft_slots=draft_slots, pages_max=pages_max)
    return build_layout(specs, parse_bytes(memory_bytes))


def layout_for_pages(
    config: Described,
    pages: Mapping[str, int],
    page_slots: int = 16,
    *,
    tracking: int = 0,
    draft_slots: int = 0,
    draft: Described | None = None,
    **choices: Any,
) -> Layout:
    """The smallest arena that holds so many pages of every band at once, and no more of any: token-capped set-ups.

    A byte budget of the same size never gives fewer pages (``layout_for``).
    Args: pages: wanted, by band name, each band named. The rest is as for ``layout_for``.
    Raises: ConfigError for a band that is missing, unknown or given no page; LayoutError.
    """
    bands = bands_of(config, page_slots, draft=draft, **choices)
    for band in bands:
        count = pages.get(band.name)
        if type(count) is not int or count < 1:
            raise ConfigError(f"pages of band {band.name!r} are {count!r}; expected an integer >= 1")
    chain = order_chain(specs_of(bands, tracking=tracking, draft_slots=draft_slots, pages_max=pages))
    return build_layout(chain, smallest_total(chain, [pages[spec.name] for spec in chain]))
