"""The two-layer log: positions, conflicts, reads across the border, what may be applied."""

from __future__ import annotations

import pytest

from raft.core import (
    NO_LIMIT,
    Compacted,
    ConfState,
    Entry,
    InvariantViolation,
    MalformedMessage,
    MemoryStorage,
    Snapshot,
    Unavailable,
    entries_size,
    limit_size,
    payload_size,
)
from raft.core.log import RaftLog, check_log_slice

from .network import entries_of

ENTRY = entries_size([Entry(1, 1)])


def log_of(*terms: int, stable: int | None = None, limit: int = NO_LIMIT) -> RaftLog:
    """A log of these terms; the first ``stable`` (default all) are in the storage."""
    storage = MemoryStorage()
    count = len(terms) if stable is None else stable
    storage.append(entries_of(*terms[:count]))
    log = RaftLog(storage, limit)
    log.append(entries_of(*terms[count:], first=count + 1))
    return log


def compacted_log(start: int, *terms: int, unstable: int = 0) -> RaftLog:
    """A log whose snapshot is at ``start`` (term of the first entry), the last ``unstable`` in memory only."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(start, terms[0], ConfState((1,))))
    entries = entries_of(*terms[1:], first=start + 1)
    cut = len(entries) - unstable
    storage.append(entries[:cut])
    log = RaftLog(storage)
    log.append(entries[cut:])
    return log


def terms_of(log: RaftLog) -> list[int]:
    return [entry.term for entry in log.slice(log.first_index, log.last_index + 1, NO_LIMIT)]


# --- conflicts


@pytest.mark.parametrize(
    ("first", "terms", "conflict"),
    [
        (1, (), 0),
        (1, (1, 2, 3), 0),
        (2, (2, 3), 0),
        (3, (3,), 0),
        (1, (1, 2, 3, 4, 4), 4),
        (2, (2, 3, 4, 4), 4),
        (3, (3, 4, 4), 4),
        (4, (4, 4), 4),
        (1, (4, 4), 1),
        (2, (1, 4, 4), 2),
        (3, (1, 2, 4, 4), 3),
    ],
)
def test_uc175_find_conflict(first: int, terms: tuple[int, ...], conflict: int) -> None:
    assert log_of(1, 2, 3).find_conflict(entries_of(*terms, first=first)) == conflict


@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [
        (5, 6, (5, 5)),
        (5, 5, (5, 5)),
        (5, 4, (2, 2)),
        (5, 2, (2, 2)),
        (5, 1, (0, 0)),
        (3, 5, (3, 5)),
        (2, 2, (2, 2)),
        (0, 3, (0, 0)),
        (6, 3, (6, 0)),
        (9, 9, (9, 0)),
    ],
)
def test_uc176_find_conflict_by_term(index: int, term: int, expected: tuple[int, int]) -> None:
    assert log_of(2, 2, 5, 5, 5).find_conflict_by_term(index, term) == expected


@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [
        (15, 5, (15, 5)),
        (15, 4, (12, 4)),
        (11, 3, (10, 3)),
        (13, 2, (9, 0)),
        (9, 9, (9, 0)),
        (4, 9, (4, 0)),
        (16, 9, (16, 0)),
    ],
)
def test_uc176_find_conflict_by_term_of_a_compacted_log(index: int, term: int, expected: tuple[int, int]) -> None:
    log = compacted_log(10, 3, 4, 4, 5, 5, 5)
    assert log.find_conflict_by_term(index, term) == expected


@pytest.mark.parametrize(
    ("term", "offset", "fits"),
    [
        (4, -1, True),
        (4, 0, True),
        (4, 1, True),
        (2, -1, False),
        (2, 0, False),
        (2, 1, False),
        (3, -1, False),
        (3, 0, True),
        (3, 1, True),
    ],
)
def test_uc177_up_to_date_compares_terms_first(term: int, offset: int, fits: bool) -> None:
    """M45: never the index before the term."""
    log = log_of(1, 2, 3)
    assert log.is_up_to_date(term, log.last_index + offset) is fits


# --- writing


@pytest.mark.parametrize(
    ("first", "terms", "log_terms", "offset"),
    [(3, (), [1, 2], 3), (3, (2,), [1, 2, 2], 3), (1, (2,), [2], 1), (2, (3, 3), [1, 3, 3], 2)],
)
def test_uc178_append(first: int, terms: tuple[int, ...], log_terms: list[int], offset: int) -> None:
    log = log_of(1, 2)
    assert log.append(entries_of(*terms, first=first)) == len(log_terms)
    assert terms_of(log) == log_terms
    assert log.unstable.offset == offset


@pytest.mark.parametrize(
    ("prev", "prev_term", "terms", "leader_commit", "last_new", "commit"),
    [
        (3, 2, (4,), 3, None, 1),  # previous term differs
        (4, 3, (4,), 3, None, 1),  # previous position is not there
        (3, 3, (), 3, 3, 3),
        (3, 3, (), 4, 3, 3),  # never beyond the last new entry
        (3, 3, (), 2, 2 + 1, 2),
        (3, 3, (), 0, 3, 1),  # never back
        (0, 0, (), 3, 0, 1),
        (3, 3, (4,), 3, 4, 3),
        (3, 3, (4,), 4, 4, 4),
        (3, 3, (4,), 5, 4, 4),
        (3, 3, (4, 4), 5, 5, 5),
        (2, 2, (4,), 3, 3, 3),
        (1, 1, (4,), 3, 2, 2),
        (1, 1, (4, 4), 3, 3, 3),
    ],
)
def test_uc179_maybe_append(
    prev: int, prev_term: int, terms: tuple[int, ...], leader_commit: int, last_new: int | None, commit: int
) -> None:
    """M4: the commit index is at most the last entry the append speaks of."""
    log = log_of(1, 2, 3)
    log.commit_to(1)
    entries = entries_of(*terms, first=prev + 1)
    assert log.maybe_append(prev, prev_term, entries, leader_commit) == last_new
    assert log.committed == commit
    if last_new is not None and terms:
        assert list(log.slice(prev + 1, last_new + 1, NO_LIMIT)) == entries


def test_uc179_conflict_with_a_committed_entry_is_fatal() -> None:
    log = log_of(1, 2, 3)
    log.commit_to(1)
    with pytest.raises(InvariantViolation):
        log.maybe_append(0, 0, entries_of(4), 3)


def test_uc186_commit_to() -> None:
    log = log_of(1, 2, 3)
    log.commit_to(2)
    log.commit_to(1)
    assert log.committed == 2
    with pytest.raises(InvariantViolation):
        log.commit_to(4)


def test_appending_at_a_committed_index_is_fatal() -> None:
    log = log_of(1, 2, 3)
    log.commit_to(2)
    with pytest.raises(InvariantViolation):
        log.append(entries_of(4, first=2))


# --- durability


@pytest.mark.parametrize(("index", "term", "offset"), [(1, 1, 2), (2, 2, 3), (2, 1, 1), (3, 1, 1), (0, 0, 1)])
def test_uc187_stable_to(index: int, term: int, offset: int) -> None:
    log = log_of(1, 2, stable=0)
    log.stable_to(term, index)
    assert log.unstable.offset == offset


@pytest.mark.parametrize(
    ("index_delta", "term", "added", "offset_delta"),
    [
        (1, 2, 0, 1),
        (0, 2, 0, 1),
        (-1, 2, 0, 1),
        (1, 3, 0, 1),
        (0, 3, 0, 1),
        (-1, 3, 0, 1),
        (1, 2, 1, 2),
        (0, 2, 1, 1),
        (-1, 2, 1, 1),
        (1, 3, 1, 1),
        (0, 3, 1, 1),
        (-1, 3, 1, 1),
    ],
)
def test_uc188_stable_to_with_snapshot(index_delta: int, term: int, added: int, offset_delta: int) -> None:
    """Only an entry that is in the unstable part, with its term, moves the offset."""
    snapshot = 5
    log = compacted_log(snapshot, 2)
    log.append(entries_of(*[2] * added, first=snapshot + 1))
    log.stable_to(term, snapshot + index_delta)
    assert log.unstable.offset == snapshot + offset_delta


def test_uc185_next_unstable_entries() -> None:
    log = log_of(1, 2, stable=1)
    assert log.unstable.next_entries() == tuple(entries_of(2, first=2))
    log.accept_unstable()
    assert log.unstable.next_entries() == ()
    log.stable_to(2, 2)
    assert log.unstable.offset == 3


# --- compaction, restore


def test_uc180_compaction_has_no_side_effects() -> None:
    storage = MemoryStorage()
    storage.append(entries_of(*range(1, 751)))
    log = RaftLog(storage)
    log.append(entries_of(*range(751, 1001), first=751))
    assert log.maybe_commit(1000, 1000)
    log.applied_to(1000, 0)
    storage.compact(500)
    assert log.last_index == 1000
    for index in range(500, 1001):
        assert log.term(index) == index
        assert log.matches(index, index)
    assert [entry.index for entry in log.unstable.entries] == list(range(751, 1001))
    log.append([Entry(1001, 1001)])
    assert log.last_index == 1001
    assert len(log.entries(1001, NO_LIMIT)) == 1


@pytest.mark.parametrize(
    ("steps", "left"), [([300, 500, 800, 900], [700, 500, 200, 100]), ([300, 299], [700, -1]), ([1001], [-1])]
)
def test_uc189_compaction_range(steps: list[int], left: list[int]) -> None:
    storage = MemoryStorage()
    storage.append(entries_of(*[1] * 1000))
    log = RaftLog(storage)
    for index, expected in zip(steps, left, strict=True):
        if expected < 0:
            with pytest.raises((Compacted, InvariantViolation)):
                storage.compact(index)
        else:
            storage.compact(index)
            assert len(log.entries(log.first_index, NO_LIMIT)) == expected


def test_uc190_log_of_a_restored_snapshot() -> None:
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(1000, 1000, ConfState((1,))))
    log = RaftLog(storage)
    assert (log.first_index, log.last_index) == (1001, 1000)
    assert log.committed == log.applied == 1000
    assert log.unstable.offset == 1001
    assert log.term(1000) == 1000
    assert log.entries(1001, NO_LIMIT) == ()


# --- bounds and terms


def test_uc191_out_of_bounds() -> None:
    log = compacted_log(100, *[1] * 101, unstable=50)
    with pytest.raises(Compacted):
        log.slice(100, 105, NO_LIMIT)
    with pytest.raises(InvariantViolation):
        log.slice(150, 202, NO_LIMIT)
    with pytest.raises(InvariantViolation):
        log.slice(150, 149, NO_LIMIT)
    assert log.slice(201, 201, NO_LIMIT) == ()
    assert len(log.slice(101, 201, NO_LIMIT)) == 100


def test_uc192_term() -> None:
    log = compacted_log(100, 1, 2, 3, 4, unstable=2)
    assert [log.term(index) for index in range(100, 104)] == [1, 2, 3, 4]
    with pytest.raises(Compacted):
        log.term(99)
    with pytest.raises(Unavailable):
        log.term(104)
    assert log.term_or_zero(99) == log.term_or_zero(104) == 0


def test_uc193_term_with_unstable_snapshot() -> None:
    """What lies between the stored snapshot and the one on its way is gone."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(100, 1, ConfState((1,))))
    log = RaftLog(storage)
    log.restore(Snapshot(105, 1, ConfState((1,))))
    for index in (100, 101, 104):
        with pytest.raises(Compacted):
            log.term(index)
    assert log.term(105) == 1
    with pytest.raises(Unavailable):
        log.term(106)


# --- reading


@pytest.mark.parametrize("stable", [0, 3, 5, 10])
@pytest.mark.parametrize("low", range(1, 11))
@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_uc194_slice_across_the_border(stable: int, low: int, count: int) -> None:
    """At least one entry, and never over the limit otherwise."""
    log = log_of(*range(1, 11), stable=stable)
    high = min(low + count, 11)
    for limit in (0, ENTRY, ENTRY * 2 - 1, ENTRY * 3, ENTRY * 3 + 1, NO_LIMIT):
        got = log.slice(low, high, limit)
        expected = max(1, min(limit // ENTRY, high - low))
        assert [entry.index for entry in got] == list(range(low, low + expected))


def test_uc195_scan_pages_are_the_slice() -> None:
    log = log_of(*range(1, 21), stable=10)
    for page_size in (0, ENTRY * 3, NO_LIMIT):
        pages = list(log.scan(4, 19, page_size))
        assert [entry for page in pages for entry in page] == list(log.slice(4, 19, NO_LIMIT))
        assert all(len(page) == 1 or entries_size(page) <= page_size for page in pages)
    assert next(log.scan(4, 19, 0))[0].index == 4  # and no more is read than asked for


# --- applying


@pytest.mark.parametrize(
    ("applied", "applying", "allow_unstable", "paused", "snapshot", "available"),
    [
        (3, 3, True, False, False, [4, 5]),
        (3, 4, True, False, False, [5]),
        (3, 5, True, False, False, []),
        (4, 4, True, False, False, [5]),
        (5, 5, True, False, False, []),
        (3, 3, False, False, False, [4]),
        (3, 4, False, False, False, []),
        (4, 4, False, False, False, []),
        (3, 3, True, True, False, []),
        (3, 3, False, True, False, []),
        (3, 3, True, False, True, []),
        (3, 3, False, False, True, []),
    ],
)
def test_uc181_uc182_next_committed(
    applied: int, applying: int, allow_unstable: bool, paused: bool, snapshot: bool, available: list[int]
) -> None:
    """Starred: in async mode only durable entries are handed out, and none behind a snapshot."""
    log = compacted_log(3, 1, 1, 1, 1)
    log.unstable.offset, log.unstable.entries = 5, entries_of(1, 1, first=5)
    log.unstable.offset_in_progress = 5
    log.commit_to(5)
    log.applied_to(applied, 0)
    log.accept_applying(applying, 0, allow_unstable=allow_unstable)
    log.applying_paused = paused
    if snapshot:
        log.restore(Snapshot(5, 1, ConfState((1,))))
    assert log.has_next_committed(allow_unstable=allow_unstable) is bool(available)
    assert [entry.index for entry in log.next_committed(allow_unstable=allow_unstable)] == available


@pytest.mark.parametrize(
    ("index", "allow_unstable", "size", "paused"),
    [
        (3, True, 9, True),
        (3, True, 10, True),
        (4, True, 10, True),
        (5, True, 9, False),
        (5, True, 10, True),
        (5, True, 11, True),
        (3, False, 9, True),
        (4, False, 9, False),
        (4, False, 10, True),
    ],
)
def test_uc183_accept_applying_pauses(index: int, allow_unstable: bool, size: int, paused: bool) -> None:
    """At the limit, and when a batch had to be cut short."""
    log = log_of(1, 1, 1, 1, 1, stable=4, limit=10)
    log.commit_to(5)
    log.accept_applying(index, size, allow_unstable=allow_unstable)
    assert (log.applying_paused, log.applying_size) == (paused, size)


@pytest.mark.parametrize(
    ("index", "size", "applying", "outstanding", "paused"),
    [
        (3, 4, 4, 6 + 1, False),
        (4, 5, 4, 6, False),
        (5, 1, 5, 10, True),
        (4, 100, 4, 0, False),
    ],
)
def test_uc184_applied_to(index: int, size: int, applying: int, outstanding: int, paused: bool) -> None:
    log = log_of(1, 1, 1, 1, 1, limit=10)
    log.commit_to(5)
    log.applied_to(2, 0)
    log.accept_applying(4, 11, allow_unstable=True)
    log.applied_to(index, size)
    assert (log.applied, log.applying) == (index, applying)
    assert (log.applying_size, log.applying_paused) == (outstanding, paused)


def test_uc184_applied_must_stay_between_applied_and_committed() -> None:
    log = log_of(1, 1, 1)
    log.commit_to(2)
    with pytest.raises(InvariantViolation):
        log.applied_to(3, 0)
    log.applied_to(2, 0)
    with pytest.raises(InvariantViolation):
        log.applied_to(1, 0)


# --- sizes and slices


def test_uc229_log_slice_is_contiguous_and_its_terms_never_fall() -> None:
    check_log_slice(0, [], 3)
    check_log_slice(4, entries_of(1, 2, 2, first=5), 2)
    for entries in (entries_of(1, first=6), entries_of(2, 1, first=5), entries_of(3, first=5)):
        with pytest.raises(MalformedMessage):
            check_log_slice(4, entries, 2)


def test_uc230_limit_size_keeps_a_prefix_of_at_least_one() -> None:
    entries = [Entry(1, index, data=b"x" * index) for index in range(1, 5)]
    for count in range(1, 5):
        size = entries_size(entries[:count])
        assert limit_size(entries, size) == entries[:count]
        assert limit_size(entries, size + 1) == entries[:count]
    assert limit_size(entries, 0) == entries[:1]
    assert limit_size([], 0) == []


def test_uc231_an_empty_entry_has_no_payload() -> None:
    assert payload_size([Entry(5, 7)]) == 0
    assert payload_size([Entry(5, 7, data=b"abc"), Entry(5, 8)]) == 3
