"""Reading a bbolt file that nobody vouches for: every page is checked before it is believed (contract §14).

Checked: magic, version and checksum of the metas; that the file is as long as it says; that every page lies in
it, calls itself by its number, is reached once (so no cycles) and has elements within its bounds; that keys
ascend strictly, across pages too; that free pages are not in use.
"""

from __future__ import annotations

import mmap
import operator
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from store.bbolt.format import (
    BRANCH,
    BRANCH_ELEMENT,
    BUCKET_ELEMENT,
    BUCKET_HEADER,
    ELEMENT_BYTES,
    FREELIST,
    LEAF,
    LONG_FREELIST,
    META_BYTES,
    NO_FREELIST,
    PAGE_HEADER,
    PAGE_SIZE_MAX,
    PAGE_SIZE_MIN,
    BoltError,
    Meta,
)

DEPTH_MAX: Final = 64
"""No tree of 2^64 pages with two children each is higher."""

BATCH_BYTES: Final = 1 << 20
"""Pages that are read together; one page with a large value may be more."""

Batch = tuple[list[bytes], list[bytes]]
_Leaf = tuple[Sequence[int], list[bytes], list[bytes]]
"""Flags, keys and values of leaf pages."""


class _LeafPage(NamedTuple):
    """A leaf page that is yet to be read. Its keys lie between ``low`` (included) and ``high`` (excluded)."""

    what: str
    start: int
    elements: int
    end: int
    low: bytes | None
    high: bytes | None


@dataclass(frozen=True, slots=True)
class _Root:
    """Where a bucket begins: a page of its own, or one inside its parent's."""

    page: int
    inline: tuple[bytes, bytes] | None = None
    """name and page"""


class BoltFile:
    """A file opened for reading; ``close`` it. Raises BoltError wherever it is not sound."""

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        if size < META_BYTES:
            raise BoltError(f"{size} bytes are too few for a bbolt file")
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.meta = _newest_meta(self._map)
            self.page_size = self.meta.page_size
            self._check_size()
            self._reached = bytearray(self.meta.high_water)
            self._reached[:2] = b"\1\1"
            self._reach_freelist()
            self._roots = self._read_roots()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> BoltFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._map.close()

    @property
    def size(self) -> int:
        """Bytes of the pages in use; what follows in the file (a checksum) is not bbolt's."""
        return self.meta.high_water * self.page_size

    @property
    def buckets(self) -> list[bytes]:
        """The names, ascending."""
        return list(self._roots)

    def batches(self, bucket: bytes) -> Iterator[Batch]:
        """Keys and values in order, many at a time, checked on the way; nothing for a bucket that is not there.

        To be read once: a page reached twice is an error.
        """
        root = self._roots.get(bucket)
        if root is None:
            return
        pages = self._walk(root.page) if root.inline is None else self._inline(*root.inline)
        for flags, keys, values in pages:
            if any(flags):
                raise BoltError(f"bucket {bucket!r} has a bucket inside, which etcd never makes")
            yield keys, values

    def items(self, bucket: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The same one by one."""
        for keys, values in self.batches(bucket):
            yield from zip(keys, values, strict=True)

    # -- metas and free pages -----------------------------------------------------------------------------

    def _check_size(self) -> None:
        meta = self.meta
        if meta.high_water < 2 or meta.root < 2 or meta.root >= meta.high_water:
            raise BoltError(f"the root page {meta.root} is none of its {meta.high_water} pages")
        if len(self._map) < self.size:
            raise BoltError(f"it is cut short: {len(self._map)} bytes of {self.size}")

    def _reach_freelist(self) -> None:
        number = self.meta.freelist
        if number == NO_FREELIST:
            return
        start, flags, count, end = self._page(number)
        if flags != FREELIST:
            raise BoltError(f"page {number} is no freelist (flags {flags:#x})")
        at = start + PAGE_HEADER.size
        if count == LONG_FREELIST:
            count = int.from_bytes(self._map[at : at + 8], "little")
            at += 8
        if at + 8 * count > end:
            raise BoltError(f"freelist page {number}: {count} ids do not fit")
        for offset in range(at, at + 8 * count, 8):
            free = int.from_bytes(self._map[offset : offset + 8], "little")
            self._reach(free, 1, "free list")

    def _read_roots(self) -> dict[bytes, _Root]:
        roots: dict[bytes, _Root] = {}
        for flags, names, headers in self._walk(self.meta.root):
            for flag, name, header in zip(flags, names, headers, strict=True):
                if flag != BUCKET_ELEMENT or len(header) < BUCKET_HEADER.size:
                    raise BoltError(f"{name!r} at the top of the file is no bucket")
                page, _ = BUCKET_HEADER.unpack_from(header)
                roots[name] = _Root(page) if page else _Root(0, (name, header[BUCKET_HEADER.size :]))
        return roots

    # -- pages --------------------------------------------------------------------------------------------

    def _reach(self, number: int, count: int, what: str) -> None:
        if number < 2 or number + count > self.meta.high_water:
            raise BoltError(f"{what}: page {number} is none of the file's {self.meta.high_water} pages")
        for page in range(number, number + count):
            if self._reached[page]:
                raise BoltError(f"{what}: page {page} is used twice")
            self._reached[page] = 1

    def _page(self, number: int) -> tuple[int, int, int, int]:
        """Offset, flags, element count and end of a page, which counts as reached from now on."""
        if not 2 <= number < self.meta.high_water:
            raise BoltError(f"page {number} is none of the file's {self.meta.high_water} pages")
        start = number * self.page_size
        own, flags, count, overflow = PAGE_HEADER.unpack_from(self._map, start)
        if own != number:
            raise BoltError(f"page {number} calls itself {own}")
        self._reach(number, overflow + 1, f"page {number}")
        return start, flags, count, start + (overflow + 1) * self.page_size

    def _inline(self, name: bytes, page: bytes) -> Iterator[_Leaf]:
        if len(page) < PAGE_HEADER.size:
            raise BoltError(f"bucket {name!r} is cut short")
        _, flags, count, _ = PAGE_HEADER.unpack_from(page)
        if flags != LEAF:
            raise BoltError(f"bucket {name!r} is no leaf (flags {flags:#x})")
        yield _read_leaves(page, [_LeafPage(f"bucket {name!r}", 0, count, len(page), None, None)])

    def _walk(self, root: int) -> Iterator[_Leaf]:
        """The leaves of a tree in order, many small ones joined."""
        stack: list[tuple[int, int, bytes | None, bytes | None]] = [(0, root, None, None)]
        waiting: list[_LeafPage] = []
        size = 0
        while stack:
            depth, number, low, high = stack.pop()
            start, flags, count, end = self._page(number)
            if flags == LEAF:
                waiting.append(_LeafPage(f"page {number}", start, count, end, low, high))
                size += end - start
                if size >= BATCH_BYTES:
                    yield _read_leaves(self._map, waiting)
                    waiting, size = [], 0
            elif flags == BRANCH and depth < DEPTH_MAX:
                children = self._branch(start, count, end, number, low, high)
                stack += [(depth + 1, *child) for child in reversed(children)]
            else:
                raise BoltError(f"page {number} is neither leaf nor branch (flags {flags:#x})")
        if waiting:
            yield _read_leaves(self._map, waiting)

    def _branch(
        self, start: int, count: int, end: int, number: int, low: bytes | None, high: bytes | None
    ) -> list[tuple[int, bytes | None, bytes | None]]:
        """Child pages, each with the keys it lies between (first included, last excluded)."""
        first = start + PAGE_HEADER.size
        heads_end = first + count * ELEMENT_BYTES
        if count == 0 or heads_end > end:
            raise BoltError(f"branch page {number}: {count} elements are impossible")
        data = self._map
        keys: list[bytes] = []
        pages: list[int] = []
        for at in range(first, heads_end, ELEMENT_BYTES):
            position, size, child = BRANCH_ELEMENT.unpack_from(data, at)
            if at + position < heads_end or at + position + size > end:
                raise BoltError(f"branch page {number}: a key lies outside")
            key = data[at + position : at + position + size]
            if (keys and key <= keys[-1]) or (low is not None and key < low) or (high is not None and key >= high):
                raise BoltError(f"branch page {number}: keys are not in order")
            keys.append(key)
            pages.append(child)
        # The first key may be stale by a deletion: it bounds nothing that its parent does not.
        return list(zip(pages, [low, *keys[1:]], [*keys[1:], high], strict=True))


def _read_leaves(data: mmap.mmap | bytes, pages: list[_LeafPage]) -> _Leaf:
    """The elements of leaf pages that follow each other: flags, keys, values.

    The work per element is done in loops of the interpreter's own, and only for many pages is that quick.
    """
    try:
        return _elements(data, pages)
    except BoltError:
        if len(pages) > 1:
            for page in pages:
                _elements(data, [page])  # names the page
        raise


def _elements(data: mmap.mmap | bytes, pages: list[_LeafPage]) -> _Leaf:
    what = pages[0].what if len(pages) == 1 else f"{pages[0].what} and those after it"
    heads = array("I")
    places: list[int] = []
    floors: list[int] = []
    ceilings: list[int] = []
    for page in pages:
        first = page.start + PAGE_HEADER.size
        heads_end = first + page.elements * ELEMENT_BYTES
        if heads_end > page.end:
            raise BoltError(f"{page.what}: {page.elements} elements do not fit")
        heads.frombytes(data[first:heads_end])
        places += range(first, heads_end, ELEMENT_BYTES)
        floors += [heads_end] * page.elements
        ceilings += [page.end] * page.elements
    if sys.byteorder == "big":
        heads.byteswap()
    begins = list(map(operator.add, places, heads[1::4]))
    middles = list(map(operator.add, begins, heads[2::4]))
    ends = list(map(operator.add, middles, heads[3::4]))
    if any(map(operator.lt, begins, floors)) or any(map(operator.gt, ends, ceilings)):
        raise BoltError(f"{what}: an element lies outside")
    keys = [data[begin:middle] for begin, middle in zip(begins, middles, strict=True)]
    _check_order(keys, pages, what)
    return heads[0::4], keys, [data[middle:end] for middle, end in zip(middles, ends, strict=True)]


def _check_order(keys: list[bytes], pages: list[_LeafPage], what: str) -> None:
    """Keys ascend strictly, and each page's lie between the bounds that its parent sets."""
    if any(map(operator.ge, keys, islice(keys, 1, None))):
        raise BoltError(f"{what}: keys are not in order")
    start = 0
    for page in pages:
        end = start + page.elements
        if page.elements and (
            (page.low is not None and keys[start] < page.low)
            or (page.high is not None and keys[end - 1] >= page.high)
        ):
            raise BoltError(f"{page.what}: keys are not in order")
        start = end


def _newest_meta(data: mmap.mmap) -> Meta:
    found: list[Meta] = []
    trouble = ""
    first = Meta.decode(data[PAGE_HEADER.size : META_BYTES])
    if isinstance(first, Meta):
        found.append(first)
        sizes = [first.page_size]
    else:
        trouble = f"its first meta page is damaged: {first}"
        sizes = [1 << bit for bit in range(PAGE_SIZE_MIN.bit_length() - 1, PAGE_SIZE_MAX.bit_length())]
    for size in sizes:
        second = Meta.decode(data[size + PAGE_HEADER.size : size + META_BYTES])
        if isinstance(second, Meta) and second.page_size == size:
            found.append(second)
    if not found:
        raise BoltError(f"this is no bbolt file ({trouble})")
    return max(found, key=lambda meta: meta.transaction)
