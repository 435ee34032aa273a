"""Everything that is replicated, in memory: key index, leases, alarms, members, and how far the log is applied.

It is what the state database holds plus what has been applied since the last flush, and nothing else: two
members that applied the same entries have equal states.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from store import backend
from store.etcdpb import lease_pb2, rpc_pb2
from store.leases import Lease, LeaseBook
from store.mvcc.index import KeyIndex
from store.mvcc.position import SUB_BITS, position
from store.mvcc.record import Version, stored_version
from store.wire import key_of

META: Final = "meta"
LEASE: Final = "lease"
ALARM: Final = "alarm"
MEMBERS: Final = "members"

CONSISTENT_INDEX: Final = (META, b"consistent_index")
TERM: Final = (META, b"term")
SCHEDULED_COMPACTION: Final = (META, b"scheduledCompactRev")
FINISHED_COMPACTION: Final = (META, b"finishedCompactRev")

FIRST_REVISION: Final = 1
NEVER_COMPACTED: Final = -1


@dataclass(slots=True)
class State:
    """The whole replicated state of one member."""

    index: KeyIndex = field(default_factory=KeyIndex)
    leases: LeaseBook = field(default_factory=LeaseBook)
    alarms: set[tuple[int, int]] = field(default_factory=set)
    """(member id, alarm type)"""
    buckets: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    """What other parts of the member keep in the replicated state, by bucket name (contract §14)."""
    revision: int = FIRST_REVISION
    compact_revision: int = NEVER_COMPACTED
    finished_compaction: int = NEVER_COMPACTED
    applied_index: int = 0
    applied_term: int = 0

    def bucket(self, name: str) -> dict[bytes, bytes]:
        return self.buckets.setdefault(name, {})


def revision_bytes(main: int) -> bytes:
    """A compaction revision as the meta bucket stores it: 17 bytes, sub 0."""
    return main.to_bytes(8, "big", signed=True) + b"_" + bytes(8)


def load(path: Path) -> State:
    """Read a state database. Blocking: minutes of data take seconds, so call it in a thread.

    Raises sqlite3.Error or ValueError when the file is not a sound state database.
    """
    db = backend.connect(path)
    try:
        return read(db)
    finally:
        db.close()


def read(db: sqlite3.Connection) -> State:
    """The state that an open database holds. Raises as ``load`` does."""
    state = State()
    _load_buckets(db, state)
    _load_keys(db, state)
    return state


def read_applied(path: Path) -> tuple[int, int]:
    """Applied index and term of a state database that nobody has open. Blocking."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return applied_of(db)
    finally:
        db.close()


def applied_of(db: sqlite3.Connection) -> tuple[int, int]:
    """Applied index and term of an open state database."""
    meta = dict(db.execute("SELECT key, value FROM bucket WHERE name = ?", (META,)))
    return int.from_bytes(meta.get(CONSISTENT_INDEX[1], b""), "big"), int.from_bytes(meta.get(TERM[1], b""), "big")


def _load_buckets(db: sqlite3.Connection, state: State) -> None:
    for name, key, value in db.execute("SELECT name, key, value FROM bucket"):
        if name == LEASE:
            lease = lease_pb2.Lease.FromString(value)
            state.leases.add(Lease(lease.ID, lease.TTL, lease.RemainingTTL))
        elif name == ALARM:
            alarm = rpc_pb2.AlarmMember.FromString(key)
            state.alarms.add((alarm.memberID, alarm.alarm))
        else:
            state.bucket(name)[key] = value
    meta = state.bucket(META)
    state.applied_index = int.from_bytes(meta.get(CONSISTENT_INDEX[1], b""), "big")
    state.applied_term = int.from_bytes(meta.get(TERM[1], b""), "big")
    state.finished_compaction = _revision(meta.get(FINISHED_COMPACTION[1]))
    state.compact_revision = max(_revision(meta.get(SCHEDULED_COMPACTION[1])), state.finished_compaction)


def _revision(stored: bytes | None) -> int:
    return NEVER_COMPACTED if stored is None else int.from_bytes(stored[:8], "big", signed=True)


def _load_keys(db: sqlite3.Connection, state: State) -> None:
    newest: dict[bytes, tuple[int, bytes]] = {}
    past: dict[bytes, array[int]] = {}
    last = 0
    for pos, dead, value in db.execute("SELECT rev, tombstone, value FROM kv ORDER BY rev"):
        last = pos
        key = key_of(value)
        if not key:
            continue  # the filler of a restore that raised the revision (contract §14)
        before = newest.pop(key, None)
        if before is not None:
            past.setdefault(key, array("q")).append(before[0] * 2)
        if dead:
            past.setdefault(key, array("q")).append(pos * 2 + 1)
        else:
            newest[key] = (pos, value)
    for version in _versions(newest):
        state.index.live[version.key] = version
        if version.lease:
            state.leases.move(version.key, 0, version.lease)
    state.index.history = past
    state.revision = max(last >> SUB_BITS, state.compact_revision, FIRST_REVISION)
    state.index.loaded(position(state.revision + 1))


def _versions(newest: dict[bytes, tuple[int, bytes]]) -> Iterator[Version]:
    while newest:
        _, (pos, body) = newest.popitem()
        yield stored_version(pos, body)
