"""What a cache in an arena does beside caching: sliding, cropping, reordering, forking, resetting, ending, refusing."""

import numpy as np
import pytest

from core_pure.errors import ContentsLost, LeaseError, LeaseStale
from core_pure.fits import Refusal
from models.dry import DryArena
from tests.cache_tools import Ballast, build_arena, build_model, forward, prompt_of, skip_unless_latent, torch

# isort: split
from transformers import DynamicCache

from shell_gpu.arena_cache import (
    ArenaCache,
    BatchChanged,
    CacheError,
    CacheFull,
    NotRewindable,
    UnsupportedCache,
    check_support,
    stock_layers,
)
from shell_gpu.errors import TensorError

NONE = np.array([], np.int64)
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")


def run(model, cache, ids, steps):
    """Greedy decode: the logits of every step, [steps, vocabulary], and the last token."""
    logits = []
    for _ in range(steps):
        logits.append(forward(model, ids, cache)[:, -1])
        ids = logits[-1].argmax(-1, keepdim=True)
    return torch.cat(logits), ids


# --- windows -------------------------------------------------------------------------------------------------------------


def test_window_pages_are_released_as_the_window_slides():
    """A sequence of 49 tokens never holds more pages of a window of 8 than the window touches; full attention holds all."""
    model = build_model("gemma3_text")
    arena = build_arena(model)
    cache = ArenaCache(arena, model.config)
    ids = prompt_of(4)
    for tokens in range(4, 50):
        ids = forward(model, ids, cache)[:, -1:].argmax(-1)
        held = {name: len(pages) for name, pages in zip(arena.names, arena.pages(int(cache.handles[0])), strict=True)}
        assert held["full"] == -(-tokens // 4)
        assert held["window-8"] <= 3
    assert cache.get_seq_length() == 49


def test_F26_window_churn_copies_nothing():
    """Windows slide for 10,000 steps at a constant batch, one of four in each phase: zero bytes copied, spans constant."""
    layout = build_arena(build_model("mistral"), requests=8, context=96).layout
    arena = DryArena(layout, sequences=4, context=10_100, chunk=8)
    handles, ones = arena.open(4), np.ones(4, np.int64)
    moved = arena.step(handles, np.array([3, 4, 5, 6])).bytes_moved
    spans = set()
    for step in range(10_000):
        moved += arena.step(handles, ones).bytes_moved
        if step >= 8:
            spans.add(tuple((band.low, band.high, band.live) for band in arena.state.bands))
    assert moved == 0 and len(spans) == 1


# --- crop, reorder, fork, reset ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "deepseek_v32"])
def test_crop_takes_tokens_back(model_type):
    """After crop(-n) a model with full attention goes on as the stock cache does after the same crop."""
    model = build_model(model_type)
    skip_unless_latent(model)
    arena = build_arena(model)
    cache, stock = ArenaCache(arena, model.config), DynamicCache(config=model.config)
    for one in (cache, stock):
        forward(model, prompt_of(14), one)
        one.crop(-5)
        one.crop(0)
    assert cache.get_seq_length() == stock.get_seq_length() == 9
    assert [len(pages) for pages in arena.pages(int(cache.handles[0]))] == [3]
    assert torch.equal(run(model, cache, prompt_of(3), 4)[0], run(model, stock, prompt_of(3), 4)[0])
    cache.crop(-cache.get_seq_length())
    assert arena.report().live_bytes == 0
    assert torch.equal(forward(model, prompt_of(5), cache), forward(model, prompt_of(5), DynamicCache(config=model.config)))


def test_crop_inside_a_window_that_has_not_slid():
    """A window still whole can be cropped, and goes on as the stock cache."""
    model = build_model("gemma3_text")
    cache, stock = ArenaCache(build_arena(model), model.config), DynamicCache(config=model.config)
    for one in (cache, stock):
        forward(model, prompt_of(6), one)
        one.crop(-2)
    assert torch.equal(run(model, cache, prompt_of(2), 6)[0], run(model, stock, prompt_of(2), 6)[0])


def test_crop_that_cannot_be_right_is_refused():
    """A slid window and a state have no past: a typed error, which is also the base class's RuntimeError; nothing changed."""
    model = build_model("gemma3_text")
    cache = ArenaCache(build_arena(model), model.config)
    run(model, cache, prompt_of(25), 6)
    with pytest.raises(NotRewindable, match="window-8"):
        cache.crop(-20)
    with pytest.raises(ValueError, match="negative"):
        cache.crop(3)
    assert cache.get_seq_length() == cache.lease.tokens == 30
    hybrid = build_model("lfm2")
    states = ArenaCache(build_arena(hybrid), hybrid.config)
    forward(hybrid, prompt_of(6), states)
    with pytest.raises(RuntimeError, match="layer 0 keeps a state"):
        states.crop(-1)
    with pytest.raises(NotRewindable):
        states.activate_past_recording()
    assert not states.is_croppable and not states.is_compileable


def test_beam_search_equals_the_stock_cache():
    """Beam search reorders the batch at every step and gives the stock tokens; nothing stays held afterwards."""
    for model_type in ("llama", "gemma3_text"):
        model = build_model(model_type)
        arena = build_arena(model, requests=6)
        options = {"max_new_tokens": 10, "num_beams": 3, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
        wanted = model.generate(prompt_of(9), past_key_values=DynamicCache(config=model.config), **options)
        with ArenaCache(arena, model.config, batch=3) as cache:
            assert torch.equal(model.generate(prompt_of(9), past_key_values=cache, **options), wanted)
        assert arena.report().live_bytes == 0 and arena.leases.shared == 0


def test_batch_select_and_repeat():
    """Selecting and repeating sequences leaves each with its own past; what nobody has any more is given back."""
    model = build_model("llama")
    arena = build_arena(model, requests=6)
    cache, stock = ArenaCache(arena, model.config, batch=2), DynamicCache(config=model.config)
    ids = torch.cat([prompt_of(7, seed=1), prompt_of(7, seed=2)])
    for one in (cache, stock):
        forward(model, ids, one)
        one.batch_repeat_interleave(2)
        one.batch_select_indices(torch.tensor([3, 0, 1]))
        one.reorder_cache(torch.tensor([0, 0, 2]))
    follow = torch.cat([prompt_of(2, seed=number) for number in (3, 4, 5)])
    assert torch.equal(forward(model, follow, cache), forward(model, follow, stock))
    assert cache.batch_size == 3 and arena.leases.open_count == 3
    cache.batch_select_indices(torch.tensor([False, True, False]))
    stock.batch_select_indices(torch.tensor([False, True, False]))
    assert torch.equal(forward(model, prompt_of(1), cache), forward(model, prompt_of(1), stock))
    with pytest.raises(BatchChanged):
        cache.reorder_cache(torch.tensor([0, 0]))
    cache.close()
    assert arena.report().live_bytes == 0


@pytest.mark.parametrize("model_type", ["falcon_h1", "qwen3_next", "gemma3_text"])
def test_forks_go_their_own_ways(model_type):
    """A fork continues like its original until they are fed different tokens; each then equals a cache of its own."""
    model = build_model(model_type)
    arena = build_arena(model)
    with ArenaCache(arena, model.config) as cache:
        forward(model, prompt_of(13), cache)
        with cache.fork() as copy:
            for one, seed in ((cache, 3), (copy, 4)):
                stock = DynamicCache(config=model.config)
                forward(model, prompt_of(13), stock)
                assert torch.equal(run(model, one, prompt_of(2, seed), 5)[0], run(model, stock, prompt_of(2, seed), 5)[0])
                arena.compact()
    assert arena.report().live_bytes == 0


def test_F39_an_optional_checkpoint_is_skipped_when_every_state_is_taken():
    """With no state slot left, a fork is refused as a value; the request that wanted it goes on, bit-equal."""
    model = build_model("lfm2")
    arena = build_arena(model, states_max=3)
    cache, stock = ArenaCache(arena, model.config), DynamicCache(config=model.config)
    forward(model, prompt_of(9), cache)
    forward(model, prompt_of(9), stock)
    checkpoints = [cache.fork(), cache.fork()]
    refused = cache.fork()
    assert isinstance(refused, Refusal) and "state" in str(refused)
    assert arena.leases.open_count == 3
    assert torch.equal(run(model, cache, prompt_of(1), 3)[0], run(model, stock, prompt_of(1), 3)[0])
    for one in checkpoints:
        one.close()
    assert not isinstance(cache.fork(), Refusal)


def test_reset_and_close():
    """A reset cache is as new, its pages are back; a closed one is stale, in any way it is used."""
    model = build_model("falcon_h1")
    arena = build_arena(model)
    cache = ArenaCache(arena, model.config)
    first = run(model, cache, prompt_of(7), 3)[0]
    cache.reset()
    assert arena.report().live_bytes == 0 and cache.get_seq_length() == 0 and not cache.has_previous_state()
    assert torch.equal(run(model, cache, prompt_of(7), 3)[0], first)
    cache.close()
    assert arena.report().live_bytes == 0
    for use in (lambda: forward(model, prompt_of(1), cache), cache.fork, cache.close, lambda: cache.extend(1)):
        with pytest.raises(LeaseStale):
            use()


# --- misuse ------------------------------------------------------------------------------------------------------------


def test_clear_makes_every_cache_stale():
    """After the arena's ``clear`` no cache reads what another sequence may own by now."""
    model = build_model("llama")
    arena = build_arena(model)
    cache = ArenaCache(arena, model.config)
    forward(model, prompt_of(5), cache)
    arena.clear()
    newer = ArenaCache(arena, model.config)
    forward(model, prompt_of(5), newer)
    with pytest.raises(LeaseStale):
        forward(model, prompt_of(1), cache)


def test_sleep_loses_the_contents():
    """A cache written before the arena slept raises ContentsLost, asleep and awake; a new one works."""
    model = build_model("llama")
    arena = build_arena(model)
    cache = ArenaCache(arena, model.config)
    forward(model, prompt_of(5), cache)
    arena.sleep()
    with pytest.raises(ContentsLost):
        forward(model, prompt_of(1), cache)
    arena.wake()
    with pytest.raises(ContentsLost):
        forward(model, prompt_of(1), cache)
    cache.reset()
    assert torch.equal(forward(model, prompt_of(5), cache), forward(model, prompt_of(5), DynamicCache(config=model.config)))


def test_other_batch_dtype_device_or_shape_is_a_typed_error():
    """A changed batch size, dtype, device or head count is named with its layer, before anything is stored."""
    model = build_model("falcon_h1")
    arena = build_arena(model)
    cache = ArenaCache(arena, model.config)
    forward(model, prompt_of(5), cache)
    layer = cache.layers[1]
    heads, _, dim = layer.keys.shape[1:]
    good = torch.zeros(1, heads, 1, dim)
    for keys, values, error, text in (
        (torch.zeros(2, heads, 1, dim), torch.zeros(2, heads, 1, dim), BatchChanged, "layer 1, k: 2 sequences"),
        (good.half(), good.half(), TensorError, "layer 1, k: the model gives torch.float16"),
        (good, good.double(), TensorError, "layer 1, v: the model gives torch.float64"),
        (good.to("meta"), good.to("meta"), TensorError, "layer 1, k: the model runs on meta"),
        (torch.zeros(1, heads + 1, 1, dim), good, TensorError, "layer 1, k: heads and dim"),
    ):
        with pytest.raises(error, match=text):
            layer.update(keys, values)
    conv, state = layer.conv_states[0], layer.recurrent_states[0]
    with pytest.raises(BatchChanged, match="layer 1, conv"):
        layer.update_conv_state(torch.zeros(2, *conv.shape[1:]))
    with pytest.raises(TensorError, match="layer 1, recurrent state"):
        layer.update_recurrent_state(state.bfloat16())
    with pytest.raises(TensorError, match="kernel of 9"):
        layer.update_conv_state(conv.clone(), conv_kernel_size=9)
    with pytest.raises(BatchChanged, match="exactly one where layers keep states"):
        ArenaCache(arena, model.config, batch=2)
    assert cache.get_seq_length() == 5 and cache.lease.tokens == 5


def test_all_layers_or_none():
    """A layer alone is not reset, cropped, reordered or offloaded: pages are shared by all layers."""
    model = build_model("llama")
    layer = ArenaCache(build_arena(model), model.config).layers[0]
    for call in (layer.reset, lambda: layer.crop(-1), lambda: layer.reorder_cache(torch.tensor([0])), layer.offload,
                 lambda: layer.batch_repeat_interleave(2), lambda: layer.batch_select_indices(torch.tensor([0]))):  # fmt: skip
        with pytest.raises(CacheError):
            call()


def test_unsupported_caches_are_refused_at_start():
    """A cross-attention layer, a state kept outside the layers, an unknown layer class, another model's arena: each named."""
    for model_type, text in (("mllama_text_model", "layer 1 is cross-attention"), ("minimax", r"layer 0 \(LinearAttentionLayer\)")):
        model = build_model(model_type)
        with pytest.raises(UnsupportedCache, match=text):
            ArenaCache(build_arena(model), model.config)
    llama, gemma = build_model("llama"), build_model("gemma3_text")
    with pytest.raises(UnsupportedCache, match=r"layer 0 \(DynamicSlidingWindowLayer\)"):
        ArenaCache(build_arena(llama), gemma.config)
    with pytest.raises(UnsupportedCache, match="the arena keeps layer"):
        ArenaCache(build_arena(gemma), llama.config)
    shorter = build_model("gemma3_text", sliding_window=5)
    with pytest.raises(UnsupportedCache, match=r"layer 0 .*a window of 5 tokens; the arena keeps"):
        ArenaCache(build_arena(gemma), shorter.config)

    class CompressedLayer:
        """A kind of cache that the future may bring."""

    stock = stock_layers(llama.config)
    stock[2] = CompressedLayer()
    with pytest.raises(UnsupportedCache, match=r"layer 2 \(CompressedLayer\): this kind of cache is not supported"):
        check_support(build_arena(llama), stock)


def test_a_full_arena_refuses_and_changes_nothing():
    """Tokens that do not fit raise CacheFull with the numbers, the lease as before; with room again the model goes on."""
    model = build_model("llama")
    arena = build_arena(model, requests=1, context=64, sequences=64)
    ballast = Ballast(arena, seed=1, most=9)
    cache, stock = ArenaCache(arena, model.config), DynamicCache(config=model.config)
    forward(model, prompt_of(8), cache)
    forward(model, prompt_of(8), stock)
    while not isinstance(arena.step(handle := arena.open(1), np.array([4])), Refusal):
        ballast.held.append(int(handle[0]))
    before = arena.value
    with pytest.raises(CacheFull, match="1 more tokens after 8 do not fit") as caught:
        forward(model, prompt_of(1), cache)
    assert isinstance(caught.value.refusal, Refusal) and arena.value is before
    assert isinstance(cache.extend(1), Refusal)
    ballast.drop()
    assert torch.equal(forward(model, prompt_of(1), cache), forward(model, prompt_of(1), stock))
    with pytest.raises(LeaseError, match="exceed"):
        cache.extend(1000)


def test_a_refusal_between_state_and_attention_spoils_the_cache():
    """Where a state has taken a token in and attention was then refused, the cache says so until it is reset."""
    model = build_model("falcon_h1")
    arena = build_arena(model, requests=1)
    ballast = Ballast(arena, seed=1)
    cache = ArenaCache(arena, model.config)
    wanted = forward(model, prompt_of(8), cache)
    while not isinstance(arena.step(handle := arena.open(1), np.array([4])), Refusal):
        ballast.held.append(int(handle[0]))
    while not isinstance(arena.step(np.array(ballast.held[:1]), np.array([4])), Refusal):
        pass
    with pytest.raises(CacheFull):
        forward(model, prompt_of(1), cache)
    ballast.drop()
    with pytest.raises(CacheError, match="after states had moved on"):
        forward(model, prompt_of(1), cache)
    cache.reset()
    assert torch.equal(forward(model, prompt_of(8), cache), wanted)
