"""Tiny random transformers models, arenas laid out for them, and ballast that makes their frames move between steps."""

import warnings

import numpy as np
import pytest
from attrs import evolve

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from core_pure.fits import Refusal  # noqa: E402
from core_pure.geometry import group_bands  # noqa: E402
from core_pure.layout import BandSpec, boot_floor, build_layout, order_chain  # noqa: E402
from models.architectures import layers_of, load_config  # noqa: E402
from shell_gpu.arena import Arena, BuildOptions  # noqa: E402
from shell_gpu.arena_cache import cache_argument  # noqa: E402
from tests.tiny_models import tiny  # noqa: E402

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

MODEL_DTYPE_STATES = ("minimax", "minimax_text_01")
PAGE_SLOTS = 4


def build_model(model_type, dtype=torch.float32, seed=0, **overrides):
    """A tiny random model of a family of tests.tiny_models, in eval mode."""
    fields = {**tiny(model_type, 1), **overrides}
    config = transformers.AutoConfig.for_model(model_type, **{k: v for k, v in fields.items() if k != "model_type"})
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model_type == "mllama_text_model":
            from transformers.models.mllama.modeling_mllama import MllamaForCausalLM

            return MllamaForCausalLM._from_config(config, dtype=dtype).eval()
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def bands_for(model, page_slots=PAGE_SLOTS, kv_dtype=None):
    """The bands of a model's caches, as transformers keeps them."""
    config = model.config
    dtype = str(model.dtype).removeprefix("torch.")
    fields = {key: value for key, value in config.to_dict().items() if key not in ("dtype", "torch_dtype")}
    state = dtype if config.model_type in MODEL_DTYPE_STATES else "float32"
    layers = layers_of(load_config(fields), dtype=dtype, state_dtype=state, kv_dtype=kv_dtype, cross_tokens=8,
                       convention="transformers")  # fmt: skip
    return tuple(BandSpec.of(band) for band in group_bands(layers, page_slots))


def build_arena(model, *, requests=3, context=96, chunk=32, sequences=16, page_slots=PAGE_SLOTS, poison=True, kv_dtype=None,
                states_max=None, **options):  # fmt: skip
    """An arena on the model's device that holds about ``requests`` full-length requests, and never less than its boot floor."""
    bands = bands_for(model, page_slots, kv_dtype)
    bands = [band if band.grows else evolve(band, pages_max=states_max) for band in bands]
    demand = [band.pages_peak(context, chunk) for band in bands]
    total = sum(n * band.frame_bytes for n, band in zip(demand, bands, strict=True)) * requests
    total += 2 * max(band.frame_bytes for band in bands)
    layout = build_layout(bands, max(total, boot_floor(order_chain(bands), context, chunk)))
    return Arena.build(layout, device=model.device, sequences=sequences, context=context, chunk=chunk,
                       options=BuildOptions(poison=poison, **options))  # fmt: skip


class Ballast:
    """Other sequences that come and go at random beside the ones under test, so that relief and compaction move frames.

    moved: bands of which a frame of ``watched`` leases has moved. Everything the ballast holds carries the poison of the
    arena or zeros: nobody computes in it.
    """

    def __init__(self, arena, seed, most=5):
        self.arena = arena
        self.random = np.random.default_rng(seed)
        self.most = most
        self.held = []
        self.moved = set()

    def settle(self, count=2):
        """Take the lowest frames before the sequences under test come; ``shake`` gives them back sooner or later."""
        for handle in self.arena.open(count):
            self.arena.step(np.array([handle]), np.array([self.arena.chunk // 2]))
            self.held.append(int(handle))

    def shake(self, watched):
        """One random event: take, grow or give back, then sometimes compact. Notes which bands' frames moved."""
        before = self._frames(watched)
        choice = self.random.integers(4)
        if choice == 0 and self.held:
            gone = self.held.pop(int(self.random.integers(len(self.held))))
            self.arena.step(np.array([], np.int64), np.array([], np.int64), finished=np.array([gone]))
        elif choice in (1, 2) and len(self.held) < self.most:
            handle = self.arena.open(1)
            tokens = int(self.random.integers(1, self.arena.chunk))
            if isinstance(self.arena.step(handle, np.array([tokens])), Refusal):
                self.arena.step(np.array([], np.int64), np.array([], np.int64), finished=handle)
            else:
                self.held.append(int(handle[0]))
        if self.random.integers(2):
            self.arena.compact()
        self._note(watched, before)

    def make_room(self, cache, tokens):
        """Take the pages of the next ``tokens`` of ``cache``, giving back ballast until they fit."""
        while cache.extend(tokens) is not None:
            gone = self.held.pop()
            self.arena.step(np.array([], np.int64), np.array([], np.int64), finished=np.array([gone]))

    def leave(self, watched):
        """Give everything back and compact, so that the watched leases move into what was freed below them."""
        before = self._frames(watched)
        self.drop()
        self.arena.compact()
        self._note(watched, before)

    def drop(self):
        """Give everything back."""
        self.arena.step(np.array([], np.int64), np.array([], np.int64), finished=np.array(self.held, np.int64))
        self.held = []

    def _frames(self, watched):
        return {
            handle: [self.arena.state.frames_of(pages).tolist() for pages in self.arena.pages(handle)] for handle in watched
        }

    def _note(self, watched, before):
        after = self._frames(watched)
        for handle in watched:
            for band, (old, new) in enumerate(zip(before[handle], after[handle], strict=True)):
                if old != new:
                    self.moved.add(self.arena.names[band])


def skip_unless_latent(model):
    """Skip where this version of transformers expands latents before it caches them: the arena then refuses them by shape."""
    rank = getattr(model.config, "kv_lora_rank", None)
    stock = transformers.DynamicCache(config=model.config)
    forward(model, prompt_of(2), stock)
    widths = {layer.keys.shape[-1] for layer in stock.layers if getattr(layer, "keys", None) is not None}
    if rank is not None and widths != {rank}:
        pytest.skip(f"transformers {transformers.__version__} caches expanded keys of {model.config.model_type}, not latents")


def prompt_of(length, seed=1):
    """Random token ids int64[1, length] that are no special ones."""
    return torch.from_numpy(np.random.default_rng(seed).integers(3, 60, (1, length)))


def forward(model, ids, cache):
    """Logits of one forward, [1, n, vocabulary]."""
    with torch.no_grad():
        return model(input_ids=ids.to(model.device), use_cache=True, **{cache_argument(model): cache}).logits
