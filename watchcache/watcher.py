"""One watcher of a cache: its initial state or history, then a bounded queue the dispatcher fills."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .codec import StoredObject
from .events import Change, WatchEvent
from .ring import BOOKMARK_PERIOD_S, EventRing
from .selectors import Predicate

CHUNK = 100
_QUEUE_MIN = 10
_BOOKMARK_BEFORE_DEADLINE_S = 2.0


def suggested_queue_size(capacity: int, *, indexed: bool, trigger_used: bool) -> int:
    """The queue of one watcher, from the ring capacity: a second's worth of events, within bounds."""
    if not indexed:
        largest = 100
    elif trigger_used:
        largest = 10
    else:
        largest = 1000
    return max(_QUEUE_MIN, min(largest, -(-capacity // 75)))


def initial_state(items: Sequence[StoredObject], predicate: Predicate) -> Iterator[list[WatchEvent]]:
    """All objects as ADDED, in key order, a chunk at a time."""
    for first in range(0, len(items), CHUNK):
        chunk = items[first : first + CHUNK]
        yield [WatchEvent("ADDED", item.resource_version, item) for item in chunk if predicate.matches(item)]


def history(ring: EventRing, position: int, until: int, predicate: Predicate) -> Iterator[list[WatchEvent]]:
    """The changes from ``position`` to ``until``, a chunk at a time.

    Raises:
        HistoryOverrun: the ring has dropped what comes next.
    """
    while position < until:
        if position < ring.start:
            raise HistoryOverrun
        chunk_end = min(position + CHUNK, until)
        changes: list[Change] = [ring.at(p) for p in range(position, chunk_end)]
        position = chunk_end
        events = (change.seen_by(predicate) for change in changes)
        yield [event for event in events if event is not None]


class HistoryOverrun(Exception):
    """The history was evicted while a watcher was still reading it: its stream ends."""


class CacheWatcher:
    """See :class:`watchcache.events.Watcher`.

    Only the event loop's thread touches it, so offering and taking need no lock. Closing keeps what is queued
    readable: it has no gaps.

    Args:
        after: events up to this version are not sent (they are in the initial part, or not wanted).
        backlog: the initial part, in chunks.
        deadline: on the clock of the cache, when the caller ends the watch; 0 if never.

    """

    def __init__(
        self,
        *,
        predicate: Predicate,
        after: int,
        backlog: Iterator[list[WatchEvent]],
        queue_size: int,
        allow_bookmarks: bool,
        now: float,
        deadline: float = 0.0,
        on_close: Callable[[CacheWatcher], None],
    ) -> None:
        self.predicate = predicate
        self.after = after
        self._backlog: Iterator[list[WatchEvent]] | None = backlog
        self._queue: deque[WatchEvent] = deque()
        self._queue_size = queue_size
        self.allow_bookmarks = allow_bookmarks
        self._deadline = deadline
        self._next_bookmark_at = now + BOOKMARK_PERIOD_S
        self._deadline_bookmark_sent = deadline == 0.0 or deadline - _BOOKMARK_BEFORE_DEADLINE_S < now
        self._on_close = on_close
        self._closed = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def queued(self) -> int:
        return len(self._queue)

    def wants(self, change: Change) -> WatchEvent | None:
        """The event to deliver for this change, if any."""
        if self._closed or change.resource_version <= self.after:
            return None
        return change.seen_by(self.predicate)

    def offer(self, event: WatchEvent) -> bool:
        """Queue an event; False when the queue is full."""
        if len(self._queue) >= self._queue_size:
            self._writable.clear()
            return False
        self._queue.append(event)
        self._readable.set()
        return True

    async def wait_writable(self) -> None:
        """Until there is room, or the watcher has closed."""
        while len(self._queue) >= self._queue_size and not self._closed:
            self._writable.clear()
            await self._writable.wait()

    def bookmark_due(self, now: float) -> bool:
        """Whether a bookmark is owed at ``now``: every minute, and once shortly before the deadline."""
        if not self.allow_bookmarks or self._closed:
            return False
        if not self._deadline_bookmark_sent and now >= self._deadline - _BOOKMARK_BEFORE_DEADLINE_S:
            self._deadline_bookmark_sent = True
            return True
        if now >= self._next_bookmark_at:
            self._next_bookmark_at = now + BOOKMARK_PERIOD_S
            return True
        return False

    async def next_batch(self) -> list[WatchEvent]:
        while self._backlog is not None:
            try:
                events = next(self._backlog, None)
            except HistoryOverrun:
                self._backlog = None
                self.close()
                self._queue.clear()
                return []
            if events is None:
                self._backlog = None
            elif events:
                return events
        while not self._queue:
            if self._closed:
                return []
            self._readable.clear()
            await self._readable.wait()
        events = list(self._queue)
        self._queue.clear()
        self._writable.set()
        return events

    def fail(self, event: WatchEvent) -> None:
        """Deliver a last event, whatever the queue holds, and close."""
        if not self._closed:
            self._queue.append(event)
            self.close()

    def close(self) -> None:
        """No more events will be queued."""
        if not self._closed:
            self._closed = True
            self._readable.set()
            self._writable.set()
            self._on_close(self)

    async def aclose(self) -> None:
        self.close()
