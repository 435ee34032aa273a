"""Leadership transfer (thesis §3.10; contract §13)."""

from __future__ import annotations

from typing import Any

import pytest

from raft.core import ConfChange, ConfChangeType, DropReason, Message, ProposalDropped, Role
from raft.core.raft import Raft

from .network import M, Network, apply, drain, memory_of, new_raft, propose, role_of, ticks

ALL = (1, 2, 3)


def led_by_one(**parameters: Any) -> Network:
    net = Network.of(3, **parameters)
    net.campaign(1)
    return net


def check(raft: Raft, role: Role, lead: int) -> None:
    assert (raft.role, raft.lead, raft.transferee) == (role, lead, 0)


@pytest.mark.parametrize("asked", [(1, 2), (2, 1)])
def test_uc105_uc106_to_up_to_date_node(asked: tuple[int, int]) -> None:
    """The wish may be told to the leader or to a follower, who forwards it."""
    net = led_by_one()
    net.transfer(asked[0], 2)
    check(net[1], Role.FOLLOWER, 2)
    net.propose(1)
    net.transfer(asked[1], 1)
    check(net[1], Role.LEADER, 1)


def test_uc107_m32_with_check_quorum_the_lease_does_not_refuse() -> None:
    net = led_by_one(check_quorum=True, pre_vote=True)
    for raft in net.nodes.values():
        raft.randomized_election_timeout = 10 + raft.id
    net.transfer(1, 2)
    check(net[1], Role.FOLLOWER, 2)
    net.propose(1)
    net.transfer(2, 1)
    check(net[1], Role.LEADER, 1)


def test_uc108_to_slow_follower() -> None:
    net = led_by_one()
    net.isolate(3)
    net.propose(1)
    net.heal()
    assert net[1].tracker.progress[3].match == 1
    net.transfer(1, 3)
    check(net[1], Role.FOLLOWER, 3)


def test_uc109_after_a_snapshot() -> None:
    net = led_by_one()
    net.isolate(3)
    net.propose(1)
    first = net[1]
    apply(first)
    memory_of(first).create_snapshot(first.log.applied, first.tracker.config.conf_state(), b"")
    memory_of(first).compact(first.log.applied)
    net.heal()
    held: list[Message] = []

    def hold(message: Message) -> bool:
        if message.type == M.APP_RESP and message.from_ == 3 and not message.reject:
            held.append(message)
            return False
        return True

    net.hook = hold
    net.transfer(1, 3)
    assert role_of(first) == Role.LEADER
    assert held
    apply(net[3])
    net.heal()
    net.send(*held)
    check(first, Role.FOLLOWER, 3)


@pytest.mark.parametrize("target", [1, 4])
def test_uc110_uc111_to_self_or_to_no_member(target: int) -> None:
    net = led_by_one()
    net.transfer(1, target)
    check(net[1], Role.LEADER, 1)


def test_uc111_m16_to_a_learner() -> None:
    net = Network(*(new_raft(node, (1, 2), (3,)) for node in ALL))
    net.campaign(1)
    net.transfer(1, 3)
    check(net[1], Role.LEADER, 1)


def pending() -> Network:
    """A transfer to 3, which is cut off."""
    net = led_by_one()
    net.isolate(3)
    net.transfer(1, 3)
    assert net[1].transferee == 3
    return net


def test_uc112_m31_times_out_after_one_election_timeout() -> None:
    net = pending()
    ticks(net[1], 1)
    assert net[1].transferee == 3
    ticks(net[1], 9)
    check(net[1], Role.LEADER, 1)


def test_uc113_ignores_proposals() -> None:
    """Starred: a proposal now could be lost with the leadership."""
    net = pending()
    match = net[1].tracker.progress[1].match
    with pytest.raises(ProposalDropped) as caught:
        propose(net[1], b"x")
    assert caught.value.reason == DropReason.TRANSFERRING
    drain(net[1])
    assert net[1].tracker.progress[1].match == match


def test_uc114_m31_higher_term_vote_ends_it() -> None:
    net = pending()
    net.campaign(2)
    check(net[1], Role.FOLLOWER, 2)


@pytest.mark.parametrize("kind", [ConfChangeType.REMOVE, ConfChangeType.ADD_LEARNER])
def test_uc115_uc116_target_removed_or_demoted(kind: ConfChangeType) -> None:
    net = pending()
    net[1].apply_conf_change(ConfChange(kind, 3))
    check(net[1], Role.LEADER, 1)


def test_uc117_back_to_self() -> None:
    net = pending()
    net.transfer(1, 1)
    check(net[1], Role.LEADER, 1)


def test_uc118_another_target_replaces_the_first() -> None:
    net = pending()
    net.transfer(1, 2)
    check(net[1], Role.FOLLOWER, 2)


def test_uc119_the_same_target_again_gets_no_more_time() -> None:
    net = pending()
    ticks(net[1], 1)
    net.transfer(1, 3)
    ticks(net[1], 9)
    check(net[1], Role.LEADER, 1)


def test_transfer_without_a_leader_is_dropped() -> None:
    raft = new_raft(1, ALL)
    raft.step(Message(M.TRANSFER_LEADER, 1, 2))
    assert drain(raft) == []
