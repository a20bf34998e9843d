"""transformers models on a GPU, served from the arena: the stock cache's bits while frames move, and the demonstration."""

import pytest
import typer

import kvarena
from tests.test_arena_cache import side_by_side

MODELS = ("falcon_h1", "qwen3_next", "gemma3_text", "deepseek_v3", "lfm2", "gpt_oss")


@pytest.mark.parametrize("model_type", MODELS)
def test_logits_are_bit_equal_on_a_gpu(model_type):
    """Chunked prefill and 24 decode steps give the stock cache's bits on the GPU, while frames move and free bytes are NaN."""
    arena, _, ballast = side_by_side(model_type, 24, device="cuda")
    assert ballast.moved and arena.device.type == "cuda"


def test_the_demonstration_runs_on_a_gpu(capsys):
    """serve-demo on a GPU: tokens equal one-at-a-time generation, no violation, nothing held at the end."""
    with pytest.raises(typer.Exit) as ended:
        kvarena.serve_demo(model=None, requests=8, memory=None, device="cuda", page_slots=16, seed=0)
    assert ended.value.exit_code == 0
    assert "tokens equal to one-at-a-time" in capsys.readouterr().out
