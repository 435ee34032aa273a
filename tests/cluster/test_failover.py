"""Nothing acknowledged is lost when the leader is killed, and writes go on soon."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import grpc
import pytest

from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2, rpc_pb2_grpc
from tests.cluster.harness import LocalCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

RESUME_S = 3.0


@dataclass
class Writer:
    """Writes numbered keys one after another. ``acked`` maps a number to the revision of its answer."""

    endpoints: list[str]
    acked: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    last_ack: float = 0.0
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        client = EtcdClient(self.endpoints, dial_timeout_s=0.5)
        number = 0
        try:
            while True:
                number += 1
                try:
                    put = rpc_pb2.PutRequest(key=b"n/%06d" % number, value=b"%d" % number)
                    answer = await client.put(put, timeout_s=1.0)
                except ClientError:
                    self.unknown.add(number)  # applied or not: both are allowed
                    continue
                self.acked[number] = answer.header.revision
                self.last_ack = time.monotonic()
                self.progress.set()
        finally:
            await client.aclose()

    async def next_ack(self, timeout_s: float) -> float:
        """When the next write after now was acknowledged."""
        self.progress.clear()
        async with asyncio.timeout(timeout_s):
            await self.progress.wait()
        return self.last_ack


async def test_every_acknowledged_write_survives_three_kills_of_the_leader(own_cluster: LocalCluster) -> None:
    writer = Writer(own_cluster.endpoints)
    task = asyncio.create_task(writer.run())
    try:
        await writer.next_ack(5)
        for _ in range(3):
            leader = await asyncio.to_thread(own_cluster.leader)
            await asyncio.to_thread(own_cluster.command, "kill-member", leader)
            killed = time.monotonic()
            resumed = await writer.next_ack(RESUME_S + 2)
            assert resumed - killed < RESUME_S
            await asyncio.to_thread(own_cluster.command, "start-member", leader)
            await writer.next_ack(5)
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert len(writer.acked) > 100
    digests = {await _check_member(url, writer) for url in own_cluster.endpoints}
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
