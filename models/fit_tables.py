"""Plans as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from models.planner import ARENA, FitPlan, PolicyPlan

_STEPS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size(count: int) -> str:
    """Bytes for people: three significant digits and a binary unit."""
    for unit, name in _STEPS:
        if abs(count) >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:,.0f} {name}"
    return f"{count} B"


def length(tokens: int) -> str:
    """Tokens for people; without full attention length costs nothing."""
    return "unbounded" if tokens >= UNBOUNDED else f"{tokens:,}"


UNBOUNDED = (1 << 40) - 1  # where searches for the longest request stop


def details(plan: FitPlan) -> Iterator[RenderableType]:
    """Everything about one model."""
    stage = f", stage {plan.rank + 1} of {plan.stages} binds" if plan.stages > 1 else ""
    yield f"\n[bold]{plan.model}[/bold] ({plan.model_type}) on {size(plan.memory_bytes)} per rank, tp {plan.tp}{stage}"
    yield _bands(plan)
    yield _lengths(plan)
    items = ", ".join(f"{name} {size(count)}" for name, count in plan.floor_items)
    yield f"boot floor {size(plan.floor_bytes)}: {items}"
    longest = f"longest request {length(plan.max_request_tokens)} tokens"
    if plan.max_request_tokens >= plan.context_tokens:
        longest += f" (the checkpoint's context is {plan.context_tokens:,})"
    yield longest
    mix = plan.mix
    asked = f" of {plan.batch_asked:,} asked for" if plan.batch_asked is not None else ""
    yield (
        f"requests of {mix.prompt:,} + {mix.output:,} tokens at once: [bold]{plan.concurrency:,}[/bold]; "
        f"{plan.binding} binds; batch {plan.batch:,}{asked}"
    )
    yield f"regained against counts that are summed again: {size(plan.regained_bytes)}"
    yield _policies(plan)


def _bands(plan: FitPlan) -> Table:
    table = Table("band", "layers", "keeps", "bytes a slot", "slots a page", "page", "pages alone", title=None)
    units = {"state": "one state", "cross": "encoder tokens", "full": "every token"}
    for band in plan.bands:
        keeps = units.get(band.retention, f"{band.window:,} tokens" if band.window else "")
        padded = f" ({band.entry_bytes:,} with rounding)" if band.entry_bytes != band.payload_bytes else ""
        table.add_row(
            band.name, str(band.layers), keeps, f"{band.payload_bytes:,}{padded}", str(band.slots_per_page),
            size(band.frame_bytes), f"{band.frames_max:,}",
        )  # fmt: skip
    return table


def _lengths(plan: FitPlan) -> Table:
    table = Table("tokens", "needed", "held", "rounding", "at once")
    for row in plan.lengths:
        share = 1 - row.exact_bytes / row.held_bytes
        table.add_row(f"{row.tokens:,}", size(row.exact_bytes), size(row.held_bytes), f"{share:.2%}", f"{row.concurrency:,}")
    return table


def _policies(plan: FitPlan) -> Table:
    traced = any(policy.trace for policy in plan.policies)
    columns = ["policy", "longest request", "at once", "binds", "not in use", "GiB"]
    table = Table(*columns, *(["on the trace: mean", "p5"] if traced else []), "set by")
    for policy in plan.policies:
        cells = [policy.policy, *_cells(policy)]
        if traced:
            cells += [f"{value:,.1f}" for value in policy.trace] if policy.trace else ["", ""]
        table.add_row(*cells, policy.note)
    return table


def _cells(policy: PolicyPlan) -> list[str]:
    if not policy.max_request_tokens:
        return ["impossible", "0", "", "", ""]
    return [
        length(policy.max_request_tokens),
        f"{policy.concurrency:,}",
        policy.binding,
        f"{policy.waste_share:.1%}",
        f"{policy.waste_bytes / 2**30:.2f}",
    ]


def compared(plans: Sequence[FitPlan]) -> Table:
    """Several models side by side: requests at once under each policy."""
    names = [policy.policy for policy in plans[0].policies]
    table = Table("model", "a token", "a window token", "a state", "longest request", *names, title="requests at once")
    for plan in plans:
        counts = {policy.policy: policy.concurrency for policy in plan.policies}
        table.add_row(
            plan.model, size(plan.bytes_per_token), size(plan.bytes_per_window_token), size(plan.bytes_per_state),
            length(plan.max_request_tokens), *(_gain(counts, name) for name in names),
        )  # fmt: skip
    return table


def _gain(counts: dict[str, int], name: str) -> str:
    """Requests at once, and for rivals how many more the arena holds."""
    count, arena = counts.get(name, 0), counts[ARENA]
    if name == ARENA:
        return f"{count:,}"
    return f"{count:,} ({arena / count - 1:+.0%})" if count else "0"
