"""The durable log in SQLite, with its newest rows in a file beside it (raft.logrows).

One sync for everything that is waiting to be written.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from raft import logrows, sqlite
from raft.core.types import Snapshot
from raft.errors import CodecError, LogError, SyncFailed
from raft.histogram import DISK_SECONDS, Histogram
from raft.log import Identity, LoadedLog, LogWrite
from raft.logrows import Rows

T = TypeVar("T")

log = logging.getLogger(__name__)

SLOW_SYNC_S: Final = 1.0
"""A sync that takes longer is worth a warning: heartbeats are next (contract §27)."""

_REPLACE_MEMBER: Final = (
    "if this member is lost, remove it from the cluster, delete its data directory and add it again; "
    "its peers hold the data"
)

_MEND_DISK: Final = "nothing is wrong with it: free space or mend the disk, then start this member again"


_DAMAGE: Final = (sqlite3.DatabaseError, ValueError, TypeError, KeyError, CodecError)
"""What reading a file raises that is not as it was written."""


class SqliteLog:
    """A DurableLog in an SQLite file and one beside it. Make it with ``create``, then ``open_existing``."""

    def __init__(self, path: Path, database: sqlite.Database, rows: Rows, identity: Identity) -> None:
        self.identity = identity
        """Whose log it is."""
        self._path = path
        self._database = database
        self._rows = rows  # of the database's thread
        self._closed = False
        self._failed: SyncFailed | None = None
        self._entries_written = 0
        self._sync_s_max = 0.0
        self.last_sync_s = 0.0
        self.sync_seconds = Histogram(DISK_SECONDS)
        """How long writes took, from the call until they were durable."""

    @classmethod
    async def create(cls, path: Path, identity: Identity, snapshot: Snapshot) -> None:
        """Make a log that begins just after ``snapshot`` (index 0 and no voters for a member that will join).

        Raises LogError where there is one already, and for a disk that takes no file.
        """
        if path.exists():
            raise LogError(path, "a log is already there", "start the member without bootstrapping it again")
        try:
            database = await sqlite.connect(path, synchronous="FULL")
            try:
                await database.run(logrows.create, identity, snapshot)
            except BaseException:
                await database.close()
                raise
            await database.close()
            sqlite.sync_directory(path.parent)
        except (sqlite3.Error, OSError) as error:
            if _is_of_the_disk(error):
                raise LogError(path, f"the raft log cannot be made now ({error})", _MEND_DISK) from error
            raise

    @classmethod
    async def open_existing(cls, path: Path, identity: Identity | None = None) -> SqliteLog:
        """Open the log of a restarting member, upgrading one of an older version.

        Raises LogError for a damaged file, a newer version or another member's log.
        """
        if not path.exists():
            raise LogError(path, "the raft log is missing", _REPLACE_MEMBER)
        database: sqlite.Database | None = None
        rows = Rows(path)
        try:
            database = await sqlite.connect(path, synchronous="FULL")
            found, version = await database.run(logrows.check)
            if identity is not None and found != identity:
                raise _of_another(path, found, identity)
            await database.run(rows.begin, version)
        except BaseException as error:
            if database is not None:
                await database.close()
            rows.close()
            if _is_of_the_disk(error):
                raise LogError(path, f"the raft log cannot be opened now ({error})", _MEND_DISK) from error
            if isinstance(error, _DAMAGE):
                raise LogError(path, f"not a usable raft log ({error})", _REPLACE_MEMBER) from error
            raise
        return cls(path, database, rows, found)

    async def load(self) -> LoadedLog:
        try:
            return await self._database.run(self._first_failure, self._rows.load)
        except SyncFailed as failure:
            error = failure.__cause__
            if _is_of_the_disk(error):
                raise LogError(self._path, f"the raft log cannot be read now ({error})", _MEND_DISK) from error
            if isinstance(error, _DAMAGE):
                raise LogError(self._path, f"the raft log is damaged ({error})", _REPLACE_MEMBER) from error
            raise (error or failure) from None

    def write(self, writes: Sequence[LogWrite]) -> asyncio.Future[None]:
        return self._database.submit(self._write, writes, time.perf_counter())

    def _write(self, db: sqlite3.Connection, writes: Sequence[LogWrite], asked: float) -> None:
        """In the database's thread, which nobody stops: the rows stay what is on the disk. Raises SyncFailed."""
        self._first_failure(db, self._rows.write, writes)
        took = self.last_sync_s = time.perf_counter() - asked
        # Counted only here: who reads the figures meanwhile may find one of them a write ahead of the others.
        self.sync_seconds.observe(took)
        if took > SLOW_SYNC_S:
            log.warning("%s: a sync took %.1f s: the disk is slow", self._path, took)
        self._entries_written += sum(len(write.entries) for write in writes)
        self._sync_s_max = max(self._sync_s_max, took)

    def _first_failure(self, db: sqlite3.Connection, fn: Callable[..., T], *args: object) -> T:
        """Run it, unless something failed before. Noted in this thread: what is queued behind must not be done."""
        if self._failed is not None:
            raise self._failed
        try:
            return fn(db, *args)
        except Exception as error:
            self._failed = SyncFailed(self._path, error)
            raise self._failed from error

    async def compact(self, snapshot: Snapshot) -> None:
        await self._database.run(self._first_failure, self._rows.compact, snapshot)

    async def close(self) -> None:
        """Everything is in the database then, if the disk allows it, and otherwise where it is durable already."""
        if not self._closed:
            self._closed = True
            try:
                await self._database.run(self._end)
            except SyncFailed as failure:
                log.warning("%s: the newest writes stay in the file beside it (%s)", self._path, failure.__cause__)
            except BaseException:
                await self._database.close()
                raise
        await self._database.close()

    def _end(self, db: sqlite3.Connection) -> None:
        try:
            self._first_failure(db, self._rows.end)
        finally:
            self._rows.close()

    def statistics(self) -> Mapping[str, float]:
        return {
            "syncs": sum(self.sync_seconds.counts),
            "entries": self._entries_written,
            "sync_seconds_total": self.sync_seconds.total,
            "sync_seconds_max": self._sync_s_max,
        }


def _is_of_the_disk(error: BaseException | None) -> bool:
    """Whether the disk does not let us work, and nothing is wrong with the log."""
    return isinstance(error, OSError) or (error is not None and sqlite.is_disk_trouble(error))


def _of_another(path: Path, found: Identity, identity: Identity) -> LogError:
    return LogError(
        path,
        f"this log belongs to member {found.member_id:x} of cluster {found.cluster_id:x}, "
        f"not to member {identity.member_id:x} of cluster {identity.cluster_id:x}",
        "use another --data-dir, or the --name and --initial-cluster this directory was made with",
    )
