"""Which watchers a changed key concerns, without asking every watcher.

Single keys are a dictionary. Nearly every range in use is a prefix: those are dictionaries by prefix, one look-up
per prefix length in use. What remains is a list ordered by start.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from store.mvcc.index import FROM_KEY

W = TypeVar("W")


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with ``prefix`` (contract §2)."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else FROM_KEY


class Interest(Generic[W]):
    """A multimap from key ranges to watchers. Sets keep insertion order by being dictionaries."""

    def __init__(self) -> None:
        self._singles: dict[bytes, dict[W, None]] = {}
        self._prefixes: dict[int, dict[bytes, dict[W, None]]] = {}
        self._ranges: dict[tuple[bytes, bytes], dict[W, None]] = {}
        self._starts: list[tuple[bytes, bytes]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, key: bytes, end: bytes, watcher: W) -> None:
        self._size += 1
        if not end:
            self._singles.setdefault(key, {})[watcher] = None
        elif key and end == prefix_end(key):
            self._prefixes.setdefault(len(key), {}).setdefault(key, {})[watcher] = None
        else:
            if (key, end) not in self._ranges:
                self._ranges[key, end] = {}
                insort(self._starts, (key, end))
            self._ranges[key, end][watcher] = None

    def remove(self, key: bytes, end: bytes, watcher: W) -> None:
        """Undo one ``add``. Raises KeyError when there was none."""
        if not end:
            _drop(self._singles, key, watcher)
        elif key and end == prefix_end(key):
            of_length = self._prefixes[len(key)]
            _drop(of_length, key, watcher)
            if not of_length:
                del self._prefixes[len(key)]
        else:
            _drop(self._ranges, (key, end), watcher)
            if (key, end) not in self._ranges:
                self._starts.remove((key, end))
        self._size -= 1

    def matching(self, key: bytes) -> Iterator[W]:
        """Every watcher whose range holds ``key``."""
        yield from self._singles.get(key, ())
        for length, prefixes in self._prefixes.items():
            yield from prefixes.get(key[:length], ())
        if self._starts:
            upto = bisect_right(self._starts, key, key=lambda entry: entry[0])
            for start, end in self._starts[:upto]:
                if end == FROM_KEY or key < end:
                    yield from self._ranges[start, end]

    def all(self) -> Iterator[W]:
        """Every watcher, in no particular order."""
        for by_key in (self._singles, *self._prefixes.values()):
            for watchers in by_key.values():
                yield from watchers
        for watchers in self._ranges.values():
            yield from watchers


K = TypeVar("K")


def _drop(groups: dict[K, dict[W, None]], key: K, watcher: W) -> None:
    group = groups[key]
    del group[watcher]
    if not group:
        del groups[key]
