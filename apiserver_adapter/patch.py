"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386) on plain objects."""

from __future__ import annotations

import copy
import re
from typing import Any

from watchcache.codec import dump

from .body import BODY_BYTES_MAX
from .bounds import DEPTH_MAX, check_depth
from .errors import ApiError, bad_request, too_large

OPERATIONS_MAX = 10_000
_INDEX = re.compile("0|[1-9][0-9]{0,8}")


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with the patch merged in; null removes. Neither argument is modified."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


class PatchFailed(Exception):
    """An operation cannot be applied."""


def json_patch(target: Any, operations: Any) -> Any:
    """The target after all operations. The target is not modified.

    Raises:
        ApiError: 400 if it is no list of operations, 422 if one fails, 413 if there are too many, or if they
            copy more than a body may have.
    """
    if not isinstance(operations, list):
        raise bad_request(f"json: cannot unmarshal {_json_type(operations)} into Go value of type jsonpatch.Patch")
    if len(operations) > OPERATIONS_MAX:
        raise too_large(OPERATIONS_MAX)
    for operation in operations:
        if not isinstance(operation, dict):
            found = _json_type(operation)
            raise bad_request(f"json: cannot unmarshal {found} into Go value of type jsonpatch.Operation")
    result, copied = copy.deepcopy(target), 0
    try:
        for operation in operations:
            if operation.get("op") == "copy":
                copied += len(dump(_get(result, _pointer(operation, "from"))))
                if copied > BODY_BYTES_MAX:  # a few copies that double could fill the memory
                    raise too_large(BODY_BYTES_MAX)
            result = _apply(result, operation)
    except PatchFailed as exc:
        raise ApiError(
            422, "Invalid", f"the server rejected our request due to an error in our request: {exc}"
        ) from exc
    return result


def _json_type(value: Any) -> str:
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    name = operation.get("op")
    if name not in ("add", "remove", "replace", "test", "copy", "move"):
        raise PatchFailed(f"unexpected kind: {name}" if isinstance(name, str) else "an operation has no op")
    path = _pointer(operation, "path")
    if name in ("add", "replace") and "value" not in operation:
        raise PatchFailed(f"{name} operation for {operation['path']!r} has no value")
    if name == "add":
        return _add(document, path, copy.deepcopy(operation["value"]))
    if name == "remove":
        return _remove(document, path)
    if name == "replace":
        _get(document, path)
        return _replace(document, path, copy.deepcopy(operation["value"]))
    if name == "test":
        if _get(document, path) != operation.get("value"):
            raise PatchFailed(f"testing path {operation['path']} failed")
        return document
    source = _pointer(operation, "from")
    if name == "copy":
        return _add(document, path, copy.deepcopy(_get(document, source)))
    if path[: len(source)] == source and path != source:
        raise PatchFailed(f"cannot move {operation['from']} into itself")
    value = _get(document, source)
    return _add(_remove(document, source), path, value)


def _pointer(operation: dict[str, Any], field: str) -> list[str]:
    text = operation.get(field)
    if not isinstance(text, str):
        raise PatchFailed(f"{operation.get('op')} operation has no {field}")
    if text == "":
        return []
    if not text.startswith("/"):
        raise PatchFailed(f"invalid path {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _index(items: list[Any], token: str, end: int) -> int:
    if not _INDEX.fullmatch(token) or int(token) > end:
        raise PatchFailed(f"invalid index {token!r}")
    return int(token)


def _step(document: Any, token: str) -> Any:
    if isinstance(document, list):
        return document[_index(document, token, len(document) - 1)]
    if isinstance(document, dict) and token in document:
        return document[token]
    raise PatchFailed(f"missing path element {token!r}")


def _get(document: Any, path: list[str]) -> Any:
    for token in path:
        document = _step(document, token)
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    check_depth(value, DEPTH_MAX - len(path))
    if not path:
        return value
    parent, last = _get(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        position = len(parent) if last == "-" else _index(parent, last, len(parent))
        parent.insert(position, value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise PatchFailed(f"cannot add to {'/'.join(path)!r}")
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    check_depth(value, DEPTH_MAX - len(path))
    if not path:
        return value
    parent, last = _get(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent[_index(parent, last, len(parent) - 1)] = value
    else:
        parent[last] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        return None
    _get(document, path)
    parent, last = _get(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]
    return document
