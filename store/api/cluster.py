"""The Cluster service: who the members are, and changing them (contract §8)."""

from __future__ import annotations

from store.api.context import ApiContext
from store.etcdpb import rpc_pb2
from store.replica import MemberInfo


class ClusterServicer:
    def __init__(self, api: ApiContext) -> None:
        self._api = api

    async def MemberList(self, request: rpc_pb2.MemberListRequest, _context: object) -> rpc_pb2.MemberListResponse:
        if request.linearizable:
            await self._api.read_barrier()
        members = [_member(info) for info in self._api.replica.members()]
        return rpc_pb2.MemberListResponse(header=self._api.header(revision=0), members=members)

    async def MemberAdd(self, request: rpc_pb2.MemberAddRequest, _context: object) -> rpc_pb2.MemberAddResponse:
        added, members = await self._api.reconfigure.add(list(request.peerURLs), request.isLearner)
        header = self._api.header(revision=0)
        return rpc_pb2.MemberAddResponse(header=header, member=_member(added), members=map(_member, members))

    async def MemberRemove(
        self, request: rpc_pb2.MemberRemoveRequest, _context: object
    ) -> rpc_pb2.MemberRemoveResponse:
        members = await self._api.reconfigure.remove(request.ID)
        return rpc_pb2.MemberRemoveResponse(header=self._api.header(revision=0), members=map(_member, members))

    async def MemberUpdate(
        self, request: rpc_pb2.MemberUpdateRequest, _context: object
    ) -> rpc_pb2.MemberUpdateResponse:
        members = await self._api.reconfigure.update(request.ID, list(request.peerURLs))
        return rpc_pb2.MemberUpdateResponse(header=self._api.header(revision=0), members=map(_member, members))

    async def MemberPromote(
        self, request: rpc_pb2.MemberPromoteRequest, _context: object
    ) -> rpc_pb2.MemberPromoteResponse:
        members = await self._api.reconfigure.promote(request.ID)
        return rpc_pb2.MemberPromoteResponse(header=self._api.header(revision=0), members=map(_member, members))


def _member(info: MemberInfo) -> rpc_pb2.Member:
    return rpc_pb2.Member(
        ID=info.id,
        name=info.name,
        peerURLs=info.peer_urls,
        clientURLs=info.client_urls,
        isLearner=info.is_learner,
    )
