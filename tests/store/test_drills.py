"""What goes wrong in practice, on three real members: a full disk quota, a member with other data."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from store.etcdpb import rpc_pb2
from store.wire import encode_pair, unframe
from tests.snapshot.etcd import Stubs, etcdctl, stubs
from tests.store.processes import Member, members

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

QUOTA_BYTES = 4 << 20
VALUE = bytes(200_000)
WAIT_S = 20.0


async def refused(call: Any) -> str | None:
    """The text of a refusal for want of space."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return caught.value.details()


async def put(api: Stubs, key: bytes, value: bytes = VALUE) -> Any:
    return await api.call(api.kv.Put, rpc_pb2.PutRequest(key=key, value=value))


async def fill(api: Stubs) -> int:
    """Write the same few keys until there is no room; how many writes that took."""

    written = 0

    async def write_until_refused() -> None:
        nonlocal written
        while written < 200:
            await put(api, b"/full/%d" % (written % 4))
            written += 1

    assert await refused(write_until_refused()) == "etcdserver: mvcc: database space exceeded"
    return written


async def alarms(member: Member) -> list[tuple[int, int]]:
    async with stubs(member.endpoint) as api:
        answer = await api.call(api.maintenance.Alarm, rpc_pb2.AlarmRequest())
        return [(alarm.memberID, alarm.alarm) for alarm in answer.alarms]


async def errors(member: Member) -> list[str]:
    async with stubs(member.endpoint) as api:
        return list((await api.call(api.maintenance.Status, rpc_pb2.StatusRequest())).errors)


async def until(condition: Callable[[], Any]) -> None:
    """Ask processes again and again: there is no event to wait on across them."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_full_quota_stops_writes_until_space_is_made_and_the_alarm_disarmed(tmp_path: Path) -> None:
    with members(tmp_path, "--quota-backend-bytes", str(QUOTA_BYTES)) as cluster:
        async with stubs(cluster[0].endpoint) as api, stubs(cluster[1].endpoint) as other:
            assert await fill(api) >= 10
            (alarm,) = await alarms(cluster[0])
            assert alarm[1] == rpc_pb2.NOSPACE
            for member in cluster:
                assert await alarms(member) == [alarm]
                assert await errors(member) == [f"memberID:{alarm[0]} alarm:NOSPACE "]
            full = "etcdserver: mvcc: database space exceeded"
            small = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=b"s"))
            for call in (
                put(other, b"s", b""),
                other.call(other.kv.Txn, rpc_pb2.TxnRequest(success=[small])),
                other.call(other.lease.LeaseGrant, rpc_pb2.LeaseGrantRequest(TTL=60)),
            ):
                assert await refused(call) == full
            everything = rpc_pb2.DeleteRangeRequest(key=b"/full/", range_end=b"/full0")
            deleted = await other.call(other.kv.DeleteRange, everything)
            assert deleted.deleted == 4
            found = await other.call(other.kv.Range, rpc_pb2.RangeRequest(key=b"/full/0"))
            revision = found.header.revision
            await other.call(other.kv.Compact, rpc_pb2.CompactionRequest(revision=revision, physical=True))
            endpoints = ",".join(member.endpoint for member in cluster)
            done = await etcdctl(endpoints, "defrag")
            assert done.code == 0, done.err
            assert await refused(put(api, b"s", b"")) == full
            raised = [f"memberID:{member_id} alarm:NOSPACE " for member_id, _ in await alarms(cluster[2])]
            done = await etcdctl(endpoints, "alarm", "disarm")
            assert sorted(done.out.splitlines()) == sorted(raised)
            for member in cluster:
                await until(functools.partial(_is_quiet, member))
                async with stubs(member.endpoint) as writer:
                    await put(writer, b"s", b"again")


async def _is_quiet(member: Member) -> bool:
    return await errors(member) == []


def tamper(member: Member) -> None:
    """Another value in one old version: what a broken disk or a defect may do."""
    db = sqlite3.connect(member.state_db)
    with db:
        changed = db.execute(
            "UPDATE kv SET value = ? WHERE rev = (SELECT min(rev) FROM kv)",
            (unframe(encode_pair(b"k0", b"wrong", 2, 2, 1, 0)),),
        )
        assert changed.rowcount == 1
    db.close()


async def corrupted(cluster: list[Member]) -> int:
    """A cluster whose last member, stopped, has other data than the rest; its id."""
    async with stubs(cluster[0].endpoint) as api, stubs(cluster[2].endpoint) as last:
        for i in range(20):
            await put(api, b"k%d" % (i % 5), b"v%d" % i)
        await last.call(last.kv.Range, rpc_pb2.RangeRequest(key=b"k"))
        status = await last.call(last.maintenance.Status, rpc_pb2.StatusRequest())
    cluster[2].stop()
    tamper(cluster[2])
    member_id: int = status.header.member_id
    return member_id


async def test_the_leader_finds_a_member_with_other_data_and_names_it(tmp_path: Path) -> None:
    with members(tmp_path, "--corrupt-check-time", "500ms") as cluster:
        member_id = await corrupted(cluster)
        assert await alarms(cluster[0]) == []
        cluster[2].start()

        async def named() -> bool:
            return await alarms(cluster[0]) == [(member_id, rpc_pb2.CORRUPT)]

        await until(named)
        async with stubs(cluster[0].endpoint) as api:
            with pytest.raises(grpc.aio.AioRpcError, match="corrupt cluster"):
                await put(api, b"k0", b"no")
            found = await api.call(api.kv.Range, rpc_pb2.RangeRequest(key=b"k0"))
            assert found.kvs[0].value == b"v15"


async def test_a_member_with_other_data_does_not_serve_when_its_start_is_checked(tmp_path: Path) -> None:
    with members(tmp_path) as cluster:
        member_id = await corrupted(cluster)
        cluster[2].start("--feature-gates", "InitialCorruptCheck=true")
        assert await asyncio.to_thread(cluster[2].wait) == 1
        assert f"the data of this member ({member_id:x}) differs from that of" in cluster[2].log.read_text()
        async with stubs(cluster[0].endpoint) as api:
            await put(api, b"k0", b"still served")
