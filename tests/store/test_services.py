"""The services over gRPC: headers, statuses, alarms, leader loss, limits (contract §1, §6-9, §11)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from store.api.context import ApiContext, ApiOptions
from store.etcdpb import rpc_pb2, rpc_pb2_grpc
from store.watch.stream import WatchStream
from tests.store.loopback import CLUSTER_ID, MEMBER_ID, Node, serving


class Api:
    """Stubs of every service over one channel."""

    def __init__(self, channel: grpc.aio.Channel, node: Node) -> None:
        self.node = node
        self.channel: Any = channel
        self.kv: Any = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
        self.watch: Any = rpc_pb2_grpc.WatchStub(channel)  # type: ignore[no-untyped-call]
        self.lease: Any = rpc_pb2_grpc.LeaseStub(channel)  # type: ignore[no-untyped-call]
        self.cluster: Any = rpc_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        self.maintenance: Any = rpc_pb2_grpc.MaintenanceStub(channel)  # type: ignore[no-untyped-call]

    async def put(self, key: bytes, value: bytes = b"v", **options: Any) -> Any:
        return await self.kv.Put(rpc_pb2.PutRequest(key=key, value=value, **options), timeout=10)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with (
        serving(tmp_path / "state.db") as node,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{node.port}", options=[("grpc.max_send_message_length", -1)]
        ) as channel,
    ):
        yield Api(channel, node)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def set_options(api: Api, **changes: Any) -> None:
    api.node.api.options = dataclasses.replace(api.node.api.options, **changes)


async def test_the_header_names_cluster_member_term_and_revision(api: Api) -> None:
    header = (await api.put(b"a")).header
    assert (header.cluster_id, header.member_id, header.raft_term, header.revision) == (
        CLUSTER_ID,
        MEMBER_ID,
        2,
        2,
    )
    old = await api.kv.Range(rpc_pb2.RangeRequest(key=b"a", revision=1))
    assert (old.header.revision, old.count) == (2, 0)


async def test_headers_that_etcd_leaves_out(api: Api) -> None:
    await api.put(b"a")
    members = await api.cluster.MemberList(rpc_pb2.MemberListRequest(linearizable=True))
    assert (members.header.revision, members.header.member_id) == (0, MEMBER_ID)
    assert [m.ID for m in members.members] == [MEMBER_ID]
    assert not (await api.maintenance.Defragment(rpc_pb2.DefragmentRequest())).HasField("header")


async def test_headers_inside_a_txn_carry_the_revision_only(api: Api) -> None:
    op = rpc_pb2.RequestOp
    read = op(request_range=rpc_pb2.RangeRequest(key=b"a"))
    response = await api.kv.Txn(
        rpc_pb2.TxnRequest(
            success=[
                read,
                op(request_delete_range=rpc_pb2.DeleteRangeRequest(key=b"x")),
                op(request_put=rpc_pb2.PutRequest(key=b"a")),
                read,
                op(request_txn=rpc_pb2.TxnRequest()),
            ]
        )
    )
    before, nothing, put, after, inner = response.responses
    assert before.response_range.header == rpc_pb2.ResponseHeader(revision=1)
    assert nothing.response_delete_range.header == rpc_pb2.ResponseHeader(revision=1)
    assert put.response_put.header == after.response_range.header == rpc_pb2.ResponseHeader(revision=2)
    assert inner.response_txn.HasField("header")
    assert inner.response_txn.header == rpc_pb2.ResponseHeader()
    assert response.header.revision == 2


async def test_a_write_transaction_reads_versions_that_are_only_on_disk(api: Api) -> None:
    for value in (b"1", b"2"):
        await api.put(b"a", value)
    await api.node.machine.flush()
    old = rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=b"a", revision=2))
    put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=b"b"))
    response = await api.kv.Txn(rpc_pb2.TxnRequest(success=[put, old]))
    assert response.responses[1].response_range.kvs[0].value == b"1"


async def test_refusals_are_statuses_with_the_exact_text(api: Api) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert await refusal(api.put(b"")) == (invalid, "etcdserver: key is not provided")
    assert await refusal(api.put(b"a", lease=5)) == (
        grpc.StatusCode.NOT_FOUND,
        "etcdserver: requested lease not found",
    )
    assert await refusal(api.kv.Range(rpc_pb2.RangeRequest(key=b"a", revision=9))) == (
        grpc.StatusCode.OUT_OF_RANGE,
        "etcdserver: mvcc: required revision is a future revision",
    )
    code, _ = await refusal(api.maintenance.MoveLeader(rpc_pb2.MoveLeaderRequest()))
    assert code == grpc.StatusCode.UNIMPLEMENTED


async def test_both_size_limits(api: Api) -> None:
    """One on the command that would enter the log, one on any message (contract §3)."""
    await api.put(b"key", b"x" * 1572834)
    assert await refusal(api.put(b"key", b"x" * 1572860)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "etcdserver: request is too large",
    )
    code, _ = await refusal(api.put(b"key", b"x" * (2 << 20)))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_no_space_raises_the_alarm_and_only_disarming_ends_it(api: Api) -> None:
    await api.put(b"a")
    set_options(api, quota_bytes=4096)
    no_space = (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
    assert await refusal(api.put(b"a")) == no_space
    set_options(api, quota_bytes=-1)
    assert await refusal(api.put(b"a")) == no_space
    assert await refusal(api.lease.LeaseGrant(rpc_pb2.LeaseGrantRequest(TTL=5))) == no_space
    inner = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=b"a"))
    nested = rpc_pb2.RequestOp(request_txn=rpc_pb2.TxnRequest(failure=[inner]))
    assert await refusal(api.kv.Txn(rpc_pb2.TxnRequest(success=[nested]))) == no_space
    await api.kv.DeleteRange(rpc_pb2.DeleteRangeRequest(key=b"a"))
    status = await api.maintenance.Status(rpc_pb2.StatusRequest())
    assert list(status.errors) == [f"memberID:{MEMBER_ID} alarm:NOSPACE "]
    disarm = rpc_pb2.AlarmRequest(
        action=rpc_pb2.AlarmRequest.DEACTIVATE, memberID=MEMBER_ID, alarm=rpc_pb2.NOSPACE
    )
    assert len((await api.maintenance.Alarm(disarm)).alarms) == 1
    assert len((await api.maintenance.Alarm(disarm)).alarms) == 0
    await api.put(b"a")


async def test_a_corrupt_alarm_stops_writes_and_not_reads(api: Api) -> None:
    await api.put(b"a")
    raise_alarm = rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.ACTIVATE, memberID=1, alarm=rpc_pb2.CORRUPT)
    await api.maintenance.Alarm(raise_alarm)
    corrupt = (grpc.StatusCode.DATA_LOSS, "etcdserver: corrupt cluster")
    delete = rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=b"a"))
    for call in (
        api.put(b"a"),
        api.kv.DeleteRange(rpc_pb2.DeleteRangeRequest(key=b"a")),
        api.kv.Txn(rpc_pb2.TxnRequest(success=[delete])),
        api.kv.Compact(rpc_pb2.CompactionRequest(revision=1)),
        api.lease.LeaseGrant(rpc_pb2.LeaseGrantRequest(TTL=5)),
        api.lease.LeaseRevoke(rpc_pb2.LeaseRevokeRequest(ID=1)),
    ):
        assert await refusal(call) == corrupt
    assert (await api.kv.Range(rpc_pb2.RangeRequest(key=b"a"))).count == 1
    listed = await api.maintenance.Alarm(rpc_pb2.AlarmRequest())
    assert [(a.memberID, a.alarm) for a in listed.alarms] == [(1, rpc_pb2.CORRUPT)]


async def test_lease_answers(api: Api) -> None:
    granted = await api.lease.LeaseGrant(rpc_pb2.LeaseGrantRequest(TTL=1))
    assert granted.TTL == 2
    assert granted.ID > 0
    await api.put(b"k", lease=granted.ID)
    asked = rpc_pb2.LeaseTimeToLiveRequest(ID=granted.ID, keys=True)
    left = await api.lease.LeaseTimeToLive(asked)
    assert (left.grantedTTL, list(left.keys), left.TTL in (1, 2)) == (2, [b"k"], True)
    assert (await api.lease.LeaseTimeToLive(rpc_pb2.LeaseTimeToLiveRequest(ID=77))).TTL == -1
    alive = api.lease.LeaseKeepAlive()
    for lease_id, ttl in ((granted.ID, 2), (77, 0)):
        await alive.write(rpc_pb2.LeaseKeepAliveRequest(ID=lease_id))
        answer = await alive.read()
        assert (answer.ID, answer.TTL, answer.header.revision) == (lease_id, ttl, 2)
    await alive.done_writing()
    assert not await alive.read()
    listed = await api.lease.LeaseLeases(rpc_pb2.LeaseLeasesRequest())
    assert [lease.ID for lease in listed.leases] == [granted.ID]


async def test_physical_compaction_returns_when_the_rows_are_gone(api: Api) -> None:
    for _ in range(10):
        await api.put(b"a")
    await api.kv.Compact(rpc_pb2.CompactionRequest(revision=10, physical=True))
    rows = await api.node.machine.backend.read(lambda db: db.execute("SELECT count(*) FROM kv").fetchone()[0])
    assert rows == 2


async def test_defragmentation_gives_space_back_and_keeps_data_alarms_and_hash(api: Api) -> None:
    for i in range(200):
        await api.put(b"k%d" % (i % 5), bytes(10_000))
    alarm = rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.ACTIVATE, memberID=9, alarm=rpc_pb2.NOSPACE)
    await api.maintenance.Alarm(alarm)
    await api.kv.Compact(rpc_pb2.CompactionRequest(revision=api.node.machine.revision, physical=True))
    before = await api.maintenance.Status(rpc_pb2.StatusRequest())
    hashes = await api.maintenance.HashKV(rpc_pb2.HashKVRequest())
    await api.maintenance.Defragment(rpc_pb2.DefragmentRequest())
    after = await api.maintenance.Status(rpc_pb2.StatusRequest())
    assert after.dbSize < before.dbSize / 2
    assert before.dbSizeInUse < before.dbSize / 2
    assert list(after.errors) == list(before.errors) == ["memberID:9 alarm:NOSPACE "]
    assert (await api.maintenance.HashKV(rpc_pb2.HashKVRequest())).hash == hashes.hash
    assert (await api.kv.Range(rpc_pb2.RangeRequest(key=b"k3"))).kvs[0].value == bytes(10_000)


async def test_the_hash_of_the_whole_database_changes_with_what_is_not_in_the_history(api: Api) -> None:
    ask = rpc_pb2.HashRequest()
    await api.put(b"a")
    first = (await api.maintenance.Hash(ask)).hash
    assert (await api.maintenance.Hash(ask)).hash == first
    await api.lease.LeaseGrant(rpc_pb2.LeaseGrantRequest(ID=7, TTL=600))
    assert (await api.maintenance.Hash(ask)).hash != first


async def test_watchers_live_on_after_the_client_half_closes(api: Api) -> None:
    call = api.watch.Watch()
    create = rpc_pb2.WatchCreateRequest(key=b"a")
    await call.write(rpc_pb2.WatchRequest(create_request=create))
    assert (await call.read()).created
    await call.done_writing()
    await api.put(b"a")
    assert (await call.read()).events[0].kv.key == b"a"
    call.cancel()


async def test_a_stream_that_ends_leaves_no_watcher(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()
    close = WatchStream.close

    def closing(stream: WatchStream) -> None:
        close(stream)
        closed.set()

    monkeypatch.setattr(WatchStream, "close", closing)
    call = api.watch.Watch()
    create = rpc_pb2.WatchCreateRequest(key=b"a")
    await call.write(rpc_pb2.WatchRequest(create_request=create))
    assert (await call.read()).created
    assert api.node.machine.hub.statistics()["synced"] == 1
    call.cancel()
    await asyncio.wait_for(closed.wait(), 5)
    assert api.node.machine.hub.statistics()["synced"] == 0


async def test_without_a_leader_only_those_who_ask_for_one_are_refused_at_once(api: Api) -> None:
    await api.put(b"a")
    api.node.replica.set_leader(0)
    no_leader = (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
    wants_leader = (("hasleader", "true"),)
    read = rpc_pb2.RangeRequest(key=b"a", serializable=True)
    assert (await api.kv.Range(read)).count == 1
    assert await refusal(api.kv.Range(read, metadata=wants_leader)) == no_leader
    timed_out = (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out")
    linearizable = rpc_pb2.RangeRequest(key=b"a")
    assert await refusal(api.kv.Range(linearizable)) == timed_out
    read_only = rpc_pb2.TxnRequest(success=[rpc_pb2.RequestOp(request_range=linearizable)])
    assert await refusal(api.kv.Txn(read_only)) == timed_out
    read_only.success[0].request_range.serializable = True
    assert (await api.kv.Txn(read_only)).succeeded
    status = await api.maintenance.Status(rpc_pb2.StatusRequest())
    assert (status.leader, list(status.errors)) == (0, ["etcdserver: no leader"])
    assert await refusal(api.watch.Watch(metadata=wants_leader).read()) == no_leader


async def test_a_stream_that_wants_a_leader_ends_when_it_is_lost_for_long(api: Api) -> None:
    api.node.replica.election_timeout_s = 0.05
    create = rpc_pb2.WatchRequest(create_request=rpc_pb2.WatchCreateRequest(key=b"a"))
    strict, patient = api.watch.Watch(metadata=(("hasleader", "true"),)), api.watch.Watch()
    for call in (strict, patient):
        await call.write(create)
        assert (await call.read()).created
    api.node.replica.set_leader(0)
    assert await refusal(strict.read()) == (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
    api.node.replica.set_leader(MEMBER_ID)
    await api.put(b"a")
    assert len((await patient.read()).events) == 1
    patient.cancel()


async def test_the_health_service_knows_the_empty_name_only(api: Api) -> None:
    check = api.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert await check(b"") == b"\x08\x01"
    assert await refusal(check(b"\x0a\x01x")) == (grpc.StatusCode.NOT_FOUND, "unknown service")
    watch = api.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    assert await watch.read() == b"\x08\x01"
    watch.cancel()


async def test_services_that_are_not_offered_are_unimplemented(api: Api) -> None:
    methods = [method.name for method in rpc_pb2.DESCRIPTOR.services_by_name["Auth"].methods]
    assert len(methods) == 17
    for name in methods:
        assert await refusal(api.channel.unary_unary(f"/etcdserverpb.Auth/{name}")(b"")) == (
            grpc.StatusCode.UNIMPLEMENTED,
            f"unknown method {name} for service etcdserverpb.Auth",
        )


async def test_a_learner_answers_status_and_local_reads_only(api: Api) -> None:
    api.node.replica.is_learner = True
    refused = (grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: rpc not supported for learner")
    assert await refusal(api.put(b"a")) == refused
    assert await refusal(api.kv.Range(rpc_pb2.RangeRequest(key=b"a"))) == refused
    assert await refusal(api.watch.Watch().read()) == refused
    await api.kv.Range(rpc_pb2.RangeRequest(key=b"a", serializable=True))
    assert (await api.maintenance.Status(rpc_pb2.StatusRequest())).isLearner


def test_the_default_message_limit_is_two_mebibytes() -> None:
    assert ApiOptions().max_message_bytes == 2 << 20


async def test_a_header_encoded_by_hand_is_the_message(api: Api) -> None:
    context = ApiContext(api.node.replica, api.node.machine, api.node.lessor)
    for revision in (0, 1, 127, 128, 2**40):
        encoded = rpc_pb2.PutResponse.FromString(context.header_field(revision))
        assert encoded.header == context.header(revision)
