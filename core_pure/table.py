"""A persistent array: the newest version owns one numpy array, each older version holds its difference to its successor.

Baker, "Shallow binding makes functional arrays fast" (1991); Conchon & Filliâtre, "A persistent union-find data
structure" (2007). Reading or writing the newest version costs what numpy costs; touching an older version re-roots the
array to it, at the cost of the differences in between. Every held old version keeps alive the index and the old values
of each later write (about 12 bytes per element written plus 250 bytes per write), so recorders keep events, not values.

A table belongs to one thread at a time; ``hand_over`` gives it to another. An interrupt (Ctrl-C) between any two
statements loses nothing: the write that was under way is noted in ``pending`` first and finished by the next access.
"""

from __future__ import annotations

from hashlib import blake2b
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import WrongThread

Index = Any
"""A slice, or an intp array of distinct positions along the first axis: no mask, and of one axis where the table has two."""


class _Store:
    """What all versions of one table share: the array, the version that it spells now, and a write in progress.

    cells: the array, or, where it has two axes, a view of it with one opaque record per row: numpy gathers and scatters records
    several times faster than rows.
    """

    __slots__ = ("array", "cells", "pending", "root", "thread")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.cells = array if array.ndim == 1 else array.view(f"V{array.strides[0]}").reshape(-1)
        self.root: Table | None = None
        self.pending: tuple[Table, Index, Any] | None = None
        self.thread = get_ident()

    def records(self, rows: Any) -> NDArray[Any]:
        """Rows of a table of two axes as records. Raises: ValueError for rows of another width."""
        packed = np.atleast_2d(np.ascontiguousarray(rows, self.array.dtype))
        if packed.shape[1:] != self.array.shape[1:]:
            raise ValueError(f"rows of shape {packed.shape[1:]} for a table of rows of shape {self.array.shape[1:]}")
        return packed.view(self.cells.dtype).reshape(-1)

    def finish(self) -> None:
        """Complete the write that an interrupt left half done. Repeating it is harmless."""
        if self.pending is not None:
            target, index, values = self.pending
            self.cells[index] = values
            self.root = target
            self.pending = None


class Table:
    """One version of a persistent array. Never hands out its base array, nor a view of it."""

    __slots__ = ("_link", "_store")
    _link: tuple[Table, Index, Any] | None
    _store: _Store

    @classmethod
    def of(cls, array: NDArray[Any]) -> Table:
        """A table with a copy of ``array`` as its contents."""
        return cls._over(_Store(array.copy()))

    @classmethod
    def full(cls, shape: int | tuple[int, ...], value: int, dtype: Any = np.int32) -> Table:
        """A table of one repeated value. Zeros cost no memory until they are written."""
        array = np.zeros(shape, dtype) if value == 0 else np.full(shape, value, dtype)
        return cls._over(_Store(array))

    @classmethod
    def _over(cls, store: _Store) -> Table:
        new = cls.__new__(cls)
        new._store, new._link = store, None
        store.root = new
        return new

    def _array(self) -> NDArray[Any]:
        """The base array, spelling this version. Internal: never let it out."""
        store = self._store
        if store.thread != get_ident():
            raise WrongThread("a table is used by one thread at a time; call hand_over() in the thread that takes it")
        if store.root is not self or store.pending is not None:
            self._reroot(store)
        return store.array

    def _reroot(self, store: _Store) -> None:
        store.finish()
        chain: list[Table] = []
        node = self
        while node is not store.root:
            chain.append(node)
            assert node._link is not None
            node = node._link[0]
        for node in reversed(chain):
            assert node._link is not None
            newer, index, values = node._link
            newer._link = (node, index, _copied(store.cells[index], index))
            store.pending = (node, index, values)
            store.cells[index] = values
            store.root = node
            store.pending = None
            node._link = None

    def write(self, index: Index, values: Any, old: Any = None) -> Table:
        """The version in which ``index`` holds ``values``.

        ``old``: what this version holds there, when the caller knows it, or an equivalent; it saves a gather. A table of two axes
        takes rows for both, no single number. Raises: ValueError for other shapes, WrongThread. Cost: O(len(index)).
        """
        store = self._store
        if store.root is not self or store.pending is not None or store.thread != get_ident():
            self._array()
        cells = store.cells
        if cells is not store.array:
            values, old = store.records(values), None if old is None else store.records(old)
        if old is None:
            old = cells[index].copy() if type(index) is slice else cells[index]
        new = _new(Table)
        new._store, new._link = store, None
        self._link = (new, index, old)  # link first: an interrupt below leaves this version right
        store.pending = (new, index, values)
        try:
            cells[index] = values
        except Exception:  # values of a wrong shape: nothing was written, and nothing is left to finish
            store.pending = None
            raise
        store.root = new
        store.pending = None
        return new

    def read(self, index: Index) -> NDArray[Any]:
        """A copy of the elements at ``index``."""
        array = self._array()
        if array.ndim > 1 and isinstance(index, np.ndarray):
            return self._store.cells.take(index).view(array.dtype).reshape(-1, array.shape[1])
        return _copied(array[index], index)

    def item(self, index: int) -> int:
        """One element of a one-dimensional table."""
        return int(self._array()[index])

    def copy(self) -> NDArray[Any]:
        """The whole contents, copied."""
        return self._array().copy()

    def find(self, value: int, start: int, stop: int, *, from_top: bool = False) -> NDArray[np.intp]:
        """Positions in [start, stop) that hold ``value``, ascending, or descending with ``from_top``."""
        part = self._array()[start:stop]
        if from_top:
            mirrored: NDArray[np.intp] = (part[::-1] == value).nonzero()[0]
            return (stop - 1) - mirrored
        found: NDArray[np.intp] = (part == value).nonzero()[0]
        found += start  # a fresh array
        return found

    def find_in_blocks(self, value: int, blocks: NDArray[np.intp], bits: int) -> NDArray[np.intp]:
        """Positions that hold ``value`` in these blocks of 2**bits cells, which ascend; ascending."""
        first, last = int(blocks[0]), int(blocks[-1])
        if last - first < 2 * len(blocks):  # close together: reading what lies between is cheaper than gathering blocks
            return self.find(value, first << bits, (last + 1) << bits)
        hits: NDArray[np.intp] = (self._array().reshape(-1, 1 << bits)[blocks] == value).reshape(-1).nonzero()[0]
        found: NDArray[np.intp] = (blocks << bits)[hits >> bits] + (hits & ((1 << bits) - 1))
        return found

    def find_above(self, value: int, start: int, stop: int) -> NDArray[np.intp]:
        """Positions in [start, stop) that hold more than ``value``, ascending."""
        found: NDArray[np.intp] = (self._array()[start:stop] > value).nonzero()[0]
        found += start
        return found

    def last_other(self, value: int, start: int, stop: int) -> int:
        """The highest position in [start, stop) that does not hold ``value``; start - 1 when all do."""
        array, step = self._array(), 64
        while stop > start:
            low = max(start, stop - step)
            others = array[low:stop][::-1] != value
            back = int(others.argmax())
            if others[back]:
                return stop - 1 - back
            stop, step = low, step * 8
        return start - 1

    def first_other(self, value: int, start: int, stop: int) -> int:
        """The lowest position in [start, stop) that does not hold ``value``; stop when all do."""
        array, step = self._array(), 64
        while start < stop:
            high = min(stop, start + step)
            others = array[start:high] != value
            on = int(others.argmax())
            if others[on]:
                return start + on
            start, step = high, step * 8
        return stop

    def hand_over(self) -> None:
        """Give the table, with all its versions, to the calling thread; its former thread must not touch it any more."""
        self._store.thread = get_ident()

    def __len__(self) -> int:
        return len(self._store.array)

    @property
    def nbytes(self) -> int:
        """Bytes of the base array, shared by all versions."""
        return int(self._store.array.nbytes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        if self is other:
            return True
        return self._store.array.dtype == other._store.array.dtype and np.array_equal(self.copy(), other.copy())

    def __hash__(self) -> int:
        return int.from_bytes(blake2b(self.copy().tobytes(), digest_size=8).digest(), "little") >> 1

    def __repr__(self) -> str:
        return f"Table(len={len(self)}, dtype={self._store.array.dtype})"


_new = Table.__new__


def _copied(values: NDArray[Any], index: Index) -> NDArray[Any]:
    """Indexing with an array copies by itself; a slice, a number or an ellipsis gives a view."""
    return values if isinstance(index, np.ndarray) else values.copy()
