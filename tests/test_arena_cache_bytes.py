"""The bytes under a cache: new pages and states are clean, fp8 is fp8, and long prompts are taken whole or not at all."""

import numpy as np
import pytest

from core_pure.fits import Refusal
from tests.cache_tools import bands_for, build_arena, build_model, forward, prompt_of, torch

# isort: split
from transformers import DynamicCache

from shell_gpu.arena_cache import ArenaCache

NONE = np.array([], np.int64)
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")


def test_a_prompt_longer_than_a_step_is_taken_in_steps_or_not_at_all():
    """A forward of more tokens than the arena's chunk equals the stock cache; one that is refused half-way gives all back."""
    for model_type in ("gemma3_text", "falcon_h1"):
        model = build_model(model_type)
        arena = build_arena(model, requests=2, chunk=16, sequences=99)
        cache, stock = ArenaCache(arena, model.config), DynamicCache(config=model.config)
        for ids in (prompt_of(20), prompt_of(41, seed=2), prompt_of(1)):
            assert torch.equal(forward(model, ids, cache), forward(model, ids, stock))
        others = []
        while not isinstance(arena.step(handle := arena.open(1), np.array([16])), Refusal):
            others.append(int(handle[0]))
        for other in others:
            for _ in range(20):
                arena.step(np.array([other]), np.array([4]))
        before = [pages.tolist() for pages in arena.pages(int(cache.handles[0]))]
        assert isinstance(cache.extend(30), Refusal)
        assert cache.lease.tokens == 62
        assert [pages.tolist() for pages in arena.pages(int(cache.handles[0]))][1] == before[1]
        arena.step(NONE, NONE, finished=np.array(others))
        assert torch.equal(forward(model, prompt_of(1), cache), forward(model, prompt_of(1), stock))


def test_F14_unwritten_slots_of_a_new_page_read_finite():
    """A page handed out after its bytes were another band's poison reads zero in every slot that nobody has written."""
    model = build_model("qwen3_next")
    arena = build_arena(model)
    arena.buffer[arena.layout.sink_bytes :] = 0xFF  # NaN in every float dtype, wherever a page may come to lie
    cache = ArenaCache(arena, model.config)
    forward(model, prompt_of(1), cache)
    for band, spec in enumerate(arena.layout.bands):
        frames = arena.state.frames_of(arena.pages(int(cache.handles[0]))[band])
        assert len(frames)
        for view in arena.views[spec.name].values():
            assert torch.isfinite(view[frames.tolist()].float()).all()
            if spec.grows:
                assert not view[frames.tolist()][:, 1:].any()


def test_F15_fp8_keys_come_back_as_logical_numbers():
    """With fp8 storage 1.5 reads back as 1.5, and the byte stored is fp8's 1.5."""
    model = build_model("llama")
    assert {view.storage_dtype for band in bands_for(model, kv_dtype="fp8") for view in band.geometry.views()} == {"float8_e4m3fn"}
    arena = build_arena(model, kv_dtype="fp8")
    cache = ArenaCache(arena, model.config)
    keys = torch.full((1, 2, 3, 16), 1.5)
    got, _ = cache.update(keys, keys, 0)
    assert got.dtype == torch.float32 and torch.equal(got, keys)
    frame = int(arena.state.frames_of(arena.pages(int(cache.handles[0]))[0])[0])
    offset = arena.layout.bands[0].geometry.views()[0].offset
    assert int(arena.buffer[frame * arena.layout.bands[0].frame_bytes + offset]) == 0x3C


def test_F36_a_state_handed_to_another_owner_is_reset():
    """The frame of an ended request's state is all zero when the next request gets it, and its logits are a fresh cache's."""
    model = build_model("lfm2")
    arena = build_arena(model, poison=False)
    fresh = forward(model, prompt_of(6, seed=2), ArenaCache(arena, model.config))
    arena.clear()
    band = arena.names.index("state")
    with ArenaCache(arena, model.config) as first:
        forward(model, prompt_of(9), first)
        frame = int(arena.state.frames_of(arena.pages(int(first.handles[0]))[band])[0])
        assert first.layers[0].conv_states[0].any()
    second = ArenaCache(arena, model.config)
    assert second.extend(1) is None
    assert int(arena.state.frames_of(arena.pages(int(second.handles[0]))[band])[0]) == frame
    size = arena.layout.bands[band].frame_bytes
    assert not arena.buffer[frame * size : (frame + 1) * size].any()
    assert torch.equal(forward(model, prompt_of(6, seed=2), second), fresh)
