"""``kvorum bench rpc``: what one call costs the server, over the member's listener and over grpc.aio.

Each server is a process of its own and echoes 300 bytes; this process is the load, a client over libnghttp2
that is the same for both. CPU is the server process's own count, user and system.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc
import grpc.aio
import ngh2

from kvorum import loop
from store.listener import Server

SERVERS: Final = ("listener", "grpc.aio")
SERVICE: Final = "kvorum.bench.Echo"
PAYLOAD: Final = bytes(300)
_MESSAGE: Final = b"\0" + len(PAYLOAD).to_bytes(4, "big") + PAYLOAD
_WINDOW_BYTES: Final = 16 * 1024 * 1024


# -- the servers ------------------------------------------------------------------------------------------


async def _unary(request: bytes, _context: object) -> bytes:
    return request


async def _bidi(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


def _handlers() -> dict[str, Any]:
    return {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Bidi": grpc.stream_stream_rpc_method_handler(_bidi),
    }


async def serve(kind: str) -> int:
    """Serve until standard input ends; every line on it is answered with the CPU seconds used so far."""
    async with contextlib.AsyncExitStack() as stack:
        if kind == "listener":
            server = Server()
            server.add_registered_method_handlers(SERVICE, _handlers())
            port = await server.listen("127.0.0.1", 0)
            stack.push_async_callback(server.stop)
        else:
            reference = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
            reference.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers()),))
            port = reference.add_insecure_port("127.0.0.1:0")
            await reference.start()
            stack.push_async_callback(reference.stop, None)
        print(port, flush=True)
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer
        )
        while await lines.readline():
            print(time.process_time(), flush=True)
    return 0


# -- the load ---------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Keeps a number of calls, or of messages on one stream, in flight until it is told to stop."""

    def __init__(self, in_flight: int, bidi: bool) -> None:
        self.latencies_s: list[float] = []
        self.measuring = False
        self._in_flight = in_flight
        self._bidi = bidi
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(peer_max_concurrent_streams=1000))
        self._began: dict[int, float] = {}
        self._partial = 0
        self._transport: asyncio.Transport | None = None
        method = "Bidi" if bidi else "Unary"
        self._headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/{SERVICE}/{method}".encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
        self._h2.set_local_window_size(_WINDOW_BYTES)
        if self._bidi:
            stream = self._h2.send_request(self._headers)
            for _ in range(self._in_flight):
                self._send(stream)
        else:
            for _ in range(self._in_flight):
                self._call()
        self._transport.write(self._h2.data_to_send())

    def _call(self) -> None:
        stream = self._h2.send_request(self._headers)
        self._began[stream] = time.perf_counter()
        self._h2.send_data(stream, _MESSAGE, end_stream=True)

    def _send(self, stream: int) -> None:
        self._h2.send_data(stream, _MESSAGE)

    def data_received(self, data: bytes) -> None:
        self._h2.receive_data(data)
        now = time.perf_counter()
        for event in self._h2.events():
            if isinstance(event, ngh2.StreamClosed):
                self._count(now - self._began.pop(event.stream_id, now))
                self._call()
            elif self._bidi and isinstance(event, ngh2.DataReceived):
                whole, self._partial = divmod(self._partial + len(event.data), len(_MESSAGE))
                for _ in range(whole):
                    self._count(0.0)
                    self._send(event.stream_id)
        assert self._transport is not None
        self._transport.write(self._h2.data_to_send())

    def _count(self, latency_s: float) -> None:
        if self.measuring:
            self.latencies_s.append(latency_s)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@dataclass(frozen=True, slots=True)
class Measured:
    """One load against one server."""

    calls_per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


@dataclass
class _Process:
    process: asyncio.subprocess.Process
    port: int

    async def cpu_s(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"cpu\n")
        return float(await self.process.stdout.readline())


@contextlib.asynccontextmanager
async def _running(kind: str) -> AsyncIterator[_Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "kvorum.bench.rpc",
        kind,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for this process, which then ends the server
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield _Process(process, int(await process.stdout.readline()))
    finally:
        process.stdin.close()
        await process.wait()


async def _load(server: _Process, in_flight: int, bidi: bool, seconds: float) -> Measured:
    event_loop = asyncio.get_running_loop()
    _, client = await event_loop.create_connection(lambda: Client(in_flight, bidi), "127.0.0.1", server.port)
    await asyncio.sleep(min(1.0, seconds / 4))  # the interpreter specialises, connections settle
    cpu_before, began = await server.cpu_s(), time.perf_counter()
    client.measuring = True
    await asyncio.sleep(seconds)
    client.measuring = False
    cpu_s, elapsed_s = await server.cpu_s() - cpu_before, time.perf_counter() - began
    client.close()
    times = sorted(client.latencies_s) or [0.0]
    return Measured(
        len(times) / elapsed_s,
        cpu_s / len(times) * 1e6,
        times[len(times) // 2] * 1e3,
        times[int(len(times) * 0.99)] * 1e3,
    )


async def measure(in_flight: int, seconds: float) -> dict[tuple[str, str], Measured]:
    """Every load against every server, one after the other."""
    results = {}
    for kind in SERVERS:
        async with _running(kind) as server:
            results[kind, "unary"] = await _load(server, in_flight, False, seconds)
            results[kind, "bidi"] = await _load(server, in_flight, True, seconds)
    return results


def report(results: dict[tuple[str, str], Measured], in_flight: int) -> list[str]:
    """The table, and the two ratios."""
    lines = [f"{'server':<10} {'load':<6} {'calls/s':>9} {'server CPU us':>14} {'p50 ms':>8} {'p99 ms':>8}"]
    for (kind, load), result in results.items():
        latency = f"{result.p50_ms:8.2f} {result.p99_ms:8.2f}" if load == "unary" else f"{'-':>8} {'-':>8}"
        lines.append(f"{kind:<10} {load:<6} {result.calls_per_s:9.0f} {result.cpu_us:14.1f} {latency}")
    for load in ("unary", "bidi"):
        ratio = results["grpc.aio", load].cpu_us / results["listener", load].cpu_us
        lines.append(f"{load}: grpc.aio costs {ratio:.1f} times as much CPU ({in_flight} in flight)")
    return lines


async def run(args: Namespace, stop: asyncio.Event) -> int:
    results = await measure(args.in_flight, args.seconds)
    print("\n".join(report(results, args.in_flight)))
    return 0


def main(arguments: Sequence[str]) -> int:
    """The server process; grpc.aio runs on the loop of asyncio, its usual one."""
    if arguments[0] == "grpc.aio":
        return asyncio.run(serve(arguments[0]))
    return loop.run(lambda _stop: serve(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
