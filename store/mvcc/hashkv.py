"""HashKV: the checksum by which members of a cluster prove that they hold the same history (contract §9)."""

from __future__ import annotations

import sqlite3
import struct
from typing import Final

import google_crc32c

from store.mvcc.position import MAX_SUB, SUB_BITS, last_position
from store.wire import key_of

_REVISION: Final = struct.Struct(">qcq")


def revision_key(pos: int, *, is_tombstone: bool) -> bytes:
    """A version's key in etcd's own file: 17 bytes, 18 for a tombstone (contract §14)."""
    key = _REVISION.pack(pos >> SUB_BITS, b"_", pos & MAX_SUB)
    return key + b"t" if is_tombstone else key


def hash_kv(db: sqlite3.Connection, revision: int, compact_revision: int) -> int:
    """CRC32-C of the history up to ``revision``, as etcd computes it. Blocking.

    At or below the compacted revision only what is still visible at ``revision`` counts, so that the result
    does not depend on how far the deletion of compacted rows has come.
    """
    bound, floor = last_position(revision), last_position(compact_revision)
    visible = _visible(db, bound) if compact_revision > 0 else set()
    crc: int = google_crc32c.extend(0, b"key")
    rows = db.execute("SELECT rev, tombstone, value FROM kv WHERE rev <= ? ORDER BY rev", (bound,))
    for pos, dead, value in rows:
        if pos > floor or pos in visible:
            crc = google_crc32c.extend(crc, revision_key(pos, is_tombstone=bool(dead)))
            crc = google_crc32c.extend(crc, value)
    return crc


def _visible(db: sqlite3.Connection, bound: int) -> set[int]:
    """Positions of the newest versions at the bound that are no tombstones."""
    newest: dict[bytes, int] = {}
    for pos, dead, value in db.execute(
        "SELECT rev, tombstone, value FROM kv WHERE rev <= ? ORDER BY rev", (bound,)
    ):
        key = key_of(value)
        if dead:
            newest.pop(key, None)
        elif key:
            newest[key] = pos
    return set(newest.values())


def hash_all(db: sqlite3.Connection) -> int:
    """CRC32-C over everything but what differs between members, for the Hash RPC. Blocking."""
    crc: int = google_crc32c.extend(0, b"key")
    for pos, dead, value in db.execute("SELECT rev, tombstone, value FROM kv ORDER BY rev"):
        crc = google_crc32c.extend(crc, revision_key(pos, is_tombstone=bool(dead)) + value)
    for name, key, value in db.execute(
        "SELECT name, key, value FROM bucket WHERE name != 'meta' ORDER BY name, key"
    ):
        crc = google_crc32c.extend(crc, name.encode() + key + value)
    return crc
