"""Configuration changes in the running node (thesis §4; contract §14)."""

from __future__ import annotations

import pytest

from raft.core import (
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    InvariantViolation,
    Message,
    RefusedConfChange,
    Role,
    TraceEvent,
    encode_conf_change,
)
from raft.core.raft import Raft
from raft.core.trace import ConfChangeIgnored, RefusedChange

from .network import M, Network, all_entries, apply, become_leader, drain, leader, new_raft, propose, role_of, take

ADD, LEARN, REMOVE = ConfChangeType.ADD_VOTER, ConfChangeType.ADD_LEARNER, ConfChangeType.REMOVE


def proposal(change: ConfChange | ConfChangeV2, origin: int = 0) -> Message:
    kind, data = encode_conf_change(change)
    return Message(M.PROP, 1, origin, entries=(Entry(0, 0, kind, data),))


def voters(raft: Raft) -> tuple[int, ...]:
    return raft.tracker.config.conf_state().voters


def learners(raft: Raft) -> tuple[int, ...]:
    return raft.tracker.config.conf_state().learners


def test_uc096_conf_change_is_appended() -> None:
    raft = leader(1, 2)
    assert raft.step(proposal(ConfChange(ADD, 3)))
    assert raft.log.last_index == 2
    assert raft.pending_conf_index == 2


def test_uc097_m14_second_conf_change_becomes_an_empty_entry() -> None:
    """Starred: one change at a time (thesis §4.1)."""
    raft = leader(1, 2)
    raft.step(proposal(ConfChange(ADD, 3)))
    assert not raft.step(proposal(ConfChange(ADD, 4)))
    assert all_entries(raft)[-1] == Entry(1, 3, EntryType.NORMAL, b"")
    assert raft.pending_conf_index == 2


@pytest.mark.parametrize("log", [(), (1,)])
def test_uc098_m14_new_leader_assumes_a_pending_change(log: tuple[int, ...]) -> None:
    """Whatever its log holds may be a change that is not applied: none before its own first commit."""
    raft = become_leader(new_raft(1, (1, 2), log=log, term=1))
    assert raft.pending_conf_index == len(log)


def test_uc099_uc100_uc101_uc102_members_follow_changes() -> None:
    raft = new_raft(1, (1,))
    raft.apply_conf_change(ConfChange(ADD, 2))
    assert voters(raft) == (1, 2)
    raft.apply_conf_change(ConfChange(LEARN, 3))
    assert learners(raft) == (3,)
    assert raft.tracker.progress[3].is_learner
    raft.apply_conf_change(ConfChange(REMOVE, 3))
    assert learners(raft) == ()
    flags = []
    for kind in (LEARN, ADD):
        raft.apply_conf_change(ConfChange(kind, 1))
        flags.append(raft.is_learner)
    assert flags == [True, False]
    raft.apply_conf_change(ConfChange(REMOVE, 2))
    assert voters(raft) == (1,)
    with pytest.raises(InvariantViolation):
        raft.apply_conf_change(ConfChange(REMOVE, 1))


def test_uc102_removing_an_unknown_learner_changes_nothing() -> None:
    raft = new_raft(1, (1,))
    assert raft.apply_conf_change(ConfChange(REMOVE, 9)) == ConfState((1,))


def test_a_change_voided_by_the_application_does_nothing() -> None:
    raft = new_raft(1, (1,))
    assert raft.apply_conf_change(ConfChange(ADD, 0)) == ConfState((1,))


@pytest.mark.parametrize("ids", [(1, 2, 3), (3, 2, 1)])
def test_uc103_voters_are_sorted(ids: tuple[int, ...]) -> None:
    assert voters(new_raft(1, ids)) == (1, 2, 3)


def test_uc104_removal_commits_what_waits_for_the_removed_node() -> None:
    raft = leader(1, 2)
    raft.step(proposal(ConfChange(REMOVE, 2)))
    drain(raft)
    assert apply(raft) == []
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 2))  # the removal itself still needs both
    propose(raft, b"hello")
    drain(raft)
    assert [entry.index for entry in apply(raft)] == [1, 2]
    raft.apply_conf_change(ConfChange(REMOVE, 2))
    (entry,) = apply(raft)
    assert entry.data == b"hello"


def test_m47_refused_conf_change_is_reported_to_its_proposer() -> None:
    """At the leader at once, by the result and by Ready; elsewhere by a message with the context."""
    events: list[TraceEvent] = []
    net = Network(*(new_raft(node, (1, 2, 3), trace=events.append) for node in (1, 2, 3)))
    net.campaign(1)
    first, second = ConfChangeV2((ConfChange(ADD, 4),)), ConfChange(ADD, 5, b"who asks")
    net.ignore(M.APP)
    net.send(proposal(first))
    assert not net[1].step(proposal(second))
    assert net[1].refused_conf_changes == [RefusedConfChange(3, b"who asks")]
    net.send(proposal(second)._replace(to=2))
    assert net[2].refused_conf_changes == [RefusedConfChange(4, b"who asks")]
    ignored = [event for event in events if isinstance(event, ConfChangeIgnored)]
    assert ignored == [ConfChangeIgnored(1, index, RefusedChange.PENDING, b"who asks") for index in (3, 4)]


def test_m47_without_a_context_there_is_no_one_to_tell() -> None:
    raft = leader(1, 2, 3)
    raft.step(proposal(ConfChange(ADD, 4)))
    take(raft)
    raft.step(proposal(ConfChange(ADD, 5), origin=2))
    assert [message.type for message in take(raft) if message.type != M.APP] == []


def test_a_proposal_that_is_no_conf_change_is_refused_before_it_stops_every_member() -> None:
    raft = leader(1, 2)
    garbage = Message(M.PROP, 1, entries=(Entry(0, 0, EntryType.CONF_V2, b"garbage"),))
    assert not raft.step(garbage)
    assert all_entries(raft)[-1] == Entry(1, 2)


@pytest.mark.parametrize("leave_first", [True, False])
def test_joint_configuration_only_lets_a_leave_pass(leave_first: bool) -> None:
    raft = leader(1, 2)
    raft.log.commit_to(1)
    apply(raft)
    change = ConfChangeV2((ConfChange(ADD, 3),), ConfChangeTransition.JOINT_EXPLICIT)
    leave = ConfChangeV2()
    assert not raft.step(proposal(leave))  # not joint: nothing to leave
    raft.apply_conf_change(change)
    assert raft.tracker.config.is_joint
    if leave_first:
        assert raft.step(proposal(leave))
    else:
        assert not raft.step(proposal(change))


def test_removed_leader_leads_on_or_steps_down() -> None:
    for step_down in (False, True):
        raft = leader(1, 2, 3, step_down_on_removal=step_down)
        raft.apply_conf_change(ConfChange(REMOVE, 1))
        assert role_of(raft) == (Role.FOLLOWER if step_down else Role.LEADER)
        if not step_down:  # its own disk counts for nothing any more
            raft.append_entries((Entry(1, 2),), 0)
            drain(raft)
            assert raft.log.committed == 0


def test_m18_joint_configuration_is_left_exactly_once() -> None:
    raft = leader(1)
    change = ConfChangeV2((ConfChange(ADD, 2), ConfChange(ADD, 3)))
    raft.step(proposal(change))
    drain(raft)
    for _ in range(3):
        for entry in apply(raft):
            if entry.index == 2:
                raft.apply_conf_change(change)
                raft.applied_to(2, 0)
        drain(raft)
    leaves = [entry for entry in all_entries(raft) if entry.type == EntryType.CONF_V2]
    assert len(leaves) == 2  # the change, and one leave


def test_m41_next_change_is_accepted_once_the_core_has_applied_the_last() -> None:
    raft = leader(1)
    for index, node in ((2, 2), (3, 3)):
        assert raft.step(proposal(ConfChange(LEARN, node)))
        drain(raft)
        apply(raft)
        assert raft.log.applied == index
        raft.apply_conf_change(ConfChange(LEARN, node))
    assert learners(raft) == (2, 3)
