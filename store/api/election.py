"""The Election service (contract §13)."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

from store.api.line import Line, oldest, prefix_end, unmapped
from store.errors import Code, EtcdError
from store.etcdpb import election_pb2, kv_pb2, rpc_pb2

NOT_LEADER: Final = EtcdError(Code.UNKNOWN, "election: not leader")
NO_LEADER: Final = EtcdError(Code.UNKNOWN, "election: no leader")
LEADER_MISSING: Final = EtcdError(Code.UNKNOWN, '"leader" field must be provided')


class ElectionServicer:
    def __init__(self, line: Line) -> None:
        self._line = line

    @unmapped
    async def Campaign(
        self, request: election_pb2.CampaignRequest, _context: object
    ) -> election_pb2.CampaignResponse:
        """Wait until elected. Campaigning again with the same lease changes the value."""
        line = self._line
        async with line.place(request.name, request.lease, request.value) as place:
            joined = place.joined
            leader = election_pb2.LeaderKey(
                name=request.name, key=place.key, rev=place.revision, lease=place.lease
            )  # fmt: skip
            if not joined.succeeded and joined.responses[0].response_range.kvs[0].value != request.value:
                await self._proclaim(leader, request.value)
            await line.wait_turn(place)
            return election_pb2.CampaignResponse(header=joined.header, leader=leader)

    @unmapped
    async def Proclaim(
        self, request: election_pb2.ProclaimRequest, _context: object
    ) -> election_pb2.ProclaimResponse:
        if not request.HasField("leader"):
            raise LEADER_MISSING.again()
        return election_pb2.ProclaimResponse(header=await self._proclaim(request.leader, request.value))

    async def _proclaim(self, leader: election_pb2.LeaderKey, value: bytes) -> rpc_pb2.ResponseHeader:
        put = rpc_pb2.PutRequest(key=leader.key, value=value, lease=leader.lease)
        response = await self._line.txn(leader.key, leader.rev, rpc_pb2.RequestOp(request_put=put))
        if not response.succeeded:
            raise NOT_LEADER.again()
        return response.header

    @unmapped
    async def Leader(self, request: election_pb2.LeaderRequest, _context: object) -> election_pb2.LeaderResponse:
        found = await self._line.range(oldest(request.name + b"/"))
        if not found.kvs:
            raise NO_LEADER.again()
        return election_pb2.LeaderResponse(header=found.header, kv=found.kvs[0])

    @unmapped
    async def Observe(self, request: election_pb2.LeaderRequest, context: Any) -> None:
        """The leader, each value it proclaims, and whoever leads after it, until the client has enough."""
        line, prefix = self._line, request.name + b"/"
        while True:
            found = await line.range(oldest(prefix))
            header = found.header
            if found.kvs:
                leader: kv_pb2.KeyValue | None = found.kvs[0]
            else:
                leader = await self._first_put(prefix, header.revision + 1)
            if leader is None:
                continue
            header.revision = max(header.revision, leader.mod_revision)
            await context.write(election_pb2.LeaderResponse(header=header, kv=leader))
            async with aclosing(line.changes(leader.key, b"", header.revision + 1)) as changes:
                async for event in changes:
                    if event.type == kv_pb2.Event.DELETE:
                        break
                    header.revision = event.kv.mod_revision
                    await context.write(election_pb2.LeaderResponse(header=header, kv=event.kv))

    async def _first_put(self, prefix: bytes, start_revision: int) -> kv_pb2.KeyValue | None:
        """The first key that somebody puts under the prefix; None when a compaction hides it."""
        async with aclosing(self._line.changes(prefix, prefix_end(prefix), start_revision)) as changes:
            async for event in changes:
                if event.type == kv_pb2.Event.PUT:
                    return event.kv
        return None

    @unmapped
    async def Resign(self, request: election_pb2.ResignRequest, _context: object) -> election_pb2.ResignResponse:
        """Leave the line; nothing happens where the place is lost already."""
        if not request.HasField("leader"):
            raise LEADER_MISSING.again()
        leader = request.leader
        delete = rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=leader.key))
        response = await self._line.txn(leader.key, leader.rev, delete)
        return election_pb2.ResignResponse(header=response.header)
