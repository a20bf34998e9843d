"""How plans become chunks: whatever is merged, sampled or cut, the frames that move are those of the plan."""

from __future__ import annotations

import random

import numpy as np
import pytest

from core_pure.plan import POISON, ZERO, Rows, triples
from shell_gpu import chunk
from shell_gpu.packing import RUN_BYTES, SAMPLE_ROWS, Work, pack, split

UNITS = (1, 4, 1 << 10)
"""16-byte units per frame of three bands."""


def moves_of(words: Rows) -> list[list[tuple[int, int, int]]]:
    """Per wave of one chunk, (units, source, target) of every single frame that the kernel would move."""
    waves = []
    for number in range(int(words[chunk.AT_WAVES])):
        at, segments = words[chunk.AT_WAVE + 2 * number : chunk.AT_WAVE + 2 * number + 2].tolist()
        moved = []
        for _ in range(segments):
            rows, count, units, longest = words[at : at + chunk.SEGMENT_WORDS].tolist()
            for run, source, target in words[rows : rows + 3 * count].reshape(count, 3).tolist():
                length = 1 if longest == 1 else run
                assert 1 <= length <= longest and (length == 1 or length * units * chunk.UNIT_BYTES <= RUN_BYTES)
                moved += [(units, source + place, target + place) for place in range(length)]
            at += chunk.SEGMENT_WORDS
        waves.append(moved)
    return waves


def piece(rng: random.Random, count: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets of one stretch: neighbours rising, neighbours falling, or in no order."""
    sources = first + np.arange(count)
    targets = sources + 10**6
    way = rng.randrange(3)
    if way == 0:
        return sources, targets
    if way == 1:
        return sources[::-1], targets[::-1]
    order = np.random.default_rng(rng.randrange(99)).permutation(count)
    return sources[order], targets[np.random.default_rng(rng.randrange(99)).permutation(count)]


@pytest.mark.parametrize("seed", range(12))
def test_a_packed_wave_moves_exactly_its_frames(seed: int) -> None:
    """Rising, falling and scattered stretches of all lengths, three bands: in chunks of any capacity, each frame moves once."""
    rng = random.Random(seed)
    sizes = (1, 63, 64, 500, SAMPLE_ROWS, 3 * SAMPLE_ROWS)
    wave = np.concatenate(
        [triples(band, *piece(rng, rng.choice(sizes), 10**5 * number)) for band in range(3) for number in range(rng.randint(1, 3))]
    )
    if seed % 3 == 0:  # bands in turns, as no core plan has them
        wave = np.ascontiguousarray(wave[np.random.default_rng(seed).permutation(len(wave))])
    wanted = sorted((UNITS[band], source, target) for band, source, target in wave.tolist())
    for capacity in (4 * len(wave) + 256, rng.choice((999, 5000, 1 << 16))):
        out = np.zeros(capacity, np.int32)
        moved = []
        for part in split(Work([wave]), capacity, len(UNITS)):
            out[:] = -7
            assert pack(part, UNITS, out) <= part.words(len(UNITS)) <= capacity
            moved += [each for moves in moves_of(out) for each in moves]
        assert sorted(moved) == wanted


def test_neighbours_are_merged_and_strangers_are_not() -> None:
    """A shift of neighbouring frames takes few rows, of at most RUN_BYTES each; scattered frames keep a row each."""
    frames = np.arange(5 * SAMPLE_ROWS)
    merged = -(-len(frames) * UNITS[1] * chunk.UNIT_BYTES // RUN_BYTES)
    out = np.zeros(1 << 17, np.int32)
    for sources, targets, wanted in (
        (frames, frames + 10**6, merged),
        (frames[::-1], frames[::-1] + 10**6, merged),
        (frames, frames[::-1] + 10**6, len(frames)),
        (2 * frames, frames + 10**6, len(frames)),
    ):
        pack(Work([triples(1, sources, targets)]), UNITS, out)
        assert out[out[chunk.AT_WAVE] + 1] == wanted


@pytest.mark.parametrize("shuffled", [False, True])
def test_packed_fills_are_those_of_the_plan(shuffled: bool) -> None:
    """Both patterns, all bands, in band order or in none: each frame is filled once, with its pattern."""
    fills = np.concatenate([triples(band, np.arange(40), (np.arange(40) + band) % 2) for band in range(3)])
    assert {ZERO, POISON} == set(fills[:, 2].tolist())
    if shuffled:
        fills = np.ascontiguousarray(fills[np.random.default_rng(1).permutation(len(fills))])
    out = np.zeros(1 << 12, np.int32)
    pack(Work([], fills=fills), UNITS, out)
    at, segments = out[chunk.AT_FILLS : chunk.AT_FILLS + 2].tolist()
    filled = []
    for segment in out[at : at + segments * chunk.SEGMENT_WORDS].reshape(segments, -1).tolist():
        rows, count, units, pattern = segment
        filled += [(units, frame, pattern) for frame in out[rows : rows + count].tolist()]
    assert sorted(filled) == sorted((UNITS[band], frame, pattern) for band, frame, pattern in fills.tolist())
