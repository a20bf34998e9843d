"""Reading one model description: typed access to fields, every failure one line that names field, value and wish.

It knows nothing about architectures; ``families`` does.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from core_pure.errors import ConfigError

SIZE_MAX = 2**32  # no published dimension comes near; a larger one is a slip of the pen
LAYERS_MAX = 10_000
CONTEXT_MAX = 2**40
# Where wrappers of several modalities keep the language model, in the order in which they are tried.
TEXT_KEYS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config", "decoder")

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[_letter + "ib"] = _UNITS[_letter + "i"] = 1024**_power
    _UNITS[_letter + "b"] = _UNITS[_letter] = 1000**_power


def parse_bytes(text: str | int) -> int:
    """Bytes of a size such as 2147483648, '2GiB', '1.5 GB' (GiB = 2**30, GB = 10**9).

    Raises: ConfigError for anything else, and for sizes below one byte.
    """
    wish = "a size such as 80GiB, 512MiB or 1000000"
    if isinstance(text, int) and not isinstance(text, bool):
        count = text
    else:
        match = re.fullmatch(r"\s*(\d{1,30})(?:\.(\d{1,30}))?\s*([A-Za-z]*)\s*", str(text))
        unit = _UNITS.get(match.group(3).lower()) if match else None
        if match is None or unit is None:
            raise ConfigError(f"memory {text!r} is not understood; expected {wish}")
        fraction = match.group(2) or ""
        count = int(match.group(1) + fraction) * unit // 10 ** len(fraction)
    if count < 1:
        raise ConfigError(f"memory {text!r} is {count} bytes; expected {wish}")
    return count


@frozen
class Fields:
    """The fields of one language model inside a config, with the name to blame in errors.

    ``outer`` holds the wrapper's fields (empty if there is no wrapper): a dtype is often stated only there.
    """

    name: str
    data: Mapping[str, Any]
    outer: Mapping[str, Any]

    def error(self, key: str, value: object, wish: str) -> ConfigError:
        """The one form of every complaint."""
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "…"
        return ConfigError(f"{self.name}: field {key!r} is {shown}; expected {wish}")

    def has(self, *keys: str) -> bool:
        """Whether any of the keys is present and not null."""
        return any(self.data.get(key) is not None for key in keys)

    def first(self, *keys: str) -> str | None:
        """The first of the keys that is present and not null."""
        return next((key for key in keys if self.data.get(key) is not None), None)

    def integer(self, *keys: str, default: int | None = None, low: int = 1, high: int = SIZE_MAX) -> int:
        """The integer under the first present key, or the default. Strings, floats and booleans are refused."""
        key = self.first(*keys)
        wish = f"an integer from {low} to {high}"
        if key is None:
            if default is None:
                raise ConfigError(f"{self.name}: field {keys[0]!r} is missing; expected {wish}")
            return default
        value = self.data[key]
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, value, wish)
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        """The string under the first present key, or the default."""
        key = self.first(*keys)
        if key is None:
            if default is None:
                raise ConfigError(f"{self.name}: field {keys[0]!r} is missing; expected text")
            return default
        value = self.data[key]
        if not isinstance(value, str):
            raise self.error(key, value, "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean field; null counts as absent."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def sequence(self, key: str) -> Sequence[Any]:
        """A list field."""
        value = self.data.get(key)
        if not isinstance(value, list | tuple):
            raise self.error(key, value, "a list")
        if len(value) > LAYERS_MAX:
            raise self.error(key, value, f"a list of at most {LAYERS_MAX} entries")
        return value

    def indices(self, key: str, layers: int, *, base: int = 0) -> frozenset[int]:
        """A list of layer numbers counted from ``base``, returned counted from 0."""
        found: set[int] = set()
        for value in self.sequence(key):
            if type(value) is not int or not base <= value < layers + base:
                raise self.error(key, value, f"layer numbers from {base} to {layers + base - 1}")
            found.add(value - base)
        return frozenset(found)

    def child(self, key: str) -> "Fields":
        """A nested object as fields of their own."""
        value = self.data.get(key)
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object of fields")
        return Fields(f"{self.name}.{key}", value, {})


def text_fields(name: str, config: Mapping[str, Any]) -> Fields:
    """Descend from a wrapper of several modalities to the language model.

    Raises: ConfigError if the nesting is no object or too deep.
    """
    outer: dict[str, Any] = {}
    data = config
    for _ in range(len(TEXT_KEYS)):
        key = next(_text_keys(data), None)
        if key is None:
            return Fields(name, data, outer)
        inner = data[key]
        if not isinstance(inner, Mapping):
            raise Fields(name, data, outer).error(key, inner, "an object of fields")
        outer = {**outer, **{k: v for k, v in data.items() if k != key}}
        data = inner
    raise ConfigError(f"{name}: language models nested more than {len(TEXT_KEYS)} deep; expected one 'text_config'")


def _text_keys(data: Mapping[str, Any]) -> Iterator[str]:
    """Keys that lead to a language model; an object that already states its layers is one itself."""
    if any(data.get(key) is not None for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers")):
        return
    yield from (key for key in TEXT_KEYS if data.get(key) is not None)
