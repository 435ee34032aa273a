"""Which representation a client wants, and how bytes leave (contract §3.4)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from watchcache.codec import dump

from .errors import ApiError, Status

JSON = "application/json"
_ACCEPTED = (JSON, "application/*", "*/*")
_TRANSFORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_PRETTY_AGENTS = ("curl", "Wget", "Mozilla/5.0")


@dataclass(frozen=True, slots=True)
class Representation:
    """JSON of the object itself (``transform`` ""), or of a Table or PartialObjectMetadata made from it."""

    transform: str = ""
    version: str = "v1"


def accept_clauses(header: str) -> list[tuple[str, dict[str, str]]]:
    """The clauses of an Accept header: media type and parameters."""
    clauses = []
    for clause in header.split(","):
        media_type, *parameters = (part.strip() for part in clause.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        clauses.append((media_type, {name: value for name, _, value in pairs}))
    return clauses


def negotiate(header: str) -> Representation:
    """The first clause of an Accept header that can be served.

    Raises:
        ApiError: 406, none can.
    """
    if not header.strip():
        return Representation()
    for media_type, parameters in accept_clauses(header):
        if media_type not in _ACCEPTED:
            continue
        transform = parameters.get("as", "")
        if not transform:
            return Representation()
        version = parameters.get("v", "")
        if transform in _TRANSFORMS and parameters.get("g") == "meta.k8s.io" and version in ("v1", "v1beta1"):
            return Representation(transform, version)
    raise ApiError(406, "NotAcceptable", f"only the following media types are accepted: {JSON}")


def wants_pretty(request: web.Request) -> bool:
    if "pretty" in request.query:
        return request.query["pretty"] in ("1", "true", "")
    return request.headers.get("User-Agent", "").startswith(_PRETTY_AGENTS)


def json_response(
    request: web.Request, document: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """A document, or ready-made JSON bytes, as the response."""
    body = document if isinstance(document, bytes) else dump(document)
    if wants_pretty(request):
        body = json.dumps(json.loads(body), indent=2, ensure_ascii=False).encode("utf-8", "replace")
    return web.Response(body=body + b"\n", status=status, content_type=JSON, headers=headers)


def status_response(request: web.Request, status: Status) -> web.Response:
    """A Status with its code as HTTP status, and Retry-After where it gives a hint."""
    headers = {}
    retry_after = status.get("details", {}).get("retryAfterSeconds")
    if retry_after:
        headers["Retry-After"] = str(retry_after)
    if status["code"] == 403:
        headers["X-Content-Type-Options"] = "nosniff"
    return json_response(request, status, status["code"], headers)


def text_not_found() -> web.Response:
    """What a path outside the API answers."""
    return web.Response(text="404 page not found\n", status=404, content_type="text/plain")
