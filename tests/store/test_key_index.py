"""The index counts and finds at older revisions what a walk over all versions finds."""

from __future__ import annotations

import random

import pytest

from store.mvcc import index as indexes
from store.mvcc.index import KeyIndex
from store.mvcc.position import position
from store.mvcc.record import Version, tombstone

RANGES = [(b"", b"\x00"), (b"k2", b"k5"), (b"k3", b"\x00"), (b"k5", b"k2"), (b"k07", b"")]


def _history(rng: random.Random, index: KeyIndex, revisions: int) -> list[set[bytes]]:
    """Random births and deaths; the set of keys at each revision."""
    at: list[set[bytes]] = [set(), set()]
    for main in range(2, revisions):
        key = b"k%02d" % rng.randrange(60)
        keys = set(at[-1])
        if key in keys and rng.random() < 0.6:
            index.delete(key, tombstone(key, position(main)).pos)
            keys.discard(key)
        else:
            index.put(Version(key, b"", position(main), main, 1, 0))
            keys.add(key)
        at.append(keys)
    return at


@pytest.mark.parametrize("limit", [indexes.LIFECYCLE_LIMIT, 30])
def test_counting_at_an_older_revision(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "LIFECYCLE_LIMIT", limit)
    index = KeyIndex()
    at = _history(random.Random(5), index, 400)
    for revision in range(1, len(at)):
        for key, end in RANGES:
            inside = {k for k in at[revision] if (k >= key and (end == b"\x00" or k < end) if end else k == key)}
            assert index.count_at(key, end, revision) == len(inside)
            assert len(index.range_at(key, end, revision, 0)) == len(inside)


def test_compaction_of_every_key_keeps_what_is_visible_above() -> None:
    index = KeyIndex()
    at = _history(random.Random(6), index, 300)
    for compacted in (100, 200, 299):
        dropped = [pos for key in list(index.history) for pos in index.compact_key(key, compacted)]
        assert len(dropped) == len(set(dropped))
        for revision in range(compacted, len(at)):
            assert index.count_at(b"", b"\x00", revision) == len(at[revision])
    assert len(index.dead) <= 1
