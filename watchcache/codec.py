"""Objects as the cache holds them: JSON encoded once per version, resourceVersion filled in.

Stored bytes are canonical: ``{"apiVersion":..,"kind":..,"metadata":{`` first, then the rest with sorted keys
and without resourceVersion. So the served bytes are the stored ones with the version spliced in after that
fixed head, and an unchanged object is recognised by comparing bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .backend import KeyValue
from .errors import CorruptObject

Object = dict[str, Any]


class Transformer(Protocol):
    """Between encoded objects and stored bytes (encryption at rest). ``key`` is the full storage key."""

    def from_storage(self, data: bytes, key: bytes) -> tuple[bytes, bool]:
        """The plain bytes, and whether they are stale: written in a form that is no longer preferred.

        Raises:
            ValueError: the data cannot be read.
        """
        ...

    def to_storage(self, data: bytes, key: bytes) -> bytes: ...


class Identity:
    """Stores what it is given."""

    def from_storage(self, data: bytes, key: bytes) -> tuple[bytes, bool]:
        return data, False

    def to_storage(self, data: bytes, key: bytes) -> bytes:
        return data


def _no_fields(obj: Object) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Resource:
    """One resource type as far as storage and watching need it.

    Args:
        prefix: where its keys live, with a trailing slash ("/registry/pods/").
        fields: extracts the selectable fields beyond metadata.name and metadata.namespace.
        trigger: the field whose value narrows the set of interested watchers, if any.

    """

    api_version: str
    kind: str
    prefix: str
    namespaced: bool = True
    fields: Callable[[Object], Mapping[str, str]] = _no_fields
    trigger: str = ""

    def namespace_prefix(self, namespace: str | None) -> str:
        return f"{self.prefix}{namespace}/" if namespace else self.prefix


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of one object. ``raw`` is its JSON with resourceVersion; ``key`` the full storage key."""

    key: str
    namespace: str
    name: str
    resource_version: int
    raw: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]

    def decode(self) -> Object:
        """A fresh, mutable copy."""
        obj: Object = json.loads(self.raw)
        return obj

    def at_version(self, resource_version: int) -> StoredObject:
        """The same content under another resourceVersion (a deletion reports the last content so)."""
        old = b'"resourceVersion":"%d"' % self.resource_version
        raw = self.raw.replace(old, b'"resourceVersion":"%d"' % resource_version, 1)
        return StoredObject(self.key, self.namespace, self.name, resource_version, raw, self.labels, self.fields)


def dump(value: Any) -> bytes:
    """Compact JSON with sorted keys. Lone surrogates, which UTF-8 cannot carry, become "?"."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8", "replace")


class Codec:
    """Encodes and decodes the objects of one resource."""

    def __init__(self, resource: Resource, transformer: Transformer | None = None) -> None:
        self.resource = resource
        self.transformer = transformer or Identity()
        self._head = (
            b'{"apiVersion":' + dump(resource.api_version) + b',"kind":' + dump(resource.kind) + b',"metadata":{'
        )

    def encode(self, obj: Object) -> bytes:
        """The canonical bytes to store: without resourceVersion and selfLink."""
        metadata = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "selfLink")}
        rest = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind", "metadata")}
        tail = b"," + dump(rest)[1:] if rest else b"}"
        return self._head + dump(metadata)[1:] + tail

    def decode(self, kv: KeyValue) -> StoredObject:
        """Raises CorruptObject."""
        return self.decode_stored(kv)[0]

    def decode_stored(self, kv: KeyValue) -> tuple[StoredObject, bytes, bool]:
        """The object, its plain stored bytes, and whether the transformer calls them stale."""
        key = kv.key.decode("utf-8", "replace")
        try:
            data, stale = self.transformer.from_storage(kv.value, kv.key)
            obj = json.loads(data)
            stored = self._stored(key, data, obj, kv.mod_revision)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CorruptObject(key, str(exc) or type(exc).__name__) from exc
        return stored, data, stale

    def _stored(self, key: str, data: bytes, obj: Object, revision: int) -> StoredObject:
        metadata = obj["metadata"]
        if "resourceVersion" in metadata or not data.startswith(self._head):
            data = self.encode(obj)
        namespace = metadata.get("namespace") or ""
        name = metadata["name"]
        fields = dict(self.resource.fields(obj))
        fields["metadata.name"] = name
        if namespace:
            fields["metadata.namespace"] = namespace
        raw = self.with_version(data, str(revision))
        return StoredObject(key, namespace, name, revision, raw, metadata.get("labels") or {}, fields)

    def with_version(self, data: bytes, resource_version: str) -> bytes:
        """Canonical bytes with the version spliced in."""
        version = b'"resourceVersion":' + dump(resource_version) + b","
        return self._head + version + data[len(self._head) :]

    def bookmark(self, resource_version: int, *, initial_events_end: bool = False) -> bytes:
        """The object of a BOOKMARK event: nothing but its version."""
        raw = self._head + b'"resourceVersion":"%d"' % resource_version
        if initial_events_end:
            raw += b',"annotations":{"k8s.io/initial-events-end":"true"}'
        return raw + b"}}"
