"""An HTTP/2 request that is not gRPC: clients that negotiate h2 by ALPN ask for /health and /metrics this way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from urllib.parse import parse_qsl, unquote

import ngh2

from store.listener.http import HttpRequest, HttpResponse
from store.listener.links import GONE, INTERNAL_ERROR, StreamOwner
from store.listener.metadata import Headers

log = logging.getLogger(__name__)


class PlainStream:
    """Collects the request, runs the application, sends its answer."""

    def __init__(self, connection: StreamOwner, stream_id: int, headers: Headers) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._headers = headers
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._half_closed = False
        self._closed = False
        self._deadline = connection.loop.call_later(
            connection.limits.http_body_timeout_s, self._refuse, 408, b"request body too slow\n"
        )

    def begin(self, half_closed: bool) -> None:
        if half_closed:
            self._start()

    def on_data(self, data: bytes, half_closed: bool) -> None:
        self._half_closed = self._half_closed or half_closed
        self._connection.acknowledge(self._stream_id, len(data))
        if self._closed or self._task is not None:
            return
        self._body += data
        if len(self._body) > self._connection.limits.max_http_body_bytes:
            self._refuse(413, b"request body too large\n")
        elif half_closed:
            self._start()

    def on_closed(self) -> None:
        self._closed = True
        self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._half_closed = True
        self._deadline.cancel()
        self._task = self._connection.loop.create_task(self._run())
        self._connection.server.keep(self._task)

    def _refuse(self, status: int, text: bytes) -> None:
        self._deadline.cancel()
        self._closed = True
        self._body.clear()
        try:
            self._head(HttpResponse(status, text), len(text))
            self._connection.h2.send_data(self._stream_id, text, end_stream=True)
        except ngh2.StreamProtocolError:
            return  # its peer has given it up already
        self._connection.schedule_flush()
        self._connection.retire(self._stream_id)

    def _head(self, response: HttpResponse, length: int | None) -> None:
        headers = [
            (b":status", b"%d" % response.status),
            (b"content-type", response.content_type.encode("latin-1")),
        ]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.items()]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        self._connection.h2.send_response(self._stream_id, headers)

    async def _run(self) -> None:
        try:
            await self._answer()
        except GONE:
            self._closed = True  # the stream or its session is gone: the connection will find out by itself
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                log.error("an answer over HTTP failed", exc_info=error)
            if not self._closed:
                self._connection.cut(self._stream_id, INTERNAL_ERROR)
            if not isinstance(error, Exception):
                raise

    async def _answer(self) -> None:
        connection, stream_id = self._connection, self._stream_id
        try:
            response = await connection.server.http(self._request())
        except Exception as error:
            log.error("an HTTP handler failed", exc_info=error)
            response = HttpResponse(500, b"internal error\n")
        if self._is_closed():
            return
        if response.stream is None:
            self._head(response, len(response.body))
            connection.h2.send_data(stream_id, response.body, end_stream=True)
            connection.schedule_flush()
            return
        self._head(response, None)
        connection.schedule_flush()
        async with contextlib.aclosing(response.stream) as parts:  # type: ignore[type-var]
            async for part in parts:
                if self._is_closed():
                    return
                connection.h2.send_data(stream_id, part)
                connection.schedule_flush()
                await connection.wait_for_room(stream_id)
        if not self._is_closed():
            connection.h2.end_stream(stream_id)
            connection.schedule_flush()

    def _is_closed(self) -> bool:
        return self._closed  # changes while this task waits

    def _request(self) -> HttpRequest:
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        path, _, query = fields.get(":path", "/").partition("?")
        return HttpRequest(
            method=fields.get(":method", "GET"),
            path=unquote(path),
            query=parse_qsl(query, keep_blank_values=True),
            headers={name: value for name, value in fields.items() if not name.startswith(":")},
            body=bytes(self._body),
            peer=self._connection.peer,
            common_names=self._connection.common_names,
        )
