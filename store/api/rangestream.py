"""RangeStream: a large range in parts that all show one revision (contract §2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from store.api import encode
from store.api.context import ApiContext
from store.errors import unimplemented
from store.etcdpb import rpc_pb2
from store.mvcc.ranges import check_revision
from store.wire import field_bytes, key_of, unframe

FIRST_PART_KEYS: Final = 10


def check_streamable(request: rpc_pb2.RangeRequest) -> None:
    """Raise UNIMPLEMENTED for what needs the whole answer before the first part."""
    natural = request.sort_order == rpc_pb2.RangeRequest.NONE or (
        request.sort_order == rpc_pb2.RangeRequest.ASCEND and request.sort_target == rpc_pb2.RangeRequest.KEY
    )
    if not natural:
        raise unimplemented("RangeStream does not support custom sort orders")
    if (
        request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    ):
        raise unimplemented("RangeStream does not support revision filters")


async def range_parts(api: ApiContext, request: rpc_pb2.RangeRequest) -> AsyncIterator[bytes]:
    """Encoded RangeStreamResponses. Only the last carries header, more and count, so that merging all of them
    gives the answer of Range. Raises COMPACTED when a compaction overtakes the stream."""
    machine, began = api.machine, api.machine.revision
    check_revision(request.revision, began, machine.compact_revision)
    part = rpc_pb2.RangeRequest()
    part.CopyFrom(request)
    part.revision = request.revision if request.revision > 0 else began
    part.ClearField("sort_order")
    part.ClearField("sort_target")
    step, sent = FIRST_PART_KEYS, 0
    while True:
        left = request.limit - sent if request.limit > 0 else step
        part.limit = min(step, left)
        result = await machine.range(part)
        is_last = not result.more or (request.limit > 0 and len(result.pairs) == left)
        if is_last:
            result.count += sent
            yield _message(encode.range_response(api.header_field(began), result))
            return
        body = b"".join(result.pairs)
        yield _message(body)
        sent += len(result.pairs)
        part.key = key_of(unframe(result.pairs[-1])) + b"\x00"
        step = _next_step(step, len(body), api.options.max_request_bytes)


def _message(body: bytes) -> bytes:
    return field_bytes(b"\x0a", body)


def _next_step(step: int, size_bytes: int, target_bytes: int) -> int:
    """Aim at parts of about the largest request, in a few steps."""
    if size_bytes < target_bytes // 2:
        return step * 2
    return max(1, step // 2) if size_bytes > target_bytes * 2 else step
