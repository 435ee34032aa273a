"""Mutated HTTP/2 conversations against a connection without a socket.

``python -m tests.listener.fuzz --frames 200000 --seed 1`` runs longer than the suite does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import struct
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from store.listener import Limits, Server
from store.listener.http2 import Http2Connection
from tests.listener import raw
from tests.listener.echo import SERVICE
from tests.listener.raw import frame

MAX_FRAMES = 40


class MemoryTransport(asyncio.Transport):
    """Counts what is written, and knows when it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += len(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes but what is handed over."""

    def resume_reading(self) -> None:
        """See pause_reading."""

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def conversation(rng: random.Random) -> list[bytes]:
    """Frames that make sense, in an order that does."""
    settings = b"" if rng.random() < 0.5 else struct.pack(">HI", 4, rng.choice((0, 1, 70_000)))
    frames = [frame(raw.SETTINGS, 0, 0, settings)]
    stream = 1
    for _ in range(rng.randrange(1, 6)):
        method = rng.choice(("Unary", "Bidi", "ServerStream", "ClientStream", "Nothing"))
        body = rng.choice((b"hello", b"3 10", b"abort 5 x", b"metadata", b"after 2", b"wait"))
        message = raw.message(body)
        extra = rng.choice(([], [(b"grpc-timeout", b"1m")], [(b"grpc-encoding", b"gzip")], [(b"a-bin", b"AAE")]))
        frames.append(frame(raw.HEADERS, raw.END_HEADERS, stream, raw.request(method, extra)))
        frames += [frame(raw.DATA, 0, stream, message)] * rng.randrange(0, 3)
        frames.append(frame(raw.DATA, raw.END_STREAM, stream, message if rng.random() < 0.8 else b""))
        increment = struct.pack(">I", rng.randrange(1, 1 << 20))
        noise = (
            frame(raw.WINDOW_UPDATE, 0, rng.choice((0, stream)), increment),
            frame(raw.PING, 0, 0, bytes(8)),
            frame(raw.RST_STREAM, 0, stream, b"\0\0\0\x08"),
            frame(raw.SETTINGS, raw.ACK, 0),
        )
        frames += [rng.choice(noise)] * rng.randrange(0, 3)
        stream += 2
    return frames


def mutate(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    """Change a few bytes, lengths, kinds, streams; drop, repeat and swap frames; cut and insert."""
    frames = list(frames)
    for _ in range(rng.randrange(0, 5)):
        at = rng.randrange(len(frames))
        victim = bytearray(frames[at])
        if len(victim) < 9:
            continue
        choice = rng.randrange(8)
        if choice == 0:
            victim[rng.randrange(len(victim))] = rng.randrange(256)
        elif choice == 1:
            victim[0:3] = rng.randrange(1 << rng.choice((4, 8, 14, 24))).to_bytes(3, "big")
        elif choice == 2:
            victim[3:5] = bytes((rng.randrange(12), rng.randrange(256)))
        elif choice == 3:
            victim[5:9] = rng.choice((0, 1, 2, 3, 7, 0x7FFFFFFF, 0xFFFFFFFF)).to_bytes(4, "big")
        elif choice == 4:
            victim = victim[: rng.randrange(len(victim))]
        elif choice == 5:
            victim += rng.randbytes(rng.randrange(1, 30))
        elif choice == 6:
            frames.insert(rng.randrange(len(frames)), bytes(victim))
        else:
            frames[at], frames[0] = frames[0], frames[at]
            continue
        frames[at] = bytes(victim)
    return frames[:MAX_FRAMES]


async def _unary(request: bytes, context: Any) -> bytes:
    if request == b"wait":
        await asyncio.Event().wait()
    if request == b"metadata":
        await context.send_initial_metadata((("a", "b"), ("c-bin", b"d")))
    if request.startswith(b"abort"):
        await context.abort(grpc.StatusCode.ABORTED, "asked for", (("t-bin", request),))
    return request


async def _stream(request: bytes, context: Any) -> None:
    for _ in range(5):
        await context.write(request * 3000)


async def _bidi(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


async def _count(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return b"%d" % len([request async for request in requests])


HANDLERS: dict[str, Any] = {
    "Unary": grpc.unary_unary_rpc_method_handler(_unary),
    "ServerStream": grpc.unary_stream_rpc_method_handler(_stream),
    "ClientStream": grpc.stream_unary_rpc_method_handler(_count),
    "Bidi": grpc.stream_stream_rpc_method_handler(_bidi),
}


@dataclass
class Outcome:
    frames: int = 0
    connections: int = 0
    refused: int = 0
    slowest_s: float = 0.0


async def fuzz(frames: int, seed: int) -> Outcome:
    """Feed at least so many frames; any exception but the protocol's own refusals escapes from here."""
    rng, outcome = random.Random(seed), Outcome()
    server = Server(Limits(max_receive_message_bytes=1 << 20))
    server.add_registered_method_handlers(SERVICE, HANDLERS)
    while outcome.frames < frames:
        transport = MemoryTransport()
        connection = Http2Connection(server, transport)
        parts = mutate(rng, conversation(rng))
        data = raw.PREFACE + b"".join(parts)
        began = time.perf_counter()
        position = 0
        while position < len(data) and not transport.closed:
            size = rng.choice((1, 7, 50, 500, 5000))
            connection.data_received(data[position : position + size])
            position += size
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
        outcome.slowest_s = max(outcome.slowest_s, time.perf_counter() - began)
        outcome.refused += transport.closed
        connection.connection_lost(None)
        for call in list(connection.running):
            task = call.cancel("the end")
            if task is not None:
                await asyncio.wait((task,))
        outcome.frames += len(parts)
        outcome.connections += 1
    await server.stop()
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level="ERROR")
    problems: list[dict[str, Any]] = []

    async def run() -> Outcome:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
        return await fuzz(arguments.frames, arguments.seed)

    sys.stdout.write(f"{asyncio.run(run())}, {len(problems)} problems {problems[:3]}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
