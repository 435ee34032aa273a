"""Encoding answers of the KV service by joining ready-made bytes (see store.wire)."""

from __future__ import annotations

from store.api.context import inner_header
from store.mvcc.ranges import RangeResult, Selection
from store.mvcc.txn import DeleteResult, OpResult, PutResult, TxnResult
from store.wire import field_bytes, field_varint


def range_response(header: bytes, result: RangeResult) -> bytes:
    tail = (b"\x18\x01" if result.more else b"") + field_varint(b"\x20", result.count)
    return b"".join((header, *result.pairs, tail))


def put_response(header: bytes, result: PutResult) -> bytes:
    return header if result.prev is None else header + result.prev.framed


def delete_response(header: bytes, result: DeleteResult) -> bytes:
    prevs = (b"\x1a" + prev.framed[1:] for prev in result.prevs)
    return b"".join((header, field_varint(b"\x10", result.deleted), *prevs))


def txn_response(header: bytes, result: TxnResult) -> bytes:
    succeeded = b"\x10\x01" if result.succeeded else b""
    return b"".join((header, succeeded, *map(_op, result.responses)))


def _op(result: OpResult) -> bytes:
    """One ResponseOp as element of TxnResponse.responses."""
    if isinstance(result, Selection):
        raise TypeError("the transaction's ranges have not been read")
    header = inner_header(result.revision)
    if isinstance(result, RangeResult):
        body = field_bytes(b"\x0a", range_response(header, result))
    elif isinstance(result, PutResult):
        body = field_bytes(b"\x12", put_response(header, result))
    elif isinstance(result, DeleteResult):
        body = field_bytes(b"\x1a", delete_response(header, result))
    else:
        body = field_bytes(b"\x22", txn_response(header, result))
    return field_bytes(b"\x1a", body)
