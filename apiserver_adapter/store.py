"""The object store a control plane plugs into: objects with optimistic locking over etcd v3 transactions.

create, get, guaranteed_update, delete, list and watch over JSON objects of one resource, with the semantics of
Kubernetes' storage interface (contract §4). Reads go through the watch cache where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchcache.backend import Backend, Compare, Delete, Get, KeyValue, LeaseNotFound, Put, TxnResult
from watchcache.cacher import Cacher
from watchcache.codec import Codec, Object, StoredObject
from watchcache.direct import DirectStore
from watchcache.errors import (
    AlreadyExists,
    InvalidObject,
    NotFound,
    ResourceVersionSetOnCreate,
)
from watchcache.events import Watcher
from watchcache.keys import checked_key
from watchcache.options import ListOptions, ListResult, WatchOptions

from .leases import LeaseManager

UpdateFunction = Callable[[StoredObject | None], Object]
ValidateFunction = Callable[[StoredObject], None]

WRITE_TIMEOUT_S = 34.0


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What must hold for the stored object; "" means: anything."""

    uid: str = ""
    resource_version: str = ""

    def check(self, current: StoredObject) -> None:
        """Raises InvalidObject."""
        if self.uid:
            uid = current.decode()["metadata"].get("uid", "")
            if uid != self.uid:
                raise InvalidObject(
                    f"Precondition failed: UID in precondition: {self.uid}, UID in object meta: {uid}"
                )
        if self.resource_version and self.resource_version != str(current.resource_version):
            raise InvalidObject(
                f"Precondition failed: ResourceVersion in precondition: {self.resource_version}, "
                f"ResourceVersion in object meta: {current.resource_version}"
            )


@dataclass(frozen=True, slots=True)
class _State:
    """The object an attempt starts from. ``fresh``: read from the store, not guessed from the cache."""

    item: StoredObject | None
    data: bytes
    stale: bool
    fresh: bool

    @property
    def version(self) -> int:
        return self.item.resource_version if self.item else 0


class ObjectStore:
    """All objects of one resource. Keys are "namespace/name", or "name" for cluster-scoped resources."""

    def __init__(
        self,
        backend: Backend,
        codec: Codec,
        cacher: Cacher | None = None,
        leases: LeaseManager | None = None,
    ) -> None:
        self._backend = backend
        self._codec = codec
        self.resource = codec.resource
        self.cacher = cacher
        self.direct = cacher.direct if cacher else DirectStore(backend, codec)
        self._reader: Cacher | DirectStore = cacher or self.direct
        self._leases = leases or LeaseManager(backend)

    async def create(self, relative: str, obj: Object, *, ttl_s: int = 0) -> StoredObject:
        """Store a new object; it lives ``ttl_s`` seconds if that is not 0.

        Raises:
            ResourceVersionSetOnCreate, AlreadyExists, InvalidKey, BackendError.
        """
        if obj["metadata"].get("resourceVersion") not in (None, "", "0"):
            raise ResourceVersionSetOnCreate
        key = checked_key(self.resource, relative)
        data = self._codec.encode(obj)
        put, result = await self._put_over(0, key, data, ttl_s)
        if not result.succeeded:
            raise AlreadyExists(key, terminating=self._is_terminating(result.responses[0]))
        return self._written(put, result.revision)

    def _is_terminating(self, kvs: Sequence[KeyValue]) -> bool:
        item = self._codec.decode(kvs[0]) if kvs else None
        return item is not None and "deletionTimestamp" in item.decode()["metadata"]

    async def _put_over(self, version: int, key: str, data: bytes, ttl_s: int) -> tuple[Put, TxnResult]:
        """Write if the key is still at ``version``; the result has what is there otherwise."""
        put = await self._put(key, data, ttl_s)
        for last in (False, True):
            try:
                result = await self._backend.txn(
                    [Compare(put.key, "mod", version)], [put], [Get(put.key)], timeout_s=WRITE_TIMEOUT_S
                )
            except LeaseNotFound:
                if last or not put.lease:
                    raise
                self._leases.forget()
                put = await self._put(key, data, ttl_s)
            else:
                break
        return put, result

    async def _put(self, key: str, data: bytes, ttl_s: int) -> Put:
        lease = await self._leases.lease_for(ttl_s) if ttl_s else 0
        return Put(key.encode(), self._codec.transformer.to_storage(data, key.encode()), lease)

    def _written(self, put: Put, revision: int) -> StoredObject:
        return self._codec.decode(KeyValue(put.key, put.value, mod_revision=revision))

    async def get(self, relative: str, resource_version: str = "") -> StoredObject:
        """See :meth:`watchcache.cacher.Cacher.get`."""
        return await self._reader.get(relative, resource_version)

    async def list(self, options: ListOptions) -> ListResult:
        """See :meth:`watchcache.cacher.Cacher.list`."""
        return await self._reader.list(options)

    async def watch(self, options: WatchOptions) -> Watcher:
        """See :meth:`watchcache.cacher.Cacher.watch`."""
        return await self._reader.watch(options)

    async def current_version(self) -> int:
        """The store's revision, by a linearizable read."""
        return await self.direct.current_version()

    def bookmark(self, resource_version: int, *, initial_events_end: bool = False) -> bytes:
        """The object of a BOOKMARK event."""
        return self._codec.bookmark(resource_version, initial_events_end=initial_events_end)

    def encode_unstored(self, obj: Object) -> bytes:
        """An object as it would be served, without storing it; its resourceVersion is what it carries."""
        version = obj["metadata"].get("resourceVersion") or ""
        encoded = self._codec.encode(obj)
        return self._codec.with_version(encoded, version) if version else encoded

    async def _load(self, key: str) -> _State:
        result = await self._backend.range(key.encode())
        return self._state_of(result.kvs[0]) if result.kvs else _State(None, b"", stale=False, fresh=True)

    def _state_of(self, kv: KeyValue) -> _State:
        item, data, stale = self._codec.decode_stored(kv)
        return _State(item, data, stale, fresh=True)

    def _guess(self, relative: str, hint: StoredObject | None) -> _State | None:
        item = hint or (self.cacher.hint(relative) if self.cacher else None)
        if item is None:
            return None
        return _State(item, self._codec.encode(item.decode()), stale=False, fresh=False)

    async def guaranteed_update(
        self,
        relative: str,
        update: UpdateFunction,
        *,
        preconditions: Preconditions = Preconditions(),
        ignore_not_found: bool = False,
        ttl_s: int = 0,
        hint: StoredObject | None = None,
    ) -> StoredObject:
        """Run ``update`` on the current object and store what it returns, until no other write came between.

        ``update`` may be called several times and must not keep what it is given. It gets None for an absent
        object if ``ignore_not_found``. Returning equal content writes nothing. ``hint`` is a copy to try first;
        whatever fails on it is tried again on the live object.

        Raises:
            NotFound, InvalidObject, InvalidKey, CorruptObject, BackendError, and what ``update`` raises.
        """
        key = checked_key(self.resource, relative)
        state = self._guess(relative, hint) or await self._load(key)
        while True:
            try:
                data = self._attempt(key, state, update, preconditions, ignore_not_found)
            except Exception:
                if state.fresh:
                    raise
                state = await self._load(key)
                continue
            if data == state.data and not state.stale:
                if state.fresh:
                    assert state.item is not None
                    return state.item
                live = await self._load(key)
                if live.data == data and not live.stale and live.item:
                    return live.item
                state = live
                continue
            put, result = await self._put_over(state.version, key, data, ttl_s)
            if result.succeeded:
                return self._written(put, result.revision)
            found = result.responses[0]
            state = self._state_of(found[0]) if found else _State(None, b"", stale=False, fresh=True)

    def _attempt(
        self,
        key: str,
        state: _State,
        update: UpdateFunction,
        preconditions: Preconditions,
        ignore_not_found: bool,
    ) -> bytes:
        if state.item is None and not ignore_not_found:
            raise NotFound(key)
        if state.item is not None:
            preconditions.check(state.item)
        return self._codec.encode(update(state.item))

    async def delete(
        self,
        relative: str,
        *,
        preconditions: Preconditions = Preconditions(),
        validate: ValidateFunction | None = None,
        hint: StoredObject | None = None,
    ) -> StoredObject:
        """Remove the object; returns its last content under the revision of the deletion.

        ``validate`` may refuse by raising; it runs again whenever the object turns out to have changed.

        Raises:
            NotFound, InvalidObject, InvalidKey, CorruptObject, BackendError, and what ``validate`` raises.
        """
        key = checked_key(self.resource, relative)
        state = self._guess(relative, hint) or await self._load(key)
        while True:
            try:
                item = self._checked_for_delete(key, state, preconditions, validate)
            except Exception:
                if state.fresh:
                    raise
                state = await self._load(key)
                continue
            result = await self._backend.txn(
                [Compare(key.encode(), "mod", item.resource_version)],
                [Delete(key.encode())],
                [Get(key.encode())],
                timeout_s=WRITE_TIMEOUT_S,
            )
            if result.succeeded:
                return item.at_version(result.revision)
            found = result.responses[0]
            state = self._state_of(found[0]) if found else _State(None, b"", stale=False, fresh=True)

    @staticmethod
    def _checked_for_delete(
        key: str, state: _State, preconditions: Preconditions, validate: ValidateFunction | None
    ) -> StoredObject:
        if state.item is None:
            raise NotFound(key)
        preconditions.check(state.item)
        if validate is not None:
            validate(state.item)
        return state.item
