"""A running member's state database as a bbolt file: ``python -m store.snapshots.export STATE.DB > FILE``.

A process of its own, so that converting millions of versions takes nothing from the member's event loop. It
reads in one transaction: the last state that the member has flushed, whatever is written meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from store.bbolt.writer import Batch, BoltWriter
from store.snapshots.layout import BUCKETS, CLUSTER, CLUSTER_DEFAULTS, KEY, TOMBSTONE_MARK, revision_keys

BATCH_BYTES: Final = 1 << 20
BATCH_ROWS_FIRST: Final = 16
BATCH_ROWS_MAX: Final = 2000


def export(state_db: Path, out: BinaryIO) -> int:
    """Write the database at ``state_db`` to ``out`` (empty, seekable); its size in bytes. Blocking."""
    with contextlib.closing(sqlite3.connect(f"file:{state_db}?mode=ro", uri=True, isolation_level=None)) as db:
        db.execute("BEGIN")
        writer = BoltWriter(out)
        for name in BUCKETS:
            writer.bucket(name.encode(), _versions(db) if name == KEY else _entries(db, name))
        return writer.finish()


def _versions(db: sqlite3.Connection) -> Iterator[Batch]:
    rows = db.execute("SELECT rev, tombstone, value FROM kv ORDER BY rev")
    count = BATCH_ROWS_FIRST
    while batch := rows.fetchmany(count):
        places, tombstones, values = zip(*batch, strict=True)
        keys = revision_keys(places)
        if any(tombstones):
            keys = [key + TOMBSTONE_MARK if dead else key for key, dead in zip(keys, tombstones, strict=True)]
        yield keys, values
        average = 1 + sum(map(len, values)) // len(values)
        count = min(BATCH_ROWS_MAX, max(1, BATCH_BYTES // average))


def _entries(db: sqlite3.Connection, name: str) -> Iterator[Batch]:
    entries = dict(CLUSTER_DEFAULTS) if name == CLUSTER else {}
    entries.update(db.execute("SELECT key, value FROM bucket WHERE name = ?", (name,)))
    keys = sorted(entries)
    yield keys, [entries[key] for key in keys]


if __name__ == "__main__":
    gc.disable()  # nothing here refers to itself, and looking for it in all these rows takes a tenth of the time
    export(Path(sys.argv[1]), sys.stdout.buffer)
