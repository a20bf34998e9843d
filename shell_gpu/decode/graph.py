"""A decode step captured once per batch size and replayed: tables, slots and lanes are written before each replay.

The memory under the captured graph may move between replays, because the graph reads frames from buffers whose addresses
stay. What may not happen is refused by name: a batch or a context beyond what was captured, a graph of an arena that was
resized since, and a step after a fault. On the CPU the same calls run the step uncaptured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import torch
from attrs import frozen
from torch import Tensor

from core_pure.errors import LeaseError

from ..arena import Arena
from ..errors import StepTooLarge
from .memory import LaneBatch, Lanes, Memory
from .model import HybridModel

Guard = Callable[[], None]


@frozen(eq=False)
class _Captured:
    graph: torch.cuda.CUDAGraph | None
    logits: Tensor | None
    work: dict[int, tuple[Tensor, Tensor]]


def memory_of(arena: Arena, lanes: Lanes, tokens: Tensor) -> Memory:
    """The arena's addresses as a model reads them."""
    names = arena.names
    grows = {spec.name for spec in arena.layout.bands if spec.grows}
    return Memory(
        arena.views,
        MappingProxyType(dict(zip(names, arena.block_tables, strict=True))),
        MappingProxyType({n: slots for n, slots in zip(names, arena.tables.write_slots, strict=True) if n in grows}),
        lanes.device,
        tokens,
    )


def token_buffer(sequences: int, device: torch.device) -> Tensor:
    """int64[sequences + 1]: the last token of each lease row, and one entry for padding."""
    return torch.zeros(sequences + 1, dtype=torch.int64, device=device)


class CapturedDecode:
    """Captured decode steps of one model over one memory, at a few batch sizes."""

    def __init__(
        self, model: HybridModel, memory: Memory, lanes: Lanes, *, sizes: Sequence[int], context: int, guard: Guard
    ) -> None:
        """Compile, warm and capture every size. All lanes are padding meanwhile, so no cache is touched.

        Args: sizes: batch sizes, each at most the lanes'. context: most tokens of a lane. guard: raises when a replay would
        be wrong (``arena_guard``).
        """
        self.model, self.memory, self.lanes = model, memory, lanes
        self.sizes = tuple(sorted(set(sizes)))
        if not self.sizes or self.sizes[0] < 1 or self.sizes[-1] > lanes.batch:
            raise StepTooLarge(f"graphs for batches of {self.sizes}; lanes were built for {lanes.batch}")
        self.context = context
        self._guard = guard
        lanes.upload(LaneBatch.of(*[torch.zeros(0, dtype=torch.int64).numpy()] * 2))
        self._pool = torch.cuda.graph_pool_handle() if model.device.type == "cuda" else None
        self._captured = {size: self._capture(size) for size in reversed(self.sizes)}

    @classmethod
    def over(cls, arena: Arena, model: HybridModel, *, sizes: Sequence[int]) -> CapturedDecode:
        """Decode graphs over an arena."""
        lanes = Lanes(max(sizes, default=0), arena.sizes.sequences, arena.device)
        memory = memory_of(arena, lanes, token_buffer(arena.sizes.sequences, arena.device))
        return cls(model, memory, lanes, sizes=sizes, context=arena.sizes.length_limit, guard=arena_guard(arena))

    def _capture(self, size: int) -> _Captured:
        work = self.model.workspace(self.memory, size)
        if self._pool is None:
            return _Captured(None, None, work)
        side = torch.cuda.Stream(self.model.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.model.decode(self.memory, size, work)  # compiles and picks algorithms before the capture
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self.model.decode(self.memory, size, work)
        return _Captured(graph, logits, work)

    def check(self, lanes: LaneBatch) -> int:
        """The captured size that serves these lanes. Raises: StepTooLarge, LeaseError, and what the guard raises."""
        self._guard()
        count = len(lanes.rows)
        if count > self.sizes[-1]:
            raise StepTooLarge(
                f"a decode batch of {count}; graphs were captured for up to {self.sizes[-1]}: split the batch, or capture a "
                "larger size"
            )
        if count and (longest := int(lanes.lengths.max())) > self.context:
            raise LeaseError(
                f"a context of {longest} tokens; the page tables of the captured graph hold {self.context}: build the arena "
                "with a longer context"
            )
        return next(size for size in self.sizes if size >= count)

    def replay(self, lanes: LaneBatch) -> Tensor:
        """Upload the lanes and run one decode step on the current stream. The step's tables were written before.

        Returns: logits [lanes, vocabulary] in a buffer that the next replay of this size overwrites.
        Raises: StepTooLarge, LeaseError, GraphStale after a resize, ContentsLost after a fault; nothing is launched then.
        """
        size = self.check(lanes)
        self.lanes.upload(lanes)
        captured = self._captured[size]
        if captured.graph is None or captured.logits is None:
            return self.model.decode(self.memory, size, captured.work)[: len(lanes.rows)]
        captured.graph.replay()
        return captured.logits[: len(lanes.rows)]


def arena_guard(arena: Arena) -> Guard:
    """Refuses a replay after a fault, a sleep or a resize of the arena."""
    generation = arena.generation

    def guard() -> None:
        arena.executor.check()
        arena.check_generation(generation)

    return guard
