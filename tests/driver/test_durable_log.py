"""What every durable log promises, over SQLite and over the simulated disk: one suite for both."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.disk import SimulatedDisk, SimulatedLog
from raft import tailfile
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


@pytest.fixture(params=["sqlite", "sqlite, small tail", "simulated"])
async def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Subject]:
    made: Subject
    if request.param != "simulated":
        if "small" in request.param:
            monkeypatch.setattr(tailfile, "SIZE", 4 * tailfile.PAGE)
        path = tmp_path / "raft.db"

        async def open_sqlite() -> DurableLog:
            return await SqliteLog.open_existing(path, IDENTITY)

        await SqliteLog.create(path, IDENTITY, START)
        made = Subject(await open_sqlite(), open_sqlite)
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


async def test_a_replaced_tail_stays_replaced_when_what_replaced_it_is_compacted(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(i) for i in range(2, 8)])])
    await subject.log.write([LogWrite([entry(4, 3)])])
    await subject.log.write([LogWrite([entry(5, 3)], HardState(3, 0, 5))])
    await subject.log.compact(Snapshot(5, 3, START.conf_state))
    await subject.restart()
    assert list((await subject.log.load()).entries) == []


async def test_compaction_of_everything_keeps_the_hard_state(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(i) for i in range(2, 12)], HardState(4, 5, 11))])
    for index in (11, 12):
        await subject.log.compact(Snapshot(index, 1, START.conf_state))
        await subject.restart()
        loaded = await subject.log.load()
        assert (loaded.hard_state, list(loaded.entries)) == (HardState(4, 5, index), [])
        await subject.log.write([LogWrite([entry(index + 1)], HardState(4, 5, index + 1))])
    assert list((await subject.log.load()).entries) == [entry(13)]


async def test_a_vote_without_entries_is_kept(subject: Subject) -> None:
    for term in range(2, 6):
        await subject.log.write([LogWrite(hard_state=HardState(term, 3, 1))])
    await subject.restart()
    assert (await subject.log.load()).hard_state == HardState(5, 3, 1)
    await subject.log.write([LogWrite([entry(2, 5)])])
    await subject.log.write([LogWrite(hard_state=HardState(6, 5, 2))])
    await subject.log.write([LogWrite(hard_state=HardState(7, 3, 2)), LogWrite([entry(3, 7)])])
    await subject.restart()
    loaded = await subject.log.load()
    assert (loaded.hard_state, list(loaded.entries)) == (HardState(7, 3, 2), [entry(2, 5), entry(3, 7)])


async def test_a_replaced_tail_takes_no_hard_state_with_it(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(2)])])
    await subject.log.write([LogWrite([entry(3), entry(4)], HardState(1, 0, 2))])
    await subject.log.write([LogWrite([entry(5)], HardState(2, 3, 2))])
    await subject.log.write([LogWrite(hard_state=HardState(3, 5, 2))])
    await subject.log.write([LogWrite([entry(3, 3)])])
    await subject.restart()
    loaded = await subject.log.load()
    assert (loaded.hard_state, list(loaded.entries)) == (HardState(3, 5, 2), [entry(2), entry(3, 3)])


async def test_a_snapshot_without_a_hard_state_leaves_it_unchanged(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(2)], HardState(6, 5, 2))])
    await subject.log.write([LogWrite(snapshot=Snapshot(40, 6, ConfState((1, 2))))])
    await subject.restart()
    loaded = await subject.log.load()
    assert (loaded.hard_state, loaded.snapshot.index) == (HardState(6, 5, 2), 40)


class Model:
    """What a log must hold, in three variables, and random things to do to it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.snapshot, self.state = START, HardState(1, 0, 1)
        self.entries: list[Entry] = []

    @property
    def last(self) -> int:
        return self.entries[-1].index if self.entries else self.snapshot.index

    def write(self) -> LogWrite:
        rng, term = self.rng, self.state.term + self.rng.choice((0, 0, 1))
        new, marker = self.new_entries(term), None
        if rng.random() < 0.03:
            self.snapshot = marker = Snapshot(self.last + 9, term, START.conf_state)
            self.state, self.entries = HardState(term, 0, marker.index), []
            return LogWrite((), self.state, marker)
        if new:
            self.entries = [e for e in self.entries if e.index < new[0].index] + new
        if rng.random() < 0.4:
            return LogWrite(new)
        self.state = HardState(term, rng.choice((0, 3, 5)), rng.randint(self.state.commit, self.last))
        return LogWrite(new, self.state)

    def new_entries(self, term: int) -> list[Entry]:
        rng, first = self.rng, self.last + 1
        if rng.random() < 0.2:
            first = rng.randint(max(self.snapshot.index, self.state.commit) + 1, first)
        return [entry(first + i, term, rng.randbytes(rng.choice((3, 900)))) for i in range(rng.randint(0, 5))]

    def compact(self) -> Snapshot:
        marker = self.rng.randint(self.snapshot.index, self.state.commit)
        self.snapshot = Snapshot(marker, 1, START.conf_state) if marker > self.snapshot.index else self.snapshot
        self.entries = [e for e in self.entries if e.index > marker]
        return self.snapshot


@pytest.mark.parametrize("seed", range(4))
async def test_any_course_of_writes_is_read_back(subject: Subject, seed: int) -> None:
    """Votes, replaced tails, snapshots and compactions in any order."""
    model = Model(random.Random(seed))
    for step in range(60):
        await subject.log.write([model.write() for _ in range(model.rng.choice((1, 1, 2, 4)))])
        if model.rng.random() < 0.2:
            await subject.log.compact(model.compact())
        if step % 15 == 14:
            await subject.restart()
        loaded = await subject.log.load()
        assert (loaded.snapshot, loaded.hard_state) == (model.snapshot, model.state)
        assert list(loaded.entries) == model.entries


async def test_one_batch_is_one_sync(subject: Subject) -> None:
    await subject.log.write([LogWrite([entry(i)]) for i in range(2, 66)])
    statistics = subject.log.statistics()
    assert statistics["syncs"] == 1
