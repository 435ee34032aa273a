"""CheckQuorum: leases, and servers that disturb (contract §7)."""

from __future__ import annotations

from typing import Any

from raft.core import ConfChange, ConfChangeType, Message, Role

from .network import M, Network, become_leader, drain, new_raft, role_of, sent_to, ticks

ALL = (1, 2, 3)


def network(**parameters: Any) -> Network:
    """Three nodes with fixed, distinct timeouts; 2 hears no one for long enough to vote."""
    net = Network.of(3, check_quorum=True, **parameters)
    for node in ALL:
        net[node].randomized_election_timeout = 10 + node
    return net


def test_uc058_leader_stays_while_a_quorum_answers() -> None:
    raft = become_leader(new_raft(1, ALL, check_quorum=True))
    for _ in range(11):
        raft.step(Message(M.HEARTBEAT_RESP, 1, 2, raft.term))
        raft.tick()
    assert role_of(raft) == Role.LEADER


def test_uc059_leader_steps_down_without_a_quorum() -> None:
    raft = become_leader(new_raft(1, ALL, check_quorum=True))
    drain(raft)
    ticks(raft, 11)
    assert (raft.role, raft.term, raft.lead) == (Role.FOLLOWER, 1, 0)


def test_uc060_a_lease_outlasts_a_candidate() -> None:
    net = network()
    ticks(net[2], 10)
    drain(net[2])
    net.campaign(1)
    net.campaign(3)
    assert net.roles() == [Role.LEADER, Role.FOLLOWER, Role.CANDIDATE]
    ticks(net[2], 10)  # the lease runs out
    net.campaign(3)
    assert role_of(net[3]) == Role.LEADER


def test_uc061_fresh_nodes_vote_without_waiting() -> None:
    net = network()
    net.campaign(1)
    assert net.roles() == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]
    ticks(net[1], 10)  # it hears no answer for a whole timeout, twice
    ticks(net[1], 10)
    ticks(net[2], 10)
    drain(net[1])
    drain(net[2])
    net.campaign(3)
    assert net.roles() == [Role.FOLLOWER, Role.FOLLOWER, Role.LEADER]


def test_uc062_stuck_candidate_is_freed() -> None:
    net = network()
    net.campaign(1)
    net.isolate(1)
    net.campaign(3)
    assert role_of(net[2]) == Role.FOLLOWER
    assert net[3].term == net[2].term + 1
    net.campaign(3)
    assert net[3].term == net[2].term + 2
    net.heal()
    net.send(Message(M.HEARTBEAT, 3, 1, net[1].term))
    assert role_of(net[1]) == Role.FOLLOWER
    assert net[1].term == net[3].term
    net.campaign(3)
    assert role_of(net[3]) == Role.LEADER


def test_uc063_voter_outside_its_own_configuration_still_votes() -> None:
    a = new_raft(1, (1, 2), check_quorum=True)
    b = new_raft(2, (1,), check_quorum=True)
    net = Network(a, b)
    assert not b.promotable
    ticks(b, 10)
    net.campaign(1)
    assert (a.role, b.role, b.lead) == (Role.LEADER, Role.FOLLOWER, 1)


def test_uc064_disruptive_follower_deposes_the_leader_once() -> None:
    net = network()
    net.campaign(1)
    ticks(net[3], net[3].randomized_election_timeout)  # just before the delayed heartbeat
    votes = drain(net[3])
    assert sent_to(votes, M.VOTE) == [1, 2]
    assert (net[3].role, net[3].term) == (Role.CANDIDATE, 2)
    net.send(Message(M.HEARTBEAT, 3, 1, 1))
    assert (net[1].role, net[1].term) == (Role.FOLLOWER, 2)


def test_uc065_m34_pre_vote_keeps_a_disruptive_follower_harmless() -> None:
    net = network(pre_vote=True)
    net.campaign(1)
    net.isolate(3)
    net.propose(1)
    net.heal()
    net[3].randomized_election_timeout = 10
    ticks(net[3], 10)
    net.flush()
    assert role_of(net[3]) == Role.PRE_CANDIDATE
    net.send(Message(M.HEARTBEAT, 3, 1, 1))
    assert net.roles() == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]
    assert net.terms() == [1, 1, 1]


def test_uc066_m17_new_peer_survives_one_check() -> None:
    raft = become_leader(new_raft(1, (1,), check_quorum=True))
    drain(raft)
    ticks(raft, 9)
    raft.apply_conf_change(ConfChange(ConfChangeType.ADD_VOTER, 2))
    raft.tick()
    assert role_of(raft) == Role.LEADER
    ticks(raft, 10)
    assert role_of(raft) == Role.FOLLOWER


def test_m34_a_partly_connected_node_cannot_depose_leaders_for_ever() -> None:
    """1 leads and reaches 2; 3 reaches only 2. Without the lease 3 would raise the term again and again."""
    net = network(pre_vote=True)
    net.campaign(1)
    net.cut(1, 3)
    for _ in range(50):
        for raft in net.nodes.values():
            raft.tick()
        net.flush()
    assert role_of(net[1]) == Role.LEADER
    assert net.terms() == [1, 1, 1]
