"""delete and deletecollection: grace periods, finalizers, preconditions (contract §3.8)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from watchcache.codec import Object, StoredObject
from watchcache.errors import InvalidObject, NotFound

from . import body
from .context import Context
from .errors import ApiError, bad_request, cause, conflict, invalid, not_found
from .handlers_read import object_response
from .handlers_write import refuse_if_protected
from .negotiation import json_response
from .objects import is_deletable, mark_deleted
from .query import check_dry_run, list_options
from .shapes import check_message
from .store import Preconditions

_FINALIZERS = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}
_GRACE_S = 30


@dataclass(frozen=True)
class DeleteOptions:
    """``grace_s`` None means: the default of the kind."""

    grace_s: int | None = None
    propagation: str = ""
    preconditions: Preconditions = field(default_factory=Preconditions)
    dry_run: bool = False


async def read_options(context: Context) -> DeleteOptions:
    """From the body, or from the query if there is none.

    Raises:
        ApiError: 400, 422.
    """
    request = context.request
    data = await body.read(request)
    document: Mapping[str, Any]
    if data.strip():
        document = body.decode_object(data, body.media_type(request), "Ignore")[0]
        check_message(context.kind, "DeleteOptions", document)
    else:
        query = request.query
        document = {name: query[name] for name in ("propagationPolicy", "orphanDependents") if name in query}
        if "gracePeriodSeconds" in query:
            document = {**document, "gracePeriodSeconds": _integer(query["gracePeriodSeconds"])}
        document = {**document, "dryRun": query.getall("dryRun", [])}
    return _parse(document)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from exc


def _parse(document: Mapping[str, Any]) -> DeleteOptions:
    propagation = document.get("propagationPolicy") or ""
    orphan = document.get("orphanDependents")
    causes = []
    if propagation and orphan is not None:
        text = "Invalid value: orphanDependents and deletionPropagation cannot be both set"
        causes.append(cause("FieldValueInvalid", "propagationPolicy", text))
    if propagation not in ("", "Background", *_FINALIZERS):
        text = f'Unsupported value: "{propagation}": supported values: "Background", "Foreground", "Orphan"'
        causes.append(cause("FieldValueNotSupported", "propagationPolicy", text))
    if causes:
        raise invalid("meta.k8s.io", "DeleteOptions", "", causes)
    if orphan is not None:
        propagation = "Orphan" if str(orphan).lower() == "true" else "Background"
    grace = document.get("gracePeriodSeconds")
    if grace is not None and not isinstance(grace, int):
        raise bad_request("gracePeriodSeconds must be an integer")
    given = document.get("preconditions") or {}
    preconditions = Preconditions(given.get("uid") or "", given.get("resourceVersion") or "")
    dry = check_dry_run(list(document.get("dryRun") or ()), "DeleteOptions")
    return DeleteOptions(grace, propagation, preconditions, dry)


async def delete(context: Context) -> web.Response:
    """DELETE of one object."""
    options = await read_options(context)
    refuse_if_protected(context)
    return await delete_object(context, options)


async def delete_object(context: Context, options: DeleteOptions) -> web.Response:
    """Delete now, or mark as being deleted where finalizers or a grace period say so."""
    if context.kind.kind == "Namespace":
        context.stores.deleted_namespaces.add(context.name)
    outcome, gone = await _Deletion(context, options).run()
    if not gone or context.kind.returns_deleted:
        return object_response(context, outcome)
    return json_response(context.request, _success(context, outcome))


def _success(context: Context, raw: bytes) -> dict[str, Any]:
    kind, metadata = context.kind, json.loads(raw)["metadata"]
    details = {"name": context.name, "kind": kind.plural, "uid": metadata.get("uid", "")}
    if kind.group:
        details["group"] = kind.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


class _Unmarked(Exception):
    """The object needs no marking: it can go at once."""


class _DryRun(Exception):
    """Carries the outcome of a dry run out of the update."""

    def __init__(self, obj: Object) -> None:
        super().__init__()
        self.obj = obj


class _Deletion:
    """One deletion; it is decided anew on each version of the object it meets."""

    def __init__(self, context: Context, options: DeleteOptions) -> None:
        self._context = context
        self._options = options
        self._store = context.store

    async def run(self) -> tuple[bytes, bool]:
        """The object as answered, and whether it is gone. Raises ApiError 404, 409."""
        context = self._context
        while True:
            try:
                item = await self._store.get(context.key)
                self._check(item)
                if not self._needs_marking(item.decode()):
                    return await self._remove(item), True
                marked = await self._store.guaranteed_update(context.key, self._mark)
                return marked.raw, False
            except _Unmarked:
                continue
            except _DryRun as outcome:
                return self._store.encode_unstored(outcome.obj), False
            except InvalidObject:
                continue
            except NotFound as exc:
                raise not_found(context.kind, context.name) from exc

    def _check(self, item: StoredObject) -> None:
        try:
            self._options.preconditions.check(item)
        except InvalidObject as exc:
            # As the original does, the error names the Kind here, not the resource.
            error = conflict(context_kind_as_resource(self._context), self._context.name, str(exc))
            raise error from exc

    async def _remove(self, item: StoredObject) -> bytes:
        if self._options.dry_run:
            return item.raw
        version = Preconditions(resource_version=str(item.resource_version))
        deleted = await self._store.delete(self._context.key, preconditions=version, hint=item)
        return deleted.raw

    def _grace_s(self, obj: Object) -> int:
        """The grace period of a pod that runs somewhere; everything else goes at once."""
        if not self._context.kind.graceful or not (obj.get("spec") or {}).get("nodeName"):
            return 0
        if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        asked = self._options.grace_s
        if asked is None:
            asked = (obj.get("spec") or {}).get("terminationGracePeriodSeconds", _GRACE_S)
        return 1 if asked < 0 else int(asked)

    def _finalizers(self, obj: Object) -> list[str]:
        current = list(obj["metadata"].get("finalizers") or ())
        if not self._options.propagation:
            return current
        kept = [name for name in current if name not in _FINALIZERS.values()]
        added = _FINALIZERS.get(self._options.propagation)
        # Nobody collects garbage here: an owner-less orphan or foreground finalizer would never go away.
        return kept + [name for name in current if name == added]

    def _needs_marking(self, obj: Object) -> bool:
        if self._context.kind.kind == "Namespace" and (obj.get("spec") or {}).get("finalizers"):
            return True
        return bool(self._finalizers(obj)) or self._grace_s(obj) > 0

    def _mark(self, current: StoredObject | None) -> Object:
        assert current is not None
        self._check(current)
        obj = current.decode()
        if not self._needs_marking(obj):
            raise _Unmarked
        metadata = obj["metadata"]
        grace_s = self._grace_s(obj)
        finalizers = self._finalizers(obj)
        if finalizers or "finalizers" in metadata:
            metadata["finalizers"] = finalizers
        before = metadata.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" not in metadata:
            mark_deleted(self._context.kind, obj, grace_s)
        elif before is not None and grace_s < before:
            generation = metadata.get("generation")
            mark_deleted(self._context.kind, obj, grace_s)
            if generation is not None:
                metadata["generation"] = generation
        if obj.get("kind") == "Namespace":
            obj.setdefault("status", {})["phase"] = "Terminating"
        if is_deletable(obj):
            raise _Unmarked
        if self._options.dry_run:
            raise _DryRun(obj)
        return obj


def context_kind_as_resource(context: Context) -> Any:
    """The kind with its Kind in place of the plural, for messages that name it so."""
    return replace(context.kind, plural=context.kind.kind, group="")


async def delete_collection(context: Context) -> web.Response:
    """DELETE of all that a selection lists; answers with the list of what was there."""
    request = context.request
    if context.kind.kind == "Namespace":
        raise ApiError(405, "MethodNotAllowed", "deletecollection is not supported on namespaces")
    options = await read_options(context)
    result = await context.store.list(list_options(request, context.kind, context.namespace))
    for item in result.items:
        path = replace(context.path, namespace=item.namespace, name=item.name)
        single = replace(context, path=path)
        try:
            await _Deletion(single, options).run()
        except ApiError as exc:
            if exc.code != 404:
                raise
    head = {
        "kind": context.kind.list_kind,
        "apiVersion": context.kind.api_version,
        "metadata": {"resourceVersion": str(result.resource_version)},
        "items": [item.decode() for item in result.items],
    }
    return json_response(request, head)
