"""The Lease service (contract §7). Renewals and remaining times are the leader's to know."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, cast

from store.api.context import ApiContext
from store.apply import LeaseResult
from store.etcdpb import internal_pb2, rpc_pb2
from store.quota import LEASE_COST_BYTES

RENEW: Final = "lease/renew"
TIME_TO_LIVE: Final = "lease/time-to-live"
REQUEST_TIMEOUT_S: Final = 5.0


class LeaseServicer:
    def __init__(self, api: ApiContext) -> None:
        self._api = api
        api.replica.handle(RENEW, self._renew_as_leader)
        api.replica.handle(TIME_TO_LIVE, self._time_to_live_as_leader)

    async def LeaseGrant(self, request: rpc_pb2.LeaseGrantRequest, _context: object) -> rpc_pb2.LeaseGrantResponse:
        api = self._api
        await api.check_quota(LEASE_COST_BYTES)
        # What differs between members (an id at random, the minimum by this member's timing) is settled here:
        # applying must come out the same everywhere.
        command = rpc_pb2.LeaseGrantRequest(
            ID=request.ID or random.getrandbits(62) + 1, TTL=max(request.TTL, self._minimum_ttl_s())
        )
        result = cast(LeaseResult, await api.propose(internal_pb2.InternalRequest(lease_grant=command)))
        return rpc_pb2.LeaseGrantResponse(header=api.header(), ID=result.id, TTL=result.ttl_s)

    def _minimum_ttl_s(self) -> int:
        return math.ceil(1.5 * self._api.replica.election_timeout_s)

    async def LeaseRevoke(
        self, request: rpc_pb2.LeaseRevokeRequest, _context: object
    ) -> rpc_pb2.LeaseRevokeResponse:
        await self._api.propose(internal_pb2.InternalRequest(lease_revoke=request))
        return rpc_pb2.LeaseRevokeResponse(header=self._api.header())

    async def LeaseKeepAlive(self, requests: AsyncIterator[rpc_pb2.LeaseKeepAliveRequest], context: Any) -> None:
        """One answer per request, in order; TTL 0 where there is no such lease."""
        async for request in requests:
            header = self._api.header()
            answer = await self._ask(RENEW, request.SerializeToString(), self._renew_as_leader)
            response = rpc_pb2.LeaseKeepAliveResponse.FromString(answer)
            response.header.CopyFrom(header)
            await context.write(response)

    async def LeaseTimeToLive(
        self, request: rpc_pb2.LeaseTimeToLiveRequest, _context: object
    ) -> rpc_pb2.LeaseTimeToLiveResponse:
        answer = await self._ask(TIME_TO_LIVE, request.SerializeToString(), self._time_to_live_as_leader)
        response = rpc_pb2.LeaseTimeToLiveResponse.FromString(answer)
        response.header.CopyFrom(self._api.header())
        return response

    async def LeaseLeases(
        self, request: rpc_pb2.LeaseLeasesRequest, _context: object
    ) -> rpc_pb2.LeaseLeasesResponse:
        leases = [rpc_pb2.LeaseStatus(ID=lease_id) for lease_id in self._api.lessor.by_remaining_time()]
        return rpc_pb2.LeaseLeasesResponse(header=self._api.header(), leases=leases)

    async def _ask(self, method: str, payload: bytes, local: Callable[[bytes], Awaitable[bytes]]) -> bytes:
        replica = self._api.replica
        if replica.leader_id == replica.member_id:
            return await local(payload)
        timeout_s = REQUEST_TIMEOUT_S + 2 * replica.election_timeout_s
        return await replica.call_leader(method, payload, timeout_s)

    # -- asked by other members ---------------------------------------------------------------------------

    async def _renew_as_leader(self, payload: bytes) -> bytes:
        request = rpc_pb2.LeaseKeepAliveRequest.FromString(payload)
        # A deposed leader must not renew what its successor lets expire; and the grant may not be applied yet.
        await self._api.read_barrier()
        ttl_s = await self._api.lessor.renew(request.ID)
        return rpc_pb2.LeaseKeepAliveResponse(ID=request.ID, TTL=ttl_s).SerializeToString()

    async def _time_to_live_as_leader(self, payload: bytes) -> bytes:
        request = rpc_pb2.LeaseTimeToLiveRequest.FromString(payload)
        await self._api.read_barrier()
        found = self._api.lessor.time_to_live(request.ID, with_keys=request.keys)
        return rpc_pb2.LeaseTimeToLiveResponse(
            ID=found.id, TTL=found.remaining_s, grantedTTL=found.granted_s, keys=found.keys
        ).SerializeToString()
