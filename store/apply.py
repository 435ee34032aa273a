"""Applying one replicated command to the state (contract §1, §3-5, §7, §9).

Deterministic: no clock, no randomness, no await, nothing read that is not replicated. A refusal is a result
like any other; every member refuses alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from store.errors import (
    COMPACTED,
    CORRUPT,
    FUTURE_REVISION,
    LEASE_EXISTS,
    LEASE_NOT_FOUND,
    LEASE_TTL_TOO_LARGE,
    NO_SPACE,
    EtcdError,
)
from store.etcdpb import internal_pb2, rpc_pb2
from store.leases import MAX_TTL_S, Lease
from store.mvcc.ranges import Selection
from store.mvcc.record import Event
from store.mvcc.txn import DeleteResult, PutResult, TxnResult, WriteTxn, plan
from store.quota import txn_cost
from store.state import ALARM, LEASE, MEMBERS, SCHEDULED_COMPACTION, State, revision_bytes


class Changes(Protocol):
    """Where the effects of applying go: to the write buffer, the watchers and the lessor."""

    def committed(self, revision: int, events: Sequence[Event]) -> None:
        """A new revision with these changes; the state already shows it."""

    def store(self, bucket: str, key: bytes, value: bytes | None) -> None: ...
    def lease_granted(self, lease: Lease) -> None: ...
    def lease_revoked(self, lease_id: int) -> None: ...
    def compacted(self, revision: int) -> None: ...
    def unread(self, selections: Sequence[Selection]) -> None:
        """Rows that somebody may still have to read for the answer."""


@dataclass(slots=True)
class Done:
    """A result that is only a revision for the header."""

    revision: int


@dataclass(slots=True)
class LeaseResult:
    revision: int
    id: int
    ttl_s: int


@dataclass(slots=True)
class AlarmResult:
    revision: int
    alarms: list[tuple[int, int]]


Result = PutResult | DeleteResult | TxnResult | Done | LeaseResult | AlarmResult


class Applier:
    """Applies commands to ``state`` and reports what changed."""

    def __init__(self, state: State, changes: Changes) -> None:
        self.state = state
        self._changes = changes
        self._others: dict[str, Callable[[Any], Result]] = {
            "delete_range": self._delete_range,
            "compaction": self._compact,
            "lease_grant": self._lease_grant,
            "lease_revoke": self._lease_revoke,
            "lease_checkpoint": self._lease_checkpoint,
            "alarm": self._alarm,
            "member_attributes": self._member_attributes,
        }

    def apply(self, request: internal_pb2.InternalRequest) -> Result | EtcdError:
        """The outcome of one command. Never raises for what a command asks."""
        try:
            if request.HasField("put"):
                return self._put(request.put)
            if request.HasField("txn"):
                return self._txn(request.txn)
            for field, command in request.ListFields():
                if (handler := self._others.get(field.name)) is not None:
                    return handler(command)
            return Done(self.state.revision)
        except EtcdError as refusal:
            return refusal

    # -- key space ----------------------------------------------------------------------------------------

    def _put(self, request: rpc_pb2.PutRequest) -> Result:
        if self.state.alarms:
            self._refuse(corrupt=True, no_space=True)
        txn = self._begin()
        if request.lease or request.ignore_value or request.ignore_lease:
            txn.check_put(request)
        result = txn.put(request)
        self._commit(txn)
        return result

    def _delete_range(self, request: rpc_pb2.DeleteRangeRequest) -> Result:
        self._refuse(corrupt=True)
        txn = self._begin()
        if request.range_end:
            txn.check_size(self.state.index.count(request.key, request.range_end))
        result = txn.delete_range(request)
        self._commit(txn)
        return result

    def _txn(self, request: rpc_pb2.TxnRequest) -> Result:
        if self.state.alarms:
            self._refuse(corrupt=True, no_space=txn_cost(request) > 0)
        chosen = plan(self.state.index, request)
        txn = self._begin()
        txn.check_plan(chosen)
        result = txn.execute(chosen)
        if txn.unread:
            self._changes.unread(txn.unread)
        self._commit(txn)
        return result

    def _begin(self) -> WriteTxn:
        state = self.state
        return WriteTxn(state.index, state.leases, state.revision, state.compact_revision)

    def _commit(self, txn: WriteTxn) -> None:
        if txn.events:
            self.state.revision = txn.main
            self._changes.committed(txn.main, txn.events)

    def _compact(self, request: rpc_pb2.CompactionRequest) -> Result:
        self._refuse(corrupt=True)
        state, revision = self.state, request.revision
        if revision <= state.compact_revision:
            raise COMPACTED.again()
        if revision > state.revision:
            raise FUTURE_REVISION.again()
        state.compact_revision = revision
        self._changes.store(*SCHEDULED_COMPACTION, revision_bytes(revision))
        self._changes.compacted(revision)
        return Done(state.revision)

    # -- leases -------------------------------------------------------------------------------------------

    def _lease_grant(self, request: rpc_pb2.LeaseGrantRequest) -> Result:
        self._refuse(corrupt=True, no_space=True)
        if request.ID == 0:
            raise LEASE_NOT_FOUND.again()
        if request.TTL > MAX_TTL_S:
            raise LEASE_TTL_TOO_LARGE.again()
        if request.ID in self.state.leases:
            raise LEASE_EXISTS.again()
        lease = Lease(request.ID, request.TTL)
        self.state.leases.add(lease)
        self._store_lease(lease)
        self._changes.lease_granted(lease)
        return LeaseResult(self.state.revision, lease.id, lease.ttl_s)

    def _lease_revoke(self, request: rpc_pb2.LeaseRevokeRequest) -> Result:
        self._refuse(corrupt=True)
        lease = self.state.leases.get(request.ID)
        if lease is None:
            raise LEASE_NOT_FOUND.again()
        txn = self._begin()
        txn.check_size(len(lease.keys))
        live = self.state.index.live
        for key in sorted(lease.keys):
            txn.delete(live[key])
        self.state.leases.remove(lease.id)
        self._changes.store(LEASE, lease_key(lease.id), None)
        self._commit(txn)
        self._changes.lease_revoked(lease.id)
        return Done(self.state.revision)

    def _lease_checkpoint(self, request: rpc_pb2.LeaseCheckpointRequest) -> Result:
        for checkpoint in request.checkpoints:
            lease = self.state.leases.get(checkpoint.ID)
            if lease is not None:
                lease.remaining_s = checkpoint.remaining_TTL
                self._store_lease(lease)
        return Done(self.state.revision)

    def _store_lease(self, lease: Lease) -> None:
        self._changes.store(LEASE, lease_key(lease.id), lease.encode())

    # -- alarms and members -------------------------------------------------------------------------------

    def _alarm(self, request: rpc_pb2.AlarmRequest) -> Result:
        alarms, entry = self.state.alarms, (request.memberID, request.alarm)
        found: list[tuple[int, int]] = []
        if request.action == rpc_pb2.AlarmRequest.GET:
            found = sorted(a for a in alarms if request.alarm in (rpc_pb2.NONE, a[1]))
        elif request.action == rpc_pb2.AlarmRequest.ACTIVATE:
            if request.alarm != rpc_pb2.NONE:
                found = [entry]
                if entry not in alarms:
                    alarms.add(entry)
                    self._changes.store(ALARM, _alarm_key(entry), b"")
        elif entry in alarms:
            found = [entry]
            alarms.remove(entry)
            self._changes.store(ALARM, _alarm_key(entry), None)
        return AlarmResult(self.state.revision, found)

    def _refuse(self, *, corrupt: bool = False, no_space: bool = False) -> None:
        """Raise when an alarm of any member forbids the command (contract §9)."""
        kinds = {kind for _, kind in self.state.alarms}
        if corrupt and rpc_pb2.CORRUPT in kinds:
            raise CORRUPT.again()
        if no_space and rpc_pb2.NOSPACE in kinds:
            raise NO_SPACE.again()

    def _member_attributes(self, request: internal_pb2.MemberAttributes) -> Result:
        """A started member publishes its name and client URLs; an unknown id changes nothing."""
        key = b"%x" % request.member_id
        members = self.state.bucket(MEMBERS)
        stored = members.get(key)
        if stored is not None:
            member = json.loads(stored)
            member["name"] = request.name
            member["clientURLs"] = list(request.client_urls)
            members[key] = json.dumps(member, separators=(",", ":")).encode()
            self._changes.store(MEMBERS, key, members[key])
        return Done(self.state.revision)


def lease_key(lease_id: int) -> bytes:
    return lease_id.to_bytes(8, "big", signed=True)


def _alarm_key(entry: tuple[int, int]) -> bytes:
    member_id, kind = entry
    alarm = rpc_pb2.AlarmMember(memberID=member_id)
    alarm.alarm = kind  # type: ignore[assignment]  # any number travels through an open enum
    return alarm.SerializeToString()
