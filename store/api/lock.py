"""The Lock service (contract §13)."""

from __future__ import annotations

from typing import Final

from store.api.line import Line, first_of, unmapped
from store.errors import Code, EtcdError
from store.etcdpb import lock_pb2, rpc_pb2

SESSION_EXPIRED: Final = EtcdError(Code.UNKNOWN, "mutex: session is expired")


class LockServicer:
    def __init__(self, line: Line) -> None:
        self._line = line

    @unmapped
    async def Lock(self, request: lock_pb2.LockRequest, _context: object) -> lock_pb2.LockResponse:
        """Wait until the lock is owned by the lease; at once when it is already."""
        async with self._line.place(request.name, request.lease, b"") as place:
            if first_of(place.joined).create_revision == place.revision:
                return lock_pb2.LockResponse(header=place.joined.header, key=place.key)
            await self._line.wait_turn(place)
            own = await self._line.range(rpc_pb2.RangeRequest(key=place.key))
            if not own.kvs:
                raise SESSION_EXPIRED.again()
            return lock_pb2.LockResponse(header=own.header, key=place.key)

    @unmapped
    async def Unlock(self, request: lock_pb2.UnlockRequest, _context: object) -> lock_pb2.UnlockResponse:
        deleted = await self._line.delete(request.key)
        return lock_pb2.UnlockResponse(header=deleted.header)
