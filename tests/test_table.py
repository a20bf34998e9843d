"""The persistent table against a plain list per version: trees, long chains, interrupts at every opcode, threads, memory."""

from __future__ import annotations

import gc
import random
import sys
import threading
import tracemalloc
from types import FrameType
from typing import Any

import numpy as np
import pytest

import core_pure.table
from core_pure.errors import WrongThread
from core_pure.table import Table

TREES = 300
CHAIN = 100_000
WIDTH = 12


def random_index(rng: random.Random, width: int) -> Any:
    """A slice, possibly empty, or distinct positions in any order."""
    if rng.random() < 0.4:
        start = rng.randrange(width + 1)
        return slice(start, rng.randrange(start, width + 1))
    return np.array(rng.sample(range(width), rng.randint(0, min(6, width))), np.intp)


def positions(index: Any, width: int) -> list[int]:
    """The positions that an index names."""
    return list(range(width))[index] if isinstance(index, slice) else index.tolist()


def grow(rng: random.Random, versions: list[tuple[Table, list[int]]]) -> None:
    """One more version from any version so far, in any of the ways that the core writes."""
    table, content = versions[rng.randrange(len(versions))] if rng.random() < 0.5 else versions[-1]
    index = random_index(rng, len(content))
    where = positions(index, len(content))
    values = rng.randrange(-5, 100) if rng.random() < 0.3 else np.array([rng.randrange(-5, 100) for _ in where], np.int32)
    after = list(content)
    for at, position in enumerate(where):
        after[position] = values if isinstance(values, int) else int(values[at])
    if rng.randrange(2):
        new = table.write(index, values, np.array([content[position] for position in where], np.int32))
    else:
        new = table.write(index, values)
    versions.append((new, after))


def test_random_version_trees_equal_plain_lists() -> None:
    """300 trees of versions, written at and read from anywhere: every version keeps its own contents for ever."""
    rng = random.Random(11)
    for _ in range(TREES):
        width = rng.choice((1, 2, 5, 17, 64))
        first = [rng.randrange(9) for _ in range(width)]
        versions = [(Table.of(np.array(first, np.int32)), first)]
        for _ in range(rng.randrange(5, 40)):
            grow(rng, versions)
            table, content = versions[rng.randrange(len(versions))]
            index = random_index(rng, width)
            assert table.read(index).tolist() == [content[position] for position in positions(index, width)]
            at, value = rng.randrange(width), rng.choice(content)
            low, high = sorted((rng.randrange(width + 1), rng.randrange(width + 1)))
            equal = [position for position in range(low, high) if content[position] == value]
            other = [position for position in range(low, high) if content[position] != value]
            assert table.item(at) == content[at]
            assert table.find(value, low, high).tolist() == equal
            assert table.find(value, low, high, from_top=True).tolist() == equal[::-1]
            above = [position for position in range(low, high) if content[position] > value]
            assert table.find_above(value, low, high).tolist() == above
            assert table.first_other(value, low, high) == (other[0] if other else high)
            assert table.last_other(value, low, high) == (other[-1] if other else low - 1)
        rng.shuffle(versions)
        assert all(table.copy().tolist() == content for table, content in versions)


@pytest.mark.parametrize("drop_newest_first", [True, False])
def test_chains_of_a_hundred_thousand_versions(drop_newest_first: bool) -> None:
    """Re-rooting over 10⁵ versions, both ways, and letting all of them go needs no recursion."""
    first = Table.full(CHAIN, 0)
    versions = [first]
    for at in range(CHAIN):
        versions.append(versions[-1].write(np.array([at]), at + 1))
    for at in (0, CHAIN, CHAIN // 2, 0):
        total = at * (at + 1) // 2
        assert int(versions[at].copy().sum(dtype=np.int64)) == total
    if drop_newest_first:
        versions.reverse()
    last = versions[-1]
    expected = last.copy()
    versions.clear()
    del first
    gc.collect()
    assert np.array_equal(last.copy(), expected)


def test_a_lone_old_version_lets_the_whole_chain_go() -> None:
    """The oldest of 10⁵ versions, the only one named, holds all differences; dropping it frees them without recursion."""
    first = Table.full(8, 0)
    newest = first
    for at in range(CHAIN):
        newest = newest.write(np.array([at % 8]), at)
    del newest
    gc.collect()
    assert first.read(slice(0, 8)).tolist() == [0] * 8
    del first
    gc.collect()


# --- interrupts ----------------------------------------------------------------------------------------------------------


class _Interrupt:
    """Raises KeyboardInterrupt before the n-th opcode that runs in files whose path holds ``where``."""

    def __init__(self, after: int, where: str) -> None:
        self.left = after
        self.where = where
        self.raised = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.where not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.raised = True
                raise KeyboardInterrupt
        return self


def interrupted(after: int, action: Any, where: str = core_pure.table.__file__) -> bool:
    """Run ``action`` with an interrupt at the n-th opcode; False when it had fewer opcodes."""
    interrupt, before = _Interrupt(after, where), sys.gettrace()
    sys.settrace(interrupt)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupt.raised


def a_tree(seed: int) -> tuple[random.Random, list[tuple[Table, list[int]]]]:
    """A small tree of versions whose base array spells one in the middle."""
    rng = random.Random(seed)
    versions = [(Table.of(np.arange(WIDTH, dtype=np.int32)), list(range(WIDTH)))]
    for _ in range(8):
        grow(rng, versions)
    versions[rng.randrange(len(versions))][0].item(0)
    return rng, versions


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupt_at_any_opcode_harms_no_version(seed: int) -> None:
    """Ctrl-C before the k-th opcode of writes and re-rootings, for every k: all versions read right, and go on working."""
    opcodes, harmless = 0, False
    while not harmless:
        opcodes += 1
        rng, versions = a_tree(seed)

        def action(rng: random.Random = rng, versions: list[tuple[Table, list[int]]] = versions) -> None:
            for _ in range(2):
                grow(rng, versions)
                versions[rng.randrange(len(versions))][0].read(slice(0, 3))

        harmless = not interrupted(opcodes, action)
        order = list(range(len(versions)))
        random.Random(opcodes).shuffle(order)
        for at in order:
            table, content = versions[at]
            assert table.copy().tolist() == content, f"version {at} after an interrupt at opcode {opcodes}"
        after = random.Random(opcodes)
        for _ in range(3):
            grow(after, versions)
        assert all(table.copy().tolist() == content for table, content in versions)
    assert opcodes > 100


def test_two_interrupts_in_a_row_harm_no_version() -> None:
    """A second Ctrl-C while the first one's write is being finished changes nothing either."""
    rounds = 0
    for first in range(20, 240, 7):
        for second in range(1, 60, 3):
            rng, versions = a_tree(5)
            interrupted(first, lambda rng=rng, versions=versions: [grow(rng, versions) for _ in range(3)])
            oldest = versions[0][0]
            rounds += interrupted(second, oldest.copy)
            assert all(table.copy().tolist() == content for table, content in versions)
    assert rounds > 100


# --- what a table promises besides -----------------------------------------------------------------------------------------


def test_nothing_handed_out_is_the_base_array() -> None:
    """No result of any method shares memory with the base array, so nobody can write into a version."""
    source = np.arange(WIDTH, dtype=np.int32)
    table = Table.of(source)
    base = table._store.array
    newer = table.write(np.array([1, 2]), np.array([7, 8]))
    results = [
        source,
        newer.copy(),
        newer.read(slice(0, 5)),
        newer.read(slice(None)),
        newer.read(np.array([3, 4])),
        newer.read(...),
        newer.find(7, 0, WIDTH),
        newer.find_above(0, 0, WIDTH),
    ]
    assert newer._store.array is base
    assert not any(np.shares_memory(result, base) for result in results)
    kept = newer.copy().tolist()
    for result in results:
        if result.flags.writeable:
            result[...] = -9
    assert newer.copy().tolist() == kept
    assert table.copy().tolist() == list(range(WIDTH))


def test_equality_and_hash_follow_contents() -> None:
    """Two tables with the same numbers are equal and hash alike, whatever their histories; one cell apart they differ."""
    first = Table.of(np.arange(WIDTH, dtype=np.int32))
    changed = first.write(np.array([3]), 99)
    back = changed.write(np.array([3]), 3)
    other = Table.of(np.arange(WIDTH, dtype=np.int32))
    assert first == back == other
    assert hash(first) == hash(back) == hash(other)
    assert first != changed
    assert len({first, back, other, changed}) == 2
    assert first != "a table"
    assert "int32" in repr(first)


def test_another_thread_is_refused_until_it_takes_the_table() -> None:
    """Reads and writes from a second thread raise WrongThread and change nothing; after hand_over it owns the table."""
    table, seen = Table.full(4, 1), []

    def work() -> None:
        for use in (lambda: table.read(slice(0, 2)), lambda: table.write(slice(0, 2), 5), table.copy, lambda: table == 3):
            try:
                use()
                seen.append("allowed")
            except WrongThread as error:
                seen.append("hand_over" in str(error))
        table.hand_over()
        seen.append(table.write(slice(0, 1), 5).copy().tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, True, True, "allowed", [5, 1, 1, 1]]  # a comparison with another type reads nothing
    with pytest.raises(WrongThread):
        table.copy()
    table.hand_over()
    assert table.copy().tolist() == [1, 1, 1, 1]


def held_bytes(hold: bool, writes: int, elements: int) -> int:
    """Bytes that ``writes`` writes of ``elements`` each leave behind, with or without the first version held."""
    table = Table.full(100_000, 0)
    rng = np.random.default_rng(1)
    kept = table if hold else None
    for _ in range(3):  # what numpy and the tables allocate once
        table = table.write(rng.integers(0, 100_000, 1), 1)
    tracemalloc.start()
    try:
        for _ in range(writes):
            table = table.write(rng.choice(100_000, elements, replace=False), 1)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept is None or kept.item(0) == 0
    return used


@pytest.mark.parametrize("elements", [1, 100, 1000])
def test_a_held_version_costs_what_its_docstring_says(elements: int) -> None:
    """Holding an old version keeps 12 bytes per element written and some hundred per write; holding none keeps nothing."""
    writes = 200
    per_write = held_bytes(True, writes, elements) / writes
    assert 12 * elements <= per_write <= 12 * elements + 520
    assert held_bytes(False, writes, elements) < 3 * (12 * elements + 520)


def test_a_table_knows_its_size() -> None:
    """Length and bytes are those of the base array, however many versions there are."""
    table = Table.full((5, 4), 0, np.int64)
    assert (len(table), table.nbytes) == (5, 160)
    newer = table.write(np.array([2]), np.arange(4))
    assert (len(newer), newer.nbytes) == (5, 160)
    assert table.read(np.array([2])).tolist() == [[0, 0, 0, 0]]
    assert newer.read(np.array([2, 1])).tolist() == [[0, 1, 2, 3], [0, 0, 0, 0]]


def test_tables_of_rows_keep_every_version() -> None:
    """200 trees of versions of a table with two axes, rows gathered and scattered: each version keeps its rows for ever."""
    rng = random.Random(3)
    for _ in range(200):
        length, width = rng.randrange(1, 9), rng.randrange(1, 5)
        content = np.array([[rng.randrange(99) for _ in range(width)] for _ in range(length)], np.int64)
        versions = [(Table.of(content), content)]
        for _ in range(12):
            table, rows = versions[rng.randrange(len(versions))]
            index = np.array(rng.sample(range(length), rng.randint(1, length)))
            written = np.array([[rng.randrange(99) for _ in range(width)] for _ in index], np.int64)
            after = rows.copy()
            after[index] = written
            versions.append((table.write(index, written, rows[index] if rng.random() < 0.5 else None), after))
        for table, rows in rng.sample(versions, len(versions)):
            index = np.array([rng.randrange(length) for _ in range(3)])
            assert np.array_equal(table.read(index), rows[index]) and np.array_equal(table.copy(), rows)
        with pytest.raises(ValueError, match="rows of shape"):
            versions[0][0].write(np.array([0]), np.zeros((1, width + 1), np.int64))
        assert np.array_equal(versions[-1][0].copy(), versions[-1][1])
