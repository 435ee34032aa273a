"""Drives a machine as a replica would, and answers with decoded messages: for comparing it with the model."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from store.api import encode
from store.apply import Result
from store.errors import EtcdError
from store.etcdpb import internal_pb2, rpc_pb2
from store.machine import Machine, MachineOptions
from store.mvcc.txn import DeleteResult, PutResult, TxnResult

_FIELDS = {
    rpc_pb2.PutRequest: "put",
    rpc_pb2.DeleteRangeRequest: "delete_range",
    rpc_pb2.TxnRequest: "txn",
    rpc_pb2.CompactionRequest: "compaction",
    rpc_pb2.LeaseGrantRequest: "lease_grant",
    rpc_pb2.LeaseRevokeRequest: "lease_revoke",
    rpc_pb2.AlarmRequest: "alarm",
}


def internal(command: Any) -> internal_pb2.InternalRequest:
    return internal_pb2.InternalRequest(**{_FIELDS[type(command)]: command})


class Driver:
    """One machine with its background tasks, restartable."""

    def __init__(self, path: Path, options: MachineOptions | None = None) -> None:
        self.path = path
        self.options = options
        self.machine: Machine
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Driver:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.machine = await Machine.open(self.path, self.options)
        self._task = asyncio.create_task(self.machine.run())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.machine.close()

    async def crash(self) -> None:
        """Stop without a last flush, as a killed process does."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.machine.backend.close()

    def apply(self, command: Any) -> Result:
        result = self.machine.apply(self.machine.applied_index + 1, 1, internal(command))
        if isinstance(result, EtcdError):
            raise result
        return result

    def put(self, key: bytes, value: bytes = b"v", lease: int = 0) -> int:
        return self.apply(rpc_pb2.PutRequest(key=key, value=value, lease=lease)).revision

    def delete(self, key: bytes, end: bytes = b"") -> int:
        return self.apply(rpc_pb2.DeleteRangeRequest(key=key, range_end=end)).revision

    async def ask(self, command: Any) -> Any:
        """Apply or read; the answer decoded, without its outer header. Raises EtcdError."""
        if isinstance(command, rpc_pb2.RangeRequest):
            found = await self.machine.range(command)
            return rpc_pb2.RangeResponse.FromString(encode.range_response(b"", found))
        result = self.apply(command)
        if isinstance(result, PutResult):
            return rpc_pb2.PutResponse.FromString(encode.put_response(b"", result))
        if isinstance(result, DeleteResult):
            return rpc_pb2.DeleteRangeResponse.FromString(encode.delete_response(b"", result))
        if isinstance(result, TxnResult):
            await self.machine.resolve(result)
            return rpc_pb2.TxnResponse.FromString(encode.txn_response(b"", result))
        return None
