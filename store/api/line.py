"""Standing in line for a lock or an election: keys under a prefix, the oldest of which owns (contract §13).

Each contender's key hangs on a lease, so it disappears with its owner. Everything goes through the services
that clients use.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from store.api.context import ApiContext
from store.api.kv import KVServicer
from store.api.lease import LeaseServicer
from store.errors import Code, EtcdError
from store.etcdpb import kv_pb2, rpc_pb2
from store.watch.stream import WatchStream

SESSION_TTL_S: Final = 60
LEAVE_TIMEOUT_S: Final = 5.0

P = ParamSpec("P")
T = TypeVar("T")


def unmapped(call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """These two services run on a client of their own in etcd: every error reaches callers as code Unknown."""

    @functools.wraps(call)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await call(*args, **kwargs)
        except EtcdError as error:
            raise EtcdError(Code.UNKNOWN, error.message) from error

    return run


@dataclass(frozen=True, slots=True)
class Place:
    """A contender's key, since which revision it stands in line, and the answer that put it there."""

    prefix: bytes
    key: bytes
    revision: int
    lease: int
    joined: rpc_pb2.TxnResponse


class Line:
    """What the lock and the election service share."""

    def __init__(self, api: ApiContext, kv: KVServicer, lease: LeaseServicer) -> None:
        self._api = api
        self._kv = kv
        self._lease = lease

    # -- plain calls --------------------------------------------------------------------------------------

    async def txn(
        self,
        key: bytes,
        create_revision: int,
        then: rpc_pb2.RequestOp,
        otherwise: Sequence[rpc_pb2.RequestOp] = (),
        always: Sequence[rpc_pb2.RequestOp] = (),
    ) -> rpc_pb2.TxnResponse:
        """``then`` if the key has this create revision (0: no such key), else ``otherwise``; then ``always``."""
        compare = rpc_pb2.Compare(
            key=key,
            target=rpc_pb2.Compare.CREATE,
            result=rpc_pb2.Compare.EQUAL,
            create_revision=create_revision,
        )
        request = rpc_pb2.TxnRequest(
            compare=[compare], success=[then, *always], failure=[*otherwise, *always]
        )  # fmt: skip
        answer = await self._kv.Txn(request, None)
        return rpc_pb2.TxnResponse.FromString(answer.SerializeToString())

    async def range(self, request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
        answer = await self._kv.Range(request, None)
        return rpc_pb2.RangeResponse.FromString(answer.SerializeToString())

    async def delete(self, key: bytes) -> rpc_pb2.DeleteRangeResponse:
        answer = await self._kv.DeleteRange(rpc_pb2.DeleteRangeRequest(key=key), None)
        return rpc_pb2.DeleteRangeResponse.FromString(answer.SerializeToString())

    # -- standing in line ---------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def place(self, name: bytes, lease: int, value: bytes) -> AsyncIterator[Place]:
        """Join the line of ``name``, or keep the place that the lease has there.

        Whoever gives up inside the block, by an error or because the client is gone, leaves the line.
        """
        lease = lease or await self._new_lease()
        prefix = name + b"/"
        key = prefix + b"%x" % lease
        joining = asyncio.ensure_future(self._join(prefix, key, lease, value))
        try:
            yield await asyncio.shield(joining)
        except BaseException:
            await self._leave(joining)
            raise

    async def _new_lease(self) -> int:
        granted = await self._lease.LeaseGrant(rpc_pb2.LeaseGrantRequest(TTL=SESSION_TTL_S), None)
        return granted.ID

    async def _join(self, prefix: bytes, key: bytes, lease: int, value: bytes) -> Place:
        put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key, value=value, lease=lease))
        get = rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=key))
        first = rpc_pb2.RequestOp(request_range=oldest(prefix))
        response = await self.txn(key, 0, put, [get], [first])
        revision = response.header.revision
        if not response.succeeded:
            revision = response.responses[0].response_range.kvs[0].create_revision
        return Place(prefix, key, revision, lease, response)

    async def _leave(self, joining: asyncio.Future[Place]) -> None:
        with contextlib.suppress(EtcdError, TimeoutError):  # the lease ends the place where this cannot
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                place = await joining
                await self.delete(place.key)

    async def wait_turn(self, place: Place) -> None:
        """Return when every older key of the line is gone."""
        before = oldest(place.prefix)
        before.sort_order = rpc_pb2.RangeRequest.DESCEND
        before.max_create_revision = place.revision - 1
        while True:
            found = await self.range(before)
            if not found.kvs:
                return
            async with aclosing(self.changes(found.kvs[0].key, b"", found.header.revision + 1)) as changes:
                async for event in changes:
                    if event.type == kv_pb2.Event.DELETE:
                        break

    async def changes(self, key: bytes, end: bytes, start_revision: int) -> AsyncGenerator[kv_pb2.Event, None]:
        """Changes from ``start_revision`` on; ends when a compaction has made them unknowable."""
        api = self._api
        stream = WatchStream(api.machine.hub, lambda: api.machine.revision, api.header_field)
        create = rpc_pb2.WatchCreateRequest(key=key, range_end=end, start_revision=start_revision)
        try:
            await stream.handle(rpc_pb2.WatchRequest(create_request=create))
            while True:
                for part in await stream.next():
                    response = rpc_pb2.WatchResponse.FromString(part)
                    if response.canceled:
                        return
                    for event in response.events:
                        yield event
        finally:
            stream.close()


def oldest(prefix: bytes) -> rpc_pb2.RangeRequest:
    """A range that finds the first key in line. ``prefix`` ends with a slash."""
    return rpc_pb2.RangeRequest(
        key=prefix,
        range_end=prefix_end(prefix),
        sort_target=rpc_pb2.RangeRequest.CREATE,
        sort_order=rpc_pb2.RangeRequest.ASCEND,
        limit=1,
    )


def prefix_end(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def first_of(response: rpc_pb2.TxnResponse) -> Any:
    """The first key in line, as a joining transaction saw it."""
    return response.responses[1].response_range.kvs[0]
