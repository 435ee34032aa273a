"""Logs of other versions: 1 and 2 are upgraded when they are opened, all at once; a newer one is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from raft.codec import encode_entries
from raft.core.types import ConfState, Entry, EntryType, HardState, Snapshot
from raft.errors import LogError
from raft.log import Identity, LoadedLog, LogWrite
from raft.logrows import encode_conf_state
from raft.sqlite_log import SqliteLog

IDENTITY = Identity(cluster_id=(1 << 64) - 5, member_id=(1 << 64) - 7)
CONF_STATE = ConfState((3, 5, (1 << 64) - 7))
STATE = HardState(4, (1 << 64) - 7, 5)

VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE hard_state (id INTEGER PRIMARY KEY CHECK (id = 1), term INTEGER, vote BLOB, commit_index INTEGER);
CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), idx INTEGER, term INTEGER, conf_state BLOB);
CREATE TABLE writes (
    seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, entries BLOB NOT NULL
);
"""


def run_of(first: int, last: int, term: int) -> list[Entry]:
    return [Entry(term, index, EntryType.NORMAL, b"%d of %d" % (index, term)) for index in range(first, last + 1)]


def write_version_1(path: Path, snapshot: Snapshot, state: HardState, rows: Sequence[Sequence[Entry]]) -> None:
    """As version 1 left it; rows may overlap, and the later one is right."""
    database = sqlite3.connect(path)
    with database:
        database.executescript("PRAGMA journal_mode=WAL;" + VERSION_1)
        numbers = {"format": 1, "cluster_id": IDENTITY.cluster_id, "member_id": IDENTITY.member_id}
        database.executemany(
            "INSERT INTO meta VALUES (?, ?)", [(key, value.to_bytes(8, "big")) for key, value in numbers.items()]
        )
        vote = state.vote.to_bytes(8, "big")
        database.execute("INSERT INTO hard_state VALUES (1, ?, ?, ?)", (state.term, vote, state.commit))
        marker = (snapshot.index, snapshot.term, encode_conf_state(snapshot.conf_state))
        database.execute("INSERT INTO snapshot VALUES (1, ?, ?, ?)", marker)
        database.executemany(
            "INSERT INTO writes (first, last, entries) VALUES (?, ?, ?)",
            [(entries[0].index, entries[-1].index, encode_entries(entries)) for entries in rows],
        )
    database.close()


def version_of(path: Path) -> int:
    database = sqlite3.connect(path)
    ((value,),) = database.execute("SELECT value FROM meta WHERE key = 'format'").fetchall()
    database.close()
    return int.from_bytes(value, "big")


async def loaded_from(path: Path, *more: LogWrite, compact: Snapshot | None = None) -> LoadedLog:
    log = await SqliteLog.open_existing(path, IDENTITY)
    try:
        if more:
            await log.write(more)
        if compact is not None:
            await log.compact(compact)
        return await log.load()
    finally:
        await log.close()


@pytest.mark.parametrize(
    ("snapshot", "rows", "expected"),
    [
        (Snapshot(5, 1, CONF_STATE), [], []),
        (Snapshot(1, 1, CONF_STATE), [run_of(2, 5, 1), run_of(6, 6, 4)], [*run_of(2, 5, 1), *run_of(6, 6, 4)]),
        (Snapshot(4, 1, CONF_STATE), [run_of(2, 9, 1)], run_of(5, 9, 1)),
        (
            Snapshot(1, 1, CONF_STATE),
            [run_of(2, 9, 1), run_of(5, 8, 2), run_of(7, 7, 3), run_of(8, 8, 3)],
            [*run_of(2, 4, 1), *run_of(5, 6, 2), *run_of(7, 8, 3)],
        ),
        (Snapshot(5, 1, CONF_STATE), [run_of(2, 9, 1), run_of(6, 6, 2)], run_of(6, 6, 2)),
    ],
    ids=["empty", "in order", "compacted", "replaced", "replaced and compacted"],
)
async def test_a_log_of_version_1_is_upgraded_and_goes_on(
    tmp_path: Path, snapshot: Snapshot, rows: list[list[Entry]], expected: list[Entry]
) -> None:
    path = tmp_path / "raft.db"
    write_version_1(path, snapshot, STATE, rows)
    loaded = await loaded_from(path)
    assert (loaded.snapshot, loaded.hard_state, list(loaded.entries)) == (snapshot, STATE, expected)
    assert version_of(path) == 3
    last = expected[-1].index if expected else snapshot.index
    loaded = await loaded_from(path, LogWrite(run_of(last + 1, last + 1, 5)))
    assert (loaded.hard_state, list(loaded.entries)) == (STATE, [*expected, *run_of(last + 1, last + 1, 5)])
    end = Snapshot(last + 1, 5, CONF_STATE)
    await loaded_from(path, compact=end)
    loaded = await loaded_from(path)
    assert (loaded.snapshot, loaded.hard_state, list(loaded.entries)) == (end, STATE, [])


async def test_a_log_of_version_2_is_upgraded_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "raft.db"
    await SqliteLog.create(path, IDENTITY, Snapshot(1, 1, CONF_STATE))
    before = await loaded_from(path, LogWrite(run_of(2, 5, 4), STATE))
    database = sqlite3.connect(path)
    with database:  # all that distinguishes it: it knows of no file beside it
        database.execute("DELETE FROM meta WHERE key = 'tail'")
        database.execute("UPDATE meta SET value = ? WHERE key = 'format'", ((2).to_bytes(8, "big"),))
    database.close()
    assert await loaded_from(path) == before
    assert version_of(path) == 3
    assert list((await loaded_from(path, LogWrite(run_of(6, 6, 4)))).entries) == run_of(2, 6, 4)


async def test_an_upgrade_that_fails_leaves_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "raft.db"
    write_version_1(path, Snapshot(1, 1, CONF_STATE), STATE, [run_of(2, 9, 1), run_of(5, 8, 2)])
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        patched.setattr("raft.logrows._put", full)
        with pytest.raises(LogError, match=r"cannot be opened now .* free space"):
            await loaded_from(path)
    assert version_of(path) == 1
    loaded = await loaded_from(path)
    assert (loaded.hard_state, list(loaded.entries)) == (STATE, [*run_of(2, 4, 1), *run_of(5, 8, 2)])


async def test_another_members_log_is_not_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "raft.db"
    write_version_1(path, Snapshot(1, 1, CONF_STATE), STATE, [run_of(2, 9, 1)])
    with pytest.raises(LogError, match="belongs to member"):
        await SqliteLog.open_existing(path, Identity(IDENTITY.cluster_id, 12))
    assert version_of(path) == 1


@pytest.mark.parametrize("version", [0, 4])
async def test_a_version_that_is_not_known_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "raft.db"
    await SqliteLog.create(path, IDENTITY, Snapshot(1, 1, CONF_STATE))
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE meta SET value = ? WHERE key = 'format'", (version.to_bytes(8, "big"),))
    database.close()
    with pytest.raises(LogError, match=f"log format {version}, this release reads 3"):
        await loaded_from(path)
