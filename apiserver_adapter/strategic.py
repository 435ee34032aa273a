"""Strategic merge patch: lists merge by key, directives replace, delete and order (contract §3.9)."""

from __future__ import annotations

import copy
from typing import Any

from .errors import bad_request

# The merge key of a list, by field name; a pair (parent, field) where the name alone is ambiguous.
_KEYS: dict[str | tuple[str, str], str] = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "secrets": "name",
    "allocatedResourcesStatus": "name",
    "webhooks": "name",
    "matchConditions": "name",
    "variables": "name",
    "drivers": "name",
    ("containers", "ports"): "containerPort",
    ("initContainers", "ports"): "containerPort",
    ("ephemeralContainers", "ports"): "containerPort",
    ("spec", "ports"): "port",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "podIPs": "ip",
    "hostIPs": "ip",
    "topologySpreadConstraints": "topologyKey",
    ("status", "addresses"): "type",
    "ownerReferences": "uid",
}
_SETS = ("finalizers", "podCIDRs")
_PATCH = "$patch"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"

Object = dict[str, Any]


def merge_key(parent: str, field: str) -> str | None:
    """The key that identifies the elements of a list, or None for an atomic list."""
    return _KEYS.get((parent, field)) or _KEYS.get(field)


def is_set(field: str) -> bool:
    """Whether a list of scalars merges as a set."""
    return field in _SETS


def strategic_merge(target: Object, patch: Any) -> Object:
    """The target with the patch merged in. Neither argument is modified.

    Raises:
        ApiError: 400 for a malformed patch.
    """
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch must be a JSON object")
    return _merge_map(target, patch, "")


def _check_directives(patch: Object) -> None:
    for key, value in patch.items():
        if key.startswith((_DELETE_FROM, _ORDER, _RETAIN)) and not isinstance(value, list):
            raise bad_request(f"the value of {key} must be a list")


def _merge_map(target: Object, patch: Object, name: str) -> Object:
    _check_directives(patch)
    directive = patch.get(_PATCH)
    plain = {key: value for key, value in patch.items() if not key.startswith("$")}
    if directive == "replace":
        return dict(_without_directives(plain))
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unrecognized value {directive!r} for {_PATCH}")
    result = dict(target)
    if _RETAIN in patch:
        retained = patch[_RETAIN]
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            field = key.removeprefix(_DELETE_FROM)
            result[field] = [item for item in result.get(field) or [] if item not in value]
    for key, value in plain.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_value(result.get(key), value, name, key, patch.get(_ORDER + key))
    for key, order in patch.items():
        field = key.removeprefix(_ORDER)
        if key.startswith(_ORDER) and field not in plain and isinstance(result.get(field), list):
            result[field] = _ordered(result[field], order, merge_key(name, field))
    return result


def _merge_value(target: Any, value: Any, parent: str, field: str, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        base = target if isinstance(target, dict) else {}
        return _merge_map(base, value, field)
    if not isinstance(value, list):
        return value
    base_list = target if isinstance(target, list) else []
    key = merge_key(parent, field)
    if key is not None and all(isinstance(item, dict) for item in value):
        merged = _merge_list(base_list, value, key, field)
        return _ordered(merged, order, key) if order else merged
    if is_set(field):
        merged = base_list + [item for item in value if item not in base_list]
        return _ordered(merged, order, None) if order else merged
    return copy.deepcopy(value)


def _merge_list(target: list[Any], patch: list[Object], key: str, field: str) -> list[Any]:
    if any(item.get(_PATCH) == "replace" for item in patch):
        return [_without_directives(item) for item in patch if item.get(_PATCH) != "replace"]
    result = list(target)
    for item in patch:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        wanted = item[key]
        position = next(
            (i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == wanted), None
        )
        if item.get(_PATCH) == "delete":
            if position is not None:
                del result[position]
        elif position is None:
            result.append(_merge_map({}, item, field))
        else:
            result[position] = _merge_map(result[position], item, field)
    return result


def _ordered(items: list[Any], order: list[Any], key: str | None) -> list[Any]:
    """Items named by the order in that order; each other one keeps following its old neighbour."""

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    rank = {repr(name): position for position, name in enumerate(wanted)}
    named = sorted((i for i in items if repr(identity(i)) in rank), key=lambda i: rank[repr(identity(i))])
    queue = iter(named)
    return [next(queue) if repr(identity(item)) in rank else item for item in items]


def _without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_directives(v) for k, v in value.items() if not k.startswith("$") and v is not None}
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    return value
