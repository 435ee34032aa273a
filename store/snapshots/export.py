"""A running member's state database as a bbolt file: ``python -m store.snapshots.export STATE.DB > FILE``.

A process of its own, so that converting millions of versions takes nothing from the member's event loop. It
reads in one transaction: the last state that the member has flushed, whatever is written meanwhile.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from store.bbolt.writer import BoltWriter
from store.mvcc.record import MAX_SUB, SUB_BITS
from store.snapshots.layout import BUCKETS, CLUSTER, CLUSTER_DEFAULTS, KEY

_REVISION: Final = struct.Struct(">qcq")
_TOMBSTONE: Final = struct.Struct(">qcqc")


def export(state_db: Path, out: BinaryIO) -> int:
    """Write the database at ``state_db`` to ``out`` (empty, seekable); its size in bytes. Blocking."""
    with contextlib.closing(sqlite3.connect(f"file:{state_db}?mode=ro", uri=True, isolation_level=None)) as db:
        db.execute("BEGIN")
        writer = BoltWriter(out)
        for name in BUCKETS:
            writer.bucket(name.encode(), _versions(db) if name == KEY else _entries(db, name))
        return writer.finish()


def _versions(db: sqlite3.Connection) -> Iterator[tuple[bytes, bytes]]:
    revision, tombstone = _REVISION.pack, _TOMBSTONE.pack
    for pos, dead, value in db.execute("SELECT rev, tombstone, value FROM kv ORDER BY rev"):
        if dead:
            yield tombstone(pos >> SUB_BITS, b"_", pos & MAX_SUB, b"t"), value
        else:
            yield revision(pos >> SUB_BITS, b"_", pos & MAX_SUB), value


def _entries(db: sqlite3.Connection, name: str) -> Iterator[tuple[bytes, bytes]]:
    entries = dict(CLUSTER_DEFAULTS) if name == CLUSTER else {}
    entries.update(db.execute("SELECT key, value FROM bucket WHERE name = ?", (name,)))
    yield from sorted(entries.items())


if __name__ == "__main__":
    export(Path(sys.argv[1]), sys.stdout.buffer)
