"""A client of one watch stream, without a network between."""

from __future__ import annotations

import asyncio
from collections import deque

from store.etcdpb import rpc_pb2
from store.machine import Machine
from store.watch.stream import WatchStream
from store.wire import field_bytes, field_varint

WAIT_S = 5.0


class Client:
    def __init__(self, machine: Machine, fragment_bytes: int = 1 << 21) -> None:
        self.stream = WatchStream(
            machine.hub,
            lambda: machine.revision,
            lambda revision: field_bytes(b"\x0a", field_varint(b"\x18", revision)),
            fragment_bytes,
        )
        self._parts: deque[bytes] = deque()

    async def create(self, key: bytes, end: bytes = b"", **options: object) -> rpc_pb2.WatchResponse:
        """Create a watcher and return the answer to that."""
        create = rpc_pb2.WatchCreateRequest(key=key, range_end=end, **options)  # type: ignore[arg-type]
        await self.stream.handle(rpc_pb2.WatchRequest(create_request=create))
        return await self.receive()

    async def cancel(self, watch_id: int) -> None:
        request = rpc_pb2.WatchCancelRequest(watch_id=watch_id)
        await self.stream.handle(rpc_pb2.WatchRequest(cancel_request=request))

    async def progress(self) -> None:
        request = rpc_pb2.WatchProgressRequest()
        await self.stream.handle(rpc_pb2.WatchRequest(progress_request=request))

    async def receive(self) -> rpc_pb2.WatchResponse:
        async with asyncio.timeout(WAIT_S):
            while not self._parts:
                self._parts.extend(await self.stream.next())
        return rpc_pb2.WatchResponse.FromString(self._parts.popleft())

    async def events(self, count: int) -> list[tuple[int, str, bytes]]:
        """The next ``count`` events as (revision, PUT or DELETE, key)."""
        out: list[tuple[int, str, bytes]] = []
        while len(out) < count:
            out += summary(await self.receive())
        return out

    async def is_silent(self, machine: Machine) -> bool:
        """Nothing is waiting after the catch-up task has had its turns."""
        for _ in range(3):
            await machine.flush()
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0.02):
                await self.receive()
        except TimeoutError:
            return True
        return False


def summary(response: rpc_pb2.WatchResponse) -> list[tuple[int, str, bytes]]:
    return [(event.kv.mod_revision, "DELETE" if event.type else "PUT", event.kv.key) for event in response.events]
