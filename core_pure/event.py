"""Events as data, the one door they pass through, their encoding, and the running digest.

A run is a layout and a list of events; replaying them gives the same states and the same digests on any machine. The digest
chains every event and plan: long arrays go through a 64-bit multilinear hash with a fixed key first (Carter & Wegman 1979;
Lemire & Kaser 2014), and BLAKE2b folds everything into the digest before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from struct import pack
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from .advance import advance, allocate, clear, release, resize
from .compact import compact
from .copies import copy
from .errors import RecordingError
from .fences import launch, retire
from .fits import Refusal
from .layout import Demand
from .pins import pin, unpin
from .plan import Plan
from .state import ArenaState, Outcome

Words = NDArray[np.int64]
NO_PAGES = np.empty(0, np.int64)
NO_PAGES.flags.writeable = False


def _same_pages(pages: NDArray[np.int64]) -> bytes:
    return np.asarray(pages, np.int64).tobytes()


@frozen
class Event:
    """One input to the core.

    kind: one of KINDS. number: the one figure a kind needs (retire: fence; compact: bytes limit; resize: bytes). reader: a
    fence or None. demand: pages per band. pages: ids to release, pin, unpin, copy or leave in place. flag: advance: withhold;
    compact: whether ``pages`` names the pages being written.
    """

    kind: str
    number: int | None = None
    reader: int | None = None
    demand: Demand = ()
    pages: NDArray[np.int64] = field(default=NO_PAGES, eq=_same_pages)
    flag: bool = False


def _advance(s: ArenaState, e: Event) -> Outcome | Refusal:
    return advance(s, release=e.pages, demand=e.demand or None, reader=e.reader, withhold=e.flag)


_TRANSITIONS: dict[str, Callable[[ArenaState, Event], Outcome | Refusal]] = {
    "allocate": lambda s, e: allocate(s, e.demand, reader=e.reader),
    "release": lambda s, e: release(s, e.pages, reader=e.reader),
    "advance": _advance,
    "compact": lambda s, e: compact(s, bytes_limit=e.number, reader=e.reader, written=e.pages if e.flag else None),
    "pin": lambda s, e: pin(s, e.pages),
    "unpin": lambda s, e: unpin(s, e.pages),
    "launch": lambda s, e: launch(s),
    "retire": lambda s, e: retire(s, _number(e.number)),
    "clear": lambda s, e: clear(s),
    "resize": lambda s, e: resize(s, _number(e.number)),
    "copy": lambda s, e: copy(s, e.pages, reader=e.reader),
}
KINDS = tuple(_TRANSITIONS)


def apply(state: ArenaState, event: Event) -> Outcome | Refusal:
    """The one door: the event's transition, and the digest moved on. A refusal moves nothing, the digest neither.

    Raises: what the transition raises; RecordingError for an unknown kind.
    """
    if event.kind not in _TRANSITIONS:
        raise RecordingError(f"unknown event {event.kind!r}; known: {', '.join(KINDS)}")
    outcome = _TRANSITIONS[event.kind](state, event)
    if isinstance(outcome, Refusal):
        return outcome
    return passed(outcome, event)


# --- encoding ----------------------------------------------------------------------------------------------------------

EVENT_HEADER = 3
"""Words before demand and pages: kind and flag with the two lengths; number; reader."""
_NONE = -1


def _head(event: Event) -> int:
    return KINDS.index(event.kind) | event.flag << 8 | len(event.demand) << 16 | len(event.pages) << 32


def _number(value: int | None) -> int:
    return _NONE if value is None else value


def encode_event(event: Event) -> Words:
    """One event as int64 words: 24 bytes, 8 per band of a demand, 8 per page id."""
    words = np.empty(EVENT_HEADER + len(event.demand) + len(event.pages), np.int64)
    words[:EVENT_HEADER] = (_head(event), _number(event.number), _number(event.reader))
    words[EVENT_HEADER : EVENT_HEADER + len(event.demand)] = event.demand
    words[EVENT_HEADER + len(event.demand) :] = event.pages
    return words


def decode_event(words: Words) -> tuple[Event, int]:
    """The first event of a run of words, and how many words it took. Raises: RecordingError."""
    if len(words) < EVENT_HEADER:
        raise RecordingError(f"an event starts with {EVENT_HEADER} words; {len(words)} are left")
    head, number, reader = (int(x) for x in words[:EVENT_HEADER])
    kind, flag, bands, pages = head & 0xFF, head >> 8 & 0xFF, head >> 16 & 0xFFFF, head >> 32
    end = EVENT_HEADER + bands + pages
    if head < 0 or kind >= len(KINDS) or flag > 1 or end > len(words) or number < _NONE or reader < _NONE:
        raise RecordingError(f"damaged event: head {head}, number {number}, reader {reader}, {len(words)} words left")
    event = Event(
        KINDS[kind],
        None if number == _NONE else number,
        None if reader == _NONE else reader,
        tuple(int(x) for x in words[EVENT_HEADER : EVENT_HEADER + bands]),
        words[EVENT_HEADER + bands : end].copy(),
        bool(flag),
    )
    return event, end


# --- digest ------------------------------------------------------------------------------------------------------------

HASHED_WHOLE = 2048
"""Arrays of up to this many bytes go into BLAKE2b as they are; it then costs less than the multiplication does."""


@lru_cache(maxsize=32)
def _keys(count: int) -> NDArray[np.int64]:
    """The first ``count`` odd 64-bit multipliers: SplitMix64 of 1, 2, 3 … (Steele, Lea & Flood 2014)."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    keys = ((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)  # products wrap alike, signed or not
    keys.flags.writeable = False
    return keys


def multilinear64(words: NDArray[Any]) -> int:
    """Σ word[i] · key[i] mod 2⁶⁴ over the 64-bit words of a contiguous array, signed; an odd int32 at the end is one of its own."""
    flat = words.reshape(-1)
    if flat.dtype != np.int32:
        return int(np.dot(flat.view(np.int64), _keys(_enough(len(flat)))[: len(flat)]))
    pairs = len(flat) >> 1
    keys = _keys(_enough(pairs))
    total = int(np.dot(flat[: 2 * pairs].view(np.int64), keys[:pairs]))
    if len(flat) & 1:
        total = (total + int(flat[-1]) * int(keys[pairs]) + (1 << 63)) % (1 << 64) - (1 << 63)
    return total


def _enough(count: int) -> int:
    """A power of two above ``count``: few sizes, so that keys are made once."""
    return 1 << count.bit_length()


def chained(digest: bytes, event: Event, plan: Plan) -> bytes:
    """The digest after one more event and its plan, 16 bytes.

    BLAKE2b over the digest before, the event's figures and demand, and length and contents of each array: page ids, waves,
    copies and table rows. Fills follow from rows and layout; their number is enough.
    """
    figures = [_head(event), _number(event.number), _number(event.reader), *event.demand, _number(plan.wait), len(plan.fills)]
    blocks: list[NDArray[Any]] = [np.asarray(event.pages, np.int64), *plan.waves, plan.copies, plan.rows]
    figures += [len(block) for block in blocks]
    folded = blake2b(digest, digest_size=16)
    folded.update(pack(f"<{len(figures)}q", *figures))
    for block in blocks:
        if len(block):
            folded.update(block.tobytes() if block.nbytes <= HASHED_WHOLE else pack("<q", multilinear64(block)))
    return folded.digest()


def passed(outcome: Outcome, event: Event) -> Outcome:
    """The outcome with its digest moved on: what every transition that changes something goes through."""
    after = outcome.state
    digest = chained(after.digest, event, outcome.plan)
    moved_on = ArenaState(after.layout, after.bands, after.launched, after.retired, digest)
    return Outcome(moved_on, outcome.plan, outcome.pages)


def content_digest(state: ArenaState) -> bytes:
    """A digest of what the state *is*, not of how it came to be: equal for equal states. For tests. Cost: O(frames)."""
    return blake2b(repr([band.facts() for band in state.bands]).encode(), digest_size=16).digest()
