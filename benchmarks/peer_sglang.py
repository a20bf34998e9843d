"""Drives the peer allocator, SGLang 0.5.23's two-ended pair, as published: imported where it is installed, never copied.

To have it: download the wheel ``sglang==0.5.23`` without its dependencies, unpack it outside the repository, add the few
small packages its import asks for, and put the folder on ``PYTHONPATH``. Page copies are stubbed out: planning and table
updates alone are compared. ``load()`` gives None where the peer is not importable, and rows then say so.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import torch

LAYERS, HEADS, HEAD_DIM = 4, 2, 64
CONV_SHAPE, TEMPORAL_SHAPE = (3, 128), (8, 64, 64)
ARENA_BYTES = 8 << 30


class NoCopies:
    """Stands in for the peer's KV cache: page copies are measured apart."""

    def move_physical_pages(self, *_: Any) -> None:
        """Copies nothing."""


class Peer:
    """The peer's allocators for attention pages and states over one buffer."""

    def __init__(self, page: int, device: str, total: int = ARENA_BYTES) -> None:
        context = importlib.import_module("sglang.srt.runtime_context")
        arguments = importlib.import_module("sglang.srt.server_args")
        pools = importlib.import_module("sglang.srt.mem_cache.unified_memory_pool")
        allocators = importlib.import_module("sglang.srt.mem_cache.allocator.unified_sub_pool")
        context.reset_context()
        context.publish(arguments.ServerArgs(model_path="dummy"), role="tokenizer")
        attention = pools.MHASubPoolSpec(
            name="full", grow_direction="down", layer_num=LAYERS, head_num=HEADS, head_dim=HEAD_DIM, store_dtype=torch.bfloat16
        )
        states = pools.MambaSubPoolSpec(
            name="mamba", grow_direction="up", layer_num=LAYERS, conv_state_shapes=(CONV_SHAPE,), conv_dtype=torch.bfloat16,
            temporal_state_shape=TEMPORAL_SHAPE, temporal_dtype=torch.float32,
        )  # fmt: skip
        self.pool = pools.UnifiedKVPool(
            total_bytes=total, sub_pool_specs=[attention, states], device=device, enable_memory_saver=False, page_size=page
        )
        made = {}
        for name, size in (("full", page), ("mamba", 1)):
            made[name] = allocators.MultiEndedAllocator(
                kvcache=None, unified_buffer=self.pool, sub_pool_name=name, device=device, is_id_owner=True, page_size=size,
                lazy_compaction=True,
            )  # fmt: skip
        self.full, self.states = made["full"], made["mamba"]
        self.full.bind_peer(self.states)
        self.states.bind_peer(self.full)
        self.full._kvcache = self.states._kvcache = NoCopies()
        self.page, self.device = page, device

    def clear(self) -> None:
        """Both allocators empty."""
        self.full.clear()
        self.states.clear()


def load(page: int, device: str = "cuda", total: int = ARENA_BYTES) -> Peer | None:
    """The peer, or None where it cannot be imported."""
    for package, names in (("IPython", ("IPython", "IPython.display")), ("sgl_kernel", ("sgl_kernel",))):
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            for name in names:
                sys.modules[name] = types.ModuleType(name)
                sys.modules[name].__dict__.update(display=None, HTML=None, Image=None)
    try:
        return Peer(page, device, total)
    except ImportError as error:
        print(f"the peer is not importable here: {error}", flush=True)
        return None


class PeerStep:
    """One serving step of the peer in its best case: frees grouped, admissions batched, its token rows kept untimed."""

    def __init__(self, peer: Peer, running: int, prompt: int, room: int) -> None:
        peer.clear()
        self.peer, self.running, self.prompt, self.room = peer, running, prompt, room
        self.rows = torch.zeros((running, room), dtype=torch.int64, device=peer.device)
        self.slots: list[Any] = [None] * running
        self.length = [0] * running
        self.read = torch.zeros((running, room // peer.page), dtype=torch.int64, device=peer.device)
        self.write = torch.zeros(running, dtype=torch.int64, device=peer.device)
        everyone = list(range(running))
        self._note(everyone, *self._admit(len(everyone)))

    def _admit(self, count: int) -> tuple[Any, Any]:
        return self.peer.full.alloc(count * self.prompt), self.peer.states.alloc(count)

    def _note(self, which: list[int], tokens: Any, states: Any) -> None:
        self.rows[torch.tensor(which, device=self.peer.device), : self.prompt] = tokens.view(len(which), self.prompt)
        for place, request in enumerate(which):
            self.slots[request], self.length[request] = states[place : place + 1], self.prompt

    def prepare(self, done: list[int]) -> None:
        """Untimed: what the engine around the peer knows already."""
        device = self.peer.device
        self.done = done
        self.lengths = torch.tensor([length + 1 for length in self.length])
        for request in done:
            self.lengths[request] = self.prompt + 1
        self.last = self.rows[
            torch.arange(self.running, device=device), torch.tensor([length - 1 for length in self.length], device=device)
        ]

    def step(self, flush: bool) -> None:
        """Timed: releases, admissions, one token each, write slots and read table."""
        full, states = self.peer.full, self.peer.states
        full.free_group_begin()
        for request in self.done:
            full.free(self.rows[request, : self.length[request]])
        full.free_group_end()
        states.free(torch.cat([self.slots[request] for request in self.done]))
        self.admitted = self._admit(len(self.done))
        if self.peer.page == 1:
            self.taken = full.alloc(self.running)
        else:
            self.taken = full.alloc_decode(self.lengths.to(self.peer.device, non_blocking=True), self.lengths, self.last)
        full.translate_kv_loc(self.taken, out=self.write)
        full.translate_kv_loc(self.rows[:, :: self.peer.page], out=self.read)
        if flush:
            full.flush_opportunistic()

    def settle(self) -> None:
        """Untimed: the engine's token rows after the step."""
        device = self.peer.device
        self._note(self.done, *self.admitted)
        ends = torch.tensor([min(length, self.room - 1) for length in self.length], device=device)
        self.rows[torch.arange(self.running, device=device), ends] = self.taken
        self.length = [min(length + 1, self.room - 1) for length in self.length]
