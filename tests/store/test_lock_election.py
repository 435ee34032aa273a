"""The Lock and Election services: who owns, who waits, and who leaves the line (contract §13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from store.etcdpb import election_pb2, election_pb2_grpc, lock_pb2, lock_pb2_grpc, rpc_pb2, rpc_pb2_grpc
from tests.snapshot.etcd import etcdctl, program
from tests.store.loopback import Node, serving
from tests.store.watching import Client

WAIT_S = 5.0


class Api:
    def __init__(self, channel: grpc.aio.Channel, node: Node) -> None:
        self.node = node
        self.kv: Any = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
        self.lease: Any = rpc_pb2_grpc.LeaseStub(channel)  # type: ignore[no-untyped-call]
        self.locks: Any = lock_pb2_grpc.LockStub(channel)  # type: ignore[no-untyped-call]
        self.elections: Any = election_pb2_grpc.ElectionStub(channel)  # type: ignore[no-untyped-call]

    async def grant(self, lease_id: int, ttl_s: int = 600) -> int:
        await self.lease.LeaseGrant(rpc_pb2.LeaseGrantRequest(ID=lease_id, TTL=ttl_s))
        return lease_id

    def lock(self, lease: int, name: bytes = b"l") -> Any:
        return self.locks.Lock(lock_pb2.LockRequest(name=name, lease=lease))

    def campaign(self, lease: int, value: bytes = b"v", name: bytes = b"e") -> Any:
        return self.elections.Campaign(election_pb2.CampaignRequest(name=name, lease=lease, value=value))

    async def keys(self, prefix: bytes) -> list[bytes]:
        request = rpc_pb2.RangeRequest(key=prefix, range_end=prefix + b"\xff")
        return [pair.key for pair in (await self.kv.Range(request)).kvs]

    async def until_keys(self, prefix: bytes, *expected: bytes) -> None:
        """Wait, change by change, until these are the keys under the prefix."""
        watcher = Client(self.node.machine)
        await watcher.create(prefix, prefix + b"\xff")
        try:
            while await self.keys(prefix) != list(expected):
                await watcher.receive()
        finally:
            watcher.stream.close()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with (
        serving(tmp_path / "state.db") as node,
        grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel,
    ):
        yield Api(channel, node)


async def soon(call: Awaitable[Any]) -> Any:
    async with asyncio.timeout(WAIT_S):
        return await call


async def refusal(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_the_key_is_the_name_and_the_lease_in_hex(api: Api) -> None:
    held = await soon(api.lock(await api.grant(0xAB)))
    assert (held.key, held.header.revision) == (b"l/ab", 2)


async def test_a_lock_without_lease_gets_one_of_a_minute(api: Api) -> None:
    held = await soon(api.lock(0))
    (lease,) = api.node.machine.state.leases.all()
    assert (lease.ttl_s, held.key) == (60, b"l/%x" % lease.id)


async def test_locking_again_with_the_same_lease_changes_nothing(api: Api) -> None:
    await api.grant(1)
    first = await soon(api.lock(1))
    again = await soon(api.lock(1))
    assert (again.key, again.header.revision) == (first.key, first.header.revision)


async def test_the_lock_goes_round_in_order_of_arrival(api: Api) -> None:
    order: list[int] = []

    async def take(lease: int) -> None:
        held = await soon(api.lock(lease))
        order.append(lease)
        await api.locks.Unlock(lock_pb2.UnlockRequest(key=held.key))

    leases = [await api.grant(lease) for lease in (3, 1, 2)]
    first = await soon(api.lock(9 if await api.grant(9) else 0))
    tasks = []
    for i, lease in enumerate(leases):
        tasks.append(asyncio.create_task(take(lease)))
        await api.until_keys(b"l/", *sorted([b"l/9", *(b"l/%x" % known for known in leases[: i + 1])]))
    assert order == []
    await api.locks.Unlock(lock_pb2.UnlockRequest(key=first.key))
    await soon(asyncio.gather(*tasks))
    assert order == leases
    assert await api.keys(b"l/") == []


async def test_a_lock_is_freed_when_the_lease_of_its_owner_ends(api: Api) -> None:
    await soon(api.lock(await api.grant(1)))
    waiting = asyncio.ensure_future(api.lock(await api.grant(2)))
    await api.until_keys(b"l/", b"l/1", b"l/2")
    await api.lease.LeaseRevoke(rpc_pb2.LeaseRevokeRequest(ID=1))
    assert (await soon(waiting)).key == b"l/2"


async def test_who_gives_up_waiting_leaves_the_line(api: Api) -> None:
    await soon(api.lock(await api.grant(1)))
    waiting = api.lock(await api.grant(2))
    await api.until_keys(b"l/", b"l/1", b"l/2")
    waiting.cancel()
    await api.until_keys(b"l/", b"l/1")
    assert api.node.machine.hub.statistics()["synced"] == 0


async def test_a_place_whose_lease_ended_while_waiting_is_no_lock(api: Api) -> None:
    held = await soon(api.lock(await api.grant(1)))
    waiting = api.lock(await api.grant(2))
    await api.until_keys(b"l/", b"l/1", b"l/2")
    await api.lease.LeaseRevoke(rpc_pb2.LeaseRevokeRequest(ID=2))
    await api.locks.Unlock(lock_pb2.UnlockRequest(key=held.key))
    assert await refusal(waiting) == (grpc.StatusCode.UNKNOWN, "mutex: session is expired")


async def test_waiting_survives_a_compaction(api: Api) -> None:
    held = await soon(api.lock(await api.grant(1)))
    waiting = asyncio.ensure_future(api.lock(await api.grant(2)))
    await api.until_keys(b"l/", b"l/1", b"l/2")
    for _ in range(5):
        last = await api.kv.Put(rpc_pb2.PutRequest(key=b"x"))
    await api.kv.Compact(rpc_pb2.CompactionRequest(revision=last.header.revision, physical=True))
    await api.locks.Unlock(lock_pb2.UnlockRequest(key=held.key))
    assert (await soon(waiting)).key == b"l/2"


async def test_errors_have_the_code_unknown_as_in_etcd(api: Api) -> None:
    unknown = grpc.StatusCode.UNKNOWN
    assert await refusal(api.lock(404)) == (unknown, "etcdserver: requested lease not found")
    assert await refusal(api.campaign(404)) == (unknown, "etcdserver: requested lease not found")
    missing = (unknown, '"leader" field must be provided')
    assert await refusal(api.elections.Resign(election_pb2.ResignRequest())) == missing
    assert await refusal(api.elections.Proclaim(election_pb2.ProclaimRequest(value=b"x"))) == missing
    nobody = election_pb2.LeaderRequest(name=b"e")
    assert await refusal(api.elections.Leader(nobody)) == (unknown, "election: no leader")
    stranger = election_pb2.LeaderKey(key=b"e/1", rev=5, lease=0)
    proclaim = election_pb2.ProclaimRequest(leader=stranger, value=b"x")
    assert await refusal(api.elections.Proclaim(proclaim)) == (unknown, "election: not leader")
    await api.elections.Resign(election_pb2.ResignRequest(leader=stranger))
    await api.locks.Unlock(lock_pb2.UnlockRequest(key=b"never/there"))


async def test_the_next_in_line_leads_after_a_resignation(api: Api) -> None:
    first = await soon(api.campaign(await api.grant(1), b"one"))
    assert (first.leader.key, first.leader.rev, first.leader.lease) == (b"e/1", first.header.revision, 1)
    second = asyncio.ensure_future(api.campaign(await api.grant(2), b"two"))
    await api.until_keys(b"e/", b"e/1", b"e/2")
    found = await api.elections.Leader(election_pb2.LeaderRequest(name=b"e"))
    assert (found.kv.key, found.kv.value) == (b"e/1", b"one")
    await api.elections.Resign(election_pb2.ResignRequest(leader=first.leader))
    assert (await soon(second)).leader.key == b"e/2"


async def test_campaigning_again_changes_the_value_and_keeps_the_place(api: Api) -> None:
    first = await soon(api.campaign(await api.grant(1), b"one"))
    again = await soon(api.campaign(1, b"other"))
    assert again.leader == first.leader
    found = await api.elections.Leader(election_pb2.LeaderRequest(name=b"e"))
    assert (found.kv.value, found.kv.create_revision) == (b"other", first.leader.rev)


async def test_observers_see_every_leader_and_every_value(api: Api) -> None:
    seen = api.elections.Observe(election_pb2.LeaderRequest(name=b"e"))
    first = await soon(api.campaign(await api.grant(1), b"one"))
    assert (await soon(seen.read())).kv.value == b"one"
    await api.elections.Proclaim(election_pb2.ProclaimRequest(leader=first.leader, value=b"more"))
    response = await soon(seen.read())
    assert (response.kv.value, response.header.revision) == (b"more", response.kv.mod_revision)
    second = asyncio.ensure_future(api.campaign(await api.grant(2), b"two"))
    await api.until_keys(b"e/", b"e/1", b"e/2")
    await api.elections.Resign(election_pb2.ResignRequest(leader=first.leader))
    await soon(second)
    assert (await soon(seen.read())).kv.value == b"two"
    seen.cancel()


async def test_a_candidate_who_is_cancelled_leaves_the_line(api: Api) -> None:
    await soon(api.campaign(await api.grant(1)))
    waiting = api.campaign(await api.grant(2))
    await api.until_keys(b"e/", b"e/1", b"e/2")
    waiting.cancel()
    await api.until_keys(b"e/", b"e/1")


@pytest.mark.process
async def test_etcdctl_runs_a_command_under_a_lock_and_leaves_no_key(api: Api) -> None:
    done = await etcdctl(f"127.0.0.1:{api.node.port}", "lock", "l", "echo", "held")
    assert (done.code, done.out) == (0, "held\n")
    assert await api.keys(b"l") == []


@pytest.mark.process
async def test_etcdctl_waits_for_a_lock_of_the_service_and_wins_elections(api: Api) -> None:
    endpoint = f"127.0.0.1:{api.node.port}"
    held = await soon(api.lock(await api.grant(1)))
    waiting = asyncio.ensure_future(etcdctl(endpoint, "lock", "l", "echo", "mine"))
    await asyncio.wait({waiting}, timeout=0.5)
    assert not waiting.done()
    await api.locks.Unlock(lock_pb2.UnlockRequest(key=held.key))
    assert (await soon(waiting)).out == "mine\n"
    elect = await asyncio.create_subprocess_exec(
        program("etcdctl"), "--endpoints", endpoint, "elect", "e", "me", stdout=asyncio.subprocess.PIPE
    )  # fmt: skip
    assert elect.stdout is not None
    try:
        key = (await soon(elect.stdout.readline())).rstrip(b"\n")
        assert await soon(elect.stdout.readline()) == b"me\n"
        found = await api.elections.Leader(election_pb2.LeaderRequest(name=b"e"))
        assert (found.kv.key, found.kv.value) == (key, b"me")
    finally:
        elect.terminate()
        await elect.wait()
