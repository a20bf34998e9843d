"""Arenas under a captured decode: one that moves frames before every step, and one that never moves anything."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from attrs import define, field
from numpy.typing import NDArray
from torch import Tensor

from core_pure.capacity import StepResult
from core_pure.geometry import group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.plan import Plan
from shell_gpu.arena import Arena, BuildOptions
from shell_gpu.decode.graph import CapturedDecode
from shell_gpu.decode.memory import LaneBatch
from shell_gpu.decode.model import HybridModel, Weights, kernels_for
from shell_gpu.decode.shape import HybridShape
from tests.relocate import relocate

Ints = NDArray[np.int64]
TOKEN_STEP, TOKEN_SERIAL = 7919, 104_729  # primes: the token of a position tells sequence and place


@define
class Turn:
    """One step of a schedule: seats served in order, lengths with the new token, seats restarted, seats given up."""

    seats: list[int]
    lengths: Ints
    serials: Ints
    fresh: list[int]
    gone: list[int]


@define
class Schedule:
    """Sequences that come and go on ``seats`` places, the same for every world. Lengths stay within ``context``."""

    seats: int
    context: int
    seed: int = 0
    churn: float = 0.15
    serial: int = 0
    held: dict[int, list[int]] = field(factory=dict)
    rng: np.random.Generator = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def turn(self) -> Turn:
        """The next step: some sequences end, free seats fill up, every running sequence gets one token."""
        gone = [seat for seat, (_, length) in self.held.items() if length == self.context or self.rng.random() < self.churn / 4]
        for seat in gone:
            del self.held[seat]
        fresh = [seat for seat in range(self.seats) if seat not in self.held and (not self.held or self.rng.random() < 0.5)]
        for seat in fresh:
            self.serial += 1
            self.held[seat] = [self.serial, 0]
        for pair in self.held.values():
            pair[1] += 1
        seats = sorted(self.held)
        pairs = np.array([self.held[seat] for seat in seats], np.int64)
        return Turn(seats, pairs[:, 1], pairs[:, 0], fresh, gone)


def tokens_of(turn: Turn, vocabulary: int) -> Ints:
    """The token that each lane reads: fixed by sequence and position, so that no rounding feeds back."""
    return (turn.serials * TOKEN_SERIAL + turn.lengths * TOKEN_STEP) % vocabulary


def layout_of(shape: HybridShape, page_slots: int, total: int) -> Layout:
    """The bands of a shape."""
    return build_layout([BandSpec.of(band) for band in group_bands(shape.layers(), page_slots)], total)


class DecodeWorld:
    """One arena, one captured decode, and the leases by seat."""

    def __init__(
        self, shape: HybridShape, weights: Weights, *, page_slots: int, total: int, seats: int, context: int,
        moving: bool, chunk: int = 1, sizes: tuple[int, ...] | None = None,
        options: BuildOptions | None = None, ops: ModuleType | None = None,
    ) -> None:  # fmt: skip
        device = weights.embedding.device
        self.shape = shape
        self.moving = moving
        self.arena = Arena.build(
            layout_of(shape, page_slots, total), device=device, sequences=2 * seats, context=context, chunk=chunk,
            options=options,
        )  # fmt: skip
        self.model = HybridModel(shape, weights, ops or kernels_for(device))
        self.decode = CapturedDecode.over(self.arena, self.model, sizes=sizes or (seats,))
        self.rng = np.random.default_rng(99)
        self.leases: dict[int, int] = {}
        self.moved = 0
        self.last_plan = Plan()

    def step(self, turn: Turn, pages: int = 4) -> Tensor:
        """Relocate and compact (a world that moves), make the joint step, replay. Returns: logits [lanes, vocabulary]."""
        if self.moving:
            self.moved += relocate(self.arena, self.rng, pages)
            budget = int(self.rng.integers(0, self.arena.layout.total_bytes // 8))
            if self.rng.random() < 0.5:
                self.moved += bool(self.arena.compact(budget))
        lanes = self.serve(turn)
        return self.decode.replay(lanes)

    def serve(self, turn: Turn) -> LaneBatch:
        """The arena's joint step of a turn; returns the lanes to replay."""
        gone = np.array([self.leases.pop(seat) for seat in turn.gone], np.int64)
        for seat, handle in zip(turn.fresh, self.arena.open(len(turn.fresh)).tolist(), strict=True):
            self.leases[seat] = handle
        handles = np.array([self.leases[seat] for seat in turn.seats], np.int64)
        result = self.arena.step(handles, np.ones(len(handles), np.int64), gone)
        assert isinstance(result, StepResult), result
        made = result.outcome
        assert made is not None
        self.last_plan = made.plan
        if not self.moving:
            assert made.plan.moves == 0, "the still arena is large enough never to move"
        assert made.after.tolist() == turn.lengths.tolist()
        return LaneBatch.of(made.slots, made.after, tokens_of(turn, self.shape.vocabulary))

    def pages_of(self, seat: int) -> Ints:
        """Every page id that a seat's sequence holds."""
        return np.concatenate(self.arena.pages(self.leases[seat])).astype(np.int64)


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """‖got - wanted‖ / ‖wanted‖ in double precision; NaN never passes a comparison."""
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())
