"""ArenaCache against the stock dynamic cache: the same bits while the memory under it moves."""

import gc

import pytest

from tests.cache_tools import Ballast, build_arena, build_model, forward, prompt_of, skip_unless_latent, torch
from tests.tiny_models import FAMILIES

# isort: split
from transformers import DynamicCache

from shell_gpu.arena_cache import ArenaCache

NAMED = ("falcon_h1", "qwen3_next", "qwen3_5_text", "gemma3_text", "gemma4_text", "gpt_oss", "bamba", "jamba", "nemotron_h",
          "lfm2", "deepseek_v3", "granitemoehybrid")  # fmt: skip
MORE = ("gemma3n_text", "zamba2", "kimi_linear", "llama4_text", "deepseek_v32", "mimo_v2_flash")
FEW = ("falcon_h1", "qwen3_next", "gemma3_text", "deepseek_v3")
REFUSED = ("minimax", "mllama_text_model")
SLOW = ("mamba2",)  # its reference scan pads every prompt to a chunk of 256 tokens
DECODE_STEPS = 64
TENSORS = (torch.Tensor, torch.nn.Parameter)

pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")


def side_by_side(model_type, decode_steps, device="cpu"):
    """Run stock and arena caches in lock-step while ballast comes and goes. Returns: arena, cache, ballast."""
    model = build_model(model_type).to(device)
    skip_unless_latent(model)
    arena = build_arena(model)
    ballast = Ballast(arena, seed=3)
    ballast.settle()
    cache, stock = ArenaCache(arena, model.config), DynamicCache(config=model.config)
    prompt = prompt_of(13)
    chunks = [prompt[:, :7], prompt[:, 7:]]
    ids = chunks[0]
    for step in range(2 + decode_steps):
        wanted = forward(model, ids, stock)
        ballast.make_room(cache, ids.shape[1])
        assert torch.equal(forward(model, ids, cache), wanted), f"step {step} differs"
        assert torch.isfinite(wanted).all()
        ballast.shake([int(cache.handles[0])])
        assert arena.verify() == []
        ids = wanted[:, -1:].argmax(-1) if step else chunks[1]
    return arena, cache, ballast


@pytest.mark.parametrize("model_type", NAMED)
def test_logits_are_bit_equal_to_the_stock_cache_while_frames_move(model_type):
    """Chunked prefill and 64 decode steps give the stock cache's bits; frames of every band moved, free bytes were NaN."""
    arena, cache, ballast = side_by_side(model_type, DECODE_STEPS)
    assert ballast.moved == set(arena.names)
    cache.close()
    ballast.drop()
    assert arena.report().live_bytes == 0


@pytest.mark.parametrize("model_type", MORE)
def test_odd_kinds_are_bit_equal_too(model_type):
    """Layers that share keys, latents beside states, chunks, sparse indexers, unequal K and V: the stock cache's bits."""
    _, _, ballast = side_by_side(model_type, decode_steps=24)
    assert ballast.moved


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - set(NAMED) - set(MORE) - set(REFUSED) - set(SLOW)))
def test_every_other_family_is_bit_equal_too(model_type):
    """Every further architecture that transformers serves with per-layer caches gives the stock cache's bits."""
    arena, cache, ballast = side_by_side(model_type, decode_steps=8)  # too few steps for every band of every one to move
    assert len(arena.pages(int(cache.handles[0]))) == len(arena.names), "it was the arena that held the caches"
    cache.close()
    ballast.drop()
    assert arena.report().live_bytes == 0


@pytest.mark.parametrize("model_type", ["falcon_h1", "gemma3_text", "deepseek_v3"])
def test_bfloat16_models_are_bit_equal(model_type):
    """A model in bfloat16 with float32 states gives the stock cache's bits."""
    model = build_model(model_type, torch.bfloat16)
    cache, stock = ArenaCache(build_arena(model), model.config), DynamicCache(config=model.config)
    ids = prompt_of(11)
    for _ in range(12):
        wanted = forward(model, ids, stock)
        assert torch.equal(forward(model, ids, cache), wanted)
        ids = wanted[:, -1:].argmax(-1)


@pytest.mark.parametrize("model_type", ["falcon_h1", "gemma3_text"])
def test_eight_interleaved_requests_equal_each_run_alone(model_type):
    """Eight caches that share one arena, advanced in turn with compactions between, give what each gives alone."""
    model = build_model(model_type)
    arena = build_arena(model, requests=8)
    prompts = [prompt_of(3 + 2 * number, seed=number) for number in range(8)]
    alone = []
    for prompt in prompts:
        stock, ids, logits = DynamicCache(config=model.config), prompt, []
        for _ in range(10):
            logits.append(forward(model, ids, stock)[:, -1:])
            ids = logits[-1].argmax(-1)
        alone.append(logits)
    ballast = Ballast(arena, seed=5)
    ballast.settle()
    caches = [ArenaCache(arena, model.config) for _ in prompts]
    following = list(prompts)
    for step in range(10):
        for number, cache in enumerate(caches):
            ballast.make_room(cache, following[number].shape[1])
            got = forward(model, following[number], cache)[:, -1:]
            assert torch.equal(got, alone[number][step])
            following[number] = got.argmax(-1)
        watched = [int(cache.handles[0]) for cache in caches]
        (ballast.leave if step == 5 else ballast.shake)(watched)
    assert ballast.moved == set(arena.names)


@pytest.mark.parametrize("model_type", FEW)
def test_overwriting_one_live_byte_changes_the_logits(model_type):
    """The arena's bytes are the cache: changing a single live byte, in any band, changes the next logits."""
    model = build_model(model_type)
    arena = build_arena(model)
    cache = ArenaCache(arena, model.config)
    forward(model, prompt_of(6), cache)
    wanted = forward(model, prompt_of(1), cache.fork())
    for band, spec in enumerate(arena.layout.bands):
        view = spec.geometry.views()[0]
        copy = cache.fork()
        assert copy.extend(1) is None  # no plan comes between the overwriting and the reading
        frame = int(arena.state.frames_of(arena.pages(int(copy.handles[0]))[band])[0])
        # The top byte (sign and exponent) of a float32: of the newest input in a conv window, of the first token's key.
        place = 4 * view.shape[-1] - 1 if spec.retention == "state" else 3
        at = frame * spec.frame_bytes + view.offset + place
        arena.buffer[at] ^= 0x41
        assert not torch.equal(forward(model, prompt_of(1), copy), wanted), f"{spec.name}: the logits did not notice"
        arena.buffer[at] ^= 0x41  # forks share this page
    assert torch.equal(forward(model, prompt_of(1), cache), wanted)


def reachable_storages():
    """Addresses of the storage of every floating-point tensor that lives in this process, with a name for the message."""
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if type(one) in TENSORS and one.is_floating_point() and one.numel():
            found[one.untyped_storage().data_ptr()] = tuple(one.shape)
    return found


@pytest.mark.parametrize("model_type", NAMED)
def test_no_cache_tensor_exists_outside_the_arena(model_type):
    """After prefill and decode steps, the process holds no float tensor that it did not hold before, except the arena's."""
    model = build_model(model_type)
    arena = build_arena(model)
    cache = ArenaCache(arena, model.config)
    throwaway = DynamicCache(config=model.config)
    forward(model, prompt_of(9), throwaway)  # whatever the model itself keeps from its first forward
    before = set(reachable_storages())
    forward(model, prompt_of(9), cache)
    forward(model, prompt_of(1), cache)
    after = reachable_storages()
    home = arena.buffer.untyped_storage().data_ptr()
    assert {address: shape for address, shape in after.items() if address not in before and address != home} == {}
    assert sum(layer.is_initialized for layer in cache.layers if hasattr(layer, "seen")) or arena.names == ("state",)
    stray = DynamicCache(config=model.config)
    forward(model, prompt_of(9), stray)
    assert set(reachable_storages()) - before - {home}, "the search finds a cache that is outside"


@pytest.mark.parametrize("model_type", FEW)
def test_generate_takes_the_cache(model_type):
    """``model.generate(..., past_key_values=cache)`` gives the stock tokens, and again when the conversation goes on."""
    model = build_model(model_type)
    arena = build_arena(model)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    with ArenaCache(arena, model.config) as cache:
        stock = DynamicCache(config=model.config)
        ids = prompt_of(10)
        for _ in range(2):
            wanted = model.generate(ids, past_key_values=stock, **options)
            assert torch.equal(model.generate(ids, past_key_values=cache, **options), wanted)
            assert cache.get_seq_length() == wanted.shape[1] - 1
            ids = torch.cat([wanted, prompt_of(3, seed=9)], dim=1)
    assert arena.report().live_bytes == 0
