"""The end of a run: a majority is healed, the rest stays broken, and the cluster must work again.

Faults that heal by chance hide a cluster that has stuck itself. So the healed core is all it gets, and the time it
has is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from chaos.check import history as h
from chaos.sim.standstill import excuse

if TYPE_CHECKING:
    from chaos.sim.clients import Client
    from chaos.sim.member import Process
    from chaos.sim.world import World

PATIENCE_ELECTIONS: Final = 60
"""Election time-outs until the core must have settled; a request that was lost costs several."""


class Settlement:
    """``run`` raises AssertionError when the core does not come to rest in time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.core: list[int] = []

    async def run(self, client: Client, end_traffic: Callable[[], None]) -> None:
        """``end_traffic`` is called once a new write and a read have succeeded: then all must come to rest.

        It is called after half of the time in any case: where clients ask for more than the links and disks of the
        run can carry, and give up before they are answered, no request of anybody succeeds until they stop.
        """
        world = self._world
        self._heal()
        world.trace.add(0, "liveness", f"core {self.core}")
        patience_s = PATIENCE_ELECTIONS * world.options.election_s + 10 * world.options.request_timeout_s
        terms: list[int] = []

        def half_way() -> None:
            end_traffic()
            terms.append(self._highest_term())

        world.later(patience_s / 2, half_way)
        try:
            async with asyncio.timeout(patience_s):
                await self._written(client)
                end_traffic()
                await self._rest()
        except TimeoutError:
            reason = excuse(
                self._processes(),
                self._highest_term() - terms[0],
                in_force=world.config,
                pre_vote=world.options.pre_vote,
            )
            if reason:
                world.trace.situation(reason)
                return
            raise AssertionError(f"liveness: the core {self.core} did not settle in {patience_s:.0f} s: "
                                 + "; ".join(map(_state, self._processes()))) from None  # fmt: skip

    def _heal(self) -> None:
        """Choose the core and mend everything inside it; leave the others dead or cut off."""
        world, rng = self._world, self._world.stream("core")
        healthy = [m.id for m in world.members.values() if not m.lost and not m.removed]
        self.core = self._choose(healthy)
        world.network.healed = True
        for member in world.members.values():
            if member.process is not None:
                member.process.spare()
                world.loop.resume(member.process.host)
            disk = member.log_disk
            disk.fail_syncs = False
            if disk.stall is not None:
                disk.stall.set()
                disk.stall = None
        outside = [m for m in world.members.values() if m.id not in self.core and m.process is not None]
        for member in outside:
            if rng.random() < 0.5:
                world.crash(member, power_loss=False, restart=False)
        for sender in world.members:
            for to in world.members:
                if sender == to:
                    continue
                if sender in self.core and to in self.core:
                    world.network.heal_link(sender, to)
                else:
                    world.network.block(sender, to)
        for number in self.core:
            world.start(world.members[number])

    def _choose(self, healthy: list[int]) -> list[int]:
        """A majority of both halves of the configuration; everybody, where a change may still come into force."""
        world, config = self._world, self._world.config
        voters = [world.members[number] for number in config.voters if number in healthy]
        behind = any(member.state_disk.durable_conf_state() != config for member in voters)
        if world.nemesis.changes_under_way or behind:
            return healthy
        core: set[int] = set()
        rng = world.stream("core members")
        for half in (config.voters, config.voters_outgoing):
            candidates = [number for number in half if number in healthy]
            rng.shuffle(candidates)
            needed = len(half) // 2 + 1 if half else 0
            inside = [number for number in candidates if number in core]
            for number in candidates:
                if len(inside) < needed and number not in inside:
                    inside.append(number)
            core.update(inside)
        return sorted(core)

    def _processes(self) -> list[Process]:
        processes = self._world.network.processes
        return [processes[number] for number in self.core if number in processes]

    def _highest_term(self) -> int:
        return max((process.driver.term for process in self._processes()), default=0)

    async def _written(self, client: Client) -> None:
        """A new write and a read must succeed at a member of the core."""
        for request in (h.Put(b"k0", self._world.unique_value()), h.Range(b"k", b"l")):
            at = 0
            while True:
                number = self.core[at % len(self.core)]
                operation = await client.perform(request, number)
                if operation.outcome is h.Outcome.OK:
                    break
                at += 1
                await asyncio.sleep(self._world.options.tick_s)
                if isinstance(request, h.Put):
                    request = h.Put(b"k0", self._world.unique_value())

    async def _rest(self) -> None:
        """Look once a tick: rest has no event of its own."""
        looks = 0
        while not self._settled():
            looks += 1
            await asyncio.sleep(self._world.options.tick_s)

    def _settled(self) -> bool:
        """One leader, no joint configuration, and all that it has is committed, applied and stored by all."""
        processes = self._processes()
        leaders = [process for process in processes if process.driver.is_leader]
        if len(leaders) != 1:
            return False
        leader = leaders[0].driver
        status = leader.status()
        config = status.config
        if config.voters_outgoing:
            if not config.auto_leave:
                self._world.nemesis.leave_joint(leaders[0])
            return False
        inside = [p for p in processes if p.member.id in (*config.voters, *config.learners)]
        last = leader.last_index
        return leader.commit_index == last and all(
            process.machine.applied_index == last and process.member.disk.last_index() == last
            for process in inside
        )


def _state(process: Process) -> str:
    driver = process.driver
    return (
        f"m{process.member.id} term {driver.term} leader {driver.leader_id} commit {driver.commit_index} "
        f"applied {process.machine.applied_index} last {driver.last_index}"
    )
