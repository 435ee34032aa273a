"""The clocks of leases. Only the leader runs them: it revokes what has expired, through raft (contract §7).

Nothing here is replicated. A new leader gives every lease its full time again, plus an election time-out for the
time without a leader: a lease may live longer than granted, never shorter.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from store.errors import LEADER_CHANGED, LEASE_NOT_FOUND, NOT_PRIMARY_LESSOR, TIMEOUT, EtcdError
from store.etcdpb import internal_pb2, rpc_pb2
from store.leases import Lease
from store.machine import Machine
from store.replica import Replica

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 0.5
REVOKES_PER_CHECK: Final = 500
"""1000 a second at most, so that a wave of expiries does not crowd out clients."""
REVOKE_RETRY_S: Final = 7.0
SPREAD_FROM: Final = 1000
"""With more leases than this, a new leader spreads what would expire in one second."""
SPREAD_PER_S: Final = 750
FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """Whole seconds left and granted; -1 left for a lease that does not exist."""

    id: int
    remaining_s: int
    granted_s: int = 0
    keys: tuple[bytes, ...] = ()


class Lessor:
    """Expiry of all leases, on the leader. ``clock`` gives seconds and never goes back."""

    def __init__(self, machine: Machine, replica: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self._machine = machine
        self._replica = replica
        self._clock = clock
        self._primary = False
        self._promoted = asyncio.Event()
        self._expiry: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        self._revoking: dict[int, float] = {}
        self._gone: dict[int, asyncio.Event] = {}
        self.revoked_total = 0
        machine.set_lease_listener(self)

    # -- who leads ----------------------------------------------------------------------------------------

    @property
    def is_primary(self) -> bool:
        return self._primary

    def leader_changed(self, leader_id: int, is_self: bool) -> None:
        """To be registered with Replica.on_leader_change."""
        if is_self and not self._primary:
            self._promote()
        elif not is_self and self._primary:
            self._primary = False
            self._promoted.clear()
            self._clear()

    def _promote(self) -> None:
        self._primary = True
        self._promoted.set()
        self._clear()
        now, extra = self._clock(), self._replica.election_timeout_s
        leases = self._machine.state.leases.all()
        ends = sorted((now + (lease.remaining_s or lease.ttl_s) + extra, lease.id) for lease in leases)
        if len(ends) > SPREAD_FROM:
            ends = _spread(ends)
        for end, lease_id in ends:
            self._set(lease_id, end)

    def _clear(self) -> None:
        self._expiry.clear()
        self._heap.clear()
        self._revoking.clear()

    # -- what applying reports (store.machine.LeaseListener) ----------------------------------------------

    def granted(self, lease: Lease) -> None:
        if self._primary:
            self._set(lease.id, self._clock() + lease.ttl_s)

    def revoked(self, lease_id: int) -> None:
        self._expiry.pop(lease_id, None)
        self._revoking.pop(lease_id, None)
        if (event := self._gone.pop(lease_id, None)) is not None:
            event.set()

    def replaced(self) -> None:
        if self._primary:
            self._promote()

    def _set(self, lease_id: int, end: float) -> None:
        # An older heap entry of the same lease is recognised by its time and skipped when it surfaces.
        self._expiry[lease_id] = end
        heapq.heappush(self._heap, (end, lease_id))
        if len(self._heap) > 64 + 4 * len(self._expiry):
            self._heap = [(at, lease) for lease, at in self._expiry.items()]
            heapq.heapify(self._heap)

    # -- asked of the leader ------------------------------------------------------------------------------

    async def renew(self, lease_id: int) -> int:
        """Restart the lease; its granted TTL in seconds, or 0 when there is no such lease (any more).

        A lease past its end waits for its revoke, so that nobody sees it come back to life. Raises
        NOT_PRIMARY_LESSOR on a member that does not lead, TIMEOUT when the revoke does not come.
        """
        if not self._primary:
            raise NOT_PRIMARY_LESSOR.again()
        lease = self._machine.state.leases.get(lease_id)
        if lease is None:
            return 0
        if self._expiry.get(lease_id, FOREVER) <= self._clock():
            await self._wait_gone(lease_id)
            return 0
        if lease.remaining_s:
            await self._propose_full(lease_id)
        self._set(lease_id, self._clock() + lease.ttl_s)
        return lease.ttl_s

    def time_to_live(self, lease_id: int, *, with_keys: bool) -> TimeToLive:
        """What is left of a lease. Raises LEADER_CHANGED on a member that does not lead (any more)."""
        if not self._primary:
            raise LEADER_CHANGED.again()
        lease = self._machine.state.leases.get(lease_id)
        if lease is None or self._remaining(lease_id) <= 0:
            return TimeToLive(lease_id, -1)
        remaining = self._remaining(lease_id)
        return TimeToLive(lease_id, int(remaining), lease.ttl_s, tuple(lease.keys) if with_keys else ())

    def by_remaining_time(self) -> list[int]:
        """All lease ids, the one that ends first first. On a follower, which has no clocks: by id."""
        return sorted((lease.id for lease in self._machine.state.leases.all()), key=self._order)

    def _order(self, lease_id: int) -> tuple[float, int]:
        return self._expiry.get(lease_id, FOREVER), lease_id

    def _remaining(self, lease_id: int) -> float:
        return self._expiry.get(lease_id, FOREVER) - self._clock()

    async def _wait_gone(self, lease_id: int) -> None:
        event = self._gone.setdefault(lease_id, asyncio.Event())
        try:
            async with asyncio.timeout(REVOKE_RETRY_S):
                await event.wait()
        except TimeoutError:
            raise TIMEOUT.again() from None

    async def _propose_full(self, lease_id: int) -> None:
        checkpoint = rpc_pb2.LeaseCheckpoint(ID=lease_id, remaining_TTL=0)
        request = rpc_pb2.LeaseCheckpointRequest(checkpoints=[checkpoint])
        await self._replica.propose(internal_pb2.InternalRequest(lease_checkpoint=request))

    # -- expiry -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Revoke what has expired, while this member leads, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._promoted.wait()
                await asyncio.sleep(CHECK_INTERVAL_S)
                for lease_id in self.take_expired():
                    tasks.create_task(self._revoke(lease_id))

    def take_expired(self) -> list[int]:
        """Leases to revoke now. Each is due again after REVOKE_RETRY_S if it is still there."""
        if not self._primary:
            return []
        now = self._clock()
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now and len(due) < REVOKES_PER_CHECK:
            end, lease_id = heapq.heappop(self._heap)
            if self._revoking.get(lease_id) != end and self._expiry.get(lease_id) != end:
                continue
            due.append(lease_id)
            self._revoking[lease_id] = now + REVOKE_RETRY_S
            heapq.heappush(self._heap, (now + REVOKE_RETRY_S, lease_id))
        return due

    async def _revoke(self, lease_id: int) -> None:
        request = internal_pb2.InternalRequest(lease_revoke=rpc_pb2.LeaseRevokeRequest(ID=lease_id))
        try:
            # Its end was this leader's: a later one has given the lease its full time again.
            await self._replica.propose(request, as_leader=True)
            self.revoked_total += 1
        except EtcdError as error:
            if error != LEASE_NOT_FOUND:
                log.warning("expired lease %x is not revoked yet: %s", lease_id, error)


def _spread(ends: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Delay some of the ends, given in order, so that at most SPREAD_PER_S fall in one second."""
    out: list[tuple[float, int]] = []
    for i, (end, lease_id) in enumerate(ends):
        earliest = out[i - SPREAD_PER_S][0] + 1.0 if i >= SPREAD_PER_S else end
        out.append((max(end, earliest), lease_id))
    return out
