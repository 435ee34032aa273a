"""The rows of a log, in SQLite and, the newest, in a file beside it. All of it runs in the database's thread.

Layout (version 3): ``meta`` whose log this is, ``snapshot`` one row, and ``writes``: a row for the entries
``first`` to ``last`` of one write, in order and without overlap, each with the hard state that is in force after
it. The newest row's is the hard state of the log, so there always is a row; one without entries (``last`` is one
below ``first``) is replaced by the next write.

A write that only appends is one row, and goes to the end of ``<log>-tail`` (raft.tailfile). When that is full,
and before anything but an append, its rows go to the database in one transaction, with what did not fit. ``meta``
holds the salt of the rows in the file, or nothing where none is in use: after a clean end, and on a disk without
room for it.

Version 2 had no such file. Version 1 kept the hard state in a table of its own, and its rows could overlap, the
later one being right. Such logs are upgraded when they are opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgpack

from raft import tailfile
from raft.codec import decode_entries, encode_entries
from raft.core.types import ConfState, Entry, HardState, Snapshot
from raft.log import Identity, LoadedLog, LogWrite
from raft.tailfile import TailFile

FORMAT_VERSION: Final = 3
JOINED_WRITES: Final = 64
"""So many writes at most become one row: each is bounded by the size of a message, and so the row is too."""

_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), idx INTEGER, term INTEGER, conf_state BLOB);
CREATE TABLE writes (
    seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, entries BLOB NOT NULL,
    term INTEGER, vote BLOB, commit_index INTEGER
);
"""
"""The hard state comes last, and NULL in all but the newest row is allowed, so that version 1 needs no copying."""

_PUT: Final = (
    "REPLACE INTO writes (seq, first, last, entries, term, vote, commit_index) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SET: Final = "REPLACE INTO meta VALUES (?, ?)"

_Row: TypeAlias = tuple[int, int, int, bytes, int, bytes, int]


class _Newest(NamedTuple):
    """The newest row, which the next write continues."""

    seq: int
    last_index: int
    hard_state: HardState
    is_empty: bool

    def followed_by(self, entries: Sequence[Entry], state: HardState) -> _Row:
        """The next row; it takes the place of one without entries."""
        seq = self.seq if self.is_empty else self.seq + 1
        first, last = (entries[0].index, entries[-1].index) if entries else (self.last_index + 1, self.last_index)
        data = encode_entries(entries) if entries else b""
        return seq, first, last, data, state.term, _blob(state.vote), state.commit


def _after(row: _Row) -> _Newest:
    """``row`` as the newest one."""
    seq, first, last, _, term, vote, commit = row
    return _Newest(seq, last, HardState(term, _number(vote), commit), last < first)


class Rows:
    """The rows of the log at ``path``. Raises sqlite3.Error and OSError; after either, nothing may be written any
    more: whether a transaction whose end failed is in force, only the next opening finds out."""

    _newest: _Newest

    def __init__(self, path: Path) -> None:
        self._beside = path.with_name(path.name + "-tail")
        self._file: TailFile | None = None
        self._salt = b""
        """Of the rows in the file, as the database has it."""
        self._waiting: list[_Row] = []
        """The rows in the file."""

    def begin(self, db: sqlite3.Connection, version: int) -> None:
        """Go on with a log of ``version``, once it is of the present one and whole in the database."""
        if version < FORMAT_VERSION:
            _upgrade(db, version)
        self._newest = _newest(db)
        salt = db.execute("SELECT value FROM meta WHERE key = 'tail'").fetchone()
        if salt is None:
            raise ValueError("the salt of its newest writes is missing")
        self._salt = salt[0]
        if self._salt:
            self._recover(tailfile.read(self._beside, self._salt))
            self.take_over(db)
        # Only now may the file be replaced, or be gone where there is no room for it.
        self._file = TailFile.create(self._beside)
        self.take_over(db)

    def _recover(self, records: Sequence[bytes]) -> None:
        for record in records:
            row: _Row = msgpack.unpackb(record, use_list=False)
            following = self._newest.followed_by((), HardState())
            if row[:2] != following[:2]:
                raise ValueError(f"its newest writes go on at {row[:2]} and not at {following[:2]}")
            self._waiting.append(row)
            self._newest = _after(row)

    def write(self, db: sqlite3.Connection, writes: Sequence[LogWrite]) -> None:
        """All writes or none, durably."""
        newest = self._newest
        entries = _joined(writes, newest.last_index)
        if entries is not None:
            state = next((write.hard_state for write in reversed(writes) if write.hard_state), newest.hard_state)
            if entries or state != newest.hard_state:
                self._append(db, entries, state)
            return
        with self._transaction(db):
            for write in writes:
                if write.snapshot is not None:
                    db.execute("DELETE FROM writes")
                    _put_snapshot(db, write.snapshot)
                    newest = newest._replace(last_index=write.snapshot.index)
                if write.entries and write.entries[0].index <= newest.last_index:
                    _cut(db, write.entries[0].index)
                newest = _put(db, newest, write.entries, write.hard_state or newest.hard_state)
        self._newest = newest

    def _append(self, db: sqlite3.Connection, entries: Sequence[Entry], state: HardState) -> None:
        row = self._newest.followed_by(entries, state)
        if self._file is not None and self._file.append(msgpack.packb(row)):
            self._waiting.append(row)
        else:
            with self._transaction(db):
                db.execute(_PUT, row)
        self._newest = _after(row)

    def take_over(self, db: sqlite3.Connection) -> None:
        """Have everything in the database."""
        with self._transaction(db):
            pass

    def compact(self, db: sqlite3.Connection, snapshot: Snapshot) -> None:
        with self._transaction(db):
            (begins_after,) = db.execute("SELECT idx FROM snapshot").fetchone()
            if snapshot.index > begins_after:  # else a received snapshot has overtaken this
                _put_snapshot(db, snapshot)
                # The newest row has the hard state.
                db.execute(
                    "DELETE FROM writes WHERE last <= ? AND seq < (SELECT max(seq) FROM writes)", (snapshot.index,)
                )

    def load(self, db: sqlite3.Connection) -> LoadedLog:
        if self._waiting:
            self.take_over(db)
        return _load(db)

    def end(self, db: sqlite3.Connection) -> None:
        """Have everything in the database and no file beside it, where that can be."""
        file, self._file = self._file, None
        if file is not None:
            try:
                self.take_over(db)  # nothing in the file is in force after it, whether or not it goes away
                with suppress(OSError):
                    file.path.unlink()
            finally:
                file.close()

    def close(self) -> None:
        """What is in the file stays there, to be found when the log is opened again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def _transaction(self, db: sqlite3.Connection) -> Iterator[None]:
        """One that begins with the rows that wait. At its end they are in the database, and the file is empty."""
        salt = self._salt
        if self._file is None:
            salt = b""
        elif self._waiting or not salt:
            salt = self._file.announce()
        with _transaction(db):
            db.executemany(_PUT, self._waiting)
            if salt != self._salt:
                db.execute(_SET, ("tail", salt))
            yield
        if salt != self._salt:
            self._salt = salt
            self._waiting.clear()
            if self._file is not None:
                self._file.begin()


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


def create(db: sqlite3.Connection, identity: Identity, snapshot: Snapshot) -> None:
    """A new log that begins just after ``snapshot``."""
    with _transaction(db):
        for statement in _SCHEMA.strip().split(";\n"):
            db.execute(statement)
        db.executemany(
            _SET,
            [
                ("format", _blob(FORMAT_VERSION)),
                ("cluster_id", _blob(identity.cluster_id)),
                ("member_id", _blob(identity.member_id)),
                ("tail", b""),
            ],
        )
        _put_snapshot(db, snapshot)
        state = HardState(term=snapshot.term, commit=snapshot.index)
        _put(db, _Newest(0, snapshot.index, HardState(), is_empty=False), (), state)


def check(db: sqlite3.Connection) -> tuple[Identity, int]:
    """Whose log it is, and of which version, after SQLite's own quick check of the file. Changes nothing."""
    problems = [row[0] for row in db.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise ValueError(str(problems[0]))
    meta = dict(db.execute("SELECT key, value FROM meta"))
    version = _number(meta["format"]) if "format" in meta else 0
    if not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"log format {version}, this release reads {FORMAT_VERSION}")
    return Identity(_number(meta["cluster_id"]), _number(meta["member_id"])), version


def _newest(db: sqlite3.Connection) -> _Newest:
    """Of the rows in the database."""
    row = db.execute(
        "SELECT seq, first, last, term, vote, commit_index FROM writes ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    if row is None or None in row:
        raise ValueError("the hard state is missing")
    seq, first, last, term, vote, commit = row
    (begins_after,) = db.execute("SELECT idx FROM snapshot").fetchone()
    return _Newest(seq, max(last, begins_after), HardState(term, _number(vote), commit), last < first)


def _upgrade(db: sqlite3.Connection, version: int) -> None:
    """In place, from ``version``."""
    with _transaction(db):
        if version == 1:
            _upgrade_rows(db)
        db.execute(_SET, ("tail", b""))
        db.execute(_SET, ("format", _blob(FORMAT_VERSION)))


def _upgrade_rows(db: sqlite3.Connection) -> None:
    """From version 1: a row ends where a later one begins, and the newest gets the hard state."""
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
    newest = _Newest(seq, max(last, begins_after), HardState(), is_empty=False)
    _put(db, newest, (), HardState(term, _number(vote), commit))
    db.execute("DROP TABLE hard_state")


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
    hard_state = _newest(db).hard_state
    if hard_state.commit >= following:
        raise ValueError(f"entries up to {hard_state.commit} were committed but the log ends at {following - 1}")
    return LoadedLog(hard_state, snapshot, entries)


def _stored(first: int, last: int, data: bytes) -> Sequence[Entry]:
    """A row's entries; it may hold more, above ``last``, which were replaced."""
    entries = decode_entries(data)[: last + 1 - first] if data else ()
    if len(entries) != last + 1 - first or (entries and entries[0].index != first):
        raise ValueError(f"the entries {first} to {last} are not in their row")
    return entries


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


def _put(db: sqlite3.Connection, newest: _Newest, entries: Sequence[Entry], state: HardState) -> _Newest:
    """The row after ``newest``, in a transaction of the caller's; returns it."""
    row = newest.followed_by(entries, state)
    db.execute(_PUT, row)
    return _after(row)


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
