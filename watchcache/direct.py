"""Reading objects straight from the store: linearizable gets, lists at any kept revision, plain watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from .backend import (
    Backend,
    BackendError,
    Compacted,
    Event,
    FutureRevision,
    KeyValue,
    RangeResult,
    WatchStream,
    prefix_end,
)
from .codec import Codec, StoredObject
from .errors import (
    CONTINUE_TOO_OLD,
    LIST_TOO_OLD,
    WATCH_TOO_OLD,
    CorruptObject,
    Expired,
    NotFound,
    TooLargeResourceVersion,
)
from .events import Change, WatchEvent
from .keys import checked_key, list_key, single_name
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

PAGE_SIZE = 10_000
Reuse = Callable[[str, int], StoredObject | None]
Events = AsyncGenerator[list[WatchEvent], None]
_Items = list[StoredObject]


def _no_reuse(key: str, resource_version: int) -> StoredObject | None:
    return None


@dataclass(slots=True)
class _Scan:
    """Where a list stands: ``revision`` 0 until the first page has pinned it."""

    prefix: str
    start: str
    revision: int
    limit: int
    token: ContinueToken | None
    exact: bool


class DirectStore:
    """One resource in the store, without a cache.

    Args:
        reuse: may return an already decoded object for a key at a version, to save decoding it again.

    """

    def __init__(self, backend: Backend, codec: Codec, reuse: Reuse = _no_reuse) -> None:
        self.backend = backend
        self.codec = codec
        self.resource = codec.resource
        self._reuse = reuse

    def _decode(self, kv: KeyValue) -> StoredObject:
        known = self._reuse(kv.key.decode("utf-8", "replace"), kv.mod_revision)
        return known or self.codec.decode(kv)

    async def current_version(self) -> int:
        """The store's revision by a linearizable read."""
        prefix = self.resource.prefix.encode()
        result = await self.backend.range(prefix, prefix_end(prefix), limit=1, keys_only=True)
        return result.revision

    async def get(self, relative: str, resource_version: str = "") -> StoredObject:
        """The newest version; it must not be older than ``resource_version``.

        Raises:
            NotFound, TooLargeResourceVersion, InvalidResourceVersion, InvalidKey, CorruptObject, BackendError.
        """
        key = checked_key(self.resource, relative)
        wanted = parse_resource_version(resource_version)
        result = await self.backend.range(key.encode())
        if wanted > result.revision:
            raise TooLargeResourceVersion(wanted, result.revision, retry_after_s=0)
        if not result.kvs:
            raise NotFound(key)
        return self._decode(result.kvs[0])

    async def list(self, options: ListOptions) -> ListResult:
        """A list answered by the store alone (contract §1.2).

        Raises:
            InvalidOptions, InvalidContinue, InvalidResourceVersion, Expired, TooLargeResourceVersion,
            CorruptObject, BackendError.
        """
        validate_list(options)
        key = list_key(self.resource, options)
        if key is not None:
            return await self._list_single(key, options)
        return await self._list_pages(self._scan(options), options)

    def _scan(self, options: ListOptions) -> _Scan:
        prefix = self.resource.namespace_prefix(options.namespace)
        wanted = parse_resource_version(options.resource_version)
        if options.continue_token:
            check_continue_version(wanted)
            token = ContinueToken.decode(options.continue_token)
            revision = token.resource_version if token.resource_version > 0 else 0
            return _Scan(prefix, prefix + token.start, revision, options.limit, token, revision > 0)
        exact = options.match == EXACT or (wanted > 0 and options.limit > 0 and not options.match)
        return _Scan(prefix, prefix, wanted if exact else 0, options.limit, None, exact)

    async def _range(self, scan: _Scan, limit: int) -> RangeResult:
        end = prefix_end(scan.prefix.encode())
        try:
            return await self.backend.range(
                scan.start.encode(errors="surrogateescape"),
                end,
                revision=scan.revision,
                limit=limit,
                timeout_s=60.0,
            )
        except Compacted as exc:
            raise _expired_list(scan) from exc
        except FutureRevision as exc:
            current = await self.current_version()
            raise TooLargeResourceVersion(scan.revision, current, retry_after_s=0) from exc

    async def _list_pages(self, scan: _Scan, options: ListOptions) -> ListResult:
        selective = not options.predicate.is_empty
        wanted = parse_resource_version(options.resource_version)
        items: _Items = []
        page = scan.limit or PAGE_SIZE
        count: int | None = None
        while True:
            result = await self._range(scan, page)
            if scan.revision == 0:
                if wanted > result.revision:
                    raise TooLargeResourceVersion(wanted, result.revision, retry_after_s=0)
                scan.revision = result.revision
            if count is None:
                count = result.count
            last = self._take(result.kvs, options, items)
            more = result.more or last < len(result.kvs)
            if last:
                scan.start = result.kvs[last - 1].key.decode(errors="surrogateescape") + "\0"
            if not more or (scan.limit and len(items) >= scan.limit):
                break
            page = min(page * 2, PAGE_SIZE) if scan.limit else PAGE_SIZE
        if not more:
            return ListResult(items, scan.revision)
        token = ContinueToken(scan.revision, scan.start[len(scan.prefix) :])
        remaining = None if selective else count - scan.limit
        return ListResult(items, scan.revision, token.encode(), remaining)

    def _take(self, kvs: Sequence[KeyValue], options: ListOptions, items: _Items) -> int:
        """Append what matches until the limit is reached; returns how many keys were looked at."""
        for position, kv in enumerate(kvs, 1):
            item = self._decode(kv)
            if options.predicate.matches(item):
                items.append(item)
            if options.limit and len(items) >= options.limit:
                return position
        return len(kvs)

    async def _list_single(self, key: str, options: ListOptions) -> ListResult:
        wanted = parse_resource_version(options.resource_version)
        exact = options.match == EXACT or (wanted > 0 and options.limit > 0 and not options.match)
        try:
            result = await self.backend.range(key.encode(), revision=wanted if exact else 0)
        except Compacted as exc:
            raise Expired(LIST_TOO_OLD) from exc
        except FutureRevision as exc:
            raise TooLargeResourceVersion(wanted, await self.current_version(), retry_after_s=0) from exc
        if wanted > result.revision:
            raise TooLargeResourceVersion(wanted, result.revision, retry_after_s=0)
        items = [item for item in map(self._decode, result.kvs) if options.predicate.matches(item)]
        return ListResult(items, wanted if exact else result.revision)

    async def watch(self, options: WatchOptions) -> DirectWatcher:
        """A watch answered by the store alone: no periodic bookmarks, history as far as the store keeps it.

        Raises:
            InvalidOptions, InvalidResourceVersion, TooLargeResourceVersion, BackendError.
        """
        validate_watch(options)
        wanted = parse_resource_version(options.resource_version)
        initial: ListResult | None = None
        legacy_state = options.send_initial_events is None and wanted == 0
        if options.send_initial_events or legacy_state:
            listing = ListOptions(
                options.namespace,
                options.predicate,
                options.resource_version,
                NOT_OLDER_THAN if options.resource_version else "",
            )
            try:
                initial = await self.list(listing)
            except TooLargeResourceVersion as exc:
                exc.retry_after_s = 1
                raise
            after = initial.resource_version
        elif wanted == 0:
            after = await self.current_version()
        else:
            after = wanted
        return DirectWatcher(self, options, initial, after)


def _expired_list(scan: _Scan) -> Expired:
    if scan.token is None:
        return Expired(LIST_TOO_OLD)
    return Expired(CONTINUE_TOO_OLD, ContinueToken(-1, scan.token.start).encode())


class DirectWatcher:
    """See :class:`watchcache.events.Watcher`: pulls from the store's own watch, so nothing is queued here."""

    def __init__(self, store: DirectStore, options: WatchOptions, initial: ListResult | None, after: int) -> None:
        self._store = store
        self._options = options
        self._after = after
        self._stream: WatchStream | None = None
        self._batches = self._run(initial)

    async def next_batch(self) -> list[WatchEvent]:
        return await anext(self._batches, [])

    async def aclose(self) -> None:
        await self._batches.aclose()
        if self._stream is not None:
            await self._stream.aclose()

    async def _run(self, initial: ListResult | None) -> Events:
        if initial is not None:
            events = [WatchEvent("ADDED", item.resource_version, item) for item in initial.items]
            if self._options.allow_bookmarks and self._options.send_initial_events:
                events.append(WatchEvent("BOOKMARK", initial.resource_version, initial_events_end=True))
            if events:
                yield events
        try:
            async for events in self._follow():
                yield events
        except Compacted:
            yield [WatchEvent("ERROR", 0, error=Expired(WATCH_TOO_OLD))]
        except CorruptObject as exc:
            yield [WatchEvent("ERROR", 0, error=exc)]
        except BackendError as exc:
            yield [WatchEvent("ERROR", 0, error=exc)]

    async def _follow(self) -> Events:
        resource, options = self._store.resource, self._options
        single = single_name(resource, options.namespace, options.predicate)
        key = (single or resource.namespace_prefix(options.namespace)).encode()
        end = b"" if single else prefix_end(key)
        self._stream = await self._store.backend.watch(key, end, start_revision=self._after + 1)
        async for batch in self._stream:
            if batch.is_progress:
                if options.progress_notify and batch.revision >= self._after:
                    yield [WatchEvent("BOOKMARK", batch.revision)]
                continue
            async for events in self._convert(batch.events):
                yield events

    async def _convert(self, changes: Sequence[Event]) -> Events:
        """Events up to the first undecodable object, whose error then ends the watch."""
        events: list[WatchEvent] = []
        try:
            for change in changes:
                event = change_of(change, self._store.codec).seen_by(self._options.predicate)
                if event is not None:
                    events.append(event)
        except CorruptObject:
            if events:
                yield events
            raise
        if events:
            self._after = events[-1].resource_version
            yield events


def change_of(event: Event, codec: Codec, previous: StoredObject | None = None) -> Change:
    """The change behind a store event; ``previous`` spares decoding the state before it.

    Raises:
        CorruptObject: undecodable, or the state before a change of an existing key is missing.
    """
    current = codec.decode(event.kv) if event.kv.value or event.type.value == "PUT" else None
    if previous is None and event.prev_kv is not None:
        previous = codec.decode(event.prev_kv)
    if previous is None and not event.is_create:
        raise CorruptObject(event.kv.key.decode("utf-8", "replace"), "the state before the change is missing")
    return Change(event.kv.mod_revision, current, previous)
