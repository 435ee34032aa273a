"""Nothing acknowledged is lost when the leader is killed, and writes go on soon."""

from __future__ import annotations

import asyncio
import time

import pytest

from store.api.context import READY_WAIT_S
from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2
from tests.cluster.harness import LocalCluster
from tests.cluster.writing import check_members, writing

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

RESUME_S = 3.0


async def test_every_acknowledged_write_survives_three_kills_of_the_leader(own_cluster: LocalCluster) -> None:
    async with writing(own_cluster.endpoints) as writer:
        for _ in range(3):
            leader = await asyncio.to_thread(own_cluster.leader)
            await asyncio.to_thread(own_cluster.command, "kill-member", leader)
            killed = time.monotonic()
            resumed = await writer.next_ack(RESUME_S + 2)
            assert resumed - killed < RESUME_S
            await asyncio.to_thread(own_cluster.command, "start-member", leader)
            await writer.next_ack(5)
    assert len(writer.acked) > 100
    await check_members(own_cluster.endpoints, writer)


async def test_a_rolling_restart_of_all_members_loses_nothing(own_cluster: LocalCluster) -> None:
    async with writing(own_cluster.endpoints) as writer:
        for name in ("m1", "m2", "m3"):
            await asyncio.to_thread(own_cluster.command, "stop-member", name)
            await writer.next_ack(RESUME_S)
            await asyncio.to_thread(own_cluster.command, "start-member", name)
            await asyncio.to_thread(own_cluster.leader)
            await writer.next_ack(RESUME_S)
    await check_members(own_cluster.endpoints, writer)


async def test_a_member_started_anew_shows_its_state_when_a_leader_has_told_how_far_it_was(
    own_cluster: LocalCluster,
) -> None:
    """It may have shown more before it was killed than its log knows to be committed."""
    await asyncio.to_thread(own_cluster.leader)
    others = ("m1", "m3")
    client = EtcdClient([own_cluster.layout.member("m2").client_url])
    try:
        put = await client.put(rpc_pb2.PutRequest(key=b"k", value=b"v"), timeout_s=10)
        await asyncio.to_thread(own_cluster.command, "kill-member", "m2")
        for name in others:
            await asyncio.to_thread(own_cluster.command, "pause-member", name)
        starting = asyncio.create_task(asyncio.to_thread(own_cluster.start_unchecked, "m2"))
        await _answers_status(client)
        read = asyncio.create_task(client.range(rpc_pb2.RangeRequest(key=b"k", serializable=True), timeout_s=30))
        done, _ = await asyncio.wait([read], timeout=1.0)
        assert not done, "it was answered while nobody could say how far the member had been"
        for name in others:
            await asyncio.to_thread(own_cluster.command, "resume-member", name)
        assert (await read).header.revision >= put.header.revision
        assert (await starting).code == 0
    finally:
        await client.aclose()


async def test_a_member_started_without_the_others_serves_its_state_after_five_seconds(
    own_cluster: LocalCluster,
) -> None:
    await asyncio.to_thread(own_cluster.leader)
    client = EtcdClient([own_cluster.layout.member("m2").client_url])
    try:
        await client.put(rpc_pb2.PutRequest(key=b"k", value=b"v"), timeout_s=10)
        await asyncio.to_thread(own_cluster.leader)
        for name in ("m1", "m2", "m3"):
            await asyncio.to_thread(own_cluster.command, "kill-member", name)
        starting = asyncio.create_task(asyncio.to_thread(own_cluster.start_unchecked, "m2"))
        await _answers_status(client)
        began = time.monotonic()
        answer = await client.range(rpc_pb2.RangeRequest(key=b"k", serializable=True), timeout_s=30)
        assert READY_WAIT_S - 3 < time.monotonic() - began < READY_WAIT_S + 2
        assert answer.header.member_id
        await asyncio.to_thread(own_cluster.command, "kill-member", "m2")
        await starting
    finally:
        await client.aclose()


async def _answers_status(client: EtcdClient) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await client.status(timeout_s=1)
            except ClientError:
                await asyncio.sleep(0.1)  # nothing tells when a process listens
            else:
                return


async def test_a_leader_that_was_frozen_serves_no_stale_linearizable_read(own_cluster: LocalCluster) -> None:
    leader = await asyncio.to_thread(own_cluster.leader)
    layout = own_cluster.layout
    frozen_url = layout.member(leader).client_url
    others = [member.client_url for member in layout.members if member.name != leader]
    frozen, alive = EtcdClient([frozen_url]), EtcdClient(others)
    try:
        await alive.put(rpc_pb2.PutRequest(key=b"k", value=b"old"), timeout_s=10)
        await frozen.range(rpc_pb2.RangeRequest(key=b"k"))
        await asyncio.to_thread(own_cluster.command, "pause-member", leader)
        reads = [asyncio.create_task(_read(frozen)) for _ in range(20)]  # wait in the frozen member's sockets
        deadline = time.monotonic() + 5.0
        while True:
            try:
                await alive.put(rpc_pb2.PutRequest(key=b"k", value=b"new"), timeout_s=2)
                break
            except ClientError:
                assert time.monotonic() < deadline, "no new leader"
        await asyncio.sleep(max(0.0, deadline - time.monotonic()))  # the freeze is what is tested: five seconds
        await asyncio.to_thread(own_cluster.command, "resume-member", leader)
        reads += [asyncio.create_task(_read(frozen)) for _ in range(20)]
        answers = await asyncio.gather(*reads)
    finally:
        await frozen.aclose()
        await alive.aclose()
    assert b"old" not in answers
    assert b"new" in answers


async def _read(client: EtcdClient) -> bytes:
    """The value of k, or nothing when the read was refused: a refusal is not a stale answer."""
    try:
        answer = await client.range(rpc_pb2.RangeRequest(key=b"k"), timeout_s=12)
    except ClientError:
        return b""
    return answer.kvs[0].value
