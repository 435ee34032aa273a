"""Request bodies: size limit, media type, JSON, YAML or protobuf to plain objects (contract §3.4, §3.11)."""

from __future__ import annotations

import json
from typing import Any

import yaml
from aiohttp import web

from . import protobuf
from .errors import ApiError, bad_request, too_large, unsupported_media_type
from .negotiation import JSON

BODY_BYTES_MAX = 3 * 1024 * 1024
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
ACCEPTED = (JSON, YAML, PROTOBUF)


def media_type(request: web.Request) -> str:
    """The body's type without its parameters; JSON where none is given."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() or JSON


async def read(request: web.Request) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413.
    """
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as exc:
        raise too_large(BODY_BYTES_MAX) from exc


class _Duplicates:
    """Collects the names of keys that occur twice in one JSON object."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def hook(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        obj = dict(pairs)
        if len(obj) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    self.names.append(name)
                seen.add(name)
        return obj


def _no_constants(text: str) -> Any:
    raise ValueError(f"invalid character in literal {text!r}")


def parse_json(data: bytes) -> tuple[Any, list[str]]:
    """The value, and the names of duplicate fields.

    Raises:
        ApiError: 400, not JSON.
    """
    duplicates = _Duplicates()
    try:
        value = json.loads(data, object_pairs_hook=duplicates.hook, parse_constant=_no_constants)
    except (ValueError, RecursionError) as exc:
        raise bad_request(f"the object provided is unrecognized (must be of type JSON): {exc}") from exc
    return value, duplicates.names


def parse_yaml(data: bytes) -> Any:
    """Raises ApiError 400."""
    try:
        return json.loads(json.dumps(yaml.safe_load(data), default=str))
    except (yaml.YAMLError, ValueError, TypeError) as exc:
        raise bad_request(f"the object provided is unrecognized (must be of type YAML): {exc}") from exc


def strict_error(duplicates: list[str]) -> ApiError:
    problems = ", ".join(f'duplicate field "{name}"' for name in duplicates)
    return bad_request(f"strict decoding error: {problems}")


def warning_headers(duplicates: list[str]) -> dict[str, str]:
    """A Warning header for what was tolerated."""
    if not duplicates:
        return {}
    return {"Warning": ", ".join(f'299 - "duplicate field \\"{name}\\""' for name in duplicates)}


def decode_object(data: bytes, content_type: str, validation: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A body that holds one object, and the warning headers it earns.

    Raises:
        ApiError: 400 or 415.
    """
    duplicates: list[str] = []
    if content_type == JSON:
        value, duplicates = parse_json(data)
        if duplicates and validation == "Strict":
            raise strict_error(duplicates)
    elif content_type == YAML:
        value = parse_yaml(data)
    elif content_type == PROTOBUF:
        try:
            value = protobuf.decode(data)
        except protobuf.DecodeError as exc:
            raise bad_request(str(exc)) from exc
    else:
        raise unsupported_media_type(ACCEPTED)
    if not isinstance(value, dict):
        raise bad_request("the object provided is unrecognized (must be of type JSON object)")
    return value, warning_headers(duplicates) if validation == "Warn" else {}


async def read_object(request: web.Request, validation: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read and decode the body of a create or update."""
    data = await read(request)
    return decode_object(data, media_type(request), validation)
