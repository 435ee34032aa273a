"""The key space, obviously right: a whole dictionary per revision, every rule spelled out once and slowly.

Answers are protobuf messages without outer headers, to be compared with the decoded answers of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import eq, gt, lt, ne
from typing import NamedTuple

from store import errors
from store.errors import EtcdError
from store.etcdpb import kv_pb2, rpc_pb2

_OPERATORS = {
    rpc_pb2.Compare.EQUAL: eq,
    rpc_pb2.Compare.GREATER: gt,
    rpc_pb2.Compare.LESS: lt,
    rpc_pb2.Compare.NOT_EQUAL: ne,
}


class Pair(NamedTuple):
    value: bytes
    create: int
    mod: int
    version: int
    lease: int


Keys = dict[bytes, Pair]


def message(key: bytes, pair: Pair) -> kv_pb2.KeyValue:
    return kv_pb2.KeyValue(
        key=key,
        value=pair.value,
        create_revision=pair.create,
        mod_revision=pair.mod,
        version=pair.version,
        lease=pair.lease,
    )


def inside(key: bytes, start: bytes, end: bytes) -> bool:
    if not end:
        return key == start
    return key >= start and (end == b"\x00" or key < end)


def _name(request: rpc_pb2.TxnRequest) -> bytes:
    return request.SerializeToString(deterministic=True)


class Model:
    def __init__(self) -> None:
        self.at: dict[int, Keys] = {1: {}}
        self.revision = 1
        self.compacted = -1
        self.leases: set[int] = set()
        self.events: list[tuple[int, kv_pb2.Event]] = []

    @property
    def now(self) -> Keys:
        return self.at[self.revision]

    # -- commands -----------------------------------------------------------------------------------------

    def put(self, request: rpc_pb2.PutRequest) -> rpc_pb2.PutResponse:
        self._check_put(request)
        work = _Work(self)
        response = work.put(request)
        work.commit()
        return response

    def delete_range(self, request: rpc_pb2.DeleteRangeRequest) -> rpc_pb2.DeleteRangeResponse:
        work = _Work(self)
        response = work.delete(request)
        work.commit()
        return response

    def txn(self, request: rpc_pb2.TxnRequest) -> rpc_pb2.TxnResponse:
        decided = self._decide(request)
        self._check_puts(request, decided)
        self._check_ranges(request, decided)
        work = _Work(self)
        response = work.txn(request, decided)
        work.commit()
        return response

    def compact(self, revision: int) -> None:
        if revision <= self.compacted:
            raise errors.COMPACTED.again()
        if revision > self.revision:
            raise errors.FUTURE_REVISION.again()
        self.compacted = revision

    def grant(self, lease: int) -> None:
        if lease in self.leases:
            raise errors.LEASE_EXISTS.again()
        self.leases.add(lease)

    def revoke(self, lease: int) -> None:
        if lease not in self.leases:
            raise errors.LEASE_NOT_FOUND.again()
        work = _Work(self)
        for key in sorted(k for k, pair in self.now.items() if pair.lease == lease):
            work.delete(rpc_pb2.DeleteRangeRequest(key=key))
        work.commit()
        self.leases.remove(lease)

    def range(self, request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
        if request.revision > self.revision:
            raise errors.FUTURE_REVISION.again()
        if 0 < request.revision < self.compacted:
            raise errors.COMPACTED.again()
        return answer(request, self.at[request.revision if request.revision > 0 else self.revision])

    # -- deciding before doing ----------------------------------------------------------------------------

    def _decide(self, request: rpc_pb2.TxnRequest) -> dict[bytes, bool]:
        """The outcome of the compares of this and of every nested transaction: equal ones decide alike."""
        decided = {_name(request): all(self._holds(c) for c in request.compare)}
        for op in (*request.success, *request.failure):
            if op.HasField("request_txn"):
                decided |= self._decide(op.request_txn)
        return decided

    def _holds(self, compare: rpc_pb2.Compare) -> bool:
        pairs = [p for k, p in self.now.items() if inside(k, compare.key, compare.range_end)]
        operator = _OPERATORS[compare.result]
        target = compare.target
        if target == rpc_pb2.Compare.VALUE:
            return bool(pairs) and all(operator(p.value, compare.value) for p in pairs)
        pairs = pairs or [Pair(b"", 0, 0, 0, 0)]
        if target == rpc_pb2.Compare.VERSION:
            return all(operator(p.version, compare.version) for p in pairs)
        if target == rpc_pb2.Compare.CREATE:
            return all(operator(p.create, compare.create_revision) for p in pairs)
        if target == rpc_pb2.Compare.MOD:
            return all(operator(p.mod, compare.mod_revision) for p in pairs)
        return all(operator(p.lease, compare.lease) for p in pairs)

    def _check_puts(self, request: rpc_pb2.TxnRequest, decided: dict[bytes, bool]) -> None:
        for op in request.success if decided[_name(request)] else request.failure:
            if op.HasField("request_put"):
                self._check_put(op.request_put)
            elif op.HasField("request_txn"):
                self._check_puts(op.request_txn, decided)

    def _check_ranges(self, request: rpc_pb2.TxnRequest, decided: dict[bytes, bool]) -> None:
        for op in request.success if decided[_name(request)] else request.failure:
            if op.HasField("request_range"):
                if op.request_range.revision > self.revision:
                    raise errors.FUTURE_REVISION.again()
                if op.request_range.revision != 0 and op.request_range.revision < self.compacted:
                    raise errors.COMPACTED.again()
            elif op.HasField("request_txn"):
                self._check_ranges(op.request_txn, decided)

    def _check_put(self, request: rpc_pb2.PutRequest) -> None:
        if request.lease and request.lease not in self.leases:
            raise errors.LEASE_NOT_FOUND.again()
        if (request.ignore_value or request.ignore_lease) and request.key not in self.now:
            raise errors.KEY_NOT_FOUND.again()


class _Work:
    """A transaction at work on a copy of the newest keys."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.keys = dict(model.now)
        self.next = model.revision + 1
        self.events: list[kv_pb2.Event] = []

    @property
    def header(self) -> rpc_pb2.ResponseHeader:
        return rpc_pb2.ResponseHeader(revision=self.next if self.events else self.next - 1)

    def commit(self) -> None:
        if self.events:
            self.model.revision = self.next
            self.model.at[self.next] = self.keys
            self.model.events += [(self.next, event) for event in self.events]

    def put(self, request: rpc_pb2.PutRequest) -> rpc_pb2.PutResponse:
        old = self.keys.get(request.key)
        value, lease = request.value, request.lease
        if old is not None and request.ignore_value:
            value = old.value
        if old is not None and request.ignore_lease:
            lease = old.lease
        pair = Pair(value, old.create if old else self.next, self.next, old.version + 1 if old else 1, lease)
        self.keys[request.key] = pair
        event = kv_pb2.Event(kv=message(request.key, pair))
        response = rpc_pb2.PutResponse()
        if old is not None:
            event.prev_kv.CopyFrom(message(request.key, old))
            if request.prev_kv:
                response.prev_kv.CopyFrom(message(request.key, old))
        self.events.append(event)
        return response

    def delete(self, request: rpc_pb2.DeleteRangeRequest) -> rpc_pb2.DeleteRangeResponse:
        response = rpc_pb2.DeleteRangeResponse()
        for key in sorted(k for k in self.keys if inside(k, request.key, request.range_end)):
            old = message(key, self.keys.pop(key))
            dead = kv_pb2.KeyValue(key=key, mod_revision=self.next)
            self.events.append(kv_pb2.Event(type=kv_pb2.Event.DELETE, kv=dead, prev_kv=old))
            response.deleted += 1
            if request.prev_kv:
                response.prev_kvs.append(old)
        return response

    def txn(self, request: rpc_pb2.TxnRequest, decided: dict[bytes, bool]) -> rpc_pb2.TxnResponse:
        response = rpc_pb2.TxnResponse(succeeded=decided[_name(request)])
        for op in request.success if response.succeeded else request.failure:
            inner = response.responses.add()
            if op.HasField("request_put"):
                inner.response_put.CopyFrom(self.put(op.request_put))
                inner.response_put.header.CopyFrom(self.header)
            elif op.HasField("request_delete_range"):
                inner.response_delete_range.CopyFrom(self.delete(op.request_delete_range))
                inner.response_delete_range.header.CopyFrom(self.header)
            elif op.HasField("request_range"):
                asked = op.request_range.revision
                old = 0 < asked < self.next and (self.events or asked < self.next - 1)
                inner.response_range.CopyFrom(answer(op.request_range, self.model.at[asked] if old else self.keys))
                inner.response_range.header.CopyFrom(self.header)
            else:
                inner.response_txn.CopyFrom(self.txn(op.request_txn, decided))
                inner.response_txn.header.CopyFrom(rpc_pb2.ResponseHeader())
        return response


def answer(request: rpc_pb2.RangeRequest, keys: Keys) -> rpc_pb2.RangeResponse:
    """A range over one dictionary, by the letter of contract §2."""
    found = [(k, keys[k]) for k in sorted(keys) if inside(k, request.key, request.range_end)]
    response = rpc_pb2.RangeResponse(count=len(found))
    if request.count_only:
        return response
    order, target, limit = request.sort_order, request.sort_target, request.limit
    if limit > 0 and order == rpc_pb2.RangeRequest.NONE and not _filters(request):
        found = found[: limit + 1]
    found = [(k, p) for k, p in found if _passes(request, p)]
    if order == rpc_pb2.RangeRequest.NONE and target != rpc_pb2.RangeRequest.KEY:
        order = rpc_pb2.RangeRequest.ASCEND
    if order != rpc_pb2.RangeRequest.NONE:
        found.sort(key=lambda entry: _sort_key(target, *entry), reverse=order == rpc_pb2.RangeRequest.DESCEND)
    response.more = 0 < limit < len(found)
    for key, pair in found[:limit] if limit > 0 else found:
        kv = message(key, pair)
        if request.keys_only:
            kv.ClearField("value")
        response.kvs.append(kv)
    return response


def _filters(request: rpc_pb2.RangeRequest) -> bool:
    return bool(
        request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    )


def _passes(request: rpc_pb2.RangeRequest, pair: Pair) -> bool:
    return (
        (not request.min_mod_revision or pair.mod >= request.min_mod_revision)
        and (not request.max_mod_revision or pair.mod <= request.max_mod_revision)
        and (not request.min_create_revision or pair.create >= request.min_create_revision)
        and (not request.max_create_revision or pair.create <= request.max_create_revision)
    )


def _sort_key(target: int, key: bytes, pair: Pair) -> bytes | int:
    if target == rpc_pb2.RangeRequest.VERSION:
        return pair.version
    if target == rpc_pb2.RangeRequest.CREATE:
        return pair.create
    if target == rpc_pb2.RangeRequest.MOD:
        return pair.mod
    if target == rpc_pb2.RangeRequest.VALUE:
        return pair.value
    return key


def hashed_entries(model: Model, revision: int) -> Iterable[tuple[int, kv_pb2.Event]]:
    """The changes that HashKV at ``revision`` covers, with their revisions (contract §9)."""
    visible = {(k, p.mod) for k, p in model.at[revision].items()}
    for main, event in model.events:
        if main <= revision and (
            main > model.compacted or (event.type == kv_pb2.Event.PUT and (event.kv.key, main) in visible)
        ):
            yield main, event


__all__ = ["EtcdError", "Model", "answer", "hashed_entries"]
