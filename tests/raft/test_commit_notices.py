"""Commit indexes that want no answer (Config.commit_notices): fewer messages, and nothing that gets stuck."""

from __future__ import annotations

import pytest

from raft.core.types import NOTICE, ConfState, Message, Snapshot

from .network import M, Network, become_leader, drain, entries_of, new_raft, storage_with


def written(notices: bool) -> tuple[Network, list[Message]]:
    """Three members, and every message of one write."""
    net = Network.of(3, commit_notices=notices)
    net.campaign(1)
    net.delivered.clear()
    net.propose(1, b"x")
    return net, [message for message in net.delivered if message.from_ != message.to and message.type != M.PROP]


def test_a_write_costs_a_quarter_less() -> None:
    """Two appends, two acknowledgements, two notices; etcd's protocol has the notices answered."""
    with_answers, without = written(False), written(True)
    assert [len(messages) for _, messages in (with_answers, without)] == [8, 6]
    for net, _ in (with_answers, without):
        assert [net[node].log.committed for node in (1, 2, 3)] == [2, 2, 2]
    assert [message.context for message in without[1]].count(NOTICE) == 2


def test_a_follower_that_cannot_follow_a_notice_says_so() -> None:
    """Its log ends before: the answer is the rejection that makes the leader find out."""
    follower = new_raft(2, (1, 2, 3), storage=storage_with((1, 2, 3), log=(1,), term=1))
    follower.step(Message(M.APP, 2, 1, 1, log_term=1, index=5, commit=5, context=NOTICE))
    assert follower.log.committed == 0
    assert [(m.type, m.reject, m.reject_hint) for m in drain(follower)] == [(M.APP_RESP, True, 1)]


def test_a_notice_commits_nothing_that_it_does_not_speak_of() -> None:
    """The commit index of the leader may be beyond what is known to match here (M4)."""
    follower = new_raft(2, (1, 2, 3), storage=storage_with((1, 2, 3), log=(1, 1, 1), term=1))
    follower.step(Message(M.APP, 2, 1, 1, log_term=1, index=2, commit=3, context=NOTICE))
    assert follower.log.committed == 2
    assert drain(follower) == []


@pytest.mark.parametrize("lost", [M.APP_RESP, M.APP])
def test_lost_messages_are_made_up_for_at_the_next_heartbeat(lost: M) -> None:
    """A lost acknowledgement must not leave the leader waiting for one that a notice would have brought."""
    net = Network.of(3, commit_notices=True)
    net.campaign(1)
    net.hook = lambda message: not (message.type == lost and 3 in (message.from_, message.to))
    net.propose(1, b"x")
    net.heal()
    net.beat(1)
    net.beat(1)
    assert net[1].tracker.progress[3].match == net[1].log.last_index
    assert net[3].log.committed == net[1].log.committed == 2


@pytest.mark.parametrize("notices", [False, True])
def test_a_peer_that_claims_more_than_the_leader_has_gets_a_snapshot(notices: bool) -> None:
    """Members lost what they had acknowledged, or the answer is forged: no reason for the leader to stop."""
    storage = storage_with((1, 2, 3), log=(1, 1), term=1)
    raft = new_raft(1, (1, 2, 3), storage=storage, commit_notices=notices)
    become_leader(raft)
    drain(raft)
    storage.snapshot = lambda: Snapshot(2, 1, ConfState((1, 2, 3)))  # type: ignore[method-assign]
    raft.step(Message(M.APP_RESP, 1, 1, raft.term, index=raft.log.last_index))
    raft.step(Message(M.APP_RESP, 1, 3, raft.term, index=raft.log.last_index + 5))
    assert raft.log.committed == raft.log.last_index
    assert M.SNAP in [message.type for message in drain(raft)]


def test_an_append_with_entries_is_answered_whatever_its_context() -> None:
    follower = new_raft(2, (1, 2, 3))
    follower.step(Message(M.APP, 2, 1, 1, entries=tuple(entries_of(1)), commit=0, context=NOTICE))
    assert [(m.type, m.index) for m in drain(follower)] == [(M.APP_RESP, 1)]
