"""Undoing a step. Before its plan is applied the old value is all it takes; afterwards, this plan and the old value.

The tables come back exactly. The bytes of every page that lived before and after come back too, because moves are undone in
reverse order. Bytes of pages *released* by the step are still there only if it ran with ``withhold=True``, which keeps
their frames in quarantine until the step's fence is retired (the commit).
"""

from __future__ import annotations

import numpy as np

from .plan import NO_MOVES, Plan
from .state import ArenaState


def undo(before: ArenaState, plan: Plan) -> Plan:
    """The plan that leads an arena on which ``plan`` was applied back to ``before``. Cost: O(rows + moves)."""
    ids = plan.rows[:, 0]
    frames = before.frames_of(ids)
    rows = np.stack((ids, np.where(frames > 0, frames, -1).astype(np.int32)), axis=1)
    waves = tuple(np.ascontiguousarray(wave[:, [0, 2, 1]]) for wave in reversed(plan.waves))
    return Plan(waves, NO_MOVES, NO_MOVES, rows, plan.wait)
