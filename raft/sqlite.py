"""aiosqlite with one addition: a whole batch of statements in a single hop to the database thread.

aiosqlite sends every statement to its thread and back, which costs about 60 us each. A log batch is a begin,
several executemany and a commit; done in one hop it costs one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

import aiosqlite

from raft.prompt import PromptFuture

P = ParamSpec("P")
T = TypeVar("T")

CHECKPOINT_PAGES: Final = 4000

_OF_THE_DISK = ("disk is full", "disk i/o error", "unable to open database file", "readonly database", "locked")


def is_disk_trouble(error: BaseException) -> bool:
    """Whether SQLite says that the disk does not let it work, and not that the file is wrong."""
    return isinstance(error, sqlite3.OperationalError) and any(text in str(error).lower() for text in _OF_THE_DISK)


class Database(aiosqlite.Connection):
    """An aiosqlite connection that can run a function over the raw connection, in its thread. See ``start``."""

    loop: asyncio.AbstractEventLoop

    def submit(self, fn: Callable[..., T], *args: object) -> PromptFuture[T]:
        """Have ``fn(connection, *args)`` run in the database thread; the future gets what it returns or raises.

        A cancelled future does not stop the function: it runs to its end, so never half a batch is written.
        Raises ValueError when the connection is closed.
        """
        if not self._running:
            raise ValueError("the connection is closed")
        future: PromptFuture[T] = PromptFuture(loop=self.loop)
        self._tx.put_nowait((future, partial(fn, self._conn, *args)))
        return future

    async def run(self, fn: Callable[..., T], *args: object) -> T:
        """As ``submit``, and wait for it."""
        return await self.submit(fn, *args)


async def connect(
    path: Path,
    *,
    synchronous: Literal["FULL", "NORMAL"],
    checkpoint_pages: int = CHECKPOINT_PAGES,
    cache_kib: int = 8192,
) -> Database:
    """Open (creating if absent) a database in WAL mode, in autocommit: transactions are explicit.

    FULL makes each commit durable against power loss; NORMAL keeps the file consistent but may lose the last
    commits. Raises sqlite3.DatabaseError for a file that is no database.
    """

    def connector() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint={checkpoint_pages}")
            connection.execute(f"PRAGMA cache_size=-{cache_kib}")
        except BaseException:
            connection.close()
            raise
        return connection

    return await start(connector)


def sync_directory(directory: Path) -> None:
    """A new or renamed file is durable only once its directory entry is (M37)."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def start(connector: Callable[[], sqlite3.Connection]) -> Database:
    """A database whose connection ``connector`` opens, in the thread that will use it. Raises what it raises."""
    database = Database(connector, iter_chunk_size=64)
    database.loop = asyncio.get_running_loop()
    try:
        await database
    except BaseException:
        # aiosqlite has told its thread to end; until it has, the loop must not be closed under it.
        await asyncio.to_thread(database._thread.join)
        raise
    return database
