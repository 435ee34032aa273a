"""Storage keys: where a list starts and ends, and which keys are refused (contract §4)."""

from __future__ import annotations

from .codec import Resource
from .errors import InvalidKey
from .options import ListOptions
from .selectors import Predicate


def checked_key(resource: Resource, relative: str) -> str:
    """The full key of "namespace/name" or "name". Raises InvalidKey."""
    parts = relative.split("/")
    if not relative or any(part in ("", ".", "..") for part in parts):
        raise InvalidKey(relative)
    return resource.prefix + relative


def has_path_prefix(path: str, prefix: str) -> bool:
    """Whether ``path`` lies in the directory ``prefix``: "/a/b" in "/a", but not "/ab"."""
    if not path.startswith(prefix):
        return False
    return len(path) == len(prefix) or prefix.endswith("/") or path[len(prefix)] == "/"


def single_name(resource: Resource, namespace: str | None, predicate: Predicate) -> str | None:
    """The full key if the selection names one object completely, else None."""
    name = predicate.exact_field("metadata.name")
    if not name or "/" in name or name in (".", ".."):
        return None
    if not resource.namespaced:
        return resource.prefix + name
    return f"{resource.prefix}{namespace}/{name}" if namespace else None


def list_key(resource: Resource, options: ListOptions) -> str | None:
    """As :func:`single_name`, for a list; such a list has no pages."""
    return single_name(resource, options.namespace, options.predicate)
