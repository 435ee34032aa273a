"""The disks of a simulated member: its raft log, its state database, its images.

The log is chaos.disk's file with a view of what is durable on it. The state database is real SQLite in memory:
every commit leaves an image, and a crash decides which of them the next start finds. All of this survives a
process; what a process uses is severed when it dies, so that nothing it still does reaches the disk.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from chaos.disk import SimulatedDisk, SimulatedLog
from raft.core import MemoryStorage
from raft.core.types import ConfState, HardState, Snapshot
from raft.errors import SyncFailed
from raft.log import LoadedLog, LogWrite
from store import state as states
from store.backend import Backend, BucketKey, schema
from store.images import conf_state_of
from store.machine import Machine, MachineOptions
from store.mvcc.record import Event
from store.state import CONSISTENT_INDEX, TERM, State

T = TypeVar("T")
ObserveEvents = Callable[[int, Sequence[Event]], None]

COMMITS_KEPT: Final = 16
"""Images since the last checkpoint between which a power loss chooses; older ones are thinned out."""
PAGE_BYTES: Final = 512
"""Small pages keep the image of an almost empty database small."""


class DurableView:
    """What is durable in a log, for the checker (chaos.invariants.Durable)."""

    def __init__(self) -> None:
        self.conf_state = ConfState()
        """Of what is applied; kept by the member."""
        self._log = MemoryStorage()

    def hard_state(self) -> HardState:
        return self._log.initial_state()[0]

    def term(self, index: int) -> int:
        return self._log.term(index)

    def first_index(self) -> int:
        return self._log.first_index()

    def last_index(self) -> int:
        return self._log.last_index()

    def reset(self, loaded: LoadedLog) -> None:
        """The file was read again from its beginning."""
        self._log = MemoryStorage()
        self._log.apply_snapshot(loaded.snapshot)
        self._log.append(tuple(loaded.entries))
        self._log.set_hard_state(loaded.hard_state)

    def wrote(self, writes: Sequence[LogWrite]) -> None:
        for write in writes:
            if write.snapshot is not None:
                self._log.apply_snapshot(write.snapshot)
            self._log.append(tuple(write.entries))
            if write.hard_state is not None:
                self._log.set_hard_state(write.hard_state)

    def compacted(self, index: int) -> None:
        if index >= self.first_index():
            self._log.compact(index)


class Severed(Exception):
    """The process that asks has been killed."""


class Port:
    """One process's access to its disks, and how slow they are."""

    def __init__(self, rng: random.Random, delay_s: Callable[[], float]) -> None:
        self.alive = True
        self.rng = rng
        self._delay_s = delay_s

    async def wait(self) -> None:
        """The time one access takes. Raises Severed when the process is dead."""
        if not self.alive:
            raise Severed
        delay = self._delay_s()
        if delay > 0:
            await asyncio.sleep(delay)
        if not self.alive:
            raise Severed


class MemberLog(SimulatedLog):
    """A SimulatedLog that one process writes, with latency, and that shows what is durable."""

    def __init__(
        self, disk: SimulatedDisk, view: DurableView, port: Port, truncated: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(disk)
        self.truncated = truncated
        self._view = view
        self._port = port

    async def load(self) -> LoadedLog:
        loaded = await super().load()
        self._view.reset(loaded)
        return loaded

    async def write(self, writes: Sequence[LogWrite]) -> None:
        if not self._port.alive:
            raise Severed
        await super().write(writes)
        self._view.wrote(writes)

    async def compact(self, snapshot: Snapshot) -> None:
        await self._port.wait()
        await super().compact(snapshot)
        self._view.compacted(snapshot.index)
        self.truncated()

    async def _sync(self) -> None:
        try:
            await self._port.wait()
            await super()._sync()
        except SyncFailed:
            raise
        if not self._port.alive:
            raise Severed


class _Connection(sqlite3.Connection):
    """Tells of every transaction that ends in ``with``."""

    committed: Callable[[], None] | None = None

    def __exit__(self, *details: Any) -> Any:
        result = super().__exit__(*details)
        if self.committed is not None:
            self.committed()
        return result


def _open(image: bytes) -> _Connection:
    db = sqlite3.connect(":memory:", isolation_level=None, factory=_Connection, check_same_thread=False)
    db.deserialize(image)
    return db


def _empty() -> bytes:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    db.executescript(schema())
    image: bytes = db.serialize()
    db.close()
    return image


_EMPTY: Final = _empty()


@dataclass
class StateDisk:
    """The state database and the images of one member, as they survive its process."""

    commits: list[bytes] = field(default_factory=lambda: [_EMPTY])
    """``commits[0]`` survives a power loss; the last one is what the running process sees."""
    images: dict[Path, bytes] = field(default_factory=dict)

    def bootstrap(self, index: int, term: int, writes: Mapping[BucketKey, bytes | None]) -> None:
        """Begin with these bucket entries at a position of the log."""
        db = _open(self.commits[-1])
        meta = {CONSISTENT_INDEX: index.to_bytes(8, "big"), TERM: term.to_bytes(8, "big")}
        db.executemany(
            "INSERT INTO bucket VALUES (?, ?, ?)", [(*key, value) for key, value in {**writes, **meta}.items()]
        )
        self.commits = [db.serialize()]
        db.close()

    def applied_index(self) -> int:
        """Up to where the next start finds the state."""
        db = _open(self.commits[-1])
        try:
            return states.applied_of(db)[0]
        finally:
            db.close()

    def durable_conf_state(self) -> ConfState:
        """The configuration that a power loss would leave."""
        db = _open(self.commits[0])
        try:
            return conf_state_of(db)
        except TypeError:  # a new member, which has none yet
            return ConfState()
        finally:
            db.close()

    def after_crash(self, rng: random.Random, *, power_loss: bool) -> None:
        """What the next start finds: the process died, or the machine with it."""
        kept = rng.choice(self.commits) if power_loss else self.commits[-1]
        self.commits = [kept]


class StateBackend(Backend):
    """A store Backend over a StateDisk: the same SQL, no thread and no file."""

    def __init__(self, disk: StateDisk, port: Port) -> None:
        super().__init__(Path("state.db"))
        self.disk = disk
        self._port = port
        self._db: _Connection | None = None
        self._turn = asyncio.Lock()
        """Jobs run one after the other in the order they came, as in the thread of a connection."""

    async def open(self) -> None:
        self._db = _open(self.disk.commits[-1])
        self._db.committed = self._committed

    def _committed(self) -> None:
        if not self._port.alive or self._db is None:
            return
        commits = self.disk.commits
        commits.append(self._db.serialize())
        if len(commits) > COMMITS_KEPT:
            del commits[1 + self._port.rng.randrange(len(commits) - 2)]

    async def close(self) -> None:
        async with self._turn:
            db, self._db = self._db, None
            if db is not None:
                db.close()

    async def write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        await self._in_place.wait()
        async with self._turn:
            await self._port.wait()
            return self._run(job)

    read = write
    scan = write

    def _run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        if self._db is None:
            raise ValueError("the state database is closed")
        return job(self._db)

    def state(self) -> State:
        return self._run(states.read)

    async def checkpoint(self) -> bool:
        await self._in_place.wait()
        async with self._turn:
            await self._port.wait()
            del self.disk.commits[:-1]
            return True

    async def replace(self, new: Path) -> None:
        self._in_place.clear()
        try:
            await self.close()
            await self._port.wait()
            self.disk.commits = [self.disk.images.pop(new)]
            await self.open()
        finally:
            self._in_place.set()

    async def copy_to(self, path: Path) -> None:
        self.disk.images[path] = await self.write(lambda db: db.serialize())


class MemoryImages:
    """store.images.Images in the memory of a StateDisk."""

    def __init__(self, disk: StateDisk, port: Port) -> None:
        self._disk = disk
        self._port = port
        self._made = 0

    def new(self) -> Path:
        self._made += 1
        return Path(f"outgoing-{self._made}.snap")

    def discard(self, image: Path) -> None:
        if self._port.alive:
            self._disk.images.pop(image, None)

    async def conf_state(self, image: Path) -> ConfState:
        return self.read(image, conf_state_of)

    async def check(self, image: Path) -> Snapshot:
        await self._port.wait()
        index, term = self.read(image, states.applied_of)
        return Snapshot(index, term, self.read(image, conf_state_of))

    async def keep(self, image: Path, snapshot: Snapshot) -> None:
        await self._port.wait()
        self._disk.images[_accepted(snapshot)] = self._disk.images.pop(image)

    def accepted(self, snapshot: Snapshot) -> Path | None:
        path = _accepted(snapshot)
        return path if path in self._disk.images else None

    def forget_before(self, snapshot: Snapshot) -> None:
        newest = _accepted(snapshot)
        for path in [path for path in self._disk.images if path.name.startswith("accepted-") and path < newest]:
            self.discard(path)

    def clear(self) -> None:
        if self._port.alive:
            self._disk.images.clear()

    def read(self, image: Path, job: Callable[[sqlite3.Connection], T]) -> T:
        db = _open(self._disk.images[image])
        try:
            return job(db)
        finally:
            db.close()


def _accepted(snapshot: Snapshot) -> Path:
    return Path(f"accepted-{snapshot.index:016x}.snap")


class MemoryMachine(Machine):
    """A Machine over a StateDisk."""

    def __init__(
        self, backend: StateBackend, images: MemoryImages, options: MachineOptions, observe: ObserveEvents
    ) -> None:
        super().__init__(backend.path, backend.state(), options, backend)
        self._images = images
        self._observe = observe

    @classmethod
    async def start(
        cls, disk: StateDisk, port: Port, options: MachineOptions, observe: ObserveEvents
    ) -> MemoryMachine:
        """As Machine.open: read the state, make durable what was found. ``observe`` hears of every revision."""
        backend = StateBackend(disk, port)
        await backend.open()
        machine = cls(backend, MemoryImages(disk, port), options, observe)
        await machine.checkpoint()
        return machine

    def committed(self, revision: int, events: Sequence[Event]) -> None:
        self._observe(revision, events)
        super().committed(revision, events)

    @property
    def images(self) -> MemoryImages:
        return self._images

    async def _position_in(self, image: Path) -> tuple[int, int]:
        return self._images.read(image, states.applied_of)

    async def _load_image(self, image: Path) -> State:
        return self._images.read(image, states.read)
