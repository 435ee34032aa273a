"""The durable log in SQLite: one transaction and one fsync for everything that is waiting to be written.

Layout (version 2): ``meta`` whose log this is, ``snapshot`` one row, and ``writes``: a row for the entries
``first`` to ``last`` of one write, in order and without overlap, each with the hard state that is in force after
it. The newest row's is the hard state of the log, so there always is a row; one without entries (``last`` is one
below ``first``) is replaced by the next write. A write that only appends is then a single INSERT in autocommit,
one page of the WAL for a small one; with a table for the hard state it was four statements and two pages.
WAL mode with synchronous=FULL: a commit returns after the fsync of the WAL.

Version 1 kept the hard state in a table of its own, and its rows could overlap, the later one being right. Such
a log is upgraded when it is opened.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from raft import sqlite
from raft.codec import decode_entries, encode_entries
from raft.core.types import ConfState, Entry, HardState, Snapshot
from raft.errors import CodecError, LogError, SyncFailed
from raft.histogram import DISK_SECONDS, Histogram
from raft.log import Identity, LoadedLog, LogWrite

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 2
SLOW_SYNC_S: Final = 1.0
"""A sync that takes longer is worth a warning: heartbeats are next (contract §27)."""
JOINED_WRITES: Final = 64
"""So many writes at most become one row: each is bounded by the size of a message, and so the row is too."""

_REPLACE_MEMBER: Final = (
    "if this member is lost, remove it from the cluster, delete its data directory and add it again; "
    "its peers hold the data"
)

_MEND_DISK: Final = "nothing is wrong with it: free space or mend the disk, then start this member again"

_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), idx INTEGER, term INTEGER, conf_state BLOB);
CREATE TABLE writes (
    seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, entries BLOB NOT NULL,
    term INTEGER, vote BLOB, commit_index INTEGER
);
"""
"""The hard state comes last, and NULL in all but the newest row is allowed, so that version 1 needs no copying."""

_INSERT: Final = (
    "INSERT INTO writes (seq, first, last, entries, term, vote, commit_index) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_REPLACE: Final = _INSERT.replace("INSERT", "REPLACE")


class _Tail(NamedTuple):
    """The newest row, which the next write continues."""

    seq: int
    last_index: int
    hard_state: HardState
    is_empty: bool


class SqliteLog:
    """A DurableLog in one SQLite file. Make it with ``create`` or ``open_existing``."""

    def __init__(self, path: Path, database: sqlite.Database, tail: _Tail) -> None:
        self._path = path
        self._database = database
        self._tail = tail  # once open, of the database's thread
        self._failed: SyncFailed | None = None
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
            tail = await database.run(_create, identity, snapshot)
        except BaseException as error:
            if database is not None:
                await database.close()
            if sqlite.is_disk_trouble(error):
                raise LogError(path, f"the raft log cannot be made now ({error})", _MEND_DISK) from error
            raise
        log = cls(path, database, tail)
        sqlite.sync_directory(path.parent)
        return log

    @classmethod
    async def open_existing(cls, path: Path, identity: Identity | None = None) -> SqliteLog:
        """Open the log of a restarting member, upgrading one of version 1.

        Raises LogError for a damaged file, a newer version or another member's log.
        """
        if not path.exists():
            raise LogError(path, "the raft log is missing", _REPLACE_MEMBER)
        database: sqlite.Database | None = None
        try:
            database = await sqlite.connect(path, synchronous="FULL", preallocate_wal=True)
            found, version = await database.run(_check)
            if identity is not None and found != identity:
                raise _of_another(path, found, identity)
            tail = await database.run(_begin, version)
        except BaseException as error:
            if database is not None:
                await database.close()
            if sqlite.is_disk_trouble(error):
                raise LogError(path, f"the raft log cannot be opened now ({error})", _MEND_DISK) from error
            if isinstance(error, (sqlite3.DatabaseError, ValueError, TypeError, KeyError)):
                raise LogError(path, f"not a usable raft log ({error})", _REPLACE_MEMBER) from error
            raise
        log = cls(path, database, tail)
        log.identity = found
        return log

    identity: Identity
    """Whose log was opened (set by open_existing)."""

    async def load(self) -> LoadedLog:
        try:
            return await self._database.run(_load)
        except (sqlite3.DatabaseError, ValueError, TypeError, CodecError) as error:
            raise LogError(self._path, f"the raft log is damaged ({error})", _REPLACE_MEMBER) from error

    def write(self, writes: Sequence[LogWrite]) -> asyncio.Future[None]:
        return self._database.submit(self._append, writes, time.perf_counter())

    def _append(self, db: sqlite3.Connection, writes: Sequence[LogWrite], asked: float) -> None:
        """In the database's thread, which nobody stops: the tail stays that of the file. Raises SyncFailed."""
        if self._failed is not None:
            raise self._failed
        try:
            self._tail = _write(db, writes, self._tail)
        except sqlite3.Error as error:
            self._failed = SyncFailed(self._path, error)
            raise self._failed from error
        took = self.last_sync_s = time.perf_counter() - asked
        # Counted only here: who reads the figures meanwhile may find one of them a write ahead of the others.
        self.sync_seconds.observe(took)
        if took > SLOW_SYNC_S:
            log.warning("%s: a sync took %.1f s: the disk is slow", self._path, took)
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


def _of_another(path: Path, found: Identity, identity: Identity) -> LogError:
    return LogError(
        path,
        f"this log belongs to member {found.member_id:x} of cluster {found.cluster_id:x}, "
        f"not to member {identity.member_id:x} of cluster {identity.cluster_id:x}",
        "use another --data-dir, or the --name and --initial-cluster this directory was made with",
    )


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. Its end is the fsync."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _create(db: sqlite3.Connection, identity: Identity, snapshot: Snapshot) -> _Tail:
    with _transaction(db):
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
        _put_snapshot(db, snapshot)
        state = HardState(term=snapshot.term, commit=snapshot.index)
        return _put_row(db, _Tail(0, snapshot.index, HardState(), is_empty=False), (), state)


def _check(db: sqlite3.Connection) -> tuple[Identity, int]:
    """Whose log it is, and of which version, after SQLite's own quick check of the file. Changes nothing."""
    problems = [row[0] for row in db.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise ValueError(str(problems[0]))
    meta = dict(db.execute("SELECT key, value FROM meta"))
    version = _number(meta["format"]) if "format" in meta else 0
    if not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"log format {version}, this release reads {FORMAT_VERSION}")
    return Identity(_number(meta["cluster_id"]), _number(meta["member_id"])), version


def _begin(db: sqlite3.Connection, version: int) -> _Tail:
    """Where a log of ``version`` is written on, once it is of the present version."""
    if version < FORMAT_VERSION:
        _upgrade(db)
    row = db.execute(
        "SELECT seq, first, last, term, vote, commit_index FROM writes ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    if row is None or None in row:
        raise ValueError("the hard state is missing")
    seq, first, last, term, vote, commit = row
    (begins_after,) = db.execute("SELECT idx FROM snapshot").fetchone()
    return _Tail(seq, max(last, begins_after), HardState(term, _number(vote), commit), last < first)


def _upgrade(db: sqlite3.Connection) -> None:
    """From version 1, in place: a row ends where a later one begins, and the newest gets the hard state."""
    with _transaction(db):
        for column in ("term INTEGER", "vote BLOB", "commit_index INTEGER"):
            db.execute(f"ALTER TABLE writes ADD COLUMN {column}")
        rows = db.execute("SELECT seq, first, last FROM writes ORDER BY seq DESC").fetchall()
        begins = [first for _, first, _ in rows]
        cut = [
            (later - 1, seq)
            for (seq, _, last), later in zip(rows[1:], accumulate(begins, min), strict=False)
            if last >= later
        ]
        db.executemany("UPDATE writes SET last = ? WHERE seq = ?", cut)
        term, vote, commit = db.execute("SELECT term, vote, commit_index FROM hard_state").fetchone()
        (begins_after,) = db.execute("SELECT idx FROM snapshot").fetchone()
        seq, _, last = rows[0] if rows else (0, 0, 0)
        state = HardState(term, _number(vote), commit)
        _put_row(db, _Tail(seq, max(last, begins_after), state, is_empty=False), (), state)
        db.execute("DROP TABLE hard_state")
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (_blob(FORMAT_VERSION),))


def _load(db: sqlite3.Connection) -> LoadedLog:
    index, snapshot_term, conf_state = db.execute("SELECT idx, term, conf_state FROM snapshot").fetchone()
    snapshot = Snapshot(index, snapshot_term, decode_conf_state(conf_state))
    entries: list[Entry] = []
    following = index + 1
    for first, last, data in db.execute("SELECT first, last, entries FROM writes ORDER BY seq"):
        if max(first, index + 1) != following:
            raise ValueError(f"there is a gap or an overlap before entry {first}")
        entries += _stored(first, last, data)[following - first :]
        following = max(last + 1, following)
    hard_state = _begin(db, FORMAT_VERSION).hard_state
    if hard_state.commit >= following:
        raise ValueError(f"entries up to {hard_state.commit} were committed but the log ends at {following - 1}")
    return LoadedLog(hard_state, snapshot, entries)


def _stored(first: int, last: int, data: bytes) -> Sequence[Entry]:
    """A row's entries; it may hold more, above ``last``, which were replaced."""
    entries = decode_entries(data)[: last + 1 - first] if data else ()
    if len(entries) != last + 1 - first or (entries and entries[0].index != first):
        raise ValueError(f"the entries {first} to {last} are not in their row")
    return entries


def _write(db: sqlite3.Connection, writes: Sequence[LogWrite], tail: _Tail) -> _Tail:
    """All writes or none, durably; returns the new tail."""
    entries = _joined(writes, tail.last_index)
    if entries is not None:
        state = next((write.hard_state for write in reversed(writes) if write.hard_state), tail.hard_state)
        if not entries and state == tail.hard_state:
            return tail
        return _put_row(db, tail, entries, state)
    with _transaction(db):
        for write in writes:
            if write.snapshot is not None:
                db.execute("DELETE FROM writes")
                _put_snapshot(db, write.snapshot)
                tail = tail._replace(last_index=write.snapshot.index)
            if write.entries and write.entries[0].index <= tail.last_index:
                _cut(db, write.entries[0].index)
            tail = _put_row(db, tail, write.entries, write.hard_state or tail.hard_state)
    return tail


def _joined(writes: Sequence[LogWrite], last_index: int) -> Sequence[Entry] | None:
    """The entries of all ``writes``, None unless they only continue the log."""
    if len(writes) > JOINED_WRITES:
        return None
    entries: list[Entry] = []
    for write in writes:
        if write.snapshot is not None:
            return None
        if write.entries:
            if write.entries[0].index != last_index + 1:
                return None
            entries += write.entries
            last_index = write.entries[-1].index
    return entries


def _cut(db: sqlite3.Connection, first: int) -> None:
    """Forget the entries from ``first`` on. The caller writes the next row, which has the hard state."""
    db.execute("DELETE FROM writes WHERE first >= ?", (first,))
    db.execute("UPDATE writes SET last = ? WHERE last >= ?", (first - 1, first))


def _put_row(db: sqlite3.Connection, tail: _Tail, entries: Sequence[Entry], state: HardState) -> _Tail:
    """The row after ``tail``, or in the place of one without entries; outside a transaction, it is durable."""
    seq = tail.seq if tail.is_empty else tail.seq + 1
    first, last = (entries[0].index, entries[-1].index) if entries else (tail.last_index + 1, tail.last_index)
    data = encode_entries(entries) if entries else b""
    row = (seq, first, last, data, state.term, _blob(state.vote), state.commit)
    db.execute(_REPLACE if tail.is_empty else _INSERT, row)
    return _Tail(seq, last, state, is_empty=not entries)


def _compact(db: sqlite3.Connection, snapshot: Snapshot) -> None:
    with _transaction(db):
        (begins_after,) = db.execute("SELECT idx FROM snapshot").fetchone()
        if snapshot.index > begins_after:  # else a received snapshot has overtaken this
            _put_snapshot(db, snapshot)
            # The newest row has the hard state.
            db.execute(
                "DELETE FROM writes WHERE last <= ? AND seq < (SELECT max(seq) FROM writes)", (snapshot.index,)
            )


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
