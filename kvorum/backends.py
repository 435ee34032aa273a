"""The stores that the watch cache and the API layer can stand on: see :mod:`watchcache.backend`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NoReturn

import grpc

from store.client import ClientError, EtcdClient, EtcdWatch, OutcomeUnknown
from store.etcdpb import kv_pb2, rpc_pb2
from watchcache import backend as api

_COMPARE_TARGETS = {"mod": rpc_pb2.Compare.MOD, "version": rpc_pb2.Compare.VERSION}

_INT64_MAX = 2**63 - 1

# Texts of etcd that have a class of their own above; anything else keeps its text in a BackendError.
_COMPACTED = "etcdserver: mvcc: required revision has been compacted"
_FUTURE = "etcdserver: mvcc: required revision is a future revision"
_NO_SPACE = "etcdserver: mvcc: database space exceeded"
_NO_LEASE = "etcdserver: requested lease not found"
_UNAVAILABLE_CODES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
)


def backend_error(error: ClientError) -> api.BackendError:
    """The error class that the layers above know, with the store's text unchanged."""
    text = error.text
    if _COMPACTED in text:
        return api.Compacted(text)
    if _FUTURE in text:
        return api.FutureRevision(text)
    if _NO_SPACE in text:
        return api.NoSpace(text)
    if _NO_LEASE in text:
        return api.LeaseNotFound(text)
    if isinstance(error, OutcomeUnknown) or error.code in _UNAVAILABLE_CODES or "no leader" in text:
        return api.Unavailable(text)
    return api.BackendError(text)


def _raise(error: ClientError) -> NoReturn:
    raise backend_error(error) from error


def _key_value(kv: kv_pb2.KeyValue) -> api.KeyValue:
    return api.KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, version=kv.version, lease=kv.lease)


def _event(event: kv_pb2.Event) -> api.Event:
    previous = _key_value(event.prev_kv) if event.HasField("prev_kv") else None
    kind = api.EventType.DELETE if event.type == kv_pb2.Event.DELETE else api.EventType.PUT
    return api.Event(kind, _key_value(event.kv), previous)


def _request_op(op: api.Op) -> rpc_pb2.RequestOp:
    if isinstance(op, api.Put):
        put = rpc_pb2.PutRequest(key=op.key, value=op.value, lease=op.lease)
        return rpc_pb2.RequestOp(request_put=put)
    if isinstance(op, api.Delete):
        delete = rpc_pb2.DeleteRangeRequest(key=op.key, range_end=op.range_end)
        return rpc_pb2.RequestOp(request_delete_range=delete)
    return rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=op.key))


def _compare(compare: api.Compare) -> rpc_pb2.Compare:
    message = rpc_pb2.Compare(
        result=rpc_pb2.Compare.EQUAL, target=_COMPARE_TARGETS[compare.target], key=compare.key
    )
    if compare.target == "mod":
        message.mod_revision = compare.value
    else:
        message.version = compare.value
    return message


def _txn_result(response: rpc_pb2.TxnResponse) -> api.TxnResult:
    found: list[Sequence[api.KeyValue]] = []
    deleted: list[int] = []
    for item in response.responses:
        found.append([_key_value(kv) for kv in item.response_range.kvs])
        deleted.append(item.response_delete_range.deleted)
    return api.TxnResult(response.header.revision, response.succeeded, found, deleted)


class RemoteWatch:
    """A watch over the wire, in the backend's terms. See :class:`watchcache.backend.WatchStream`."""

    def __init__(self, watch: EtcdWatch) -> None:
        self._watch = watch

    def __aiter__(self) -> AsyncIterator[api.WatchBatch]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[api.WatchBatch]:
        response = self._watch.created
        while True:
            self._check(response)
            if not response.created:
                events = tuple(map(_event, response.events))
                yield api.WatchBatch(response.header.revision, events)
            try:
                response = await self._watch.read()
            except ClientError as exc:
                raise api.Unavailable(exc.text) from exc

    def _check(self, response: rpc_pb2.WatchResponse) -> None:
        if response.compact_revision:
            raise api.Compacted(response.cancel_reason or _COMPACTED, response.compact_revision)
        if response.canceled:
            raise api.Unavailable(response.cancel_reason or "etcdserver: watch canceled")

    async def request_progress(self) -> None:
        try:
            await self._watch.request_progress()
        except ClientError as exc:
            _raise(exc)

    async def aclose(self) -> None:
        await self._watch.aclose()


class RemoteBackend:
    """Any etcd v3 endpoint as a :class:`watchcache.backend.Backend`. The client stays the caller's to close."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def range(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        revision: int = 0,
        limit: int = 0,
        serializable: bool = False,
        keys_only: bool = False,
        count_only: bool = False,
        timeout_s: float = 10.0,
    ) -> api.RangeResult:
        request = rpc_pb2.RangeRequest(
            key=key,
            range_end=range_end,
            revision=min(revision, _INT64_MAX),  # a future revision either way, which the store refuses
            limit=min(limit, _INT64_MAX),
            serializable=serializable,
            keys_only=keys_only,
            count_only=count_only,
        )
        try:
            response = await self._client.range(request, timeout_s)
        except ClientError as exc:
            _raise(exc)
        kvs = [_key_value(kv) for kv in response.kvs]
        return api.RangeResult(response.header.revision, kvs, response.more, response.count)

    async def txn(
        self,
        compares: Sequence[api.Compare],
        success: Sequence[api.Op],
        failure: Sequence[api.Op] = (),
        *,
        timeout_s: float = 10.0,
    ) -> api.TxnResult:
        request = rpc_pb2.TxnRequest(
            compare=map(_compare, compares),
            success=_request_ops(success),
            failure=_request_ops(failure),
        )
        try:
            return _txn_result(await self._client.txn(request, timeout_s))
        except ClientError as exc:
            _raise(exc)

    async def watch(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        start_revision: int = 0,
        prev_kv: bool = True,
        progress_notify: bool = True,
    ) -> RemoteWatch:
        request = rpc_pb2.WatchCreateRequest(
            key=key,
            range_end=range_end,
            start_revision=min(start_revision, _INT64_MAX),
            prev_kv=prev_kv,
            progress_notify=progress_notify,
        )
        try:
            return RemoteWatch(await self._client.watch(request))
        except ClientError as exc:
            _raise(exc)

    async def lease_grant(self, ttl_s: int) -> int:
        try:
            return await self._client.lease_grant(ttl_s)
        except ClientError as exc:
            _raise(exc)

    async def lease_revoke(self, lease_id: int) -> None:
        try:
            await self._client.lease_revoke(lease_id)
        except ClientError as exc:
            _raise(exc)

    async def compact(self, revision: int, *, physical: bool = False) -> None:
        try:
            await self._client.compact(revision, physical=physical)
        except ClientError as exc:
            _raise(exc)

    async def status(self) -> api.BackendStatus:
        try:
            status = await self._client.status()
        except ClientError as exc:
            _raise(exc)
        return api.BackendStatus(status.version, status.dbSize, status.leader != 0, tuple(status.errors))


def _request_ops(ops: Sequence[api.Op]) -> Iterable[rpc_pb2.RequestOp]:
    return map(_request_op, ops)
