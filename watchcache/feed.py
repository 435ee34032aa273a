"""Keeping a cache current: list, then watch, and again when the history is lost (contract §2.2)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterable

from .backend import BackendError, Compacted, Event, EventType, Unavailable, WatchBatch, WatchStream, prefix_end
from .direct import DirectStore, change_of
from .dispatch import Dispatcher
from .errors import CorruptObject
from .events import Change
from .freshness import Freshness, progress_is_safe
from .options import ListOptions
from .recovery import Backoff, StoreRecovery
from .state import CacheState

log = logging.getLogger(__name__)


class Rewound(Exception):
    """The store has gone back in revision: it was restored from an older backup."""


class Feed:
    """Owns the state of one cache and its readiness.

    While the store is merely out of reach the cache stays ready: its lists from "0" and its watches go on, and
    the feed resumes exactly after the last revision it has. Only lost history (compaction, a rewound store, an
    undecodable object) ends all watches and starts over.
    """

    def __init__(
        self,
        direct: DirectStore,
        state: CacheState,
        fresh: Freshness,
        dispatcher: Dispatcher,
        recovery: StoreRecovery,
        *,
        trust_progress: bool | None,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._direct = direct
        self._state = state
        self._fresh = fresh
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._trust_progress = trust_progress
        self._clock = clock
        self._backoff = Backoff(rng)
        self._stream: WatchStream | None = None
        self._down_since = clock()
        self.progress_safe = bool(trust_progress)
        self.ready_event = asyncio.Event()
        self.last_error = ""
        self.generation = 0
        self.initializations = 0
        self._rewinds = 0
        """Those of the store that happened before this cache was filled."""

    @property
    def ready(self) -> bool:
        return self.ready_event.is_set()

    @property
    def downtime_s(self) -> float:
        return self._clock() - self._down_since

    async def run(self) -> None:
        """List and follow, for ever."""
        while True:
            try:
                await self._initialize()
                await self._follow()
            except (Compacted, Rewound) as exc:
                self._restart(str(exc))
                await asyncio.sleep(0)
            except CorruptObject as exc:
                self._dispatcher.fail_all(exc)
                self._restart(str(exc))
                await asyncio.sleep(self._backoff.next_s())
            except BackendError as exc:
                self._restart(exc.text, lost=isinstance(exc, Unavailable))
                await self._recovery.wait(self._backoff.next_s())

    def _restart(self, why: str, *, lost: bool = False) -> None:
        if lost:  # the same for every cache: one of them says so
            self._recovery.lost(why)
        log.log(logging.DEBUG if lost else logging.WARNING, "cache of %s starts over: %s", self._state_name, why)
        self.last_error = why
        if self.ready:
            self._down_since = self._clock()
        self.ready_event.clear()
        self._dispatcher.close_all()

    def stop(self) -> None:
        """No longer ready, for good: all watches end."""
        self.last_error = "the cache has stopped"
        self.ready_event.clear()
        self._dispatcher.close_all()

    @property
    def _state_name(self) -> str:
        return self._direct.resource.prefix

    async def _initialize(self) -> None:
        if self._trust_progress is None:
            status = await self._direct.backend.status()
            self.progress_safe = progress_is_safe(status.version)
        rewinds = self._recovery.rewinds
        listing = await self._direct.list(ListOptions())
        self._rewinds = rewinds
        self._recovery.seen(listing.resource_version)
        self._recovery.found()
        self._dispatcher.close_all()
        self._state.replace(listing.items, listing.resource_version)
        self._dispatcher.version = listing.resource_version
        self._fresh.advance(listing.resource_version)
        self.generation += 1
        self.initializations += 1
        self.last_error = ""
        self.ready_event.set()

    async def _follow(self) -> None:
        """Follow the store's watch across interruptions. Returns only by an exception."""
        interrupted = False
        while True:
            try:
                if interrupted:
                    await self._check_not_rewound()
                    interrupted = False
                await self._follow_stream()
            except Unavailable as exc:
                interrupted = True
                self._recovery.lost(exc.text)
                log.debug("watch of %s interrupted: %s", self._state_name, exc.text)
                await self._recovery.wait(self._backoff.next_s())

    async def _follow_stream(self) -> None:
        prefix = self._direct.resource.prefix.encode()
        stream = await self._direct.backend.watch(
            prefix, prefix_end(prefix), start_revision=self._state.version + 1
        )
        self._stream = stream
        try:
            async for batch in stream:
                self._backoff.reset()
                await self._take(batch)
        finally:
            self._stream = None
            await stream.aclose()
        raise Unavailable("watch stream ended")

    async def _check_not_rewound(self) -> None:
        """A cache that saw little of the old history may be at a revision that the new one has passed already: so
        what all caches have seen decides, and what one of them finds holds for all.

        Raises Rewound, or Unavailable when nothing can be said yet.
        """
        recovery = self._recovery
        seen = max(recovery.newest, self._state.version)  # before the read: others may see more meanwhile
        current = await self._direct.current_version()
        if current < seen and recovery.rewinds == self._rewinds:
            recovery.rewound(current)
        if recovery.rewinds != self._rewinds:
            raise Rewound(f"the store is at revision {current}, the cache at {self._state.version}")

    async def _take(self, batch: WatchBatch) -> None:
        self._recovery.seen(batch.revision)
        if batch.is_progress:
            if self.progress_safe and batch.revision > self._state.version:
                self._state.version = batch.revision
                self._dispatcher.version = batch.revision
                self._fresh.advance(batch.revision)
            return
        known = self._state.version
        newer = [event for event in batch.events if event.kv.mod_revision > known]
        for _, events in itertools.groupby(newer, lambda event: event.kv.mod_revision):
            # A revision is taken in whole before anyone may look: it is one version for readers too.
            for change in self._apply(events):
                await self._dispatcher.dispatch(change)
            self._fresh.advance(self._state.version)

    def _apply(self, events: Iterable[Event]) -> list[Change]:
        changes = []
        for event in events:
            previous = self._state.get(event.kv.key.decode("utf-8", "replace"))
            if event.type is EventType.DELETE and previous is None and event.prev_kv is None:
                continue  # the key was never seen here
            change = change_of(event, self._direct.codec, previous)
            self._state.apply(change)
            changes.append(change)
        return changes

    async def request_progress(self, interval_s: float) -> None:
        """While somebody waits for freshness, ask the store how far it is."""
        while True:
            await self._fresh.wanted.wait()
            stream = self._stream
            if stream is not None and self.progress_safe:
                try:
                    await stream.request_progress()
                except BackendError as exc:
                    log.debug("no progress for %s: %s", self._state_name, exc.text)
            await asyncio.sleep(interval_s)
