"""How many state snapshots a long sequence keeps: a policy with a bound that anyone can read (case F38).

A snapshot is a lease of its own (``Door.fork``), so it costs whole states; one every 128 tokens of a long prompt would fill an
arena. An engine asks ``due`` while it fills a prompt, and lets go of what ``kept`` leaves out. The distance between
snapshots doubles whenever there would be too many, so they always spread over the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from .errors import LeaseError


@frozen
class Retention:
    """At most ``most`` snapshots of one sequence, at multiples of ``every`` tokens."""

    every: int
    most: int

    def __attrs_post_init__(self) -> None:
        """Raise LeaseError for a distance or a bound that is no positive number."""
        if self.every < 1 or self.most < 1:
            raise LeaseError(f"a snapshot every {self.every} tokens, at most {self.most}; both must be at least 1")

    def due(self, tokens: int) -> bool:
        """Whether a snapshot belongs at this length."""
        return tokens > 0 and tokens % self.every == 0

    def kept(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Which of these snapshots to keep, ascending, at most ``most``: the newest, and multiples of every · 2ᵏ.

        k is the least that makes them few enough, so what is left out once is never wanted back.
        """
        known = sorted(set(positions))
        if not known:
            return ()
        step = self.every
        while (known[-1] - 1) // step >= self.most:  # as many multiples may lie below the newest
            step *= 2
        return (*(position for position in known[:-1] if position % step == 0), known[-1])
