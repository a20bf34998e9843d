"""Request traces: Azure's CSV, Mooncake's JSONL, and a generated mix whose shape shifts. Lengths in, lengths out.

A trace carries no text: what memory needs to know of a request is when it comes, how long its prompt is and how many
tokens it will generate. Arrival times start at zero. This file does not know what a token costs.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from core_pure.errors import ConfigError

AZURE_CODE = "AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake_synthetic_trace.jsonl"
BUNDLED = {"azure-code": AZURE_CODE, "mooncake": MOONCAKE}
SHIFTING_MIX = "mix"

AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
TOKENS_LIMIT = 2**31 - 1  # a sequence position must fit int32 page tables
MOMENT_LIMIT = 2**53  # milliseconds: up to here a float tells two of them apart
SEED_LIMIT = 2**63

# The shifting mix, fixed before any comparison was run (docs/DECISIONS.md).
MIX_PROMPTS, MIX_PROMPT_TOKENS, MIX_PROMPT_OUTPUT = 200, (16_384, 32_768), 256
MIX_CHATS, MIX_CHAT_TOKENS = 2_000, (128, 512)
MIX_CHATS_PER_PROMPT = 10  # third part: as many of each again, one prompt and then ten chats, in turn
MIX_ARRIVAL_SECONDS = {"prompt": 1.0, "chat": 0.05}


@frozen(eq=False)
class Trace:
    """Requests in order of arrival.

    arrivals: float64[n] seconds from the first, rising. inputs, outputs: int64[n] tokens, each at least 1.
    Precondition of the loop: a request's first output token comes out of its prompt's forward pass.
    """

    name: str
    arrivals: NDArray[np.float64]
    inputs: NDArray[np.int64]
    outputs: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.inputs)

    def head(self, requests: int | None) -> Trace:
        """The first ``requests`` of this trace; all of them for None."""
        if requests is None or requests >= len(self):
            return self
        return Trace(self.name, self.arrivals[:requests], self.inputs[:requests], self.outputs[:requests])


def load_trace(source: str, *, requests: int | None = None, scale: float = 1.0, seed: int = 0) -> Trace:
    """A trace by bundled name (azure-code, mooncake), by file (.csv Azure, .jsonl Mooncake), or ``mix``, generated.

    Args: requests: how many from the start, None for all. scale: factor on every length (small arenas), rounded up.
    seed: of the generated mix. Raises: ConfigError, one line with file, row number and what is wrong.
    """
    if requests is not None and requests < 1:
        raise ConfigError(f"requests: {requests} asked for; at least 1 is needed")
    if not 0 <= seed < SEED_LIMIT:
        raise ConfigError(f"seed: {seed} is none; give 0 to {SEED_LIMIT - 1}")
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"scale: {scale} is no factor for lengths; give a number above 0")
    if source == SHIFTING_MIX:
        return shifting_mix(seed, scale=scale).head(requests)
    text, path = _read(source)
    parse = _mooncake_rows if path.endswith(".jsonl") else _azure_rows
    trace = _trace(path, parse(path, text))
    return _scaled(trace, scale).head(requests)


def shifting_mix(seed: int = 0, *, scale: float = 1.0) -> Trace:
    """Long prompts, then many short chats, then both in turn: what no fixed split between KV and state suits.

    Args: scale: factor on every length. Returns: 200 prompts, 2,000 chats, then as many of each in turn.
    """
    rng = np.random.default_rng(seed)
    kinds = ["prompt"] * MIX_PROMPTS + ["chat"] * MIX_CHATS
    kinds += (["prompt"] + ["chat"] * MIX_CHATS_PER_PROMPT) * MIX_PROMPTS
    is_prompt = np.array([kind == "prompt" for kind in kinds])
    count = len(kinds)
    # Both draws for every request, so that a request's lengths do not depend on what came before it.
    prompt_in = rng.integers(MIX_PROMPT_TOKENS[0], MIX_PROMPT_TOKENS[1], count, endpoint=True)
    chat_in = rng.integers(MIX_CHAT_TOKENS[0], MIX_CHAT_TOKENS[1], count, endpoint=True)
    chat_out = rng.integers(MIX_CHAT_TOKENS[0], MIX_CHAT_TOKENS[1], count, endpoint=True)
    pause = np.where(is_prompt, MIX_ARRIVAL_SECONDS["prompt"], MIX_ARRIVAL_SECONDS["chat"])
    arrivals = np.cumsum(pause) - pause[0]
    trace = Trace(
        SHIFTING_MIX,
        arrivals,
        np.where(is_prompt, prompt_in, chat_in).astype(np.int64),
        np.where(is_prompt, MIX_PROMPT_OUTPUT, chat_out).astype(np.int64),
    )
    return _scaled(trace, scale)


def _scaled(trace: Trace, scale: float) -> Trace:
    if scale == 1.0:
        return trace
    longest = int(max(trace.inputs.max(), trace.outputs.max()))
    if longest * scale > TOKENS_LIMIT:
        raise ConfigError(f"scale: {scale} makes a request of {longest * scale:.0f} tokens; at most {TOKENS_LIMIT}")
    shrink = [np.ceil(lengths * scale).astype(np.int64) for lengths in (trace.inputs, trace.outputs)]
    return Trace(f"{trace.name} x {scale:g}", trace.arrivals, shrink[0], shrink[1])


def _read(source: str) -> tuple[str, str]:
    """The text of a bundled or given trace, and the name to show in messages."""
    if source in BUNDLED:
        return (resources.files("models") / "data" / "traces" / BUNDLED[source]).read_text("utf-8"), BUNDLED[source]
    path = Path(source)
    if path.suffix not in (".csv", ".jsonl"):
        known = ", ".join([*BUNDLED, SHIFTING_MIX])
        raise ConfigError(f"trace {source}: neither bundled ({known}) nor a .csv (Azure) or .jsonl (Mooncake) file")
    try:
        return path.read_text("utf-8"), source
    except OSError as error:
        raise ConfigError(f"trace {source}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"trace {source}: no UTF-8 text (byte {error.start})") from error


Row = tuple[int, float, int, int]
"""Row number in the file, arrival in seconds, input tokens, output tokens."""


def _azure_rows(path: str, text: str) -> Iterator[Row]:
    rows = _numbered(path, csv.reader(text.splitlines()))
    _, header = next(rows, (1, []))
    if [name.strip() for name in header] != AZURE_HEADER:
        raise ConfigError(f"{path}, row 1: header is {','.join(header)!r}; expected {','.join(AZURE_HEADER)}")
    for number, row in rows:
        if not row:
            continue
        if len(row) != len(AZURE_HEADER):
            raise ConfigError(f"{path}, row {number}: {len(row)} fields; expected {len(AZURE_HEADER)}")
        try:
            # fromisoformat reads at most six digits of a fraction; the file has seven.
            moment = datetime.fromisoformat(row[0][:26]).replace(tzinfo=UTC).timestamp()
        except ValueError as error:
            raise ConfigError(f"{path}, row {number}: TIMESTAMP is {row[0]!r}; expected Y-M-D HH:MM:SS.f") from error
        lengths = [_tokens(path, number, AZURE_HEADER[k], row[k]) for k in (1, 2)]
        yield number, moment, lengths[0], lengths[1]


def _numbered(path: str, reader: Iterable[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Rows with their numbers, from 1. Raises: ConfigError for a row that is no CSV."""
    number = 0
    try:
        for number, row in enumerate(reader, 1):
            yield number, row
    except csv.Error as error:
        raise ConfigError(f"{path}, row {number + 1}: no CSV ({error})") from error


def _mooncake_rows(path: str, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, row {number}: no JSON ({error})") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, row {number}: expected a JSON object")
        for name in ("timestamp", "input_length", "output_length"):
            if name not in row:
                raise ConfigError(f"{path}, row {number}: no field {name}")
        moment = row["timestamp"]
        if isinstance(moment, bool) or not isinstance(moment, (int, float)) or not abs(moment) <= MOMENT_LIMIT:
            raise ConfigError(f"{path}, row {number}: timestamp is {moment!r}; expected milliseconds")
        lengths = [_tokens(path, number, name, row[name]) for name in ("input_length", "output_length")]
        yield number, moment / 1000.0, lengths[0], lengths[1]


def _tokens(path: str, number: int, name: str, value: object) -> int:
    """A token count out of a CSV field or a JSON value: a whole number, at least 1."""
    try:
        if isinstance(value, (bool, float)) or not isinstance(value, (int, str)):
            raise ValueError
        tokens = int(value)
    except ValueError:
        tokens = 0
    if not 1 <= tokens <= TOKENS_LIMIT:
        raise ConfigError(f"{path}, row {number}: {name} is {value!r}; expected a whole number of tokens, at least 1")
    return tokens


def _trace(path: str, rows: Iterable[Row]) -> Trace:
    table: Sequence[Row] = list(rows)
    if not table:
        raise ConfigError(f"{path}: no requests in it")
    for before, after in itertools.pairwise(table):
        if after[1] < before[1]:
            raise ConfigError(f"{path}, row {after[0]}: arrives before the row above it; a trace is ordered by time")
    arrivals = np.array([row[1] for row in table], np.float64)
    inputs, outputs = (np.array([row[k] for row in table], np.int64) for k in (2, 3))
    return Trace(Path(path).stem, arrivals - arrivals[0], inputs, outputs)
