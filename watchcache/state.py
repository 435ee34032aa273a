"""What a cache knows: every object of the type in key order, the history, and how far both reach."""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedDict

from .backend import prefix_end
from .codec import StoredObject
from .events import Change
from .ring import EventRing


class CacheState:
    """Only ever moves forward in version between two :meth:`replace` calls."""

    def __init__(self, prefix: str, ring: EventRing) -> None:
        self._prefix = prefix
        self._items: SortedDict = SortedDict()
        self._all: list[StoredObject] | None = None
        self.ring = ring
        self.version = 0

    def __len__(self) -> int:
        return len(self._items)

    def replace(self, items: Iterable[StoredObject], version: int) -> None:
        """Start over from a listed state: the history begins here."""
        self._items = SortedDict((item.key, item) for item in items)
        self._all = None
        self.ring.reset(version)
        self.version = version

    def apply(self, change: Change) -> None:
        """Take in one change, newer than everything before it."""
        if change.current is None:
            self._items.pop(change.subject.key, None)
        else:
            self._items[change.current.key] = change.current
        self._all = None
        self.ring.add(change)
        self.version = change.resource_version

    def get(self, key: str) -> StoredObject | None:
        item: StoredObject | None = self._items.get(key)
        return item

    def at_version(self, key: str, resource_version: int) -> StoredObject | None:
        """The object under ``key`` if the cache holds just this version of it."""
        item = self.get(key)
        return item if item is not None and item.resource_version == resource_version else None

    def scan(self, prefix: str, start: str = "") -> list[StoredObject]:
        """The objects under ``prefix`` in key order, from ``start`` (a full key) on. Do not modify it."""
        if prefix == self._prefix and not start:
            if self._all is None:
                self._all = list(self._items.values())
            return self._all
        end = prefix_end(prefix.encode()).decode()
        keys = self._items.irange(start or prefix, end, inclusive=(True, False))
        return [self._items[key] for key in keys]
