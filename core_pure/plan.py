"""The effects of one transition as data: what the shell must do to the buffer and to the tables.

Order of effects: ``wait`` on the stream; waves of moves, one after the other; copies; then fills and table rows, which
are independent of each other. Within a wave every target is disjoint, in bytes and across bands, from every byte that
is occupied when the wave starts, so a wave is one launch. This file knows nothing of bands' sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from .errors import RecordingError

Rows = NDArray[np.int32]

PLAN_VERSION = 1
HEADER_WORDS = 12
ZERO, POISON = 0, 1
"""Fill patterns: zero bytes, or bytes that read as NaN in every float type."""

NO_MOVES: Rows = np.empty((0, 3), np.int32)
NO_ROWS: Rows = np.empty((0, 2), np.int32)
for _empty in (NO_MOVES, NO_ROWS):
    _empty.flags.writeable = False


def _same(a: Rows, b: Rows) -> bool:
    return a.shape == b.shape and bool((a == b).all())


@frozen(eq=False)
class Plan:
    """The ordered effects of one transition.

    waves: int32[n, 3] each, rows (band, source frame, target frame). copies: int32[c, 3], same columns, the source stays
    bound. fills: int32[f, 3], rows (band, frame, pattern). rows: int32[r, 2], (page id, frame or -1). wait: fence or None.
    """

    waves: tuple[Rows, ...] = ()
    copies: Rows = field(default=NO_MOVES)
    fills: Rows = field(default=NO_MOVES)
    rows: Rows = field(default=NO_ROWS)
    wait: int | None = None

    @property
    def moves(self) -> int:
        """Frames moved, copies not counted."""
        return sum(len(wave) for wave in self.waves)

    @cached_property
    def words(self) -> Rows:
        """The encoded plan, made once: the digest hashes what the device is sent. Not to be written to."""
        words = encode(self)
        words.flags.writeable = False
        return words

    @property
    def is_empty(self) -> bool:
        """True when nothing at all is to be done."""
        return not (self.waves or len(self.copies) or len(self.fills) or len(self.rows) or self.wait is not None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return (
            self.wait == other.wait
            and len(self.waves) == len(other.waves)
            and all(_same(a, b) for a, b in zip(self.waves, other.waves, strict=True))
            and _same(self.copies, other.copies)
            and _same(self.fills, other.fills)
            and _same(self.rows, other.rows)
        )

    def __hash__(self) -> int:
        return hash(self.words.tobytes())


NOTHING = Plan()


def encoded_words(plan: Plan) -> int:
    """How many int32 words ``encode`` will write."""
    triples = plan.moves + len(plan.copies) + len(plan.fills)
    return HEADER_WORDS + len(plan.waves) + 3 * triples + 2 * len(plan.rows)


def encode(plan: Plan, out: Rows | None = None) -> Rows:
    """Write the plan into one int32 array (``out`` if it is given and long enough, for a staging ring).

    Layout: 12 header words (version, total words, waves, moves, copies, fills, table rows, wait as int64 or -1, 0, 0, 0);
    one word per wave (its rows); then move, copy and fill rows (3 words each) and table rows (2 words each).
    """
    total = encoded_words(plan)
    words: Rows = np.empty(total, np.int32) if out is None else out[:total]
    if len(words) < total:
        raise RecordingError(f"a plan of {total} words does not fit in {len(words)}")
    counts = (len(plan.waves), plan.moves, len(plan.copies), len(plan.fills), len(plan.rows))
    words[:7] = (PLAN_VERSION, total, *counts)
    words[7:9] = np.array([-1 if plan.wait is None else plan.wait], np.int64).view(np.int32)
    words[9:HEADER_WORDS] = 0
    at = HEADER_WORDS + len(plan.waves)
    words[HEADER_WORDS:at] = [len(wave) for wave in plan.waves]
    for block in (*plan.waves, plan.copies, plan.fills, plan.rows):
        if block.size:
            words[at : at + block.size] = block.reshape(-1)
            at += block.size
    return words


def decode(words: Rows) -> Plan:
    """The inverse of ``encode``. Raises: RecordingError on anything that ``encode`` cannot have written."""
    words = np.ascontiguousarray(words, np.int32).reshape(-1)
    if len(words) < HEADER_WORDS or words[0] != PLAN_VERSION:
        raise RecordingError(f"not a plan of version {PLAN_VERSION}: {words[:2].tolist()}")
    total, waves, moves, copies, fills, rows = (int(x) for x in words[1:7])
    wait = int(words[7:9].copy().view(np.int64)[0])
    sizes = [int(x) for x in words[HEADER_WORDS : HEADER_WORDS + waves]] if waves >= 0 else []
    expected = HEADER_WORDS + waves + 3 * (moves + copies + fills) + 2 * rows
    if (
        min(waves, moves, copies, fills, rows) < 0
        or wait < -1
        or total != expected
        or total != len(words)
        or sum(sizes) != moves
        or any(size <= 0 for size in sizes)
        or words[9:HEADER_WORDS].any()
    ):
        raise RecordingError(f"plan of {len(words)} words contradicts its header {words[:HEADER_WORDS].tolist()}")
    at = HEADER_WORDS + waves

    def take(count: int, width: int) -> Rows:
        nonlocal at
        block = words[at : at + count * width].reshape(count, width).copy()
        at += count * width
        return block

    return Plan(
        waves=tuple(take(size, 3) for size in sizes),
        copies=take(copies, 3),
        fills=take(fills, 3),
        rows=take(rows, 2),
        wait=None if wait == -1 else wait,
    )


def triples(band: int, first: Any, second: Any) -> Rows:
    """int32[n, 3] rows (band, first[i], second[i]); ``second`` may be one number."""
    block = np.empty((len(first), 3), np.int32)
    block[:, 0] = band
    block[:, 1] = first
    block[:, 2] = second
    return block


def stack(blocks: Iterable[Rows], empty: Rows) -> Rows:
    """Concatenate row blocks; ``empty`` when there are none, the block itself when there is one."""
    full = [block for block in blocks if len(block)]
    if len(full) < 2:
        return full[0] if full else empty
    return np.concatenate(full)
