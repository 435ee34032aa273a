"""The JSON gateway: POST /v3/... for every RPC that has a path, generated from the descriptors (contract §12).

Bytes are base64, 64-bit numbers are texts, names are those of the .proto files, defaults are left out. Streams
answer one JSON object per line. The body of a streaming request is any number of JSON objects one after the
other; its end is the half-close.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from store.api.gateway_json import check_document, documents
from store.listener import HttpRequest, HttpResponse

PREFIX: Final = "/v3/"
_OLD_PREFIX: Final = "/v3beta/"
_JSON: Final = "application/json"
_QUEUE_ANSWERS: Final = 16

_HTTP_STATUS: Final = {
    1: 408, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501, 14: 503, 16: 401,
}  # fmt: skip
"""HTTP status by gRPC code as grpc-gateway maps them; the others are 500."""

_EXCEPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "KV/Compact": ("kv/compaction",),
    "KV/RangeStream": (),
    "Watch/Watch": ("watch",),
    "Lease/LeaseRevoke": ("lease/revoke", "kv/lease/revoke"),
    "Lease/LeaseTimeToLive": ("lease/timetolive", "kv/lease/timetolive"),
    "Lease/LeaseLeases": ("lease/leases", "kv/lease/leases"),
    "Maintenance/MoveLeader": ("maintenance/transfer-leadership",),
    "Auth/AuthEnable": ("auth/enable",),
    "Auth/AuthDisable": ("auth/disable",),
    "Auth/AuthStatus": ("auth/status",),
    "Auth/UserChangePassword": ("auth/user/changepw",),
    "Auth/UserGrantRole": ("auth/user/grant",),
    "Auth/UserRevokeRole": ("auth/user/revoke",),
    "Auth/RoleGrantPermission": ("auth/role/grant",),
    "Auth/RoleRevokePermission": ("auth/role/revoke",),
}
"""Paths that do not follow from the names of service and method."""


def paths_of(service: str, method: str) -> tuple[str, ...]:
    """The gateway paths of a method, without prefix: mostly its service and its name, word by word."""
    known = _EXCEPTIONS.get(f"{service}/{method}")
    if known is not None:
        return known
    first = service.lower()
    if service == "Lease":
        return (f"{first}/{method.removeprefix('Lease').lower()}",)
    if service in ("Auth", "Cluster"):
        words = re.findall("[A-Z][a-z]*", method)
        return ("/".join([first, *(word.lower() for word in words)]),)
    return (f"{first}/{method.lower()}",)


class _Method:
    """One RPC: its handler, and its message types from the descriptors."""

    def __init__(self, handler: Any, descriptor: Any) -> None:
        self.handler = handler
        self.request: type[Message] = GetMessageClass(descriptor.input_type)
        self.response: type[Message] = GetMessageClass(descriptor.output_type)

    def parse(self, document: Any) -> Message:
        """Raises ValueError or ParseError, with a text for the client."""
        check_document(self.request.DESCRIPTOR, document)
        return json_format.ParseDict(document, self.request(), ignore_unknown_fields=True)

    def document(self, answer: Any) -> Any:
        """An answer, message or encoded, as what becomes its JSON."""
        message = self.response.FromString(self.handler.response_serializer(answer))
        return json_format.MessageToDict(message, preserving_proto_field_name=True)


class Gateway:
    """Serves the paths of all methods in ``handlers`` (by full service name and method name)."""

    def __init__(self, handlers: Mapping[str, Mapping[str, Any]]) -> None:
        self.methods: dict[str, _Method] = {}
        pool: Any = descriptor_pool.Default()
        for service, methods in handlers.items():
            try:
                descriptor = pool.FindServiceByName(service)
            except KeyError:
                continue  # a service without descriptors, as the health service, has no gateway paths
            for method in descriptor.methods:
                for path in paths_of(descriptor.name, method.name):
                    self.methods[PREFIX + path] = _Method(methods[method.name], method)

    def serves(self, path: str) -> bool:
        return path.startswith((PREFIX, _OLD_PREFIX))

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        method = self.methods.get(re.sub(f"^{_OLD_PREFIX}", PREFIX, request.path))
        if method is None:
            return HttpResponse(404, b"Not Found\n")
        if request.method != "POST":
            return HttpResponse(405, b"Method Not Allowed\n", headers={"Allow": "POST"})
        try:
            requests = [method.parse(document) for document in documents(request.body)]
        except (ValueError, json_format.ParseError) as error:
            return _error(3, str(error))
        context = GatewayContext(request)
        if method.handler.response_streaming:
            return await _stream(method, requests, context)
        return await _unary(method, requests[0] if requests else method.request(), context)


async def _unary(method: _Method, request: Message, context: GatewayContext) -> HttpResponse:
    try:
        answer = await method.handler.unary_unary(request, context)
    except grpc.aio.AbortError:
        return _error(context.code, context.details)
    return HttpResponse(200, _line(method.document(answer)).rstrip(b"\n"), _JSON)


async def _stream(method: _Method, requests: list[Message], context: GatewayContext) -> HttpResponse:
    """Begin the call; its first answer, or its error, decides the status."""
    handler = method.handler
    if handler.request_streaming:
        running = asyncio.ensure_future(handler.stream_stream(_iterate(requests), context))
    else:
        running = asyncio.ensure_future(
            handler.unary_stream(requests[0] if requests else method.request(), context)
        )
    answers = _answers(running, context)
    try:
        first = await anext(answers, None)
    except grpc.aio.AbortError:
        return _error(context.code, context.details)
    except BaseException:
        running.cancel()
        raise
    return HttpResponse(200, content_type=_JSON, stream=_lines(method, first, answers, context))


async def _iterate(requests: list[Message]) -> AsyncIterator[Message]:
    for request in requests:
        yield request


async def _answers(running: asyncio.Future[Any], context: GatewayContext) -> AsyncIterator[Any]:
    """What the handler writes, until it ends; leaving the iterator early ends the handler."""
    queue = context.answers
    try:
        while True:
            waiting = asyncio.ensure_future(queue.get())
            try:
                await asyncio.wait((waiting, running), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not waiting.done():
                    waiting.cancel()
            if waiting.done() and not waiting.cancelled():
                yield waiting.result()
                continue
            while not queue.empty():
                yield queue.get_nowait()
            running.result()
            return
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AbortError):
            await running


async def _lines(
    method: _Method, first: Any, answers: AsyncIterator[Any], context: GatewayContext
) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(answers):  # type: ignore[type-var]
        if first is None:
            return
        yield _line({"result": method.document(first)})
        try:
            async for answer in answers:
                yield _line({"result": method.document(answer)})
        except grpc.aio.AbortError:
            yield _line({"error": _problem(context.code, context.details, stream=True)})


def _line(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _problem(code: int, text: str, *, stream: bool = False) -> dict[str, Any]:
    if stream:
        status = _HTTP_STATUS.get(code, 500)
        reason = {400: "Bad Request", 503: "Service Unavailable"}.get(status, "Internal Server Error")
        return {"grpc_code": code, "http_code": status, "message": text, "http_status": reason}
    return {"error": text, "code": code, "message": text}


def _error(code: int, text: str) -> HttpResponse:
    return HttpResponse(_HTTP_STATUS.get(code, 500), _line(_problem(code, text)).rstrip(b"\n"), _JSON)


class GatewayContext:
    """The part of a gRPC context that servicers use, for a request that came as JSON."""

    def __init__(self, request: HttpRequest) -> None:
        self.code = 0
        self.details = ""
        self.answers: asyncio.Queue[Any] = asyncio.Queue(_QUEUE_ANSWERS)
        self._request = request
        self._metadata = tuple(_metadata(request.headers))

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    async def write(self, message: Any) -> None:
        await self.answers.put(message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: object = ()) -> None:
        self.code, self.details = code.value[0], details
        raise grpc.aio.AbortError("Locally aborted.")

    def peer(self) -> str:
        return self._request.peer

    def time_remaining(self) -> float | None:
        return None

    def auth_context(self) -> Mapping[str, object]:
        """Empty: the certificate of a gateway request names no user (contract §10)."""
        return {}


def _metadata(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What grpc-gateway passes on: the token, and headers that ask for it by their prefix."""
    for name, value in headers.items():
        if name == "authorization":
            yield (name, value)
        elif name.startswith("grpc-metadata-"):
            yield (name.removeprefix("grpc-metadata-"), value)
