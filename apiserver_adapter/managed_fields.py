"""Who owns which field: managedFields for updates, and server-side apply on top of it (contract §3.7, §3.9).

A field set is a set of paths in the notation of FieldsV1: "f:name" for a field, 'k:{"name":"x"}' for an element
of a keyed list, 'v:"x"' for an element of a set; "." after an element stands for the element itself. Lists
without keys are atomic.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import ApiError
from .field_paths import Path, flatten, leaves, merge, nest, path_text, removal_order, remove_path
from .resources import Kind
from .times import now_rfc3339

Object = dict[str, Any]
FieldSet = frozenset[Path]

UPDATE_ENTRIES_MAX = 10
_ANCIENT = "ancient-changes"
_UNTRACKED_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One manager's fields."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: FieldSet

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return self.manager, self.operation, self.api_version, self.subresource

    def encode(self) -> Object:
        entry: Object = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": nest(self.fields),
        }
        if self.subresource:
            entry["subresource"] = self.subresource
        return entry


def copy_object(obj: Object) -> Object:
    """A copy that shares nothing."""
    return copy.deepcopy(obj)


def reset(obj: Object) -> None:
    """Forget what a client claims about ownership of a new object."""
    obj.get("metadata", {}).pop("managedFields", None)


def _decode(entries: Iterable[Any]) -> list[Entry]:
    decoded = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not entry.get("manager"):
            continue
        owned = entry.get("fieldsV1")
        decoded.append(
            Entry(
                str(entry["manager"]),
                str(entry.get("operation", "Update")),
                str(entry.get("apiVersion", "")),
                str(entry.get("subresource", "")),
                str(entry.get("time", "")),
                frozenset(flatten(owned if isinstance(owned, dict) else {})),
            )
        )
    return decoded


def _tracked(kind: Kind, obj: Object, subresource: str) -> dict[Path, Any]:
    """The leaves of what a writer of this endpoint can own."""
    visible = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    if kind.has_status and subresource != "status":
        visible.pop("status", None)
    metadata = {k: v for k, v in obj.get("metadata", {}).items() if k not in _UNTRACKED_METADATA}
    if metadata:
        visible["metadata"] = metadata
    return leaves(visible)


def track_update(kind: Kind, old: Object, new: Object, manager: str, subresource: str) -> None:
    """Record in ``new`` that ``manager`` owns what differs from ``old``. Nothing differs: nothing is recorded."""
    before = old["metadata"].get("managedFields") or []
    given = new["metadata"].get("managedFields")
    cleared = given in ([], [{}])
    entries = [] if cleared else _decode(before if given is None else given)
    was, now = _tracked(kind, old, subresource), _tracked(kind, new, subresource)
    changed = {path for path, value in now.items() if path not in was or was[path] != value}
    removed = {path for path in was if path not in now}
    if not changed and not removed:
        new["metadata"]["managedFields"] = before if given is None else [entry.encode() for entry in entries]
    else:
        own = Entry(manager, "Update", kind.api_version, subresource, now_rfc3339(), frozenset(changed))
        kept = [replace(entry, fields=entry.fields - removed) for entry in entries]
        new["metadata"]["managedFields"] = _encode(_take_over(kept, own))
    if not new["metadata"]["managedFields"]:
        del new["metadata"]["managedFields"]


def _take_over(entries: list[Entry], own: Entry) -> list[Entry]:
    """Give the fields of ``own`` to its manager alone, beside what it has already."""
    result, mine = [], own
    for entry in entries:
        if entry.identity == own.identity:
            mine = replace(own, fields=entry.fields | own.fields)
        else:
            result.append(replace(entry, fields=entry.fields - own.fields))
    return [*result, mine]


def _encode(entries: list[Entry]) -> list[Object]:
    entries = [entry for entry in entries if entry.fields]
    updates = sorted((entry for entry in entries if entry.operation == "Update"), key=lambda entry: entry.time)
    excess = updates[: max(0, len(updates) - UPDATE_ENTRIES_MAX + 1)] if len(updates) > UPDATE_ENTRIES_MAX else []
    if excess:
        fields = frozenset().union(*(entry.fields for entry in excess))
        merged = replace(excess[-1], manager=_ANCIENT, subresource="", fields=fields)
        entries = [merged] + [entry for entry in entries if entry not in excess]
    entries.sort(key=lambda entry: (entry.operation != "Apply", entry.time, entry.manager))
    return [entry.encode() for entry in entries]


def apply(kind: Kind, old: Object, config: Object, manager: str, subresource: str, *, force: bool) -> Object:
    """Server-side apply of ``config`` by ``manager``.

    Fields this manager applied before and leaves out now go away unless others own them.

    Raises:
        ApiError: 409, a field has another owner and another value, and ``force`` is not set.
    """
    entries = _decode(old["metadata"].get("managedFields") or [])
    wanted, live = _tracked(kind, config, subresource), _tracked(kind, old, subresource)
    identity = (manager, "Apply", subresource)
    previous = [e for e in entries if (e.manager, e.operation, e.subresource) == identity]
    others = [e for e in entries if e not in previous]
    contested = {path for path, value in wanted.items() if live.get(path) != value}
    conflicts = [(entry, sorted(entry.fields & contested)) for entry in others if entry.fields & contested]
    if conflicts and not force:
        raise _conflict(conflicts)
    others = [replace(entry, fields=entry.fields - contested) for entry in others]
    result: Object = merge(copy.deepcopy(old), _configured(kind, config, subresource))
    owned_by_others = frozenset().union(*(entry.fields for entry in others))
    for entry in previous:
        for path in removal_order(entry.fields - wanted.keys() - owned_by_others):
            remove_path(result, path, owned_by_others | wanted.keys())
    result.setdefault("metadata", {})
    own = Entry(manager, "Apply", kind.api_version, subresource, now_rfc3339(), frozenset(wanted))
    unchanged = previous and previous[0].fields == own.fields
    own = replace(own, time=previous[0].time) if unchanged else own
    result["metadata"]["managedFields"] = _encode([*others, own])
    return result


def _configured(kind: Kind, config: Object, subresource: str) -> Object:
    """The part of an apply configuration that this endpoint takes."""
    config = copy.deepcopy(config)
    if subresource == "status":
        return {"status": config.get("status") or {}}
    if kind.has_status:
        config.pop("status", None)
    for name in ("managedFields", "creationTimestamp"):
        config.get("metadata", {}).pop(name, None)
    return config


def _conflict(conflicts: list[tuple[Entry, list[Path]]]) -> ApiError:
    causes = []
    for entry, paths in conflicts:
        message = f"conflict with {json.dumps(entry.manager)} using {entry.api_version}"
        causes += [
            {"reason": "FieldManagerConflict", "message": message, "field": path_text(path)} for path in paths
        ]
    count = len(causes)
    word = "conflict" if count == 1 else "conflicts"
    about = "; ".join(
        f"{word} with {json.dumps(entry.manager)}: " + ", ".join(path_text(path) for path in paths)
        for entry, paths in conflicts
    )
    message = f"Apply failed with {count} {word}: {about}"
    return ApiError(409, "Conflict", message, {"causes": causes})
