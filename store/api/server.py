"""Registers the services on a gRPC server, and turns EtcdError into a status: here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from store.api.cluster import ClusterServicer
from store.api.context import ApiContext
from store.api.direct import PUT, TXN, DirectWrite
from store.api.election import ElectionServicer
from store.api.health import SERVICE as HEALTH
from store.api.health import HealthServicer
from store.api.kv import KVServicer
from store.api.leader import LeaderWatch, requires_leader
from store.api.lease import LeaseServicer
from store.api.line import Line
from store.api.lock import LockServicer
from store.api.maintenance import MaintenanceServicer
from store.api.reflection import reflection_handlers
from store.api.watch import WatchServicer
from store.errors import (
    INVALID_CLIENT_API_VERSION,
    NOT_SUPPORTED_FOR_LEARNER,
    Code,
    EtcdError,
    unimplemented,
)
from store.etcdpb import election_pb2, lock_pb2, rpc_pb2
from store.listener.direct import DirectHandler
from store.listener.messages import MessageError
from store.observations import OK, Method

log = logging.getLogger(__name__)

_ETCD: Final = rpc_pb2.DESCRIPTOR.services_by_name
_STATUS: Final = {status.value[0]: status for status in grpc.StatusCode}
_NOTICED: Final = frozenset({b"hasleader", b"client-api-version"})
"""Metadata that decides something."""
_SHOW_STATE: Final = frozenset({"Range", "RangeStream", "Txn", "Watch", "Hash", "HashKV", "Snapshot"})
"""What shows the state of this very member, if it is asked to."""
_ON_LEARNERS: Final = frozenset({"Status", "Range", "Snapshot"})

Handler = Callable[..., Awaitable[Any]]
Wanted = TypeVar("Wanted", bound=Exception)


def service_handlers(api: ApiContext) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
    """Every handler by full service name and method name, for whatever listener serves them."""
    guard = Guard(api)
    kv, lease = KVServicer(api), LeaseServicer(api)
    line = Line(api, kv, lease)
    servicers: dict[ServiceDescriptor, object] = {
        _ETCD["KV"]: kv,
        _ETCD["Watch"]: WatchServicer(api),
        _ETCD["Lease"]: lease,
        _ETCD["Cluster"]: ClusterServicer(api),
        _ETCD["Maintenance"]: MaintenanceServicer(api),
        _ETCD["Auth"]: object(),
        lock_pb2.DESCRIPTOR.services_by_name["Lock"]: LockServicer(line),
        election_pb2.DESCRIPTOR.services_by_name["Election"]: ElectionServicer(line),
    }
    handlers: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for service, servicer in servicers.items():
        handlers[service.full_name] = {
            method.name: guard.handler(method, getattr(servicer, method.name, _missing(method)))
            for method in service.methods
        }
    methods, keys = _ETCD["KV"].methods_by_name, handlers[_ETCD["KV"].full_name]
    for name, write in (("Put", PUT), ("Txn", TXN)):
        keys[name] = DirectHandler(keys[name], DirectWrite(api, write, observed(methods[name]), _NOTICED))
    handlers[HEALTH] = _health_handlers(guard)
    handlers.update(reflection_handlers(sorted(handlers)))
    return handlers


def _health_handlers(guard: Guard) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    health = HealthServicer()
    check = guard.unary(Method("unary", HEALTH, "Check"), health.Check)
    watch = guard.stream(Method("server_stream", HEALTH, "Watch"), health.Watch)
    return {
        "Check": grpc.unary_unary_rpc_method_handler(check, response_serializer=_serialize),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, response_serializer=_serialize),
    }


def check_client_version(metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """Raise INVALID_CLIENT_API_VERSION for a ``client-api-version`` that is no UTF-8 (etcd 3.6).

    The listener gives every byte of a header as the character of the same number.
    """
    for key, value in metadata or ():
        if key == "client-api-version":
            try:
                (value.encode("latin-1") if isinstance(value, str) else value).decode()
            except UnicodeError:
                raise INVALID_CLIENT_API_VERSION.again() from None


def _missing(method: MethodDescriptor) -> Handler:
    """Stands in for a method that is not offered, with the text of grpc-go."""

    async def refuse(_request: object, _context: object) -> None:
        raise unimplemented(f"unknown method {method.name} for service {method.containing_service.full_name}")

    return refuse


class Guard:
    """What happens around every call: who may be asked on this member now, and errors as statuses."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._leader = LeaderWatch(api.replica)
        self._observations = api.observations

    def handler(self, method: MethodDescriptor, call: Handler) -> grpc.RpcMethodHandler[Any, Any]:
        """A gRPC handler for one method. Answers may be messages or store.wire.Encoded."""
        make, wrap = _KINDS[method.client_streaming, method.server_streaming]
        handler: grpc.RpcMethodHandler[Any, Any] = make(
            wrap(self, observed(method), call),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=_serialize,
        )
        return handler

    def unary(self, method: Method, call: Handler) -> Handler:
        observations, name = self._observations, method.name

        async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            trace, code = observations.begin(method), int(Code.CANCELLED)
            try:
                self._admit(name, context, serializable=getattr(request, "serializable", False))
                if name in _SHOW_STATE:
                    await self._api.until_caught_up()
                answer = await call(request, context)
                code = OK
                return answer
            except Exception as error:
                refusal = _refusal(name, error)
                code = refusal.code
                await context.abort(_STATUS[refusal.code], refusal.message)
            finally:
                observations.end(method, trace, code, request)

        return run

    def stream(self, method: Method, call: Handler) -> Handler:
        observations, name = self._observations, method.name

        async def run(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> None:
            observations.begin(method)
            code = int(Code.CANCELLED)
            try:
                await self._stream(name, call, requests, context)
                code = OK
            except Exception as error:
                refusal = _refusal(name, error)
                code = refusal.code
                await context.abort(_STATUS[refusal.code], refusal.message)
            finally:
                observations.end_stream(method, code)

        return run

    async def _stream(
        self, name: str, call: Handler, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        wants_leader = self._admit(name, context)
        if name in _SHOW_STATE:
            await self._api.until_caught_up()
        if not wants_leader:
            await call(requests, context)
            return
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(self._leader.fail_when_lost())
            await call(requests, context)
            lost.cancel()

    def _admit(
        self, name: str, context: grpc.aio.ServicerContext[Any, Any], *, serializable: bool = False
    ) -> bool:
        """Raise when this member may not answer now; whether the call wants a leader throughout."""
        if self._api.replica.is_learner and (name not in _ON_LEARNERS or (name == "Range" and not serializable)):
            raise NOT_SUPPORTED_FOR_LEARNER.again()
        carries: Callable[[frozenset[bytes]], bool] | None = getattr(context, "carries", None)
        if carries is not None and not carries(_NOTICED):
            return False  # the usual call, without decoding what nobody here looks at
        metadata = context.invocation_metadata()
        check_client_version(metadata)
        wants_leader = requires_leader(metadata)
        if wants_leader:
            self._leader.check()
        return wants_leader


_KINDS: Final[dict[tuple[bool, bool], tuple[Callable[..., Any], Callable[[Guard, Method, Handler], Handler]]]] = {
    (False, False): (grpc.unary_unary_rpc_method_handler, Guard.unary),
    (False, True): (grpc.unary_stream_rpc_method_handler, Guard.stream),
    (True, True): (grpc.stream_stream_rpc_method_handler, Guard.stream),
}


def _serialize(response: Any) -> bytes:
    encoded: bytes = response.SerializeToString()
    return encoded


def observed(method: MethodDescriptor) -> Method:
    """A method as metrics name it."""
    kinds = {(False, False): "unary", (False, True): "server_stream", (True, True): "bidi_stream"}
    return Method(
        kinds[method.client_streaming, method.server_streaming], method.containing_service.full_name, method.name
    )


def _refusal(name: str, error: Exception) -> EtcdError:
    """The status of what went wrong. Raises MessageError for what is no message: the listener answers that."""
    unreadable = _first(MessageError, error)
    if unreadable is not None:
        raise unreadable from None
    refusal = _first(EtcdError, error)
    if refusal is None:
        log.error("%s failed", name, exc_info=error)
        return EtcdError(Code.UNKNOWN, str(error) or type(error).__name__)
    return refusal


def _first(kind: type[Wanted], error: BaseException) -> Wanted | None:
    """The error itself, or the first one of its kind in the group that a TaskGroup made of it."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (_first(kind, inner) for inner in error.exceptions)), None)
    return None


__all__ = ["Guard", "service_handlers"]
