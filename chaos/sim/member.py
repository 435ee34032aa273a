"""One simulated member: what survives its process, and the process, assembled from the production parts."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chaos.disk import Loss, SimulatedDisk, SimulatedLog, read_log
from chaos.sim.loop import Host
from chaos.sim.network import PeerPort
from chaos.sim.storage import DurableView, MemberLog, MemoryMachine, Port, StateDisk
from raft.config import DriverConfig
from raft.core import RawNode
from raft.core.types import ConfState, Entry, Message, Snapshot
from raft.driver import RaftDriver
from raft.errors import RaftError
from raft.log import Identity
from store.api.context import ApiContext
from store.api.kv import KVServicer
from store.api.lease import LeaseServicer
from store.application import MachineApplication
from store.cluster import MEMBERS, encode_conf_state, encode_member, member_key
from store.config import MemberConfig
from store.images import CONF_STATE_KEY
from store.lessor import Lessor
from store.machine import META, Machine, MachineOptions
from store.raft_replica import RaftReplica
from store.replica import MemberInfo

if TYPE_CHECKING:
    from chaos.sim.world import World

T = TypeVar("T")

CLUSTER_ID: Final = 0xC0FFEE
SECTOR_BYTES: Final = 32
"""Small, so that even a short record can be torn."""
START_INDEX: Final = 1
START_TERM: Final = 1
_LOSSES: Final = (Loss.ALL, Loss.NONE, Loss.TORN, Loss.REORDERED)


class Member:
    """An id, its disks, and the process that runs on them, if one does (chaos.invariants.Observed)."""

    def __init__(self, number: int, rng: random.Random, rate: float, first: Sequence[int]) -> None:
        """``first`` are the members that a new cluster begins with; empty for one that joins."""
        self.id = number
        self.rng = rng
        self.rate = rate
        self.state_disk = StateDisk()
        self.log_disk = SimulatedDisk(rng, sector_bytes=SECTOR_BYTES)
        SimulatedLog.create(self.log_disk, first_state(self.state_disk, first) if first else Snapshot())
        self.disk = DurableView()
        self.process: Process | None = None
        self.lost = False
        """Its disk was wiped or damaged: it never comes back as itself."""
        self.removed = False
        self.wall_offset_s = 0.0
        self.starts = 0
        self.newest_config: ConfState | None = None
        """The newest that was ever in force here."""
        self.newest_config_at = 0
        self.unsynced = False
        """The last crash met a write to the log that was not synced."""

    @property
    def node(self) -> RawNode | None:
        process = self.process
        return process.driver._node if process is not None and process.serving else None

    def crash_disks(self, *, power_loss: bool) -> None:
        """What the next start finds."""
        self.unsynced = bool(self.log_disk.pending)
        loss = self.rng.choice(_LOSSES) if power_loss else Loss.NONE
        self.log_disk = self.log_disk.after_crash(loss)
        if not self.lost:  # what a damaged disk held counts for what others believe of it
            self.disk.reset(read_log(self.log_disk))
        self.state_disk.after_crash(self.rng, power_loss=power_loss)


class Application(MachineApplication):
    """The production application, watched."""

    def __init__(self, member: Member, machine: MemoryMachine, world: World) -> None:
        super().__init__(machine, 1, machine.images)
        self._member = member
        self._world = world
        self._conf_changed()

    def apply(self, entry: Entry, payload: bytes, wanted: bool) -> Any:
        outcome = super().apply(entry, payload, wanted)
        self._world.oracle.applied(self._member, self._machine, entry)
        return outcome

    def apply_empty(self, entry: Entry) -> None:
        super().apply_empty(entry)
        self._world.oracle.applied(self._member, self._machine, entry)

    def apply_conf_change(self, entry: Entry, conf_state: ConfState, payload: bytes) -> Any:
        outcome = super().apply_conf_change(entry, conf_state, payload)
        self._conf_changed()
        self._world.oracle.applied(self._member, self._machine, entry)
        self._world.config_applied(self._member, conf_state)
        return outcome

    async def install_image(self, snapshot: Snapshot) -> None:
        await super().install_image(snapshot)
        self._conf_changed()
        self._world.oracle.installed(self._member, self._machine)

    def _conf_changed(self) -> None:
        self._member.disk.conf_state = self.conf_state


class Process:
    """One life of a member, from start to crash."""

    driver: RaftDriver
    machine: MemoryMachine
    kv: KVServicer
    leases: LeaseServicer
    api: ApiContext

    def __init__(self, member: Member, world: World) -> None:
        self.member = member
        self.world = world
        member.starts += 1
        self.host = Host(f"m{member.id}.{member.starts}", member.rate)
        self.host.wall_offset_s = member.wall_offset_s
        self.port = PeerPort(world.network, member.id, self.host)
        options, rng = world.options, world.stream("delays", member.id, member.starts)
        self.log_port = Port(rng, lambda: options.sync_s * rng.random() * 2)
        self.state_port = Port(rng, lambda: options.state_sync_s * rng.random() * 2)
        self.serving = False
        self.task: asyncio.Task[None] | None = None
        self._images_received = 0
        self._turns = -1
        self._applied = -1
        self._crash_in: int | None = None
        self._power_loss = False

    def start(self) -> None:
        self.task = self.world.loop.start_on(self.host, self._run(), f"member-{self.member.id}")

    async def _run(self) -> None:
        try:
            await self._live()
        except Exception as error:
            if self.port.alive:
                self.world.process_failed(self, error)

    async def _live(self) -> None:
        member, world, options = self.member, self.world, self.world.options
        machine_options = MachineOptions(flush_interval_s=options.flush_s, history_bytes=options.history_bytes)
        self.machine = machine = await MemoryMachine.start(
            member.state_disk, self.state_port, machine_options, world.oracle.revised
        )
        log = MemberLog(
            member.log_disk, member.disk, self.log_port,
            lambda: world.trace.situation("log truncated below a checkpoint"),
        )  # fmt: skip
        found = member.log_disk.length
        loaded = await log.load()
        if member.log_disk.length < found:
            world.trace.situation("torn end of a log cut off")
        application = Application(member, machine, world)
        await application.recover(loaded.snapshot)
        application._conf_changed()
        world.oracle.loaded(member, machine)
        rng = world.stream("election", member.id, member.starts)
        self.driver = RaftDriver(self._config(), log, loaded, application, self.port, rng)
        world.oracle.core_started(self.driver._node.raft)
        replica = RaftReplica(
            Identity(CLUSTER_ID, member.id), _MEMBER_CONFIG, self.driver,
            self.port, application,  # type: ignore[arg-type]  # the port is to the transport what the loop is to asyncio
        )  # fmt: skip
        lessor = Lessor(machine, replica, self.world.loop.time)
        self.api = ApiContext(replica, machine, lessor)
        self.kv, self.leases = KVServicer(self.api), LeaseServicer(self.api)
        replica.on_leader_change(lessor.leader_changed)
        self.driver.on_leader_change(self._leader_changed)
        application.on_membership = lambda: world.membership_changed(self, application.membership.removed())
        self.serving = True
        self.host.stepped = self._stepped
        world.serves(self)
        async with asyncio.TaskGroup() as tasks:
            for part in (self.driver.run(), machine.run(), lessor.run()):
                tasks.create_task(self._part(part))

    async def _part(self, part: Coroutine[Any, Any, None]) -> None:
        """One of the things a process does. When one fails the process ends at that instant."""
        try:
            await part
        except Exception as error:
            if self.port.alive:
                self.world.process_failed(self, error)

    def _config(self) -> DriverConfig:
        options = self.world.options
        return DriverConfig(
            member_id=self.member.id,
            tick_s=options.tick_s,
            election_ticks=options.election_ticks,
            max_size_per_msg_bytes=options.message_bytes,
            max_inflight_msgs=options.inflight_msgs,
            snapshot_count=options.snapshot_count,
            catch_up_entries=options.catch_up_entries,
            pre_vote=options.pre_vote,
        )

    def _stepped(self) -> None:
        """After every callback: whatever it changed is checked before anything else runs."""
        driver = self.driver
        applied = self.machine.state.applied_index
        if driver.turns != self._turns or applied != self._applied:
            self._turns, self._applied = driver.turns, applied
            self.world.oracle.stepped(self.member)
        if self._crash_in is not None:
            self._crash_in -= 1
            if self._crash_in < 0:
                self.world.crash(self.member, power_loss=self._power_loss)

    def _leader_changed(self, lead: int, leading: bool) -> None:
        self.world.leader_changed(self, lead, leading)

    def crash_after(self, steps: int, *, power_loss: bool) -> None:
        """Crash in the middle of something: so many callbacks from now."""
        if self.serving:
            self._crash_in, self._power_loss = steps, power_loss
        else:
            self.world.crash(self.member, power_loss=power_loss)

    def spare(self) -> None:
        """A crash that was to come does not."""
        self._crash_in = None

    def kill(self) -> int:
        """The process is gone at this instant: nothing it does from now on reaches disk, network or client.

        Returns how far its state was written."""
        flushed = self.machine.flushed_index if self.serving else 0
        self.serving = False
        self.port.alive = self.log_port.alive = self.state_port.alive = False
        self.world.loop.kill(self.host)
        return flushed

    async def take_snapshot(self, sender: int, message: Message, data: bytes) -> bool:
        """An image has arrived from ``sender``; whether it was taken."""
        self._images_received += 1  # the same image may come twice, from a leader that believes the first one lost
        path = Path(f"incoming-{sender}-{self._images_received}.snap")
        self.member.state_disk.images[path] = data
        try:
            await self.driver.receive_snapshot(message, path)
        except (OSError, RaftError):
            self.member.state_disk.images.pop(path, None)
            return False
        return True

    def serve(self, call: Callable[[], Coroutine[Any, Any, T]], name: str) -> asyncio.Task[T]:
        """Run a client's request as a task of this process."""
        return self.world.loop.start_on(self.host, call(), name)


_MEMBER_CONFIG: Final = MemberConfig("simulated", Path(), (), (), (), (), {})


def first_state(disk: StateDisk, members: Sequence[int]) -> Snapshot:
    """Put the first members and their configuration at the start position, as a bootstrap does."""
    conf_state = ConfState(voters=tuple(sorted(members)))
    writes: dict[tuple[str, bytes], bytes | None] = {
        (MEMBERS, member_key(number)): encode_member(MemberInfo(number, f"m{number}", (peer_url(number),), ()))
        for number in members
    }
    writes[META, CONF_STATE_KEY] = encode_conf_state(conf_state)
    disk.bootstrap(START_INDEX, START_TERM, writes)
    return Snapshot(START_INDEX, START_TERM, conf_state)


def peer_url(number: int) -> str:
    return f"http://10.0.0.{number}:2380"


def digest(machine: Machine) -> bytes:
    """The replicated state of a machine in a few bytes: equal states, equal digests."""
    state = machine.state
    index = state.index
    parts: list[bytes] = [b"%d %d" % (state.revision, state.compact_revision)]
    parts += [index.live[key].framed for key in index.keys]
    for lease in sorted(state.leases.all(), key=lambda lease: lease.id):
        parts.append(b"%d %d %d" % (lease.id, lease.ttl_s, lease.remaining_s))
        parts += sorted(lease.keys)
    parts.append(repr(sorted(state.alarms)).encode())
    for name in ("members", "members_removed"):
        parts += [key + value for key, value in sorted(state.bucket(name).items())]
    parts.append(state.bucket(META).get(CONF_STATE_KEY, b""))
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).digest()
