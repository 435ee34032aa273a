"""Handing changes to watchers: interest index, shared wait budget for slow ones, bookmarks (contract §2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from .budget import TimeBudget
from .codec import Resource
from .errors import StorageError
from .events import Change, WatchEvent
from .interest import InterestIndex
from .watcher import CacheWatcher


class Dispatcher:
    """The one loop that feeds all watchers of a cache. ``clock`` is in seconds, monotonic."""

    def __init__(self, resource: Resource, clock: Callable[[], float]) -> None:
        self.watchers = InterestIndex(resource)
        self._clock = clock
        self._budget = TimeBudget(clock)
        self.version = 0
        self.dispatched = 0
        self.terminated_slow = 0

    async def dispatch(self, change: Change) -> None:
        """Queue the change for everyone interested. A watcher that stays full is closed, without an error."""
        blocked: list[tuple[CacheWatcher, WatchEvent]] = []
        for watcher in self.watchers.interested(change):
            event = watcher.wants(change)
            if event is not None and not watcher.offer(event):
                blocked.append((watcher, event))
        if blocked:
            await self._wait_for(blocked)
        self.version = change.resource_version
        self.dispatched += 1

    async def _wait_for(self, blocked: list[tuple[CacheWatcher, WatchEvent]]) -> None:
        # A reader that only lacked its turn on the loop is not slow: that turn is free of charge.
        await asyncio.sleep(0)
        blocked = [(watcher, event) for watcher, event in blocked if not watcher.offer(event)]
        budget_s = self._budget.take() if blocked else 0.0
        deadline = self._clock() + budget_s
        for watcher, event in blocked:
            remaining = deadline - self._clock()
            if remaining > 0:
                with contextlib.suppress(TimeoutError):  # the offer below decides
                    await asyncio.wait_for(watcher.wait_writable(), remaining)
            if not watcher.closed and not watcher.offer(event):
                self.terminated_slow += 1
                watcher.close()
        if blocked:
            self._budget.give_back(deadline - self._clock())

    def send_bookmarks(self) -> None:
        """Give a bookmark to each watcher that is due one; a full watcher misses it."""
        now = self._clock()
        for watcher in self.watchers:
            if watcher.bookmark_due(now) and self.version > watcher.after:
                watcher.offer(WatchEvent("BOOKMARK", self.version))

    def close_all(self) -> None:
        """End every watch, without an error."""
        for watcher in self.watchers:
            watcher.close()

    def fail_all(self, error: StorageError) -> None:
        """End every watch with an ERROR event."""
        for watcher in self.watchers:
            watcher.fail(WatchEvent("ERROR", 0, error=error))
