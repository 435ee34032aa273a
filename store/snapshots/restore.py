"""A snapshot file, from Kvorum or from etcd, as the data directory of a member of a new cluster (contract §14).

Revisions, keys, leases, alarms, users and roles stay; the members, and with them all ids, are new. Every
member of the new cluster is restored from the same file and begins at the same position.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from raft.core.types import ConfState, Snapshot
from raft.log import Identity
from raft.sqlite import sync_directory
from raft.sqlite_log import SqliteLog
from store import backend
from store.bbolt.format import BoltError
from store.bbolt.reader import BoltFile
from store.cluster import cluster_id, encode_conf_state, encode_member, member_id, member_key
from store.config import MemberConfig
from store.mvcc.position import SUB_BITS, position
from store.replica import MemberInfo
from store.snapshots.check import check_checksum, open_snapshot, verify
from store.snapshots.layout import (
    AUTH_ENABLED,
    BUCKETS,
    KEY,
    MAIN_MAX,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
    STORAGE_VERSION,
    SnapshotError,
    positions,
)

FIRST_INDEX: Final = 1
FIRST_TERM: Final = 1
FIRST_REVISION: Final = 1
UNFINISHED: Final = "restoring"
"""Folder in the data directory while it is being filled; what an interrupted run left is replaced."""

ROWS_PER_STATEMENT: Final = 100
_INSERT_MANY: Final = "INSERT INTO kv VALUES " + ",".join(["(?, ?, ?)"] * ROWS_PER_STATEMENT)

_NEW_META: Final = frozenset((b"consistent_index", b"term", b"confState", STORAGE_VERSION))


@dataclass(frozen=True, slots=True)
class Restored:
    """The member that was made. ``auth_enabled``: the file asks for passwords."""

    identity: Identity
    revision: int
    auth_enabled: bool


async def restore(
    path: Path, config: MemberConfig, *, skip_hash_check: bool = False, bump_revision: int = 0
) -> Restored:
    """Make ``config.data_dir`` from the snapshot at ``path``. Blocks the event loop: a command's work.

    ``bump_revision`` above 0 raises the revision by so much and marks everything before as compacted, so that
    no client of the old timeline can mistake the new one for it. Raises SnapshotError, having written
    nothing, for a file that is not sound and for a directory that is not empty.
    """
    members = _members(config)
    if skip_hash_check:
        verify(path)
    else:
        # Whole and unchanged since it was made; its pages are checked once more when they are read.
        check_checksum(path)
    with _directory(config) as directory:
        own = next(member.id for member in members if member.name == config.name)
        identity = Identity(cluster_id(member.id for member in members), own)
        conf_state = ConfState(voters=tuple(sorted(member.id for member in members)))
        with open_snapshot(path) as bolt:
            revision, auth_enabled = _load(bolt, directory / "state.db", members, conf_state, bump_revision)
        await SqliteLog.create(directory / "raft.db", identity, Snapshot(FIRST_INDEX, FIRST_TERM, conf_state))
    return Restored(identity, revision, auth_enabled)


def _members(config: MemberConfig) -> list[MemberInfo]:
    """The first members of the new cluster, as every one of them computes them (store.bootstrap)."""
    members = [
        MemberInfo(member_id(urls, config.token), name, tuple(sorted(urls)), ())
        for name, urls in config.initial_cluster.items()
    ]
    if len({member.id for member in members}) != len(members):
        raise SnapshotError("--initial-cluster: two members have the same peer URLs")
    return members


@contextlib.contextmanager
def _directory(config: MemberConfig) -> Iterator[Path]:
    """A folder to fill, which becomes the member's at the end, all at once; after an error nothing is left."""
    data_dir, unfinished = config.data_dir, config.data_dir / UNFINISHED
    try:
        found = sorted(entry.name for entry in data_dir.iterdir())
    except FileNotFoundError:
        found = None
    except NotADirectoryError:
        raise SnapshotError(f"{data_dir} is no directory") from None
    if found and found != [UNFINISHED]:
        raise SnapshotError(f"{data_dir} is not empty ({found[0]}): choose a --data-dir that does not exist")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        _sync(unfinished)
        unfinished.replace(config.member_dir)
        _sync(data_dir)
        _sync(data_dir.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if found is None:
            with contextlib.suppress(OSError):
                data_dir.rmdir()
        raise


def _load(
    bolt: BoltFile, state_db: Path, members: list[MemberInfo], conf_state: ConfState, bump_revision: int
) -> tuple[int, bool]:
    """Fill a new state database; its revision, and whether the file asks for passwords."""
    backend.connect(state_db).close()  # makes the tables
    with contextlib.closing(sqlite3.connect(state_db, isolation_level=None)) as db:
        # Nobody relies on the file before it is whole and synced, so nothing need be undone or synced on the way.
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -65536")
        db.execute("BEGIN")
        try:
            _insert_versions(db, bolt)
            for name in BUCKETS:
                if name not in (KEY, MEMBERS, MEMBERS_REMOVED):
                    _put(db, name, bolt.items(name.encode()))
        except BoltError as error:
            raise SnapshotError(f"the snapshot is damaged: {error}") from None
        db.execute("DELETE FROM bucket WHERE name = ? AND key IN (?, ?, ?, ?)", (META, *_NEW_META))
        _put(db, META, _first_position(conf_state))
        _put(db, MEMBERS, ((member_key(member.id), encode_member(member)) for member in members))
        revision = _revision(db)
        if bump_revision:
            revision += bump_revision
            _bump(db, revision)
        db.execute("COMMIT")
        auth = db.execute("SELECT value FROM bucket WHERE name = ? AND key = ?", AUTH_ENABLED).fetchone()
    _sync(state_db)
    return revision, auth is not None and auth[0] == b"\x01"


def _revision(db: sqlite3.Connection) -> int:
    """Where a member that loads the database begins: also a compaction may be all that is left of history."""
    last = db.execute("SELECT max(rev) FROM kv").fetchone()[0] or 0
    compacted = db.execute(
        "SELECT value FROM bucket WHERE name = ? AND key IN (?, ?)",
        (META, b"scheduledCompactRev", b"finishedCompactRev"),
    )
    return max(last >> SUB_BITS, FIRST_REVISION, *(int.from_bytes(value[:8], "big") for (value,) in compacted))


def _insert_versions(db: sqlite3.Connection, bolt: BoltFile) -> None:
    """Copy bucket ``key``, the encoded pairs untouched. Many rows a statement take a third less time than one."""
    step = ROWS_PER_STATEMENT
    for keys, values in bolt.batches(KEY.encode()):
        if not keys:
            continue
        places, tombstones = positions(keys)
        whole = len(keys) - len(keys) % step
        for start in range(0, whole, step):
            part = slice(start, start + step)
            rows = zip(places[part], tombstones[part], values[part], strict=True)
            db.execute(_INSERT_MANY, list(chain.from_iterable(rows)))
        rest = zip(places[whole:], tombstones[whole:], values[whole:], strict=True)
        db.executemany("INSERT INTO kv VALUES (?, ?, ?)", rest)


def _put(db: sqlite3.Connection, bucket: str, items: Iterator[tuple[bytes, bytes]]) -> None:
    db.executemany("INSERT INTO bucket VALUES (?, ?, ?)", ((bucket, key, value) for key, value in items))


def _first_position(conf_state: ConfState) -> Iterator[tuple[bytes, bytes]]:
    yield b"consistent_index", FIRST_INDEX.to_bytes(8, "big")
    yield b"term", FIRST_TERM.to_bytes(8, "big")
    yield b"confState", encode_conf_state(conf_state)


def _bump(db: sqlite3.Connection, revision: int) -> None:
    """An empty version at ``revision``, which no read shows, and everything up to it declared compacted."""
    if revision > MAIN_MAX:
        raise SnapshotError(f"--bump-revision: revision {revision} is too large, {MAIN_MAX} is the last")
    db.execute("INSERT INTO kv VALUES (?, 0, ?)", (position(revision), b""))
    stored = revision.to_bytes(8, "big") + b"_" + bytes(8)
    db.execute("INSERT OR REPLACE INTO bucket VALUES (?, ?, ?)", (META, b"scheduledCompactRev", stored))


def _sync(path: Path) -> None:
    sync_directory(path)


__all__ = ["Restored", "restore"]
