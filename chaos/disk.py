"""A disk that forgets, and a Raft log on it.

``SimulatedDisk`` holds one append-only file the way a real disk may: what was written and not synced can be
lost, torn at a sector, or survive out of order; a sync can fail or stall. ``SimulatedLog`` is a
raft.log.DurableLog on such a file: records with a length and a checksum, read back until the first that is
not whole.
"""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgpack

from raft.core.types import ConfState, Entry, EntryType, HardState, Snapshot
from raft.errors import LogError, SyncFailed
from raft.log import LoadedLog, LogWrite

SECTOR_BYTES: Final = 512


class Loss(Enum):
    """What a crash does to writes that were not synced."""

    ALL = "all are lost"
    NONE = "all survive"
    TORN = "a beginning survives, and of the write it ends in only some sectors"
    REORDERED = "some survive and some do not, whatever their order"


class SimulatedDisk:
    """One file. ``observe`` is told of every "write" and "sync" when it has happened."""

    def __init__(
        self,
        rng: random.Random,
        observe: Callable[[str], None] = lambda _: None,
        sector_bytes: int = SECTOR_BYTES,
    ) -> None:
        self._rng = rng
        self._sector_bytes = sector_bytes
        self._durable = bytearray()
        self._pending: list[tuple[int, bytes]] = []
        self._observe = observe
        self.length = 0
        self.fail_syncs = False
        """A sync raises OSError; what it should have made durable stays in doubt."""
        self.stall: asyncio.Event | None = None
        """While set, a sync waits for this event first."""

    @property
    def pending(self) -> int:
        """How many writes are not synced."""
        return len(self._pending)

    def write(self, data: bytes) -> None:
        """Append; visible at once, durable only after a sync."""
        self._pending.append((self.length, data))
        self.length += len(data)
        self._observe("write")

    async def sync(self) -> None:
        if self.stall is not None:
            await self.stall.wait()
        if self.fail_syncs:
            raise OSError(5, "simulated I/O error")
        for position, data in self._pending:
            self._put(position, data)
        self._pending.clear()
        self._observe("sync")

    def _put(self, position: int, data: bytes) -> None:
        if len(self._durable) < position + len(data):
            self._durable.extend(bytes(position + len(data) - len(self._durable)))
        self._durable[position : position + len(data)] = data

    def replace(self, data: bytes) -> None:
        """Replace the whole file atomically (write beside it, sync, rename, sync the directory)."""
        self._durable = bytearray(data)
        self._pending.clear()
        self.length = len(data)
        self._observe("sync")

    def contents(self) -> bytes:
        """What a reader sees now, synced or not."""
        seen = bytearray(self._durable)
        for position, data in self._pending:
            seen[position : position + len(data)] = data
        return bytes(seen)

    def after_crash(self, loss: Loss) -> SimulatedDisk:
        """The disk as the next start finds it. This one is unchanged, so that a run can be cut in many ways."""
        survivor = SimulatedDisk(self._rng, sector_bytes=self._sector_bytes)
        survivor._durable = bytearray(self._durable)
        for position, data in self._surviving(loss):
            survivor._put(position, data)
        survivor.length = len(survivor._durable)
        return survivor

    def _surviving(self, loss: Loss) -> list[tuple[int, bytes]]:
        pending, rng = self._pending, self._rng
        if loss is Loss.ALL or not pending:
            return []
        if loss is Loss.NONE:
            return list(pending)
        if loss is Loss.REORDERED:
            return [write for write in pending if rng.random() < 0.5]
        kept = rng.randrange(len(pending))
        position, data = pending[kept]
        size = self._sector_bytes
        sectors = [
            (position + start, data[start : start + size])
            for start in range(0, len(data), size)
            if rng.random() < 0.5
        ]
        return [*pending[:kept], *sectors]


def flip_bit(disk: SimulatedDisk, where: float) -> bool:
    """Turn one bit at rest, ``where`` in [0, 1) of the records before the last one, which alone can be told from a
    torn tail. False when there are too few records."""
    ends = _ends(bytes(disk._durable))
    if len(ends) < 2:
        return False
    at = int(where * 8 * ends[-2])
    disk._durable[at // 8] ^= 1 << at % 8
    return True


def read_log(disk: SimulatedDisk) -> LoadedLog:
    """What a start would find now."""
    return _replay(disk.contents())[0]


_HEADER: Final = struct.Struct(">II")
_TYPES: Final = tuple(EntryType)


class SimulatedLog:
    """A DurableLog on a SimulatedDisk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self._failed: SyncFailed | None = None
        self._syncs = 0

    @classmethod
    def create(cls, disk: SimulatedDisk, snapshot: Snapshot) -> SimulatedLog:
        hard_state = HardState(term=snapshot.term, commit=snapshot.index)
        disk.replace(_record([LogWrite((), hard_state, snapshot)]))
        return cls(disk)

    async def load(self) -> LoadedLog:
        """Replay the file up to the first record that is not whole, and cut the rest off.

        Only a last record can be torn, since each is synced before the next is written. Damage before a whole
        record is no torn tail, and what follows it may have been acknowledged: LogError (M38).
        """
        data = self.disk.contents()
        loaded, end = _replay(data)
        if end < len(data):
            if _holds_record(data, end + 1):
                raise LogError(Path("simulated.log"), "a record in its middle is damaged", "replace this member")
            self.disk.replace(data[:end])
        return loaded

    async def write(self, writes: Sequence[LogWrite]) -> None:
        if self._failed is not None:
            raise self._failed
        self.disk.write(_record(writes))
        await self._sync()

    async def compact(self, snapshot: Snapshot) -> None:
        if self._failed is not None:
            raise self._failed
        loaded, _ = _replay(self.disk.contents())
        if snapshot.index <= loaded.snapshot.index:
            return  # a received snapshot has overtaken this
        kept = [entry for entry in loaded.entries if entry.index > snapshot.index]
        self.disk.replace(_record([LogWrite((), loaded.hard_state, snapshot), LogWrite(kept)]))

    async def _sync(self) -> None:
        try:
            await self.disk.sync()
        except OSError as error:
            self._failed = SyncFailed(Path("simulated.log"), error)
            raise self._failed from error
        self._syncs += 1

    async def close(self) -> None:
        return

    def statistics(self) -> Mapping[str, float]:
        return {"syncs": self._syncs}


def _record(writes: Sequence[LogWrite]) -> bytes:
    body = bytes(msgpack.packb([(list(w.entries), w.hard_state, w.snapshot) for w in writes]))
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def _replay(data: bytes) -> tuple[LoadedLog, int]:
    """What the whole records say, and where they end. Raises LogError when there is not even a first one."""
    hard_state, snapshot = HardState(), Snapshot()
    entries: list[Entry] = []
    end = 0
    while (body := _body_at(data, end)) is not None:
        for write in msgpack.unpackb(body, use_list=False):
            hard_state, snapshot = _apply(write, hard_state, snapshot, entries)
        end += _HEADER.size + len(body)
    if not end:
        raise LogError(Path("simulated.log"), "it holds no whole record", "restore it")
    return LoadedLog(hard_state, snapshot, entries), end


def _body_at(data: bytes, start: int) -> bytes | None:
    """The body of the record that begins at ``start``; None when it is not whole."""
    if start + _HEADER.size > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, start)
    body = data[start + _HEADER.size : start + _HEADER.size + length]
    if not length or len(body) < length or zlib.crc32(body) != checksum:
        return None
    return body


def _holds_record(data: bytes, start: int) -> bool:
    """Whether a whole record begins at ``start`` or anywhere after it."""
    return any(_body_at(data, at) is not None for at in range(start, len(data) - _HEADER.size))


def _ends(data: bytes) -> list[int]:
    """Where the whole records end."""
    ends: list[int] = []
    end = 0
    while (body := _body_at(data, end)) is not None:
        end += _HEADER.size + len(body)
        ends.append(end)
    return ends


def _apply(
    write: Any, hard_state: HardState, snapshot: Snapshot, entries: list[Entry]
) -> tuple[HardState, Snapshot]:
    rows, stored_state, stored_snapshot = write
    if stored_snapshot is not None:
        index, term, conf_state, _ = stored_snapshot
        snapshot = Snapshot(index, term, ConfState(*conf_state))
        entries.clear()
    if rows:
        first = rows[0][1]
        while entries and entries[-1].index >= first:
            entries.pop()
        entries += [Entry(term, index, _TYPES[kind], data) for term, index, kind, data in rows]
    return (HardState(*stored_state) if stored_state is not None else hard_state), snapshot
