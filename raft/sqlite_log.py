"""The durable log in SQLite: one transaction and one fsync for everything that is waiting to be written.

Layout (version 1): ``meta`` whose log this is, ``hard_state`` and ``snapshot`` one row each, and ``writes``: the
entries of one write together, in the order of writing. A write replaces what was stored at and above its first
index, so reading them in order gives the log. One row for a batch costs a fraction of one row for an entry, in
the thread that competes with the event loop for the interpreter. WAL mode with synchronous=FULL: a commit
returns after the fsync of the WAL.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgpack

from raft import sqlite
from raft.codec import decode_entries, encode_entries
from raft.core.types import ConfState, Entry, HardState, Snapshot
from raft.errors import CodecError, LogError, SyncFailed
from raft.histogram import DISK_SECONDS, Histogram
from raft.log import Identity, LoadedLog, LogWrite

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
SLOW_SYNC_S: Final = 1.0
"""A sync that takes longer is worth a warning: heartbeats are next (contract §27)."""

_REPLACE_MEMBER: Final = (
    "if this member is lost, remove it from the cluster, delete its data directory and add it again; "
    "its peers hold the data"
)

_MEND_DISK: Final = "nothing is wrong with it: free space or mend the disk, then start this member again"

_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE hard_state (id INTEGER PRIMARY KEY CHECK (id = 1), term INTEGER, vote BLOB, commit_index INTEGER);
CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), idx INTEGER, term INTEGER, conf_state BLOB);
CREATE TABLE writes (
    seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, entries BLOB NOT NULL
);
"""


class SqliteLog:
    """A DurableLog in one SQLite file. Make it with ``create`` or ``open_existing``."""

    def __init__(self, path: Path, database: sqlite.Database) -> None:
        self._path = path
        self._database = database
        self._failed: SyncFailed | None = None
        self._last_index = 0
        self._entries_written = 0
        self._sync_s_max = 0.0
        self.last_sync_s = 0.0
        self.sync_seconds = Histogram(DISK_SECONDS)
        """How long writes took, from the call until they were durable."""

    @classmethod
    async def create(
        cls, path: Path, identity: Identity, snapshot: Snapshot, *, preallocate: bool = True
    ) -> SqliteLog:
        """A new log that begins just after ``snapshot`` (index 0 and no voters for a member that will join).

        One that is only made, to be opened again, need not ``preallocate``: the file goes when it closes.

        Raises LogError where there is one already, and for a disk that takes no file.
        """
        if path.exists():
            raise LogError(path, "a log is already there", "start the member without bootstrapping it again")
        database: sqlite.Database | None = None
        try:
            database = await sqlite.connect(path, synchronous="FULL", preallocate_wal=preallocate)
            await database.run(_create, identity, snapshot)
        except BaseException as error:
            if database is not None:
                await database.close()
            if sqlite.is_disk_trouble(error):
                raise LogError(path, f"the raft log cannot be made now ({error})", _MEND_DISK) from error
            raise
        log = cls(path, database)
        log._last_index = snapshot.index
        sqlite.sync_directory(path.parent)
        return log

    @classmethod
    async def open_existing(cls, path: Path, identity: Identity | None = None) -> SqliteLog:
        """Open the log of a restarting member. Raises LogError for a damaged file or another member's log."""
        if not path.exists():
            raise LogError(path, "the raft log is missing", _REPLACE_MEMBER)
        database: sqlite.Database | None = None
        try:
            database = await sqlite.connect(path, synchronous="FULL", preallocate_wal=True)
            found = await database.run(_check)
        except (sqlite3.DatabaseError, ValueError) as error:
            if database is not None:
                await database.close()
            if sqlite.is_disk_trouble(error):
                raise LogError(path, f"the raft log cannot be opened now ({error})", _MEND_DISK) from error
            raise LogError(path, f"not a usable raft log ({error})", _REPLACE_MEMBER) from error
        if identity is not None and found != identity:
            await database.close()
            raise LogError(
                path,
                f"this log belongs to member {found.member_id:x} of cluster {found.cluster_id:x}, "
                f"not to member {identity.member_id:x} of cluster {identity.cluster_id:x}",
                "use another --data-dir, or the --name and --initial-cluster this directory was made with",
            )
        log = cls(path, database)
        log.identity = found
        return log

    identity: Identity
    """Whose log was opened (set by open_existing)."""

    async def load(self) -> LoadedLog:
        try:
            loaded = await self._database.run(_load)
        except (sqlite3.DatabaseError, ValueError, TypeError, CodecError) as error:
            raise LogError(self._path, f"the raft log is damaged ({error})", _REPLACE_MEMBER) from error
        self._last_index = loaded.entries[-1].index if loaded.entries else loaded.snapshot.index
        return loaded

    async def write(self, writes: Sequence[LogWrite]) -> None:
        if self._failed is not None:
            raise self._failed
        started = time.perf_counter()
        try:
            last = await self._database.run(_write, writes, self._last_index)
        except sqlite3.Error as error:
            self._failed = SyncFailed(self._path, error)
            raise self._failed from error
        took = self.last_sync_s = time.perf_counter() - started
        self.sync_seconds.observe(took)
        if took > SLOW_SYNC_S:
            log.warning("%s: a sync took %.1f s: the disk is slow", self._path, took)
        self._last_index = last
        self._entries_written += sum(len(write.entries) for write in writes)
        self._sync_s_max = max(self._sync_s_max, took)

    async def compact(self, snapshot: Snapshot) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            await self._database.run(_compact, snapshot)
        except sqlite3.Error as error:
            self._failed = SyncFailed(self._path, error)
            raise self._failed from error

    async def close(self) -> None:
        await self._database.close()

    def statistics(self) -> Mapping[str, float]:
        return {
            "syncs": sum(self.sync_seconds.counts),
            "entries": self._entries_written,
            "sync_seconds_total": self.sync_seconds.total,
            "sync_seconds_max": self._sync_s_max,
        }


def _create(db: sqlite3.Connection, identity: Identity, snapshot: Snapshot) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA.strip().split(";\n"):
        db.execute(statement)
    db.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [
            ("format", _blob(FORMAT_VERSION)),
            ("cluster_id", _blob(identity.cluster_id)),
            ("member_id", _blob(identity.member_id)),
        ],
    )
    _put_hard_state(db, HardState(term=snapshot.term, commit=snapshot.index))
    _put_snapshot(db, snapshot)
    db.execute("COMMIT")


def _check(db: sqlite3.Connection) -> Identity:
    """Read whose log it is, after SQLite's own quick check of the file."""
    problems = [row[0] for row in db.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise ValueError(str(problems[0]))
    meta = dict(db.execute("SELECT key, value FROM meta"))
    version = _number(meta["format"]) if "format" in meta else 0
    if version != FORMAT_VERSION:
        raise ValueError(f"log format {version}, this release reads {FORMAT_VERSION}")
    return Identity(_number(meta["cluster_id"]), _number(meta["member_id"]))


def _load(db: sqlite3.Connection) -> LoadedLog:
    term, vote, commit = db.execute("SELECT term, vote, commit_index FROM hard_state").fetchone()
    index, snapshot_term, conf_state = db.execute("SELECT idx, term, conf_state FROM snapshot").fetchone()
    snapshot = Snapshot(index, snapshot_term, decode_conf_state(conf_state))
    entries: list[Entry] = []
    for (data,) in db.execute("SELECT entries FROM writes ORDER BY seq"):
        batch = decode_entries(data)
        first = max(batch[0].index, index + 1)
        while entries and entries[-1].index >= first:
            entries.pop()
        if first != (entries[-1].index if entries else index) + 1:
            raise ValueError(f"there is a gap before entry {first}")
        entries += batch[first - batch[0].index :]
    last = entries[-1].index if entries else index
    if commit > last:
        raise ValueError(f"entries up to {commit} were committed but the log ends at {last}")
    return LoadedLog(HardState(term, _number(vote), commit), snapshot, entries)


def _write(db: sqlite3.Connection, writes: Sequence[LogWrite], last_index: int) -> int:
    """All writes in one transaction; returns the new last index. The commit is the fsync."""
    hard_state: HardState | None = None
    db.execute("BEGIN IMMEDIATE")
    try:
        for write in writes:
            if write.snapshot is not None:
                db.execute("DELETE FROM writes")
                _put_snapshot(db, write.snapshot)
                last_index = write.snapshot.index
            if write.entries:
                first, last = write.entries[0].index, write.entries[-1].index
                if first <= last_index:
                    db.execute("DELETE FROM writes WHERE first >= ?", (first,))
                row = (first, last, encode_entries(write.entries))
                db.execute("INSERT INTO writes (first, last, entries) VALUES (?, ?, ?)", row)
                last_index = last
            hard_state = write.hard_state or hard_state
        if hard_state is not None:
            _put_hard_state(db, hard_state)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return last_index


def _compact(db: sqlite3.Connection, snapshot: Snapshot) -> None:
    db.execute("BEGIN IMMEDIATE")
    (begins_after,) = db.execute("SELECT idx FROM snapshot").fetchone()
    if snapshot.index > begins_after:  # else a received snapshot has overtaken this
        _put_snapshot(db, snapshot)
        db.execute("DELETE FROM writes WHERE last <= ?", (snapshot.index,))
    db.execute("COMMIT")


def _put_hard_state(db: sqlite3.Connection, state: HardState) -> None:
    db.execute("REPLACE INTO hard_state VALUES (1, ?, ?, ?)", (state.term, _blob(state.vote), state.commit))


def _put_snapshot(db: sqlite3.Connection, snapshot: Snapshot) -> None:
    db.execute(
        "REPLACE INTO snapshot VALUES (1, ?, ?, ?)",
        (snapshot.index, snapshot.term, encode_conf_state(snapshot.conf_state)),
    )


def encode_conf_state(conf_state: ConfState) -> bytes:
    return bytes(msgpack.packb(conf_state))


def decode_conf_state(data: bytes) -> ConfState:
    """Raises ValueError for bytes that are no ConfState."""
    voters, learners, outgoing, learners_next, auto_leave = msgpack.unpackb(data)
    return ConfState(tuple(voters), tuple(learners), tuple(outgoing), tuple(learners_next), bool(auto_leave))


def _blob(number: int) -> bytes:
    """Ids are unsigned 64-bit; SQLite's integers are signed."""
    return number.to_bytes(8, "big")


def _number(blob: bytes) -> int:
    return int.from_bytes(blob, "big")
