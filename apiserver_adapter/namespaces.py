"""Namespaces: creation is refused in absent or terminating ones; terminating ones are emptied (contract §3.14)."""

from __future__ import annotations

import asyncio
import logging

from watchcache.backend import BackendError
from watchcache.codec import Object, StoredObject
from watchcache.errors import AlreadyExists, NotFound, StorageError
from watchcache.options import ListOptions, WatchOptions

from .context import Context, Stores
from .errors import ApiError, cause, forbidden, not_found
from .objects import mark_deleted, prepare_create, relative_key
from .resources import Kind
from .store import ObjectStore, Preconditions

log = logging.getLogger(__name__)

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_RETRY_S = 1.0


def _namespace_kind(stores: Stores) -> Kind:
    kind = stores.registry.find("", "v1", "namespaces")
    assert kind is not None
    return kind


async def check_open_for_create(context: Context) -> None:
    """A namespaced object needs a namespace that is there to stay.

    Raises:
        ApiError: 404 if it is absent, 403 if it is terminating.
    """
    if not context.kind.namespaced:
        return
    kind, name = _namespace_kind(context.stores), context.namespace
    try:
        item = await _namespace(context.stores, context.stores.of(kind), name)
    except NotFound as exc:
        raise not_found(kind, name) from exc
    if item.decode()["metadata"].get("deletionTimestamp"):
        raise _terminating(context)


async def _namespace(stores: Stores, store: ObjectStore, name: str) -> StoredObject:
    """The namespace, from the cache unless that may be behind on a deletion. Raises NotFound."""
    cached = store.cacher.hint(name) if store.cacher else None
    if cached is None:
        stores.deleted_namespaces.discard(name)
        return await store.get(name)
    if name not in stores.deleted_namespaces:
        return cached
    live = await store.get(name)
    if live.resource_version == cached.resource_version or "deletionTimestamp" not in live.decode()["metadata"]:
        stores.deleted_namespaces.discard(name)
    return live


def _terminating(context: Context) -> ApiError:
    namespace = context.namespace
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    problem = cause("NamespaceTerminating", "metadata.namespace", f"namespace {namespace} is being terminated")
    return forbidden(context.kind, context.name, why, [problem])


async def ensure_system_namespaces(stores: Stores) -> None:
    """Create the namespaces every cluster has. Raises BackendError."""
    kind = _namespace_kind(stores)
    for name in SYSTEM_NAMESPACES:
        obj: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        prepare_create(kind, obj)
        try:
            await stores.of(kind).create(name, obj)
        except AlreadyExists:
            continue
        log.info("namespace %s created", name)


class NamespaceController:
    """Empties namespaces that are being deleted, then lets them go; brings back those every cluster has."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._namespaces = stores.of(_namespace_kind(stores))

    async def run(self) -> None:
        """For ever; a failure is tried again after a second."""
        if self._namespaces.cacher is not None:
            await self._namespaces.cacher.wait_ready()
        while True:
            try:
                await self._follow()
            except (StorageError, BackendError) as exc:
                log.info("namespace controller starts over: %s", exc)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> None:
        watcher = await self._namespaces.watch(WatchOptions(resource_version="0"))
        try:
            # Watches end when the store comes back with other content, which may be none.
            await ensure_system_namespaces(self._stores)
            while events := await watcher.next_batch():
                for event in events:
                    if event.object is None:
                        continue
                    if event.kind == "DELETED":
                        if event.object.name in SYSTEM_NAMESPACES:
                            await ensure_system_namespaces(self._stores)
                    else:
                        await self._look_at_safely(event.object)
        finally:
            await watcher.aclose()

    async def _look_at_safely(self, item: StoredObject) -> None:
        """One namespace that another writer has malformed must not stop the others."""
        try:
            await self._look_at(item)
        except (TypeError, AttributeError, KeyError, ValueError):
            log.exception("namespace %s cannot be finalized", item.name)

    async def _look_at(self, item: StoredObject) -> None:
        if "deletionTimestamp" not in item.decode()["metadata"]:
            return
        try:
            await self._empty(item.name)
            await self._finalize(item.name)
        except NotFound:
            return  # gone already

    async def _check_terminating(self, name: str) -> None:
        """Raises NotFound if the namespace has gone, or another one by the same name has come."""
        live = await self._namespaces.get(name)
        if "deletionTimestamp" not in live.decode()["metadata"]:
            raise NotFound(live.key)

    async def _empty(self, namespace: str) -> None:
        for kind in self._stores.registry:
            store = self._stores.by_kind.get(kind.identity)  # a custom kind may have gone meanwhile
            if kind.namespaced and store is not None:
                await self._check_terminating(namespace)
                await self._empty_kind(kind, store, namespace)

    @staticmethod
    async def _empty_kind(kind: Kind, store: ObjectStore, namespace: str) -> None:
        """Delete everything of one kind. What has finalizers is marked and keeps the namespace."""
        result = await store.direct.list(ListOptions(namespace=namespace))
        held_back = False
        for item in result.items:
            held_back |= await _delete_or_mark(kind, store, item)
        if held_back:
            raise _NotEmpty(f"{kind.kind} objects with finalizers remain in namespace {namespace}")

    async def _finalize(self, name: str) -> None:
        def without_finalizers(current: StoredObject | None) -> Object:
            assert current is not None
            obj = current.decode()
            if "deletionTimestamp" not in obj["metadata"]:
                raise NotFound(current.key)
            obj["spec"] = {**(obj.get("spec") or {}), "finalizers": []}
            return obj

        item = await self._namespaces.guaranteed_update(name, without_finalizers)
        if not item.decode()["metadata"].get("finalizers"):
            version = Preconditions(resource_version=str(item.resource_version))
            await self._namespaces.delete(name, preconditions=version)


class _NotEmpty(StorageError):
    """The namespace still has content that waits for finalizers."""


async def _delete_or_mark(kind: Kind, store: ObjectStore, item: StoredObject) -> bool:
    """True if the object stays because of finalizers."""
    relative = relative_key(kind, item.namespace, item.name)

    def unheld(current: StoredObject) -> None:
        if current.decode()["metadata"].get("finalizers"):
            raise _NotEmpty(current.key)

    def mark(current: StoredObject | None) -> Object:
        assert current is not None
        marked = current.decode()
        if "deletionTimestamp" not in marked["metadata"]:
            mark_deleted(kind, marked, 0)
        return marked

    try:
        await store.delete(relative, validate=unheld)
    except NotFound:
        return False
    except _NotEmpty:
        await store.guaranteed_update(relative, mark)
        return True
    return False
