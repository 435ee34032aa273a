"""The state database: one SQLite file in WAL mode, reached through one writing and one reading connection.

Table ``kv`` holds every version by position (store.mvcc.record); table ``bucket`` holds everything else under
the bucket names and in the encodings of etcd's own file (contract §14).

Durability: a commit survives the death of the process; the death of the machine may take back everything since
the last checkpoint, which is why the raft log may be cut only below what a checkpoint has covered.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from raft import sqlite
from raft.errors import FatalError
from raft.histogram import DISK_SECONDS, Histogram

T = TypeVar("T")

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS kv (rev INTEGER PRIMARY KEY, tombstone INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS bucket (
    name TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (name, key)
) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
"""
WRITER_CACHE_BYTES: Final = 16 << 20
READER_CACHE_BYTES: Final = 2 << 20
"""History is read once and in order: what a cache of SQLite's would hold, the operating system's holds already."""
FETCH_CHUNK: Final = 500
"""Rows named in one SELECT ... IN."""

BucketKey = tuple[str, bytes]
Row = tuple[int, int, bytes]
"""position, is tombstone, encoded KeyValue"""


class StateDiskError(FatalError):
    """The disk under the state database does not let it work: the member must end, its data is whole."""

    def __init__(self, path: Path, cause: BaseException) -> None:
        super().__init__(
            f"{path}: the state database cannot be used now ({cause}); nothing is wrong with it: free space or "
            "mend the disk, then start this member again"
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the database file, and of the pages in it that hold something."""

    total: int
    in_use: int


def schema() -> str:
    """The statements that make an empty state database, harmless in one that is there."""
    return _SCHEMA


def connect(path: Path, *, create: bool = True) -> sqlite3.Connection:
    """Open a state database for writing. Raises ValueError when it was written by a newer schema."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA cache_size = -{(WRITER_CACHE_BYTES if create else READER_CACHE_BYTES) // 1024}")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise ValueError(f"{path}: schema {version} is newer than this program's {SCHEMA_VERSION}")
        if create:
            db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


class Backend:
    """The two connections. Every call is one hop to the connection's thread and one transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes = Sizes(0, 0)
        self.commit_seconds = Histogram(DISK_SECONDS)
        """How long transactions took, waiting for the thread included."""
        self._writer: sqlite.Database | None = None
        self._reader: sqlite.Database | None = None
        self._in_place = asyncio.Event()
        self._in_place.set()

    async def open(self) -> None:
        self._writer = await sqlite.start(lambda: connect(self.path))
        try:
            self._reader = await sqlite.start(lambda: connect(self.path, create=False))
            self.sizes = await _run(self.path, self._writer, _sizes)
        except BaseException:
            await self.close()
            raise

    async def replace(self, new: Path) -> None:
        """Move the database at ``new`` into this one's place. Calls that come meanwhile wait.

        After an error the backend stays closed: the member cannot go on.
        """
        self._in_place.clear()
        try:
            await self.close()
            await asyncio.to_thread(_move, new, self.path)
            await self.open()
        finally:
            self._in_place.set()

    async def close(self) -> None:
        """Close both connections; SQLite then folds the WAL into the file."""
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        if reader is not None:
            await reader.close()
        if writer is not None:
            await writer.close()

    async def write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``job`` on the writing connection's thread."""
        await self._in_place.wait()
        return await _run(self.path, self._writer, job)

    async def read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``job`` on the reading connection's thread."""
        await self._in_place.wait()
        return await _run(self.path, self._reader, job)

    async def scan(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a ``job`` that takes long on a connection of its own, so that other readers do not wait for it."""
        await self._in_place.wait()
        scanner = await sqlite.start(lambda: connect(self.path, create=False))
        try:
            return await _run(self.path, scanner, job)
        finally:
            await scanner.close()

    # -- writing ------------------------------------------------------------------------------------------

    async def commit(
        self, rows: Callable[[], Iterable[Row]], buckets: Iterable[tuple[BucketKey, bytes | None]]
    ) -> None:
        """One transaction with these versions and bucket entries (None deletes). ``rows`` runs on the thread.

        Writing the same again changes nothing: a caller that was cancelled does not know what became of it.
        """
        puts = [(name, key, value) for (name, key), value in buckets if value is not None]
        deletes = [(name, key) for (name, key), value in buckets if value is None]

        def job(db: sqlite3.Connection) -> Sizes:
            db.execute("BEGIN IMMEDIATE")
            with db:
                db.executemany("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", rows())
                db.executemany("INSERT OR REPLACE INTO bucket VALUES (?, ?, ?)", puts)
                db.executemany("DELETE FROM bucket WHERE name = ? AND key = ?", deletes)
            return _sizes(db)

        began = time.perf_counter()
        self.sizes = await self.write(job)
        self.commit_seconds.observe(time.perf_counter() - began)

    async def delete_rows(self, positions: Sequence[int], buckets: Sequence[tuple[BucketKey, bytes]] = ()) -> None:
        """Delete these versions, and record ``buckets``, in one transaction."""

        def job(db: sqlite3.Connection) -> Sizes:
            db.execute("BEGIN IMMEDIATE")
            with db:
                db.executemany("DELETE FROM kv WHERE rev = ?", ((p,) for p in positions))
                db.executemany(
                    "INSERT OR REPLACE INTO bucket VALUES (?, ?, ?)", ((*key, value) for key, value in buckets)
                )
            return _sizes(db)

        self.sizes = await self.write(job)

    async def checkpoint(self) -> bool:
        """Fold the WAL into the file and fsync both. False when a reader kept part of it back."""

        def job(db: sqlite3.Connection) -> bool:
            busy, pages, done = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            return bool(busy == 0 and pages == done)

        return await self.write(job)

    async def vacuum(self) -> None:
        """Give free pages back to the file system."""

        def job(db: sqlite3.Connection) -> Sizes:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return _sizes(db)

        self.sizes = await self.write(job)

    # -- reading ------------------------------------------------------------------------------------------

    async def fetch(self, positions: Sequence[int]) -> list[tuple[int, bytes]]:
        """Position and encoded KeyValue of those of ``positions`` that exist."""

        def job(db: sqlite3.Connection) -> list[tuple[int, bytes]]:
            out: list[tuple[int, bytes]] = []
            for start in range(0, len(positions), FETCH_CHUNK):
                part = positions[start : start + FETCH_CHUNK]
                marks = ",".join("?" * len(part))
                out += db.execute(f"SELECT rev, value FROM kv WHERE rev IN ({marks})", part).fetchall()
            return out

        return await self.read(job)

    async def copy_to(self, path: Path) -> None:
        """A consistent, compact copy of the last committed state at ``path``, fsynced."""

        def job(db: sqlite3.Connection) -> None:
            db.execute("VACUUM INTO ?", (str(path),))
            with path.open("rb") as file:
                os.fsync(file.fileno())

        await self.scan(job)


async def _run(path: Path, db: sqlite.Database | None, job: Callable[[sqlite3.Connection], T]) -> T:
    if db is None:
        raise ValueError("the state database is closed")
    try:
        return await db.run(job)
    except sqlite3.OperationalError as error:
        if sqlite.is_disk_trouble(error):
            raise StateDiskError(path, error) from error
        raise


def _move(new: Path, old: Path) -> None:
    for suffix in ("-wal", "-shm"):
        old.with_name(old.name + suffix).unlink(missing_ok=True)
    new.replace(old)
    sqlite.sync_directory(old.parent)


def _sizes(db: sqlite3.Connection) -> Sizes:
    page, pages, free = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return Sizes(page * pages, page * (pages - free))
