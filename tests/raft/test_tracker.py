"""Progress of one follower, and the window of unacknowledged appends."""

from __future__ import annotations

import pytest

from raft.core import InvariantViolation, PeerStatus, ProgressState
from raft.core.inflights import Inflights
from raft.core.status import peer_status
from raft.core.tracker import Configuration, Progress

PROBE, REPLICATE, SNAPSHOT = ProgressState.PROBE, ProgressState.REPLICATE, ProgressState.SNAPSHOT


def progress(
    state: ProgressState = PROBE, match: int = 0, next_index: int = 1, *, paused: bool = False
) -> Progress:
    one = Progress(match, next_index, Inflights(256, 0))
    one.state, one.paused = state, paused
    return one


@pytest.mark.parametrize(
    ("state", "paused", "expected"),
    [
        (PROBE, False, False),
        (PROBE, True, True),
        (REPLICATE, False, False),
        (REPLICATE, True, True),
        (SNAPSHOT, False, True),
        (SNAPSHOT, True, True),
    ],
)
def test_uc213_is_paused(state: ProgressState, paused: bool, expected: bool) -> None:
    assert progress(state, paused=paused).is_paused is expected


def test_uc214_decrease_and_update_resume() -> None:
    one = progress(next_index=2, paused=True)
    assert one.maybe_decrease(1, 1)
    assert not one.paused
    one.paused = True
    assert one.maybe_update(2)
    assert not one.paused


@pytest.mark.parametrize(
    ("state", "pending", "next_index"), [(REPLICATE, 0, 2), (SNAPSHOT, 10, 11), (SNAPSHOT, 0, 2)]
)
def test_uc215_become_probe(state: ProgressState, pending: int, next_index: int) -> None:
    """From a snapshot behind it if it arrived, at match + 1 if it failed."""
    one = progress(state, match=1, next_index=5)
    one.pending_snapshot = pending
    one.become_probe()
    assert (one.state, one.match, one.next) == (PROBE, 1, next_index)


def test_uc216_become_replicate_and_become_snapshot() -> None:
    one = progress(match=1, next_index=5)
    one.become_replicate()
    assert (one.state, one.match, one.next) == (REPLICATE, 1, 2)
    one.become_snapshot(10)
    assert (one.state, one.match, one.pending_snapshot) == (SNAPSHOT, 1, 10)
    assert len(one.inflights) == 0


@pytest.mark.parametrize(
    ("update", "match", "next_index", "ok"),
    [(2, 3, 5, False), (3, 3, 5, False), (4, 4, 5, True), (5, 5, 6, True)],
)
def test_uc217_update_moves_only_forward(update: int, match: int, next_index: int, ok: bool) -> None:
    one = progress(match=3, next_index=5)
    assert one.maybe_update(update) is ok
    assert (one.match, one.next) == (match, next_index)


@pytest.mark.parametrize(
    ("state", "match", "next_index", "rejected", "hint", "ok", "expected"),
    [
        (REPLICATE, 5, 10, 5, 5, False, 10),  # stale: not beyond what is known to match
        (REPLICATE, 5, 10, 4, 4, False, 10),
        (REPLICATE, 5, 10, 9, 9, True, 6),
        (PROBE, 0, 0, 0, 0, False, 0),  # stale: not the probe that is outstanding
        (PROBE, 0, 10, 5, 5, False, 10),
        (PROBE, 0, 10, 9, 9, True, 9),
        (PROBE, 0, 2, 1, 1, True, 1),
        (PROBE, 0, 1, 0, 0, True, 1),
        (PROBE, 0, 10, 9, 2, True, 3),
        (PROBE, 0, 10, 9, 0, True, 1),
        (PROBE, 5, 10, 9, 2, True, 6),  # M26: never at or below match
    ],
)
def test_uc218_decrease(
    state: ProgressState, match: int, next_index: int, rejected: int, hint: int, ok: bool, expected: int
) -> None:
    one = progress(state, match, next_index)
    assert one.maybe_decrease(rejected, hint) is ok
    assert (one.match, one.next) == (match, expected)


def window(count: int, *, max_messages: int = 10, max_bytes: int = 0, size: int = 100) -> Inflights:
    one = Inflights(max_messages, max_bytes)
    for index in range(count):
        one.add(index, size)
    return one


def test_uc219_add() -> None:
    one = window(5)
    assert (len(one), one.bytes) == (5, 500)


@pytest.mark.parametrize(("to", "left"), [(0, 9), (4, 5), (8, 1), (9, 0), (100, 0)])
def test_uc220_free_to(to: int, left: int) -> None:
    one = window(10)
    one.free_to(to)
    assert (len(one), one.bytes) == (left, left * 100)
    for index in range(10, 10 + 10 - left):  # and the room is usable again
        one.add(index, 1)
    assert one.full


@pytest.mark.parametrize(
    ("max_messages", "max_bytes", "fits"), [(3, 0, 3), (10, 250, 3), (10, 300, 3), (2, 1000, 2), (1, 1, 1)]
)
def test_uc221_full_by_messages_or_bytes(max_messages: int, max_bytes: int, fits: int) -> None:
    """The bytes may be overshot by one message."""
    one = window(fits, max_messages=max_messages, max_bytes=max_bytes)
    assert one.full
    with pytest.raises(InvariantViolation):
        one.add(99, 1)


def test_uc222_reset_leaks_no_bytes() -> None:
    one = Inflights(10, 1000)
    for _ in range(100):
        one.reset()
        for index in range(9):
            assert not one.full
            one.add(index, 100)
        one.free_to(8)
        assert (len(one), one.bytes) == (0, 0)


def test_uc223_status_shows_every_field_of_a_progress() -> None:
    one = progress(SNAPSHOT, 1, 2)
    one.pending_snapshot, one.recent_active, one.is_learner = 123, True, True
    assert peer_status(7, one) == PeerStatus(
        id=7,
        state=SNAPSHOT,
        match=1,
        next=2,
        is_learner=True,
        paused=True,
        pending_snapshot=123,
        recent_active=True,
        inflight=0,
        inflight_bytes=0,
        inflight_full=False,
    )


def test_sending_entries_in_snapshot_state_is_a_bug() -> None:
    with pytest.raises(InvariantViolation):
        progress(SNAPSHOT).sent_entries(1, 1)


@pytest.mark.parametrize(
    "config",
    [
        Configuration(incoming=frozenset({1}), learners=frozenset({1})),
        Configuration(incoming=frozenset({1}), learners_next=frozenset({2})),
        Configuration(incoming=frozenset({1}), auto_leave=True),
        Configuration(incoming=frozenset({1, 9})),
    ],
)
def test_configuration_invariants_are_checked(config: Configuration) -> None:
    with pytest.raises(InvariantViolation):
        config.check({1, 2, 3})
