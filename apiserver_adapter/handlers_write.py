"""create, update and patch over HTTP (contract §3.7, §3.9)."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from watchcache.codec import Object, StoredObject
from watchcache.errors import AlreadyExists, NotFound

from . import body, managed_fields
from .context import Context
from .custom_resources import prepare_definition
from .errors import ApiError, already_exists, bad_request, cause, forbidden, invalid, unsupported_media_type
from .handlers_read import object_response
from .namespaces import check_open_for_create
from .objects import (
    NAME_ATTEMPTS,
    check_name,
    check_namespace,
    check_type,
    generated_name,
    metadata_of,
    prepare_create,
    relative_key,
)
from .patch import json_patch, merge_patch
from .query import dry_run, field_manager, field_validation, flag
from .shapes import check_shape
from .strategic import strategic_merge
from .updates import Writer, update_object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)


def _raw(outcome: StoredObject | bytes) -> bytes:
    return outcome.raw if isinstance(outcome, StoredObject) else outcome


async def create(context: Context) -> web.Response:
    """A new object: 201."""
    request = context.request
    validation = field_validation(request)
    dry = dry_run(request)
    manager = field_manager(request)
    obj, headers = await body.read_object(request, validation)
    check_type(context.kind, obj)
    check_shape(context.kind, obj)
    check_namespace(context.kind, obj, context.namespace)
    await check_open_for_create(context)
    managed_fields.reset(obj)
    raw = await create_object(context, obj, Writer(manager, dry_run=dry))
    return object_response(context, raw, status=201, headers=headers)


async def create_object(context: Context, obj: Object, writer: Writer) -> bytes:
    """Store a new object, finding a free name where one is to be generated.

    Raises:
        ApiError: 409, 422.
    """
    kind, metadata = context.kind, metadata_of(obj)
    base = metadata.get("generateName") if not metadata.get("name") else None
    prepare_create(kind, obj)
    if kind.kind == "CustomResourceDefinition":
        prepare_definition(obj)
    if writer.operation == "Update":
        managed_fields.track_update(kind, {"metadata": {}}, obj, writer.manager, writer.subresource)
    for attempt in range(NAME_ATTEMPTS):
        if base and attempt:
            metadata["name"] = generated_name(base)
        try:
            return await _create_once(context, obj, writer)
        except AlreadyExists as exc:
            error = already_exists(kind, metadata["name"], terminating=exc.terminating)
            if not base:
                raise error from exc
    error.message += ", the server was not able to generate a unique name for the object"
    error.details["retryAfterSeconds"] = 1
    raise error


async def _create_once(context: Context, obj: Object, writer: Writer) -> bytes:
    key = relative_key(context.kind, context.namespace, obj["metadata"]["name"])
    if writer.dry_run:
        try:
            await context.store.get(key)
        except NotFound:
            return context.store.encode_unstored(obj)
        raise AlreadyExists(key)
    stored = await context.store.create(key, obj, ttl_s=context.kind.ttl_s)
    return stored.raw


async def update(context: Context, subresource: str = "") -> web.Response:
    """PUT on an object or its status."""
    request = context.request
    validation = field_validation(request)
    writer = Writer(field_manager(request), subresource=subresource, dry_run=dry_run(request))
    obj, headers = await body.read_object(request, validation)
    outcome = await update_object(context, writer, lambda _: managed_fields.copy_object(obj))
    return object_response(context, _raw(outcome), headers=headers)


async def patch(context: Context, subresource: str = "") -> web.Response:
    """PATCH in any of the four forms."""
    request = context.request
    patch_type = body.media_type(request)
    accepted = [kind for kind in PATCH_TYPES if kind != STRATEGIC_PATCH or not context.kind.custom]
    if patch_type not in accepted:
        raise unsupported_media_type(accepted)
    validation = field_validation(request)
    dry = dry_run(request)
    if patch_type != APPLY_PATCH and "force" in request.query:
        text = "Forbidden: may not be specified for non-apply patch"
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause("FieldValueForbidden", "force", text)])
    data = await body.read(request)
    if patch_type == APPLY_PATCH:
        return await _apply(context, data, subresource, dry=dry)
    document, duplicates = body.parse_json(data)
    if duplicates and validation == "Strict":
        problem = cause("FieldValueInvalid", "patch", str(body.strict_error(duplicates)))
        raise invalid(context.kind.group, context.kind.kind, context.name, [problem])
    headers = body.warning_headers(duplicates) if validation == "Warn" else {}

    def change(old: Object) -> Object:
        return patched(patch_type, old, document)

    writer = Writer(field_manager(request), subresource=subresource, dry_run=dry)
    outcome = await update_object(context, writer, change)
    return object_response(context, _raw(outcome), headers=headers)


def patched(patch_type: str, old: Object, document: Any) -> Object:
    """The object after a patch of the given media type. Raises ApiError."""
    if patch_type == JSON_PATCH:
        result = json_patch(old, document)
    elif patch_type == MERGE_PATCH:
        result = merge_patch(old, document)
    else:
        result = strategic_merge(old, document)
    if not isinstance(result, dict):
        raise bad_request("the patched object is not an object")
    return result


async def _apply(context: Context, data: bytes, subresource: str, *, dry: bool) -> web.Response:
    request, kind = context.request, context.kind
    if not request.query.get("fieldManager"):
        text = "Required value: is required for apply patch"
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause("FieldValueRequired", "fieldManager", text)])
    config = body.parse_yaml(data)
    if not isinstance(config, dict):
        raise bad_request("error decoding YAML: the apply configuration must be an object")
    if "managedFields" in metadata_of(config) and config["metadata"]["managedFields"]:
        raise bad_request("metadata.managedFields must be nil")
    if not config.get("apiVersion"):
        raise bad_request("apiVersion must be set in the apply configuration")
    check_type(kind, config)
    check_shape(kind, config)
    manager, force = field_manager(request), flag(request, "force")
    writer = Writer(manager, "Apply", subresource, dry)

    def change(old: Object) -> Object:
        return managed_fields.apply(kind, old, config, manager, subresource, force=force)

    for _ in range(2):
        try:
            outcome = await update_object(context, writer, change)
            return object_response(context, _raw(outcome))
        except NotFound:
            if subresource or metadata_of(config).get("uid"):
                if subresource:
                    raise
                raise _uid_mismatch(context) from None
        created = await _apply_create(context, config, writer)
        if created is not None:
            return object_response(context, created, status=201)
    raise ApiError(500, "InternalError", "Internal error occurred: the object keeps appearing and vanishing")


def _uid_mismatch(context: Context) -> ApiError:
    error = already_exists(context.kind, context.name)
    error.reason = "Conflict"
    error.message = "uid mismatch: the provided object specified a uid, and no existing object was found"
    return error


async def _apply_create(context: Context, config: Object, writer: Writer) -> bytes | None:
    """Create from an apply configuration; None if somebody else was first."""
    kind = context.kind
    await check_open_for_create(context)
    obj = managed_fields.copy_object(config)
    check_name(obj, context.name)
    check_namespace(kind, obj, context.namespace)
    obj = managed_fields.apply(kind, {"metadata": {}}, obj, writer.manager, writer.subresource, force=True)
    try:
        return await create_object(context, obj, writer)
    except ApiError as exc:
        if exc.reason == "AlreadyExists":
            return None
        raise


def refuse_if_protected(context: Context) -> None:
    """The system namespaces stay. Raises ApiError 403."""
    if context.kind.kind == "Namespace" and context.name in ("default", "kube-system", "kube-public"):
        raise forbidden(context.kind, context.name, "this namespace may not be deleted")
