"""Log replication and commit, through a network and entry by entry (paper §5.3, §5.4)."""

from __future__ import annotations

import pytest

from raft.core import (
    NO_LIMIT,
    ConfState,
    Entry,
    HardState,
    InvariantViolation,
    MemoryStorage,
    Message,
    Role,
    Snapshot,
)
from raft.core.raft import Raft

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
    memory_of,
    new_raft,
    persist,
    role_of,
    storage_with,
)

ALL = (1, 2, 3)


@pytest.mark.parametrize(("leaders", "commit"), [((1,), 2), ((1, 2), 4)])
def test_uc067_log_replication(leaders: tuple[int, ...], commit: int) -> None:
    """Proposals through each leader in turn are applied everywhere, in order."""
    net = Network.of(3)
    sent = []
    for node in leaders:
        net.campaign(node)
        sent.append(b"from %d" % node)
        net.propose(node, sent[-1])
    for raft in net.nodes.values():
        assert raft.log.committed == commit
        assert [entry.data for entry in apply(raft) if entry.data] == sent


def test_uc068_learner_replicates_and_commits() -> None:
    net = Network(new_raft(1, (1,), (2,)), new_raft(2, (1,), (2,)))
    net.campaign(1)
    net.beat(1)
    net.propose(1, b"somedata")
    assert (net[2].is_learner, net[2].log.committed) == (True, 2)
    assert net[1].tracker.progress[2].match == net[2].log.committed


def test_uc069_single_node_commits_alone() -> None:
    net = Network.of(1)
    net.campaign(1)
    net.propose(1)
    net.propose(1)
    assert net[1].log.committed == 3


def stale_entries() -> Network:
    """Five nodes; the leader of term 1 could replicate two proposals only to 2, who now leads term 2."""
    net = Network.of(5)
    net.campaign(1)
    for node in (3, 4, 5):
        net.cut(1, node)
    net.propose(1)
    net.propose(1)
    assert net[1].log.committed == 1
    net.heal()
    return net


def test_uc070_m01_cannot_commit_without_new_term_entry() -> None:
    """Starred. Counting acknowledgements of an older term's entries commits nothing (paper §5.4.2)."""
    net = stale_entries()
    net.ignore(M.APP)
    net.campaign(2)
    assert role_of(net[2]) == Role.LEADER
    assert net[2].log.committed == 1
    net.heal()
    net.beat(2)  # followers catch up on the old entries, and on the empty one of the new term
    net.propose(2)
    assert net[2].log.committed == 5


def test_uc071_commit_through_the_empty_entry_of_the_new_term() -> None:
    net = stale_entries()
    net.campaign(2)
    assert net[2].log.committed == 4


@pytest.mark.parametrize(
    ("size", "dead", "committed"),
    [
        (1, (), True),
        (3, (), True),
        (3, (3,), True),
        (3, (2, 3), False),
        (4, (3, 4), False),
        (5, (4, 5), True),
    ],
)
def test_uc072_proposal_needs_a_majority(size: int, dead: tuple[int, ...], committed: bool) -> None:
    net = Network.of(size, dead=dead)
    net.campaign(1)
    net.propose(1)
    assert net[1].log.committed == (2 if committed else 0)
    if committed:
        assert all(all_entries(raft) == all_entries(net[1]) for raft in net.nodes.values())
    else:
        assert len(net.errors) == 1


@pytest.mark.parametrize("dead", [(), (3,)])
def test_uc073_proposal_through_a_follower(dead: tuple[int, ...]) -> None:
    net = Network.of(3, dead=dead)
    net.campaign(1)
    net.propose(2, b"somedata")
    assert net[1].log.committed == 2
    assert all(all_entries(raft)[-1].data == b"somedata" for raft in net.nodes.values())


@pytest.mark.parametrize(
    ("matches", "terms", "term", "commit"),
    [
        ((1,), (1,), 1, 1),
        ((1,), (1,), 2, 0),
        ((2,), (1, 2), 2, 2),
        ((1,), (2,), 2, 1),
        ((2, 1, 1), (1, 2), 1, 1),
        ((2, 1, 1), (1, 1), 2, 0),
        ((2, 1, 2), (1, 2), 2, 2),
        ((2, 1, 2), (1, 1), 2, 0),
        ((2, 1, 1, 1), (1, 2), 1, 1),
        ((2, 1, 1, 1), (1, 1), 2, 0),
        ((2, 1, 1, 2), (1, 2), 1, 1),
        ((2, 1, 1, 2), (1, 1), 2, 0),
        ((2, 1, 2, 2), (1, 2), 2, 2),
        ((2, 1, 2, 2), (1, 1), 2, 0),
    ],
)
def test_uc074_m01_commit_only_current_term(
    matches: tuple[int, ...], terms: tuple[int, ...], term: int, commit: int
) -> None:
    """Starred."""
    raft = new_raft(1, range(1, len(matches) + 1), log=terms, term=term)
    for node, match in enumerate(matches, 1):
        raft.tracker.progress[node].match = match
        raft.tracker.progress[node].next = match + 1
    raft.maybe_commit()
    assert raft.log.committed == commit


@pytest.mark.parametrize(
    ("log_term", "prev", "entries", "commit", "last", "committed", "reject"),
    [
        (3, 2, (), 3, 2, 0, True),  # previous term differs
        (3, 3, (), 3, 2, 0, True),  # previous entry is not there
        (1, 1, (), 1, 2, 1, False),
        (0, 0, (Entry(2, 1),), 1, 1, 1, False),
        (2, 2, (Entry(2, 3), Entry(2, 4)), 3, 4, 3, False),
        (2, 2, (Entry(2, 3),), 4, 3, 3, False),
        (1, 1, (Entry(2, 2),), 4, 2, 2, False),
        (1, 1, (), 3, 2, 1, False),  # M4: only what this append proves to match
        (1, 1, (Entry(2, 2),), 3, 2, 2, False),
        (2, 2, (), 3, 2, 2, False),
        (2, 2, (), 4, 2, 2, False),
    ],
)
def test_uc075_m04_handle_append(
    log_term: int,
    prev: int,
    entries: tuple[Entry, ...],
    commit: int,
    last: int,
    committed: int,
    reject: bool,
) -> None:
    raft = new_raft(1, ALL, log=(1, 2), term=3)
    raft.step(Message(M.APP, 1, 2, 3, log_term, prev, entries, commit))
    assert (raft.log.last_index, raft.log.committed) == (last, committed)
    (answer,) = drain(raft)
    assert answer.reject is reject


@pytest.mark.parametrize(("commit", "expected"), [(3, 3), (1, 2)])
def test_uc076_handle_heartbeat(commit: int, expected: int) -> None:
    raft = new_raft(1, (1, 2), log=(1, 2, 3), term=2)
    raft.log.commit_to(2)
    raft.step(Message(M.HEARTBEAT, 1, 2, 2, commit=commit))
    assert raft.log.committed == expected
    (answer,) = drain(raft)
    assert answer.type == M.HEARTBEAT_RESP


@pytest.mark.parametrize(
    ("leader_log", "follower_log", "hint", "probe"),
    [
        ((1, 2, 2, 4, 4, 4, 4), (1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3), (3, 7), (2, 3)),
        ((1, 2, 2, 3, 4, 4, 4, 5), (1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3), (3, 8), (3, 4)),
        ((1, 1, 1, 1), (1, 1, 1, 1), (1, 4), (1, 4)),
        ((1, 1, 1, 6), (1, 2, 2, 4), (4, 4), (1, 3)),
        ((1, 1, 1, 1, 1), (1, 1, 1, 1), (1, 4), (1, 4)),
        ((2, 5, 5, 5, 5, 5, 5, 5, 5), (2, 4, 4, 4, 4, 4), (4, 6), (2, 1)),
        ((2, 2, 2, 2, 2), (2, 4, 4, 4, 4, 4, 4, 4), (2, 1), (2, 1)),
        ((2, 2, 2, 5, 5, 5, 5), (2, 4, 4, 4, 4, 4, 4, 4), (4, 7), (2, 3)),
        ((1, 1, 3, 3), (1, 2, 2, 4), None, None),
    ],
)
def test_uc077_m22_fast_log_rejection(
    leader_log: tuple[int, ...],
    follower_log: tuple[int, ...],
    hint: tuple[int, int] | None,
    probe: tuple[int, int] | None,
) -> None:
    """One probe per term at most, whatever the logs."""
    term = max(leader_log + follower_log)
    first = new_raft(1, ALL, log=leader_log, term=term)
    second = new_raft(2, ALL, log=follower_log, term=term)
    become_leader(first)
    drain(first)
    net = Network(first, second)
    first.step(Message(M.HEARTBEAT_RESP, 1, 2, first.term))
    probes = [message for message in drain(first) if message.to == 2]
    answers = 0
    for _ in range(len(set(leader_log + follower_log)) + 2):
        rejected = False
        for message in probes:
            second.step(message)
            for answer in drain(second):
                rejected |= answer.reject
                if answer.reject and hint and answers == 0 and probes[0].index == len(leader_log):
                    assert (answer.log_term, answer.reject_hint) == hint
                answers += answer.reject
                first.step(answer)
        probes = [message for message in drain(first) if message.to == 2]
        if not rejected:
            break
        if probe and answers == 1:
            assert (probes[0].log_term, probes[0].index) == probe
    assert all_entries(second) == all_entries(first)
    assert net[1].tracker.progress[2].match == first.log.last_index


def test_uc077_m43_compacted_probe_position_steps_back_by_one() -> None:
    """The follower does not know the term any more; that is no conflict, and nothing may be deleted."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(3, 3, ConfState(ALL)))
    storage.append(entries_of(3, first=4))
    follower = new_raft(2, storage=storage, applied=3)
    follower.term = 3
    assert follower.log.find_conflict_by_term(2, 3) == (2, 0)
    raft = leader(1, 2, 3, log=(1, 1, 3, 3), term=3)
    progress = raft.tracker.progress[2]
    progress.next, progress.paused = 3, False
    raft.step(Message(M.APP_RESP, 1, 2, raft.term, 0, 2, reject=True, reject_hint=1))
    probe = [message for message in drain(raft) if message.to == 2][-1]
    assert (probe.log_term, probe.index) == (1, 1)
    follower.step(Message(M.APP, 2, 1, raft.term, 1, 1, tuple(entries_of(1, 3, 3, first=2)), 0))
    assert [entry.term for entry in follower.log.entries(4, NO_LIMIT)] == [3]
    (answer,) = drain(follower)
    assert (answer.reject, answer.index) == (False, 3)


def test_uc078_slow_node_is_restored_by_a_snapshot() -> None:
    net = Network.of(3)
    net.campaign(1)
    net.isolate(3)
    for _ in range(101):
        net.propose(1, b"")
    first = net[1]
    apply(first)
    memory_of(first).create_snapshot(first.log.applied, first.tracker.config.conf_state(), b"")
    memory_of(first).compact(first.log.applied)
    net.heal()
    for _ in range(3):  # first it must be heard again
        net.beat(1)
        net.propose(1, b"")
    apply(net[3])
    net.propose(1, b"")
    assert net[3].log.committed == first.log.committed


def old_append(raft: Raft, count: int) -> None:
    raft.step(Message(M.APP, 1, 2, 1, 0, 0, tuple(entries_of(*[1] * count)), 0))


def test_m03_late_append_does_not_cut_the_tail() -> None:
    """Only a conflict truncates: three entries arrive, then an old append that knows one of them."""
    raft = new_raft(1, ALL, term=1)
    old_append(raft, 3)
    raft.step(Message(M.HEARTBEAT, 1, 2, 1, commit=0))
    old_append(raft, 1)
    assert log_terms(raft) == [1, 1, 1]


def test_m22_divergent_logs_cost_one_probe_per_term() -> None:
    """A thousand conflicting entries of one term are skipped at once."""
    first = new_raft(1, ALL, log=(1, *[3] * 1000), term=3)
    second = new_raft(2, ALL, log=(1, *[2] * 1000), term=3)
    become_leader(first)
    first.broadcast_append()
    rejections = 0
    pending = [message for message in drain(first) if message.to == 2]
    while pending:
        message = pending.pop(0)
        second.step(message)
        for answer in drain(second):
            rejections += answer.reject
            first.step(answer)
        pending += [message for message in drain(first) if message.to == 2]
    assert all_entries(second) == all_entries(first)
    assert rejections <= 2


def test_persisted_entries_survive_a_restart() -> None:
    raft = leader(1, 2, 3)
    persist(raft)
    again = new_raft(1, storage=memory_of(raft))
    assert (again.role, again.lead, again.term, again.vote) == (Role.FOLLOWER, 0, 1, 1)
    assert log_terms(again) == [1]


def test_restart_with_an_impossible_commit_is_fatal() -> None:
    storage = storage_with(ALL, log=(1, 1), term=1)
    storage.set_hard_state(HardState(1, 0, 3))
    with pytest.raises(InvariantViolation):
        new_raft(1, storage=storage)
