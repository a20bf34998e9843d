"""Hypothesis machines: every event over old and new values, core, reference, decoded plan, torch twins and kernels alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis.stateful import run_state_machine_as_test

from core_pure.event import Event
from core_pure.state import Outcome
from invariants.checked import Checked
from invariants.machines import ArenaMachine, ClaimBroken, Point, machine_settings, search
from invariants.mutants import by_name, planted
from invariants.walks import Shape
from shell_gpu.kernels import twins
from shell_gpu.launch import INTERPRETED
from shell_gpu.packing import pack, split, work_of

WORDS = 4096
DEVICE_SHAPES = (
    Shape("device-two", (112, 80), 1200),
    Shape("device-three", (112, 80, 48), 1200),
    Shape("device-rising", (128, 48, 80), 1424),
)
KERNEL_EXAMPLES, KERNEL_PLANS = 30, 120  # an interpreted program costs milliseconds


class DeviceMachine(ArenaMachine):
    """Also carries every plan out on tensors, with the plain torch twins, and compares with the reference's bytes."""

    shapes = DEVICE_SHAPES
    plans = 0
    moved = 0

    def effects(self, arena: torch.Tensor, staging: torch.Tensor, waves: int, table: torch.Tensor) -> None:
        """Apply one packed chunk."""
        from shell_gpu import chunk

        for number in range(waves):
            twins.move_wave(arena, staging, chunk.AT_WAVE + 2 * number)
        twins.finish_plan(arena, staging, table, torch.zeros(1, dtype=torch.int32))

    def carried_out(self, before: Point, event: Event, after: Checked) -> None:
        """The plan on tensors: the same table; every page that stays has its bytes; every new one is zero or a copy."""
        plan = after.result.plan if isinstance(after.result, Outcome) else None
        if plan is None or plan.is_empty:
            return
        old, new, layout = before.checked.model, after.model, self.shape.layout()
        arena = torch.from_numpy(np.frombuffer(bytes(old.buffer), np.int64).copy())
        table = torch.tensor(old.table, dtype=torch.int32)
        words = np.zeros(WORDS, np.int32)
        staging = torch.from_numpy(words)
        units = tuple(band.frame_bytes // 16 for band in layout.bands)
        for part in split(work_of(plan), WORDS, len(units)):
            pack(part, units, words)
            self.effects(arena, staging, len(part.waves), table)
        assert table.tolist() == list(new.table)
        gone = set(event.pages.tolist()) if event.kind in ("release", "advance") else set()
        copied = {(band, target): source for band, source, target in plan.copies.tolist()}
        raw = arena.numpy().tobytes()
        for band, each in enumerate(new.bands):
            size = layout.bands[band].frame_bytes
            for page, frame in each.pages.items():
                found = raw[frame * size : (frame + 1) * size]
                stays = page in old.bands[band].pages and page not in gone
                expected = old.contents[page] if stays else bytes(size)
                if (band, frame) in copied:
                    expected = new.contents[page]
                assert found == expected, f"page {page} of band {band}"
        DeviceMachine.plans += 1
        DeviceMachine.moved += plan.moves


class KernelMachine(DeviceMachine):
    """The same with the Triton kernels, interpreted where there is no GPU; the first so many plans."""

    def carried_out(self, before: Point, event: Event, after: Checked) -> None:
        """As for the twins, until there were enough."""
        if DeviceMachine.plans < KERNEL_PLANS:
            super().carried_out(before, event, after)

    def effects(self, arena: torch.Tensor, staging: torch.Tensor, waves: int, table: torch.Tensor) -> None:
        """Apply one packed chunk with the kernels, on the device."""
        from shell_gpu import chunk, launch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        words, rows, held = arena.to(device), staging.to(device), table.to(device)
        for number in range(waves):
            launch.move_wave(words, rows, chunk.AT_WAVE + 2 * number, INTERPRETED)
        launch.finish_plan(words, rows, held, torch.zeros(1, dtype=torch.int32, device=device), INTERPRETED)
        arena.copy_(words)
        table.copy_(held)


@pytest.mark.parametrize("number", range(4))
def test_machine_finds_nothing(number: int) -> None:
    """Four searches over every event, misuse included, from old values and new ones: no claim breaks."""
    before = ArenaMachine.transitions
    found = search(number, examples=20, steps=30)
    assert found is None, found
    assert ArenaMachine.transitions - before > 100


def test_twins_carry_out_the_same_plans() -> None:
    """Plain torch twins give the reference's table and bytes for every plan of the machine, moves among them."""
    DeviceMachine.plans = DeviceMachine.moved = 0
    run_state_machine_as_test(DeviceMachine, settings=machine_settings(40, 25))
    assert DeviceMachine.plans > 50 and DeviceMachine.moved > 0


def test_kernels_carry_out_the_same_plans() -> None:
    """Triton kernels do, too."""
    for _ in range(10):  # some draws give few plans
        DeviceMachine.plans = 0
        run_state_machine_as_test(KernelMachine, settings=machine_settings(KERNEL_EXAMPLES, 15))
        if DeviceMachine.plans > 20:
            break
    assert DeviceMachine.plans > 20


@pytest.mark.parametrize("name", ["edge-stays", "old-value-corrupt", "no-quarantine"])
def test_machine_finds_a_planted_bug(name: str) -> None:
    """The machine meets planted bugs, and its story has the events that lead there."""
    with planted(by_name(name)):
        found = next((found for number in range(12) if (found := search(number, examples=40, steps=30)) is not None), None)
    assert found is not None
    assert 1 <= len(found.events) <= 30


def test_broken_twin_is_noticed() -> None:
    """A twin that forgets the fills differs from the reference, so the comparison can fail."""

    class Forgetful(DeviceMachine):
        """Does not zero what it hands out."""

        def effects(self, arena: torch.Tensor, staging: torch.Tensor, waves: int, table: torch.Tensor) -> None:
            """Everything but the fills."""
            kept = arena.clone()
            super().effects(arena, staging, waves, table)
            if not waves:
                arena.copy_(kept)

    with pytest.raises((AssertionError, ClaimBroken)):
        run_state_machine_as_test(Forgetful, settings=machine_settings(40, 15))
