"""The watch cache of one resource: lists and watches with Kubernetes' resourceVersion rules (contract §1, §2)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .backend import Backend, BackendError
from .codec import Codec, StoredObject
from .direct import DirectStore
from .dispatch import Dispatcher
from .errors import NotFound, NotReady, TooLargeResourceVersion
from .events import Watcher, WatchEvent
from .feed import Feed
from .freshness import PROGRESS_INTERVAL_S, WAIT_LIMIT_S, Freshness
from .keys import checked_key, list_key
from .options import (
    EXACT,
    NOT_OLDER_THAN,
    ContinueToken,
    ListOptions,
    ListResult,
    WatchOptions,
    check_continue_version,
    parse_resource_version,
    validate_list,
    validate_watch,
)
from .recovery import StoreRecovery
from .ring import EventRing
from .state import CacheState
from .watcher import CacheWatcher, history, initial_state, suggested_queue_size

log = logging.getLogger(__name__)

FRESHNESS_LIMIT_S = WAIT_LIMIT_S
_BOOKMARK_TICK_S = 1.0
Batches = Iterator[list[WatchEvent]]


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counters and gauges of one cache, for metrics."""

    ready: bool
    version: int
    objects: int
    watchers: int
    ring_capacity: int
    ring_length: int
    events_dispatched: int
    slow_watchers_terminated: int
    initializations: int
    consistent_reads: int
    consistent_read_fallbacks: int


class Cacher:
    """Answers reads from memory. :meth:`run` must be running for it to become ready.

    Args:
        recovery: shared by the caches of one store, to return promptly when the store does.
        trust_progress: whether progress notifications never overtake events; None asks the store's version.
        clock: seconds, monotonic.

    """

    def __init__(
        self,
        backend: Backend,
        codec: Codec,
        recovery: StoreRecovery | None = None,
        *,
        trust_progress: bool | None = None,
        ring: EventRing | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self.resource = codec.resource
        self._state = CacheState(self.resource.prefix, ring or EventRing(clock))
        self.direct = DirectStore(backend, codec, self._state.at_version)
        self._fresh = Freshness()
        self._dispatcher = Dispatcher(self.resource, clock)
        self._feed = Feed(
            self.direct,
            self._state,
            self._fresh,
            self._dispatcher,
            recovery or StoreRecovery(backend),
            trust_progress=trust_progress,
            clock=clock,
            rng=rng or random.Random(),
        )
        self._consistent_reads = 0
        self._fallbacks = 0

    @property
    def ready(self) -> bool:
        return self._feed.ready

    async def run(self) -> None:
        """Feed the cache until cancelled; then all watches end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._feed.run())
                tasks.create_task(self._feed.request_progress(PROGRESS_INTERVAL_S))
                tasks.create_task(self._bookmark_loop())
        finally:
            self._feed.stop()

    async def wait_ready(self) -> None:
        """Until the first complete state is here."""
        await self._feed.ready_event.wait()

    async def _bookmark_loop(self) -> None:
        while True:
            await asyncio.sleep(_BOOKMARK_TICK_S)
            self.send_bookmarks()

    def send_bookmarks(self) -> None:
        """One turn of the bookmark timer."""
        self._dispatcher.send_bookmarks()

    def statistics(self) -> CacheStatistics:
        ring = self._state.ring
        return CacheStatistics(
            ready=self.ready,
            version=self._state.version,
            objects=len(self._state),
            watchers=len(self._dispatcher.watchers),
            ring_capacity=ring.capacity,
            ring_length=len(ring),
            events_dispatched=self._dispatcher.dispatched,
            slow_watchers_terminated=self._dispatcher.terminated_slow,
            initializations=self._feed.initializations,
            consistent_reads=self._consistent_reads,
            consistent_read_fallbacks=self._fallbacks,
        )

    def _check_ready(self) -> None:
        if not self.ready:
            raise NotReady(self._feed.downtime_s, self._feed.last_error)

    def hint(self, relative: str) -> StoredObject | None:
        """The cached object, however old: a first guess for an update or delete."""
        return self._state.get(checked_key(self.resource, relative)) if self.ready else None

    async def get(self, relative: str, resource_version: str = "") -> StoredObject:
        """One object (contract §1.1): unset reads the store, "0" the cache, n the cache once it is there.

        Raises:
            NotFound, TooLargeResourceVersion, InvalidResourceVersion, InvalidKey, CorruptObject, BackendError.
        """
        key = checked_key(self.resource, relative)
        wanted = parse_resource_version(resource_version)
        if not resource_version or not self.ready:
            return await self.direct.get(relative, resource_version)
        try:
            await self._fresh.wait(wanted, self._freshness_limit_s)
        except TooLargeResourceVersion:
            if self._feed.progress_safe:
                raise
            return await self.direct.get(relative, resource_version)
        item = self._state.get(key)
        if item is None:
            raise NotFound(key)
        return item

    async def list(self, options: ListOptions) -> ListResult:
        """A list by the matrix of contract §1.2.

        Raises:
            InvalidOptions, InvalidContinue, InvalidResourceVersion, Expired, TooLargeResourceVersion, NotReady,
            CorruptObject, BackendError.
        """
        validate_list(options)
        wanted = parse_resource_version(options.resource_version)
        if options.continue_token:
            return await self._continue(options, wanted)
        if options.match == EXACT or (wanted and options.limit and not options.match):
            return await self._list_exact(options, wanted)
        if not options.resource_version:
            return await self._list_consistent(options, "")
        if not self.ready and self._small_enough(options):
            return await self.direct.list(options)
        self._check_ready()
        try:
            await self._fresh.wait(wanted, self._freshness_limit_s)
        except TooLargeResourceVersion:
            if self._feed.progress_safe:
                raise
            return await self.direct.list(options)
        self._check_ready()
        # "0" is the informers' first list: they send a limit and expect the whole.
        return self._from_cache(options, "", 0 if wanted == 0 else options.limit)

    @staticmethod
    def _small_enough(options: ListOptions) -> bool:
        return options.limit > 0 and options.predicate.is_empty

    async def _continue(self, options: ListOptions, wanted: int) -> ListResult:
        check_continue_version(wanted)
        token = ContinueToken.decode(options.continue_token)
        if token.resource_version > 0:
            return await self.direct.list(options)
        return await self._list_consistent(options, token.start)

    async def _list_exact(self, options: ListOptions, wanted: int) -> ListResult:
        if self.ready and wanted > self._state.version and self._feed.progress_safe:
            await self._fresh.wait(wanted, self._freshness_limit_s)
        return await self.direct.list(options)

    async def _list_consistent(self, options: ListOptions, start: str) -> ListResult:
        """As of now: from the cache once it has reached the store's revision, else from the store."""
        if not self._feed.progress_safe:
            return await self.direct.list(options)
        if not self.ready:
            if self._small_enough(options):
                return await self.direct.list(options)
            self._check_ready()
        current = await self.direct.current_version()
        try:
            await self._fresh.wait(current, self._freshness_limit_s)
        except TooLargeResourceVersion:
            self._fallbacks += 1
            return await self.direct.list(options)
        if not self.ready:
            return await self.direct.list(options)
        self._consistent_reads += 1
        return self._from_cache(options, start, options.limit)

    def _from_cache(self, options: ListOptions, start: str, limit: int) -> ListResult:
        version, predicate = self._state.version, options.predicate
        key = list_key(self.resource, options)
        if key is not None:
            item = self._state.get(key)
            return ListResult([item] if item and predicate.matches(item) else [], version)
        prefix = self.resource.namespace_prefix(options.namespace)
        found = self._state.scan(prefix, prefix + start if start else "")
        if not limit:
            items = found if predicate.is_empty else [item for item in found if predicate.matches(item)]
            return ListResult(items, version)
        return self._page(found, options, prefix, limit)

    def _page(self, found: Sequence[StoredObject], options: ListOptions, prefix: str, limit: int) -> ListResult:
        version, predicate = self._state.version, options.predicate
        matching = (position for position, item in enumerate(found, 1) if predicate.matches(item))
        positions = tuple(itertools.islice(matching, limit))
        items = [found[position - 1] for position in positions]
        last = positions[-1] if len(positions) == limit else len(found)
        if last == len(found):
            return ListResult(items, version)
        token = ContinueToken(version, found[last - 1].key[len(prefix) :] + "\0")
        remaining = len(found) - limit if predicate.is_empty else None
        return ListResult(items, version, token.encode(), remaining)

    async def watch(self, options: WatchOptions) -> Watcher:
        """A watch by the matrix of contract §1.3.

        Raises:
            InvalidOptions, InvalidResourceVersion, NotReady, Expired, TooLargeResourceVersion, BackendError.
        """
        validate_watch(options)
        wanted = parse_resource_version(options.resource_version)
        self._check_ready()
        generation = self._feed.generation
        initial = options.send_initial_events
        if initial is None and wanted == 0:
            initial = True  # an old-style watch from "" or "0" is a watch-list
        required = wanted if options.resource_version else await self.direct.current_version()
        if not initial:
            return self._watch_after(options, required if wanted or not options.resource_version else None)
        try:
            await self._fresh.wait(required, self._freshness_limit_s)
        except TooLargeResourceVersion:
            if self._feed.progress_safe:
                raise
            return await self._watch_from_listing(options)
        if generation != self._feed.generation:
            return self._closed_watcher(options)
        return self._watch_state(options)

    @property
    def _freshness_limit_s(self) -> float:
        # Without safe progress notifications a quiet type may never reach the revision: no use waiting long.
        return FRESHNESS_LIMIT_S if self._feed.progress_safe else 0.05

    def _watch_after(self, options: WatchOptions, after: int | None) -> CacheWatcher:
        """Changes after a version, from the history and on; None means after what the cache has now."""
        state = self._state
        if after is None:
            after = state.version
        position = state.ring.position_after(after)
        return self._register(options, after, history(state.ring, position, state.ring.end, options.predicate))

    def _watch_state(self, options: WatchOptions) -> CacheWatcher:
        """The whole state as the cache has it, then changes."""
        version = self._state.version
        items = self._state.scan(self.resource.namespace_prefix(options.namespace))
        return self._register(options, version, self._state_backlog(options, items, version))

    async def _watch_from_listing(self, options: WatchOptions) -> CacheWatcher:
        """The whole state as the store has it, then changes after it."""
        match = NOT_OLDER_THAN if options.resource_version else ""
        wanted = ListOptions(options.namespace, options.predicate, options.resource_version, match)
        try:
            listing = await self.direct.list(wanted)
        except TooLargeResourceVersion as exc:
            exc.retry_after_s = 1
            raise
        self._check_ready()
        ring, version = self._state.ring, listing.resource_version
        later = history(ring, ring.position_after(version), ring.end, options.predicate)
        backlog = itertools.chain(self._state_backlog(options, listing.items, version), later)
        return self._register(options, version, backlog)

    @staticmethod
    def _state_backlog(options: WatchOptions, items: Sequence[StoredObject], version: int) -> Batches:
        yield from initial_state(items, options.predicate)
        if options.allow_bookmarks:
            yield [WatchEvent("BOOKMARK", version, initial_events_end=True)]

    def _register(self, options: WatchOptions, after: int, backlog: Batches) -> CacheWatcher:
        watchers = self._dispatcher.watchers
        trigger_used = watchers.trigger_value(options.predicate) is not None
        size = suggested_queue_size(
            self._state.ring.capacity, indexed=bool(self.resource.trigger), trigger_used=trigger_used
        )
        now = self._clock()
        watcher = CacheWatcher(
            predicate=options.predicate,
            after=after,
            backlog=backlog,
            queue_size=2 * size,
            allow_bookmarks=options.allow_bookmarks,
            now=now,
            deadline=now + options.timeout_s if options.timeout_s else 0.0,
            on_close=watchers.discard,
        )
        watchers.add(watcher, options.namespace)
        return watcher

    def _closed_watcher(self, options: WatchOptions) -> CacheWatcher:
        watcher = self._register(options, 0, iter(()))
        watcher.close()
        return watcher

    async def readable(self) -> bool:
        """Whether the store answers a linearizable read now."""
        try:
            await self.direct.current_version()
        except BackendError:
            return False
        return True
