"""The face of the core: what goes in, and what a Ready holds (contract §16, §17, §18)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from raft.core import (
    APPEND_THREAD,
    APPLY_THREAD,
    LOCAL_TYPES,
    NO_LIMIT,
    RESPONSE_TYPES,
    CallerError,
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    Config,
    ConfigError,
    ConfState,
    DropReason,
    Entry,
    EntryType,
    HardState,
    InvariantViolation,
    MalformedMessage,
    MemoryStorage,
    Message,
    MessageType,
    NotReadyToAdvance,
    ProposalDropped,
    RawNode,
    ReadOnlyOption,
    ReadState,
    Ready,
    Role,
    Snapshot,
    SoftState,
    StepLocalMessage,
    StepPeerNotFound,
    decode_conf_change,
    encode_conf_change,
    entries_size,
)

from .network import M, become_leader, entries_of, role_of, storage_with

ADD, LEARN, REMOVE = ConfChangeType.ADD_VOTER, ConfChangeType.ADD_LEARNER, ConfChangeType.REMOVE
EXPLICIT, IMPLICIT = ConfChangeTransition.JOINT_EXPLICIT, ConfChangeTransition.JOINT_IMPLICIT


def new_node(storage: MemoryStorage, node: int = 1, **parameters: Any) -> RawNode:
    settings: dict[str, Any] = {"check_quorum": False, "pre_vote": False, "max_inflight_msgs": 256}
    return RawNode(Config(id=node, storage=storage, rng=random.Random(node), **(settings | parameters)))


class Driver:
    """A synchronous driver for one node: persist, apply, advance; remembers what it applied."""

    def __init__(self, voters: Sequence[int] = (1,), storage: MemoryStorage | None = None, **parameters: Any):
        self.storage = storage or storage_with(voters)
        self.node = new_node(self.storage, **parameters)
        self.applied: list[Entry] = []
        self.conf_state: ConfState | None = None
        self.sent: list[Message] = []

    def turn(self) -> Ready:
        """Do what one Ready says."""
        ready = self.node.ready()
        if ready.snapshot is not None:
            self.storage.apply_snapshot(ready.snapshot)
        if ready.hard_state is not None:
            self.storage.set_hard_state(ready.hard_state)
        self.storage.append(ready.entries)
        self.sent += ready.messages
        for entry in ready.committed_entries:
            self.applied.append(entry)
            if entry.type != EntryType.NORMAL:
                self.conf_state = self.node.apply_conf_change(decode_conf_change(entry))
        self.node.advance()
        return ready

    def run(self) -> None:
        while self.node.has_ready():
            self.turn()

    def elect(self) -> RawNode:
        self.node.campaign()
        self.run()
        assert role_of(self.node.raft) == Role.LEADER
        return self.node


# --- what may be stepped


@pytest.mark.parametrize("kind", list(MessageType))
def test_uc149_uc232_local_messages_from_outside_are_refused(kind: MessageType) -> None:
    storage = storage_with((1,))
    storage.set_hard_state(HardState(1, 0, 0))
    node = new_node(storage)
    message = Message(kind, 1, 2, 1, entries=tuple(entries_of(1)), snapshot=Snapshot())
    if kind in LOCAL_TYPES:
        with pytest.raises(StepLocalMessage):
            node.step(message)
    elif kind in RESPONSE_TYPES:
        with pytest.raises(StepPeerNotFound):
            node.step(message)
    else:
        with pytest.raises(ProposalDropped) if kind == M.PROP else nullcontext():
            node.step(message)


def test_uc232_local_and_response_types() -> None:
    assert {kind.name for kind in LOCAL_TYPES} == {
        *("HUP", "BEAT", "CHECK_QUORUM", "UNREACHABLE", "SNAP_STATUS"),
        *("STORAGE_APPEND", "STORAGE_APPEND_RESP", "STORAGE_APPLY", "STORAGE_APPLY_RESP"),
    }
    assert {kind.name for kind in RESPONSE_TYPES} == {
        *("APP_RESP", "VOTE_RESP", "PRE_VOTE_RESP", "HEARTBEAT_RESP", "READ_INDEX_RESP"),
        *("UNREACHABLE", "STORAGE_APPEND_RESP", "STORAGE_APPLY_RESP", "CONF_CHANGE_REFUSED"),
    }


@pytest.mark.parametrize(
    "message",
    [
        Message(M.APP, 1, 2, 1, 0, 0, (Entry(1, 3),)),
        Message(M.APP, 1, 2, 1, 0, 0, (Entry(2, 1),)),
        Message(M.APP, 1, 2, 1, 0, 0, (Entry(1, 1), Entry(1, 3))),
        Message(M.SNAP, 1, 2, 1),
        Message(M.READ_INDEX_RESP, 1, 2, 1),
    ],
)
def test_malformed_messages_are_refused(message: Message) -> None:
    node = new_node(storage_with((1, 2)))
    with pytest.raises(MalformedMessage):
        node.step(message)
    assert node.last_index == 0


# --- configuration changes, end to end


@pytest.mark.parametrize(
    ("change", "entered", "left"),
    [
        (ConfChange(ADD, 2), ConfState((1, 2)), None),
        (ConfChangeV2((ConfChange(ADD, 2),)), ConfState((1, 2)), None),
        (ConfChangeV2((ConfChange(LEARN, 2),)), ConfState((1,), (2,)), None),
        (
            ConfChangeV2((ConfChange(LEARN, 2),), EXPLICIT),
            ConfState((1,), (2,), (1,)),
            ConfState((1,), (2,)),
        ),
        (
            ConfChangeV2((ConfChange(LEARN, 2),), IMPLICIT),
            ConfState((1,), (2,), (1,), (), True),
            ConfState((1,), (2,)),
        ),
        (
            ConfChangeV2((ConfChange(ADD, 2), ConfChange(LEARN, 1), ConfChange(LEARN, 3))),
            ConfState((2,), (3,), (1,), (1,), True),
            ConfState((2,), (1, 3)),
        ),
        (
            ConfChangeV2((ConfChange(ADD, 2), ConfChange(LEARN, 1), ConfChange(LEARN, 3)), EXPLICIT),
            ConfState((2,), (3,), (1,), (1,)),
            ConfState((2,), (1, 3)),
        ),
        (
            ConfChangeV2((ConfChange(ADD, 2), ConfChange(LEARN, 1), ConfChange(LEARN, 3)), IMPLICIT),
            ConfState((2,), (3,), (1,), (1,), True),
            ConfState((2,), (1, 3)),
        ),
    ],
)
def test_uc150_propose_and_conf_change(
    change: ConfChange | ConfChangeV2, entered: ConfState, left: ConfState | None
) -> None:
    driver = Driver()
    node = driver.elect()
    node.propose(b"somedata")
    assert node.propose_conf_change(change)
    last = node.last_index
    assert node.status().pending_conf_index == last
    while driver.conf_state is None:
        driver.turn()
    assert driver.conf_state == entered
    if left is None:
        assert node.last_index == last
        return
    if not entered.auto_leave:
        assert node.last_index == last  # nothing leaves by itself
        assert node.propose_conf_change(ConfChangeV2(context=b"leave"))
    assert node.last_index == last + 1
    assert node.status().pending_conf_index == last + 1
    assert node.apply_conf_change(ConfChangeV2()) == left


def test_uc151_m18_automatic_leave_only_by_a_leader() -> None:
    """One that lost the leadership while applying the change leaves it to the next."""
    driver = Driver()
    node = driver.elect()
    change = ConfChangeV2((ConfChange(ADD, 2), ConfChange(LEARN, 1)), IMPLICIT)
    node.propose_conf_change(change)
    storage = driver.storage
    ready = node.ready()
    storage.append(ready.entries)
    node.advance()
    ready = node.ready()
    assert ready.committed_entries
    state = node.apply_conf_change(change)
    assert state.auto_leave
    node.step(Message(M.HEARTBEAT_RESP, 1, 1, node.term + 1))  # a higher term ends the leadership
    assert role_of(node.raft) == Role.FOLLOWER
    last = node.last_index
    node.advance()
    assert node.last_index == last
    become_leader(node.raft)
    assert [entry.type for entry in node.raft.log.unstable.entries] == [EntryType.NORMAL]
    node.raft.applied_to(node.applied, 0)  # the next time anything is applied
    assert [entry.type for entry in node.raft.log.unstable.entries] == [EntryType.NORMAL, EntryType.CONF_V2]


def test_uc152_adding_the_same_node_twice() -> None:
    driver = Driver()
    node = driver.elect()
    for target in (1, 1, 2):
        assert node.propose_conf_change(ConfChange(ADD, target))
        driver.run()
    changes = [decode_conf_change(entry) for entry in driver.applied if entry.type != EntryType.NORMAL]
    assert changes == [ConfChange(ADD, 1), ConfChange(ADD, 1), ConfChange(ADD, 2)]
    assert driver.conf_state == ConfState((1, 2))


def test_uc170_learner_appears_once_applied() -> None:
    driver = Driver()
    node = driver.elect()
    node.propose_conf_change(ConfChange(LEARN, 2))
    driver.run()
    assert driver.conf_state == ConfState((1,), (2,))
    assert node.status().progress[2].is_learner


# --- reads


def test_uc153_read_states_come_once() -> None:
    driver = Driver()
    node = driver.elect()
    node.read_index(b"context")
    assert node.has_ready()
    ready = driver.turn()
    assert ready.read_states == (ReadState(1, b"context"),)
    assert not node.has_ready()


# --- start and restart


def test_uc154_m20_start() -> None:
    """Entries are written in one Ready and committed in the next: committed means durable."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(1, 1, ConfState((1,))))
    storage.set_hard_state(HardState(1, 0, 1))
    driver = Driver(storage=storage, applied=1)
    node = driver.node
    assert not node.has_ready()
    node.campaign()
    ready = driver.turn()
    assert ready.soft_state == SoftState(0, Role.CANDIDATE)
    assert ready.hard_state == HardState(2, 1, 1)
    assert (ready.entries, ready.committed_entries, ready.must_sync) == ((), (), True)
    node.propose(b"foo")
    ready = driver.turn()
    written = (Entry(2, 2), Entry(2, 3, data=b"foo"))
    assert ready.soft_state == SoftState(1, Role.LEADER)
    assert (ready.entries, ready.committed_entries, ready.must_sync) == (written, (), True)
    ready = driver.turn()
    assert ready.hard_state == HardState(2, 1, 3)
    assert (ready.entries, ready.committed_entries, ready.must_sync) == ((), written, False)
    assert not node.has_ready()


def test_uc155_restart_offers_what_is_committed() -> None:
    storage = storage_with((1,), log=(1, 1))
    storage.set_hard_state(HardState(1, 0, 1))
    driver = Driver(storage=storage)
    ready = driver.turn()
    assert ready == Ready(committed_entries=tuple(entries_of(1)))
    assert not driver.node.has_ready()


def test_uc156_restart_from_a_snapshot() -> None:
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(2, 1, ConfState((1, 2))))
    storage.append(entries_of(1, first=3))
    storage.set_hard_state(HardState(1, 0, 3))
    driver = Driver(storage=storage, applied=2)
    assert driver.turn() == Ready(committed_entries=tuple(entries_of(1, first=3)))
    assert not driver.node.has_ready()


def test_uc167_bootstrap_emits_the_first_members_as_committed_entries() -> None:
    driver = Driver(storage=MemoryStorage())
    driver.node.bootstrap([1, 2])
    ready = driver.turn()
    assert ready.hard_state == HardState(1, 0, 2)
    assert ready.entries == ready.committed_entries
    assert [(entry.term, entry.type) for entry in ready.entries] == [(1, EntryType.CONF_V1)] * 2
    assert driver.conf_state == ConfState((1, 2))
    with pytest.raises(CallerError):
        driver.node.bootstrap([1])


def test_applied_beyond_the_commit_is_fatal() -> None:
    storage = storage_with((1,), log=(1, 1), term=1)
    with pytest.raises(InvariantViolation):
        new_node(storage, applied=1)


# --- status


def test_uc157_only_a_leader_reports_progress() -> None:
    driver = Driver()
    assert driver.node.status().progress == {}
    driver.elect()
    status = driver.node.status()
    assert status.progress[1].match == status.last_index == 1
    assert status.config == ConfState((1,))
    assert (status.lead, status.role, status.commit, status.applied) == (1, Role.LEADER, 1, 1)


def test_cheap_properties_agree_with_the_status() -> None:
    node = Driver().elect()
    status = node.status()
    cheap = (node.id, node.lead, node.role, node.term, node.commit, node.last_index, node.applied)
    assert cheap == (
        *(status.id, status.lead, status.role, status.term),
        *(status.commit, status.last_index, status.applied),
    )
    assert node.is_leader


# --- bounds


class Unhelpful(MemoryStorage):
    """Ignores size limits, as a storage may by mistake."""

    def entries(self, low: int, high: int, max_size: int) -> Sequence[Entry]:
        return super().entries(low, high, NO_LIMIT)


@pytest.mark.parametrize("missing", [0, 1])
def test_uc158_uc174_m29_no_gap_in_what_is_applied(missing: int) -> None:
    """A limit just below what is committed, and a storage that returns more than was asked for."""
    storage = Unhelpful()
    storage.apply_snapshot(Snapshot(0, 0, ConfState((1,))))
    entries = [Entry(1, index, data=b"a") for index in range(1, 11)]
    storage.append(entries)
    storage.set_hard_state(HardState(1, 0, 10))
    limit = entries_size(entries) - 1 - missing
    driver = Driver(storage=storage, max_size_per_msg=limit, max_committed_size_per_ready=limit)
    driver.elect()
    driver.node.propose(b"b")
    driver.run()
    indexes = [entry.index for entry in driver.applied]
    assert indexes == list(range(1, len(indexes) + 1))
    assert len(indexes) == 12


def test_uc159_m30_log_growth_is_bounded_during_a_partition() -> None:
    data = b"testdata"
    driver = Driver(max_uncommitted_entries_size=16 * len(data))
    node = driver.elect()
    accepted = 0
    for _ in range(1024):
        with suppress(ProposalDropped):
            node.propose(data)
            accepted += 1
    assert accepted == 16
    assert node.status().uncommitted_size == 16 * len(data)
    driver.run()
    assert node.status().uncommitted_size == 0


def test_uc172_commit_pagination() -> None:
    """Starred: three entries of about 1 kB under a limit of 2 kB make two batches."""
    driver = Driver(max_committed_size_per_ready=2048 + 100)
    node = driver.elect()
    for _ in range(3):
        node.propose(b"a" * 1000)
    batches = []
    while node.has_ready():
        batches.append(len(driver.turn().committed_entries))
    assert [size for size in batches if size] == [2, 1]


def test_uc173_m20_apply_window_and_durability_in_async_mode() -> None:
    """Starred. Only durable entries are handed out, and unacknowledged ones count against the limit."""
    storage = storage_with((1,))
    node = new_node(storage, async_storage_writes=True, max_committed_size_per_ready=2048 + 100)
    node.campaign()
    finish(node, storage, append=True, apply=True)
    for _ in range(3):
        node.propose(b"a" * 1000)
    ready = node.ready()
    (append,) = ready.messages
    assert (append.to, ready.committed_entries) == (APPEND_THREAD, ())
    persist(storage, append)
    for response in append.responses:
        node.step(response)
    ready = node.ready()
    (apply,) = [message for message in ready.messages if message.to == APPLY_THREAD]
    assert len(apply.entries) == 2
    assert not any(message.to == APPLY_THREAD for message in node.ready().messages)
    node.step(apply.responses[0])
    ready = node.ready()
    assert [len(message.entries) for message in ready.messages if message.to == APPLY_THREAD] == [1]


def persist(storage: MemoryStorage, message: Message) -> None:
    if message.term:
        storage.set_hard_state(HardState(message.term, message.vote, message.commit))
    if message.snapshot is not None:
        storage.apply_snapshot(message.snapshot)
    storage.append(message.entries)


def finish(node: RawNode, storage: MemoryStorage, *, append: bool, apply: bool) -> None:
    """Run the storage threads until there is nothing left to do."""
    while node.has_ready():
        for message in node.ready().messages:
            if message.to == APPEND_THREAD and append:
                persist(storage, message)
            if message.to in (APPEND_THREAD, APPLY_THREAD) and (append or apply):
                for response in message.responses:
                    node.step(response)


def test_uc171_append_pagination() -> None:
    """The backlog after a partition goes out in messages of bounded size, most of them well filled."""
    leader = Driver((1, 2, 3), max_size_per_msg=2048)
    node = leader.node
    node.campaign()
    leader.run()
    node.step(Message(M.VOTE_RESP, 1, 2, node.term))
    leader.run()
    for _ in range(20):
        node.propose(b"a" * 1000)
    leader.run()
    leader.sent.clear()
    node.step(Message(M.APP_RESP, 1, 3, node.term, 0, 1))
    leader.run()
    sizes = [entries_size(sent.entries) for sent in leader.sent if sent.type == M.APP and sent.to == 3]
    assert max(sizes) <= 2048
    assert sum(size > 1024 for size in sizes) >= 9


# --- Ready and advance


def test_uc160_taking_a_ready_consumes_it() -> None:
    node = new_node(storage_with((1, 2)))
    context = Message(M.HEARTBEAT, 1, 2, 1)
    node.step(context)
    peeked = node.peek_ready()
    assert peeked == node.peek_ready()
    assert [message.type for message in peeked.messages] == [M.HEARTBEAT_RESP]
    assert node.ready() == peeked
    assert node.raft.messages == []
    node.step(context)  # queued between ready and advance
    node.advance()
    assert [message.type for message in node.ready().messages] == [M.HEARTBEAT_RESP]


def test_uc161_disabled_forwarding_drops() -> None:
    node = new_node(storage_with((1, 2)), disable_proposal_forwarding=True)
    node.step(Message(M.HEARTBEAT, 1, 2, 1))
    with pytest.raises(ProposalDropped) as caught:
        node.propose(b"x")
    assert caught.value.reason == DropReason.FORWARDING_DISABLED


def test_proposals_are_forwarded_as_one_message() -> None:
    node = new_node(storage_with((1, 2)))
    node.step(Message(M.HEARTBEAT, 1, 2, 1))
    node.propose_batch([b"a", b"b"])
    forwarded = node.ready().messages[-1]
    assert (forwarded.type, forwarded.to, forwarded.from_, forwarded.term) == (M.PROP, 2, 1, 0)
    assert [entry.data for entry in forwarded.entries] == [b"a", b"b"]


def test_uc168_next_ready_only_after_advance() -> None:
    node = new_node(storage_with((1,)))
    with pytest.raises(NotReadyToAdvance):
        node.advance()
    node.campaign()
    node.ready()
    with pytest.raises(NotReadyToAdvance):
        node.ready()
    node.advance()


def test_advance_is_an_error_with_async_writes() -> None:
    node = new_node(storage_with((1,)), async_storage_writes=True)
    node.campaign()
    node.ready()
    with pytest.raises(NotReadyToAdvance):
        node.advance()


def test_uc169_states_compare_by_value() -> None:
    assert SoftState(1, Role.LEADER) == SoftState(1, Role.LEADER) != SoftState(1, Role.FOLLOWER)
    assert HardState(1, 2, 3) == HardState(1, 2, 3) != HardState(1, 2, 4)


def test_an_empty_batch_is_nothing() -> None:
    node = Driver().elect()
    node.propose_batch([])
    assert not node.has_ready()


def test_async_promises_ride_on_the_write() -> None:
    """A vote leaves only as a response of the durable write that holds it."""
    node = new_node(storage_with((1, 2, 3)), async_storage_writes=True)
    node.step(Message(M.VOTE, 1, 2, 1))
    (append,) = node.ready().messages
    assert (append.type, append.term, append.vote) == (M.STORAGE_APPEND, 1, 2)
    assert [response.type for response in append.responses] == [M.VOTE_RESP]


def test_m19_acknowledgement_of_a_replaced_entry_does_not_make_it_durable() -> None:
    """The ABA race: the same entry written, overwritten, and written again."""
    node = new_node(storage_with((1, 2, 3)), async_storage_writes=True)
    entry, other = Entry(1, 1, data=b"a"), Entry(2, 1, data=b"b")
    node.step(Message(M.APP, 1, 2, 1, 0, 0, (entry,)))
    first = node.ready().messages[-1]
    node.step(Message(M.APP, 1, 3, 2, 0, 0, (other,)))
    node.ready()
    node.step(Message(M.APP, 1, 2, 3, 0, 0, (entry,)))
    node.ready()
    for response in first.responses:
        if response.to == 1:
            node.step(response)
    assert node.raft.log.unstable.entries == [entry]


# --- parameters


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"id": 0}, "id"),
        ({"id": APPEND_THREAD}, "id"),
        ({"heartbeat_tick": 0}, "heartbeat_tick"),
        ({"election_tick": 1}, "election_tick"),
        ({"applied": -1}, "applied"),
        ({"max_size_per_msg": -1}, "max_size_per_msg"),
        ({"max_committed_size_per_ready": -1}, "max_committed_size_per_ready"),
        ({"max_uncommitted_entries_size": -1}, "max_uncommitted_entries_size"),
        ({"max_inflight_msgs": 0}, "max_inflight_msgs"),
        ({"max_inflight_bytes": 5}, "max_inflight_bytes"),
        ({"read_only": ReadOnlyOption.LEASE_BASED, "check_quorum": False}, "check_quorum"),
    ],
)
def test_configuration_is_validated(parameters: dict[str, Any], names: str) -> None:
    settings: dict[str, Any] = {"id": 1, "storage": MemoryStorage(), "rng": random.Random(1)}
    with pytest.raises(ConfigError, match=f"^{names} must"):
        RawNode(Config(**(settings | parameters)))


def test_one_entry_per_message_when_the_size_is_zero() -> None:
    driver = Driver((1, 2), max_size_per_msg=0)
    node = driver.node
    node.campaign()
    driver.run()
    node.step(Message(M.VOTE_RESP, 1, 2, node.term))
    node.propose_batch([b"a", b"b"])
    node.step(Message(M.APP_RESP, 1, 2, node.term, 0, 1))
    driver.run()
    assert {len(message.entries) for message in driver.sent if message.type == M.APP} <= {0, 1}


def test_a_conf_change_entry_keeps_its_bytes_through_a_follower() -> None:
    node = new_node(storage_with((1, 2)))
    node.step(Message(M.HEARTBEAT, 1, 2, 1))
    assert node.propose_conf_change(ConfChange(REMOVE, 2, b"id"))
    forwarded = node.ready().messages[-1]
    kind, data = encode_conf_change(ConfChange(REMOVE, 2, b"id"))
    assert forwarded.entries == (Entry(0, 0, kind, data),)
