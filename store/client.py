"""A thin typed asyncio client of the etcd v3 API: many endpoints, one deadline per call, no silent write retry.

Reads fail over: each endpoint gets a share of the deadline. A write is sent once, on a connection that is
known to be up; when its answer is lost the caller gets :class:`OutcomeUnknown` and decides. Watches carry the
``hasleader`` metadata, so a member that lost its leader ends them instead of going quiet.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
import grpc.aio

from store.etcdpb import kv_pb2, rpc_pb2, rpc_pb2_grpc
from store.h2stream import GrpcStream, StreamEnded
from store.tls import NO_TLS, TlsFiles, client_context

_Response = TypeVar("_Response")

_CHANNEL_OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # despite its name: how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

# Texts of a member that cannot answer now although another one may.
_MEMBER_TROUBLE = ("etcdserver: no leader", "etcdserver: leader changed", "etcdserver: server stopped")
_REDIAL_PAUSE_S = 0.05
_REQUIRE_LEADER = (("hasleader", "true"),)


class ClientError(Exception):
    """A call failed. ``text`` is the server's own message where it begins with "etcdserver:", else gRPC's."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class OutcomeUnknown(ClientError):
    """The answer of a write was lost: it may or may not have been applied. Never retried here."""


def _error(exc: grpc.aio.AioRpcError) -> ClientError:
    details = exc.details() or ""
    code = exc.code()
    if details.startswith(("etcdserver:", "auth:", "etcdclient:")):
        return ClientError(code, details)
    name = "".join(part.capitalize() for part in code.name.split("_"))
    return ClientError(code, f"rpc error: code = {name} desc = {details}")


def _is_transient(error: ClientError) -> bool:
    return error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) or error.text.startswith(
        _MEMBER_TROUBLE
    )


class _Endpoint:
    """One channel and its stubs."""

    def __init__(self, url: str, tls: TlsFiles) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"not an endpoint: {url!r} (expected http://HOST:PORT)")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self.context = client_context(tls)  # first: it names the file that cannot be used
            self.context.set_alpn_protocols(["h2"])
            credentials = grpc.ssl_channel_credentials(
                _read(tls.trusted_ca_file), _read(tls.key_file), _read(tls.cert_file)
            )
            self.channel = grpc.aio.secure_channel(parts.netloc, credentials, options=_CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(parts.netloc, options=_CHANNEL_OPTIONS)
        # The generated stubs are untyped functions.
        self.kv: Any = rpc_pb2_grpc.KVStub(self.channel)  # type: ignore[no-untyped-call]
        self.lease: Any = rpc_pb2_grpc.LeaseStub(self.channel)  # type: ignore[no-untyped-call]
        self.maintenance: Any = rpc_pb2_grpc.MaintenanceStub(self.channel)  # type: ignore[no-untyped-call]

    async def connect(self, timeout_s: float) -> bool:
        """True once the channel is up, False when it is not within ``timeout_s`` or failed at once."""
        deadline = time.monotonic() + timeout_s
        state = self.channel.get_state(try_to_connect=True)
        failed_before = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        while state is not grpc.ChannelConnectivity.READY:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or state is grpc.ChannelConnectivity.SHUTDOWN:
                return False
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not failed_before:
                return False
            failed_before = False
            try:
                await asyncio.wait_for(self.channel.wait_for_state_change(state), remaining)
            except TimeoutError:
                return False
            state = self.channel.get_state(try_to_connect=True)
        return True


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


class EtcdWatch:
    """One watch on one stream. Take responses with :meth:`read`; :meth:`aclose` when done."""

    def __init__(self, stream: GrpcStream, created: rpc_pb2.WatchResponse) -> None:
        self._stream = stream
        self.created = created

    async def read(self) -> rpc_pb2.WatchResponse:
        """The next response, the cancelling one included.

        Raises:
            ClientError: the stream broke or the server ended it.
        """
        try:
            return rpc_pb2.WatchResponse.FromString(await self._stream.receive())
        except StreamEnded as exc:
            raise _stream_lost(exc) from exc

    async def request_progress(self) -> None:
        """Ask the server for a progress notification (watch_id -1, no events). Raises ClientError."""
        request = rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest())
        try:
            self._stream.send(request.SerializeToString())
        except StreamEnded as exc:
            raise _stream_lost(exc) from exc

    async def aclose(self) -> None:
        """End the stream. Safe to call twice."""
        self._stream.close()


def _stream_lost(why: Exception) -> ClientError:
    text = f"rpc error: code = Unavailable desc = watch stream lost: {why}"
    return ClientError(grpc.StatusCode.UNAVAILABLE, text)


class EtcdClient:
    """A client of one cluster. Create it inside a running event loop; close it with :meth:`aclose`.

    Args:
        endpoints: client URLs of the members; the first that answers is used until it fails.
        dial_timeout_s: how long one endpoint may take to connect.
        tls: for https:// endpoints, the CA that they are held to (else the system's) and the own certificate
            with its key. Read once.

    Raises:
        TlsError: a file of ``tls`` cannot be used.
        ValueError: an endpoint is none.

    """

    def __init__(self, endpoints: Sequence[str], *, dial_timeout_s: float = 2.0, tls: TlsFiles = NO_TLS) -> None:
        if not endpoints:
            raise ValueError("at least one endpoint is needed")
        self._endpoints = [_Endpoint(url, tls) for url in endpoints]
        self._current = 0
        self._dial_timeout_s = dial_timeout_s

    @property
    def endpoints(self) -> Sequence[str]:
        return [endpoint.url for endpoint in self._endpoints]

    async def aclose(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close(None)

    def _mark_failed(self, endpoint: _Endpoint) -> None:
        """Prefer the next endpoint, unless another call has moved on already."""
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def _order(self) -> list[_Endpoint]:
        return self._endpoints[self._current :] + self._endpoints[: self._current]

    async def _connected(self, timeout_s: float) -> _Endpoint:
        """An endpoint whose connection is up, so that what is sent next is sent exactly once."""
        deadline = time.monotonic() + min(timeout_s, self._dial_timeout_s * len(self._endpoints))
        while (remaining := deadline - time.monotonic()) > 0:
            endpoint = self._order()[0]
            if await endpoint.connect(min(self._dial_timeout_s, remaining)):
                return endpoint
            self._mark_failed(endpoint)
            if endpoint is self._endpoints[-1]:
                await asyncio.sleep(_REDIAL_PAUSE_S)
        urls = ", ".join(self.endpoints)
        raise ClientError(
            grpc.StatusCode.UNAVAILABLE, f"rpc error: code = Unavailable desc = no endpoint reachable: {urls}"
        )

    async def _read(self, call: Callable[[_Endpoint, float], Awaitable[_Response]], timeout_s: float) -> _Response:
        """Run a read, failing over to the other endpoints within one deadline."""
        deadline = time.monotonic() + timeout_s
        error: ClientError | None = None
        order = self._order()
        for position, endpoint in enumerate(order):
            share = (deadline - time.monotonic()) / (len(order) - position)
            if share <= 0:
                break
            try:
                return await call(endpoint, share)
            except grpc.aio.AioRpcError as exc:
                error = _error(exc)
                if not _is_transient(error):
                    raise error from exc
                self._mark_failed(endpoint)
        raise error or ClientError(grpc.StatusCode.DEADLINE_EXCEEDED, "etcdclient: deadline exceeded")

    async def _write(
        self, call: Callable[[_Endpoint, float], Awaitable[_Response]], timeout_s: float
    ) -> _Response:
        """Run a write once, on a connection that is up."""
        deadline = time.monotonic() + timeout_s
        endpoint = await self._connected(timeout_s)
        try:
            return await call(endpoint, max(0.001, deadline - time.monotonic()))
        except grpc.aio.AioRpcError as exc:
            error = _error(exc)
            if not _is_transient(error):
                raise error from exc
            self._mark_failed(endpoint)
            raise OutcomeUnknown(error.code, error.text) from exc

    async def range(self, request: rpc_pb2.RangeRequest, timeout_s: float = 10.0) -> rpc_pb2.RangeResponse:
        return await self._read(lambda e, t: e.kv.Range(request, timeout=t), timeout_s)

    async def put(self, request: rpc_pb2.PutRequest, timeout_s: float = 10.0) -> rpc_pb2.PutResponse:
        return await self._write(lambda e, t: e.kv.Put(request, timeout=t), timeout_s)

    async def delete(
        self, request: rpc_pb2.DeleteRangeRequest, timeout_s: float = 10.0
    ) -> rpc_pb2.DeleteRangeResponse:
        return await self._write(lambda e, t: e.kv.DeleteRange(request, timeout=t), timeout_s)

    async def txn(self, request: rpc_pb2.TxnRequest, timeout_s: float = 10.0) -> rpc_pb2.TxnResponse:
        return await self._write(lambda e, t: e.kv.Txn(request, timeout=t), timeout_s)

    async def compact(self, revision: int, *, physical: bool = False, timeout_s: float = 10.0) -> None:
        request = rpc_pb2.CompactionRequest(revision=revision, physical=physical)
        await self._write(lambda e, t: e.kv.Compact(request, timeout=t), timeout_s)

    async def lease_grant(self, ttl_s: int, lease_id: int = 0, timeout_s: float = 10.0) -> int:
        """A new lease; returns its id. ``ttl_s`` is in seconds."""
        request = rpc_pb2.LeaseGrantRequest(TTL=ttl_s, ID=lease_id)
        response = await self._write(lambda e, t: e.lease.LeaseGrant(request, timeout=t), timeout_s)
        return int(response.ID)

    async def lease_revoke(self, lease_id: int, timeout_s: float = 10.0) -> None:
        request = rpc_pb2.LeaseRevokeRequest(ID=lease_id)
        await self._write(lambda e, t: e.lease.LeaseRevoke(request, timeout=t), timeout_s)

    async def status(self, timeout_s: float = 10.0) -> rpc_pb2.StatusResponse:
        """The status of the endpoint in use: it is the member's own view, not the cluster's."""
        request = rpc_pb2.StatusRequest()
        return await self._read(lambda e, t: e.maintenance.Status(request, timeout=t), timeout_s)

    async def get(self, key: bytes, timeout_s: float = 10.0) -> kv_pb2.KeyValue | None:
        """The newest version of one key, by a linearizable read."""
        response = await self.range(rpc_pb2.RangeRequest(key=key), timeout_s)
        return response.kvs[0] if response.kvs else None

    async def watch(self, request: rpc_pb2.WatchCreateRequest, timeout_s: float = 10.0) -> EtcdWatch:
        """Open a watch and wait for the server's acknowledgement.

        Raises:
            ClientError: no endpoint took it within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        endpoint = await self._connected(timeout_s)
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                return await _open_watch(endpoint, request)
        except TimeoutError as exc:
            self._mark_failed(endpoint)
            text = "etcdclient: watch not acknowledged"
            raise ClientError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from exc
        except (OSError, StreamEnded) as exc:
            self._mark_failed(endpoint)
            raise _stream_lost(exc) from exc


async def _open_watch(endpoint: _Endpoint, request: rpc_pb2.WatchCreateRequest) -> EtcdWatch:
    stream = await GrpcStream.open(endpoint.url, "/etcdserverpb.Watch/Watch", _REQUIRE_LEADER, endpoint.context)
    try:
        stream.send(rpc_pb2.WatchRequest(create_request=request).SerializeToString())
        created = rpc_pb2.WatchResponse.FromString(await stream.receive())
    except BaseException:
        stream.close()
        raise
    return EtcdWatch(stream, created)
