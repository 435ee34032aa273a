"""What every durable log promises, over SQLite and over the simulated disk: one suite for both."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.disk import SimulatedDisk, SimulatedLog
from raft.core.types import ConfState, Entry, EntryType, HardState, Snapshot
from raft.log import DurableLog, Identity, LogWrite
from raft.sqlite_log import SqliteLog

IDENTITY = Identity(cluster_id=(1 << 64) - 5, member_id=(1 << 64) - 7)
START = Snapshot(1, 1, ConfState((3, 5, (1 << 64) - 7)))


def entry(index: int, term: int = 1, data: bytes = b"x") -> Entry:
    return Entry(term, index, EntryType.NORMAL, data)


@dataclass
class Subject:
    """A log under test, and how to stop it and open it again."""

    log: DurableLog
    open_again: Callable[[], Awaitable[DurableLog]]

    async def restart(self) -> None:
        await self.log.close()
        self.log = await self.open_again()


@pytest.fixture(params=["sqlite", "simulated"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    made: Subject
    if request.param == "sqlite":
        path = tmp_path / "raft.db"

        async def open_sqlite() -> DurableLog:
            return await SqliteLog.open_existing(path, IDENTITY)

        made = Subject(await SqliteLog.create(path, IDENTITY, START), open_sqlite)
    else:
        disk = SimulatedDisk(random.Random(1))

        async def open_simulated() -> DurableLog:
            return SimulatedLog(disk)

        made = Subject(SimulatedLog.create(disk, START), open_simulated)
    yield made
    await made.log.close()


async def test_a_new_log_holds_its_starting_point(subject: Subject) -> None:
    await subject.restart()
    loaded = await subject.log.load()
    assert loaded.snapshot == START
    assert loaded.hard_state == HardState(term=1, vote=0, commit=1)
    assert list(loaded.entries) == []


async def test_writes_survive_a_restart_in_order(subject: Subject) -> None:
    await subject.log.write(
        [
            LogWrite([entry(2), entry(3)], HardState(2, (1 << 64) - 7, 1)),
            LogWrite([entry(4, 2)], HardState(2, (1 << 64) - 7, 3)),
        ]
    )
    await subject.restart()
    loaded = await subject.log.load()
    assert list(loaded.entries) == [entry(2), entry(3), entry(4, 2)]
    assert loaded.hard_state == HardState(2, (1 << 64) - 7, 3)


async def test_writing_entry_i_discards_stored_entries_from_i_on(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(i) for i in range(2, 8)])])
    await subject.log.write([LogWrite([entry(4, 3)])])
    loaded = await subject.log.load()
    assert list(loaded.entries) == [entry(2), entry(3), entry(4, 3)]
    # within one batch too: the later write wins
    await subject.log.write([LogWrite([entry(5, 3), entry(6, 3)]), LogWrite([entry(5, 4)])])
    loaded = await subject.log.load()
    assert list(loaded.entries)[-1] == entry(5, 4)


async def test_a_snapshot_replaces_the_whole_log(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(2), entry(3)])])
    marker = Snapshot(40, 6, ConfState((1, 2)))
    await subject.log.write([LogWrite(snapshot=marker, hard_state=HardState(6, 0, 40)), LogWrite([entry(41, 6)])])
    await subject.restart()
    loaded = await subject.log.load()
    assert loaded.snapshot == marker
    assert list(loaded.entries) == [entry(41, 6)]


async def test_compaction_keeps_what_follows_the_marker(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(i) for i in range(2, 12)], HardState(1, 0, 11))])
    marker = Snapshot(8, 1, START.conf_state)
    await subject.log.compact(marker)
    await subject.log.write([LogWrite([entry(12)])])
    loaded = await subject.log.load()
    assert loaded.snapshot == marker
    assert [e.index for e in loaded.entries] == [9, 10, 11, 12]


async def test_a_truncation_that_a_received_snapshot_overtook_changes_nothing(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(i) for i in range(2, 12)], HardState(1, 0, 11))])
    marker = Snapshot(40, 6, ConfState((1, 2)))
    await subject.log.write([LogWrite(snapshot=marker, hard_state=HardState(6, 0, 40))])
    await subject.log.compact(Snapshot(8, 1, START.conf_state))
    await subject.restart()
    loaded = await subject.log.load()
    assert loaded.snapshot == marker
    assert list(loaded.entries) == []


async def test_one_batch_is_one_sync(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(i)]) for i in range(2, 66)])
    statistics = subject.log.statistics()
    assert statistics["syncs"] == 1
