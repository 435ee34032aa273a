"""The original: etcd and its tools as processes, and everything a store holds as one comparable value."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from kvorum.bench.systems import find_tool
from kvorum.layout import UserError
from store.etcdpb import auth_pb2, rpc_pb2, rpc_pb2_grpc
from tests.cluster import harness
from tests.cluster.harness import Finished, run
from tests.ports import free_base

CALL_S = 30.0
PUTS_PER_TXN = 100


def program(name: str) -> str:
    """The binary of etcd, etcdctl or etcdutl, or skip the test where it is missing."""
    try:
        return find_tool(name)
    except UserError:
        pytest.skip(f"{name} is not installed here")


async def etcdutl(*arguments: str) -> Finished:
    return await asyncio.to_thread(run, program("etcdutl"), *arguments)


async def etcdctl(endpoint: str, *arguments: str) -> Finished:
    command = (program("etcdctl"), "--endpoints", endpoint, *arguments)
    return await asyncio.to_thread(run, *command, env={"ETCDCTL_API": "3"})


async def kvorum(*arguments: str) -> Finished:
    """Beside the loop, which may be serving what the command asks for."""
    return await asyncio.to_thread(harness.kvorum, *arguments)


@contextlib.contextmanager
def etcd(directory: Path, *flags: str) -> Iterator[str]:
    """A running etcd of one member on ``directory``; its client endpoint."""
    base = free_base(2)
    client, peer = f"http://127.0.0.1:{base}", f"http://127.0.0.1:{base + 1}"
    command = [
        program("etcd"), "--data-dir", str(directory), "--log-level", "error", "--unsafe-no-fsync",
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{base}"
    finally:
        process.kill()
        process.wait()


class Stubs:
    """Every service behind one endpoint."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.kv: Any = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
        self.lease: Any = rpc_pb2_grpc.LeaseStub(channel)  # type: ignore[no-untyped-call]
        self.auth: Any = rpc_pb2_grpc.AuthStub(channel)  # type: ignore[no-untyped-call]
        self.watch: Any = rpc_pb2_grpc.WatchStub(channel)  # type: ignore[no-untyped-call]
        self.maintenance: Any = rpc_pb2_grpc.MaintenanceStub(channel)  # type: ignore[no-untyped-call]

    async def call(self, method: Any, request: Any) -> Any:
        return await method(request, wait_for_ready=True, timeout=CALL_S)


@contextlib.asynccontextmanager
async def stubs(endpoint: str) -> AsyncIterator[Stubs]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(endpoint, options=options) as channel:
        yield Stubs(channel)


async def fill(api: Stubs, keys: int, seed: int = 5) -> None:
    """Keys with history: several versions, deletions, leases, an alarm, a user with a role, one compaction."""
    rng = random.Random(seed)
    for lease_id in (7, 1 << 40, -5):
        await api.call(api.lease.LeaseGrant, rpc_pb2.LeaseGrantRequest(ID=lease_id, TTL=6000))
    for start in range(0, keys, PUTS_PER_TXN):
        ops = []
        for i in range(start, min(keys, start + PUTS_PER_TXN)):
            put = rpc_pb2.PutRequest(
                key=b"/r/%07d" % i, value=rng.randbytes(rng.randrange(300)), lease=rng.choice((0, 0, 0, 7, -5))
            )
            ops.append(rpc_pb2.RequestOp(request_put=put))
        await api.call(api.kv.Txn, rpc_pb2.TxnRequest(success=ops))
    large = rpc_pb2.PutRequest(key=b"/large", value=rng.randbytes(1_000_000))
    await api.call(api.kv.Put, large)
    for _ in range(keys // 10):
        key = b"/r/%07d" % rng.randrange(keys)
        if rng.random() < 0.3:
            await api.call(api.kv.DeleteRange, rpc_pb2.DeleteRangeRequest(key=key))
        else:
            await api.call(api.kv.Put, rpc_pb2.PutRequest(key=key, value=b"again"))
    last = await api.call(api.kv.Put, rpc_pb2.PutRequest(key=b"/last"))
    compact = rpc_pb2.CompactionRequest(revision=last.header.revision - keys // 20, physical=True)
    await api.call(api.kv.Compact, compact)
    await api.call(api.lease.LeaseRevoke, rpc_pb2.LeaseRevokeRequest(ID=-5))
    await api.call(api.auth.RoleAdd, rpc_pb2.AuthRoleAddRequest(name="reader"))
    permission = auth_pb2.Permission(permType=auth_pb2.Permission.READ, key=b"/r/", range_end=b"/r0")
    await api.call(
        api.auth.RoleGrantPermission, rpc_pb2.AuthRoleGrantPermissionRequest(name="reader", perm=permission)
    )
    await api.call(api.auth.UserAdd, rpc_pb2.AuthUserAddRequest(name="ann", password="secret"))
    await api.call(api.auth.UserGrantRole, rpc_pb2.AuthUserGrantRoleRequest(user="ann", role="reader"))
    alarm = rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.ACTIVATE, memberID=77, alarm=rpc_pb2.NOSPACE)
    await api.call(api.maintenance.Alarm, alarm)


async def contents(api: Stubs) -> dict[str, Any]:
    """All keys with their revisions, hashes over the history, leases with their keys, and alarms."""
    everything = rpc_pb2.RangeRequest(key=b"\0", range_end=b"\0")
    now = await api.call(api.kv.Range, everything)
    revision = now.header.revision
    hashes = {}
    current = await api.call(api.maintenance.HashKV, rpc_pb2.HashKVRequest())
    compacted = current.compact_revision
    for at in (compacted + 1, (compacted + revision) // 2, revision):
        answer = await api.call(api.maintenance.HashKV, rpc_pb2.HashKVRequest(revision=at))
        hashes[at] = answer.hash
    past = rpc_pb2.RangeRequest(key=b"\0", range_end=b"\0", revision=(compacted + revision) // 2)
    leases = {}
    for lease in (await api.call(api.lease.LeaseLeases, rpc_pb2.LeaseLeasesRequest())).leases:
        request = rpc_pb2.LeaseTimeToLiveRequest(ID=lease.ID, keys=True)
        found = await api.call(api.lease.LeaseTimeToLive, request)
        leases[lease.ID] = (found.grantedTTL, sorted(found.keys))
    alarms = (await api.call(api.maintenance.Alarm, rpc_pb2.AlarmRequest())).alarms
    return {
        "revision": revision,
        "compact revision": compacted,
        "keys": list(now.kvs),
        "keys then": list((await api.call(api.kv.Range, past)).kvs),
        "hashes": hashes,
        "leases": leases,
        "alarms": [(alarm.memberID, alarm.alarm) for alarm in alarms],
    }
