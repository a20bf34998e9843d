"""What fits before anything is built: bytes per request, the longest request, how many at once, and what rivals waste.

Everything comes from the core's own feasibility function, on counts. Memory, bands and answers are those of one rank;
with pipeline stages the stage that holds fewest requests speaks for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from attrs import evolve, frozen

from core_pure.errors import ConfigError, LayoutError
from core_pure.fits import Refusal
from core_pure.geometry import BandGeometry
from core_pure.layout import BandSpec, Demand, Layout, boot_floor, build_layout, check_boot, floor_demand
from models.architectures import Described, ModelConfig, bands_of, load_config, specs_of
from models.arena_counts import ArenaCounts, LcmPages
from models.config_fields import parse_bytes
from models.padded import padded_page
from models.pools import SGLANG_DEFAULT_SHARE, CountingPool, PaddedPages, StaticPools
from models.waste import charged, exact_bytes, resummed_bytes

LENGTHS = (256, 1_024, 4_096, 16_384, 65_536, 131_072)  # tokens at which a request is weighed
SHARES = tuple(Fraction(percent, 100) for percent in range(1, 100))  # static splits tried for the best one
CHUNK = 8_192  # tokens of one request in one step: the serving loop's prefill budget
ARENA, STATIC_BEST, STATIC_DEFAULT, PADDED, LCM = "arena", "static best", "static default", "vLLM 0.33 page", "LCM page"


@frozen
class Mix:
    """The requests to plan for. A request's last token is never fed back, so it needs no slot."""

    prompt: int = 2_048
    output: int = 512
    lookahead: int = 0

    def __attrs_post_init__(self) -> None:
        for name, low in (("prompt", 1), ("output", 1), ("lookahead", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ConfigError(f"{name} is {value!r} tokens; expected an integer >= {low}")

    @property
    def tokens(self) -> int:
        """Slots that a request needs at its end."""
        return self.prompt + self.output - 1 + self.lookahead


@frozen
class BandPlan:
    """One band. Bytes per slot (with and without rounding) and per frame; ``frames_max`` if it had the arena alone."""

    name: str
    layers: int
    retention: str
    window: int | None
    payload_bytes: int
    entry_bytes: int
    slots_per_page: int
    frame_bytes: int
    frames_max: int
    pages_per_request: int


@frozen
class LengthPlan:
    """A request of ``tokens``: bytes that are read again, bytes of its pages, and how many fit at once."""

    tokens: int
    exact_bytes: int
    held_bytes: int
    concurrency: int


@frozen
class PolicyPlan:
    """What one way of sharing memory gives. ``note`` says how it was set, or why it is impossible (then all is 0).

    binding: the band that refuses one request more. waste_bytes: memory minus what the requests need, at
    ``concurrency`` requests of the mix; waste_share is that over memory. trace: mean and 5th percentile of requests
    running at once, where a trace was served.
    """

    policy: str
    note: str
    max_request_tokens: int
    concurrency: int
    binding: str
    waste_bytes: int
    waste_share: float
    trace: tuple[float, float] | None = None


@frozen
class FitPlan:
    """The whole answer for one model on one rank. Units: bytes and tokens; ``rank`` is the pipeline stage that binds."""

    model: str
    model_type: str
    memory_bytes: int
    arena_bytes: int
    sink_bytes: int
    stages: int
    rank: int
    tp: int
    context_tokens: int
    mix: Mix
    bands: tuple[BandPlan, ...]
    bytes_per_token: int
    bytes_per_window_token: int
    bytes_per_state: int
    bytes_per_encoder_token: int
    lengths: tuple[LengthPlan, ...]
    floor_bytes: int
    floor_items: tuple[tuple[str, int], ...]
    max_request_tokens: int
    concurrency: int
    batch_asked: int | None
    batch: int
    binding: str
    regained_bytes: int
    policies: tuple[PolicyPlan, ...]


def plan_fit(
    config: Described,
    memory: int | str,
    *,
    mix: Mix | None = None,
    page_slots: int = 16,
    pp: int = 1,
    max_batch: int | None = None,
    chunk: int = CHUNK,
    tracking: int = 0,
    draft_slots: int = 0,
    lengths: Sequence[int] = LENGTHS,
    serve: Callable[[CountingPool], tuple[float, float]] | None = None,
    **choices: Any,
) -> FitPlan:
    """Plan one model on one rank's memory.

    Args: memory: bytes of a rank, or text such as '80GiB'. mix: the requests to plan for. max_batch: a wish, answered
    by what fits. chunk: most tokens of one request in one step. tracking, draft_slots: extra states per request.
    serve: serves a trace from a pool and returns mean and p5 of requests running at once. choices: as for
    ``layers_of`` (tp, dtype, kv_dtype, …) and ``bands_of`` (draft).
    Raises: ConfigError, LayoutError (memory below the boot floor, itemised).
    """
    model = config if isinstance(config, ModelConfig) else load_config(config)
    if max_batch is not None and (type(max_batch) is not int or max_batch < 1):
        raise ConfigError(f"max batch is {max_batch!r}; expected an integer >= 1")
    if type(chunk) is not int or chunk < 1:
        raise ConfigError(f"prefill chunk is {chunk!r} tokens; expected an integer >= 1")
    wanted, budget = mix or Mix(), parse_bytes(memory)
    best: FitPlan | None = None
    for rank in range(pp if type(pp) is int else 0) or [0]:
        bands = bands_of(model, page_slots, pp=pp, pp_rank=rank, **choices)
        if not bands:
            continue  # a stage of layers that cache nothing never binds
        specs = specs_of(bands, tracking=tracking, draft_slots=draft_slots)
        stage = _Stage(model, wanted, budget, bands, build_layout(specs, budget), chunk, 1 + tracking + draft_slots)
        plan = stage.plan(rank, pp, choices.get("tp", 1), max_batch, lengths)
        if best is None or (plan.concurrency, plan.max_request_tokens) < (best.concurrency, best.max_request_tokens):
            best, chosen = plan, stage
    if best is None:
        raise ConfigError(f"{model.name}: no layer caches anything, so there is nothing to plan")
    return evolve(best, policies=chosen.policies(serve))


@frozen
class _Stage:
    """One pipeline stage under one arena."""

    model: ModelConfig
    mix: Mix
    budget: int
    bands: tuple[BandGeometry, ...]
    layout: Layout
    chunk: int
    states: int

    def plan(self, rank: int, stages: int, tp: int, max_batch: int | None, lengths: Sequence[int]) -> FitPlan:
        """Everything but the rivals."""
        layout = self.layout
        check_boot(layout, self.model.context_tokens, self.chunk)
        pool = ArenaCounts(layout, self.chunk)
        concurrency, binding = concurrency_of(pool, self.mix.tokens)
        sizes = {kind: self._payload(kind) for kind in ("full", "window", "chunked", "state", "cross")}
        context = self.model.context_tokens
        return FitPlan(
            model=self.model.name,
            model_type=self.model.model_type,
            memory_bytes=self.budget,
            arena_bytes=layout.total_bytes,
            sink_bytes=layout.sink_bytes,
            stages=stages,
            rank=rank,
            tp=tp,
            context_tokens=context,
            mix=self.mix,
            bands=tuple(self._band(spec) for spec in layout.bands),
            bytes_per_token=sizes["full"],
            bytes_per_window_token=sizes["window"] + sizes["chunked"],
            bytes_per_state=sizes["state"],
            bytes_per_encoder_token=sizes["cross"],
            lengths=tuple(self._length(pool, tokens) for tokens in lengths if tokens <= context),
            floor_bytes=boot_floor(layout.bands, context, self.chunk),
            floor_items=self._floor(),
            max_request_tokens=pool.max_request_tokens(),
            concurrency=concurrency,
            batch_asked=max_batch,
            batch=concurrency if max_batch is None else min(concurrency, max_batch),
            binding=binding,
            regained_bytes=layout.total_bytes - resummed_bytes(layout.bands, self.budget, SGLANG_DEFAULT_SHARE),
            policies=(),
        )

    def _payload(self, retention: str) -> int:
        return sum(band.payload_bytes for band in self.bands if band.retention == retention)

    def _band(self, spec: BandSpec) -> BandPlan:
        geometry = next(band for band in self.bands if band.name == spec.name)
        return BandPlan(
            name=spec.name,
            layers=len(geometry.layers),
            retention=spec.retention,
            window=spec.window,
            payload_bytes=geometry.payload_bytes,
            entry_bytes=geometry.entry_bytes,
            slots_per_page=spec.slots_per_page,
            frame_bytes=spec.frame_bytes,
            frames_max=self.layout.frames_max[self.layout.index(spec.name)],
            pages_per_request=spec.pages_peak(self.mix.tokens, 1),
        )

    def _length(self, pool: ArenaCounts, tokens: int) -> LengthPlan:
        held = sum(spec.pages_peak(tokens, 1) * spec.frame_bytes for spec in self.layout.bands)
        exact = int(exact_bytes(self.bands, np.array([tokens]), states=self.states)[0])
        return LengthPlan(tokens, exact, held, concurrency_of(pool, tokens)[0])

    def _floor(self) -> tuple[tuple[str, int], ...]:
        """What the boot floor is made of; the rest of it is rounding between bands."""
        chain = self.layout.bands
        demand = floor_demand(chain, self.model.context_tokens, self.chunk)
        items = [(band.name, pages * band.frame_bytes) for band, pages in zip(chain, demand, strict=True)]
        return (("sink", self.layout.sink_bytes), *items)

    def policies(self, serve: Callable[[CountingPool], tuple[float, float]] | None) -> tuple[PolicyPlan, ...]:
        """The arena and its rivals at equal bytes."""
        total = self.layout.total_bytes
        builders: list[tuple[str, str, Callable[[], CountingPool]]] = [
            (ARENA, "no ratio", lambda: ArenaCounts(self.layout, self.chunk)),
            (STATIC_DEFAULT, "state : full = 0.9 : 1, windows 0.8 tokens", lambda: self._static(SGLANG_DEFAULT_SHARE)),
            (PADDED, "one padded page", lambda: self._charged(PaddedPages(padded_page(self.bands), total, self.chunk))),
            (LCM, "one least-common-multiple page", lambda: self._charged(LcmPages(self.bands, total, self.chunk))),
        ]
        plans = [self._policy(name, note, build, serve) for name, note, build in builders]
        plans.insert(1, self._best_static(serve))
        return tuple(plans)

    def _charged(self, pool: CountingPool) -> CountingPool:
        """A rival's pool, charging as many states per request as the arena does."""
        pool.specs = charged(pool.specs, self.bands, states=self.states)
        return pool

    def _static(self, share: Fraction) -> StaticPools:
        return StaticPools.split(self.layout, share, self.chunk)

    def _best_static(self, serve: Callable[[CountingPool], tuple[float, float]] | None) -> PolicyPlan:
        """The split that holds most requests of the mix."""
        share = best_share(self.layout, self.mix.tokens, self.chunk)
        if share is None:
            return self._impossible(STATIC_BEST, "no share leaves every pool a page")
        return self._policy(STATIC_BEST, f"{share * 100} % to states or windows", lambda: self._static(share), serve)

    def _policy(self, name: str, note: str, build: Callable[[], CountingPool],
                serve: Callable[[CountingPool], tuple[float, float]] | None) -> PolicyPlan:  # fmt: skip
        try:
            pool = build()
        except LayoutError as error:
            return self._impossible(name, str(error))
        count, binding = concurrency_of(pool, self.mix.tokens)
        useful = count * int(exact_bytes(self.bands, np.array([self.mix.tokens]), states=self.states)[0])
        return PolicyPlan(
            policy=name,
            note=note,
            max_request_tokens=min(pool.max_request_tokens(), 1 << 40),
            concurrency=count,
            binding=binding,
            waste_bytes=self.budget - useful,
            waste_share=1 - useful / self.budget,
            trace=serve(build()) if serve is not None else None,
        )

    def _impossible(self, name: str, why: str) -> PolicyPlan:
        return PolicyPlan(name, why, 0, 0, "", self.budget, 1.0)


def best_share(layout: Layout, tokens: int, chunk: int = CHUNK) -> Fraction | None:
    """The static split that holds most requests of ``tokens``, the middle one among equals; None if none is possible."""
    best, shares = 0, list[Fraction]()
    for share in SHARES:
        try:
            count = concurrency_of(StaticPools.split(layout, share, chunk), tokens)[0]
        except LayoutError:
            continue  # this share leaves a pool without a page
        if count > best or not shares:
            best, shares = count, []
        if count == best:
            shares.append(share)
    return shares[len(shares) // 2] if shares else None


def concurrency_of(pool: CountingPool, tokens: int) -> tuple[int, str]:
    """How many requests of ``tokens`` an empty pool holds at once, and the band that refuses one more.

    All of them decode, each at its peak, while one prompt is being filled chunk by chunk. Of a window that peak is
    far more than what decoding keeps, so charging it to every request would promise too little.
    """
    each = tuple(spec.pages_peak(tokens, 1) for spec in pool.specs)
    filling = pool.pages_peak(tokens)

    def demand(count: int) -> Demand:
        return tuple(
            (count - 1) * most + max(most, peak) for most, peak in zip(each, filling, strict=True)
        )  # fmt: skip

    low, high = 0, 1
    while not isinstance(pool.fits(demand(high)), Refusal):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if isinstance(pool.fits(demand(middle)), Refusal) else (middle, high)
    return low, _binding(pool, demand(high))


def _binding(pool: CountingPool, demand: Demand) -> str:
    """The band to blame: one that cannot have its pages even alone, else the one that takes most bytes."""
    for at, spec in enumerate(pool.specs):
        alone = tuple(pages if i == at else 0 for i, pages in enumerate(demand))
        if isinstance(pool.fits(alone), Refusal):
            return spec.name
    sizes = [pages * spec.frame_bytes for pages, spec in zip(demand, pool.specs, strict=True)]
    return pool.specs[sizes.index(max(sizes))].name
