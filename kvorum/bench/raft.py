"""``kvorum bench raft``: proposals through N drivers in one process, over real SQLite logs and no network.

What is measured is the core, the driver and the log: peers exchange encoded frames, so the codec is in it,
but no sockets; the state machine only counts.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raft.codec import decode_frame, encode_frame
from raft.config import DriverConfig
from raft.core.types import ConfChangeV2, ConfState, Entry, Message, Snapshot
from raft.driver import RaftDriver
from raft.log import Identity
from raft.sqlite_log import SqliteLog


class Counting:
    """A state machine that counts."""

    def __init__(self, start: Snapshot) -> None:
        self.applied_index = start.index
        self.conf_state = start.conf_state
        self.bytes = 0

    @property
    def durable_index(self) -> int:
        return self.applied_index

    def apply(self, entry: Entry, payload: bytes, wanted: bool) -> Any:
        self.applied_index = entry.index
        self.bytes += len(payload)
        return entry.index

    def apply_empty(self, entry: Entry) -> None:
        self.applied_index = entry.index

    def check_conf_change(self, entry: Entry, change: ConfChangeV2, payload: bytes) -> Exception | None:
        return None

    def apply_conf_change(self, entry: Entry, conf_state: ConfState, payload: bytes) -> Any:
        self.applied_index = entry.index
        return None

    @property
    def has_room(self) -> bool:
        return True

    async def room(self) -> None:
        return

    async def make_durable(self) -> None:
        return

    async def make_image(self) -> tuple[Snapshot, Path]:
        raise OSError("this state machine makes no images")

    def release_image(self, image: Path) -> None:
        return

    async def accept_image(self, image: Path, snapshot: Snapshot) -> None:
        raise OSError("this state machine takes no images")

    async def install_image(self, snapshot: Snapshot) -> None:
        raise OSError("this state machine takes no images")


class InProcess:
    """Frames handed over in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.drivers: dict[int, RaftDriver] = {}
        self.frames = 0

    def send(self, messages: Iterable[Message]) -> None:
        by_peer: dict[int, list[Message]] = {}
        for message in messages:
            by_peer.setdefault(message.to, []).append(message)
        for peer, batch in by_peer.items():
            self.frames += 1
            self._loop.call_soon(self._deliver, peer, encode_frame(batch))

    def _deliver(self, peer: int, frame: bytes) -> None:
        self.drivers[peer].receive(decode_frame(frame))

    def set_peers(self, urls: Mapping[int, str]) -> None:
        return

    def send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        done()

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes:
        raise NotImplementedError

    def active_since(self, peer: int) -> float | None:
        return 0.0


@dataclass(frozen=True, slots=True)
class Result:
    nodes: int
    proposals: int
    seconds: float
    cpu_seconds: float
    syncs: int
    frames: int

    @property
    def per_second(self) -> float:
        return self.proposals / self.seconds


async def measure(nodes: int, seconds: float, in_flight: int, value_bytes: int) -> Result:
    """Keep ``in_flight`` proposals going on the leader of ``nodes`` drivers for ``seconds``."""
    with tempfile.TemporaryDirectory(prefix="kvorum-bench-") as folder:
        wire = InProcess(asyncio.get_running_loop())
        start = Snapshot(1, 1, ConfState(tuple(range(1, nodes + 1))))
        logs = []
        for number in range(1, nodes + 1):
            directory = Path(folder) / str(number)
            directory.mkdir()
            await SqliteLog.create(directory / "raft.db", Identity(1, number), start)
            log = await SqliteLog.open_existing(directory / "raft.db")
            logs.append(log)
            wire.drivers[number] = RaftDriver(
                DriverConfig(number),
                log,
                await log.load(),
                Counting(start),
                wire,
                random.Random(number),
            )
        try:
            return await _drive(wire, seconds, in_flight, value_bytes)
        finally:
            for log in logs:
                await log.close()


async def _drive(wire: InProcess, seconds: float, in_flight: int, value_bytes: int) -> Result:
    leader, leads = wire.drivers[1], asyncio.Event()
    leader.on_leader_change(lambda _, leading: leads.set() if leading else None)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(driver.run()) for driver in wire.drivers.values()]
        leader.campaign()
        async with asyncio.timeout(10):
            await leads.wait()
        syncs, frames = leader.statistics()["log_syncs"], wire.frames
        done = 0
        payload = random.Random(0).randbytes(value_bytes)
        began, cpu = time.perf_counter(), time.process_time()

        async def client() -> None:
            nonlocal done
            while not done or time.perf_counter() - began < seconds:
                await leader.propose(payload)
                done += 1

        await asyncio.gather(*(client() for _ in range(in_flight)))
        result = Result(
            len(wire.drivers),
            done,
            time.perf_counter() - began,
            time.process_time() - cpu,
            int(leader.statistics()["log_syncs"] - syncs),
            wire.frames - frames,
        )
        for task in running:
            task.cancel()
    return result


async def main(args: Namespace) -> int:
    for nodes in args.nodes:
        result = await measure(nodes, args.seconds, args.in_flight, args.value_bytes)
        print(
            f"{nodes} node{'s' if nodes > 1 else ' '}: {result.per_second:8.0f} committed proposals/s, "
            f"{result.cpu_seconds / result.proposals * 1e6:6.1f} us of CPU each, "
            f"{result.proposals / max(result.syncs, 1):5.1f} proposals per sync of the leader, "
            f"{result.frames / result.proposals:.2f} frames each"
        )
    return 0
