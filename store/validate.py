"""Checks of a request on its own, before quota, authentication and raft (contract §2-4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from store.errors import (
    DUPLICATE_KEY,
    EMPTY_KEY,
    INVALID_SORT_OPTION,
    KEY_NOT_FOUND,
    LEASE_PROVIDED,
    TOO_MANY_OPS,
    VALUE_PROVIDED,
)
from store.etcdpb import rpc_pb2

DEFAULT_MAX_TXN_OPS: Final = 128

_SORT_ORDERS: Final = frozenset(rpc_pb2.RangeRequest.SortOrder.values())
_SORT_TARGETS: Final = frozenset(rpc_pb2.RangeRequest.SortTarget.values())


def check_range(request: rpc_pb2.RangeRequest) -> None:
    if not request.key:
        raise EMPTY_KEY.again()
    if request.sort_order not in _SORT_ORDERS or request.sort_target not in _SORT_TARGETS:
        raise INVALID_SORT_OPTION.again()


def check_put(request: rpc_pb2.PutRequest) -> None:
    if not request.key:
        raise EMPTY_KEY.again()
    if request.ignore_value and request.value:
        raise VALUE_PROVIDED.again()
    if request.ignore_lease and request.lease:
        raise LEASE_PROVIDED.again()


def check_delete_range(request: rpc_pb2.DeleteRangeRequest) -> None:
    if not request.key:
        raise EMPTY_KEY.again()


def check_txn(request: rpc_pb2.TxnRequest, max_ops: int = DEFAULT_MAX_TXN_OPS) -> None:
    """Both branches, nested transactions included."""
    _check_ops_of(request, max_ops)
    _written_by(request.success)
    _written_by(request.failure)


def is_read_only(request: rpc_pb2.TxnRequest) -> bool:
    """Only ranges in both branches; a nested transaction, even of reads, makes it a write (contract §4.6)."""
    return all(op.WhichOneof("request") == "request_range" for op in _all_ops(request))


def is_serializable(request: rpc_pb2.TxnRequest) -> bool:
    """Of a read-only transaction: whether it may be answered from local state."""
    return all(op.request_range.serializable for op in _all_ops(request))


def _all_ops(request: rpc_pb2.TxnRequest) -> Iterable[rpc_pb2.RequestOp]:
    yield from request.success
    yield from request.failure


def _check_ops_of(request: rpc_pb2.TxnRequest, max_ops: int) -> None:
    used = max(len(request.compare), len(request.success), len(request.failure))
    if used > max_ops:
        raise TOO_MANY_OPS.again()
    for compare in request.compare:
        if not compare.key:
            raise EMPTY_KEY.again()
    for op in _all_ops(request):
        _check_op(op, max_ops - used)


def _check_op(op: rpc_pb2.RequestOp, ops_left: int) -> None:
    kind = op.WhichOneof("request")
    if kind == "request_range":
        check_range(op.request_range)
    elif kind == "request_put":
        check_put(op.request_put)
    elif kind == "request_delete_range":
        check_delete_range(op.request_delete_range)
    elif kind == "request_txn":
        _check_ops_of(op.request_txn, ops_left)
    else:
        raise KEY_NOT_FOUND.again()


_Ranges = list[tuple[bytes, bytes]]


def _written_by(ops: Sequence[rpc_pb2.RequestOp]) -> tuple[set[bytes], _Ranges]:
    """Keys put and ranges deleted by one branch. Raises DUPLICATE_KEY where one execution may put a key twice,
    or put and delete it (contract §4.5; the branches of one nested transaction exclude each other, and
    siblings are compared in order)."""
    puts: set[bytes] = set()
    deletes: _Ranges = [
        (op.request_delete_range.key, op.request_delete_range.range_end)
        for op in ops
        if op.WhichOneof("request") == "request_delete_range"
    ]
    for op in ops:
        if op.WhichOneof("request") == "request_txn":
            then_puts, then_deletes = _written_by(op.request_txn.success)
            else_puts, else_deletes = _written_by(op.request_txn.failure)
            _refuse_overlap(then_puts | else_puts, puts, deletes)
            puts |= then_puts | else_puts
            deletes += then_deletes + else_deletes
    for op in ops:
        if op.WhichOneof("request") == "request_put":
            key = op.request_put.key
            _refuse_overlap({key}, puts, deletes)
            puts.add(key)
    return puts, deletes


def _refuse_overlap(new: set[bytes], puts: set[bytes], deletes: _Ranges) -> None:
    if not new.isdisjoint(puts):
        raise DUPLICATE_KEY.again()
    for key in new:
        for start, end in deletes:
            # A range_end of 0x00 holds no key when compared as bytes: etcd lets such a delete pass, and so
            # do we (contract §4.5, quirk).
            if (start <= key < end) if end else key == start:
                raise DUPLICATE_KEY.again()
