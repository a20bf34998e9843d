"""``kvarena serve-demo`` from end to end: what it prints, what it returns, and what it refuses."""

import json

import pytest
import typer

import kvarena
from core_pure.errors import ConfigError, LayoutError
from tests.cache_tools import build_model, torch
from tests.test_serve import HYBRID

# isort: split
from shell_gpu import serve, serve_demo


def demo(capsys, **options):
    """Exit code and standard output of one call."""
    arguments = {"model": None, "requests": 6, "memory": None, "device": "cpu", "page_slots": 16, "seed": 0, **options}
    with pytest.raises(typer.Exit) as ended:
        kvarena.serve_demo(**arguments)
    return ended.value.exit_code, capsys.readouterr().out


def test_the_demonstration_compares_every_token(capsys):
    """With no arguments: random weights are announced, tokens equal one-at-a-time, the report adds up, exit code 0."""
    code, text = demo(capsys)
    assert code == 0
    assert "random weights (no checkpoint was given)" in text
    assert "tokens equal to one-at-a-time generation with the stock cache" in text
    assert "violations: 0; bytes still held at the end: 0" in text
    assert "static split" in text and "total" in text


def test_a_checkpoint_is_said_to_be_one(capsys, tmp_path):
    """A checkpoint folder is served with its own weights."""
    build_model("lfm2", **HYBRID).save_pretrained(tmp_path)
    code, text = demo(capsys, model=tmp_path, requests=3)
    assert code == 0 and "the checkpoint's weights" in text


def test_little_memory_refuses_long_requests_with_numbers_and_serves_the_rest(capsys):
    """An arena at the size of a few requests: the others wait, nothing differs."""
    code, text = demo(capsys, memory="400KiB", requests=5)
    assert code == 0 and "tokens equal to" in text


def test_a_wrong_token_is_told(capsys, monkeypatch):
    """When the served tokens differ from one-at-a-time generation, the exit code is 1 and the count is printed."""
    right = serve.generate_alone
    monkeypatch.setattr(serve_demo, "generate_alone", lambda *given: [token + 1 for token in right(*given)])
    code, text = demo(capsys, requests=2)
    assert code == 1 and "4 answers differ from one-at-a-time" in text


def test_bad_input_is_one_line(tmp_path):
    """No requests, too little memory, a model that cannot be served, a missing file: typed errors of one line."""
    given = {"model": None, "requests": 4, "memory": None, "device": "cpu", "page_slots": 16, "seed": 0}
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"}')
    (broken / "model.safetensors").write_text("no tensors")
    minimax = tmp_path / "config.json"
    minimax.write_text(json.dumps(build_model("minimax").config.to_dict()))
    for change, error, text in (
        ({"requests": 0}, ConfigError, "0 requests; give 1 to"),
        ({"seed": -1}, ConfigError, "seed -1"),
        ({"memory": "64KiB"}, LayoutError, "bytes"),
        ({"model": tmp_path / "nowhere"}, ConfigError, "cannot be read"),
        ({"model": broken}, ConfigError, "cannot load this checkpoint"),
        ({"device": "tpu"}, kvarena.ArenaError, "tpu"),
        ({"device": "meta"}, kvarena.ArenaError, "not supported"),
        ({"model": minimax}, kvarena.ArenaError, "layer 0"),
    ):
        with pytest.raises(error, match=text) as caught:
            kvarena.serve_demo(**{**given, **change})
        assert "\n" not in str(caught.value)


def test_threads_are_given_back():
    """The demonstration computes on one thread and restores the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with serve_demo.one_thread("cpu"):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
