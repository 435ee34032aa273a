"""A client that writes numbered keys and remembers what was acknowledged, and the check that it is all there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import grpc

from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2, rpc_pb2_grpc


@dataclass
class Writer:
    """Writes numbered keys one after another. ``acked`` maps a number to the revision of its answer."""

    endpoints: list[str]
    acked: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    last_ack: float = 0.0
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def finish(self) -> None:
        """End writing before the block ends; nothing is under way when this returns."""
        self.stop.set()
        await self.ended.wait()

    async def run(self) -> None:
        client = EtcdClient(self.endpoints, dial_timeout_s=0.5)
        number = 0
        try:
            while not self.stop.is_set():
                number += 1
                self.unknown.add(number)  # applied or not, until it is acknowledged: both are allowed
                try:
                    put = rpc_pb2.PutRequest(key=b"n/%06d" % number, value=b"%d" % number)
                    answer = await client.put(put, timeout_s=1.0)
                except ClientError:
                    continue
                self.unknown.discard(number)
                self.acked[number] = answer.header.revision
                self.last_ack = time.monotonic()
                self.progress.set()
        finally:
            self.ended.set()
            await client.aclose()

    async def next_ack(self, timeout_s: float) -> float:
        """When the next write after now was acknowledged."""
        self.progress.clear()
        async with asyncio.timeout(timeout_s):
            await self.progress.wait()
        return self.last_ack


@contextlib.asynccontextmanager
async def writing(endpoints: Iterable[str]) -> AsyncIterator[Writer]:
    """Writes go on inside the block."""
    writer = Writer(list(endpoints))
    task = asyncio.create_task(writer.run())
    try:
        await writer.next_ack(10)
        yield writer
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def check_members(endpoints: Iterable[str], writer: Writer) -> None:
    """Every acknowledged write is on every member with its revision, and the members are equal."""
    digests = {await _check_member(url, writer) for url in endpoints}
    assert len(digests) == 1, "members differ"


async def _check_member(url: str, writer: Writer) -> tuple[int, int, int]:
    """Every acknowledged key is on this member with its revision; returns its revision and HashKV."""
    client = EtcdClient([url])
    try:
        await client.range(rpc_pb2.RangeRequest(key=b"n/", limit=1))  # linearizable: it has caught up
        request = rpc_pb2.RangeRequest(key=b"n/", range_end=b"n0", serializable=True)
        answer = await client.range(request)
    finally:
        await client.aclose()
    found = {int(kv.value): kv.mod_revision for kv in answer.kvs}
    for number, revision in writer.acked.items():
        assert found.get(number) == revision, f"write {number} of revision {revision} is lost on {url}"
    assert set(found) <= set(writer.acked) | writer.unknown
    async with grpc.aio.insecure_channel(url.removeprefix("http://")) as channel:
        stub = rpc_pb2_grpc.MaintenanceStub(channel)  # type: ignore[no-untyped-call]
        digest = await stub.HashKV(rpc_pb2.HashKVRequest())
    return answer.header.revision, digest.hash, digest.compact_revision
