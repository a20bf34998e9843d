"""The demonstration behind ``kvarena serve-demo``: many requests at once from one arena, each compared with itself alone.

The loop, the static rival and the knowledge of layers come in as ``Parts``, because this package does not see them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from core_pure.capacity import Pool
from core_pure.errors import ConfigError
from core_pure.geometry import Layer
from core_pure.layout import BandSpec, Layout, boot_floor, build_layout, order_chain
from core_pure.report import Report

from .arena import Arena, BuildOptions
from .arena_cache import Served
from .buffer import device_of
from .serve import TransformersRunner, bands_of_model, check_prompts, generate_alone, load_model, stock_cache

Ints = NDArray[np.int64]

DEMO_MODEL = {
    "model_type": "falcon_h1", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""A Falcon-H1 in miniature: attention and a Mamba-2 state in every layer, random weights."""
FIRST_TOKEN = 3
"""Ids below are padding, begin and end in most vocabularies; random prompts leave them out."""
CHUNK_TOKENS = 256
"""Token budget of one step of the demonstration; more only where more requests run."""
PEAK_SHARE = 0.9
"""Default memory, of the sum of all requests' peaks: they do not peak together, and a split that starves one kind shows it."""
REQUESTS_MAX = 4096
SEED_LIMIT = 1 << 63
KIB = 1024


@frozen
class Demo:
    """What to serve. Units: bytes (None: what all requests need to run at once), tokens per page, tokens [low, high)."""

    model: Any
    requests: int
    memory_bytes: int | None = None
    device: str = "cpu"
    page_slots: int = 16
    prompt_tokens: tuple[int, int] = (8, 96)
    output_tokens: tuple[int, int] = (8, 33)
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        """Refuse counts that are none."""
        if not 1 <= self.requests <= REQUESTS_MAX:
            raise ConfigError(f"{self.requests} requests; give 1 to {REQUESTS_MAX}")
        if not 0 <= self.seed < SEED_LIMIT:
            raise ConfigError(f"seed {self.seed}; give 0 to {SEED_LIMIT - 1}")

    @property
    def chunk(self) -> int:
        """Token budget of one step: always more than requests run."""
        return max(CHUNK_TOKENS, 2 * self.requests)


@frozen
class Parts:
    """What comes from outside this package.

    layers_of: fields of a configuration, and choices, to layers. loop: (pool, prompt lengths, output lengths, most running,
    token budget, runner, observers) to the one serving loop. static: (layout, chunk) to a static split of the same bytes.
    watch: (name, requests) to an observer that shows progress.
    """

    layers_of: Callable[..., tuple[Layer, ...]]
    loop: Callable[..., Any]
    static: Callable[[Layout, int], Pool]
    watch: Callable[[str, int], Any]


@define
class Tally:
    """Counts over one run, and the arena's report when most requests ran."""

    pool: Pool
    steps: int = 0
    running: int = 0
    retracted: int = 0
    bytes_moved: int = 0
    violations: list[str] = field(factory=list)
    busiest: Report | None = None

    def after_step(self, loop: Any, record: Any) -> None:
        """Count, and check every cheap invariant."""
        self.steps += 1
        self.retracted += record.retracted
        self.bytes_moved += record.batch.result.bytes_moved
        if record.running > self.running:
            self.running, self.busiest = record.running, self.pool.report()
        self.violations += [f"step {record.number}: {each.claim}: {each.text}" for each in self.pool.verify()]


@frozen
class Outcome:
    """One policy's run."""

    name: str
    tally: Tally
    answers: list[list[int]]
    refusals: dict[int, str]
    seconds: float

    @property
    def done(self) -> int:
        """Requests that were answered."""
        return len(self.answers) - len(self.refusals)


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """Tiny forwards lose more to a second thread's barrier than it gains; restored afterwards."""
    before = torch.get_num_threads()
    if torch.device(device).type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def layout_of(demo: Demo, bands: Sequence[BandSpec], lengths: Ints) -> Layout:
    """The arena: the bytes asked for, or room for every request's peak at once. Raises: LayoutError, below the floor."""
    chain = order_chain(bands)
    total = demo.memory_bytes
    if total is None:
        peaks = [sum(band.pages_peak(n, demo.chunk) for n in lengths.tolist()) for band in chain]
        frame = max(band.frame_bytes for band in chain)
        together = sum(n * band.frame_bytes for n, band in zip(peaks, chain, strict=True))
        total = int(PEAK_SHARE * together) + (2 + len(chain)) * frame
        total = max(total, boot_floor(chain, int(lengths.max()), demo.chunk))
    return build_layout(chain, total)


def run(demo: Demo, parts: Parts, shown: Console) -> int:
    """Serve, compare, report. Returns: 0, or 1 when an answer differs or an invariant was violated. Raises: ArenaError."""
    import transformers

    device_of(demo.device)
    transformers.logging.set_verbosity_error()  # kernels it misses are no news to this demonstration
    with one_thread(demo.device):
        model, is_random = load_model(demo.model, demo.device, demo.seed)
        prompts, outputs = _requests(demo, int(model.config.get_text_config().vocab_size))
        inputs = np.array([len(prompt) for prompt in prompts])
        lengths = inputs + outputs
        layout = layout_of(demo, bands_of_model(model, parts.layers_of, demo.page_slots), lengths)
        arena = Arena.build(
            layout, device=demo.device, sequences=demo.requests, context=int(lengths.max()), chunk=demo.chunk,
            options=BuildOptions(step_tokens=demo.chunk),
        )  # fmt: skip
        weights = "random weights (no checkpoint was given)" if is_random else "the checkpoint's weights"
        shown.print(f"model: {model.config.model_type}, {weights}, {model.dtype}, on {demo.device}", highlight=False)
        check_prompts(prompts, int(model.config.get_text_config().vocab_size), int(lengths.max()))
        served = Served(arena, model.config)
        outcomes = [
            _serve("arena", demo, parts, model, arena, lambda handle: served(np.array([handle])), prompts, outputs),
            _serve("static split", demo, parts, model, parts.static(layout, demo.chunk),
                   lambda handle: stock_cache(model.config), prompts, outputs),
        ]  # fmt: skip
        alone = [generate_alone(model, prompt, int(n)) for prompt, n in zip(prompts, outputs, strict=True)]
    return _tell(demo, layout, arena, outcomes, alone, shown)


def _requests(demo: Demo, vocabulary: int) -> tuple[list[list[int]], Ints]:
    """Random prompts and output lengths, from the seed."""
    random = np.random.default_rng(demo.seed)
    sizes = random.integers(*demo.prompt_tokens, demo.requests)
    prompts = [random.integers(FIRST_TOKEN, vocabulary, n).tolist() for n in sizes]
    return prompts, random.integers(*demo.output_tokens, demo.requests)


def _serve(
    name: str, demo: Demo, parts: Parts, model: Any, pool: Pool, cache_of: Callable[[int], Any], prompts: list[list[int]],
    outputs: Ints,
) -> Outcome:  # fmt: skip
    """One run of the loop."""
    tally, watch = Tally(pool), parts.watch(name, demo.requests)
    runner = TransformersRunner(model, prompts, cache_of)
    inputs = np.array([len(prompt) for prompt in prompts])
    begin = time.perf_counter()
    loop = parts.loop(pool, inputs, outputs, demo.requests, demo.chunk, runner, (tally, watch))
    loop.run()
    watch.draw(loop, f"{tally.steps} steps")
    return Outcome(name, tally, runner.answers, dict(loop.requests.refusals), time.perf_counter() - begin)


def _tell(
    demo: Demo, layout: Layout, arena: Arena, outcomes: list[Outcome], alone: list[list[int]], shown: Console
) -> int:
    """Print what happened. Returns: the exit code."""
    table = Table(title=f"{demo.requests} requests, {layout.total_bytes:,} bytes", title_justify="left", header_style="bold")
    for column in ("policy", "done", "most at once", "steps", "retracted", "refused", "tokens", "wall s", "moved KiB"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    wrong = 0
    for outcome in outcomes:
        wrong += sum(a != b for n, (a, b) in enumerate(zip(outcome.answers, alone, strict=True)) if n not in outcome.refusals)
        tally = outcome.tally
        table.add_row(
            outcome.name, str(outcome.done), str(tally.running), str(tally.steps), str(tally.retracted),
            str(len(outcome.refusals)), f"{sum(map(len, outcome.answers)):,}", f"{outcome.seconds:.1f}",
            f"{tally.bytes_moved / KIB:,.0f}",
        )  # fmt: skip
    shown.print(table)
    if outcomes[0].tally.busiest is not None:
        shown.print(report_table(outcomes[0].tally.busiest, f"the arena when {outcomes[0].tally.running} requests ran"))
    violations = [text for outcome in outcomes for text in outcome.tally.violations]
    left = arena.report().live_bytes
    for outcome in outcomes:
        for number, text in outcome.refusals.items():
            shown.print(f"{outcome.name}: request {number} refused: {text}", highlight=False)
    same = "equal to" if not wrong else f"{wrong} answers differ from"
    shown.print(f"tokens {same} one-at-a-time generation with the stock cache", highlight=False)
    shown.print(f"violations: {len(violations)}; bytes still held at the end: {left}", highlight=False)
    for text in violations[:10]:
        shown.print(text, highlight=False)
    return 1 if wrong or violations or left else 0


def report_table(report: Report, title: str) -> Table:
    """Who holds which bytes, adding up to the total."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in ("band", "pages", "live", "holes", "quarantined", "of live pinned", "bytes [low, high)"):
        table.add_column(column, justify="left" if column == "band" else "right")
    for band in report.bands:
        table.add_row(
            band.band, str(band.pages), f"{band.live_bytes:,}", f"{band.hole_bytes:,}", f"{band.quarantined_bytes:,}",
            f"{band.pinned_bytes:,}", f"[{band.low_byte:,}, {band.high_byte:,})",
        )  # fmt: skip
    table.add_row("gaps", "", f"{report.gap_bytes:,}", "", "", "", "")
    table.add_row("sink", "", f"{report.sink_bytes:,}", "", "", "", "")
    table.add_row("total", "", f"{report.total_bytes:,}", "", "", "", "", style="bold")
    return table
