"""The one way an object changes: PUT, PATCH and status writes all run through here (contract §3.7, §4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchcache.codec import Object, StoredObject
from watchcache.errors import InvalidObject, NotFound

from . import managed_fields
from .context import Context
from .custom_resources import prepare_definition
from .errors import cause, conflict, invalid
from .objects import (
    check_name,
    check_namespace,
    check_type,
    is_deletable,
    metadata_of,
    prepare_update,
)
from .shapes import check_shape
from .store import Preconditions

Change = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes and how, as managedFields records it."""

    manager: str
    operation: str = "Update"
    subresource: str = ""
    dry_run: bool = False


class _NothingLeft(Exception):
    """The update took away the last thing that held back a deletion."""

    def __init__(self, obj: Object, version: int) -> None:
        super().__init__()
        self.obj = obj
        self.version = version


class _DryRun(Exception):
    """Carries the outcome of a dry run out of the update."""

    def __init__(self, obj: Object) -> None:
        super().__init__()
        self.obj = obj


def versions_agree(context: Context, new: Object, old: Object) -> None:
    """Optimistic lock and identity. Raises ApiError 409 or 422."""
    given, before = metadata_of(new), old["metadata"]
    version = given.get("resourceVersion") or ""
    if version in ("", "0"):
        if context.kind.needs_version and context.request.method == "PUT":
            text = "Invalid value: 0x0: must be specified for an update"
            problem = cause("FieldValueInvalid", "metadata.resourceVersion", text)
            raise invalid(context.kind.group, context.kind.plural, context.name, [problem])
    elif version != before["resourceVersion"]:
        raise conflict(context.kind, context.name)
    if given.get("uid") and given["uid"] != before.get("uid"):
        raise conflict(
            context.kind,
            context.name,
            f"StorageError: invalid object, Code: 4, Key: {context.store.resource.prefix}{context.key}, "
            f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given['uid']}, "
            f"UID in object meta: {before.get('uid')}",
        )


def next_object(context: Context, writer: Writer, old: Object, change: Change) -> Object:
    """What to store in place of ``old``; ``change`` gets a copy of its own and may modify it."""
    kind = context.kind
    new = change(managed_fields.copy_object(old))
    check_type(kind, new)
    check_shape(kind, new)
    check_name(new, context.name)
    check_namespace(kind, new, context.namespace)
    versions_agree(context, new, old)
    new = prepare_update(kind, new, old, writer.subresource)
    if kind.kind == "CustomResourceDefinition" and not writer.subresource:
        prepare_definition(new)
    if writer.operation == "Update":
        managed_fields.track_update(kind, old, new, writer.manager, writer.subresource)
    return new


async def update_object(
    context: Context, writer: Writer, change: Change, preconditions: Preconditions | None = None
) -> StoredObject | bytes:
    """Apply ``change`` under optimistic locking; the stored object, or the bytes of a dry run.

    Removing the last finalizer of an object that is being deleted deletes it.
    """
    store = context.store

    def attempt(current: StoredObject | None) -> Object:
        assert current is not None
        new = next_object(context, writer, current.decode(), change)
        if writer.dry_run:
            raise _DryRun(new)
        if is_deletable(new):
            raise _NothingLeft(new, current.resource_version)
        return new

    while True:
        try:
            if preconditions is None:
                return await store.guaranteed_update(context.key, attempt)
            return await store.guaranteed_update(context.key, attempt, preconditions=preconditions)
        except _DryRun as outcome:
            return store.encode_unstored(outcome.obj)
        except _NothingLeft as outcome:
            try:
                await store.delete(context.key, preconditions=Preconditions(resource_version=str(outcome.version)))
            except InvalidObject:
                continue  # changed meanwhile: look again
            except NotFound:
                return store.encode_unstored(outcome.obj)
            return store.encode_unstored(outcome.obj)
