"""Traces: what is read, what is generated, and how a broken row is named."""

from pathlib import Path

import numpy as np
import pytest

from core_pure.errors import ConfigError
from models.traces import load_trace, shifting_mix


def test_azure_trace_is_read_whole() -> None:
    """The bundled Azure code trace has its published count, mean and largest total."""
    trace = load_trace("azure-code")
    totals = trace.inputs + trace.outputs
    assert (len(trace), int(totals.max()), round(float(totals.mean()))) == (8_819, 7_841, 2_076)
    assert trace.arrivals[0] == 0 and (np.diff(trace.arrivals) >= 0).all()


def test_mooncake_trace_is_read_whole() -> None:
    """The bundled Mooncake trace has its published number of requests, in seconds from the first."""
    trace = load_trace("mooncake")
    assert len(trace) == 3_993 and trace.inputs[0] == 40_160 and trace.arrivals[2] == 0.04


def test_mix_shifts_between_long_prompts_and_short_chats() -> None:
    """The generated mix is long prompts, then chats, then both in turn, each length within its stated range."""
    mix = shifting_mix(0)
    assert len(mix) == 4_400
    prompts, chats, turns = mix.inputs[:200], mix.inputs[200:2_200], mix.inputs[2_200:].reshape(200, 11)
    for long in (prompts, turns[:, 0]):
        assert 16_384 <= long.min() and long.max() <= 32_768
    for short in (chats, turns[:, 1:], mix.outputs[200:2_200]):
        assert 128 <= short.min() and short.max() <= 512
    assert (mix.outputs[:200] == 256).all()


def test_mix_is_a_function_of_its_seed() -> None:
    """The same seed gives the same mix; another seed another one."""
    assert (shifting_mix(0).inputs == shifting_mix(0).inputs).all()
    assert (shifting_mix(0).inputs != shifting_mix(1).inputs).any()


def test_scale_rounds_lengths_up_and_keeps_arrivals() -> None:
    """A scaled trace has every length times the factor, rounded up, never zero, at the same times."""
    plain, small = load_trace("azure-code", requests=50), load_trace("azure-code", requests=50, scale=1 / 64)
    assert (small.inputs == -(-plain.inputs // 64)).all() and small.outputs.min() >= 1
    assert (small.arrivals == plain.arrivals).all()


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
MOONCAKE = '{"timestamp": 0, "input_length": 10, "output_length": 2}\n'


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.csv", "a,b\n1,2\n", "row 1: header"),
        ("t.csv", AZURE + "2023-11-16 18:17:04,12\n", "row 3: 2 fields"),
        ("t.csv", AZURE + "yesterday,12,3\n", "row 3: TIMESTAMP"),
        ("t.csv", AZURE + "2023-11-16 18:17:04.0,12.5,3\n", "row 3: ContextTokens is '12.5'"),
        ("t.csv", AZURE + "2023-11-16 18:17:04.0,12,0\n", "row 3: GeneratedTokens is '0'"),
        ("t.csv", AZURE + "2023-11-16 18:17:01.0,12,3\n", "row 3: arrives before"),
        ("t.csv", AZURE + f"2023-11-16 18:17:04.0,{'1' * 200_000},3\n", "row 3: no CSV"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("t.jsonl", MOONCAKE + "{", "row 2: no JSON"),
        ("t.jsonl", MOONCAKE + "[1]", "row 2: expected a JSON object"),
        ("t.jsonl", MOONCAKE + '{"timestamp": 1, "input_length": 3}', "row 2: no field output_length"),
        ("t.jsonl", MOONCAKE + '{"timestamp": "x", "input_length": 3, "output_length": 1}', "row 2: timestamp"),
        ("t.jsonl", MOONCAKE + f'{{"timestamp": {10**400}, "input_length": 3, "output_length": 1}}', "row 2: timestamp"),
        ("t.jsonl", MOONCAKE + '{"timestamp": 1, "input_length": true, "output_length": 1}', "row 2: input_length"),
        ("t.jsonl", MOONCAKE + '{"timestamp": 1, "input_length": 3, "output_length": -1}', "output_length is -1"),
    ],
)
def test_a_broken_row_is_named_with_file_row_and_reason(tmp_path: Path, name: str, text: str, says: str) -> None:
    """A broken row is one line that names the file, the row's number and what is wrong."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_trace(str(path))
    message = str(caught.value)
    assert str(path) in message and says in message and "\n" not in message


@pytest.mark.parametrize("source", ["nowhere.csv", "nowhere.parquet", "unknown"])
def test_an_unreadable_trace_is_named(source: str) -> None:
    """A missing file or an unknown kind of file is one line naming it."""
    with pytest.raises(ConfigError, match=source.replace(".", r"\.")):
        load_trace(source)


def test_binary_is_refused_as_text(tmp_path: Path) -> None:
    """A file that is no text is refused with the offending byte."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_trace(str(path))


@pytest.mark.parametrize(("requests", "scale"), [(0, 1.0), (5, 0.0), (5, float("nan")), (5, 1e12)])
def test_nonsense_options_are_refused(requests: int, scale: float) -> None:
    """Zero requests, a factor that is no positive number, or lengths beyond int32 are refused by name."""
    with pytest.raises(ConfigError, match=r"requests|scale"):
        load_trace("azure-code", requests=requests, scale=scale)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    """A seed below zero or beyond 63 bits is refused by name."""
    with pytest.raises(ConfigError, match="seed"):
        load_trace("mix", seed=seed)
