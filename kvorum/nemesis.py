"""Faults on the members of a local cluster, one after the other, from one seeded generator.

Every fault is healed by who injected it, whatever happens in between, so that a run ends with a whole cluster.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from chaos.traffic.clients import pause
from kvorum import faults
from kvorum.layout import FAULTS_VARIABLE, Cluster, Member, UserError, load
from kvorum.membership import replace_member
from kvorum.processes import Child
from store.config import SLOW_DISK_FILE

KINDS: Final = ("kill", "pause", "slow-disk", "member")

CALM_S: Final = (1.0, 5.0)
"""Between two faults: from, to."""
_WHOLE_CLUSTER: Final = 0.15
"""How often all members are killed together."""


class Nemesis:
    """Hurts the cluster in ``directory`` until told to stop. ``restarted`` is called with a member that lost its
    memory, once it is back."""

    def __init__(
        self, directory: Path, kinds: Sequence[str], random: Random, restarted: Callable[[Member], None]
    ) -> None:
        self._directory = directory
        self._random = random
        self._restarted = restarted
        self._faults: dict[str, Callable[[asyncio.Event], Awaitable[None]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "slow-disk": self._slow_disk,
            "member": self._replace,
        }
        self._kinds = list(kinds)
        self._children: list[Child] = []
        self.counts: Counter[str] = Counter()
        self.now = "calm"
        """What it does at the moment, for people."""

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.now = "calm"
            await pause(self._random.uniform(*CALM_S), stop)
            if stop.is_set():
                return
            kind = self._random.choice(self._kinds)
            self.counts[kind] += 1
            await self._faults[kind](stop)
            for child in self._children:
                child.reap()

    @property
    def _cluster(self) -> Cluster:
        return load(self._directory)

    def _victims(self) -> list[Member]:
        members = list(self._cluster.members)
        if self._random.random() < _WHOLE_CLUSTER:
            return members
        return self._random.sample(members, 1)

    async def _kill(self, stop: asyncio.Event) -> None:
        victims = self._victims()
        down_s = self._random.uniform(0.1, 4.0)
        self.now = f"killed {_names(victims)}"
        async with self._healed(lambda: self._start(victims)):
            async with asyncio.TaskGroup() as group:
                for member in victims:
                    group.create_task(faults.kill(member))
            await pause(down_s, stop)

    async def _start(self, members: Sequence[Member]) -> None:
        async def one(member: Member) -> None:
            self._children.append(await faults.restart(self._cluster, member))
            self._restarted(member)

        async with asyncio.TaskGroup() as group:
            for member in members:
                if not self._cluster.member(member.name).process.alive():
                    group.create_task(one(member))

    async def _pause(self, stop: asyncio.Event) -> None:
        victims = self._victims()
        self.now = f"paused {_names(victims)}"
        async with self._healed(lambda: _resume(victims)):
            for member in victims:
                faults.pause(member)
            await pause(self._random.uniform(0.2, 5.0), stop)

    async def _slow_disk(self, stop: asyncio.Event) -> None:
        """The log of one member takes longer for every write; sometimes longer than an election."""
        member = self._random.choice(self._cluster.members)
        delay_ms = self._random.choice((20, 100, 400, 1500, 4000))
        file = Path(member.data_dir) / SLOW_DISK_FILE
        self.now = f"slowed the disk of {member.name} by {delay_ms} ms"
        async with self._healed(lambda: _remove(file)):
            file.write_text(str(delay_ms))
            await pause(self._random.uniform(2.0, 8.0), stop)

    async def _replace(self, stop: asyncio.Event) -> None:
        """One member is removed, loses its data, and joins again as a new one: learner, then voter."""
        member = self._random.choice(self._cluster.members)
        self.now = f"replacing {member.name}"
        self._children.append(await replace_member(self._cluster, member))
        self._restarted(member)

    @asynccontextmanager
    async def _healed(self, heal: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await heal()


async def _resume(members: Sequence[Member]) -> None:
    for member in members:
        faults.resume(member)


async def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)


def _names(members: Sequence[Member]) -> str:
    return ", ".join(member.name for member in members)


def check_kinds(kinds: Sequence[str], cluster: Cluster) -> None:
    """Raises UserError for a fault that this cluster cannot have."""
    for member in cluster.members:
        environment = Path(f"/proc/{member.process.pid}/environ")
        takes_faults = f"{FAULTS_VARIABLE}=1".encode() in environment.read_bytes().split(b"\0")
        if "slow-disk" in kinds and not takes_faults:
            raise UserError(
                f"{member.name} was not started with {FAULTS_VARIABLE}=1, so its disk cannot be slowed; "
                "let 'kvorum check run' start a cluster of its own"
            )
