"""Changing the key space: puts, range deletes and transactions, all in one new revision (contract §3, §4).

A WriteTxn checks everything that can fail before it changes anything, so there is no rollback: what has begun
to execute completes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import eq, gt, lt, ne
from typing import Any

from store.errors import KEY_NOT_FOUND, LEASE_NOT_FOUND, TOO_MANY_CHANGES
from store.etcdpb import rpc_pb2
from store.leases import LeaseBook
from store.mvcc.index import KeyIndex
from store.mvcc.position import MAX_SUB, SUB_BITS
from store.mvcc.ranges import RangeResult, Selection, check_revision, select
from store.mvcc.record import Event, Version, tombstone
from store.wire import encode_pair

_RESULTS: dict[int, Callable[[Any, Any], bool]] = {
    rpc_pb2.Compare.EQUAL: eq,
    rpc_pb2.Compare.GREATER: gt,
    rpc_pb2.Compare.LESS: lt,
    rpc_pb2.Compare.NOT_EQUAL: ne,
}


@dataclass(slots=True)
class PutResult:
    revision: int
    prev: Version | None


@dataclass(slots=True)
class DeleteResult:
    revision: int
    deleted: int
    prevs: Sequence[Version]


@dataclass(slots=True)
class TxnResult:
    """``responses[i]`` answers operation i of the branch that was taken. An entry may still be a Selection,
    where a range at an older revision has to be read."""

    revision: int
    succeeded: bool
    responses: list[OpResult] = field(default_factory=list)


OpResult = PutResult | DeleteResult | RangeResult | Selection | TxnResult


@dataclass(slots=True)
class Plan:
    """The branch a transaction takes, with nested ones decided too: all compares see the state before it."""

    succeeded: bool
    ops: Sequence[rpc_pb2.RequestOp]
    nested: dict[int, Plan]


def plan(index: KeyIndex, request: rpc_pb2.TxnRequest) -> Plan:
    succeeded = all(holds(index, compare) for compare in request.compare)
    ops = request.success if succeeded else request.failure
    nested = {
        i: plan(index, op.request_txn) for i, op in enumerate(ops) if op.WhichOneof("request") == "request_txn"
    }
    return Plan(succeeded, ops, nested)


def holds(index: KeyIndex, compare: rpc_pb2.Compare) -> bool:
    """Whether one compare is true of every key of its range; an empty range counts as a missing key."""
    result = _RESULTS.get(compare.result)
    versions = index.live_in(compare.key, compare.range_end)
    if compare.target == rpc_pb2.Compare.VALUE:
        given = compare.value
        return bool(versions) and (result is None or all(result(v.value, given) for v in versions))
    if result is None:
        return True
    read, wanted = _numbers(compare)
    if not versions:
        return result(0, wanted)
    return all(result(read(v), wanted) for v in versions)


def _numbers(compare: rpc_pb2.Compare) -> tuple[Callable[[Version], int], int]:
    target = compare.target
    if target == rpc_pb2.Compare.VERSION:
        return (lambda v: v.version), compare.version
    if target == rpc_pb2.Compare.CREATE:
        return (lambda v: v.create), compare.create_revision
    if target == rpc_pb2.Compare.MOD:
        return (lambda v: v.mod), compare.mod_revision
    if target == rpc_pb2.Compare.LEASE:
        return (lambda v: v.lease), compare.lease
    return (lambda v: 0), 0


class WriteTxn:
    """One revision in the making. ``events`` are its changes in execution order; ``unread`` are its ranges whose
    older versions have to be read afterwards."""

    __slots__ = ("compacted", "events", "index", "leases", "main", "unread")

    def __init__(self, index: KeyIndex, leases: LeaseBook, revision: int, compacted: int) -> None:
        self.index = index
        self.leases = leases
        self.main = revision + 1
        self.compacted = compacted
        self.events: list[Event] = []
        self.unread: list[Selection] = []

    @property
    def revision(self) -> int:
        """What a header inside the transaction says now: the new revision once something has changed."""
        return self.main if self.events else self.main - 1

    # -- checks, before anything changes ------------------------------------------------------------------

    def check_put(self, request: rpc_pb2.PutRequest) -> None:
        """What a put of its own may be refused for. Inside a transaction etcd looks at the key first."""
        self._check_lease(request)
        self._check_kept_parts(request)

    def _check_lease(self, request: rpc_pb2.PutRequest) -> None:
        if request.lease and request.lease not in self.leases:
            raise LEASE_NOT_FOUND.again()

    def _check_kept_parts(self, request: rpc_pb2.PutRequest) -> None:
        if (request.ignore_value or request.ignore_lease) and request.key not in self.index.live:
            raise KEY_NOT_FOUND.again()

    def check_plan(self, chosen: Plan) -> None:
        """Everything that can fail in the chosen branches (contract §4.4)."""
        if len(self.index.live) + 256 > MAX_SUB and self._upper_bound(chosen) > MAX_SUB:
            raise TOO_MANY_CHANGES.again()
        # Every put is checked before any range: it decides which refusal a client sees.
        self._check_puts(chosen)
        self._check_ranges(chosen)

    def _check_puts(self, chosen: Plan) -> None:
        for i, op in enumerate(chosen.ops):
            kind = op.WhichOneof("request")
            if kind == "request_put":
                self._check_kept_parts(op.request_put)
                self._check_lease(op.request_put)
            elif kind == "request_txn":
                self._check_puts(chosen.nested[i])

    def _check_ranges(self, chosen: Plan) -> None:
        for i, op in enumerate(chosen.ops):
            kind = op.WhichOneof("request")
            if kind == "request_range":
                check_revision(op.request_range.revision, self.main - 1, self.compacted, in_txn=True)
            elif kind == "request_txn":
                self._check_ranges(chosen.nested[i])

    def check_size(self, changes: int) -> None:
        if changes > MAX_SUB:
            raise TOO_MANY_CHANGES.again()

    def _upper_bound(self, chosen: Plan) -> int:
        total = 0
        for i, op in enumerate(chosen.ops):
            kind = op.WhichOneof("request")
            if kind == "request_delete_range":
                request = op.request_delete_range
                total += self.index.count(request.key, request.range_end)
            total += self._upper_bound(chosen.nested[i]) if kind == "request_txn" else 1
        return total

    # -- changes ------------------------------------------------------------------------------------------

    def put(self, request: rpc_pb2.PutRequest) -> PutResult:
        key, value, lease, main = request.key, request.value, request.lease, self.main
        prev = self.index.live.get(key)
        if prev is None:
            create, count, old_lease = main, 1, 0
        else:
            key, create, count, old_lease = prev.key, prev.create, prev.version + 1, prev.lease
            if request.ignore_value:
                value = prev.value
            if request.ignore_lease:
                lease = old_lease
        framed = encode_pair(key, value, create, main, count, lease)
        version = Version(key, framed, main << SUB_BITS | len(self.events), create, count, lease)
        self.index.put(version)
        if lease != old_lease:
            self.leases.move(key, old_lease, lease)
        self.events.append(Event(version, prev))
        return PutResult(main, prev if request.prev_kv else None)

    def delete_range(self, request: rpc_pb2.DeleteRangeRequest) -> DeleteResult:
        victims = self.index.live_in(request.key, request.range_end)
        for version in victims:
            self.delete(version)
        return DeleteResult(self.revision, len(victims), victims if request.prev_kv else ())

    def delete(self, version: Version) -> None:
        pos = self.main << SUB_BITS | len(self.events)
        self.index.delete(version.key, pos)
        if version.lease:
            self.leases.move(version.key, version.lease, 0)
        self.events.append(Event(tombstone(version.key, pos), version))

    def range(self, request: rpc_pb2.RangeRequest) -> RangeResult | Selection:
        selection = select(self.index, request, self.revision, self.revision)
        if not selection.missing():
            return selection.finish()
        self.unread.append(selection)
        return selection

    def execute(self, chosen: Plan) -> TxnResult:
        """Run the chosen branch; later operations see earlier ones."""
        responses: list[OpResult] = []
        for i, op in enumerate(chosen.ops):
            kind = op.WhichOneof("request")
            if kind == "request_put":
                responses.append(self.put(op.request_put))
            elif kind == "request_range":
                responses.append(self.range(op.request_range))
            elif kind == "request_delete_range":
                responses.append(self.delete_range(op.request_delete_range))
            else:
                nested = self.execute(chosen.nested[i])
                nested.revision = 0
                responses.append(nested)
        return TxnResult(self.revision, chosen.succeeded, responses)
