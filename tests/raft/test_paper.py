"""The Raft paper, section by section: each test names the sentence it checks."""

from __future__ import annotations

import pytest

from raft.core import Entry, Message, MessageType, Role
from raft.core.raft import Raft
from raft.core.roles import Cause

from .network import (
    M,
    Network,
    all_entries,
    apply,
    become_leader,
    drain,
    entries_of,
    leader,
    log_terms,
    new_raft,
    persist,
    propose,
    role_of,
    sent_to,
    take,
    ticks,
)

ALL = (1, 2, 3)


def in_role(role: Role, term: int = 0) -> Raft:
    raft = new_raft(1, ALL, term=term)
    if role == Role.CANDIDATE:
        raft.become_candidate(Cause.ELECTION_STARTED)
    elif role == Role.LEADER:
        become_leader(raft)
    drain(raft)
    return raft


# --- §5.1: terms


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_uc120_newer_term_makes_a_follower(role: Role) -> None:
    """If a server's term is smaller than another's, it updates; leaders and candidates step down."""
    raft = in_role(role)
    raft.step(Message(M.APP, 1, 2, 2))
    assert (raft.term, raft.role) == (2, Role.FOLLOWER)


def test_uc121_stale_term_is_rejected() -> None:
    raft = in_role(Role.FOLLOWER, term=2)
    raft.step(Message(M.APP, 1, 2, 1, commit=1, entries=(Entry(1, 1),)))
    assert (raft.log.last_index, raft.lead) == (0, 0)


# --- §5.2: elections


def test_uc122_servers_start_as_followers() -> None:
    assert role_of(new_raft(1, ALL)) == Role.FOLLOWER


def test_uc123_leader_sends_heartbeats_to_all() -> None:
    raft = become_leader(new_raft(1, ALL))
    for _ in range(10):
        raft.append_entries(entries_of(1, first=raft.log.last_index + 1), 0)
    take(raft)
    raft.tick()
    beats = take(raft)
    assert [(beat.type, beat.to, beat.term, beat.commit) for beat in beats] == [
        (M.HEARTBEAT, 2, 1, 0),
        (M.HEARTBEAT, 3, 1, 0),
    ]


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_uc124_silence_starts_a_new_election(role: Role) -> None:
    """It increments its term, votes for itself and asks all others."""
    raft = in_role(role)
    term = raft.term
    ticks(raft, 2 * raft.election_timeout - 1)
    assert (raft.term, raft.role, raft.vote) == (term + 1, Role.CANDIDATE, 1)
    votes = [message for message in drain(raft) if message.type == M.VOTE]
    assert [(vote.to, vote.term, vote.log_term, vote.index) for vote in votes] == [
        (2, term + 1, 0, 0),
        (3, term + 1, 0, 0),
    ]


@pytest.mark.parametrize(
    ("size", "votes", "role"),
    [
        (1, {}, Role.LEADER),
        (3, {2: True, 3: True}, Role.LEADER),
        (3, {2: True}, Role.LEADER),
        (5, {2: True, 3: True, 4: True, 5: True}, Role.LEADER),
        (5, {2: True, 3: True}, Role.LEADER),
        (3, {2: False, 3: False}, Role.FOLLOWER),
        (5, {2: False, 3: False, 4: False, 5: False}, Role.FOLLOWER),
        (5, {2: True, 3: False, 4: False, 5: False}, Role.FOLLOWER),
        (3, {}, Role.CANDIDATE),
        (5, {2: True}, Role.CANDIDATE),
        (5, {2: False, 3: False}, Role.CANDIDATE),
        (5, {}, Role.CANDIDATE),
    ],
)
def test_uc125_election_in_one_round(size: int, votes: dict[int, bool], role: Role) -> None:
    raft = new_raft(1, range(1, size + 1))
    raft.hup()
    drain(raft)
    for voter, granted in votes.items():
        raft.step(Message(M.VOTE_RESP, 1, voter, raft.term, reject=not granted))
    assert role_of(raft) == role
    assert raft.term == 1


@pytest.mark.parametrize(
    ("vote", "candidate", "reject"),
    [(0, 2, False), (0, 3, False), (2, 2, False), (3, 3, False), (2, 3, True), (3, 2, True)],
)
def test_uc126_m02_one_vote_per_term(vote: int, candidate: int, reject: bool) -> None:
    """Starred. First come, first served, and the answer waits for the disk."""
    raft = new_raft(1, ALL, term=1)
    raft.vote = vote
    raft.step(Message(M.VOTE, 1, candidate, 1))
    assert take(raft) == []
    (answer,) = raft.after_append
    assert (answer.to, answer.term, answer.reject) == (candidate, 1, reject)
    assert raft.vote == (vote or candidate)


@pytest.mark.parametrize("term", [1, 2])
def test_uc127_candidate_yields_to_a_leader(term: int) -> None:
    raft = in_role(Role.CANDIDATE)
    assert raft.term == 1
    raft.step(Message(M.APP, 1, 2, term))
    assert (raft.role, raft.term, raft.lead) == (Role.FOLLOWER, term, 2)


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_uc128_timeouts_are_random_in_the_whole_interval(role: Role) -> None:
    seen = set()
    raft = in_role(role)
    for _ in range(500):
        if role == Role.FOLLOWER:
            raft.become_follower(raft.term + 1, 2, Cause.TERM_ADVANCED)
        else:
            raft.become_candidate(Cause.ELECTION_STARTED)
        seen.add(raft.randomized_election_timeout)
        raft.role = role
        drain(raft)
    assert seen == set(range(10, 20))


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_uc129_simultaneous_timeouts_are_rare(role: Role) -> None:
    """In most cases only a single server times out first."""
    nodes = [new_raft(node, range(1, 6)) for node in range(1, 6)]
    conflicts = 0
    for _ in range(1000):
        for raft in nodes:
            raft.role = role
            raft.reset_randomized_timeout()
        first = min(raft.randomized_election_timeout for raft in nodes)
        conflicts += sum(raft.randomized_election_timeout == first for raft in nodes) > 1
    assert conflicts / 1000 <= 0.3


# --- §5.3: replication


def committed_first() -> Raft:
    """A leader whose empty entry is committed and known to be, on all."""
    net = Network.of(3)
    net.campaign(1)
    raft = net[1]
    apply(raft)
    return raft


def test_uc130_leader_starts_replication() -> None:
    """It appends the command, then sends AppendEntries with the position before it."""
    raft = committed_first()
    propose(raft, b"some data")
    entry = Entry(1, 2, data=b"some data")
    assert raft.log.unstable.entries == [entry]
    assert raft.log.committed == 1
    sent = take(raft)
    assert [(one.to, one.index, one.log_term, one.commit, one.entries) for one in sent] == [
        (2, 1, 1, 1, (entry,)),
        (3, 1, 1, 1, (entry,)),
    ]


def acknowledge_all(raft: Raft, nodes: tuple[int, ...]) -> None:
    for node in nodes:
        raft.step(Message(M.APP_RESP, 1, node, raft.term, 0, raft.log.last_index))


def test_uc131_leader_commits_what_a_majority_has() -> None:
    raft = committed_first()
    propose(raft, b"some data")
    drain(raft)
    acknowledge_all(raft, (2, 3))
    assert raft.log.committed == 2
    assert raft.log.next_committed(allow_unstable=True) == (Entry(1, 2, data=b"some data"),)
    assert [(one.to, one.commit) for one in take(raft)][:2] == [(2, 2), (3, 2)]


@pytest.mark.parametrize(
    ("size", "acceptors", "committed"),
    [
        (1, (), True),
        (3, (), False),
        (3, (2,), True),
        (3, (2, 3), True),
        (5, (), False),
        (5, (2,), False),
        (5, (2, 3), True),
        (5, (2, 3, 4), True),
        (5, (2, 3, 4, 5), True),
    ],
)
def test_uc132_leader_acknowledges_commit(size: int, acceptors: tuple[int, ...], committed: bool) -> None:
    raft = leader(1, *range(2, size + 1))
    acknowledge_all(raft, tuple(range(2, size + 1)))
    drain(raft)
    before = raft.log.committed
    propose(raft, b"some data")
    drain(raft)
    acknowledge_all(raft, acceptors)
    assert (raft.log.committed > before) is committed


@pytest.mark.parametrize("terms", [(), (2,), (1, 2), (1,)])
def test_uc133_preceding_entries_commit_together(terms: tuple[int, ...]) -> None:
    """Including entries of previous leaders, in order."""
    raft = become_leader(new_raft(1, ALL, log=terms, term=2))
    propose(raft, b"some data")
    drain(raft)
    acknowledge_all(raft, (2, 3))
    last = len(terms)
    applied = raft.log.next_committed(allow_unstable=True)
    assert [(one.index, one.term) for one in applied] == [
        *((index, term) for index, term in enumerate(terms, 1)),
        (last + 1, 3),
        (last + 2, 3),
    ]


@pytest.mark.parametrize(("count", "commit"), [(1, 1), (2, 2), (2, 1), (1, 0)])
def test_uc134_follower_applies_exactly_what_is_committed(count: int, commit: int) -> None:
    raft = new_raft(1, ALL, term=1)
    entries = tuple(Entry(1, index, data=b"%d" % index) for index in range(1, count + 1))
    raft.step(Message(M.APP, 1, 2, 1, 0, 0, entries, commit))
    assert raft.log.committed == commit
    assert raft.log.next_committed(allow_unstable=True) == entries[:commit]


@pytest.mark.parametrize(
    ("log_term", "prev", "index", "reject", "hint", "hint_term"),
    [
        (0, 0, 1, False, 0, 0),
        (1, 1, 1, False, 0, 0),
        (2, 2, 2, False, 0, 0),
        (1, 2, 2, True, 1, 1),
        (3, 3, 3, True, 2, 2),
    ],
)
def test_uc135_follower_checks_the_position_before(
    log_term: int, prev: int, index: int, reject: bool, hint: int, hint_term: int
) -> None:
    raft = new_raft(1, ALL, log=(1, 2), term=2)
    raft.log.commit_to(1)
    raft.step(Message(M.APP, 1, 2, 2, log_term, prev))
    (answer,) = drain(raft)
    assert (answer.type, answer.term, answer.index, answer.reject) == (M.APP_RESP, 2, index, reject)
    assert (answer.reject_hint, answer.log_term) == (hint, hint_term)


@pytest.mark.parametrize(
    ("prev", "log_term", "terms", "result", "unstable"),
    [
        (2, 2, (3,), [1, 2, 3], [3]),
        (1, 1, (3, 3), [1, 3, 3], [3, 3]),
        (0, 0, (1,), [1, 2], []),  # M3: already present, nothing is removed
        (0, 0, (3,), [3], [3]),
    ],
)
def test_uc136_m03_follower_deletes_only_conflicts(
    prev: int, log_term: int, terms: tuple[int, ...], result: list[int], unstable: list[int]
) -> None:
    raft = new_raft(1, ALL, log=(1, 2), term=3)
    raft.step(Message(M.APP, 1, 2, 3, log_term, prev, tuple(entries_of(*terms, first=prev + 1))))
    assert log_terms(raft) == result
    assert [entry.term for entry in raft.log.unstable.entries] == unstable


FIGURE_7 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("name", FIGURE_7)
def test_uc137_leader_brings_the_logs_of_figure_7_in_line(name: str) -> None:
    first = new_raft(1, ALL, log=(1, 1, 1, 4, 4, 5, 5, 6, 6, 6), term=8)
    first.log.commit_to(first.log.last_index)
    follower = new_raft(2, ALL, log=FIGURE_7[name], term=7)
    net = Network(first, follower, None)
    net.campaign(1)
    # The third vote is given by a server without a log of its own, which otherwise stays silent.
    net.send(Message(M.VOTE_RESP, 1, 3, first.term))
    assert role_of(first) == Role.LEADER
    net.propose(1)
    assert all_entries(follower) == all_entries(first)


# --- §5.4.1: election restriction


@pytest.mark.parametrize("entries", [((1, 1),), ((1, 1), (2, 2))])
def test_uc138_vote_request_carries_the_end_of_the_log(entries: tuple[tuple[int, int], ...]) -> None:
    raft = new_raft(1, ALL)
    log = tuple(Entry(term, index) for term, index in entries)
    raft.step(Message(M.APP, 1, 2, log[-1].term, 0, 0, log))
    drain(raft)
    ticks(raft, 2 * raft.election_timeout - 1)
    votes = [message for message in drain(raft) if message.type == M.VOTE]
    last = log[-1]
    assert [(vote.to, vote.term, vote.index, vote.log_term) for vote in votes] == [
        (2, last.term + 1, last.index, last.term),
        (3, last.term + 1, last.index, last.term),
    ]


@pytest.mark.parametrize(
    ("log", "log_term", "index", "reject"),
    [
        ((1,), 1, 1, False),
        ((1,), 1, 2, False),
        ((1, 1), 1, 1, True),
        ((1,), 2, 1, False),
        ((1,), 2, 2, False),
        ((1, 1), 2, 1, False),
        ((2,), 1, 1, True),
        ((2,), 1, 2, True),
        ((1, 2), 1, 1, True),
    ],
)
def test_uc139_m45_voter_compares_logs(log: tuple[int, ...], log_term: int, index: int, reject: bool) -> None:
    """The later last term wins; with equal terms the longer log."""
    raft = new_raft(1, (1, 2), log=log, term=2)
    raft.step(Message(M.VOTE, 1, 2, 3, log_term, index))
    (answer,) = drain(raft)
    assert (answer.type, answer.reject) == (MessageType.VOTE_RESP, reject)


# --- §5.4.2: entries of previous terms


@pytest.mark.parametrize(("acked", "commit"), [(1, 0), (2, 0), (3, 3)])
def test_uc140_m01_only_entries_of_the_current_term_are_counted(acked: int, commit: int) -> None:
    """Starred."""
    raft = new_raft(1, (1, 2), log=(1, 2), term=2)
    become_leader(raft)
    drain(raft)
    propose(raft, b"")
    raft.step(Message(M.APP_RESP, 1, 2, raft.term, 0, acked))
    assert raft.log.committed == commit


def test_restarted_voter_does_not_vote_twice() -> None:
    """M2, figure 2: currentTerm and votedFor are persistent."""
    raft = new_raft(1, ALL)
    raft.step(Message(M.VOTE, 1, 2, 1))
    persist(raft)
    again = new_raft(1, storage=raft.log.storage)  # type: ignore[arg-type]
    again.step(Message(M.VOTE, 1, 3, 1))
    (answer,) = drain(again)
    assert answer.reject
    again.step(Message(M.VOTE, 1, 2, 1))
    assert sent_to(drain(again), M.VOTE_RESP) == [2]
