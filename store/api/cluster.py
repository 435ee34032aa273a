"""The Cluster service. Membership changes are not offered yet (contract §8)."""

from __future__ import annotations

from store.api.context import ApiContext
from store.errors import unimplemented
from store.etcdpb import rpc_pb2
from store.replica import MemberInfo


class ClusterServicer:
    def __init__(self, api: ApiContext) -> None:
        self._api = api

    async def MemberList(self, request: rpc_pb2.MemberListRequest, _context: object) -> rpc_pb2.MemberListResponse:
        if request.linearizable:
            await self._api.replica.read_barrier()
        members = [_member(info) for info in self._api.replica.members()]
        return rpc_pb2.MemberListResponse(header=self._api.header(revision=0), members=members)

    async def MemberAdd(self, request: rpc_pb2.MemberAddRequest, _context: object) -> object:
        raise unimplemented("kvorum: adding members is not supported yet")

    async def MemberRemove(self, request: rpc_pb2.MemberRemoveRequest, _context: object) -> object:
        raise unimplemented("kvorum: removing members is not supported yet")

    async def MemberUpdate(self, request: rpc_pb2.MemberUpdateRequest, _context: object) -> object:
        raise unimplemented("kvorum: updating members is not supported yet")

    async def MemberPromote(self, request: rpc_pb2.MemberPromoteRequest, _context: object) -> object:
        raise unimplemented("kvorum: promoting members is not supported yet")


def _member(info: MemberInfo) -> rpc_pb2.Member:
    return rpc_pb2.Member(
        ID=info.id,
        name=info.name,
        peerURLs=info.peer_urls,
        clientURLs=info.client_urls,
        isLearner=info.is_learner,
    )
