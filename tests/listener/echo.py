"""A service of bytes with one method of each kind, and both servers that can serve it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from store.listener import HttpApplication, Limits, Server, ServerTls

SERVICE = "test.Echo"
MAX_BYTES = 20 * 1024 * 1024


@dataclass
class Echo:
    """What the handlers have seen."""

    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    metadata: list[tuple[str, str | bytes]] = field(default_factory=list)
    remaining_s: float | None = None
    met: int = 0
    all_met: asyncio.Event = field(default_factory=asyncio.Event)

    async def unary(self, request: bytes, context: Any) -> bytes:
        """Echo; or do as the request says."""
        context.add_done_callback(self._on_done)
        self.metadata = [(key, value) for key, value in context.invocation_metadata()]
        self.remaining_s = context.time_remaining()
        verb, _, rest = request.partition(b" ")
        if verb == b"abort":
            code, _, text = rest.partition(b" ")
            await context.abort(_code(int(code)), text.decode(), (("why-bin", b"\x00\xff"), ("why", "told")))
        elif verb == b"metadata":
            await context.send_initial_metadata((("initial", "one"), ("initial-bin", b"\x01\x02")))
            context.set_trailing_metadata((("trailing", "two"), ("trailing-bin", b"\xfe")))
        elif verb == b"raise":
            raise ValueError("on purpose")
        elif verb == b"set":
            context.set_code(grpc.StatusCode.DATA_LOSS)
            context.set_details("set, not raised")
        elif verb == b"wait":
            await self._wait()
        elif verb == b"meet":
            await self._meet(int(rest))
        elif verb == b"size":
            return bytes(int(rest))
        elif verb == b"peer":
            return str(context.peer()).encode()
        return request

    def _on_done(self, _context: object) -> None:
        self.done.release()

    async def _wait(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _meet(self, count: int) -> None:
        """Return once so many calls wait here together."""
        self.met += 1
        if self.met == count:
            self.all_met.set()
        await self.all_met.wait()

    async def server_stream(self, request: bytes, context: Any) -> None:
        """``count size``: so many answers of that size; count -1 never ends."""
        count, size = (int(part) for part in request.split())
        number = 0
        try:
            while number != count:
                await context.write(number.to_bytes(4, "big") + bytes(size))
                number += 1
                self.started.set()
                if count < 0 and not size:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def generated(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    async def client_stream(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        count = size = 0
        async for request in requests:
            count, size = count + 1, size + len(request)
        return b"%d %d" % (count, size)

    async def bidi(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Echo each message; ``after <n>`` half-closes nothing: n more answers follow the last request;
        ``abort <code> <text>`` ends the call whatever the client still sends."""
        more = 0
        async for request in requests:
            if request == b"wait":
                await self._wait()
            if request.startswith(b"abort "):
                code, _, text = request[6:].partition(b" ")
                await context.abort(_code(int(code)), text.decode(), (("why", "told"),))
            if request.startswith(b"after "):
                more = int(request[6:])
            await context.write(request)
        for number in range(more):
            await context.write(b"more %d" % number)

    async def reads(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        """As bidi, by context.read()."""
        while (message := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            await context.write(message)

    def handlers(self) -> dict[str, Any]:
        return {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "ServerStream": grpc.unary_stream_rpc_method_handler(self.server_stream),
            "Generated": grpc.unary_stream_rpc_method_handler(self.generated),
            "ClientStream": grpc.stream_unary_rpc_method_handler(self.client_stream),
            "Bidi": grpc.stream_stream_rpc_method_handler(self.bidi),
            "Reads": grpc.stream_stream_rpc_method_handler(self.reads),
        }


def _code(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)


@contextlib.asynccontextmanager
async def ours(
    echo: Echo,
    limits: Limits | None = None,
    http: HttpApplication | None = None,
    tls: ServerTls | None = None,
) -> AsyncIterator[tuple[Server, int]]:
    """The listener with the service, on a port."""
    limits = limits or Limits(max_receive_message_bytes=MAX_BYTES)
    server = Server(limits, http) if http else Server(limits)
    server.add_registered_method_handlers(SERVICE, echo.handlers())
    port = await server.listen("127.0.0.1", 0, tls)
    try:
        yield server, port
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def reference(echo: Echo) -> AsyncIterator[int]:
    """grpc.aio with the same service."""
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", MAX_BYTES), ("grpc.so_reuseport", 0)))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, echo.handlers()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


def channel(port: int) -> Any:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS)
