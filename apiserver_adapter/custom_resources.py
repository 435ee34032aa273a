"""Custom resource definitions: validated, served, established, and cleaned up when they go (contract §3.13)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from watchcache.backend import BackendError
from watchcache.codec import Object, StoredObject
from watchcache.errors import NotFound, StorageError
from watchcache.options import NOT_OLDER_THAN, ListOptions, WatchOptions

from .context import Stores
from .errors import cause, invalid
from .objects import relative_key
from .resources import Kind, PrinterColumn
from .store import Preconditions
from .times import now_rfc3339

log = logging.getLogger(__name__)

GROUP = "apiextensions.k8s.io"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_RETRY_S = 1.0


def prepare_definition(crd: Object) -> None:
    """Defaults and checks of a definition that is to be stored.

    Raises:
        ApiError: 422.
    """
    spec = crd["spec"] = crd.get("spec") or {}
    names = spec["names"] = spec.get("names") or {}
    if names.get("kind"):
        names["singular"] = names.get("singular") or names["kind"].lower()
        names["listKind"] = names.get("listKind") or names["kind"] + "List"
    spec.setdefault("conversion", {"strategy": "None"})
    name = str(crd["metadata"].get("name", ""))
    causes = []
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if name != expected:
        text = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        causes.append(cause("FieldValueInvalid", "metadata.name", text))
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        text = f'Unsupported value: "{spec.get("scope", "")}": supported values: "Cluster", "Namespaced"'
        causes.append(cause("FieldValueNotSupported", "spec.scope", text))
    if not names.get("kind"):
        causes.append(cause("FieldValueRequired", "spec.names.kind", "Required value"))
    versions = spec.get("versions") or []
    if sum(1 for version in versions if version.get("storage")) != 1:
        text = "Invalid value: must have exactly one version marked as storage version"
        causes.append(cause("FieldValueInvalid", "spec.versions", text))
    for position, version in enumerate(versions):
        if not version.get("name"):
            causes.append(cause("FieldValueRequired", f"spec.versions[{position}].name", "Required value"))
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            field = f"spec.versions[{position}].schema.openAPIV3Schema"
            causes.append(cause("FieldValueRequired", field, "Required value: schemas are required"))
    if causes:
        raise invalid(GROUP, "CustomResourceDefinition", name, causes)
    finalizers = crd["metadata"].setdefault("finalizers", [])
    if FINALIZER not in finalizers and "deletionTimestamp" not in crd["metadata"]:
        finalizers.append(FINALIZER)


def kinds_of(crd: Object) -> list[Kind]:
    """The kinds that a definition serves, one per served version."""
    spec, names = crd["spec"], crd["spec"]["names"]
    return [_kind(spec, names, version) for version in spec.get("versions") or () if version.get("served")]


def _kind(spec: Object, names: Object, version: Object) -> Kind:
    subresources = version.get("subresources") or {}
    columns = tuple(
        PrinterColumn(
            column.get("name") or "",
            column.get("jsonPath") or "",
            column.get("type") or "string",
            column.get("format") or "",
            column.get("priority") or 0,
        )
        for column in version.get("additionalPrinterColumns") or ()
    )
    fields = [(item.get("jsonPath") or "").lstrip(".") for item in version.get("selectableFields") or ()]
    return Kind(
        spec["group"],
        version["name"],
        names["plural"],
        names["kind"],
        names.get("singular") or names["kind"].lower(),
        namespaced=spec.get("scope") == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(name for name in ("scale", "status") if name in subresources),
        storage=f"{spec['group']}/{names['plural']}",
        selectable={field: field for field in fields},
        generation=True,
        needs_version=True,
        custom=True,
        columns=columns,
    )


def established_status(crd: Object) -> dict[str, Any]:
    """The status of a definition whose kinds are being served; conditions keep their time."""
    spec, status = crd["spec"], dict(crd.get("status") or {})
    known = {item.get("type"): item for item in status.get("conditions") or ()}
    conditions = []
    for kind, reason, message in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ):
        fresh = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now_rfc3339(),
        }
        old = known.pop(kind, None)
        conditions.append(old if old and old.get("status") == "True" else fresh)
    stored = list(status.get("storedVersions") or ())
    stored += [v["name"] for v in spec["versions"] if v.get("storage") and v["name"] not in stored]
    return {
        "acceptedNames": spec["names"],
        "conditions": [*conditions, *known.values()],
        "storedVersions": stored,
    }


class DefinitionController:
    """Follows the definitions: serves what they define before it says so.

    Args:
        serve: makes a kind available; returns once it can be read.
        withdraw: takes it away again.

    """

    def __init__(
        self, stores: Stores, serve: Callable[[Kind], Awaitable[None]], withdraw: Callable[[Kind], None]
    ) -> None:
        kind = stores.registry.find(GROUP, "v1", "customresourcedefinitions")
        assert kind is not None
        self._stores = stores
        self._definitions = stores.of(kind)
        self._serve = serve
        self._withdraw = withdraw
        self._served: dict[str, list[Kind]] = {}
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """For ever; a failure is tried again after a second."""
        if self._definitions.cacher is not None:
            await self._definitions.cacher.wait_ready()
        while True:
            try:
                await self._follow()
            except (StorageError, BackendError) as exc:
                log.info("definitions are followed anew: %s", exc)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> None:
        options = WatchOptions(
            resource_version="0", match=NOT_OLDER_THAN, send_initial_events=True, allow_bookmarks=True
        )
        watcher = await self._definitions.watch(options)
        seen: set[str] = set()
        try:
            while events := await watcher.next_batch():
                for event in events:
                    if event.initial_events_end:
                        self._withdraw_all_but(seen)
                        self.synced.set()
                    if event.object is None:
                        continue
                    seen.add(event.object.name)
                    if event.kind == "DELETED":
                        self._replace(event.object.name, [])
                    else:
                        await self._look_at_safely(event.object)
        finally:
            await watcher.aclose()

    def _withdraw_all_but(self, names: set[str]) -> None:
        """Definitions may have gone while nobody watched, as when the store came back empty."""
        for name in set(self._served) - names:
            self._replace(name, [])

    async def _look_at_safely(self, item: StoredObject) -> None:
        """One definition that another writer has malformed must not stop the others."""
        try:
            await self._look_at(item)
        except (TypeError, AttributeError, KeyError, ValueError):
            log.exception("definition %s cannot be served", item.name)

    async def _look_at(self, item: StoredObject) -> None:
        crd = item.decode()
        deleting = "deletionTimestamp" in crd["metadata"]
        if deleting and FINALIZER not in crd["metadata"].get("finalizers", ()):
            return
        wanted = kinds_of(crd)
        for kind in self._replace(item.name, wanted):
            await self._serve(kind)
        try:
            if deleting:
                await self._clean_up(item.name, wanted)
            else:
                await self._definitions.guaranteed_update(item.name, _establish)
        except NotFound:
            return

    def _replace(self, name: str, wanted: list[Kind]) -> list[Kind]:
        """Withdraw what is no longer wanted; returns what is to be served now."""
        served = self._served.get(name, [])
        for kind in served:
            if kind not in wanted:
                self._withdraw(kind)
        self._served[name] = wanted
        return [kind for kind in wanted if kind not in served]

    async def _clean_up(self, name: str, kinds: list[Kind]) -> None:
        """Delete all objects of a definition that goes, then let it go. Raises NotFound."""
        live = await self._definitions.get(name)
        if "deletionTimestamp" not in live.decode()["metadata"]:
            return  # another one by the same name, already
        for kind in kinds[:1]:  # all versions share their objects
            store = self._stores.of(kind)
            for item in (await store.direct.list(ListOptions())).items:
                try:
                    await store.delete(relative_key(kind, item.namespace, item.name))
                except NotFound:
                    continue
        self._replace(name, [])
        released = await self._definitions.guaranteed_update(name, _release)
        if not released.decode()["metadata"].get("finalizers"):
            version = Preconditions(resource_version=str(released.resource_version))
            await self._definitions.delete(name, preconditions=version)


def _establish(current: StoredObject | None) -> Object:
    assert current is not None
    crd = current.decode()
    crd["status"] = established_status(crd)
    return crd


def _release(current: StoredObject | None) -> Object:
    assert current is not None
    crd = current.decode()
    if "deletionTimestamp" not in crd["metadata"]:
        raise NotFound(current.key)
    crd["metadata"]["finalizers"] = [f for f in crd["metadata"].get("finalizers") or () if f != FINALIZER]
    return crd
