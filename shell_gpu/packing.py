"""From an encoded plan to chunks: the words of one upload each. numpy only; the format is in ``chunk``.

A plan that fits goes into one chunk. A larger one is cut in order: a wave may be cut anywhere, because its rows are
independent of each other; fills and table rows follow the last wave.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from core_pure.errors import RecordingError
from core_pure.plan import HEADER_WORDS as PLAN_HEADER_WORDS
from core_pure.plan import NO_MOVES, NO_ROWS, PLAN_VERSION, Plan, Rows

from . import chunk

MERGE_ROWS_MIN = 64
"""Waves shorter than this are not searched for runs: the search costs more than the launch gains."""
MERGE_GAIN = 4
"""Runs are used when they shorten the wave at least this much; mixed lengths would leave programs idle."""
SAMPLE_ROWS = 4096
"""Of a much longer wave, so many rows tell whether it is searched for runs at all."""
MOVE = np.dtype([("band", np.int32), ("frames", np.int64)])
"""A wave row with source and target read as one number: neighbours differ by BOTH_ONE_ON."""
BOTH_ONE_ON = (1 << 32) + 1
RUN_BYTES = 1 << 18
"""Longest run that one row names, so that rows of one segment cost alike."""

PATTERNS = 2
"""Fill patterns: zero and poison."""

HEADER = Struct(f"={chunk.HEADER_WORDS}i")
SEGMENT = Struct(f"={chunk.SEGMENT_WORDS}i")
"""Written as plain ints: a numpy assignment from a list costs ten times as much."""

NO_BATCH: Rows = np.empty((0, chunk.BATCH_ROW_WORDS), np.int32)
NO_BATCH.flags.writeable = False


@frozen
class Batch:
    """What one step wants translated.

    rows: int32[n, 5] as in ``chunk``; tokens: new tokens of the step; stale_tokens: end of the write slots that the
    step before filled, zeroed from ``tokens`` on.
    """

    rows: Rows = NO_BATCH
    tokens: int = 0
    stale_tokens: int = 0


NO_STEP = Batch()


@define
class Work:
    """What is still to be packed: waves of (band, source, target), fills, table rows, lease-table writes and the
    batch.
    """

    waves: list[Rows]
    fills: Rows = NO_MOVES
    rows: Rows = NO_ROWS
    writes: Rows = NO_ROWS
    batch: Batch = NO_STEP
    wait: int = -1

    def words(self, bands: int) -> int:
        """An upper bound of the chunk's words."""
        segments = chunk.SEGMENT_WORDS * (bands * len(self.waves) + 2 * bands)
        triples = sum([len(wave) for wave in self.waves])
        pairs = len(self.rows) + len(self.writes)
        batch = len(self.batch.rows) * chunk.BATCH_ROW_WORDS
        return chunk.HEADER_WORDS + segments + 3 * triples + len(self.fills) + 2 * pairs + batch


def read_plan(words: Rows) -> Work:
    """The parts of an encoded plan, as views of its words. Raises: RecordingError where the header contradicts
    itself.
    """
    if len(words) < PLAN_HEADER_WORDS:
        raise RecordingError(f"an encoded plan has at least {PLAN_HEADER_WORDS} words, this one {len(words)}")
    version, total, waves, moves, copies, fills, rows, low, high = words[:9].tolist()
    if version != PLAN_VERSION or total > len(words) or min(waves, moves, copies, fills, rows) < 0:
        raise RecordingError(f"not an encoded plan of version {PLAN_VERSION}: {words[:9].tolist()}")
    if total != PLAN_HEADER_WORDS + waves + 3 * (moves + copies + fills) + 2 * rows:
        raise RecordingError(f"plan of {total} words contradicts its header {words[:9].tolist()}")
    at = PLAN_HEADER_WORDS + waves
    work = Work([], wait=(high << 32) | (low & 0xFFFFFFFF))
    if waves or copies:
        sizes = [*words[PLAN_HEADER_WORDS:at].tolist(), copies]
        if sum(sizes) != moves + copies:
            raise RecordingError(f"waves of {sizes} rows in a plan of {moves} moves and {copies} copies")
        for size in sizes:
            if size:
                work.waves.append(words[at : at + 3 * size].reshape(size, 3))
                at += 3 * size
    if fills:
        work.fills = words[at : at + 3 * fills].reshape(fills, 3)
        at += 3 * fills
    if rows:
        work.rows = words[at : at + 2 * rows].reshape(rows, 2)
    return work


def work_of(plan: Plan) -> Work:
    """The parts of a plan that was not encoded: the same work as ``read_plan(encode(plan))``, without the copy."""
    waves = [*plan.waves, plan.copies] if len(plan.copies) else list(plan.waves)
    return Work(waves, plan.fills, plan.rows, wait=-1 if plan.wait is None else plan.wait)


def split(work: Work, capacity: int, bands: int) -> Iterator[Work]:
    """The same effects in the same order, as parts that each fit in ``capacity`` words.

    The batch stays whole and comes last. Raises: RecordingError if the batch alone does not fit.
    """
    if Work([], batch=work.batch).words(bands) > capacity:
        raise RecordingError(f"a batch of {len(work.batch.rows)} rows does not fit in {capacity} words")
    part = Work([])
    for wave in work.waves:
        while len(wave):
            if len(part.waves) == chunk.WAVES_PER_CHUNK:
                yield part
                part = Work([])
            room = capacity - Work([*part.waves, NO_MOVES]).words(bands)
            if room < 3:
                yield part
                part = Work([])
                continue
            part.waves.append(wave[: room // 3])
            wave = wave[room // 3 :]
    for name, size in (("fills", 1), ("rows", 2), ("writes", 2)):
        left: Rows = getattr(work, name)
        while len(left):
            room = (capacity - part.words(bands)) // size
            setattr(part, name, left[:room])
            left = left[room:]
            if len(left):
                yield part
                part = Work([])
    if Work(part.waves, part.fills, part.rows, part.writes, work.batch).words(bands) > capacity:
        yield part
        part = Work([])
    part.batch = work.batch
    yield part


def pack(work: Work, units: tuple[int, ...], out: Rows) -> int:
    """Write one chunk. ``units``: 16-byte units per frame, per band. Returns the words used; ``out`` must be long
    enough.
    """
    header = [0] * chunk.HEADER_WORDS
    header[chunk.AT_VERSION] = chunk.VERSION
    header[chunk.AT_WAVES] = len(work.waves)
    at = chunk.HEADER_WORDS
    for number, wave in enumerate(work.waves):
        segments, at = _pack_wave(wave, units, out, at)
        header[chunk.AT_WAVE + 2 * number], at = at, _pack_segments(segments, out, at)
        header[chunk.AT_WAVE + 2 * number + 1] = len(segments)
    if len(work.fills):
        segments, at = _pack_fills(work.fills, units, out, at)
        header[chunk.AT_FILLS], at = at, _pack_segments(segments, out, at)
        header[chunk.AT_FILLS + 1] = len(segments)
    for place, block in ((chunk.AT_ROWS, work.rows), (chunk.AT_WRITES, work.writes), (chunk.AT_BATCH, work.batch.rows)):
        if len(block):
            header[place], header[place + 1] = at, len(block)
            out[at : at + block.size] = block.reshape(-1)
            at += block.size
    header[chunk.AT_TOKENS], header[chunk.AT_TOKENS + 1] = work.batch.tokens, work.batch.stale_tokens
    header[chunk.AT_WORDS] = at
    HEADER.pack_into(out.data, 0, *header)
    return at


def _pack_segments(segments: list[tuple[int, int, int, int]], out: Rows, at: int) -> int:
    """Write segment words at ``at``; returns the end."""
    for segment in segments:
        SEGMENT.pack_into(out.data, at * out.itemsize, *segment)
        at += chunk.SEGMENT_WORDS
    return at


def _groups(keys: Rows) -> list[tuple[int, int]]:
    """[start, end) of each stretch of equal keys."""
    if len(keys) == 1:
        return [(0, 1)]
    cuts = (keys[1:] != keys[:-1]).nonzero()[0].tolist()
    return list(pairwise([0, *[at + 1 for at in cuts], len(keys)]))


def _pack_wave(wave: Rows, units: tuple[int, ...], out: Rows, at: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """Write the rows of one wave band by band, runs merged where that pays; returns its segments and the end."""
    groups = _groups(wave[:, 0])
    if len(groups) > len(units):
        wave = wave[np.argsort(wave[:, 0], kind="stable")]
        groups = _groups(wave[:, 0])
    segments = []
    for start, end in groups:
        band = int(wave[start, 0])
        rows, longest = _runs(wave[start:end], max(1, RUN_BYTES // (units[band] * chunk.UNIT_BYTES)))
        out[at : at + rows.size] = rows.reshape(-1)
        segments.append((at, len(rows), units[band], longest))
        at += rows.size
    return segments, at


def _runs(wave: Rows, longest: int) -> tuple[Rows, int]:
    """Rows (run, source, target) of one band, and the longest run; the rows as they are, and 1, where merging is no gain."""
    count = len(wave)
    if count < MERGE_ROWS_MIN or longest == 1:
        return wave, 1
    if count > 2 * SAMPLE_ROWS and not _pays(_run_starts(wave[:SAMPLE_ROWS])[1], SAMPLE_ROWS):
        return wave, 1
    wave, starts = _run_starts(wave)
    if not _pays(starts, count):
        return wave, 1
    lengths = np.diff(np.append(starts, count))
    pieces = -(-lengths // longest)
    place = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # piece number inside its run
    first = np.repeat(starts, pieces) + place * longest
    rows = wave[first]
    rows[:, 0] = np.minimum(np.repeat(lengths, pieces) - place * longest, longest)
    return rows, int(rows[:, 0].max())


def _run_starts(wave: Rows) -> tuple[Rows, NDArray[np.intp]]:
    """The rows, turned round where their frames fall rather than rise, and where among them a run of neighbours starts."""
    frames = np.ascontiguousarray(wave).view(MOVE)["frames"].reshape(-1).copy()
    steps = frames[1:] - frames[:-1]
    rising, falling = steps == BOTH_ONE_ON, steps == -BOTH_ONE_ON
    if np.count_nonzero(falling) > np.count_nonzero(rising):
        wave, rising = wave[::-1], falling[::-1]
    return wave, np.concatenate(([0], (~rising).nonzero()[0] + 1))


def _pays(starts: NDArray[np.intp], rows: int) -> bool:
    return len(starts) * MERGE_GAIN <= rows


def _pack_fills(fills: Rows, units: tuple[int, ...], out: Rows, at: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """Write the frames to fill, grouped by band and pattern; returns the segments and the end."""
    bands, patterns = fills[:, 0], fills[:, 2]
    keys = bands * PATTERNS + patterns if np.count_nonzero(patterns) else bands  # the core only zeroes
    groups = _groups(keys)
    if len(groups) > PATTERNS * len(units):  # the core writes band after band; anything else is sorted first
        order = np.argsort(keys, kind="stable")
        fills = fills[order]
        groups = _groups(keys[order])
    out[at : at + len(fills)] = fills[:, 1]
    segments = [(at + start, end - start, units[int(fills[start, 0])], int(fills[start, 2])) for start, end in groups]
    return segments, at + len(fills)
