"""Lease checkpoints: the leader stores what is left of long leases, so that a new leader goes on from there
instead of giving them their full time again (contract §7). Off unless asked for, as in etcd."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from store.clock import Clock
from store.errors import EtcdError
from store.etcdpb import internal_pb2, rpc_pb2
from store.leases import Lease, LeaseBook
from store.lessor import TimeToLive

log = logging.getLogger(__name__)

INTERVAL_S: Final = 300.0
LEASES_PER_COMMAND: Final = 1000


class Clocks(Protocol):
    """The lessor."""

    @property
    def is_primary(self) -> bool: ...
    def time_to_live(self, lease_id: int, *, with_keys: bool) -> TimeToLive: ...


class Proposer(Protocol):
    async def propose(self, request: internal_pb2.InternalRequest, *, as_leader: bool = False) -> object: ...


class LeaseCheckpoints:
    """``run`` until cancelled. ``leases`` gives the present ones: a snapshot may replace all of them."""

    def __init__(self, leases: Callable[[], LeaseBook], lessor: Clocks, replica: Proposer, clock: Clock) -> None:
        self._leases = leases
        self._lessor = lessor
        self._replica = replica
        self._clock = clock

    async def run(self) -> None:
        while True:
            await self._clock.sleep(INTERVAL_S)
            if self._lessor.is_primary:
                await self._store()

    async def _store(self) -> None:
        due = list(self._due())
        for start in range(0, len(due), LEASES_PER_COMMAND):
            part = rpc_pb2.LeaseCheckpointRequest(checkpoints=due[start : start + LEASES_PER_COMMAND])
            try:
                await self._replica.propose(internal_pb2.InternalRequest(lease_checkpoint=part), as_leader=True)
            except EtcdError as error:
                log.warning("lease checkpoints will be repeated: %s", error)
                return

    def _due(self) -> Iterator[rpc_pb2.LeaseCheckpoint]:
        """Leases that have run for an interval without being renewed, and have longer to go."""
        for lease in self._leases().all():
            if lease.ttl_s > INTERVAL_S:
                left = self._lessor.time_to_live(lease.id, with_keys=False).remaining_s
                if 0 < left <= _stored(lease) - INTERVAL_S:
                    yield rpc_pb2.LeaseCheckpoint(ID=lease.id, remaining_TTL=left)


def _stored(lease: Lease) -> int:
    """What a new leader would give it now."""
    return lease.remaining_s or lease.ttl_s
