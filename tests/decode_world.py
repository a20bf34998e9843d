"""Arenas under a captured decode: one that moves frames before every step, and one that never moves anything."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from attrs import define, field
from numpy.typing import NDArray
from torch import Tensor

from core_pure.capacity import StepResult
from core_pure.errors import ContentsLost
from core_pure.geometry import group_bands
from core_pure.layout import BandSpec, Layout, build_layout
from core_pure.plan import Plan
from shell_gpu.arena import Arena, BuildOptions
from shell_gpu.decode.graph import CapturedDecode
from shell_gpu.decode.memory import LaneBatch
from shell_gpu.decode.model import HybridModel, Weights, kernels_for
from shell_gpu.decode.shape import HybridShape
from shell_gpu.errors import InjectedFault
from tests.dense_decode import Dense
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


def run_together(
    worlds: list[DecodeWorld], schedule: Schedule, steps: int, dense: Dense | None = None
) -> tuple[int, float]:
    """Drive worlds with one schedule. Returns: steps in which they differ in any bit, and the worst error to ``dense``.

    Nothing is read back before the end, so that captured steps follow each other as in service.
    """
    shape = worlds[0].shape
    device = worlds[0].arena.device
    differ, worst = torch.zeros((), dtype=torch.int64, device=device), torch.zeros((), dtype=torch.float64, device=device)
    for _ in range(steps):
        turn = schedule.turn()
        first, *others = [each.step(turn) for each in worlds]
        for other in others:
            differ += (first != other).any() | first.isnan().any()
        if dense is not None:
            for seat in turn.fresh:
                dense.restart(seat)
            sent = (torch.tensor(turn.seats), torch.from_numpy(tokens_of(turn, shape.vocabulary)), torch.from_numpy(turn.lengths))
            wanted = dense.step(*(tensor.to(device) for tensor in sent))
            error = (first.double() - wanted).norm() / wanted.norm()
            worst = torch.where(error > worst, error, worst) + 0 * error  # NaN stays
    return int(differ), float(worst)


def bytes_of(arena: Arena, page: int) -> Tensor:
    """The bytes of one page, where the host value says that they are."""
    band = int(np.searchsorted(np.array(arena.layout.id_bases), page, side="left")) - 1
    size = arena.layout.bands[band].frame_bytes
    frame = int(arena.state.frames_of(np.array([page]))[0])
    assert arena.buffer is not None
    return arena.buffer[frame * size : (frame + 1) * size].clone()


def crash_after_every_effect(make: Callable[[], DecodeWorld], what: str) -> int:
    """Break off a step or a compaction after 0, 1, 2 … effects, each time in a new world, and judge what is left.

    Returns: how many effects there were.
    """
    crashes = 0
    while True:
        moving, everyone = make(), [0, 1, 2]
        for number in range(3):
            for length in range(1, 6):
                begins = length == 1
                turn = Turn(
                    everyone, np.full(3, length), np.arange(3) + number * 3, everyone if begins else [],
                    everyone if begins and number else [],
                )  # fmt: skip
                moving.step(turn)
        arena, lanes = moving.arena, LaneBatch.of(np.array([0]), np.array([1]))
        relocate(arena, np.random.default_rng(4), 3)  # something to compact
        before = arena.state
        held = {page: bytes_of(arena, page) for page in np.flatnonzero(before.table()).tolist()}
        arena.executor.fault_after = crashes
        try:
            if what == "step":
                moving.serve(Turn(everyone, np.ones(3, np.int64), np.arange(3), everyone, everyone))
            else:
                arena.compact()
        except InjectedFault:
            crashes += 1
        else:
            return crashes
        assert arena.state == before, "the host value is the one before the plan"
        with pytest.raises(ContentsLost, match=r"recover\(\)"):
            moving.decode.replay(lanes)
        with pytest.raises(ContentsLost, match=r"recover\(\)"):
            arena.step(np.empty(0, np.int64), np.empty(0, np.int64))
        lost = set(np.concatenate(arena.recover()).tolist())
        assert np.array_equal(arena.tables.frame_of.cpu().numpy(), before.table())
        assert all(torch.equal(bytes_of(arena, page), content) for page, content in held.items() if page not in lost)
        moving.decode.replay(lanes)
