"""The part of the log that is not durable yet."""

from __future__ import annotations

import pytest

from raft.core import ConfState, InvariantViolation, Snapshot
from raft.core.trace import AckIgnored
from raft.core.unstable import Unstable

from .network import entries_of

SNAPSHOT = Snapshot(4, 1, ConfState((1,)))


def unstable(*terms: int, offset: int = 5, snapshot: Snapshot | None = None) -> Unstable:
    part = Unstable(offset)
    part.entries = entries_of(*terms, first=offset)
    part.snapshot = snapshot
    return part


@pytest.mark.parametrize(
    ("part", "first", "last"),
    [
        (unstable(1), None, 5),
        (unstable(), None, None),
        (unstable(1, snapshot=SNAPSHOT), 5, 5),
        (unstable(snapshot=SNAPSHOT), 5, 4),
    ],
)
def test_uc196_uc197_first_and_last_index(part: Unstable, first: int | None, last: int | None) -> None:
    assert part.maybe_first_index() == first
    assert part.maybe_last_index() == last


@pytest.mark.parametrize(
    ("part", "index", "term"),
    [
        (unstable(1), 5, 1),
        (unstable(1), 6, None),
        (unstable(1), 4, None),
        (unstable(1, snapshot=SNAPSHOT), 5, 1),
        (unstable(1, snapshot=SNAPSHOT), 4, 1),
        (unstable(1, snapshot=SNAPSHOT), 3, None),
        (unstable(snapshot=SNAPSHOT), 5, None),
        (unstable(snapshot=SNAPSHOT), 4, 1),
        (unstable(), 5, None),
    ],
)
def test_uc198_term(part: Unstable, index: int, term: int | None) -> None:
    assert part.maybe_term(index) == term


def test_uc199_restore() -> None:
    part = unstable(1, snapshot=SNAPSHOT)
    part.accept_in_progress()
    part.restore(Snapshot(6, 2))
    assert (part.offset, part.offset_in_progress, part.entries) == (7, 7, [])
    assert part.snapshot == Snapshot(6, 2)
    assert not part.snapshot_in_progress


def test_uc200_uc201_uc202_only_what_was_not_handed_out() -> None:
    part = unstable(1, 1, snapshot=SNAPSHOT)
    assert part.next_entries() == tuple(part.entries)
    assert part.next_snapshot() == SNAPSHOT
    part.accept_in_progress()
    assert part.next_entries() == ()
    assert not part.has_next_entries
    assert part.next_snapshot() is None
    part.truncate_and_append(entries_of(1, first=7))
    assert part.next_entries() == tuple(entries_of(1, first=7))


@pytest.mark.parametrize(
    ("terms", "in_progress", "term", "index", "offset", "in_progress_after", "left", "ignored"),
    [
        ((), 5, 1, 5, 5, 5, 0, AckIgnored.NOT_UNSTABLE),
        ((1,), 6, 1, 5, 6, 6, 0, None),
        ((1, 1), 6, 1, 5, 6, 6, 1, None),
        ((1, 1), 7, 1, 5, 6, 7, 1, None),
        ((1, 1), 5, 1, 6, 7, 7, 0, None),  # the in-progress mark never stays below the offset
        ((2,), 6, 1, 5, 5, 6, 1, AckIgnored.TERM_MISMATCH),
        ((1,), 6, 1, 4, 5, 6, 1, AckIgnored.NOT_UNSTABLE),
        ((1,), 6, 1, 6, 5, 6, 1, AckIgnored.NOT_UNSTABLE),
    ],
)
def test_uc203_stable_to(
    terms: tuple[int, ...],
    in_progress: int,
    term: int,
    index: int,
    offset: int,
    in_progress_after: int,
    left: int,
    ignored: AckIgnored | None,
) -> None:
    part = unstable(*terms)
    part.offset_in_progress = in_progress
    assert part.stable_to(term, index) == ignored
    assert (part.offset, part.offset_in_progress, len(part.entries)) == (offset, in_progress_after, left)


def test_stable_to_does_not_take_the_snapshot_for_an_entry() -> None:
    part = unstable(2, snapshot=SNAPSHOT)
    assert part.stable_to(1, 4) == AckIgnored.NOT_UNSTABLE
    part.stable_snapshot_to(3)
    assert part.snapshot == SNAPSHOT
    part.stable_snapshot_to(4)
    assert part.snapshot is None


@pytest.mark.parametrize(
    ("in_progress", "first", "terms", "offset", "in_progress_after", "result", "truncated"),
    [
        (5, 6, (1, 1), 5, 5, [1, 1, 1], False),
        (6, 6, (1, 1), 5, 6, [1, 1, 1], False),
        (6, 5, (2, 2), 5, 5, [2, 2], True),
        (6, 4, (2, 2, 2), 4, 4, [2, 2, 2], True),
    ],
)
def test_uc204_truncate_and_append_to_one_entry(
    in_progress: int,
    first: int,
    terms: tuple[int, ...],
    offset: int,
    in_progress_after: int,
    result: list[int],
    truncated: bool,
) -> None:
    part = unstable(1)
    part.offset_in_progress = in_progress
    assert part.truncate_and_append(entries_of(*terms, first=first)) is truncated
    assert (part.offset, part.offset_in_progress) == (offset, in_progress_after)
    assert [entry.term for entry in part.entries] == result


@pytest.mark.parametrize(
    ("first", "in_progress", "in_progress_after", "result"),
    [(6, 8, 6, [1, 2]), (7, 8, 7, [1, 1, 2]), (7, 6, 6, [1, 1, 2]), (7, 5, 5, [1, 1, 2])],
)
def test_uc204_truncate_in_the_middle(
    first: int, in_progress: int, in_progress_after: int, result: list[int]
) -> None:
    part = unstable(1, 1, 1)
    part.offset_in_progress = in_progress
    assert part.truncate_and_append(entries_of(2, first=first))
    assert part.offset_in_progress == in_progress_after
    assert [entry.term for entry in part.entries] == result


def test_a_gap_and_a_slice_outside_are_bugs() -> None:
    part = unstable(1)
    with pytest.raises(InvariantViolation):
        part.truncate_and_append(entries_of(1, first=8))
    with pytest.raises(InvariantViolation):
        part.slice(4, 6)
