"""Byte stamps: proof that every live byte survives, by writing a unique pattern into each frame and reading it back.

A frame is stamped whole when its page is bound, and checked whole when it has moved and before it is released. So the
number of checks must equal pages released + frames moved, counted elsewhere (``statistics``). The buffer is a numpy
view of the arena's bytes; this file knows plans and states and nothing of torch.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from core_pure.layout import Layout
from core_pure.plan import Plan
from core_pure.state import ArenaState

Bytes = NDArray[np.uint8]
Frames = NDArray[np.int64]

BLOCK_WORDS = 1_024  # a pattern repeats after 8 KiB: long enough to notice a frame that is shifted by rows
WORD = 8  # bytes
ODD_STRIDE = 0x9E37_79B9_7F4A_7C15  # 2^64 / golden ratio: neighbouring stamps share no word
STAMPS_KEPT = 20  # violations told in full


@define
class Stamper:
    """Stamps and checks frames around each plan. ``before`` and ``after`` must enclose its application to ``buffer``."""

    layout: Layout
    buffer: Bytes
    stamped: int = 0
    checked_moved: int = 0
    checked_released: int = 0
    violations: list[str] = field(factory=list)
    _serial: int = 0
    _stamp_of: dict[int, int] = field(factory=dict)
    _pending: list[tuple[int, int, int, bool]] = field(factory=list)

    @property
    def checked(self) -> int:
        """Frames read back whole."""
        return self.checked_moved + self.checked_released

    def before(self, state: ArenaState, plan: Plan) -> None:
        """Check every page that ``plan`` releases, while its bytes are still there. ``state`` is the value before."""
        self._pending = []
        if not len(plan.rows):
            return
        ids, frames = plan.rows[:, 0].astype(np.int64), plan.rows[:, 1].astype(np.int64)
        held = state.frames_of(ids)
        bands = np.searchsorted(np.array(self.layout.id_bases), ids, side="left") - 1
        moves = {(int(b), int(s)): int(t) for wave in plan.waves for b, s, t in wave}
        for page, band, old, new in zip(ids.tolist(), bands.tolist(), held.tolist(), frames.tolist(), strict=True):
            moved = old > 0 and moves.get((band, old)) == new
            if old > 0 and not moved:
                self.checked_released += 1
                self._check(page, band, old, "released")
            if new > 0:
                self._pending.append((page, band, new, moved))

    def after(self, state: ArenaState, plan: Plan) -> None:
        """Check every frame that moved and stamp every frame that was handed out."""
        for page, band, frame, moved in self._pending:
            if moved:
                self.checked_moved += 1
                self._check(page, band, frame, "moved")
        for page, band, frame, moved in self._pending:
            if not moved:
                self._write(page, band, frame)
        self._pending = []

    def check_live(self, state: ArenaState) -> int:
        """Check every live page, beyond the equation. Returns: how many."""
        for page in self._stamp_of:
            band = int(np.searchsorted(np.array(self.layout.id_bases), page, side="left")) - 1
            self._check(page, band, int(state.frames_of(np.array([page]))[0]), "live", keep=True)
        return len(self._stamp_of)

    def _write(self, page: int, band: int, frame: int) -> None:
        self._serial += 1
        self._stamp_of[page] = self._serial
        body, tail = self._frame(band, frame)
        row = _pattern(self._serial)
        body[:] = row
        tail[:] = row[: len(tail)]
        self.stamped += 1

    def _check(self, page: int, band: int, frame: int, when: str, *, keep: bool = False) -> None:
        serial = self._stamp_of.get(page, 0) if keep or when == "moved" else self._stamp_of.pop(page, 0)
        body, tail = self._frame(band, frame)
        row = _pattern(serial)
        if serial and bool((body == row).all()) and bool((tail == row[: len(tail)]).all()):
            return
        if len(self.violations) < STAMPS_KEPT:
            name = self.layout.bands[band].name
            self.violations.append(f"STAMP-1 {name} page {page}, {when} at frame {frame}: its bytes are not its own")
        else:
            self.violations.append("STAMP-1 (more)")

    def _frame(self, band: int, frame: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The words of one frame: whole pattern rows, and what is left over."""
        size = self.layout.bands[band].frame_bytes
        words = self.buffer[frame * size : (frame + 1) * size].view(np.uint64)
        rows = len(words) // BLOCK_WORDS
        return words[: rows * BLOCK_WORDS].reshape(rows, BLOCK_WORDS), words[rows * BLOCK_WORDS :]


_RAMP = np.arange(BLOCK_WORDS, dtype=np.uint64)


def _pattern(serial: int) -> NDArray[np.uint64]:
    """The words of stamp ``serial``: neighbours differ everywhere, and so do neighbouring positions."""
    return _RAMP + np.uint64(serial * ODD_STRIDE % 2**64)
