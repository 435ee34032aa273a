"""Changes as the ring keeps them, and events as a watcher receives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from .backend import BackendError
from .codec import StoredObject
from .errors import StorageError
from .selectors import Predicate

EventKind = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """What a watcher receives.

    ``object`` is set for ADDED, MODIFIED and DELETED, ``error`` for ERROR. ``initial_events_end`` marks the
    bookmark that closes the initial state of a watch-list.
    """

    kind: EventKind
    resource_version: int
    object: StoredObject | None = None
    error: StorageError | BackendError | None = None
    initial_events_end: bool = False


class Change:
    """One change of one object: ``current`` is None for a deletion, ``previous`` None for a creation.

    The converted events are made once and shared by all watchers.
    """

    __slots__ = ("_added", "_deleted", "_modified", "at", "current", "previous", "resource_version")

    def __init__(
        self,
        resource_version: int,
        current: StoredObject | None,
        previous: StoredObject | None,
        at: float = 0.0,
    ) -> None:
        self.resource_version = resource_version
        self.current = current
        self.previous = previous
        self.at = at
        self._added: WatchEvent | None = None
        self._modified: WatchEvent | None = None
        self._deleted: WatchEvent | None = None

    @property
    def subject(self) -> StoredObject:
        """The object that tells key, namespace and name."""
        subject = self.current or self.previous
        assert subject is not None
        return subject

    def seen_by(self, predicate: Predicate) -> WatchEvent | None:
        """The event for a watcher with this selector: entering it is ADDED, leaving it DELETED."""
        current, previous = self.current, self.previous
        now = current is not None and predicate.matches(current)
        before = previous is not None and predicate.matches(previous)
        if now:
            return self._as_modified() if before else self._as_added()
        return self._as_deleted() if before else None

    def _as_added(self) -> WatchEvent:
        if self._added is None:
            self._added = WatchEvent("ADDED", self.resource_version, self.current)
        return self._added

    def _as_modified(self) -> WatchEvent:
        if self._modified is None:
            self._modified = WatchEvent("MODIFIED", self.resource_version, self.current)
        return self._modified

    def _as_deleted(self) -> WatchEvent:
        if self._deleted is None:
            assert self.previous is not None
            last = self.previous.at_version(self.resource_version)
            self._deleted = WatchEvent("DELETED", self.resource_version, last)
        return self._deleted


class Watcher(Protocol):
    """A running watch. It ends by returning an empty list from :meth:`next_batch`."""

    async def next_batch(self) -> list[WatchEvent]:
        """The events available now, at least one; waits for the first. Empty: the watch has ended."""
        ...

    async def aclose(self) -> None: ...
