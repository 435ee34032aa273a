"""The durable log in SQLite: what is damaged or not ours is refused, and the file is named."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from raft import logrows, tailfile
from raft.core.types import ConfState, Entry, EntryType, HardState, Snapshot
from raft.errors import LogError, SyncFailed
from raft.log import Identity, LogWrite
from raft.logrows import JOINED_WRITES
from raft.sqlite_log import SqliteLog

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
    await SqliteLog.create(directory / "raft.db", IDENTITY, START)
    return await reopen(directory)


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

    monkeypatch.setattr("raft.logrows._put_snapshot", full)
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


async def limit(log: SqliteLog, pages: int) -> None:
    """Have the database be as full as a disk."""
    await log._database.run(lambda db: db.execute(f"PRAGMA max_page_count={pages}").fetchall())


async def test_m36_a_failed_write_of_the_database_is_fatal_and_never_retried(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    await limit(log, 8)
    with pytest.raises(SyncFailed, match="stops"):
        await log.write([LogWrite([entry(2, data=bytes(tailfile.SIZE))])])
    with pytest.raises(SyncFailed):
        await log.write([LogWrite([entry(2, data=b"small")])])
    with pytest.raises(SyncFailed):
        await log.compact(START)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
async def test_m36_a_failed_write_of_the_tail_is_fatal_and_never_retried(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    with monkeypatch.context() as patched:

        def broken(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patched.setattr(os, call, broken)
        with pytest.raises(SyncFailed, match=r"Input/output error.*stops"):
            await log.write([LogWrite([entry(3)])])
    with pytest.raises(SyncFailed):
        await log.write([LogWrite([entry(3)])])
    await log.close()
    assert list((await (await reopen(tmp_path)).load()).entries)[:1] == [entry(2)]


async def test_m36_what_is_queued_behind_a_failed_compaction_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a transaction that failed is in doubt: here it is in force, and with it another salt."""
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)], HardState(1, 0, 2))])
    with monkeypatch.context() as patched:
        real = logrows._transaction

        @contextmanager
        def in_doubt(db: sqlite3.Connection) -> Iterator[None]:
            with real(db):
                yield
            raise sqlite3.OperationalError("disk I/O error")

        patched.setattr(logrows, "_transaction", in_doubt)
        compacting = asyncio.create_task(log.compact(Snapshot(2, 1, START.conf_state)))
        await asyncio.sleep(0)
        queued = [log.write([LogWrite([entry(index)])]) for index in (3, 4)]
        for ended in await asyncio.gather(compacting, *queued, return_exceptions=True):
            assert isinstance(ended, SyncFailed)
    with pytest.raises(SyncFailed):
        await log.write([LogWrite([entry(5)])])
    await log.close()
    loaded = await (await reopen(tmp_path)).load()
    assert (loaded.snapshot.index, loaded.hard_state, list(loaded.entries)) == (2, HardState(1, 0, 2), [])


async def test_a_mistake_of_ours_in_loading_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await new_log(tmp_path)
    monkeypatch.setattr(logrows, "_load", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        await log.load()


async def test_closing_that_is_cancelled_leaves_no_thread(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.to_thread(log._database._thread.join, 5)
    assert not log._database._thread.is_alive()
    assert list((await (await reopen(tmp_path)).load()).entries) == [entry(2)]


async def test_loading_a_log_that_was_just_opened_writes_nothing(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    seen: list[str] = []
    await log._database.run(lambda db: db.set_trace_callback(seen.append))
    await log.load()
    assert {statement.split()[0] for statement in seen} == {"SELECT"}


@pytest.mark.parametrize(
    "trouble", [sqlite3.OperationalError("database or disk is full"), OSError(errno.EIO, "Input/output error")]
)
async def test_a_disk_that_cannot_be_read_now_is_not_called_damage(
    trouble: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await new_log(tmp_path)
    monkeypatch.setattr(logrows, "_load", Mock(side_effect=trouble))
    with pytest.raises(LogError, match=r"cannot be read now \(.*\); nothing is wrong with it"):
        await log.load()


async def doings(log: SqliteLog, monkeypatch: pytest.MonkeyPatch, *calls: list[LogWrite]) -> list[str]:
    """The writes and syncs of the tail, and the first words of the statements, that writing ``calls`` takes."""
    seen: list[str] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def write(fd: int, data: bytes, offset: int) -> int:
        seen.append("write")
        return pwrite(fd, data, offset)

    def sync(fd: int) -> None:
        fdatasync(fd)
        seen.append("sync")

    await log._database.run(lambda db: db.set_trace_callback(lambda sql: seen.append(sql.split()[0])))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", write)
        patched.setattr(os, "fdatasync", sync)
        for writes in calls:
            await log.write(writes)
            seen.append("told")
    await log._database.run(lambda db: db.set_trace_callback(None))
    return seen


async def rows(log: SqliteLog) -> list[tuple[int, int]]:
    await log._database.run(log._rows.take_over)
    return await log._database.run(lambda db: db.execute("SELECT first, last FROM writes ORDER BY seq").fetchall())


async def test_writes_that_only_append_are_one_write_and_one_sync_before_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    joined = [
        LogWrite([entry(3), entry(4)], HardState(1, 0, 2)),
        LogWrite(hard_state=HardState(1, 0, 3)),
        LogWrite([entry(5)], HardState(1, 0, 4)),
        LogWrite([entry(6)]),
    ]
    assert await doings(log, monkeypatch, joined) == ["write", "sync", "told"]
    assert await rows(log) == [(2, 2), (3, 6)]
    loaded = await log.load()
    assert (loaded.hard_state, list(loaded.entries)) == (HardState(1, 0, 4), [entry(i) for i in range(2, 7)])


async def test_what_does_not_fit_goes_to_the_database_with_all_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    large = entry(3, data=bytes(tailfile.SIZE))
    seen = await doings(log, monkeypatch, [LogWrite([large])], [LogWrite([entry(4)])])
    assert seen == ["write", "sync", "BEGIN", *["REPLACE"] * 3, "COMMIT", "told", "write", "sync", "told"]
    await crash(tmp_path)
    assert list((await (await reopen(tmp_path / "crashed")).load()).entries) == [entry(2), large, entry(4)]


async def test_too_many_writes_for_one_row_are_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await new_log(tmp_path)
    many = [LogWrite([entry(index)]) for index in range(2, JOINED_WRITES + 3)]
    assert (await doings(log, monkeypatch, many)).count("COMMIT") == 1
    assert len((await log.load()).entries) == len(many)


async def test_what_is_durable_already_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await new_log(tmp_path)
    vote = LogWrite(hard_state=HardState(2, 3, 1))
    seen = await doings(log, monkeypatch, [], [LogWrite()], [vote], [vote])
    assert seen == ["told", "told", "write", "sync", "told", "told"]


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

        patched.setattr("raft.logrows._put_snapshot", full)
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


async def crash(directory: Path) -> None:
    """What a process that is killed leaves, in ``crashed`` beside it."""
    copy = directory / "crashed"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in directory.glob("raft.db*"):
        if not path.name.endswith("-shm"):
            shutil.copy(path, copy)


async def test_after_a_clean_end_the_database_has_everything_and_the_tail_is_gone(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)], HardState(2, 3, 1))])
    assert (tmp_path / "raft.db-tail").stat().st_size == tailfile.SIZE
    await log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["raft.db"]
    database = sqlite3.connect(tmp_path / "raft.db")
    assert database.execute("SELECT last, term FROM writes ORDER BY seq").fetchall() == [(2, 2)]
    database.close()


async def test_a_crashed_log_without_its_tail_is_refused_and_one_that_ended_cleanly_needs_none(
    tmp_path: Path,
) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    await crash(tmp_path)
    (tmp_path / "crashed/raft.db-tail").unlink()
    with pytest.raises(LogError, match=r"raft\.db-tail .*missing.*remove it from the cluster"):
        await reopen(tmp_path / "crashed")
    await log.close()
    assert not (tmp_path / "raft.db-tail").exists()
    assert list((await (await reopen(tmp_path)).load()).entries) == [entry(2)]


async def test_a_damaged_tail_is_refused_and_named(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    for index in range(2, 6):
        await log.write([LogWrite([entry(index)])])
    await crash(tmp_path)
    path = tmp_path / "crashed/raft.db-tail"
    data = bytearray(path.read_bytes())
    data[4 * tailfile.PAGE + 30] ^= 1
    path.write_bytes(data)
    for _ in range(2):  # and nothing is changed by the attempt
        with pytest.raises(LogError, match=r"raft\.db-tail: the record at byte 16384 is damaged"):
            await reopen(tmp_path / "crashed")
    assert path.read_bytes() == data


async def test_a_tail_that_does_not_continue_its_database_is_refused(tmp_path: Path) -> None:
    log = await new_log(tmp_path)
    for index in range(2, 6):
        await log.write([LogWrite([entry(index)])])
    await crash(tmp_path)
    database = sqlite3.connect(tmp_path / "crashed/raft.db")
    with database:
        database.execute("UPDATE writes SET seq = seq + 1")
    database.close()
    with pytest.raises(LogError, match="its newest writes go on at"):
        await reopen(tmp_path / "crashed")


async def test_a_full_disk_at_the_transfer_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailfile, "SIZE", 6 * tailfile.PAGE)
    log = await new_log(tmp_path)
    await limit(log, 6)
    acknowledged = []

    async def fill() -> None:
        for index in range(2, 100):
            await log.write([LogWrite([entry(index, data=bytes(3000))], HardState(1, 0, index - 1))])
            acknowledged.append(entry(index, data=bytes(3000)))

    with pytest.raises(SyncFailed, match="full"):
        await fill()
    await log.close()
    assert len(acknowledged) >= 4
    loaded = await (await reopen(tmp_path)).load()
    assert (loaded.hard_state.commit, list(loaded.entries)) == (acknowledged[-1].index - 1, acknowledged)


async def test_a_full_disk_at_the_start_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await new_log(tmp_path)
    await log.write([LogWrite([entry(2)])])
    await crash(tmp_path)
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        patched.setattr("raft.logrows.Rows.take_over", full)
        with pytest.raises(LogError, match=r"cannot be opened now .* free space"):
            await reopen(tmp_path / "crashed")
    assert list((await (await reopen(tmp_path / "crashed")).load()).entries) == [entry(2)]


async def test_a_full_disk_at_the_end_leaves_the_tail_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await new_log(tmp_path)
    await limit(log, 6)
    await log.write([LogWrite([entry(2, data=bytes(100_000))])])
    await log.close()
    assert "the newest writes stay in the file beside it (database or disk is full)" in caplog.text
    assert list((await (await reopen(tmp_path)).load()).entries) == [entry(2, data=bytes(100_000))]


@pytest.mark.parametrize("seed", range(20))
async def test_a_killed_process_has_every_write_that_was_told(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every write of a random history, with a file so short that its rows are taken over again and again."""
    monkeypatch.setattr(tailfile, "SIZE", 5 * tailfile.PAGE)
    draw = random.Random(seed)
    log = await new_log(tmp_path)
    begin, state, entries = START, HardState(1, 0, 1), list[Entry]()
    for step in range(25):
        last = entries[-1].index if entries else begin.index
        match draw.choice(["append", "append", "append", "replace", "vote", "snapshot", "compact", "restart"]):
            case "append":
                new = [entry(last + n, step, draw.randbytes(draw.choice([5, 4000, 9000]))) for n in range(1, 3)]
                state = HardState(step + 1, 3, last)
                await log.write([LogWrite(new[:1], state), LogWrite(new[1:])])
                entries += new
            case "replace" if entries:
                keep = draw.randrange(len(entries))
                new = [entry(entries[keep].index, step, b"other")]
                state = HardState(step + 1, 3, begin.index)
                await log.write([LogWrite(new, state)])
                entries[keep:] = new
            case "vote":
                state = HardState(step + 1, draw.randrange(1, 1 << 64), state.commit)
                await log.write([LogWrite(hard_state=state)])
            case "snapshot":
                begin = Snapshot(last + draw.randrange(1, 5), step, START.conf_state)
                state, entries = HardState(step + 1, 0, begin.index), []
                await log.write([LogWrite(snapshot=begin, hard_state=state)])
            case "compact" if entries:
                begin = Snapshot(draw.choice(entries).index, step, START.conf_state)
                entries = [e for e in entries if e.index > begin.index]
                state = HardState(step + 1, 3, begin.index)
                await log.write([LogWrite(hard_state=state)])
                await log.compact(begin)
            case "restart":
                await log.close()
                log = await reopen(tmp_path)
        await crash(tmp_path)
        after = await reopen(tmp_path / "crashed")
        loaded = await after.load()
        assert (loaded.snapshot, loaded.hard_state, list(loaded.entries)) == (begin, state, entries), step
        await after.close()


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
async def test_a_disk_without_room_has_no_tail_and_takes_every_write_all_the_same(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file takes of a small disk, the entries and the state would lack."""
    statvfs, pwrite = os.fstatvfs, os.pwrite
    with monkeypatch.context() as patched:
        if trouble == "too little room":
            patched.setattr(
                os, "fstatvfs", lambda fd: os.statvfs_result((*statvfs(fd)[:4], 2000, *statvfs(fd)[5:]))
            )
        else:

            def write(fd: int, data: bytes, offset: int) -> int:
                if offset > 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return pwrite(fd, data, offset)

            patched.setattr(os, "pwrite", write)
        log = await new_log(tmp_path)
    assert not (tmp_path / "raft.db-tail").exists()
    await log.write([LogWrite([entry(2)])])
    await crash(tmp_path)
    await log.write([LogWrite([entry(3)])])
    await log.close()
    assert [e.index for e in (await (await reopen(tmp_path / "crashed")).load()).entries] == [2]
    assert [e.index for e in (await (await reopen(tmp_path)).load()).entries] == [2, 3]
