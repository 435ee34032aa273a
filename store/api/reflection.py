"""gRPC server reflection, so that grpcurl and its kin can list and call what a member serves (contract §12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

SERVICES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""One protocol under two names; newer clients ask for the first."""


class _Pool:
    """The descriptors of this process, with methods found by name too: "describe etcdserverpb.KV.Put" of grpcurl
    asks for one, which protobuf's own look-up does not know."""

    def __init__(self) -> None:
        self._pool: Any = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        try:
            found: FileDescriptor = self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            described = self._pool.FindServiceByName(service)
            if method not in described.methods_by_name:
                raise
            found = described.file
        return found


def reflection_handlers(services: Sequence[str]) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
    """Handlers that tell of ``services`` and of reflection itself, by the name whose descriptor there is."""
    servicer = ReflectionServicer((*services, SERVICES[1]), pool=_Pool())
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {service: {"ServerReflectionInfo": handler} for service in SERVICES}
