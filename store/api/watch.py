"""The Watch service: a client's stream connected to a store.watch.stream.WatchStream (contract §6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from typing import Any

from store.api.context import ApiContext
from store.etcdpb import rpc_pb2
from store.watch.stream import WatchStream
from store.wire import Encoded

PROGRESS_JITTER: float = 0.1


class WatchServicer:
    def __init__(self, api: ApiContext) -> None:
        self._api = api

    async def Watch(self, requests: AsyncIterator[rpc_pb2.WatchRequest], context: Any) -> None:
        """Serve one stream until the client ends it. Its half-close ends nothing: watchers go on."""
        api = self._api
        stream = WatchStream(
            api.machine.hub,
            lambda: api.machine.revision,
            api.header_field,
            api.options.max_message_bytes,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_read(stream, requests))
                tasks.create_task(_tick(stream, api.options.watch_progress_interval_s))
                while True:
                    await _write(context, await stream.next())
        finally:
            stream.close()


async def _write(context: Any, parts: Iterable[bytes]) -> None:
    """All of a batch at once where the server can do that: the listener can, grpc.aio cannot."""
    write_many = getattr(context, "write_many", None)
    if write_many is not None and isinstance(parts, list):
        await write_many(parts)
        return
    for part in parts:
        await context.write(Encoded(part))


async def _read(stream: WatchStream, requests: AsyncIterator[rpc_pb2.WatchRequest]) -> None:
    async for request in requests:
        await stream.handle(request)


async def _tick(stream: WatchStream, interval_s: float) -> None:
    # Jitter keeps the ticks of many streams apart.
    spread = 1 + PROGRESS_JITTER * random.random()
    while True:
        await asyncio.sleep(interval_s * spread)
        stream.progress_tick()
