"""One connection to one member: every request is sent at most once, and its outcome is told as it is."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio

from chaos import wire
from chaos.check.history import (
    REFUSALS,
    Answer,
    Compact,
    Delete,
    Deleted,
    Done,
    Grant,
    Outcome,
    Put,
    Range,
    Request,
    Revoke,
    Txn,
)
from store.etcdpb import rpc_pb2, rpc_pb2_grpc

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)

_NOT_APPLIED: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""Codes with which a server says that it has not done what it was asked for; any other leaves it open."""

Told = tuple[Outcome, Answer | None, str]
"""Outcome, the answer of an OK one, the error of any other."""


class Caller:
    """Create it inside a running event loop; close it with :meth:`aclose`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self.url = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme == "https":
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(parts.netloc, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(parts.netloc, options=_OPTIONS)
        # The generated stubs are untyped functions.
        self._kv: Any = rpc_pb2_grpc.KVStub(self._channel)  # type: ignore[no-untyped-call]
        self._lease: Any = rpc_pb2_grpc.LeaseStub(self._channel)  # type: ignore[no-untyped-call]

    async def aclose(self) -> None:
        await self._channel.close(None)

    async def call(self, request: Request, timeout_s: float) -> Told:
        """Send a request once. A write is only sent on a connection that is up, so without one it has failed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.channel_ready()
        except TimeoutError:
            return Outcome.FAILED, None, "not connected"
        try:
            return Outcome.OK, await self._send(request, timeout_s), ""
        except grpc.aio.AioRpcError as error:
            return outcome_of(request, error.code(), error.details() or "")

    async def _send(self, request: Request, timeout_s: float) -> Answer:
        match request:
            case Range():
                answer = await self._kv.Range(wire.range_request(request), timeout=timeout_s)
                return Answer(answer.header.revision, wire.found(answer))
            case Put():
                answer = await self._kv.Put(wire.put_request(request), timeout=timeout_s)
            case Delete():
                answer = await self._kv.DeleteRange(wire.delete_request(request), timeout=timeout_s)
                return Answer(answer.header.revision, Deleted(answer.deleted))
            case Txn():
                return wire.chosen(await self._kv.Txn(wire.txn_request(request), timeout=timeout_s))
            case Grant():
                message = rpc_pb2.LeaseGrantRequest(ID=request.lease, TTL=request.ttl_s)
                answer = await self._lease.LeaseGrant(message, timeout=timeout_s)
            case Revoke():
                answer = await self._lease.LeaseRevoke(
                    rpc_pb2.LeaseRevokeRequest(ID=request.lease), timeout=timeout_s
                )
            case Compact():
                answer = await self._kv.Compact(
                    rpc_pb2.CompactionRequest(revision=request.revision), timeout=timeout_s
                )
        return Answer(answer.header.revision, Done())


def outcome_of(request: Request, code: grpc.StatusCode, text: str) -> Told:
    """What a failed call says about its request."""
    if text in REFUSALS:
        return Outcome.FAILED, None, text
    if isinstance(request, Range) or code in _NOT_APPLIED:
        return Outcome.FAILED, None, f"{code.name}: {text}"
    return Outcome.UNKNOWN, None, f"{code.name}: {text}"
