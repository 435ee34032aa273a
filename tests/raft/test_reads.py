"""Linearizable reads (thesis §6.4; contract §12)."""

from __future__ import annotations

import pytest

from raft.core import ConfState, Entry, EntryType, Message, ReadOnlyOption, ReadState, Role
from raft.core.raft import Raft
from raft.core.readonly import ReadQueue

from .network import M, Network, become_leader, drain, leader, new_raft, role_of, take, ticks, types

ALL = (1, 2, 3)


def read(net: Network, node: int, context: bytes) -> None:
    net.send(request(node, context))


def request(node: int, context: bytes) -> Message:
    return Message(M.READ_INDEX, node, entries=(Entry(0, 0, EntryType.NORMAL, context),))


def answers(raft: Raft) -> list[ReadState]:
    states = list(raft.read_states)
    raft.read_states.clear()
    return states


def expect_reads(net: Network) -> None:
    """Reads at every node in turn, after 10, 20, ... proposals, answer with what is committed then."""
    for number, node in enumerate((1, 2, 3, 1, 2, 3), 1):
        for _ in range(10):
            net.propose(1, b"")
        context = b"read %d" % number
        read(net, node, context)
        assert answers(net[node]) == [ReadState(1 + 10 * number, context)]


def test_uc079_safe_reads() -> None:
    net = Network.of(3)
    net.campaign(1)
    expect_reads(net)


def test_uc080_reads_with_a_learner() -> None:
    net = Network(new_raft(1, (1,), (2,)), new_raft(2, (1,), (2,)))
    net.campaign(1)
    for number, node in enumerate((1, 2, 1, 2), 1):
        for _ in range(10):
            net.propose(1, b"")
        read(net, node, b"ctx%d" % number)
        assert answers(net[node]) == [ReadState(1 + 10 * number, b"ctx%d" % number)]


def test_uc081_m12_lease_reads_need_no_round() -> None:
    net = Network.of(3, read_only=ReadOnlyOption.LEASE_BASED, check_quorum=True)
    net.campaign(1)
    expect_reads(net)
    net.delivered.clear()
    read(net, 1, b"x")
    assert types(net.delivered) == [M.READ_INDEX]


def test_uc082_m08_a_new_leader_postpones_reads_until_it_has_committed() -> None:
    """It may not know yet what its predecessor acknowledged."""
    net = Network.of(3)
    net.campaign(2)
    net.propose(2, b"")
    net.isolate(1)
    net.propose(2, b"")  # 1 does not hear of its commit
    net.heal()
    net.hook = lambda message: message.type not in (M.APP, M.HEARTBEAT)
    for raft in net.nodes.values():
        raft.lead = 0
    net.campaign(3)
    assert role_of(net[3]) == Role.LEADER
    committed = net[2].log.committed
    read(net, 3, b"early")
    assert answers(net[3]) == []
    net.heal()
    net.beat(3)
    net.beat(3)
    (state,) = answers(net[3])
    assert (state.index, state.context) == (committed + 1, b"early")
    read(net, 3, b"later")
    assert answers(net[3]) == [ReadState(committed + 1, b"later")]


def test_m09_a_single_node_postpones_reads_as_well() -> None:
    """After a restart its commit index may lag behind what it acknowledged."""
    raft = new_raft(1, (1,), log=(1, 1), term=1)
    raft.hup()
    while raft.role != Role.LEADER:
        waiting, raft.after_append = raft.after_append, []
        for message in waiting:
            raft.step(message)
    raft.step(request(1, b"at once"))
    assert answers(raft) == []
    drain(raft)  # its empty entry is durable, and commits all
    assert answers(raft) == [ReadState(3, b"at once")]


def test_uc083_m10_duplicated_requests_and_late_acknowledgements_never_answer_stale() -> None:
    """The context is the caller's and may repeat; only positions of the current term confirm a read."""
    net = Network.of(3)
    net.campaign(1)
    late: list[Message] = []

    def delay(message: Message) -> bool:
        if message.type == M.HEARTBEAT_RESP and message.context:
            late.append(message)
            return False
        return True

    net.hook = delay
    read(net, 1, b"same")
    assert len(late) == 2
    net.heal()
    net.isolate(1)
    net.campaign(2)
    net.propose(2, b"written meanwhile")
    committed = net[2].log.committed
    read(net, 1, b"same")  # at the deposed leader, which does not know
    net.send(*late, *late)
    for state in answers(net[1]):
        assert state.index < committed  # requested before the write
    assert len(net[1].reads) == 1  # the second read is not confirmed by acknowledgements of the first
    net.heal()
    net.beat(2)
    net.send(*late)
    assert answers(net[1]) == []
    assert role_of(net[1]) == Role.FOLLOWER
    read(net, 2, b"same")
    assert answers(net[2]) == [ReadState(committed, b"same")]


def test_uc084_confirmed_reads_free_their_memory() -> None:
    net = Network.of(3)
    net.campaign(1)
    net.hook = lambda message: message.type != M.HEARTBEAT
    read(net, 1, b"ctx")
    assert len(net[1].reads) == 1
    net.heal()
    net.beat(1)
    assert len(net[1].reads) == 0
    assert answers(net[1]) == [ReadState(1, b"ctx")]


def test_uc085_a_deposed_leader_forwards_a_read_again() -> None:
    net = Network.of(3)
    net.campaign(1)
    follower = net[2]
    follower.step(request(2, b"ctx"))
    (forwarded,) = take(follower)
    assert (forwarded.term, forwarded.to, forwarded.from_) == (0, 1, 2)
    net.campaign(3)
    net.send(forwarded)
    assert answers(net[2]) == [ReadState(2, b"ctx")]


def test_reads_without_a_leader_are_dropped() -> None:
    raft = new_raft(1, ALL)
    raft.step(request(1, b"x"))
    assert drain(raft) == []
    raft.become_pre_candidate()
    raft.step(request(1, b"x"))
    assert drain(raft) == []


def test_m10_positions_are_not_the_callers_context() -> None:
    raft = leader(1, 2, 3)
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 1))
    drain(raft)
    contexts = set()
    for _ in range(3):
        raft.step(request(1, b"same"))
        contexts |= {message.context for message in take(raft)}
    assert len(contexts) == 3
    assert b"same" not in contexts


def test_a_lost_round_heals_with_the_next_heartbeat() -> None:
    """And one round confirms every read before it."""
    raft = leader(1, 2, 3)
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 1))
    for name in (b"a", b"b"):
        raft.step(request(1, name))
    take(raft)
    raft.tick()
    (beat, _) = take(raft)
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1, context=beat.context))
    assert answers(raft) == [ReadState(1, b"a"), ReadState(1, b"b")]
    raft.tick()
    assert {message.context for message in take(raft)} == {b""}


def test_m11_m21_losing_leadership_drops_reads_silently() -> None:
    """The caller asks again; a late confirmation must not answer for another term."""
    raft = leader(1, 2, 3, check_quorum=True)
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 1))
    raft.step(request(1, b"a"))
    beat = take(raft)[-1]
    ticks(raft, 20)
    assert role_of(raft) == Role.FOLLOWER
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1, context=beat.context))
    assert answers(raft) == []
    assert len(raft.reads) == 0


def test_joint_configuration_confirms_reads_with_both_majorities() -> None:
    raft = leader(1, 2, 3)
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 1))
    raft.restore_config(ConfState((1, 4, 5), (), (1, 2, 3)))
    raft.step(request(1, b"a"))
    context = take(raft)[-1].context
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1, context=context))
    assert answers(raft) == []
    raft.step(Message(M.HEARTBEAT_RESP, 1, 4, 1, context=context))
    assert answers(raft) == [ReadState(1, b"a")]


def test_m48_a_read_is_answered_with_the_commit_of_its_own_arrival() -> None:
    """A later read in the same round gets its own index, not the one taken for the round."""
    raft = leader(1, 2, 3)
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0, 1))
    raft.step(request(1, b"a"))
    raft.append_entries((Entry(1, 2),), 0)
    drain(raft)
    raft.step(Message(M.APP_RESP, 1, 3, 1, 0, 2))
    take(raft)
    raft.step(request(1, b"b"))
    context = take(raft)[-1].context
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1, context=context))
    assert answers(raft) == [ReadState(1, b"a"), ReadState(2, b"b")]


@pytest.mark.parametrize("context", [b"", b"short", (9).to_bytes(8, "little"), b"x" * 9])
def test_queue_ignores_positions_it_never_gave_out(context: bytes) -> None:
    queue = ReadQueue()
    queue.add(request(1, b"a"), 1, 1)
    assert queue.acknowledge(2, context) == {1: 1}
    assert queue.confirm(0) == []


def test_m42_election_and_immediate_read_wait_for_the_first_commit() -> None:
    raft = become_leader(new_raft(1, ALL, log=(1, 1), term=1))
    raft.step(request(1, b"a"))
    drain(raft)
    assert answers(raft) == []
    assert raft.postponed_reads
