"""Snapshots: taking one over, sending one, and not getting stuck (contract §15)."""

from __future__ import annotations

import pytest

from raft.core import (
    ConfChange,
    ConfChangeType,
    ConfState,
    Entry,
    HardState,
    InvariantViolation,
    MemoryStorage,
    Message,
    ProgressState,
    Role,
    Snapshot,
    SnapshotTemporarilyUnavailable,
    decode_conf_change,
    encode_conf_change,
)
from raft.core.raft import Raft
from raft.core.roles import Cause
from raft.core.tracker import Progress

from .network import (
    M,
    Network,
    apply,
    become_leader,
    drain,
    memory_of,
    new_raft,
    propose,
    role_of,
    storage_with,
    take,
    ticks,
    types,
)

ELEVEN = Snapshot(11, 11, ConfState((1, 2, 3)))


def test_uc086_restore() -> None:
    raft = new_raft(1, (1, 2))
    assert raft.restore(ELEVEN)
    assert (raft.log.last_index, raft.log.term(11)) == (11, 11)
    assert raft.tracker.config.conf_state() == ELEVEN.conf_state
    assert not raft.restore(ELEVEN)
    raft.randomized_election_timeout = 10
    ticks(raft, 20)  # not before the application has taken it over
    assert role_of(raft) == Role.FOLLOWER
    apply(raft)
    ticks(raft, 20)
    assert role_of(raft) == Role.CANDIDATE


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (3, ConfState((1, 2), (3,))),
        (2, ConfState((2, 3, 4), (), (1, 2, 3))),
        (1, ConfState((2, 3, 4), (), (1, 2, 3))),  # only among the outgoing voters
    ],
)
def test_uc087_uc088_restore_learners_and_outgoing(node: int, state: ConfState) -> None:
    raft = new_raft(node, storage=storage_with((1, 2), (3,)))
    assert raft.restore(Snapshot(11, 11, state))
    assert raft.tracker.config.conf_state() == state
    assert set(raft.tracker.progress) == {*state.voters, *state.learners, *state.voters_outgoing}
    for member, progress in raft.tracker.progress.items():
        assert progress.is_learner is (member in state.learners)


def test_uc089_voter_becomes_learner() -> None:
    raft = new_raft(3, (1, 2, 3))
    assert not raft.is_learner
    assert raft.restore(Snapshot(11, 11, ConfState((1, 2), (3,))))
    assert raft.is_learner


def test_uc090_learner_becomes_voter() -> None:
    raft = new_raft(3, (1, 2), (3,))
    assert raft.is_learner
    assert raft.restore(ELEVEN)
    assert not raft.is_learner


def test_uc091_learner_receives_a_snapshot() -> None:
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(11, 11, ConfState((1,), (2,))))
    storage.set_hard_state(HardState(11, 0, 11))
    net = Network(new_raft(1, storage=storage, applied=11), new_raft(2, storage=storage_with((1,), (2,))))
    net[1].randomized_election_timeout = 10
    ticks(net[1], 10)
    net.flush()
    net.beat(1)
    apply(net[2])
    net.beat(1)
    assert net[2].log.committed == net[1].log.committed


def test_uc092_unneeded_snapshot_is_ignored() -> None:
    raft = new_raft(1, (1, 2), log=(1, 1, 1), term=1)
    raft.log.commit_to(1)
    assert not raft.restore(Snapshot(1, 1, ConfState((1, 2))))
    assert raft.log.committed == 1
    assert not raft.restore(Snapshot(2, 1, ConfState((1, 2))))  # the entry is here: only commit it
    assert raft.log.committed == 2
    assert raft.log.unstable.snapshot is None


def test_a_snapshot_from_before_the_log_begins_is_ignored() -> None:
    """It was late: the node has taken over a newer one, and holds nothing by which to tell that the logs match."""
    raft = new_raft(1, (1, 2, 3))
    assert raft.restore(ELEVEN)
    apply(raft)
    assert not raft.restore(Snapshot(5, 3, ConfState((1, 2))))
    assert (raft.log.committed, raft.log.last_index) == (11, 11)
    assert raft.tracker.config.conf_state() == ELEVEN.conf_state


def test_a_snapshot_that_does_not_name_this_node_is_ignored() -> None:
    raft = new_raft(1, (1, 2))
    assert not raft.restore(Snapshot(11, 11, ConfState((2, 3))))


def test_a_candidate_given_a_snapshot_is_a_bug() -> None:
    raft = new_raft(1, (1, 2))
    raft.become_candidate(Cause.ELECTION_STARTED)
    with pytest.raises(InvariantViolation):
        raft.restore(ELEVEN)


def compacted_leader() -> Raft:
    """Node 1 leads {1, 2}; its log starts behind a snapshot at 11."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(11, 11, ConfState((1, 2))))
    raft = become_leader(new_raft(1, storage=storage, applied=11))
    drain(raft)
    return raft


def test_uc093_peer_before_the_log_gets_a_snapshot() -> None:
    raft = compacted_leader()
    progress = raft.tracker.progress[2]
    progress.next, progress.recent_active = raft.log.first_index, True
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, progress.next - 1, reject=True))
    (sent,) = take(raft)
    assert sent.type == M.SNAP
    assert sent.snapshot is not None
    assert sent.snapshot.index == 11


def test_uc094_silent_peer_gets_no_snapshot() -> None:
    raft = compacted_leader()
    raft.tracker.progress[2].next = raft.log.first_index - 1
    raft.tracker.progress[2].recent_active = False
    propose(raft, b"somedata")
    assert take(raft) == []


def test_no_snapshot_now_means_later() -> None:
    class Busy(MemoryStorage):
        def snapshot(self) -> Snapshot:
            raise SnapshotTemporarilyUnavailable("being made")

    storage = Busy()
    storage.apply_snapshot(Snapshot(11, 11, ConfState((1, 2))))
    raft = become_leader(new_raft(1, storage=storage, applied=11))
    progress = raft.tracker.progress[2]
    progress.next, progress.recent_active = 1, True
    raft.send_append(2)
    assert take(raft) == []
    assert progress.state == ProgressState.PROBE


def test_uc095_snapshot_message_names_the_leader() -> None:
    raft = new_raft(1, (1, 2))
    raft.step(Message(M.SNAP, 1, 2, 1, snapshot=ELEVEN))
    assert raft.lead == 2
    (answer,) = raft.after_append  # behind the write of the snapshot
    assert (answer.type, answer.index) == (M.APP_RESP, 11)


def sending(next_index: int = 1) -> tuple[Raft, Progress]:
    """The leader has sent peer 2 its snapshot."""
    raft = compacted_leader()
    progress = raft.tracker.progress[2]
    progress.next = next_index
    progress.become_snapshot(11)
    return raft, progress


def test_uc141_rejection_below_the_log_sets_pending_snapshot() -> None:
    raft = compacted_leader()
    progress = raft.tracker.progress[2]
    progress.next, progress.recent_active = raft.log.first_index, True
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, progress.next - 1, reject=True))
    assert progress.pending_snapshot == 11


def test_uc142_pending_snapshot_pauses_replication() -> None:
    raft, _ = sending()
    propose(raft, b"somedata")
    assert take(raft) == []


@pytest.mark.parametrize(("failed", "next_index"), [(True, 1), (False, 12)])
def test_uc143_uc144_m23_snapshot_status(failed: bool, next_index: int) -> None:
    """Probe again in either case, but only after the peer is heard."""
    raft, progress = sending()
    raft.step(Message(M.SNAP_STATUS, 1, 2, reject=failed))
    assert (progress.state, progress.pending_snapshot) == (ProgressState.PROBE, 0)
    assert progress.next == next_index
    assert progress.is_paused
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1))
    assert not (progress.is_paused and types(take(raft)) == [])


def test_uc145_m23_acknowledgement_ends_the_wait() -> None:
    raft, progress = sending()
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 11))
    assert (progress.state, progress.pending_snapshot) == (ProgressState.REPLICATE, 0)
    assert progress.next == 13
    assert len(progress.inflights) == 1


def test_m23_acknowledgement_behind_the_sent_snapshot_is_enough() -> None:
    """What counts is that the log connects, not that this very snapshot arrived."""
    raft, progress = sending()
    progress.pending_snapshot = 100
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 11))
    assert progress.state == ProgressState.REPLICATE


def test_m44_nothing_is_handed_out_while_a_snapshot_waits() -> None:
    raft = new_raft(1, (1, 2), log=(1, 1), term=1)
    raft.log.commit_to(2)
    raft.restore(ELEVEN)
    assert raft.log.next_committed(allow_unstable=True) == ()
    assert memory_of(raft).last_index() == 2  # the log below is replaced by the one write of the snapshot
    apply(raft)
    assert (memory_of(raft).first_index(), memory_of(raft).last_index()) == (12, 11)
    assert raft.log.applied == 11


def test_m44_a_snapshot_waits_for_a_conf_change_that_is_being_applied() -> None:
    """The change would otherwise be brought into force on top of the snapshot's configuration."""
    raft = new_raft(1, (1, 2))
    kind, data = encode_conf_change(ConfChange(ConfChangeType.ADD_VOTER, 3))
    raft.step(Message(M.APP, 1, 2, 1, 0, 0, (Entry(1, 1, kind, data),), 1))
    (entry,) = raft.log.next_committed(allow_unstable=True)
    raft.log.accept_applying(1, 0, allow_unstable=True)
    drain(raft)
    raft.step(Message(M.SNAP, 1, 2, 1, snapshot=Snapshot(11, 1, ConfState((1, 2)))))
    (answer,) = drain(raft)
    assert (answer.index, raft.log.unstable.snapshot) == (1, None)
    assert raft.apply_conf_change(decode_conf_change(entry)) == ConfState((1, 2, 3))
    raft.applied_entries((entry,))
    raft.step(Message(M.SNAP, 1, 2, 1, snapshot=Snapshot(11, 1, ConfState((1, 2)))))
    assert raft.tracker.config.conf_state() == ConfState((1, 2))
