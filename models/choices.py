"""What a deployment chooses beside the checkpoint: ranks, dtypes, and whose bookkeeping of states is meant."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import evolve, frozen

from core_pure.errors import ConfigError
from core_pure.geometry import ITEMSIZE
from models.config_fields import Fields

# Engines keep the kernel − 1 inputs that a causal convolution still needs; transformers keeps all kernel columns, and
# its sparse-attention index keys in the model's dtype instead of quantised ones. Everything else is equal.
Convention: TypeAlias = Literal["engine", "transformers"]

DTYPE_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
DEFAULT_DTYPE = "bfloat16"


def dtype_named(text: str, where: str) -> str:
    """Canonical (torch) name of a dtype. Raises ConfigError for one without whole bytes."""
    name = text.removeprefix("torch.")
    name = DTYPE_NAMES.get(name, name)
    if name not in ITEMSIZE:
        known = ", ".join((*ITEMSIZE, *DTYPE_NAMES))
        raise ConfigError(f"{where} is {text!r}; expected one of {known}")
    return name


@frozen
class Choices:
    """Deployment choices. ``None`` or 'auto' leaves a dtype to the checkpoint and its family.

    tp: tensor-parallel ranks. cross_tokens: encoder tokens per request, where the checkpoint does not fix them.
    """

    tp: int = 1
    dtype: str | None = None
    kv_dtype: str | None = None
    state_dtype: str | None = None
    convention: Convention = "engine"
    cross_tokens: int | None = None


@frozen
class Context:
    """One model under one set of choices: what layer builders read."""

    fields: Fields
    choices: Choices
    dtype: str
    kv_storage: str | None

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.choices.tp

    def at(self, layer: int) -> "Context":
        """The context of one layer: fields that ``per_layer_config`` overrides for it, by its number as text."""
        overrides = self.fields.data.get("per_layer_config")
        if overrides is None:
            return self
        if not isinstance(overrides, Mapping):
            raise self.fields.error("per_layer_config", overrides, "an object from layer numbers to fields")
        merged = dict(self.fields.data)
        for number, values in overrides.items():
            if not str(number).isdigit() or not isinstance(values, Mapping):
                raise self.fields.error("per_layer_config", {number: values}, "a layer number and an object of fields")
            if int(number) == layer:
                merged.update(values)
        return evolve(self, fields=evolve(self.fields, data=merged))

    def split(self, key: str, count: int) -> int:
        """A dimension that is sharded: ``count`` over the ranks. Raises ConfigError if it does not divide."""
        if count % self.tp:
            raise self.fields.error(key, count, f"a multiple of the {self.tp} tensor-parallel ranks")
        return count // self.tp

    def split_or_copy(self, key: str, count: int) -> int:
        """A dimension that is sharded, and replicated once there are more ranks than items (kv heads, groups)."""
        if count % self.tp == 0:
            return count // self.tp
        if self.tp % count == 0:
            return 1
        raise self.fields.error(key, count, f"a divisor or a multiple of the {self.tp} tensor-parallel ranks")

    def state_dtype(self, family_default: str | None) -> str:
        """Dtype of temporal states: the choice, else the checkpoint's field, else the family's, else the model's."""
        if self.choices.state_dtype not in (None, "auto"):
            return dtype_named(str(self.choices.state_dtype), "state dtype")
        key = self.fields.first("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
        if key is not None and self.fields.text(key) != "auto":
            return dtype_named(self.fields.text(key), f"{self.fields.name}: field {key!r}")
        return family_default or self.dtype

    def conv_columns(self, kernel: int) -> int:
        """Columns that a causal convolution of this kernel keeps between steps."""
        return kernel if self.choices.convention == "transformers" else kernel - 1


def context_of(fields: Fields, choices: Choices) -> Context:
    """Settle the dtypes of one model. Raises ConfigError for an unknown dtype or fewer than one rank."""
    if type(choices.tp) is not int or choices.tp < 1:
        raise ConfigError(f"tensor-parallel ranks are {choices.tp!r}; expected an integer >= 1")
    if choices.dtype not in (None, "auto"):
        dtype = dtype_named(str(choices.dtype), "dtype")
    else:
        dtype = _stated_dtype(fields)
    storage = None
    if choices.kv_dtype not in (None, "auto"):
        storage = dtype_named(str(choices.kv_dtype), "KV dtype")
    return Context(fields, choices, dtype, None if storage == dtype else storage)


def _stated_dtype(fields: Fields) -> str:
    """The checkpoint's own dtype, of the language model or its wrapper; bf16 where none is stated."""
    for data in (fields.data, fields.outer):
        for key in ("dtype", "torch_dtype"):
            value = data.get(key)
            if value is None or value == "auto":
                continue
            if not isinstance(value, str):
                raise fields.error(key, value, "the name of a dtype")
            return dtype_named(value, f"{fields.name}: field {key!r}")
    return DEFAULT_DTYPE
