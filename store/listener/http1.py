"""HTTP/1.1 on the shared port: aiohttp's request handler behind a guard against slow and oversized requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from store.listener.http import HttpRequest, HttpResponse
from store.listener.http2 import peer_name
from store.listener.links import Listener

log = logging.getLogger(__name__)

LINGER_S: Final = 1.0
"""How long the rest of a refused body is read and thrown away before the connection is closed."""
_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Http1Connection(asyncio.Protocol):
    """Passes bytes to aiohttp; closes a connection whose request header does not arrive in time."""

    def __init__(self, server: Listener, http1: Http1, transport: asyncio.Transport) -> None:
        self._server = server
        self._http1 = http1
        self._transport = transport
        self._active = 0
        self._lost = False
        self._handler = http1.for_connection(self)
        self._timer: asyncio.TimerHandle | None = None
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and not self._active:
            timeout_s = self._server.limits.http_header_timeout_s
            self._timer = self._server.loop.call_later(timeout_s, self._too_slow)
        self._handler.data_received(data)

    def request_begun(self) -> None:
        """A whole header has arrived."""
        self._active += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def request_ended(self) -> None:
        self._active -= 1

    def _too_slow(self) -> None:
        log.info("%s: closed, no whole HTTP request in time", peer_name(self._transport))
        self._transport.write(_SLOW)
        self._transport.close()

    def eof_received(self) -> bool | None:
        self._handler.eof_received()
        return False

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._server.forget(self)
        self._handler.connection_lost(exc)
        self._http1.forget(self._handler)

    def drain(self) -> None:
        """Let a running request finish; an idle connection is closed."""
        if self._active:
            self._handler.close()
        else:
            self._transport.close()

    def stop(self) -> None:
        self._transport.close()

    def abort(self, *, only_if_sent: bool = False) -> None:
        if not (only_if_sent and self._transport.get_write_buffer_size()):
            self._transport.abort()


class Http1:
    """The aiohttp side of a listener: one low-level server, many connections."""

    def __init__(self, server: Listener) -> None:
        self._server = server
        self._web: web.Server | None = None
        self._owners: dict[web.RequestHandler, Http1Connection] = {}

    def for_connection(self, connection: Http1Connection) -> web.RequestHandler:
        """A protocol of aiohttp for one connection."""
        limits = self._server.limits
        if self._web is None:
            self._web = web.Server(
                self._handle,
                access_log=None,
                handler_cancellation=True,
                lingering_time=LINGER_S,
                keepalive_timeout=limits.http_idle_timeout_s,
                max_line_size=8190,
                max_field_size=min(8190, limits.header_list_bytes),
                tcp_keepalive=False,
            )
        handler: web.RequestHandler = self._web()
        self._owners[handler] = connection
        return handler

    def forget(self, handler: web.RequestHandler) -> None:
        del self._owners[handler]

    async def close(self) -> None:
        if self._web is not None:
            await self._web.shutdown(0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._owners[request.protocol]
        connection.request_begun()
        try:
            return await self._answer(request)
        finally:
            connection.request_ended()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        limits = self._server.limits
        body = bytearray()
        if (request.content_length or 0) > limits.max_http_body_bytes:
            return _refusal(413, "request body too large\n")
        try:
            async with asyncio.timeout(limits.http_body_timeout_s):
                async for part in request.content.iter_any():
                    body += part
                    if len(body) > limits.max_http_body_bytes:
                        return _refusal(413, "request body too large\n")
        except TimeoutError:
            return _refusal(408, "request body too slow\n")
        except (web.RequestPayloadError, HttpProcessingError) as error:
            log.debug("a body that cannot be read: %s", type(error).__name__)
            return _refusal(400, "malformed request body\n")
        response = await self._server.http(_plain(request, bytes(body)))
        if response.stream is None:
            return web.Response(
                status=response.status,
                body=response.body,
                headers={"Content-Type": response.content_type, **response.headers},
            )
        return await _stream(request, response)


def _refusal(status: int, text: str) -> web.Response:
    response = web.Response(status=status, text=text)
    response.force_close()
    return response


async def _stream(request: web.BaseRequest, response: HttpResponse) -> web.StreamResponse:
    answer = web.StreamResponse(
        status=response.status, headers={"Content-Type": response.content_type, **response.headers}
    )
    await answer.prepare(request)
    assert response.stream is not None
    async with contextlib.aclosing(response.stream) as parts:  # type: ignore[type-var]
        async for part in parts:
            if not await _goes_on(answer.write(part)):
                return answer
    await _goes_on(answer.write_eof())
    return answer


async def _goes_on(writing: Awaitable[None]) -> bool:
    """False when the peer went: the end of the stream, nothing to report."""
    try:
        await writing
    except ConnectionError:
        return False
    return True


def _plain(request: web.BaseRequest, body: bytes) -> HttpRequest:
    transport = request.transport
    certificate: dict[str, Any] = (transport.get_extra_info("peercert") if transport else None) or {}
    pairs = (pair for group in certificate.get("subject", ()) for pair in group)
    return HttpRequest(
        method=request.method,
        path=request.path,
        query=list(request.query.items()),
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
        peer=peer_name(transport) if transport else "",
        common_names=tuple(value.encode() for key, value in pairs if key == "commonName"),
    )
