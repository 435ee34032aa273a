"""The jobs that a member does by itself beside serving: compaction, lease checkpoints, comparing the members."""

from __future__ import annotations

import asyncio

from store.autocompact import AutoCompactor
from store.checkpoints import LeaseCheckpoints
from store.clock import Clock, SystemClock
from store.config import UpkeepOptions
from store.corruption import CorruptionCheck, Peers
from store.lessor import Lessor
from store.machine import Machine
from store.raft_replica import RaftReplica


class Upkeep:
    """Make it with the services; ``check_start`` once peers can be reached; ``run`` as a task."""

    def __init__(
        self,
        options: UpkeepOptions,
        machine: Machine,
        replica: RaftReplica,
        peers: Peers,
        lessor: Lessor,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        clock = clock or SystemClock()
        self._corruption = CorruptionCheck(machine, replica, peers, clock)
        self._checkpoints = LeaseCheckpoints(lambda: machine.state.leases, lessor, replica, clock)
        self._compactor = (
            None if options.retention is None else AutoCompactor(options.retention, machine, replica, clock)
        )

    async def check_start(self) -> None:
        """Raises CorruptError when this member must not serve."""
        if self._options.initial_corrupt_check:
            await self._corruption.check_start()

    async def run(self) -> None:
        """Until cancelled."""
        options = self._options
        async with asyncio.TaskGroup() as tasks:
            if self._compactor is not None:
                tasks.create_task(self._compactor.run())
            if options.lease_checkpoints:
                tasks.create_task(self._checkpoints.run())
            if options.corrupt_check_s > 0:
                tasks.create_task(self._corruption.run(options.corrupt_check_s))
