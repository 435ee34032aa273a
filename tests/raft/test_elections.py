"""Elections and votes."""

from __future__ import annotations

import pytest

from raft.core import (
    ConfChange,
    ConfChangeType,
    ConfChangeV2,
    Entry,
    InvariantViolation,
    Message,
    MessageType,
    Role,
    encode_conf_change,
)
from raft.core.raft import Raft
from raft.core.roles import Cause

from .network import (
    M,
    Network,
    apply,
    become_leader,
    drain,
    leader,
    log_terms,
    new_raft,
    persist,
    propose,
    role_of,
    sent_to,
    storage_with,
    ticks,
    types,
)

ALL = (1, 2, 3)
FLAVOURS = pytest.mark.parametrize("pre_vote", [False, True])


def with_log(node: int, voters: int, *terms: int, pre_vote: bool = False) -> Raft:
    """A node whose log has these terms, and who has seen the last of them."""
    return new_raft(node, range(1, voters + 1), log=terms, term=max(terms, default=0), pre_vote=pre_vote)


def voted_for(node: int, voters: int, vote: int, term: int, *, pre_vote: bool = False) -> Raft:
    """A node with an empty log that voted in ``term``."""
    storage = storage_with(range(1, voters + 1), term=term, vote=vote)
    return new_raft(node, storage=storage, pre_vote=pre_vote)


@pytest.mark.parametrize(
    ("size", "dead", "role", "term"),
    [
        (3, (), Role.LEADER, 1),
        (3, (3,), Role.LEADER, 1),
        (3, (2, 3), Role.CANDIDATE, 1),
        (4, (2, 3), Role.CANDIDATE, 1),
        (5, (2, 3), Role.LEADER, 1),
    ],
)
def test_uc017_leader_election(size: int, dead: tuple[int, ...], role: Role, term: int) -> None:
    net = Network.of(size, dead=dead)
    net.campaign(1)
    assert (net[1].role, net[1].term) == (role, term)


def test_uc017_a_majority_with_longer_logs_rejects() -> None:
    net = Network(with_log(1, 5), *(with_log(node, 5, 1) for node in (2, 3, 4, 5)))
    for raft in net.nodes.values():
        raft.term = 0  # all in the same term, only the logs differ
    net.campaign(1)
    assert (net[1].role, net[1].term) == (Role.FOLLOWER, 1)


@pytest.mark.parametrize(
    ("size", "dead", "role", "term"),
    [
        (3, (), Role.LEADER, 1),
        (3, (3,), Role.LEADER, 1),
        (3, (2, 3), Role.PRE_CANDIDATE, 0),
        (4, (2, 3), Role.PRE_CANDIDATE, 0),
        (5, (2, 3), Role.LEADER, 1),
    ],
)
def test_uc018_leader_election_with_pre_vote(size: int, dead: tuple[int, ...], role: Role, term: int) -> None:
    net = Network.of(size, dead=dead, pre_vote=True)
    net.campaign(1)
    assert (net[1].role, net[1].term) == (role, term)


def test_uc019_learner_never_times_out() -> None:
    raft = new_raft(2, (1,), (2,))
    raft.randomized_election_timeout = 10
    ticks(raft, 10)
    assert role_of(raft) == Role.FOLLOWER
    assert not drain(raft)


def test_uc020_promoted_learner_can_win() -> None:
    net = Network(new_raft(1, (1,), (2,)), new_raft(2, (1,), (2,)))
    net.campaign(1)
    net.beat(1)
    for raft in net.nodes.values():
        apply(raft)
        raft.apply_conf_change(ConfChange(ConfChangeType.ADD_VOTER, 2))
    assert not net[2].is_learner
    net[2].randomized_election_timeout = 10
    ticks(net[2], 10)
    net.flush()
    net.beat(2)
    assert net.roles() == [Role.FOLLOWER, Role.LEADER]


def test_uc021_m15_learner_votes() -> None:
    raft = new_raft(2, (1,), (2,))
    raft.step(Message(M.VOTE, 2, 1, 2, 11, 11))
    (answer,) = drain(raft)
    assert (answer.type, answer.reject) == (M.VOTE_RESP, False)


@FLAVOURS
def test_uc022_uc023_leader_cycle(pre_vote: bool) -> None:
    net = Network.of(3, pre_vote=pre_vote)
    for candidate in ALL:
        net.campaign(candidate)
        assert net.roles() == [Role.LEADER if node == candidate else Role.FOLLOWER for node in ALL]


@FLAVOURS
def test_uc024_uc025_election_overwrites_newer_logs(pre_vote: bool) -> None:
    """An uncommitted entry of a newer term is lost, as it may be."""
    net = Network(
        with_log(1, 5, 1, pre_vote=pre_vote),
        with_log(2, 5, 1, pre_vote=pre_vote),
        with_log(3, 5, 2, pre_vote=pre_vote),
        voted_for(4, 5, 3, 2, pre_vote=pre_vote),
        voted_for(5, 5, 3, 2, pre_vote=pre_vote),
    )
    net.campaign(1)
    assert (net[1].role, net[1].term) == (Role.FOLLOWER, 2)
    net.campaign(1)
    assert (net[1].role, net[1].term) == (Role.LEADER, 3)
    for raft in net.nodes.values():
        assert log_terms(raft) == [1, 3]


def in_role(role: Role) -> Raft:
    raft = new_raft(1, ALL, term=1)
    if role == Role.PRE_CANDIDATE:
        raft.become_pre_candidate()
    elif role == Role.CANDIDATE:
        raft.become_candidate(Cause.ELECTION_STARTED)
    elif role == Role.LEADER:
        become_leader(raft)
    drain_without_effect(raft)
    return raft


def drain_without_effect(raft: Raft) -> None:
    raft.messages.clear()
    raft.after_append.clear()


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("kind", [M.VOTE, M.PRE_VOTE])
def test_uc026_uc027_vote_from_any_role(role: Role, kind: MessageType) -> None:
    """A real vote makes a follower of the next term; a pre-vote changes nothing."""
    raft = in_role(role)
    before = (raft.role, raft.term, raft.vote)
    asked = raft.term + 1
    raft.step(Message(kind, 1, 2, asked, asked, 42))
    (answer,) = drain(raft)
    assert answer.type == (M.VOTE_RESP if kind == M.VOTE else M.PRE_VOTE_RESP)
    assert (answer.reject, answer.term) == (False, asked)
    expected = (Role.FOLLOWER, asked, 2) if kind == M.VOTE else before
    assert (raft.role, raft.term, raft.vote) == expected


def test_uc028_dueling_candidates() -> None:
    net = Network.of(3)
    net.cut(1, 3)
    net.campaign(1)
    net.campaign(3)
    assert (net[1].role, net[3].role) == (Role.LEADER, Role.CANDIDATE)
    net.heal()
    net.campaign(3)  # disrupts the leader without being able to win
    assert net.roles() == [Role.FOLLOWER] * 3
    assert net.terms() == [2, 2, 2]
    assert [log_terms(raft) for raft in net.nodes.values()] == [[1], [1], []]


def test_uc029_dueling_pre_candidates() -> None:
    net = Network.of(3, pre_vote=True)
    net.cut(1, 3)
    net.campaign(1)
    net.campaign(3)
    net.heal()
    net.campaign(3)
    assert net.roles() == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]
    assert net.terms() == [1, 1, 1]


def test_uc030_candidate_concedes() -> None:
    net = Network.of(3)
    net.isolate(1)
    net.campaign(1)
    net.campaign(3)
    net.heal()
    net.beat(3)
    net.propose(3, b"force follower")
    net.beat(3)
    assert (net[1].role, net[1].term) == (Role.FOLLOWER, 1)
    assert [log_terms(raft) for raft in net.nodes.values()] == [[1, 1]] * 3


@FLAVOURS
def test_uc031_uc032_single_voter_leads_once_its_vote_is_durable(pre_vote: bool) -> None:
    raft = new_raft(1, (1,), pre_vote=pre_vote)
    raft.hup()
    assert role_of(raft) != Role.LEADER
    drain(raft)
    assert role_of(raft) == Role.LEADER


def test_uc033_old_messages_are_ignored() -> None:
    net = Network.of(3)
    for candidate in (1, 2, 1):
        net.campaign(candidate)
    net.send(Message(M.APP, 1, 2, 2, 0, 0, (Entry(2, 3),)))
    net.propose(1)
    for raft in net.nodes.values():
        assert log_terms(raft) == [1, 2, 3, 3]


@pytest.mark.parametrize(("elapsed", "share"), [(5, 0), (10, 0.1), (13, 0.4), (15, 0.6), (18, 0.9), (20, 1)])
def test_uc034_past_election_timeout(elapsed: int, share: float) -> None:
    raft = new_raft(1, (1,))
    expired = 0
    for _ in range(5000):
        raft.reset_randomized_timeout()
        expired += elapsed >= raft.randomized_election_timeout
    assert abs(expired / 5000 - share) < 0.03


def test_uc035_older_term_is_ignored() -> None:
    raft = new_raft(1, ALL, term=2)
    raft.step(Message(M.APP, 1, 2, 1, entries=(Entry(1, 1),), commit=1))
    assert not drain(raft)
    assert log_terms(raft) == []


VOTE_MATRIX = [
    # role, candidate's last index and term, vote cast, rejected
    (Role.FOLLOWER, 0, 0, 0, True),
    (Role.FOLLOWER, 0, 1, 0, True),
    (Role.FOLLOWER, 0, 2, 0, True),
    (Role.FOLLOWER, 0, 3, 0, False),
    (Role.FOLLOWER, 1, 0, 0, True),
    (Role.FOLLOWER, 1, 1, 0, True),
    (Role.FOLLOWER, 1, 2, 0, True),
    (Role.FOLLOWER, 1, 3, 0, False),
    (Role.FOLLOWER, 2, 0, 0, True),
    (Role.FOLLOWER, 2, 1, 0, True),
    (Role.FOLLOWER, 2, 2, 0, False),
    (Role.FOLLOWER, 2, 3, 0, False),
    (Role.FOLLOWER, 3, 0, 0, True),
    (Role.FOLLOWER, 3, 1, 0, True),
    (Role.FOLLOWER, 3, 2, 0, False),
    (Role.FOLLOWER, 3, 3, 0, False),
    (Role.FOLLOWER, 3, 2, 2, False),
    (Role.FOLLOWER, 3, 2, 1, True),
    (Role.LEADER, 3, 3, 1, True),
    (Role.PRE_CANDIDATE, 3, 3, 1, True),
    (Role.CANDIDATE, 3, 3, 1, True),
]


@pytest.mark.parametrize(("role", "index", "log_term", "vote", "reject"), VOTE_MATRIX)
@pytest.mark.parametrize("kind", [M.VOTE, M.PRE_VOTE])
def test_uc036_uc037_vote_matrix(
    kind: MessageType, role: Role, index: int, log_term: int, vote: int, reject: bool
) -> None:
    """Starred. One vote per term, and only for a log at least as complete as the own [2, 2]."""
    raft = new_raft(1, ALL, log=(2, 2), term=3)
    raft.role, raft.vote = role, vote
    raft.term = term = max(raft.log.last_term, log_term)
    raft.step(Message(kind, 1, 2, term, log_term, index))
    (answer,) = raft.after_append
    assert answer.reject is reject


ALLOWED = {
    Role.FOLLOWER: {Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE},
    Role.PRE_CANDIDATE: {Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE},
    Role.CANDIDATE: {Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER},
    Role.LEADER: {Role.FOLLOWER},
}


@pytest.mark.parametrize("start", list(Role))
@pytest.mark.parametrize("target", list(Role))
def test_uc038_transitions(start: Role, target: Role) -> None:
    raft = in_role(start)
    term = raft.term
    ways = {
        Role.FOLLOWER: lambda: raft.become_follower(term + 1, 2, Cause.TERM_ADVANCED),
        Role.PRE_CANDIDATE: raft.become_pre_candidate,
        Role.CANDIDATE: lambda: raft.become_candidate(
            Cause.PRE_VOTE_WON if start == Role.PRE_CANDIDATE else Cause.ELECTION_STARTED
        ),
        Role.LEADER: raft.become_leader,
    }
    if target not in ALLOWED[start]:
        with pytest.raises(InvariantViolation):
            ways[target]()
        return
    ways[target]()
    after = {
        Role.FOLLOWER: (term + 1, 2),
        Role.PRE_CANDIDATE: (term, 0),
        Role.CANDIDATE: (term + 1, 0),
        Role.LEADER: (term, 1),
    }
    assert role_of(raft) == target
    assert (raft.term, raft.lead) == after[target]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("kind", [M.VOTE, M.APP])
def test_uc039_every_role_yields_to_a_higher_term(role: Role, kind: MessageType) -> None:
    raft = in_role(role)
    length = raft.log.last_index
    raft.step(Message(kind, 1, 2, 3, 3))
    assert (raft.role, raft.term) == (Role.FOLLOWER, 3)
    assert raft.lead == (2 if kind == M.APP else 0)
    assert raft.log.last_index == length


@pytest.mark.parametrize("kind", [M.HEARTBEAT, M.APP])
def test_uc040_uc041_isolated_candidate_returns_at_an_equal_term(kind: MessageType) -> None:
    net = Network.of(3)
    net.isolate(3)
    net.campaign(2)
    net.campaign(1)
    net[3].randomized_election_timeout = 10
    while net[3].term < net[1].term:
        ticks(net[3], 20)
        drain(net[3])
    assert role_of(net[3]) == Role.CANDIDATE
    net.heal()
    net.send(Message(kind, 3, 1, net[1].term))
    assert (net[3].role, net[3].lead, net[3].term) == (Role.FOLLOWER, 1, net[1].term)


@FLAVOURS
def test_uc042_uc043_own_vote_counts_for_nothing_after_the_election_is_lost(pre_vote: bool) -> None:
    raft = new_raft(1, ALL, pre_vote=pre_vote)
    raft.hup()
    (own,) = [message for message in raft.after_append if message.to == 1]
    drain_without_effect(raft)
    raft.step(Message(M.HEARTBEAT, 1, 2, raft.term))
    assert role_of(raft) == Role.FOLLOWER
    raft.step(own)
    assert role_of(raft) == Role.FOLLOWER
    assert raft.tracker.votes == {}


def test_uc044_stale_own_pre_vote_is_no_real_vote() -> None:
    raft = new_raft(1, ALL, pre_vote=True)
    raft.hup()
    (own_pre_vote,) = raft.after_append
    drain_without_effect(raft)
    for voter in (2, 3):
        raft.step(Message(M.PRE_VOTE_RESP, 1, voter, raft.term + 1))
        if raft.role == Role.CANDIDATE:
            break
    raft.step(Message(M.PRE_VOTE_RESP, 1, 3, raft.term))
    assert role_of(raft) == Role.CANDIDATE
    (own_vote,) = raft.after_append
    drain_without_effect(raft)
    raft.step(own_pre_vote)
    raft.step(Message(M.VOTE_RESP, 1, 2, raft.term))
    assert role_of(raft) == Role.CANDIDATE
    raft.step(own_vote)
    assert role_of(raft) == Role.LEADER


def test_uc045_own_acknowledgement_of_an_older_term_is_ignored() -> None:
    raft = leader(1, 2, 3)
    propose(raft, b"x")
    own = [message for message in raft.after_append if message.to == 1]
    drain_without_effect(raft)
    raft.step(Message(M.HEARTBEAT, 1, 2, raft.term + 1))
    for message in own:
        raft.step(message)
    assert role_of(raft) == Role.FOLLOWER
    assert raft.log.committed == 0


@FLAVOURS
def test_uc046_uc047_leader_does_not_campaign(pre_vote: bool) -> None:
    raft = leader(1, 2, 3, pre_vote=pre_vote)
    raft.hup()
    assert (raft.role, raft.term) == (Role.LEADER, 1)
    assert not drain(raft)


def test_uc048_m06_node_behind_in_terms_can_complete_an_election() -> None:
    net = Network.of(3, pre_vote=True)
    net.cut(1, 3)
    net.cut(2, 3)
    net.campaign(1)
    net.campaign(2)
    net.campaign(3)
    assert role_of(net[3]) == Role.PRE_CANDIDATE
    net.heal()
    net.isolate(2)  # the leader dies as 3 returns
    net.campaign(3)
    net.campaign(1)
    assert Role.LEADER in (net[1].role, net[3].role)


def test_uc049_split_vote_with_pre_vote_is_resolved_by_the_next_timeout() -> None:
    net = Network.of(3, pre_vote=True)
    net.campaign(1)
    net.isolate(1)
    for node in (2, 3):
        net[node].become_pre_candidate()
        net[node].become_candidate(Cause.PRE_VOTE_WON)
    assert net.terms()[1:] == [2, 2]
    net.campaign(2)
    assert (net[2].role, net[2].term) == (Role.LEADER, 3)
    assert role_of(net[3]) == Role.FOLLOWER


def test_uc050_m07_pre_candidate_forgets_the_leader_and_votes() -> None:
    net = Network.of(3, pre_vote=True, check_quorum=True)
    net.campaign(1)
    net.isolate(1)
    for node in (2, 3):
        net[node].election_elapsed = 0
    net.campaign(3)
    net.campaign(2)
    assert Role.LEADER in (net[2].role, net[3].role)


def test_uc051_m16_learner_does_not_campaign() -> None:
    raft = new_raft(2, (1,), (2,))
    raft.hup()
    assert role_of(raft) == Role.FOLLOWER
    raft.step(Message(M.TIMEOUT_NOW, 2, 1))
    assert role_of(raft) == Role.FOLLOWER


def migrated() -> Network:
    """3 has a higher term but a short log, from the time before everybody had PreVote."""
    net = Network.of(3)
    net[3].check_quorum = False
    for node in (1, 2):
        net[node].pre_vote = True
    net.campaign(1)
    net.isolate(3)
    net.propose(1)
    for _ in range(2):
        net.campaign(3)
    assert net.terms() == [1, 1, 2] or net.terms() == [1, 1, 3]
    net[3].pre_vote = True
    net.heal()
    return net


def test_uc052_pre_vote_migration_can_complete_an_election() -> None:
    net = migrated()
    net.isolate(1)
    for _ in range(3):
        net.campaign(3)
        net.campaign(2)
    assert role_of(net[2]) == Role.LEADER
    assert role_of(net[3]) == Role.FOLLOWER


def test_uc053_stuck_pre_candidate_is_freed_by_the_leader_heartbeat() -> None:
    net = migrated()
    stuck = net[3].term
    for _ in range(2):
        net.campaign(3)
        assert net.roles() == [Role.LEADER, Role.FOLLOWER, Role.PRE_CANDIDATE]
    net.send(Message(M.HEARTBEAT, 3, 1, net[1].term))
    assert role_of(net[1]) == Role.FOLLOWER
    assert net[1].term == stuck


LATER_VOTER = [
    ConfChange(ConfChangeType.REMOVE, 3),
    ConfChangeV2((ConfChange(ConfChangeType.REMOVE, 3),)),
]


@pytest.mark.parametrize("change", LATER_VOTER)
def test_uc054_uc055_m13_no_campaign_with_an_unapplied_conf_change(change: ConfChange | ConfChangeV2) -> None:
    """Starred: neither by timeout nor by transfer, until it is applied."""
    net = Network.of(3)
    net.campaign(1)
    kind, data = encode_conf_change(change)
    net.send(Message(M.PROP, 1, 1, entries=(Entry(0, 0, kind, data),)))
    assert net[2].log.committed > net[2].log.applied
    net[2].randomized_election_timeout = 10
    ticks(net[2], 10)
    net.flush()
    assert role_of(net[2]) == Role.FOLLOWER
    net.transfer(1, 2)
    assert net.roles() == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]
    net[1].abort_transfer()
    apply(net[2])
    net[2].apply_conf_change(change)
    net.transfer(1, 2)
    assert role_of(net[2]) == Role.LEADER
    # The old leader has not applied it either.
    net.transfer(2, 1)
    assert role_of(net[2]) == Role.LEADER
    net[2].abort_transfer()
    apply(net[1])
    net[1].apply_conf_change(change)
    net.transfer(2, 1)
    assert role_of(net[1]) == Role.LEADER


@pytest.mark.parametrize(("voters", "promotable"), [((1,), True), (ALL, True), ((), False), ((2, 3), False)])
def test_uc056_promotable(voters: tuple[int, ...], promotable: bool) -> None:
    assert new_raft(1, voters).promotable is promotable


def test_uc057_non_member_is_told_to_take_over() -> None:
    raft = new_raft(1, (2, 3, 4))
    raft.step(Message(M.TIMEOUT_NOW, 1, 2))
    raft.step(Message(M.VOTE_RESP, 1, 2))
    raft.step(Message(M.VOTE_RESP, 1, 3))
    assert role_of(raft) == Role.FOLLOWER


def test_m33_pre_vote_does_not_lock_out_the_old_leader() -> None:
    """A leader that stepped down may be the only one that can reach a quorum."""
    net = Network.of(3, pre_vote=True, check_quorum=True)
    net.campaign(1)
    net[1].on_check_quorum()
    net[1].on_check_quorum()
    assert role_of(net[1]) == Role.FOLLOWER
    net.cut(2, 3)
    for node in (2, 3):
        ticks(net[node], 10)  # their lease has run out
        drain(net[node])
    net.campaign(1)
    assert role_of(net[1]) == Role.LEADER


def test_vote_is_recorded_durably_before_the_answer_leaves() -> None:
    """M2, paper figure 2: the answer waits behind the write of term and vote."""
    raft = new_raft(1, ALL)
    raft.step(Message(M.VOTE, 1, 2, 1, 0, 0))
    assert types(raft.messages) == []
    assert types(raft.after_append) == [M.VOTE_RESP]
    assert raft.hard_state == (1, 2, 0)
    persist(raft)
    assert sent_to(drain(raft), M.VOTE_RESP) == [2]
