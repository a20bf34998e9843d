"""``DryArena``: the arena's door without a buffer, and a way to watch any door's plans as they are carried out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core_pure.door import Door, Serving
from core_pure.leases import RowWrite
from core_pure.plan import Plan
from core_pure.state import ArenaState


class Watcher(Protocol):
    """Something that looks at the bytes, or counts, around each plan."""

    def before(self, state: ArenaState, plan: Plan) -> None:
        """The plan is about to be carried out on ``state``."""
        ...

    def after(self, state: ArenaState, plan: Plan) -> None:
        """It was carried out and led to ``state``."""
        ...


class Watched(Door):
    """A door whose plans are seen by ``watchers``. Mix in before a door with a projection."""

    watchers: Sequence[Watcher] = ()

    def _project(self, before: Serving, after: Serving, plan: Plan, writes: tuple[RowWrite, ...]) -> None:
        for watcher in self.watchers:
            watcher.before(before.state, plan)
        super()._project(before, after, plan, writes)
        for watcher in self.watchers:
            watcher.after(after.state, plan)


class DryArena(Watched):
    """Every decision of the arena, and no bytes: for planning, and for replays of memories larger than this machine's."""
