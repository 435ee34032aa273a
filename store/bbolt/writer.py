"""Writing a bbolt file in one pass from sorted input, in memory that does not grow with it (contract §14).

Pages are written in the order in which they fill: leaves, and between them the branches above, whose keys and
page ids are all that is kept. The file stores no freelist, and both meta pages come last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
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


class BoltWriter:
    """Buckets into ``file`` (empty, seekable), in order of their names; then ``finish``."""

    def __init__(self, file: BinaryIO, page_size: int = PAGE_SIZE_DEFAULT) -> None:
        self._file = file
        self.page_size = page_size
        self._next_page = 2
        self._parts: list[bytes] = [bytes(2 * page_size)]
        self._parts_bytes = 2 * page_size
        self._roots: list[tuple[bytes, bytes]] = []

    def bucket(self, name: bytes, items: Iterable[tuple[bytes, bytes]]) -> None:
        """A whole bucket. Raises ValueError when names or keys are not in strictly ascending order."""
        if self._roots and name <= self._roots[-1][0]:
            raise ValueError(f"bucket {name!r} comes too late")
        root = _Tree(self, 0).write(items)
        self._roots.append((name, BUCKET_HEADER.pack(root, 0)))

    def finish(self) -> int:
        """Write what is left, and the meta pages; the size of the file in bytes."""
        root = _Tree(self, BUCKET_ELEMENT).write(self._roots)
        self._flush()
        self._file.seek(0)
        for page in (0, 1):
            # The page with the larger transaction counts; the other is its spare.
            meta = MetaPage(self.page_size, root, NO_FREELIST, self._next_page, 2 - page)
            data = PAGE_HEADER.pack(page, META, 0, 0) + meta.encode()
            self._file.write(data.ljust(self.page_size, b"\0"))
        self._file.flush()
        return self._next_page * self.page_size

    def page(self, flags: int, count: int, body: bytes) -> int:
        """Append a page, and as many overflow pages as ``body`` needs; its id."""
        number = self._next_page
        pages = max(1, -(-(PAGE_HEADER.size + len(body)) // self.page_size))
        self._next_page += pages
        size = pages * self.page_size
        self._parts.append((PAGE_HEADER.pack(number, flags, count, pages - 1) + body).ljust(size, b"\0"))
        self._parts_bytes += size
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

    def write(self, items: Iterable[tuple[bytes, bytes]]) -> int:
        """Write all items; the id of the root page."""
        keys: list[bytes] = []
        values: list[bytes] = []
        size, room, last = 0, self._room, b""
        for key, value in items:
            if key <= last:
                raise ValueError(f"key {key!r} does not come after {last!r}")
            last = key
            need = ELEMENT_BYTES + len(key) + len(value)
            if need > room and (len(key) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX):
                raise ValueError(f"key {key[:64]!r}: the key or its value is too large")
            if size + need > room and keys:
                self._add(0, keys[0], self._leaf(keys, values))
                keys, values, size = [], [], 0
            keys.append(key)
            values.append(value)
            size += need
        page = self._leaf(keys, values)
        if not self._levels:
            return page
        self._add(0, keys[0], page)
        return self._finish()

    def _leaf(self, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        count, flags = len(keys), self._flags
        position = count * ELEMENT_BYTES
        fields: list[int] = []
        for key, value in zip(keys, values, strict=True):
            key_size, value_size = len(key), len(value)
            fields += (flags, position, key_size, value_size)
            position += key_size + value_size - ELEMENT_BYTES
        heads = struct.pack(f"<{4 * count}I", *fields)
        data = b"".join(chain.from_iterable(zip(keys, values, strict=True)))
        return self._out.page(LEAF, count, heads + data)

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
        return children[0][0], self._out.page(BRANCH, count, body)
