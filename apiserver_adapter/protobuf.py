r"""Kubernetes protobuf request bodies to plain objects (contract §3.4).

The envelope is ``k8s\0`` and a runtime.Unknown; inside is the typed message. A table of field numbers stands in
for generated code. Go writes every plain scalar, zero or not, so zero values are dropped unless the field is a
pointer. A field that is not in the table is refused if it says anything: data is never lost silently.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from .protobuf_fields import FIELDS, KINDS

MAGIC = b"k8s\x00"


class DecodeError(Exception):
    """The body is not a Kubernetes protobuf message of a kind we know."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its JSON name, the type of its value, and how it repeats."""

    name: str
    type: str
    repeated: bool
    mapped: bool
    pointer: bool
    inline: bool


@cache
def message_fields(name: str) -> dict[int, Field]:
    """The fields of a message by number, from the text of the table."""
    fields = {}
    for item in FIELDS[name].split():
        field_name, _, rest = item.partition("=")
        number, _, kind = rest.partition(":")
        type_name = kind.rstrip("*%?^")
        flags = kind[len(type_name) :]
        fields[int(number)] = Field(field_name, type_name, "*" in flags, "%" in flags, "?" in flags, "^" in flags)
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise DecodeError("truncated or overlong varint")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _records(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values: ints of varints, bytes of everything else."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, position = _varint(data, position)
        else:
            if wire == 2:
                length, position = _varint(data, position)
            elif wire in (1, 5):
                length = 8 if wire == 1 else 4
            else:
                raise DecodeError(f"unexpected wire type {wire}")
            value = data[position : position + length]
            position += length
            if position > len(data):
                raise DecodeError("truncated field")
        yield number, value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _time(data: bytes, *, micro: bool) -> str | None:
    parts = dict(_records(data))
    if not parts:
        return None
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int):
        raise DecodeError("malformed time")
    moment = datetime.datetime.fromtimestamp(_signed(seconds), datetime.UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{nanos // 1000:06d}Z" if micro else f"{text}Z"


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_records(data))
    if parts.get(1, 0) == 0:
        number = parts.get(2, 0)
        return _signed(number) if isinstance(number, int) else 0
    text = parts.get(3, b"")
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else ""


def _wrapped(data: bytes) -> bytes:
    """The only field of a message that wraps one string or byte value."""
    value = dict(_records(data)).get(1, b"")
    return value if isinstance(value, bytes) else b""


def _raw_json(data: bytes) -> Any:
    raw = _wrapped(data)
    try:
        return json.loads(raw) if raw else None
    except ValueError as exc:
        raise DecodeError(f"embedded JSON: {exc}") from exc


def _value(type_name: str, value: int | bytes) -> Any:
    """One value; None where there is nothing to show."""
    if type_name == "i" and isinstance(value, int):
        return _signed(value)
    if type_name == "b" and isinstance(value, int):
        return bool(value)
    if not isinstance(value, bytes):
        raise DecodeError(f"a varint where {type_name} is expected")
    match type_name:
        case "s":
            return value.decode("utf-8", "replace")
        case "y":
            return base64.b64encode(value).decode()
        case "T" | "U":
            return _time(value, micro=type_name == "U")
        case "Q":
            return _wrapped(value).decode("utf-8", "replace") or None
        case "X":
            return _int_or_string(value)
        case "J":
            return _raw_json(value)
        case _:
            return _decode_message(type_name, value)


def _map_entry(type_name: str, data: int | bytes) -> tuple[str, Any]:
    if not isinstance(data, bytes):
        raise DecodeError("malformed map entry")
    parts = dict(_records(data))
    key = parts.get(1, b"")
    value = _value(type_name, parts.get(2, b""))
    return (key.decode("utf-8", "replace") if isinstance(key, bytes) else ""), value


def _decode_message(name: str, data: bytes) -> dict[str, Any]:
    fields = message_fields(name)
    result: dict[str, Any] = {}
    for number, raw in _records(data):
        field = fields.get(number)
        if field is None:
            if raw:
                raise DecodeError(f"field {number} of {name} is not supported in protobuf; send JSON")
            continue
        if field.mapped:
            key, value = _map_entry(field.type, raw)
            result.setdefault(field.name, {})[key] = value
            continue
        value = _value(field.type, raw)
        if field.repeated:
            result.setdefault(field.name, []).append(value)
        elif field.inline:
            result.update(value)
        elif field.pointer or value not in (None, "", 0, False):
            result[field.name] = value
    return result


def decode(data: bytes) -> dict[str, Any]:
    """The object in a protobuf body, with apiVersion and kind.

    Raises:
        DecodeError: not an envelope, an unknown kind, or a field outside the table.
    """
    if not data.startswith(MAGIC):
        raise DecodeError("the object provided is unrecognized (must be of type Protobuf)")
    envelope = dict(_records(data[len(MAGIC) :]))
    type_meta, raw = envelope.get(1, b""), envelope.get(2, b"")
    if not isinstance(type_meta, bytes) or not isinstance(raw, bytes):
        raise DecodeError("the object provided is unrecognized: malformed envelope")
    names = {number: value for number, value in _records(type_meta) if isinstance(value, bytes)}
    api_version, kind = names.get(1, b"").decode(), names.get(2, b"").decode()
    if kind not in KINDS:
        raise DecodeError(
            f"no kind {kind!r} is registered for protobuf bodies of version {api_version!r}; send JSON"
        )
    return {"apiVersion": api_version, "kind": kind, **_decode_message(kind, raw)}
