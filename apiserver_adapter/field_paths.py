"""Field paths of FieldsV1: objects to leaves, nested form to paths and back, merging and removing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from .strategic import is_set, merge_key

Path = tuple[str, ...]
Object = dict[str, Any]
_SELF = "."
# Lists whose elements are identified by two fields; the second has a default.
_SECOND_KEY = {"containerPort": ("protocol", "TCP"), "port": ("protocol", "TCP")}


def element_key(parent: str, field: str, item: Any) -> str | None:
    """The FieldsV1 name of an element of a keyed list; None where the list is atomic or the key is missing."""
    name = merge_key(parent, field)
    if name is None or not isinstance(item, dict) or name not in item:
        return None
    key = {name: item[name]}
    if name in _SECOND_KEY:
        second, default = _SECOND_KEY[name]
        key[second] = item.get(second, default)
    return "k:" + json.dumps(key, separators=(",", ":"), sort_keys=True)


def _is_keyed(parent: str, field: str, items: list[Any]) -> bool:
    names = [element_key(parent, field, item) for item in items]
    return bool(names) and None not in names and len(set(names)) == len(names)


def _is_scalar_set(field: str, items: Any) -> bool:
    return is_set(field) and all(isinstance(item, str) for item in items)


def leaves(obj: Object) -> dict[Path, Any]:
    """Every leaf with its value; maps that are empty and atomic lists are leaves."""
    return dict(_walk(obj, (), "", ""))


def _walk(value: Any, path: Path, parent: str, field: str) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _walk(item, (*path, f"f:{name}"), field, name)
    elif isinstance(value, list) and _is_keyed(parent, field, value):
        for item in value:
            element = (*path, element_key(parent, field, item) or "")
            yield (*element, _SELF), None
            yield from _walk(item, element, parent, field)
    elif isinstance(value, list) and value and _is_scalar_set(field, value):
        for item in value:
            yield (*path, f"v:{json.dumps(item)}"), None
    else:
        yield path, value


def nest(paths: Iterable[Path]) -> Object:
    """The nested form that FieldsV1 has on the wire."""
    root: Object = {}
    for path in sorted(paths):
        node = root
        for step in path:
            node = node.setdefault(step, {})
    return root


def flatten(nested: Object, path: Path = ()) -> Iterator[Path]:
    """The leaf paths of a nested form."""
    for step, below in nested.items():
        if isinstance(below, dict) and below:
            yield from flatten(below, (*path, step))
        else:
            yield (*path, step)


def merge(target: Any, config: Any, parent: str = "", field: str = "") -> Any:
    """The target with an apply configuration merged in: maps and keyed lists deeply, the rest replaced."""
    if isinstance(target, dict) and isinstance(config, dict):
        for name, value in config.items():
            target[name] = merge(target[name], value, field, name) if name in target else value
        return target
    if isinstance(target, list) and isinstance(config, list):
        if _is_keyed(parent, field, config) and (not target or _is_keyed(parent, field, target)):
            return _merge_keyed(target, config, parent, field)
        if config and _is_scalar_set(field, config):
            return target + [item for item in config if item not in target]
    return config


def _merge_keyed(target: list[Any], config: list[Any], parent: str, field: str) -> list[Any]:
    positions = {element_key(parent, field, item): position for position, item in enumerate(target)}
    for item in config:
        position = positions.get(element_key(parent, field, item))
        if position is None:
            target.append(item)
        else:
            target[position] = merge(target[position], item, parent, field)
    return target


def _is_key_field(path: Path) -> bool:
    """Whether a path is one of the fields that identify the element it lies in."""
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])


def removal_order(paths: Iterable[Path]) -> list[Path]:
    """Whole elements first, before the fields inside them; fields that identify an element never by themselves."""
    removable = (path for path in paths if not _is_key_field(path))
    return sorted(removable, key=lambda path: (path[-1] != _SELF, len(path)))


def remove_path(obj: Any, path: Path, kept: Collection[Path]) -> None:
    """Remove one leaf; an element goes only if nothing below it is in ``kept``. Absent paths are ignored."""
    if path[-1] == _SELF:
        path = path[:-1]
        if any(other[: len(path)] == path for other in kept):
            return
    _remove(obj, path, "", "")


def _remove(value: Any, path: Path, parent: str, field: str) -> bool:
    """Remove below ``value``; True if ``value`` became empty by it."""
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        name = step.removeprefix("f:")
        if name not in value:
            return False
        if not rest or _remove(value[name], rest, field, name):
            del value[name]
            return not value
        return False
    if isinstance(value, list):
        for position, item in enumerate(value):
            key = element_key(parent, field, item) if isinstance(item, dict) else f"v:{json.dumps(item)}"
            if key != step:
                continue
            if not rest:
                del value[position]
                return not value
            _remove(item, rest, parent, field)
            return False
    return False


def path_text(path: Path) -> str:
    """A path as messages show it: .spec.containers[name="c"].image"""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += "." + step[2:]
        elif step.startswith("k:"):
            key = json.loads(step[2:])
            text += "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in key.items()) + "]"
        elif step.startswith("v:"):
            text += f"[={step[2:]}]"
    return text
