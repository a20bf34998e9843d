"""A transformers model behind the serving loop: loading it, the runner that the loop drives, and what it must equal.

The loop decides who computes what and owns memory; the runner owns tokens. It computes one sequence at a time, so that
every token can be compared with one-at-a-time generation. Nothing here knows the loop's code or the kind of pool: the
loop's batch is described below by what is read of it, and a cache comes from a function of the lease handle.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from core_pure.errors import ConfigError
from core_pure.geometry import Layer, group_bands
from core_pure.layout import BandSpec

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
CacheOf = Callable[[int], Any]
"""From a lease handle to an empty cache bound to it."""

STATE_DTYPES = {"minimax": None}
"""Families whose temporal states take the model's dtype; the others keep float32 in transformers."""
MEMORY_SHARE = 0.5
"""Of the memory that is there, how much random weights may take."""


class StepBatch(Protocol):
    """What is read of a step: arrays of one length (see the loop's Batch)."""

    @property
    def requests(self) -> Ints:
        """Request numbers."""
        ...

    @property
    def handles(self) -> Ints:
        """Their leases."""
        ...

    @property
    def starts(self) -> Ints:
        """Positions of their first tokens of this step."""
        ...

    @property
    def counts(self) -> Ints:
        """Their tokens of this step."""
        ...

    @property
    def complete(self) -> Mask:
        """Whether a token comes out."""
        ...


class TransformersRunner:
    """Drives a causal language model for the loop, greedily.

    Args: model: in eval mode. prompts: token ids per request number. cache_of: an empty cache for a lease handle.
    end_token: ends a request early. clock: seconds, for the loop's time; None leaves time to the loop's cost model.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        cache_of: CacheOf,
        *,
        end_token: int | None = None,
        clock: Callable[[], float] | None = time.perf_counter,
    ) -> None:
        from .arena_cache import cache_argument

        self.model = model
        self.prompts = [list(prompt) for prompt in prompts]
        self.answers: list[list[int]] = [[] for _ in prompts]
        self.end_token = end_token
        self.computed_tokens = 0
        self._cache_of = cache_of
        self._argument = cache_argument(model)
        self._clock = clock
        self._caches: dict[int, Any] = {}
        self._given_up: list[int] = []

    def cancel(self, request: int) -> None:
        """Give a request up; the loop releases its pages before its next step."""
        self._given_up.append(request)

    def cancelled(self) -> Sequence[int]:
        """Requests given up since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def forward(self, batch: StepBatch) -> tuple[Mask, float | None]:
        """Compute the batch, append one token to each complete request. Returns: who ended by the end token; seconds."""
        begin = self._clock() if self._clock else None
        ended = np.zeros(len(batch.requests), bool)
        rows = zip(batch.requests.tolist(), batch.handles.tolist(), batch.starts.tolist(), batch.counts.tolist(), strict=True)
        for row, (request, handle, start, count) in enumerate(rows):
            if request not in self._caches:
                self._caches[request] = self._cache_of(handle)
            known = self.prompts[request] + self.answers[request]
            token = self._next(known[start : start + count], self._caches[request])
            if batch.complete[row]:
                self.answers[request].append(token)
                ended[row] = token == self.end_token
        self.computed_tokens += int(batch.counts.sum())
        return ended, None if begin is None or self._clock is None else self._clock() - begin

    def _next(self, tokens: list[int], cache: Any) -> int:
        """The most likely token after these, which enter the cache."""
        return next_token(self.model, tokens, self._argument, cache)

    def released(self, requests: Ints, status: int) -> None:
        """The loop took back these requests' pages; answers stay, so that a retracted one is recomputed with them."""
        for request in requests.tolist():
            self._caches.pop(request, None)

    @property
    def caches_held(self) -> int:
        """Requests with a cache: all of them are running."""
        return len(self._caches)


def next_token(model: Any, tokens: Sequence[int], argument: str, cache: Any) -> int:
    """The most likely token after ``tokens`` on top of what the cache holds."""
    with torch.inference_mode():
        ids = torch.tensor([list(tokens)], device=model.device)
        logits = model(input_ids=ids, use_cache=True, **{argument: cache}).logits
        return int(logits[0, -1].argmax())


def stock_cache(config: Any) -> Any:
    """An empty stock dynamic cache."""
    from transformers import DynamicCache

    return DynamicCache(config=config)


def generate_alone(model: Any, prompt: Sequence[int], tokens: int, end_token: int | None = None) -> list[int]:
    """One-at-a-time greedy generation with the stock cache: what every served answer must equal."""
    from .arena_cache import cache_argument

    cache, argument = stock_cache(model.config), cache_argument(model)
    answer = [next_token(model, prompt, argument, cache)]
    while len(answer) < tokens and answer[-1] != end_token:
        answer.append(next_token(model, answer[-1:], argument, cache))
    return answer


def check_prompts(prompts: Sequence[Sequence[int]], vocabulary: int, tokens_max: int) -> None:
    """Raise ConfigError for an empty or over-long prompt, naming the largest length that fits, or an id out of range."""
    for number, prompt in enumerate(prompts):
        if not 0 < len(prompt) <= tokens_max:
            what = "an empty prompt" if not len(prompt) else f"a prompt of {len(prompt)} tokens"
            raise ConfigError(f"request {number}: {what}; give 1 to {tokens_max} tokens")
        wrong = [token for token in prompt if not 0 <= token < vocabulary]
        if wrong:
            raise ConfigError(f"request {number}: token {wrong[0]} is outside the vocabulary of {vocabulary}")


# --- models --------------------------------------------------------------------------------------------------------------


def load_model(source: str | Path | Mapping[str, Any], device: str = "cpu", seed: int = 0) -> tuple[Any, bool]:
    """A causal language model in eval mode, and whether its weights are random.

    Args: source: a checkpoint folder; or a config.json, a folder with only that, or its fields: then weights are random.
    Raises: ConfigError when the description cannot be read or built, or random weights would not fit into memory.
    """
    import transformers

    fields: Mapping[str, Any]
    if isinstance(source, Mapping):
        fields = source
    else:
        path = Path(source)
        if path.is_dir() and any(path.glob("*.safetensors")):
            return _load_checkpoint(path).to(device).eval(), False
        fields = _read_config(path / "config.json" if path.is_dir() else path)
    kind = fields.get("model_type")
    if not isinstance(kind, str):
        raise ConfigError("the model's description has no 'model_type'; expected the config.json of a causal language model")
    try:
        config = transformers.AutoConfig.for_model(kind, **{key: value for key, value in fields.items() if key != "model_type"})
        with torch.device("meta"):
            weights = sum(p.numel() * p.element_size() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"transformers {transformers.__version__} cannot build a {kind!r} model: {_told(error)}") from error
    room = _free_bytes(device)
    if weights > room * MEMORY_SHARE:
        raise ConfigError(f"random weights of {weights} bytes for {room} free bytes on {device}; give a smaller configuration")
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(config)
    return model.to(device).eval(), True


def _load_checkpoint(path: Path) -> Any:
    """The model of a checkpoint folder. Raises: ConfigError when transformers cannot load it, whatever it raises for that."""
    import transformers

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    except Exception as error:
        raise ConfigError(f"{path}: transformers {transformers.__version__} cannot load this checkpoint: {_told(error)}") from error


def _told(error: Exception) -> str:
    """The first sentence of what another library says: some go on with a list of everything they know."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a config.json or a checkpoint folder") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return fields


def _free_bytes(device: str) -> int:
    """Free memory of a device, in bytes."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def bands_of_model(model: Any, layers_of: Callable[..., tuple[Layer, ...]], page_slots: int) -> tuple[BandSpec, ...]:
    """What a loaded model caches, as transformers keeps it.

    Args: layers_of: from the configuration's fields and choices to layers. Raises: ConfigError, LayoutError.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    fields = {key: value for key, value in model.config.to_dict().items() if key not in ("dtype", "torch_dtype")}
    state = STATE_DTYPES.get(model.config.model_type, "float32") or dtype
    layers = layers_of(fields, dtype=dtype, state_dtype=state, convention="transformers")
    return tuple(BandSpec.of(band) for band in group_bands(layers, page_slots))
