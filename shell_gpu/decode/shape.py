"""The shape of a hybrid decoder, and what each of its layers caches. Plain numbers, no tensors."""

from __future__ import annotations

from attrs import frozen

from core_pure.errors import ConfigError
from core_pure.geometry import FullAttention, Layer, LayerKind, RecurrentState, SlidingWindow, StateTensor

STATE, WINDOW, FULL = "state", "window", "full"


@frozen
class HybridShape:
    """Sizes of a decoder whose layers are recurrent, windowed or full, by ``pattern`` (one word per layer).

    No positions are added to keys: order comes from the recurrent layers, as in Jamba (arXiv 2403.19887). Recurrent layers
    follow the gated delta rule (arXiv 2412.06464) without the short convolution; their states are float32.
    """

    pattern: tuple[str, ...]
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    state_heads: int
    state_dim_k: int
    state_dim_v: int
    vocabulary: int
    dtype: str = "bfloat16"

    def __attrs_post_init__(self) -> None:
        """Refuse what the kernels cannot run, by name."""
        unknown = sorted(set(self.pattern) - {STATE, WINDOW, FULL})
        if unknown or not self.pattern:
            raise ConfigError(f"layer words {unknown or 'none'}; expected some of {STATE}, {WINDOW}, {FULL}")
        if self.heads % self.kv_heads or (group := self.heads // self.kv_heads) & (group - 1):
            raise ConfigError(f"{self.heads} query heads over {self.kv_heads} key heads; the quotient must be a power of two")
        for name in ("state_dim_k", "state_dim_v"):
            size = getattr(self, name)
            if size & (size - 1) or size < 1:
                raise ConfigError(f"{name} is {size}; a state kernel needs a power of two")

    def layers(self) -> tuple[Layer, ...]:
        """What each layer caches."""
        kv = (self.kv_heads, self.head_dim, self.head_dim, self.dtype)
        state = RecurrentState((StateTensor("memory", (self.state_heads, self.state_dim_v, self.state_dim_k), "float32"),))
        kinds: dict[str, LayerKind] = {STATE: state, FULL: FullAttention(*kv), WINDOW: SlidingWindow(*kv, window=self.window)}
        return tuple(Layer(index, kinds[word]) for index, word in enumerate(self.pattern))

    def band_of(self, layer: int) -> str:
        """Name of the band that caches a layer."""
        word = self.pattern[layer]
        return f"window-{self.window}" if word == WINDOW else word

    def window_of(self, layer: int) -> int:
        """Tokens that a layer sees, 0 for all."""
        return self.window if self.pattern[layer] == WINDOW else 0

    def widths(self, layer: int) -> tuple[int, int]:
        """Outputs of the layer's first projection, and inputs of its last."""
        if self.pattern[layer] == STATE:
            mixed = self.state_heads * (2 * self.state_dim_k + self.state_dim_v)
            inner = self.state_heads * self.state_dim_v
            return mixed + inner + 2 * self.state_heads, inner  # queries, keys, values; output gate; decays, strengths
        return (self.heads + 2 * self.kv_heads) * self.head_dim, self.heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Weights, norms not counted."""
        layers = sum(sum(self.widths(layer)) + 3 * self.intermediate for layer in range(len(self.pattern)))
        return self.hidden * (layers + 2 * self.vocabulary)


SEVEN_B = HybridShape(
    pattern=(STATE, STATE, WINDOW, FULL) * 8,
    hidden=4096,
    intermediate=12_288,
    heads=32,
    kv_heads=8,
    head_dim=128,
    window=1024,
    state_heads=32,
    state_dim_k=128,
    state_dim_v=128,
    vocabulary=32_000,
)
"""7.1 billion weights: width, heads and key heads of Mistral 7B (arXiv 2310.06825), half of its layers recurrent."""

TOY = HybridShape(
    pattern=(STATE, WINDOW, FULL),
    hidden=32,
    intermediate=48,
    heads=2,
    kv_heads=1,
    head_dim=16,
    window=12,
    state_heads=2,
    state_dim_k=16,
    state_dim_v=16,
    vocabulary=64,
    dtype="float32",
)
"""Small enough for the kernels' interpreter."""
