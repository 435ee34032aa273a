"""Subresources: scale, finalize, binding, eviction, log (contract §3.12)."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from watchcache.codec import Object, StoredObject

from . import body
from .context import Context
from .errors import bad_request, conflict, method_not_allowed, unsupported_media_type
from .handlers_delete import DeleteOptions, delete_object
from .handlers_read import get, object_response
from .handlers_write import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, patch, patched, update
from .negotiation import json_response
from .objects import is_deletable
from .query import dry_run, field_manager
from .shapes import check_message
from .store import Preconditions
from .updates import Writer, update_object


async def handle(context: Context) -> web.StreamResponse:
    """Any request to a subresource. Raises ApiError."""
    method, subresource = context.request.method, context.path.subresource
    handlers = {
        ("GET", "status"): get,
        ("PUT", "status"): _update_status,
        ("PATCH", "status"): _patch_status,
        ("GET", "scale"): _get_scale,
        ("PUT", "scale"): _put_scale,
        ("PATCH", "scale"): _patch_scale,
        ("PUT", "finalize"): _finalize,
        ("POST", "binding"): _bind,
        ("POST", "eviction"): _evict,
        ("GET", "log"): _log,
    }
    handler = handlers.get((method, subresource))
    if handler is None:
        raise method_not_allowed(context.kind, method.lower())
    return await handler(context)


async def _update_status(context: Context) -> web.Response:
    return await update(context, "status")


async def _patch_status(context: Context) -> web.Response:
    return await patch(context, "status")


def _selector_text(selector: Any) -> str:
    labels = (selector or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def scale_of(obj: Object) -> Object:
    """The Scale of a workload."""
    metadata = obj["metadata"]
    copied = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in copied if name in metadata},
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": {
            "replicas": status.get("replicas", 0),
            "selector": _selector_text(spec.get("selector")),
        },
    }


async def _get_scale(context: Context) -> web.Response:
    item = await context.store.get(context.key, context.request.query.get("resourceVersion", ""))
    return json_response(context.request, scale_of(item.decode()))


def _scaled(obj: Object, scale: Object) -> Object:
    """The workload with the replicas, and the optimistic lock, of a Scale."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        raise bad_request(f"spec.replicas: Invalid value: {replicas}: must be a non-negative integer")
    obj["spec"] = {**(obj.get("spec") or {}), "replicas": replicas}
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        obj["metadata"]["resourceVersion"] = version
    return obj


async def _put_scale(context: Context) -> web.Response:
    scale, _ = await body.read_object(context.request, "Ignore")
    check_message(context.kind, "Scale", scale)
    return await _store_scale(context, lambda obj: _scaled(obj, scale))


async def _patch_scale(context: Context) -> web.Response:
    patch_type = body.media_type(context.request)
    if patch_type == APPLY_PATCH:
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH))
    document, _ = body.parse_json(await body.read(context.request))

    def change(obj: Object) -> Object:
        scale = patched(patch_type, scale_of(obj), document)
        check_message(context.kind, "Scale", scale)
        return _scaled(obj, scale)

    return await _store_scale(context, change)


async def _store_scale(context: Context, change: Any) -> web.Response:
    request = context.request
    writer = Writer(field_manager(request), subresource="scale", dry_run=dry_run(request))
    outcome = await update_object(context, writer, change)
    raw = outcome.raw if isinstance(outcome, StoredObject) else outcome
    return json_response(request, scale_of(json.loads(raw)))


async def _finalize(context: Context) -> web.Response:
    """Replace the finalizers of a namespace's spec; the last one gone, so is the namespace."""
    wanted, _ = await body.read_object(context.request, "Ignore")
    check_message(context.kind, "Namespace", wanted)
    finalizers = (wanted.get("spec") or {}).get("finalizers") or []

    def change(current: StoredObject | None) -> Object:
        assert current is not None
        obj = current.decode()
        version = (wanted.get("metadata") or {}).get("resourceVersion")
        if version and version != obj["metadata"]["resourceVersion"]:
            raise conflict(context.kind, context.name)
        obj["spec"] = {**(obj.get("spec") or {}), "finalizers": list(finalizers)}
        return obj

    item = await context.store.guaranteed_update(context.key, change)
    if is_deletable(item.decode()):
        version = Preconditions(resource_version=str(item.resource_version))
        await context.store.delete(context.key, preconditions=version)
    return object_response(context, item.raw)


async def _bind(context: Context) -> web.Response:
    binding, _ = await body.read_object(context.request, "Ignore")
    check_message(context.kind, "Binding", binding)
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise bad_request("target.name is required")

    def change(obj: Object) -> Object:
        spec = obj.setdefault("spec", {})
        if spec.get("nodeName"):
            raise conflict(
                context.kind, context.name, f'pod {context.name} is already assigned to node "{spec["nodeName"]}"'
            )
        spec["nodeName"] = node
        return obj

    await update_object(context, Writer(field_manager(context.request), subresource="binding"), change)
    return _success(context)


async def _evict(context: Context) -> web.Response:
    """There are no disruption budgets here, so an eviction is a delete."""
    eviction, _ = await body.read_object(context.request, "Ignore")
    check_message(context.kind, "Eviction", eviction)
    grace = (eviction.get("deleteOptions") or {}).get("gracePeriodSeconds")
    await delete_object(context, DeleteOptions(grace_s=grace))
    return _success(context)


def _success(context: Context) -> web.Response:
    document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return json_response(context.request, document, 201)


async def _log(context: Context) -> web.Response:
    """Nothing runs here, so no pod has written anything. Raises NotFound for an absent pod."""
    await context.store.get(context.key)
    return web.Response(text="", content_type="text/plain")
