"""Drivers of a whole cluster in one virtual loop, over simulated disks and a network of function calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from chaos.disk import SimulatedDisk, SimulatedLog
from raft.codec import decode_frame, encode_frame
from raft.core.types import ConfChangeV2, ConfState, Entry, Message, Snapshot
from raft.driver import DriverConfig, RaftDriver
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


class Wire:
    """The network of one cluster. ``cut`` holds directed links that lose everything."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.nodes: dict[int, RaftDriver] = {}
        self.cut: set[tuple[int, int]] = set()
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
        done()

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes:
        raise NotImplementedError

    def active_since(self, peer: int) -> float | None:
        return 0.0 if peer in self._wire.nodes else None


class VirtualCluster:
    """Three nodes that can be stopped and started on their disks."""

    def __init__(self, disks: Mapping[int, SimulatedDisk], seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.wire = Wire(self.rng)
        self.disks = dict(disks)
        self.journals: dict[int, Journal] = {}
        self.failures: dict[int, BaseException] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    async def start(self, node: int) -> RaftDriver:
        log = SimulatedLog(self.disks[node])
        journal = Journal()
        driver = RaftDriver(
            DriverConfig(node), log, await log.load(), journal, Port(self.wire, node),
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
async def cluster(disks: Mapping[int, SimulatedDisk], seed: int = 1) -> AsyncIterator[VirtualCluster]:
    """A running cluster; everything has stopped afterwards."""
    running = VirtualCluster(disks, seed)
    for node in IDS:
        await running.start(node)
    try:
        yield running
    finally:
        for node in list(running._tasks):
            await running.stop(node)
