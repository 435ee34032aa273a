"""Every error of the contract: produced here with its code and text, proven elsewhere, or why it cannot occur."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from raft.core.types import NO_NODE
from raft.errors import LeaderChanged, NoLeader, OutcomeUnknown, Stopped
from raft.log import Identity
from store.api.server import check_client_version
from store.cluster import Membership, encode_member, member_id, member_key
from store.errors import Code, EtcdError
from store.etcdpb import internal_pb2, rpc_pb2, rpc_pb2_grpc
from store.raft_replica import RaftReplica, etcd_error
from store.reconfiguration import Reconfiguration
from store.replica import MemberInfo
from tests.store.loopback import MEMBER_ID, LoopbackReplica, Node, serving

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT.parent / "shared" / "contracts" / "etcd_errors.tsv"
TOKEN: Final = "errors"
URL: Final = "http://127.0.0.1:1"
OTHER_URL: Final = "http://127.0.0.1:2"
NEW_URL: Final = "http://127.0.0.1:9"
LEARNER: Final = 5

Answer = tuple[int, str | None]
Producer = Callable[["Stage"], Awaitable[Answer]]


class Stage:
    """A member that is asked, and what a test may pretend about it: its driver and its cluster."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.members = {member_key(MEMBER_ID): encode_member(MemberInfo(MEMBER_ID, "a", (URL,), (URL,)))}
        self.removed: dict[bytes, bytes] = {}
        self.driver: Any = SimpleNamespace(
            config=SimpleNamespace(request_timeout_s=0.05, election_s=1.0),
            is_leader=True, leader_id=MEMBER_ID, leader_since=0.0,
            status=lambda: SimpleNamespace(progress={LEARNER: SimpleNamespace(match=10)}, last_index=100),
            on_leader_change=lambda _: None, forget_leader_callback=lambda _: None, transfer_leader=lambda _: None,
        )  # fmt: skip
        self.node: Node
        self._directory = directory

    def add_member(self, number: int, url: str, *, name: str = "", is_learner: bool = False) -> None:
        member = MemberInfo(number, name, (url,), (), is_learner)
        self.members[member_key(number)] = encode_member(member)

    def _reconfigure(self, replica: LoopbackReplica) -> Reconfiguration:
        application: Any = SimpleNamespace(membership=Membership(self.members, self.removed))
        transport: Any = SimpleNamespace(active_since=lambda _: None)
        return Reconfiguration(replica, self.driver, transport, application, TOKEN)  # type: ignore[arg-type]

    async def run(self, producer: Producer) -> Answer:
        async with (
            serving(self._directory / "state.db", reconfigure=self._reconfigure) as node,
            grpc.aio.insecure_channel(
                f"127.0.0.1:{node.port}", options=[("grpc.max_send_message_length", -1)]
            ) as channel,
        ):
            self.node = node
            self.kv: Any = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
            self.watch: Any = rpc_pb2_grpc.WatchStub(channel)  # type: ignore[no-untyped-call]
            self.lease: Any = rpc_pb2_grpc.LeaseStub(channel)  # type: ignore[no-untyped-call]
            self.cluster: Any = rpc_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            self.maintenance: Any = rpc_pb2_grpc.MaintenanceStub(channel)  # type: ignore[no-untyped-call]
            return await producer(self)

    async def put(self, **fields: Any) -> Answer:
        return await refused(self.kv.Put(rpc_pb2.PutRequest(**fields)))


async def refused(call: Awaitable[Any]) -> Answer:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().value[0], caught.value.details()


async def refused_inside(call: Awaitable[Any]) -> Answer:
    with pytest.raises(EtcdError) as caught:
        await call
    return caught.value.code, caught.value.message


PRODUCERS: dict[str, Producer] = {}


def produces(name: str) -> Callable[[Producer], Producer]:
    def note(producer: Producer) -> Producer:
        PRODUCERS[name] = producer
        return producer

    return note


# -- the request itself -----------------------------------------------------------------------------------

_put_op = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=b"k"))

PRODUCERS |= {
    "ErrGRPCEmptyKey": lambda stage: stage.put(),
    "ErrGRPCKeyNotFound": lambda stage: stage.put(key=b"none", ignore_value=True),
    "ErrGRPCValueProvided": lambda stage: stage.put(key=b"k", value=b"v", ignore_value=True),
    "ErrGRPCLeaseProvided": lambda stage: stage.put(key=b"k", lease=1, ignore_lease=True),
    "ErrGRPCTooManyOps": lambda stage: refused(stage.kv.Txn(rpc_pb2.TxnRequest(success=[_put_op] * 129))),
    "ErrGRPCDuplicateKey": lambda stage: refused(stage.kv.Txn(rpc_pb2.TxnRequest(success=[_put_op] * 2))),
    "ErrGRPCRequestTooLarge": lambda stage: stage.put(key=b"k", value=bytes(1_572_864)),
    "ErrGRPCFutureRev": lambda stage: refused(stage.kv.Range(rpc_pb2.RangeRequest(key=b"k", revision=99))),
    "ErrGRPCLeaseNotFound": lambda stage: stage.put(key=b"k", lease=99),
    "ErrGRPCLeaseTTLTooLarge": lambda stage: refused(
        stage.lease.LeaseGrant(rpc_pb2.LeaseGrantRequest(TTL=9_000_000_001))
    ),
    "RangeStream sort": lambda stage: refused(
        stage.kv.RangeStream(rpc_pb2.RangeRequest(key=b"k", sort_order=rpc_pb2.RangeRequest.DESCEND)).read()
    ),
    "RangeStream filter": lambda stage: refused(
        stage.kv.RangeStream(rpc_pb2.RangeRequest(key=b"k", min_mod_revision=1)).read()
    ),
}


@produces("ErrGRPCInvalidSortOption")
async def _(stage: Stage) -> Answer:
    request = rpc_pb2.RangeRequest(key=b"k")
    request.sort_target = 9  # type: ignore[assignment]  # any number travels through an open enum
    return await refused(stage.kv.Range(request))


@produces("ErrGRPCInvalidClientAPIVersion")
async def _(_stage: Stage) -> Answer:
    check_client_version((("client-api-version", "3.6é".encode().decode("latin-1")),))
    with pytest.raises(EtcdError) as caught:
        check_client_version((("client-api-version", "\xff"),))
    return caught.value.code, caught.value.message


@produces("ErrGRPCCompacted")
async def _(stage: Stage) -> Answer:
    for _ in range(3):
        await stage.kv.Put(rpc_pb2.PutRequest(key=b"k"))
    await stage.kv.Compact(rpc_pb2.CompactionRequest(revision=3))
    return await refused(stage.kv.Range(rpc_pb2.RangeRequest(key=b"k", revision=2)))


@produces("ErrGRPCLeaseExist")
async def _(stage: Stage) -> Answer:
    grant = rpc_pb2.LeaseGrantRequest(ID=7, TTL=60)
    await stage.lease.LeaseGrant(grant)
    return await refused(stage.lease.LeaseGrant(grant))


# -- alarms and overload ----------------------------------------------------------------------------------


@produces("ErrGRPCNoSpace")
async def _(stage: Stage) -> Answer:
    api = stage.node.api
    api.options = dataclasses.replace(api.options, quota_bytes=1)
    return await stage.put(key=b"k")


@produces("ErrGRPCCorrupt")
async def _(stage: Stage) -> Answer:
    alarm = rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.ACTIVATE, memberID=1, alarm=rpc_pb2.CORRUPT)
    await stage.maintenance.Alarm(alarm)
    return await stage.put(key=b"k")


@produces("ErrGRPCRequestTooManyRequests")
async def _(stage: Stage) -> Answer:
    lagging = property(lambda replica: replica.applied_index + 5001)
    stage.monkeypatch.setattr(LoopbackReplica, "commit_index", lagging)
    return await stage.put(key=b"k")


# -- leaders and time-outs --------------------------------------------------------------------------------


@produces("ErrGRPCNoLeader")
async def _(stage: Stage) -> Answer:
    stage.node.replica.set_leader(0)
    read = rpc_pb2.RangeRequest(key=b"k", serializable=True)
    return await refused(stage.kv.Range(read, metadata=(("hasleader", "true"),)))


def fails_with(error: Exception) -> Producer:
    """The driver reports ``error``; the client sees what is made of it."""

    told = etcd_error(error)  # type: ignore[arg-type]

    async def fail(*_: object) -> None:
        raise told

    def settle(_replica: object, _payload: bytes, done: Callable[[Any], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_soon(done, told).cancel

    async def produce(stage: Stage) -> Answer:
        stage.monkeypatch.setattr(LoopbackReplica, "read_barrier", fail)
        stage.monkeypatch.setattr(LoopbackReplica, "propose", fail)
        stage.monkeypatch.setattr(LoopbackReplica, "submit", settle)
        read = await refused(stage.kv.Range(rpc_pb2.RangeRequest(key=b"k")))
        assert await stage.put(key=b"k") == read
        stage.monkeypatch.setattr(LoopbackReplica, "submit", lambda *_: None)  # then the ordinary way tells
        assert await stage.put(key=b"k") == read
        return read

    return produce


PRODUCERS["ErrGRPCLeaderChanged"] = fails_with(LeaderChanged())
PRODUCERS["ErrGRPCStopped"] = fails_with(Stopped())
PRODUCERS["proposal without leader 3.5.1"] = fails_with(NoLeader())


def times_out(leader: int, leader_since_s: float, active_since_s: float | None) -> Producer:
    """A proposal that is sent and not answered. Times are seconds from now, negative for the past."""

    async def produce(stage: Stage) -> Answer:
        async def propose(_payload: bytes, *, as_leader: bool = False) -> None:
            raise OutcomeUnknown

        def submit(_payload: bytes, settle: Callable[[Any], None]) -> int:
            settle(OutcomeUnknown())
            return 1

        now = time.monotonic()
        driver = stage.driver
        driver.propose, driver.leader_id, driver.leader_since = propose, leader, now + leader_since_s
        driver.submit, driver.withdraw = submit, lambda _: None
        active = None if active_since_s is None else now + active_since_s
        transport: Any = SimpleNamespace(active_since=lambda _: active)
        config: Any = SimpleNamespace(max_request_bytes=1_572_864)
        application: Any = SimpleNamespace()
        replica = RaftReplica(Identity(1, MEMBER_ID), config, driver, transport, application)
        outcomes: list[EtcdError] = []
        assert replica.submit(b"", outcomes.append) is not None
        told = await refused_inside(replica.propose(internal_pb2.InternalRequest()))
        assert (outcomes[0].code, outcomes[0].message) == told
        return told

    return produce


PRODUCERS["ErrGRPCTimeout"] = times_out(leader=2, leader_since_s=-60, active_since_s=-60)
PRODUCERS["ErrGRPCTimeoutDueToLeaderFail"] = times_out(leader=2, leader_since_s=1, active_since_s=-60)
PRODUCERS["ErrGRPCTimeoutDueToConnectionLost"] = times_out(leader=2, leader_since_s=-60, active_since_s=None)


@produces("lease.ErrNotPrimary")
async def _(stage: Stage) -> Answer:
    stage.node.lessor.leader_changed(NO_NODE, False)
    call = stage.lease.LeaseKeepAlive()
    await call.write(rpc_pb2.LeaseKeepAliveRequest(ID=1))
    return await refused(call.read())


@produces("ErrGRPCNotSupportedForLearner")
async def _(stage: Stage) -> Answer:
    stage.node.replica.is_learner = True
    return await stage.put(key=b"k")


# -- members ----------------------------------------------------------------------------------------------


def add(stage: Stage, *urls: str, is_learner: bool = False) -> Awaitable[Answer]:
    return refused(stage.cluster.MemberAdd(rpc_pb2.MemberAddRequest(peerURLs=urls, isLearner=is_learner)))


def move(stage: Stage, target: int) -> Awaitable[Answer]:
    return refused(stage.maintenance.MoveLeader(rpc_pb2.MoveLeaderRequest(targetID=target)))


PRODUCERS |= {
    "ErrGRPCPeerURLExist": lambda stage: add(stage, URL),
    "ErrGRPCMemberBadURLs": lambda stage: add(stage, "nonsense"),
    "ErrGRPCMemberNotFound": lambda stage: refused(stage.cluster.MemberRemove(rpc_pb2.MemberRemoveRequest(ID=99))),
    "ErrGRPCMemberNotLearner": lambda stage: refused(
        stage.cluster.MemberPromote(rpc_pb2.MemberPromoteRequest(ID=MEMBER_ID))
    ),
    "ErrGRPCBadLeaderTransferee": lambda stage: move(stage, 99),
}


@produces("ErrGRPCMemberExist")
async def _(stage: Stage) -> Answer:
    now = int(time.time())
    stage.removed |= {member_key(member_id((NEW_URL,), TOKEN, now + i)): b"removed" for i in range(30)}
    return await add(stage, NEW_URL)


@produces("ErrGRPCMemberNotEnoughStarted")
async def _(stage: Stage) -> Answer:
    stage.add_member(2, OTHER_URL)
    return await add(stage, NEW_URL)


@produces("ErrGRPCUnhealthy")
async def _(stage: Stage) -> Answer:
    stage.add_member(2, OTHER_URL, name="unreachable")
    stage.add_member(3, "http://127.0.0.1:3", name="unreachable too")
    return await add(stage, NEW_URL)


@produces("ErrGRPCTooManyLearners")
async def _(stage: Stage) -> Answer:
    stage.add_member(LEARNER, OTHER_URL, is_learner=True)
    return await add(stage, NEW_URL, is_learner=True)


@produces("ErrGRPCLearnerNotReady")
async def _(stage: Stage) -> Answer:
    stage.add_member(LEARNER, OTHER_URL, is_learner=True)
    return await refused(stage.cluster.MemberPromote(rpc_pb2.MemberPromoteRequest(ID=LEARNER)))


@produces("ErrGRPCNotLeader")
async def _(stage: Stage) -> Answer:
    stage.driver.is_leader = False
    return await move(stage, MEMBER_ID)


@produces("ErrTimeoutLeaderTransfer")
async def _(stage: Stage) -> Answer:
    stage.add_member(2, OTHER_URL, name="slow")
    return await move(stage, 2)


# -- downgrade --------------------------------------------------------------------------------------------


def downgrade(action: int, version: str = "") -> Producer:
    async def produce(stage: Stage) -> Answer:
        request = rpc_pb2.DowngradeRequest(version=version)
        request.action = action  # type: ignore[assignment]  # any number travels through an open enum
        return await refused(stage.maintenance.Downgrade(request))

    return produce


PRODUCERS |= {
    "ErrGRPCWrongDowngradeVersionFormat": downgrade(rpc_pb2.DowngradeRequest.VALIDATE, "soon"),
    "ErrGRPCInvalidDowngradeTargetVersion": downgrade(rpc_pb2.DowngradeRequest.VALIDATE, "3.1.0"),
    "ErrGRPCNoInflightDowngrade": downgrade(rpc_pb2.DowngradeRequest.CANCEL),
    "ErrUnknownMethod": downgrade(7),
}


# -- reasons of a watch -----------------------------------------------------------------------------------


def watch_reason(**fields: Any) -> Producer:
    """Why the last of two equal watches is cancelled."""

    async def produce(stage: Stage) -> Answer:
        call = stage.watch.Watch()
        create = rpc_pb2.WatchRequest(create_request=rpc_pb2.WatchCreateRequest(**fields))
        for _ in range(2):
            await call.write(create)
            response = await call.read()
        call.cancel()
        assert response.created
        assert response.canceled
        return 0, response.cancel_reason

    return produce


PRODUCERS |= {
    "mvcc: watcher range is empty": watch_reason(key=b"b", range_end=b"a"),
    "mvcc: duplicate watch ID provided on the WatchStream": watch_reason(key=b"b", watch_id=3),
    "etcdserver: mvcc: required revision has been compacted": watch_reason(key=b"b", start_revision=-1),
}

# -- what is not produced here ----------------------------------------------------------------------------

ELSEWHERE: Final = {
    "(grpc-go) recv limit": "listener/test_member.py::test_message_limits_are_worded_as_grpc_go_words_them",
    "(grpc-go) unknown rpc": "listener/test_member.py::test_what_is_unknown_is_said_as_grpc_go_says_it",
    "(grpc-go) unknown service": "listener/test_member.py::test_what_is_unknown_is_said_as_grpc_go_says_it",
    "v3lock/v3election errors": "store/test_lock_election.py::test_errors_have_the_code_unknown_as_in_etcd",
    # Behind etcd's text stands the reason: no client compares it.
    "raft.ErrProposalDropped": "driver/test_driver.py::test_a_proposal_that_the_core_drops_is_refused_at_once",
    "Health": "store/test_services.py::test_the_health_service_knows_the_empty_name_only",
}

_NO_AUTH: Final = "the Auth RPCs are not offered: services_that_are_not_offered_are_unimplemented"
_MAP_ONLY: Final = "in etcd's table for its client; no server sends it"
CANNOT_OCCUR: Final = {
    "ErrGRPCWatchCanceled": "a client that cancels a stream resets it and hears no status",
    "ErrGRPCClusterIDMismatch": "an answer of etcd's peer port, which speaks another protocol here",
    "ErrGRPCNotCapable": "the cluster version is known from the start",
    "ErrGRPCClusterVersionUnavailable": "the cluster version is known from the start",
    "ErrGRPCDowngradeInProcess": "no downgrade can be enabled (docs/scope.md)",
    "ErrGRPCTimeoutWaitAppliedIndex": "a renewal waits by a read barrier, whose errors are above",
    "ErrGRPCCanceled": _MAP_ONLY,
    "ErrGRPCDeadlineExceeded": _MAP_ONLY,
    "rpc error: code = PermissionDenied desc = etcdserver: permission denied": _NO_AUTH,
    **dict.fromkeys(
        (
            "ErrGRPCRootUserNotExist", "ErrGRPCRootRoleNotExist", "ErrGRPCUserAlreadyExist", "ErrGRPCUserEmpty",
            "ErrGRPCUserNotFound", "ErrGRPCRoleAlreadyExist", "ErrGRPCRoleNotFound", "ErrGRPCRoleEmpty",
            "ErrGRPCAuthFailed", "ErrGRPCPermissionNotGiven", "ErrGRPCPermissionDenied",
            "ErrGRPCRoleNotGranted", "ErrGRPCPermissionNotGranted", "ErrGRPCAuthNotEnabled",
            "ErrGRPCInvalidAuthToken", "ErrGRPCInvalidAuthMgmt", "ErrGRPCAuthOldRevision",
            "auth.ErrNoPasswordUser", "auth (maintenance) 3.5.1",
        ),
        _NO_AUTH,
    ),
}  # fmt: skip

AS_NEWER_RELEASES: Final = {
    # etcd 3.5.1 answers Unknown; the gRPC library of newer releases makes the code what it should be.
    "proposal without leader 3.5.1": (Code.DEADLINE_EXCEEDED, "context deadline exceeded"),
}
UNKNOWN_ON_THE_WIRE: Final = {"ErrGRPCMemberNotEnoughStarted", "ErrGRPCRequestTooManyRequests"}
"""Rows whose remark says so: etcd's server sends another code than its table names."""


def rows() -> dict[str, tuple[Code, str]]:
    """Code (0: none) and text by name; reasons of watches by their text."""
    if not TABLE.exists():
        return {}
    codes = {"".join(code.name.split("_")).lower(): code for code in Code} | {"canceled": Code.CANCELLED}
    found = {}
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            name = row["message"] if row["grpc_code"] == "-" else row["name"]
            code: Any = 0 if row["grpc_code"] == "-" else codes[row["grpc_code"].lower()]
            found[name] = (Code.UNKNOWN if name in UNKNOWN_ON_THE_WIRE else code, row["message"])
    return found


ROWS: Final = rows()
needs_table = pytest.mark.skipif(not ROWS, reason="the contracts are not beside this checkout")


@needs_table
def test_every_row_is_produced_proven_elsewhere_or_cannot_occur() -> None:
    groups = [*PRODUCERS, *ELSEWHERE, *CANNOT_OCCUR]
    assert sorted(groups) == sorted(ROWS)
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / file).read_text()


@needs_table
@pytest.mark.parametrize("name", PRODUCERS)
async def test_the_error_has_the_code_and_the_text_of_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = AS_NEWER_RELEASES.get(name, ROWS[name])
    assert await Stage(tmp_path, monkeypatch).run(PRODUCERS[name]) == expected


async def test_a_member_without_a_leader_calls_the_cluster_unhealthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def produce(stage: Stage) -> Answer:
        stage.node.replica.set_leader(0)
        return await add(stage, NEW_URL)

    answer = await Stage(tmp_path, monkeypatch).run(produce)
    assert answer == (Code.UNAVAILABLE, "etcdserver: unhealthy cluster")
