"""Writing a bbolt file in one pass from sorted input, in memory that does not grow with it (contract §14).

Pages are written in the order in which they fill: leaves, and between them the branches above, whose keys and
page ids are all that is kept. The file stores no freelist, and both meta pages come last.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import BinaryIO, Final

from store.bbolt.format import (
    BRANCH,
    BUCKET_ELEMENT,
    BUCKET_HEADER,
    ELEMENT_BYTES,
    KEY_BYTES_MAX,
    LEAF,
    META,
    NO_FREELIST,
    PAGE_HEADER,
    PAGE_SIZE_DEFAULT,
    VALUE_BYTES_MAX,
)
from store.bbolt.format import Meta as MetaPage

CHILDREN_MIN: Final = 2
"""Children of a branch page. bbolt asserts it when it removes one later, so a lone child would crash etcd."""
WRITE_BYTES: Final = 1 << 20

Batch = tuple[Sequence[bytes], Sequence[bytes]]
"""Some keys and their values; how many at once is the caller's choice and bounds the memory."""


class BoltWriter:
    """Buckets into ``file`` (empty, seekable), in order of their names; then ``finish``."""

    def __init__(self, file: BinaryIO, page_size: int = PAGE_SIZE_DEFAULT) -> None:
        self._file = file
        self.page_size = page_size
        self._next_page = 2
        self._parts: list[bytes] = [bytes(2 * page_size)]
        self._parts_bytes = 2 * page_size
        self._names: list[bytes] = []
        self._roots: list[bytes] = []

    def bucket(self, name: bytes, batches: Iterable[Batch]) -> None:
        """A whole bucket. Raises ValueError when names or keys are not in strictly ascending order."""
        if self._names and name <= self._names[-1]:
            raise ValueError(f"bucket {name!r} comes too late")
        root = _Tree(self, 0).write(batches)
        self._names.append(name)
        self._roots.append(BUCKET_HEADER.pack(root, 0))

    def finish(self) -> int:
        """Write what is left, and the meta pages; the size of the file in bytes."""
        root = _Tree(self, BUCKET_ELEMENT).write([(self._names, self._roots)])
        self._flush()
        self._file.seek(0)
        for page in (0, 1):
            # The page with the larger transaction counts; the other is its spare.
            meta = MetaPage(self.page_size, root, NO_FREELIST, self._next_page, 2 - page)
            data = PAGE_HEADER.pack(page, META, 0, 0) + meta.encode()
            self._file.write(data.ljust(self.page_size, b"\0"))
        self._file.flush()
        return self._next_page * self.page_size

    def page(self, flags: int, count: int, body: Sequence[bytes], body_bytes: int) -> int:
        """Append a page with ``body`` in pieces, and as many overflow pages as it needs; its id."""
        number = self._next_page
        filled = PAGE_HEADER.size + body_bytes
        pages = -(-filled // self.page_size)
        self._next_page += pages
        self._parts.append(PAGE_HEADER.pack(number, flags, count, pages - 1))
        self._parts += body
        self._parts.append(bytes(pages * self.page_size - filled))
        self._parts_bytes += pages * self.page_size
        if self._parts_bytes >= WRITE_BYTES:
            self._flush()
        return number

    def _flush(self) -> None:
        self._file.write(b"".join(self._parts))
        self._parts.clear()
        self._parts_bytes = 0


class _Tree:
    """One tree: leaves filled in order, and a level of waiting children per height above them."""

    def __init__(self, out: BoltWriter, flags: int) -> None:
        self._out = out
        self._flags = flags
        self._room = out.page_size - PAGE_HEADER.size
        self._levels: list[_Level] = []
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._last = b""

    def write(self, batches: Iterable[Batch]) -> int:
        """Write all items; the id of the root page."""
        for keys, values in batches:
            if keys:
                self._take(keys, values)
        pages = self._leaves(complete=True)
        if not self._levels and len(pages) == 1:
            return pages[0][1]
        for key, page in pages:
            self._add(0, key, page)
        return self._finish()

    def _take(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        if keys[0] <= self._last or any(map(operator.ge, keys, islice(keys, 1, None))):
            raise ValueError(f"keys from {keys[0]!r} on are not in strictly ascending order")
        if max(map(len, keys)) > KEY_BYTES_MAX or max(map(len, values)) > VALUE_BYTES_MAX:
            raise ValueError(f"a key from {keys[0][:64]!r} on, or its value, is too large")
        self._last = keys[-1]
        self._keys += keys
        self._values += values
        for key, page in self._leaves(complete=False):
            self._add(0, key, page)

    def _leaves(self, *, complete: bool) -> list[tuple[bytes, int]]:
        """Write the items at hand as leaves, all but those of the last page unless ``complete``.

        The work per item is done in loops of the interpreter's own: lists of a million items pass here.
        """
        keys, values = self._keys, self._values
        key_sizes, value_sizes = array("I", map(len, keys)), array("I", map(len, values))
        data_sizes = list(map(operator.add, key_sizes, value_sizes))
        ends = list(accumulate(data_sizes, initial=0))
        # Bytes of the items before each, elements included: where a page is full is found by bisection.
        filled = list(map(operator.add, ends, range(0, ELEMENT_BYTES * len(ends), ELEMENT_BYTES)))
        heads = array("I", bytes(ELEMENT_BYTES * len(keys)))
        heads[0::4] = array("I", [self._flags]) * len(keys)
        heads[2::4], heads[3::4] = key_sizes, value_sizes
        data = list(chain.from_iterable(zip(keys, values, strict=True)))
        cuts = self._cuts(filled, complete)
        # Positions count from the element itself; over a page they differ by what came before it.
        shifts: list[int] = []
        for start, end in pairwise(cuts):
            shifts += [ELEMENT_BYTES * end - ends[start]] * (end - start)
        places = map(operator.sub, ends, range(0, ELEMENT_BYTES * len(shifts), ELEMENT_BYTES))
        heads[1 : 4 * len(shifts) : 4] = array("I", map(operator.add, places, shifts))
        if sys.byteorder == "big":
            heads.byteswap()
        raw = heads.tobytes()
        pages: list[tuple[bytes, int]] = []
        for start, end in pairwise(cuts):
            body = [raw[ELEMENT_BYTES * start : ELEMENT_BYTES * end], *data[2 * start : 2 * end]]
            page = self._out.page(LEAF, end - start, body, filled[end] - filled[start])
            pages.append((keys[start] if end else b"", page))
        del keys[: cuts[-1]], values[: cuts[-1]]
        return pages

    def _cuts(self, filled: list[int], complete: bool) -> list[int]:
        """Where each page begins, and where the last one ends; ``filled``: bytes of the items before each."""
        cuts, last = [0], len(filled) - 1
        while True:
            end = max(cuts[-1] + 1, bisect_right(filled, filled[cuts[-1]] + self._room) - 1)
            if end >= last:
                return [*cuts, last] if complete else cuts
            cuts.append(end)

    def _add(self, height: int, key: bytes, page: int) -> None:
        if height == len(self._levels):
            self._levels.append(_Level(self._out, self._room))
        level = self._levels[height]
        full = level.add(key, page)
        if full is not None:
            self._add(height + 1, *full)

    def _finish(self) -> int:
        """Write the branches that are not full; the topmost page."""
        height = 0
        while True:
            level = self._levels[height]
            pages = level.finish()
            if len(pages) == 1 and height + 1 == len(self._levels):
                return pages[0][1]
            for key, page in pages:
                self._add(height + 1, key, page)
            height += 1


class _Level:
    """Children that wait for their branch page, as many as fill one, and CHILDREN_MIN more."""

    def __init__(self, out: BoltWriter, room: int) -> None:
        self._out = out
        self._room = room
        self._children: list[tuple[bytes, int]] = []
        self._cut = 0
        """How many of them fill a page; 0 while they do not."""
        self._size = 0

    def add(self, key: bytes, page: int) -> tuple[bytes, int] | None:
        """Take a child; the branch page that it completes, with its key."""
        self._children.append((key, page))
        self._size += ELEMENT_BYTES + len(key)
        if not self._cut and self._size > self._room and len(self._children) > CHILDREN_MIN:
            self._cut = len(self._children) - 1
        if self._cut and len(self._children) - self._cut > CHILDREN_MIN:
            return self._write(self._cut)
        return None

    def finish(self) -> list[tuple[bytes, int]]:
        """Write the rest: one page, or two of which neither has a lone child."""
        pages = []
        if self._cut:
            left_over = len(self._children) - self._cut
            cut = self._cut if left_over >= CHILDREN_MIN else self._cut - 1
            if cut >= CHILDREN_MIN:
                pages.append(self._write(cut))
        pages.append(self._write(len(self._children)))
        return pages

    def _write(self, count: int) -> tuple[bytes, int]:
        children, self._children = self._children[:count], self._children[count:]
        self._cut = 0
        self._size = sum(ELEMENT_BYTES + len(key) for key, _ in self._children)
        position = count * ELEMENT_BYTES
        heads = []
        for key, page in children:
            heads.append(struct.pack("<IIQ", position, len(key), page))
            position += len(key) - ELEMENT_BYTES
        body = b"".join(heads) + b"".join([key for key, _ in children])
        return children[0][0], self._out.page(BRANCH, count, [body], len(body))
