"""A load generator over libnghttp2: cheap enough that what it measures is mostly the server.

One ``Connection`` carries any number of calls at a time. Answers are checked: a call that does not end with
grpc-status 0 is an error of the run, never a fast success.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import ngh2

KV: Final = "/etcdserverpb.KV/"
WATCH: Final = "/etcdserverpb.Watch/Watch"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
_WINDOW_BYTES: Final = 64 * 1024 * 1024
_CALL_TIMEOUT_S: Final = 30.0

Done = Callable[[bytes], None]


class LoadError(Exception):
    """The server refused a call, or the connection broke: the measurement says nothing."""


class _Call:
    __slots__ = ("body", "done", "status")

    def __init__(self, done: Done) -> None:
        self.done = done
        self.body = bytearray()
        self.status = b""


class Connection(asyncio.Protocol):
    """Unary calls and watch streams on one HTTP/2 connection."""

    def __init__(self, authority: str) -> None:
        self._authority = authority.encode()
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(peer_max_concurrent_streams=4096))
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}
        self._streams: dict[int, Callable[[bytes], None]] = {}
        self._batching = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @staticmethod
    async def open(port: int) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(f"127.0.0.1:{port}"), "127.0.0.1", port)
        return connection

    def call(self, method: str, message: bytes, done: Done) -> None:
        """Start a unary call; ``done`` gets the answer's message."""
        stream = self._h2.send_request(self._headers(method))
        self._h2.send_data(stream, _framed(message), end_stream=True)
        self._calls[stream] = _Call(done)
        self._flush()

    async def ask(self, method: str, message: bytes) -> bytes:
        """One unary call and its answer. Raises LoadError."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.call(method, message, answer.set_result)
        async with asyncio.timeout(_CALL_TIMEOUT_S):
            await asyncio.wait((answer, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._failed.result()
        return answer.result()

    def watch(self, requests: Sequence[bytes], received: Callable[[bytes], None]) -> None:
        """Open a watch stream; ``received`` gets each piece of it as it comes, not split into messages."""
        stream = self._h2.send_request(self._headers(WATCH))
        self._streams[stream] = received
        self._h2.send_data(stream, b"".join(map(_framed, requests)))
        self._flush()

    async def failed(self) -> None:
        """Raises LoadError once the connection is of no use."""
        await asyncio.shield(self._failed)

    def close(self) -> None:
        if not self._failed.done():
            self._failed.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _headers(self, path: str) -> list[tuple[bytes, bytes]]:
        return [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()),
            (b":authority", self._authority), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
        ]  # fmt: skip

    def _flush(self) -> None:
        if not self._batching and self._transport is not None:
            self._transport.write(self._h2.data_to_send())

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(LoadError(why))
            self._failed.exception()  # whoever waits is told; nobody may be waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
        self._h2.set_local_window_size(_WINDOW_BYTES)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(f"the connection broke: {exc or 'closed by the server'}")

    def data_received(self, data: bytes) -> None:
        self._h2.receive_data(data)
        self._batching = True
        for event in self._h2.events():
            if isinstance(event, ngh2.DataReceived):
                self._take_data(event.stream_id, event.data)
            elif isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived):
                self._take_status(event.stream_id, event.headers)
            elif isinstance(event, ngh2.StreamClosed):
                self._take_end(event.stream_id)
        self._batching = False
        self._flush()

    def _take_data(self, stream: int, data: bytes) -> None:
        if (received := self._streams.get(stream)) is not None:
            received(data)
        elif (call := self._calls.get(stream)) is not None:
            call.body += data

    def _take_status(self, stream: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        call = self._calls.get(stream)
        for name, value in headers:
            if call is not None and name == b"grpc-status":
                call.status = value
            elif value and name == b"grpc-message":
                self._fail(f"the server answered: {value.decode(errors='replace')}")

    def _take_end(self, stream: int) -> None:
        call = self._calls.pop(stream, None)
        if call is None:
            self._fail("the server ended a watch")
        elif call.status != b"0":
            self._fail(f"a call ended with status {call.status.decode() or 'none'}")
        else:
            call.done(bytes(memoryview(call.body)[5:]))


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@dataclass(frozen=True, slots=True)
class Rate:
    """What one load got: calls per second, and the time of one call in milliseconds."""

    per_s: float
    p50_ms: float
    p99_ms: float


class _Client:
    """One client: the next call goes out when the last was answered."""

    def __init__(self, connection: Connection, method: str, message: Callable[[], bytes]) -> None:
        self._connection = connection
        self._method = method
        self._message = message
        self._began = 0.0
        self.times_s: list[float] = []
        self.measuring = False
        self.stopped = False

    def begin(self) -> None:
        self._began = time.perf_counter()
        self._connection.call(self._method, self._message(), self._done)

    def _done(self, _answer: bytes) -> None:
        if self.measuring:
            self.times_s.append(time.perf_counter() - self._began)
        if not self.stopped:
            self.begin()


async def drive(
    ports: Sequence[int], clients: int, method: str, message: Callable[[], bytes], seconds: float
) -> Rate:
    """``clients`` clients, spread over the members, for ``seconds`` after a quarter of that to settle.

    Raises:
        LoadError: a call failed.
    """
    connections = [await Connection.open(port) for port in ports[:clients]]
    crowd = [_Client(connections[i % len(connections)], KV + method, message) for i in range(clients)]
    try:
        for client in crowd:
            client.begin()
        await _hold(connections, min(1.0, seconds / 4))
        began = time.perf_counter()
        for client in crowd:
            client.measuring = True
        await _hold(connections, seconds)
        for client in crowd:
            client.measuring, client.stopped = False, True
        elapsed_s = time.perf_counter() - began
    finally:
        for connection in connections:
            connection.close()
    times = sorted(time_s for client in crowd for time_s in client.times_s)
    if not times:
        raise LoadError(f"no call was answered in {seconds:g} s")
    return Rate(len(times) / elapsed_s, times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3)


async def _hold(connections: Sequence[Connection], seconds: float) -> None:
    """Let the load run; raise LoadError as soon as one connection fails."""
    waits = [asyncio.ensure_future(connection.failed()) for connection in connections]
    done, pending = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for wait in done:
        wait.result()
