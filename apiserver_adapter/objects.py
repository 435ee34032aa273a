"""What the server itself writes into objects: metadata, generation, status separation (contract §3.7)."""

from __future__ import annotations

import random
import re
import uuid
from typing import Any

from .defaults import set_defaults
from .errors import bad_request, cause, invalid
from .resources import Kind
from .times import after_rfc3339, now_rfc3339

Object = dict[str, Any]

_SYSTEM_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_BASE_MAX = 58
NAME_ATTEMPTS = 8
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character"
)
_LABEL_KINDS = ("Namespace", "Service")


def generated_name(base: str) -> str:
    suffix = "".join(random.choices(_SUFFIX_ALPHABET, k=5))
    return base[:_GENERATED_BASE_MAX] + suffix


def relative_key(kind: Kind, namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if kind.namespaced else name


def check_type(kind: Kind, obj: Object) -> None:
    """Fill in a missing kind and apiVersion; refuse others. Raises ApiError 400."""
    api_version = obj.setdefault("apiVersion", kind.api_version) or kind.api_version
    name = obj.setdefault("kind", kind.kind) or kind.kind
    if name != kind.kind:
        raise bad_request(
            f"{name} in version {api_version!r} cannot be handled as a {kind.kind}: "
            f"the object provided is unrecognized (kind {name} does not match {kind.kind})"
        )
    if api_version != kind.api_version:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({kind.api_version})"
        )
    obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind


def metadata_of(obj: Object) -> Object:
    """The metadata, made a map. Raises ApiError 400."""
    metadata = obj.get("metadata")
    if metadata is None:
        metadata = obj["metadata"] = {}
    if not isinstance(metadata, dict):
        raise bad_request("the object provided is unrecognized: metadata must be an object")
    return metadata


def check_namespace(kind: Kind, obj: Object, namespace: str) -> None:
    """Default the namespace from the URL. Raises ApiError 400 if the body names another."""
    metadata = metadata_of(obj)
    if not kind.namespaced:
        metadata.pop("namespace", None)
        return
    if metadata.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    metadata["namespace"] = namespace


def check_name(obj: Object, name: str) -> None:
    """The name in the body must be that of the URL. Raises ApiError 400."""
    given = metadata_of(obj).setdefault("name", name)
    if given != name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")


def prepare_create(kind: Kind, obj: Object) -> None:
    """Set what the server owns on a new object. Raises ApiError 422 without a usable name."""
    metadata = metadata_of(obj)
    for name in _SYSTEM_FIELDS:
        metadata.pop(name, None)
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])
    validate_metadata(kind, metadata)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now_rfc3339()
    metadata.pop("generation", None)
    if kind.generation:
        metadata["generation"] = 1
    if kind.has_status and kind.kind != "Node":
        obj.pop("status", None)
    set_defaults(kind, obj)


def validate_metadata(kind: Kind, metadata: Object) -> None:
    """Names, label and annotation values. Raises ApiError 422."""
    name = metadata.get("name")
    causes = []
    if not name:
        causes.append(
            cause("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")
        )
    elif not _is_name(kind, name):
        text = _LABEL_TEXT if kind.kind in _LABEL_KINDS else _SUBDOMAIN_TEXT
        causes.append(cause("FieldValueInvalid", "metadata.name", f'Invalid value: "{name}": {text}'))
    if causes:
        raise invalid(kind.group, kind.kind, str(name or ""), causes)


def _is_name(kind: Kind, name: Any) -> bool:
    if not isinstance(name, str):
        return False
    if kind.kind in _LABEL_KINDS:
        return len(name) <= 63 and _LABEL.fullmatch(name) is not None
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def prepare_update(kind: Kind, new: Object, old: Object, subresource: str = "") -> Object:
    """The object to store when ``new`` is to replace ``old``, on the main endpoint or on a subresource."""
    metadata, before = metadata_of(new), old["metadata"]
    if subresource == "status":
        status = new.get("status")
        managed = metadata.get("managedFields")
        new = {**old, "metadata": dict(before)}
        new.pop("status", None)
        if status is not None:
            new["status"] = status
        if managed is not None:
            new["metadata"]["managedFields"] = managed
        return new
    for name in (*_SYSTEM_FIELDS, "generation"):
        metadata.pop(name, None)
        if name in before:
            metadata[name] = before[name]
    if metadata.get("labels") == {}:
        del metadata["labels"]
    if metadata.get("annotations") == {}:
        del metadata["annotations"]
    if kind.has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    if kind.kind == "Namespace":
        new["spec"] = {**(new.get("spec") or {}), "finalizers": (old.get("spec") or {}).get("finalizers") or []}
    set_defaults(kind, new)
    if kind.generation and _specification(kind, new) != _specification(kind, old):
        metadata["generation"] = before.get("generation", 1) + 1
    validate_metadata(kind, metadata)
    return new


def _specification(kind: Kind, obj: Object) -> Object:
    """What counts for the generation: everything but metadata and a status of its own."""
    apart = ("apiVersion", "kind", "metadata", *(("status",) if kind.has_status else ()))
    return {key: value for key, value in obj.items() if key not in apart}


def mark_deleted(kind: Kind, obj: Object, grace_s: int) -> None:
    """Turn an object into one that is being deleted."""
    metadata = obj["metadata"]
    metadata["deletionTimestamp"] = after_rfc3339(grace_s)
    metadata["deletionGracePeriodSeconds"] = grace_s
    if kind.generation:
        metadata["generation"] = metadata.get("generation", 1) + 1


def is_deletable(obj: Object) -> bool:
    """Whether nothing holds back an object that is being deleted."""
    metadata = obj["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and not (obj.get("kind") == "Namespace" and obj.get("spec", {}).get("finalizers"))
    )
