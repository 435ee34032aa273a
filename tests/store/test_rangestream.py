"""RangeStream is Range in parts: merged, they are the same answer (contract §2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from store.api.rangestream import range_parts
from store.errors import COMPACTED, EtcdError
from store.etcdpb import rpc_pb2, rpc_pb2_grpc
from tests.store.loopback import Node, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Node, Any]]:
    async with (
        serving(tmp_path / "state.db") as node,
        grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel,
    ):
        kv: Any = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
        for i in range(100):
            await kv.Put(rpc_pb2.PutRequest(key=b"k%03d" % i, value=b"v" * i))
        yield node, kv


async def _stream(kv: Any, request: rpc_pb2.RangeRequest) -> list[rpc_pb2.RangeResponse]:
    return [part.range_response async for part in kv.RangeStream(request)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"limit": 7},
        {"limit": 30},
        {"limit": 500},
        {"revision": 50},
        {"count_only": True},
        {"keys_only": True},
        {"key": b"k005", "range_end": b""},
        {"key": b"x", "range_end": b"y"},
        {"sort_order": rpc_pb2.RangeRequest.ASCEND},
    ],
)
async def test_the_parts_merge_to_the_answer_of_range(served: tuple[Node, Any], options: dict[str, Any]) -> None:
    _, kv = served
    request = rpc_pb2.RangeRequest(**{"key": b"k", "range_end": b"l", **options})
    merged = rpc_pb2.RangeResponse()
    parts = await _stream(kv, request)
    for part in parts:
        merged.MergeFrom(part)
    assert merged == await kv.Range(request)
    assert [part.HasField("header") for part in parts] == [False] * (len(parts) - 1) + [True]


async def test_all_parts_show_the_revision_of_the_first(served: tuple[Node, Any]) -> None:
    node, kv = served
    call = kv.RangeStream(rpc_pb2.RangeRequest(key=b"k", range_end=b"l"))
    first = await call.read()
    await kv.DeleteRange(rpc_pb2.DeleteRangeRequest(key=b"k", range_end=b"l"))
    await node.machine.flush()
    keys = [kv.key for kv in first.range_response.kvs]
    while part := await call.read():
        keys += [kv.key for kv in part.range_response.kvs]
    assert keys == [b"k%03d" % i for i in range(100)]


async def test_a_compaction_that_overtakes_the_stream_ends_it(served: tuple[Node, Any]) -> None:
    node, kv = served
    parts = range_parts(node.api, rpc_pb2.RangeRequest(key=b"k", range_end=b"l"))
    assert await anext(parts)
    pinned = node.machine.revision
    await kv.Put(rpc_pb2.PutRequest(key=b"k000"))
    await kv.Compact(rpc_pb2.CompactionRequest(revision=pinned))
    assert await anext(parts)  # the compacted revision itself can be read
    await kv.Compact(rpc_pb2.CompactionRequest(revision=pinned + 1))
    with pytest.raises(EtcdError) as caught:
        await anext(parts)
    assert caught.value == COMPACTED


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sort_order": rpc_pb2.RangeRequest.DESCEND}, "RangeStream does not support custom sort orders"),
        ({"min_mod_revision": 3}, "RangeStream does not support revision filters"),
    ],
)
async def test_what_cannot_be_streamed(served: tuple[Node, Any], options: dict[str, Any], text: str) -> None:
    _, kv = served
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _stream(kv, rpc_pb2.RangeRequest(key=b"k", **options))
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, text)
