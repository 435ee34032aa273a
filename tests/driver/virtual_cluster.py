"""Drivers of a whole cluster in one virtual loop, over simulated disks and a network of function calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from chaos.disk import SimulatedDisk, SimulatedLog
from raft.codec import decode_frame, encode_frame
from raft.config import DriverConfig
from raft.core.types import ConfChangeV2, ConfState, Entry, Message, Snapshot
from raft.driver import RaftDriver
from raft.errors import RaftError

log = logging.getLogger(__name__)

IDS = (1, 2, 3)
START = Snapshot(1, 1, ConfState(IDS))


class Journal:
    """A state machine that remembers what it applied, and forgets it when it stops: restarts replay the log."""

    def __init__(self) -> None:
        self.applied_index = START.index
        self.conf_state = START.conf_state
        self.values: list[bytes] = []

    @property
    def durable_index(self) -> int:
        return START.index

    def apply(self, entry: Entry, payload: bytes, wanted: bool) -> Any:
        assert entry.index == self.applied_index + 1, "apply must be gap-free"
        self.applied_index = entry.index
        self.values.append(payload)
        return (entry.index, payload)

    def apply_empty(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, "apply must be gap-free"
        self.applied_index = entry.index

    def check_conf_change(self, entry: Entry, change: ConfChangeV2, payload: bytes) -> Exception | None:
        return ValueError("refused by the application") if payload == b"refuse" else None

    def apply_conf_change(self, entry: Entry, conf_state: ConfState, payload: bytes) -> Any:
        self.applied_index = entry.index
        self.conf_state = conf_state
        return conf_state

    @property
    def has_room(self) -> bool:
        return True

    async def room(self) -> None:
        return

    async def make_durable(self) -> None:
        return

    async def make_image(self) -> tuple[Snapshot, Path]:
        raise OSError("a journal makes no images")

    def release_image(self, image: Path) -> None:
        return

    async def accept_image(self, image: Path, snapshot: Snapshot) -> None:
        raise OSError("a journal takes no images")

    async def install_image(self, snapshot: Snapshot) -> None:
        raise OSError("a journal takes no images")


@dataclass
class Durable:
    """What a node's state machine has on its own disk: it survives a stop."""

    snapshot: Snapshot = START
    values: tuple[bytes, ...] = ()
    accepted: dict[int, tuple[Snapshot, tuple[bytes, ...]]] = field(default_factory=dict)


class Crash(RaftError):
    """A test ends a node here."""


class ImageJournal(Journal):
    """A journal that can be photographed, and that keeps what it was told to make durable.

    ``crash_at`` names a step of an installation at which the node dies.
    """

    images: ClassVar[dict[Path, tuple[Snapshot, tuple[bytes, ...]]]] = {}

    def __init__(self, disk: Durable) -> None:
        super().__init__()
        self.disk = disk
        self.crash_at = ""
        self._load(disk.snapshot, disk.values)

    def _load(self, snapshot: Snapshot, values: tuple[bytes, ...]) -> None:
        self.applied_index, self.applied_term = snapshot.index, snapshot.term
        self.conf_state, self.values = snapshot.conf_state, list(values)

    @property
    def durable_index(self) -> int:
        return self.disk.snapshot.index

    def apply(self, entry: Entry, payload: bytes, wanted: bool) -> Any:
        self.applied_term = entry.term
        return super().apply(entry, payload, wanted)

    def apply_empty(self, entry: Entry) -> None:
        self.applied_term = entry.term
        super().apply_empty(entry)

    def apply_conf_change(self, entry: Entry, conf_state: ConfState, payload: bytes) -> Any:
        self.applied_term = entry.term
        return super().apply_conf_change(entry, conf_state, payload)

    def _now(self) -> Snapshot:
        return Snapshot(self.applied_index, self.applied_term, self.conf_state)

    async def make_durable(self) -> None:
        self.disk.snapshot, self.disk.values = self._now(), tuple(self.values)

    async def make_image(self) -> tuple[Snapshot, Path]:
        path = Path(f"image-{len(self.images)}")
        self.images[path] = (self._now(), tuple(self.values))
        return self._now(), path

    async def accept_image(self, image: Path, snapshot: Snapshot) -> None:
        held = self.images[image]
        assert held[0] == snapshot
        self.disk.accepted = {snapshot.index: held}
        self._maybe_crash("accepted")

    async def install_image(self, snapshot: Snapshot) -> None:
        self._maybe_crash("logged")
        self._load(*self.disk.accepted[snapshot.index])
        await self.make_durable()
        self._maybe_crash("installed")

    async def recover(self, snapshot: Snapshot) -> None:
        if self.applied_index < snapshot.index:
            await self.install_image(snapshot)
        self.disk.accepted.clear()

    def _maybe_crash(self, step: str) -> None:
        if self.crash_at == step:
            raise Crash(f"at {step}")


class Wire:
    """The network of one cluster. ``cut`` holds directed links that lose everything."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.nodes: dict[int, RaftDriver] = {}
        self.cut: set[tuple[int, int]] = set()
        self.snapshots = 0
        self.snapshot_delay_s = 0.01
        self.carrying: set[asyncio.Task[None]] = set()
        self.observe: Callable[[int, Message], None] = lambda sender, message: None

    def isolate(self, node: int) -> None:
        self.cut |= {(node, other) for other in IDS} | {(other, node) for other in IDS}

    def heal(self) -> None:
        self.cut.clear()

    def transmit(self, sender: int, messages: Iterable[Message]) -> None:
        loop = asyncio.get_running_loop()
        for message in messages:
            self.observe(sender, message)
            if (sender, message.to) not in self.cut:
                delay = 0.0005 + self._rng.random() * 0.001
                loop.call_later(delay, self._deliver, sender, message.to, encode_frame([message]))

    def _deliver(self, sender: int, to: int, frame: bytes) -> None:
        if to in self.nodes and (sender, to) not in self.cut:
            self.nodes[to].receive(decode_frame(frame))


class Port:
    """One node's Transport."""

    def __init__(self, wire: Wire, node: int) -> None:
        self._wire = wire
        self._node = node

    def send(self, messages: Iterable[Message]) -> None:
        self._wire.transmit(self._node, messages)

    def set_peers(self, urls: Mapping[int, str]) -> None:
        return

    def send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        self._wire.snapshots += 1
        task = asyncio.get_running_loop().create_task(self._carry(message, image, done))
        self._wire.carrying.add(task)
        task.add_done_callback(self._wire.carrying.discard)

    async def _carry(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        await asyncio.sleep(self._wire.snapshot_delay_s)  # virtual
        receiver, sender = self._wire.nodes.get(message.to), self._wire.nodes.get(self._node)
        ok = receiver is not None and (self._node, message.to) not in self._wire.cut
        try:
            if receiver is not None and ok:
                await receiver.receive_snapshot(message, image)
        except Crash as crash:
            assert receiver is not None
            receiver._fail(crash)
            ok = False
        if sender is not None:
            sender.snapshot_sent(message.to, ok)
        done()

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes:
        raise NotImplementedError

    def active_since(self, peer: int) -> float | None:
        return 0.0 if peer in self._wire.nodes else None


class VirtualCluster:
    """Three nodes that can be stopped and started on their disks."""

    def __init__(
        self,
        disks: Mapping[int, SimulatedDisk],
        seed: int = 1,
        states: Mapping[int, Durable] | None = None,
        config: Callable[[int], DriverConfig] = DriverConfig,
    ) -> None:
        self.states = states
        self.config = config
        self.rng = random.Random(seed)
        self.wire = Wire(self.rng)
        self.disks = dict(disks)
        self.journals: dict[int, Journal] = {}
        self.failures: dict[int, BaseException] = {}
        self.failed = asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    async def start(self, node: int) -> RaftDriver:
        log = SimulatedLog(self.disks[node])
        loaded = await log.load()
        journal = Journal()
        if self.states is not None:
            journal = ImageJournal(self.states[node])
            await journal.recover(loaded.snapshot)
        driver = RaftDriver(
            self.config(node), log, loaded, journal, Port(self.wire, node),
            random.Random(self.rng.random()),
        )  # fmt: skip
        driver.on_leader_change(lambda lead, leading: self._changed.set())
        self.wire.nodes[node], self.journals[node] = driver, journal
        self._tasks[node] = asyncio.create_task(self._run(node, driver))
        return driver

    async def _run(self, node: int, driver: RaftDriver) -> None:
        try:
            await driver.run()
        except Exception as error:
            self.failures[node] = error
            self.failed.set()
            log.info("node %d failed", node, exc_info=error)
            self.wire.nodes.pop(node, None)

    async def stop(self, node: int) -> None:
        """The process is gone, without a goodbye."""
        self.wire.nodes.pop(node, None)
        task = self._tasks.pop(node)
        task.cancel()
        await asyncio.wait((task,))

    async def leader(self, timeout_s: float = 30.0) -> RaftDriver:
        """The leader that can commit; waits for one."""
        async with asyncio.timeout(timeout_s):
            while True:
                for driver in self.wire.nodes.values():
                    others = [n for n in IDS if (driver.config.member_id, n) not in self.wire.cut]
                    if driver.is_leader and len(others) >= 2:
                        return driver
                self._changed.clear()
                await self._changed.wait()

    async def settle(self) -> None:
        """Return once every running node has applied what the leader has."""
        while True:
            leader = await self.leader()
            try:
                await leader.propose(b"settled")
                break
            except RaftError:
                continue  # it was a leader that had not heard of its successor yet
        async with asyncio.timeout(30):
            for driver in self.wire.nodes.values():
                await driver.read_barrier()


def new_disks(seed: int, observe: Callable[[int, str], None] | None = None) -> dict[int, SimulatedDisk]:
    disks = {}
    for node in IDS:
        disk = SimulatedDisk(random.Random(seed + node))
        SimulatedLog.create(disk, START)
        if observe is not None:
            disk._observe = lambda event, node=node: observe(node, event)  # type: ignore[misc]
        disks[node] = disk
    return disks


@contextlib.asynccontextmanager
async def cluster(
    disks: Mapping[int, SimulatedDisk],
    seed: int = 1,
    states: Mapping[int, Durable] | None = None,
    config: Callable[[int], DriverConfig] = DriverConfig,
) -> AsyncIterator[VirtualCluster]:
    """A running cluster; everything has stopped afterwards. With ``states`` its nodes keep and send images."""
    running = VirtualCluster(disks, seed, states, config)
    for node in IDS:
        await running.start(node)
    try:
        yield running
    finally:
        for node in list(running._tasks):
            await running.stop(node)
