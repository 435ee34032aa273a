"""What every service shares: the replica, the machine, the lessor, the limits; headers and encoded answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from raft.histogram import Histogram
from store.errors import NO_SPACE, STOPPED, TOO_MANY_REQUESTS, Code, EtcdError, unimplemented
from store.etcdpb import internal_pb2, rpc_pb2
from store.lessor import Lessor
from store.machine import Machine
from store.observations import Observations, stage
from store.quota import DEFAULT_QUOTA_BYTES
from store.replica import MemberInfo, Replica
from store.validate import DEFAULT_MAX_TXN_OPS
from store.wire import field_bytes, field_varint

log = logging.getLogger(__name__)

VERSION: Final = "3.5.21"
"""What Status reports. Clients probe it: from 3.5.13 on they rely on progress answers (contract §16)."""
STORAGE_VERSION: Final = "3.5.0"
CLUSTER_VERSION: Final = (3, 5)
"""What all members can do."""
CLUSTER_VERSION_TEXT: Final = "{}.{}.0".format(*CLUSTER_VERSION)

DEFAULT_MAX_REQUEST_BYTES: Final = 1572864
MESSAGE_OVERHEAD_BYTES: Final = 512 * 1024
MAX_APPLY_LAG: Final = 5000
READY_WAIT_S: Final = 5.0
"""etcd's default for --wait-cluster-ready-timeout."""


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Limits of the services; the names follow etcd's flags."""

    max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES
    max_txn_ops: int = DEFAULT_MAX_TXN_OPS
    quota_bytes: int = DEFAULT_QUOTA_BYTES
    """0 is the default of 2 GiB; negative is no quota."""
    watch_progress_interval_s: float = 600.0

    @property
    def max_message_bytes(self) -> int:
        return self.max_request_bytes + MESSAGE_OVERHEAD_BYTES

    @property
    def effective_quota_bytes(self) -> int:
        return self.quota_bytes or DEFAULT_QUOTA_BYTES


class Reconfigure(Protocol):
    """Changing the members and the leader. Errors are EtcdError."""

    async def add(self, peer_urls: Sequence[str], is_learner: bool) -> tuple[MemberInfo, list[MemberInfo]]: ...
    async def remove(self, number: int) -> list[MemberInfo]: ...
    async def update(self, number: int, peer_urls: Sequence[str]) -> list[MemberInfo]: ...
    async def promote(self, number: int) -> list[MemberInfo]: ...
    async def move_leader(self, target: int) -> None: ...


class PeerTraffic(Protocol):
    """What the transport counts, by member."""

    @property
    def received_bytes(self) -> Mapping[int, int]: ...
    def sent_bytes(self) -> Mapping[int, int]: ...
    def round_trips(self) -> Mapping[int, Histogram]: ...
    def statistics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Plant:
    """The disk and the network under a member, as far as they measure themselves."""

    log_sync: Histogram
    transport: PeerTraffic
    pending: Callable[[], float]
    client_bytes: Callable[[], tuple[int, int]]
    """Received and sent."""


class ApiContext:
    """One per member; the servicers hold no state of their own."""

    def __init__(
        self,
        replica: Replica,
        machine: Machine,
        lessor: Lessor,
        options: ApiOptions | None = None,
        reconfigure: Reconfigure | None = None,
        observations: Observations | None = None,
    ) -> None:
        self.replica = replica
        self.machine = machine
        self.lessor = lessor
        self.options = options or ApiOptions()
        self._reconfigure = reconfigure
        self.observations = observations or Observations()
        self.plant: Plant | None = None
        self._caught_up = asyncio.Event()
        self._caught_up.set()
        self._header_ids = field_varint(b"\x08", replica.cluster_id) + field_varint(b"\x10", replica.member_id)
        self._header_key = (0, 0)
        self._header_term = b""
        self._header_field = b""

    @property
    def reconfigure(self) -> Reconfigure:
        """Membership operations; a replica without any answers that they are not implemented."""
        if self._reconfigure is None:
            raise unimplemented("kvorum: this replica is no member of a cluster")
        return self._reconfigure

    # -- headers ------------------------------------------------------------------------------------------

    def header(self, revision: int | None = None) -> rpc_pb2.ResponseHeader:
        """The outermost header, at the given or the current revision."""
        return rpc_pb2.ResponseHeader(
            cluster_id=self.replica.cluster_id,
            member_id=self.replica.member_id,
            revision=self.machine.revision if revision is None else revision,
            raft_term=self.replica.term,
        )

    def header_field(self, revision: int) -> bytes:
        """The same as field 1 of a response, encoded: once for all who are answered at one revision."""
        term = self.replica.term
        if (revision, term) != self._header_key:
            if term != self._header_key[1]:
                self._header_term = field_varint(b"\x20", term)
            self._header_key = (revision, term)
            numbers = field_varint(b"\x18", revision) + self._header_term
            self._header_field = field_bytes(b"\x0a", self._header_ids + numbers)
        return self._header_field

    # -- proposals ----------------------------------------------------------------------------------------

    async def propose(self, request: internal_pb2.InternalRequest) -> object:
        """Replicate a command unless this member is far behind in applying (contract §11)."""
        if self.replica.commit_index > self.replica.applied_index + MAX_APPLY_LAG:
            raise TOO_MANY_REQUESTS.again()
        stage("checks")
        try:
            return await self.replica.propose(request)
        except EtcdError as error:
            self.note_failed(error)
            raise
        finally:
            stage("agreement and apply")

    def note_failed(self, error: EtcdError) -> None:
        """Count a proposal that failed, other than by what the state refuses."""
        if error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
            self.observations.proposals_failed += 1

    async def read_barrier(self) -> None:
        """Wait until this member has applied all that was committed when the call began (contract §11)."""
        stage("checks")
        try:
            await self.replica.read_barrier()
        except EtcdError:
            self.observations.reads_failed += 1
            raise
        finally:
            stage("agreement on the read index")

    def hold(self) -> None:
        """Have ``until_caught_up`` wait until ``catch_up`` has ended. To be called before clients are served."""
        self._caught_up.clear()

    async def catch_up(self) -> None:
        """Hear from a leader how far this member's state has to be before it may be shown.

        A member that was killed may have shown more than its log knows to be committed; who reads the same member
        again must not see less. Without a leader it is shown all the same after ``READY_WAIT_S``, as by etcd.
        """
        try:
            async with asyncio.timeout(READY_WAIT_S):
                while not await self._heard_how_far():
                    continue
        except TimeoutError:
            log.warning("no leader in %g s: this member's state may show less than before its start", READY_WAIT_S)
        finally:
            self._caught_up.set()

    async def _heard_how_far(self) -> bool:
        try:
            await self.replica.read_barrier()
        except EtcdError as error:
            return error == STOPPED  # else another leader may tell
        return True

    async def until_caught_up(self) -> None:
        if not self._caught_up.is_set():
            await self._caught_up.wait()

    def has_space(self, cost: int) -> bool:
        """Whether the quota leaves room for ``cost`` more bytes."""
        quota = self.options.effective_quota_bytes
        return cost == 0 or quota < 0 or self.machine.sizes.total + cost < quota

    async def check_quota(self, cost: int) -> None:
        """Raise NO_SPACE, and the alarm, when the database has no room for ``cost`` more bytes."""
        if self.has_space(cost):
            return
        if (self.replica.member_id, rpc_pb2.NOSPACE) in self.machine.state.alarms:
            raise NO_SPACE.again()
        alarm = rpc_pb2.AlarmRequest(
            action=rpc_pb2.AlarmRequest.ACTIVATE, memberID=self.replica.member_id, alarm=rpc_pb2.NOSPACE
        )
        await self.propose(internal_pb2.InternalRequest(alarm=alarm))
        raise NO_SPACE.again()


def inner_header(revision: int) -> bytes:
    """The header of an answer inside a txn: only the revision, and none of that in a nested txn."""
    return field_bytes(b"\x0a", field_varint(b"\x18", revision))
