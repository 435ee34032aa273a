"""Rules of the contract that no numbered case covers, each found by a deliberate fault that nothing noticed."""

from __future__ import annotations

import random

import pytest

from raft.core import (
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    Config,
    ConfState,
    DropReason,
    Entry,
    EntryType,
    Message,
    ProgressState,
    ProposalDropped,
    RawNode,
    ReadOnlyOption,
    RefusedConfChange,
    Role,
    Snapshot,
)
from raft.core.inflights import Inflights
from raft.core.quorum import VoteResult
from raft.core.roles import Cause
from raft.core.tracker import Progress

from .network import M, all_entries, apply, drain, leader, new_raft, propose, storage_with, take, ticks, types

ALL = (1, 2, 3)


def test_a_late_acknowledgement_is_answered_with_the_commit_it_has_not_heard_of() -> None:
    """§9.3: the peer need not wait for the next heartbeat to apply what it just stored."""
    raft = leader(1, 2, 3)
    for node in (2, 3):
        raft.step(Message(M.APP_RESP, 1, node, 1, 0, 1))
    for _ in range(2):
        propose(raft, b"x")
    drain(raft)
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 3))
    assert raft.log.committed == 3
    raft.tracker.progress[3].sent_commit = 1  # what told 3 of it was lost
    take(raft)
    raft.step(Message(M.APP_RESP, 1, 3, 1, 0, 1))
    assert take(raft) == []  # old news
    raft.step(Message(M.APP_RESP, 1, 3, 1, 0, 2))
    (sent,) = take(raft)
    assert (sent.to, sent.commit, sent.entries) == (3, 3, ())


def test_a_transfer_has_a_whole_election_timeout() -> None:
    raft = leader(1, 2, 3)
    ticks(raft, 9)
    raft.step(Message(M.TRANSFER_LEADER, 1, 2))
    ticks(raft, 9)
    assert raft.transferee == 2
    raft.tick()
    assert raft.transferee == 0


def test_a_leader_outside_the_configuration_takes_no_proposals() -> None:
    raft = leader(1, 2, 3)
    raft.apply_conf_change(ConfChange(ConfChangeType.REMOVE, 1))
    with pytest.raises(ProposalDropped) as caught:
        propose(raft, b"x")
    assert caught.value.reason == DropReason.NOT_IN_CONFIG


def test_automatic_leave_waits_for_the_pending_change() -> None:
    """§14: nothing leaves before the entry that entered is applied."""
    raft = leader(1)
    raft.restore_config(ConfState((1,), (), (1,), (), True))
    raft.append_entries((Entry(1, 2), Entry(1, 3)), 0)
    raft.pending_conf_index = 3
    drain(raft)
    raft.log.committed = 3
    raft.applied_to(2, 0)
    assert [entry.type for entry in all_entries(raft)] == [EntryType.NORMAL] * 3
    raft.applied_to(3, 0)
    assert all_entries(raft)[-1].type == EntryType.CONF_V2


@pytest.mark.parametrize("kind", [M.VOTE, M.HEARTBEAT, M.APP, M.SNAP])
def test_a_granted_vote_and_a_living_leader_postpone_the_own_election(kind: object) -> None:
    """§5.2: the timeout starts anew."""
    raft = new_raft(1, ALL, term=1)
    ticks(raft, 5)
    snapshot = Snapshot(5, 1, ConfState(ALL)) if kind == M.SNAP else None
    raft.step(Message(kind, 1, 2, 1, snapshot=snapshot))  # type: ignore[arg-type]
    assert raft.election_elapsed == 0


def test_a_refused_vote_does_not_postpone_it() -> None:
    raft = new_raft(1, ALL, log=(1,), term=1)
    ticks(raft, 5)
    raft.step(Message(M.VOTE, 1, 2, 1, 0, 0))
    assert raft.election_elapsed == 5


def test_no_vote_against_a_leader_of_the_same_term() -> None:
    """§4: a node that knows the leader of this term has nothing to elect in it."""
    raft = new_raft(1, ALL, term=1)
    raft.step(Message(M.HEARTBEAT, 1, 2, 1))
    drain(raft)
    raft.step(Message(M.VOTE, 1, 3, 1))
    (answer,) = drain(raft)
    assert answer.reject


def test_forgetting_the_leader_must_not_end_a_lease() -> None:
    for option, lead in ((ReadOnlyOption.SAFE, 0), (ReadOnlyOption.LEASE_BASED, 2)):
        raft = new_raft(1, ALL, check_quorum=True, read_only=option)
        raft.step(Message(M.HEARTBEAT, 1, 2, 1))
        raft.step(Message(M.FORGET_LEADER, 1))
        assert raft.lead == lead


def test_a_snapshot_is_installed_even_when_its_acknowledgement_is_of_an_older_term() -> None:
    """§17: only the entry part of a late acknowledgement is doubtful."""
    raft = new_raft(1, ALL, term=1)
    snapshot = Snapshot(5, 1, ConfState(ALL))
    raft.step(Message(M.SNAP, 1, 2, 1, snapshot=snapshot))
    raft.log.storage.apply_snapshot(snapshot)  # type: ignore[attr-defined]
    raft.step(Message(M.HEARTBEAT, 1, 3, 2))
    raft.step(Message(M.STORAGE_APPEND_RESP, 1, 1, 1, 1, 5, snapshot=snapshot))
    assert raft.log.unstable.snapshot is None
    assert raft.log.applied == 5


def test_a_change_of_role_forgets_quota_reads_and_transfer() -> None:
    raft = leader(1, 2, 3)
    propose(raft, b"x" * 10)
    raft.step(Message(M.READ_INDEX, 1, entries=(Entry(0, 0, data=b"r"),)))
    raft.step(Message(M.TRANSFER_LEADER, 1, 2))
    assert (raft.uncommitted_size, len(raft.postponed_reads), raft.transferee) == (10, 1, 2)
    raft.step(Message(M.HEARTBEAT, 1, 2, 2))
    assert (raft.uncommitted_size, len(raft.postponed_reads), raft.transferee) == (0, 0, 0)
    assert (raft.pending_conf_index, raft.vote) == (0, 0)


def test_the_first_answer_of_a_voter_counts() -> None:
    raft = new_raft(1, (1, 2, 3, 4, 5))
    raft.hup()
    drain(raft)
    for reject in (True, False):
        raft.step(Message(M.VOTE_RESP, 1, 2, 1, reject=reject))
    raft.step(Message(M.VOTE_RESP, 1, 3, 1))
    assert raft.role == Role.CANDIDATE
    assert raft.tracker.tally() == VoteResult.PENDING


def test_an_acknowledgement_does_not_send_again_what_is_under_way() -> None:
    progress = Progress(3, 9, Inflights(8, 0))
    progress.state = ProgressState.REPLICATE
    assert progress.maybe_update(4)
    assert progress.next == 9


def test_a_change_of_state_empties_the_window() -> None:
    progress = Progress(3, 4, Inflights(8, 0))
    progress.become_replicate()
    progress.sent_entries(2, 10)
    assert (len(progress.inflights), progress.inflights.bytes) == (1, 10)
    progress.become_probe()
    assert (len(progress.inflights), progress.inflights.bytes) == (0, 0)


def test_followers_apply_in_order_what_heartbeats_commit() -> None:
    raft = new_raft(1, ALL, term=1)
    raft.step(Message(M.APP, 1, 2, 1, 0, 0, (Entry(1, 1), Entry(1, 2)), 0))
    raft.step(Message(M.HEARTBEAT, 1, 2, 1, commit=1))
    assert [entry.index for entry in apply(raft)] == [1]
    raft.step(Message(M.HEARTBEAT, 1, 2, 1, commit=2))
    assert [entry.index for entry in apply(raft)] == [2]


def test_timeout_now_campaigns_without_pre_vote_and_marks_its_votes() -> None:
    raft = new_raft(1, ALL, pre_vote=True, check_quorum=True, term=1)
    raft.step(Message(M.TIMEOUT_NOW, 1, 2, 1))
    votes = [message for message in drain(raft) if message.to != 1]
    assert types(votes) == [M.VOTE, M.VOTE]
    assert {vote.context for vote in votes} == {b"transfer"}


def test_candidates_ignore_timeout_now() -> None:
    raft = new_raft(1, ALL)
    raft.become_candidate(Cause.ELECTION_STARTED)
    raft.step(Message(M.TIMEOUT_NOW, 1, 2, 1))
    assert (raft.term, raft.role) == (1, Role.CANDIDATE)


def test_a_refusal_is_told_once() -> None:
    storage = storage_with((1,))
    node = RawNode(Config(id=1, storage=storage, rng=random.Random(1), check_quorum=False, pre_vote=False))
    node.campaign()
    while node.has_ready():
        storage.append(node.ready().entries)
        node.advance()
    assert not node.propose_conf_change(ConfChangeV2(context=b"id"))
    ready = node.ready()
    assert ready.refused_conf_changes == (RefusedConfChange(node.last_index, b"id"),)
    storage.append(ready.entries)
    node.advance()
    assert node.ready().refused_conf_changes == ()


def test_a_write_without_entries_still_acknowledges_what_is_unstable() -> None:
    """§17: an acknowledgement of an older term trims nothing, so one of the present term has to come."""
    node = RawNode(Config(id=1, storage=storage_with(ALL), rng=random.Random(1), async_storage_writes=True))
    node.step(Message(M.APP, 1, 2, 1, 0, 0, (Entry(1, 1),)))
    node.ready()
    node.step(Message(M.HEARTBEAT, 1, 3, 2))
    write = node.ready().messages[-1]
    assert (write.type, write.term, write.entries) == (M.STORAGE_APPEND, 2, ())
    (response,) = write.responses
    assert (response.type, response.term, response.log_term, response.index) == (M.STORAGE_APPEND_RESP, 2, 1, 1)


def test_a_demoted_voter_becomes_a_learner_when_the_joint_configuration_ends() -> None:
    raft = new_raft(1, ALL)
    raft.apply_conf_change(
        ConfChangeV2((ConfChange(ConfChangeType.ADD_LEARNER, 3),), ConfChangeTransition.JOINT_EXPLICIT)
    )
    flags = [raft.tracker.progress[3].is_learner]  # it still votes in the outgoing half
    raft.apply_conf_change(ConfChangeV2())
    flags.append(raft.tracker.progress[3].is_learner)
    assert flags == [False, True]
    assert raft.tracker.config.conf_state() == ConfState((1, 2), (3,))


@pytest.mark.parametrize(("length", "next_index"), [(0, 1), (3, 3)])
def test_a_new_member_is_probed_from_the_end_of_the_log(length: int, next_index: int) -> None:
    raft = new_raft(1, (1,), log=(1,) * length, term=1)
    raft.apply_conf_change(ConfChange(ConfChangeType.ADD_VOTER, 2))
    assert raft.tracker.progress[2].next == next_index
