"""``docs/WASTE.md``: all bundled models × policies, from arithmetic alone; where the arena gains little as plain as where much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from attrs import frozen

from core_pure.errors import LayoutError
from core_pure.geometry import BandGeometry
from core_pure.layout import build_layout
from models.architectures import bands_of, bundled_ids, load_config, specs_of
from models.arena_counts import ArenaCounts, LcmPages, tight_spec
from models.padded import padded_page
from models.planner import (
    ARENA,
    CHUNK,
    LCM,
    PADDED,
    STATIC_BEST,
    STATIC_DEFAULT,
    FitPlan,
    Mix,
    best_share,
    concurrency_of,
    plan_fit,
)
from models.pools import StaticPools
from models.waste import Lengths, charged, exact_bytes, held_bytes, held_lcm_bytes, uniform_waste, waste_share

MEMORY = 40 * 2**30  # bytes for caches: half of an 80 GiB GPU, the rest for weights
RANGES = ((256, 512), (1_024, 2_048), (4_096, 8_192), (16_384, 32_768), (65_536, 131_072))  # tokens [low, high)
MIXES = (Mix(384, 128), Mix(2_048, 512), Mix(32_000, 1_000))
LITTLE = 0.03  # a gain below 3 % over the best rival without a ratio to tune is called little
RIVALS = (STATIC_BEST, STATIC_DEFAULT, PADDED, LCM)

# Jenga (SOSP 2025): every layer gets room for all tokens. Layers × slots needed, and the room.
PUBLISHED = (
    ("Llama-3.2-11B-Vision, 43 text and 6,193 image tokens", ((32, 43), (8, 6_193)), 43 + 6_193, "79.6 %"),
    ("Gemma-2 at its context of 8,192, window 4,096", ((1, 8_192), (1, 4_096)), 8_192, "25 %"),
    ("Ministral-8B at 131,072, window 32,768", ((9, 131_072), (27, 32_768)), 131_072, "56.25 %"),
)


@frozen
class PageWaste:
    """One model's waste inside the pages that requests hold, per length range; None where a page is impossible."""

    model: str
    arena: tuple[float, ...]
    padded: tuple[float, ...] | None
    lcm: tuple[float, ...] | None


def page_waste(model: str) -> PageWaste:
    """Waste of held pages over the length ranges, for the arena's, the padded and the least-common-multiple page."""
    bands = bands_of(model)
    lengths = [np.arange(low, high) for low, high in RANGES]
    exact = [exact_bytes(bands, one) for one in lengths]

    def over(held: Sequence[Lengths]) -> tuple[float, ...]:
        return tuple(waste_share(need, got) for need, got in zip(exact, held, strict=True))

    specs = specs_of(bands)
    arena = over([held_bytes(specs, one) for one in lengths])
    try:
        rival = charged(padded_page(bands).specs(), bands)
        padded = over([held_bytes(rival, one) for one in lengths])
    except LayoutError:
        padded = None
    return PageWaste(model, arena, padded, _lcm_waste(bands, lengths, over))


def _lcm_waste(bands: Sequence[BandGeometry], lengths: Sequence[Lengths], over: object) -> tuple[float, ...] | None:
    try:
        page = LcmPages(bands, MEMORY, 1).page_bytes
    except LayoutError:
        return None
    tight = [tight_spec(band) for band in bands]
    assert callable(over)
    found: tuple[float, ...] = over([held_lcm_bytes(tight, page, one) for one in lengths])
    return found


def report() -> str:
    """The whole page as Markdown."""
    return "\n".join((*_head(), *_pages(), *_mixes(), *_mistuned(), *_published())) + "\n"


def _head() -> Iterator[str]:
    yield "# What each way of sharing memory wastes"
    yield ""
    yield "Written by `make waste` (`kvarena waste`) from arithmetic on published configurations; no number is measured on a GPU."
    yield f"Caches in the checkpoint's own dtypes, one rank, {MEMORY >> 30} GiB for caches, pages of 16 tokens in the arena."
    yield ""
    yield "* **arena**: one arena, no ratio to set."
    yield "* **static best**: a pool per kind at the one split, of 99, that holds most requests of that very mix: it is"
    yield "  tuned to a load that is known beforehand. **static default**: SGLang's split (state : full = 0.9 : 1 in bytes,"
    yield "  windows 0.8 tokens per token of full attention)."
    yield "* **vLLM 0.33 page**: one page size for all kinds, padded. **LCM page**: Jenga's large pages at their best, small"
    yield "  pages of all requests sharing large ones; in the first table each request fills large pages of its own."
    yield "* Splits have no rule for encoder tokens (the vision model): there they give both kinds equally many tokens, and the"
    yield "  summaries leave that model out."
    yield ""


def _pages() -> Iterator[str]:
    yield "## Waste inside the pages that a request holds"
    yield ""
    yield "Per cent of held bytes that no later token reads: arena / vLLM 0.33 page / LCM page, mean over lengths drawn evenly"
    yield "from each range. `-` where a page cannot be built."
    yield ""
    yield "| model | " + " | ".join(f"{low:,}–{high:,}" for low, high in RANGES) + " |"
    yield "|---|" + "---|" * len(RANGES)
    for model in bundled_ids():
        waste = page_waste(model)
        cells = []
        for number in range(len(RANGES)):
            trio = [waste.arena[number], *(rows[number] if rows else None for rows in (waste.padded, waste.lcm))]
            cells.append(" / ".join("-" if one is None else f"{100 * one:.2f}" for one in trio))
        yield f"| {model} | " + " | ".join(cells) + " |"
    yield ""


def _mixes() -> Iterator[str]:
    yield "## Requests at once"
    yield ""
    for mix in MIXES:
        plans = [plan_fit(model, MEMORY, mix=mix, lengths=()) for model in bundled_ids() if _serves(model, mix)]
        yield f"### {mix.prompt:,} prompt and {mix.output:,} generated tokens"
        yield ""
        yield "In brackets: how much more the arena holds. Last column: share of memory not in use, arena and static default."
        yield ""
        yield "| model | arena | " + " | ".join(RIVALS) + " | not in use |"
        yield "|---|---|" + "---|" * (len(RIVALS) + 1)
        yield from (_row(plan) for plan in plans)
        yield ""
        yield from _summary(plans)
        yield ""


def _serves(model: str, mix: Mix) -> bool:
    """Whether the checkpoint's context holds a request of the mix."""
    return load_config(model).context_tokens >= mix.tokens


def _row(plan: FitPlan) -> str:
    policies = {policy.policy: policy for policy in plan.policies}
    cells = [plan.model, f"{plan.concurrency:,}"]
    for name in RIVALS:
        count = policies[name].concurrency
        cells.append(f"{count:,} ({plan.concurrency / count - 1:+.1%})" if count else "impossible")
    cells.append(f"{policies[ARENA].waste_share:.1%}, {policies[STATIC_DEFAULT].waste_share:.1%}")
    return "| " + " | ".join(cells) + " |"


def _summary(plans: Sequence[FitPlan]) -> Iterator[str]:
    """Who gains little and who gains much, in so many words."""
    for rival, words in ((STATIC_DEFAULT, "the default split"), (PADDED, "the padded page"), (STATIC_BEST, "the best split")):
        gains = sorted((gain, plan.model) for plan in plans if (gain := _gain(plan, rival)) is not None)
        if not gains:
            continue
        little = [model for gain, model in gains if gain < LITTLE]
        more = [f"{model} {gain:+.0%}" for gain, model in reversed(gains) if gain >= LITTLE]
        yield f"* Against {words}, {len(little)} of {len(gains)} models gain less than {LITTLE:.0%}" + (
            f": {', '.join(little)}." if 2 * len(little) <= len(gains) else f"; more gain: {', '.join(more) or 'none'}."
        )


def _gain(plan: FitPlan, rival: str) -> float | None:
    """How much more the arena holds; None where the rival is impossible or has no rule for encoder tokens."""
    if rival in (STATIC_BEST, STATIC_DEFAULT) and any(band.retention == "cross" for band in plan.bands):
        return None
    count = next(policy.concurrency for policy in plan.policies if policy.policy == rival)
    return plan.concurrency / count - 1 if count else None


def _mistuned() -> Iterator[str]:
    """What a split costs that was tuned to another mix: the reason for an arena."""
    yield "## A split tuned to one mix, under another"
    yield ""
    first, last = MIXES[0], MIXES[-1]
    yield f"Requests at once of the arena, and of the best split for chats ({first.prompt} + {first.output}) and for documents"
    yield f"({last.prompt:,} + {last.output:,}), each under both mixes (of equal splits the middle one)."
    yield "Models with several kinds and the context for it."
    yield ""
    splits = "split for chats | split for documents"
    yield f"| model | chats: arena | {splits} | documents: arena | {splits} |"
    yield "|---|---|---|---|---|---|---|"
    for model in bundled_ids():
        bands = bands_of(model)
        kinds = {band.retention for band in bands}
        if len(bands) < 2 or "cross" in kinds or not _serves(model, last):
            continue
        layout = build_layout(specs_of(bands), MEMORY)
        shares = [best_share(layout, mix.tokens) for mix in (first, last)]
        cells = [model]
        for mix in (first, last):
            arena = concurrency_of(ArenaCounts(layout, CHUNK), mix.tokens)[0]
            cells.append(f"{arena:,}")
            for share in shares:
                count = concurrency_of(StaticPools.split(layout, share, CHUNK), mix.tokens)[0] if share else 0
                cells.append(f"{count:,} ({arena / count - 1:+.0%})" if count else "0")
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _published() -> Iterator[str]:
    yield "## Published figures"
    yield ""
    yield "One uniform allocation, every layer given room for all tokens (Jenga, SOSP 2025; token means of the vision model as"
    yield "recalled from the paper):"
    yield ""
    yield "| case | computed | published |"
    yield "|---|---|---|"
    for name, needs, room, published in PUBLISHED:
        yield f"| {name} | {float(100 * uniform_waste(needs, room)):.2f} % | {published} |"
    yield ""
    yield "vLLM 0.33: the padded column above follows the rule in `models/padded.py`; for all 56 rows of"
    yield "`models/data/vllm_0_33_waste.csv`, computed with that project's own planning code, it gives the same blocks and"
    yield "waste within 0.1 points (`tests/test_waste.py`)."
    yield ""
    yield "SGLang reports gains from sizing the arena in bytes and not from counts summed again: 0.36 MB on Qwen3.5-9B, 4.5 KB"
    yield "on Kimi-Linear-48B. With S states of m bytes and pages of p tokens at c bytes, the gain of a budget B is"
    yield "(B − S·m) mod (p·c). The unknown input is the profiled budget B (and with it S), which was not published:"
    yield ""
    yield "| model | c, bytes a token | reported gain | as tokens | largest gain at p = 1 / 16 / 64 |"
    yield "|---|---|---|---|---|"
    for model, gain in REPORTED_GAINS.items():
        cell = next(band.payload_bytes for band in bands_of(model) if band.retention == "full")
        most = " / ".join(f"{cell * page:,}" for page in (1, 16, 64))
        yield f"| {model} | {cell:,} | {gain:,} B | {float(Fraction(gain, cell)):.2f} | {most} |"
    yield ""
    yield "So 0.36 MB is 11 tokens of 32 KiB, which needs pages of at least 16 tokens, and 4.5 KB is part of one token of"
    yield "Kimi-Linear. Both are what rounding loses; no number here can confirm more without B."


REPORTED_GAINS = {"Qwen/Qwen3.5-9B": 360_448, "moonshotai/Kimi-Linear-48B-A3B-Instruct": 4_500}
