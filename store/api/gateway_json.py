"""What a body of the JSON gateway may be, checked before it becomes a message.

The conversion itself takes bytes that are no base64 for empty ones, and refuses values of a wrong type in words
about Python. Here the refusal names the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

DEPTH_MAX: Final = 64
"""Levels of nested messages; a transaction within a transaction takes two."""

_BASE64: Final = re.compile("([A-Za-z0-9+/]*|[A-Za-z0-9_-]*)(={0,2})")


def documents(body: bytes) -> Iterator[Any]:
    """The JSON objects in a body, one after the other. Raises ValueError, with a text for the client."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise ValueError("the body is not UTF-8 text") from None
    decoder, position = json.JSONDecoder(), 0
    while True:
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
        if position == len(text):
            return
        try:
            document, position = decoder.raw_decode(text, position)
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"the body is not JSON: {error}") from None
        except ValueError:
            raise ValueError("the body is not JSON: a number in it is too long") from None
        if not isinstance(document, dict):
            raise ValueError("the body is not a JSON object")
        yield document


def check_document(message: Any, document: Any) -> None:
    """Check texts, bytes, lists and objects against the message. Raises ValueError, naming the field.

    Numbers and enumerations are left to the conversion, and unknown fields are no error.
    """
    _check_message(message, document, "", DEPTH_MAX)


@cache
def _fields(message: Any) -> Mapping[str, FieldDescriptor]:
    """By both names that JSON may use."""
    return {name: field for field in message.fields for name in (field.name, field.json_name)}


def _check_message(message: Any, document: Any, path: str, depth: int) -> None:
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not a JSON object")
    if not depth:
        raise ValueError(f"{path} is nested too deeply")
    fields = _fields(message)
    for name, value in document.items():
        field = fields.get(name)
        if field is None or value is None:
            continue
        where = f"{path}.{name}" if path else name
        if not field.is_repeated:
            _check_value(field, value, where, depth)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                _check_value(field, item, f"{where}[{number}]", depth)
        else:
            raise ValueError(f"{where} is not a list")


def _check_value(field: FieldDescriptor, value: Any, where: str, depth: int) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        _check_message(field.message_type, value, where, depth - 1)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        _check_base64(value, where)
    elif field.type == FieldDescriptor.TYPE_STRING:
        _check_text(value, where)
    elif isinstance(value, (dict, list)):
        raise ValueError(f"{where} is a list or an object where a single value belongs")


def _check_base64(value: Any, where: str) -> None:
    """Base64 of either alphabet, padded or not, as Go's protojson takes it."""
    if not isinstance(value, str):
        raise ValueError(f"{where} is not a text: bytes are written as base64")
    match = _BASE64.fullmatch(value)
    padding = len(match[2]) if match else 0
    if match is None or len(match[1]) % 4 == 1 or (padding and len(value) % 4):
        raise ValueError(f"{where} is not valid base64")


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{where} is not a text")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"{where} is not valid Unicode: it has half of a surrogate pair")
