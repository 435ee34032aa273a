"""The storage in memory, which is also the model for the durable one."""

from __future__ import annotations

import pytest

from raft.core import (
    NO_LIMIT,
    Compacted,
    ConfState,
    Entry,
    HardState,
    InvariantViolation,
    MemoryStorage,
    Snapshot,
    SnapshotOutOfDate,
    Unavailable,
    entries_size,
)

from .network import entries_of

CONFIG = ConfState((1, 2, 3))


def storage() -> MemoryStorage:
    """Snapshot position 3 of term 3, entries 4 and 5 of terms 4 and 5."""
    made = MemoryStorage()
    made.apply_snapshot(Snapshot(3, 3, CONFIG))
    made.append(entries_of(4, 5, first=4))
    return made


def test_uc205_term() -> None:
    assert [storage().term(index) for index in (3, 4, 5)] == [3, 4, 5]
    with pytest.raises(Compacted):
        storage().term(2)
    with pytest.raises(Unavailable):
        storage().term(6)


def test_uc206_entries() -> None:
    made = storage()
    made.append(entries_of(6, first=6))
    for low in (2, 3):
        with pytest.raises(Compacted):
            made.entries(low, 6, NO_LIMIT)
    with pytest.raises(InvariantViolation):
        made.entries(4, 8, NO_LIMIT)
    with pytest.raises(Unavailable):
        MemoryStorage().entries(1, 1, NO_LIMIT)
    one = entries_size(entries_of(4))
    for limit, count in ((0, 1), (one, 1), (2 * one, 2), (3 * one - 1, 2), (3 * one, 3)):
        assert list(made.entries(4, 7, limit)) == entries_of(4, 5, 6, first=4)[:count]


def test_uc207_uc208_first_and_last_index() -> None:
    made = storage()
    assert (made.first_index(), made.last_index()) == (4, 5)
    made.append(entries_of(5, first=6))
    made.compact(4)
    assert (made.first_index(), made.last_index()) == (5, 6)


def test_uc209_compact() -> None:
    made = storage()
    for index in (2, 3):
        with pytest.raises(Compacted):
            made.compact(index)
    made.compact(5)
    assert made.term(5) == 5
    assert made.last_index() == 5
    with pytest.raises(InvariantViolation):
        made.compact(6)


def test_uc210_create_snapshot() -> None:
    for index in (4, 5):
        made = storage()
        snapshot = made.create_snapshot(index, CONFIG, b"data")
        assert snapshot == made.snapshot() == Snapshot(index, index, CONFIG, b"data")
    with pytest.raises(SnapshotOutOfDate):
        made.create_snapshot(5, None, b"")
    with pytest.raises(InvariantViolation):
        made.create_snapshot(6, None, b"")


@pytest.mark.parametrize(
    ("first", "terms", "result"),
    [
        (1, (1, 2), [4, 5]),  # wholly compacted
        (3, (3, 4, 5), [4, 5]),
        (3, (3, 6, 6), [6, 6]),
        (3, (3, 4, 5, 5), [4, 5, 5]),
        (2, (3, 3, 5), [5]),  # the compacted prefix is skipped, the conflict truncated
        (4, (5,), [5]),
        (6, (5,), [4, 5, 5]),
    ],
)
def test_uc211_append(first: int, terms: tuple[int, ...], result: list[int]) -> None:
    made = storage()
    made.append(entries_of(*terms, first=first))
    got = made.entries(4, made.last_index() + 1, NO_LIMIT)
    assert [entry.term for entry in got] == result
    assert [entry.index for entry in got] == list(range(4, 4 + len(result)))


def test_uc211_a_gap_is_a_bug() -> None:
    with pytest.raises(InvariantViolation):
        storage().append([Entry(5, 7)])


def test_uc212_apply_snapshot() -> None:
    made = MemoryStorage()
    made.apply_snapshot(Snapshot(0, 0, CONFIG))  # only a configuration: how a cluster begins
    assert made.initial_state() == (HardState(), CONFIG)
    made.apply_snapshot(Snapshot(4, 4, CONFIG))
    assert (made.first_index(), made.last_index()) == (5, 4)
    for index in (3, 4):
        with pytest.raises(SnapshotOutOfDate):
            made.apply_snapshot(Snapshot(index, 3, CONFIG))
