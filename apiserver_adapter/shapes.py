"""The JSON types of known fields: a number where a string belongs is refused as a typed server refuses it.

The field table of the protobuf bodies tells the types. Fields outside it are left alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .errors import ApiError, bad_request
from .protobuf import Field, message_fields
from .protobuf_fields import FIELDS
from .resources import Kind

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "s": (str,),
    "y": (str,),
    "T": (str,),
    "U": (str,),
    "i": (int,),
    "b": (bool,),
    "Q": (str, int, float),
    "X": (str, int),
}
_GO_TYPES = {"i": "int32", "b": "bool", "Q": "resource.Quantity", "X": "intstr.IntOrString", "T": "v1.Time"}


@cache
def _fields_by_name(message: str) -> dict[str, Field]:
    """The fields of a message as JSON shows them, inlined ones included."""
    fields: dict[str, Field] = {}
    for field in message_fields(message).values():
        if field.inline:
            fields |= _fields_by_name(field.type)
        else:
            fields[field.name] = field
    return fields


def check_shape(kind: Kind, obj: dict[str, Any]) -> None:
    """Check the types of all known fields.

    Raises:
        ApiError: 400, naming the first field of another type.
    """
    if kind.custom or kind.kind not in FIELDS:
        metadata = obj.get("metadata")
        _check_message(kind, "ObjectMeta", metadata, "metadata")
        return
    _check_message(kind, kind.kind, obj, "")


def check_message(kind: Kind, message: str, document: Any) -> None:
    """Check the types of a body that is not the kind itself: DeleteOptions, Scale... Raises ApiError 400."""
    _check_message(kind, message, document, "")


def _check_message(kind: Kind, message: str, value: Any, path: str) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise _mismatch(kind, value, path, message)
    known = _fields_by_name(message)
    for name, item in value.items():
        field = known.get(name)
        if field is not None and item is not None:
            _check_field(kind, field, item, f"{path}.{name}" if path else name)


def _check_field(kind: Kind, field: Field, value: Any, path: str) -> None:
    if field.mapped:
        if not isinstance(value, dict):
            raise _mismatch(kind, value, path, f"map[string]{_go_type(field.type)}")
        for item in value.values():
            _check_value(kind, field.type, item, path)
    elif field.repeated:
        if not isinstance(value, list):
            raise _mismatch(kind, value, path, f"[]{_go_type(field.type)}")
        for item in value:
            if item is None:
                raise _mismatch(kind, item, path, _go_type(field.type))
            _check_value(kind, field.type, item, path)
    else:
        _check_value(kind, field.type, value, path)


def _check_value(kind: Kind, type_name: str, value: Any, path: str) -> None:
    if value is None or type_name == "J":
        return
    wanted = _JSON_TYPES.get(type_name)
    if wanted is None:
        _check_message(kind, type_name, value, path)
    elif not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise _mismatch(kind, value, path, _go_type(type_name))


def _go_type(type_name: str) -> str:
    return _GO_TYPES.get(type_name, "string" if type_name in _JSON_TYPES else f"v1.{type_name}")


def _mismatch(kind: Kind, value: Any, path: str, wanted: str) -> ApiError:
    names = {type(None): "null", dict: "object", list: "array", str: "string", bool: "bool"}
    found = names.get(type(value), "number")
    return bad_request(
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot unmarshal '
        f"{found} into Go struct field {kind.kind}.{path} of type {wanted}"
    )
