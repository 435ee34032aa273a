"""The durable log in SQLite: what is damaged or not ours is refused, and the file is named."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raft import sqlite
from raft.core.types import ConfState, Entry, EntryType, HardState, Snapshot
from raft.errors import LogError, SyncFailed
from raft.log import Identity, LogWrite
from raft.sqlite_log import JOINED_WRITES, SqliteLog

IDENTITY = Identity(cluster_id=(1 << 64) - 5, member_id=(1 << 64) - 7)
START = Snapshot(1, 1, ConfState((3, 5, (1 << 64) - 7)))


def entry(index: int, term: int = 1, data: bytes = b"x") -> Entry:
    return Entry(term, index, EntryType.NORMAL, data)


_opened: list[SqliteLog] = []


@pytest.fixture(autouse=True)
async def no_log_outlives_its_test() -> AsyncIterator[None]:
    """The thread of one that a failed test left open would keep the process from ending."""
    yield
    while _opened:
        await _opened.pop().close()


async def new_log(directory: Path) -> SqliteLog:
    _opened.append(await SqliteLog.create(directory / "raft.db", IDENTITY, START))
    return _opened[-1]


async def reopen(directory: Path) -> SqliteLog:
    _opened.append(await SqliteLog.open_existing(directory / "raft.db", IDENTITY))
    return _opened[-1]


async def test_the_log_of_another_member_is_refused_and_says_whose_it_is(tmp_path: Path) -> None:
    await (await new_log(tmp_path)).close()
    with pytest.raises(LogError, match=r"raft\.db: this log belongs to member fffffffffffffff9 .*--data-dir"):
        await SqliteLog.open_existing(tmp_path / "raft.db", Identity(IDENTITY.cluster_id, 12))
    with pytest.raises(LogError, match="cluster fffffffffffffffb"):
        await SqliteLog.open_existing(tmp_path / "raft.db", Identity(77, IDENTITY.member_id))


async def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="missing"):
        await reopen(tmp_path)


async def test_a_second_bootstrap_is_refused(tmp_path: Path) -> None:
    await (await new_log(tmp_path)).close()
    with pytest.raises(LogError, match="already there"):
        await new_log(tmp_path)


@pytest.mark.parametrize(
    "content", [b"this is no database at all, only text" * 100, b"SQLite format 3\0" + b"\1" * 5000]
)
async def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "raft.db"
    path.write_bytes(content)
    with pytest.raises(LogError, match=r"raft\.db: not a usable raft log .*remove it from the cluster"):
        await SqliteLog.open_existing(path, IDENTITY)
    assert path.read_bytes() == content


async def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "raft.db") as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    with pytest.raises(LogError, match="not a usable raft log"):
        await reopen(tmp_path)


async def test_a_log_that_no_disk_takes_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("raft.sqlite_log._create", full)
    with pytest.raises(LogError, match=r"cannot be made now .* free space"):
        await new_log(tmp_path)


async def test_a_gap_between_entries_is_refused(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    for index in range(2, 6):
        await log.write([LogWrite([entry(index)])])
    await log.close()
    with sqlite3.connect(tmp_path / "raft.db") as database:
        database.execute("DELETE FROM writes WHERE first = 3")
    database.close()
    log = await reopen(tmp_path)
    with pytest.raises(LogError, match="gap"):
        await log.load()
    await log.close()


async def test_a_log_that_ends_below_its_commit_index_is_refused(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    for index in range(2, 6):
        await log.write([LogWrite([entry(index)], HardState(1, 0, index))])
    await log.close()
    with sqlite3.connect(tmp_path / "raft.db") as database:
        database.execute("DELETE FROM writes WHERE first >= 4")
        database.execute("UPDATE writes SET commit_index = 5 WHERE first = 3")
    database.close()
    log = await reopen(tmp_path)
    with pytest.raises(LogError, match="up to 5 were committed but the log ends at 3"):
        await log.load()
    await log.close()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("UPDATE writes SET seq = 99 WHERE first = 3", "gap or an overlap"),
        ("UPDATE writes SET first = 2 WHERE first = 3", "gap or an overlap"),
        ("UPDATE writes SET last = 9 WHERE first = 5", "entries 5 to 9 are not in their row"),
        (
            "UPDATE writes SET entries = (SELECT entries FROM writes WHERE first = 4) WHERE first = 3",
            "3 to 3 are not",
        ),
        ("UPDATE writes SET entries = x'' WHERE first = 3", "3 to 3 are not"),
        ("UPDATE writes SET term = NULL WHERE first = 5", "the hard state is missing"),
        ("DELETE FROM writes", "the hard state is missing"),
    ],
)
async def test_a_damaged_row_is_refused(tmp_path: Path, damage: str, complaint: str) -> None:
    log = await new_log(tmp_path)
    for index in range(2, 6):
        await log.write([LogWrite([entry(index)])])
    await log.close()
    with sqlite3.connect(tmp_path / "raft.db") as database:
        database.execute(damage)
    database.close()
    with pytest.raises(LogError, match=complaint):
        await (await reopen(tmp_path)).load()


async def test_flipped_bytes_in_the_file_are_noticed(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(i, data=b"v" * 3000) for i in range(2, 40)])])
    await log.close()
    path = tmp_path / "raft.db"
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(LogError):
        await (await reopen(tmp_path)).load()


async def test_m36_a_failed_write_is_fatal_and_never_retried(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    await log._database.run(lambda db: db.execute("PRAGMA max_page_count=8").fetchall())
    with pytest.raises(SyncFailed, match="stops"):
        await log.write([LogWrite([entry(2, data=b"v" * 100_000)])])
    with pytest.raises(SyncFailed):
        await log.write([LogWrite([entry(2, data=b"small")])])
    await log.close()


async def statements(log: SqliteLog, *calls: list[LogWrite]) -> list[str]:
    """The first words of the statements that writing ``calls`` takes."""
    seen: list[str] = []
    await log._database.run(lambda db: db.set_trace_callback(lambda sql: seen.append(sql.split()[0])))
    for writes in calls:
        await log.write(writes)
    await log._database.run(lambda db: db.set_trace_callback(None))
    return seen


async def rows(log: SqliteLog) -> list[tuple[int, int]]:
    return await log._database.run(lambda db: db.execute("SELECT first, last FROM writes ORDER BY seq").fetchall())


async def test_writes_that_only_append_are_one_statement(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    joined = [
        LogWrite([entry(3), entry(4)], HardState(1, 0, 2)),
        LogWrite(hard_state=HardState(1, 0, 3)),
        LogWrite([entry(5)], HardState(1, 0, 4)),
        LogWrite([entry(6)]),
    ]
    assert await statements(log, joined) == ["INSERT"]
    assert await rows(log) == [(2, 2), (3, 6)]
    loaded = await log.load()
    assert (loaded.hard_state, list(loaded.entries)) == (HardState(1, 0, 4), [entry(i) for i in range(2, 7)])


async def test_too_many_writes_for_one_row_are_one_transaction(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    many = [LogWrite([entry(index)]) for index in range(2, JOINED_WRITES + 3)]
    assert (await statements(log, many)).count("COMMIT") == 1
    assert len((await log.load()).entries) == len(many)


async def test_what_is_durable_already_is_not_written_again(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    vote = LogWrite(hard_state=HardState(2, 3, 1))
    assert await statements(log, [], [LogWrite()], [vote], [vote]) == ["REPLACE"]


async def test_rows_without_entries_do_not_accumulate(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    for term in range(2, 20):
        await log.write([LogWrite(hard_state=HardState(term, 3, 1))])
    assert await rows(log) == [(2, 2), (3, 2)]
    await log.write([LogWrite([entry(3, 20)], HardState(20, 3, 2))])
    assert await rows(log) == [(2, 2), (3, 3)]
    await log.compact(Snapshot(3, 20, START.conf_state))
    assert await rows(log) == [(3, 3)]


async def test_a_call_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2), entry(3)], HardState(1, 0, 2))])
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        patched.setattr("raft.sqlite_log._put_snapshot", full)
        with pytest.raises(SyncFailed):
            await log.write([LogWrite([entry(3, 2)], HardState(2, 3, 2)), LogWrite(snapshot=Snapshot(9, 2))])
    await log.close()
    loaded = await (await reopen(tmp_path)).load()
    assert (loaded.hard_state, list(loaded.entries)) == (HardState(1, 0, 2), [entry(2), entry(3)])


async def test_a_write_whose_caller_has_gone_is_not_overwritten(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    gone = log.write([LogWrite([entry(2)], HardState(1, 0, 2))])
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await log.write([LogWrite([entry(3)])])
    loaded = await log.load()
    assert (loaded.hard_state, list(loaded.entries)) == (HardState(1, 0, 2), [entry(2), entry(3)])


async def test_the_write_ahead_file_has_its_final_length_from_the_start(tmp_path: Path) -> None:
    """A sync of a file that grew would have to commit its length too."""
    log = await new_log(tmp_path)
    wal = tmp_path / "raft.db-wal"
    length = wal.stat().st_size
    assert length >= sqlite.CHECKPOINT_PAGES * sqlite.FRAME_BYTES
    for index in range(2, 40):
        await log.write([LogWrite((entry(index, data=bytes(10_000)),), HardState(1, 0, index - 1), None)])
    assert wal.stat().st_size == length
    await log.close()
    again = await reopen(tmp_path)
    try:
        assert (await again.load()).entries[-1].index == 39
    finally:
        await again.close()


async def test_a_sync_that_takes_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite((entry(2),))])
    assert "sync" not in caplog.text
    monkeypatch.setattr("raft.sqlite_log.SLOW_SYNC_S", 0.0)
    await log.write([LogWrite((entry(3),))])
    assert "a sync took" in caplog.text
    await log.close()


@pytest.mark.parametrize("trouble", ["too little room", "full half-way"])
async def test_a_disk_without_room_is_not_filled_by_the_preallocated_log(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lengthening the log ahead takes of a small disk, the entries and the state would lack."""
    statvfs, pwrite = os.fstatvfs, os.pwrite
    if trouble == "too little room":
        monkeypatch.setattr(
            os, "fstatvfs", lambda fd: os.statvfs_result((*statvfs(fd)[:4], 5000, *statvfs(fd)[5:]))
        )
    else:

        def write(fd: int, data: bytes, offset: int) -> int:
            if offset > 4 << 20:
                raise OSError(errno.ENOSPC, "No space left on device")
            return pwrite(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", write)
    log = await new_log(tmp_path)
    try:
        assert (tmp_path / "raft.db-wal").stat().st_size < 1 << 20
        await log.write([LogWrite([entry(2)])])
    finally:
        await log.close()
