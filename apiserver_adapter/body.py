"""Request bodies: size limit, media type, JSON, YAML or protobuf to plain objects (contract §3.4, §3.11)."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import yaml
from aiohttp import web

from . import protobuf
from .bounds import DEPTH_MAX, check_depth, too_deep, without_surrogates
from .errors import ApiError, bad_request, too_large, unsupported_media_type
from .negotiation import JSON

BODY_BYTES_MAX = 3 * 1024 * 1024
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
ACCEPTED = (JSON, YAML, PROTOBUF)
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_YamlLoader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # five times as fast where it is built


def media_type(request: web.Request) -> str:
    """The body's type without its parameters; JSON where none is given."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() or JSON


async def read(request: web.Request) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413; 400 for a transfer or content coding that cannot be undone.
    """
    try:
        return await request.read()
    except web.RequestPayloadError as exc:
        raise bad_request("the body of the request cannot be decoded") from exc
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


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is out of range")
    return number


def parse_json(data: bytes) -> tuple[Any, list[str]]:
    """The value, and the names of duplicate fields.

    Raises:
        ApiError: 400, not JSON.
    """
    duplicates = _Duplicates()
    text = data.decode("utf-8", "replace")  # bytes that are no UTF-8 become U+FFFD, as Go reads them
    try:
        value = json.loads(
            text, object_pairs_hook=duplicates.hook, parse_constant=_no_constants, parse_float=_finite
        )
    except RecursionError:
        raise too_deep() from None
    except ValueError as exc:
        raise bad_request(f"the object provided is unrecognized (must be of type JSON): {exc}") from exc
    if text.count("{") + text.count("[") > DEPTH_MAX:
        check_depth(value)
    if _SURROGATE_ESCAPE.search(text):
        value = without_surrogates(value)
    return value, duplicates.names


def parse_yaml(data: bytes) -> Any:
    """Raises ApiError 400, also for anchors that expand to more than a body may have."""
    try:
        value = json.loads(json.dumps(_load_yaml(data), default=str, allow_nan=False))
        check_depth(value)
    except RecursionError:
        raise too_deep() from None
    except (yaml.YAMLError, ValueError, TypeError) as exc:
        raise bad_request(f"the object provided is unrecognized (must be of type YAML): {exc}") from exc
    return without_surrogates(value)


def _load_yaml(data: bytes) -> Any:
    loader = _YamlLoader(data)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if b"*" in data:  # without an alias nothing is larger than it was sent
            _expanded_size(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded_size(node: yaml.Node, known: dict[int, int]) -> int:
    """At least the bytes that a node takes when every alias in it is written out; each anchor counts once here.

    Raises:
        ApiError: 400, an anchor within itself, or more than a body may have.
    """
    size = known.get(id(node))
    if size is not None:
        if not size:
            raise bad_request(
                "the object provided is unrecognized (must be of type YAML): an anchor contains itself"
            )
        return size
    known[id(node)] = 0
    size = 1
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_expanded_size(part, known) for pair in node.value for part in pair)
    else:
        size += sum(_expanded_size(item, known) for item in node.value)
    if size > BODY_BYTES_MAX:
        raise bad_request(
            f"the object provided is too large: its anchors expand to more than {BODY_BYTES_MAX} bytes"
        )
    known[id(node)] = size
    return size


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
            check_depth(value)
        except RecursionError:
            raise too_deep() from None
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
