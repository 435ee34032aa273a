"""Nodes wired together in memory, and the small verbs the unit tests are written in.

Nothing here takes time or chance: a message is delivered when ``Network.send`` runs, in the order it was sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from raft.core import (
    NO_LIMIT,
    Config,
    ConfState,
    Entry,
    EntryType,
    HardState,
    MemoryStorage,
    Message,
    MessageType,
    ProposalDropped,
    Role,
    Snapshot,
)
from raft.core.raft import Raft
from raft.core.roles import Cause

M = MessageType


# --- making nodes


def storage_with(
    voters: Sequence[int],
    learners: Sequence[int] = (),
    *,
    log: Sequence[int] = (),
    term: int = 0,
    vote: int = 0,
) -> MemoryStorage:
    """A storage with a configuration, and entries of the given terms from index 1 on."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(0, 0, ConfState(tuple(voters), tuple(learners))))
    storage.append(entries_of(*log))
    storage.set_hard_state(HardState(term, vote, 0))
    return storage


def entries_of(*terms: int, first: int = 1) -> list[Entry]:
    """Empty entries of the given terms at consecutive indexes."""
    return [Entry(term, index) for index, term in enumerate(terms, first)]


def new_raft(
    node: int,
    voters: Sequence[int] = (),
    learners: Sequence[int] = (),
    *,
    storage: MemoryStorage | None = None,
    log: Sequence[int] = (),
    term: int = 0,
    **parameters: Any,
) -> Raft:
    """A node with the plain protocol (no PreVote, no CheckQuorum) unless told otherwise."""
    if storage is None:
        storage = storage_with(voters, learners, log=log, term=term)
    settings: dict[str, Any] = {
        "check_quorum": False,
        "pre_vote": False,
        "max_size_per_msg": NO_LIMIT,
        "max_inflight_msgs": 256,
    }
    return Raft(Config(id=node, storage=storage, rng=random.Random(node), **(settings | parameters)))


def become_leader(raft: Raft) -> Raft:
    """Make a node leader of the next term without asking anybody."""
    raft.become_candidate(Cause.ELECTION_STARTED)
    raft.become_leader()
    return raft


def leader(node: int, *peers: int, **parameters: Any) -> Raft:
    """``leader(1, 2, 3)``: node 1 leads {1, 2, 3} in term 1, its messages so far thrown away."""
    raft = become_leader(new_raft(node, (node, *peers), **parameters))
    drain(raft)
    return raft


# --- one node at a time


def memory_of(raft: Raft) -> MemoryStorage:
    return cast(MemoryStorage, raft.log.storage)


def take(raft: Raft) -> list[Message]:
    """What would leave at once, without anything becoming durable."""
    sent = list(raft.messages)
    raft.messages.clear()
    return sent


def drain(raft: Raft) -> list[Message]:
    """Let the own acknowledgements and votes count, and collect what goes to others."""
    sent = take(raft)
    while raft.after_append:
        waiting, raft.after_append = raft.after_append, []
        for message in waiting:
            if message.to == raft.id:
                raft.step(message)
            else:
                sent.append(message)
    return sent + take(raft)


def persist(raft: Raft) -> None:
    """Write the unstable part of the log, a snapshot first."""
    storage, unstable = memory_of(raft), raft.log.unstable
    snapshot = unstable.snapshot
    if snapshot is not None:
        storage.apply_snapshot(snapshot)
        raft.applied_snapshot(snapshot)
    if unstable.entries:
        storage.append(list(unstable.entries))
        raft.log.stable_to(raft.log.last_term, raft.log.last_index)
    storage.set_hard_state(raft.hard_state)


def apply(raft: Raft) -> list[Entry]:
    """Persist, then apply everything committed, as a state machine without content."""
    persist(raft)
    applied: list[Entry] = []
    while batch := raft.log.next_committed(allow_unstable=True):
        raft.log.accept_applying(batch[-1].index, 0, allow_unstable=True)
        raft.applied_entries(batch)
        applied += batch
    return applied


def propose(raft: Raft, *datas: bytes) -> None:
    entries = tuple(Entry(0, 0, EntryType.NORMAL, data) for data in datas)
    raft.step(Message(M.PROP, from_=raft.id, entries=entries))


def role_of(raft: Raft) -> Role:
    """A call, so that the type checker does not take an earlier answer for the present one."""
    return raft.role


def ticks(raft: Raft, count: int) -> None:
    for _ in range(count):
        raft.tick()


def log_terms(raft: Raft) -> list[int]:
    """The terms of all entries, the state of a log in one line."""
    return [entry.term for entry in all_entries(raft)]


def all_entries(raft: Raft) -> tuple[Entry, ...]:
    return raft.log.slice(raft.log.first_index, raft.log.last_index + 1, NO_LIMIT)


def types(messages: Iterable[Message]) -> list[MessageType]:
    return [message.type for message in messages]


def sent_to(messages: Iterable[Message], kind: MessageType) -> list[int]:
    return [message.to for message in messages if message.type == kind]


# --- all of them


class Network:
    """Delivers until quiet. A node given as None is dead. ``errors`` keeps refused proposals."""

    def __init__(self, *nodes: Raft | None, **parameters: Any) -> None:
        """Nodes in id order from 1."""
        ids = tuple(range(1, len(nodes) + 1))
        self.nodes = {node: raft for node, raft in zip(ids, nodes, strict=True) if raft is not None}
        self.errors: list[ProposalDropped] = []
        self.delivered: list[Message] = []
        self._cut: set[tuple[int, int]] = set()
        self._ignored: set[MessageType] = set()
        self.hook: Callable[[Message], bool] | None = None

    @classmethod
    def of(cls, size: int, *, dead: Sequence[int] = (), **parameters: Any) -> Network:
        """``size`` fresh nodes that know each other."""
        voters = tuple(range(1, size + 1))
        return cls(*(None if node in dead else new_raft(node, voters, **parameters) for node in voters))

    def __getitem__(self, node: int) -> Raft:
        return self.nodes[node]

    def cut(self, one: int, other: int) -> None:
        """No message passes between two nodes."""
        self._cut |= {(one, other), (other, one)}

    def isolate(self, node: int) -> None:
        for other in self.nodes:
            if other != node:
                self.cut(node, other)

    def ignore(self, kind: MessageType) -> None:
        self._ignored.add(kind)

    def heal(self) -> None:
        self._cut.clear()
        self._ignored.clear()
        self.hook = None

    def _passes(self, message: Message) -> bool:
        if message.type in self._ignored or (message.from_, message.to) in self._cut:
            return False
        return self.hook is None or self.hook(message)

    def send(self, *messages: Message) -> None:
        """Step messages, then everything they cause, until nothing is left."""
        queue = list(messages)
        while queue:
            message = queue.pop(0)
            target = self.nodes.get(message.to)
            if target is None:
                continue
            self.delivered.append(message)
            try:
                target.step(message)
            except ProposalDropped as error:
                self.errors.append(error)
            queue += [sent for sent in drain(target) if self._passes(sent)]

    def flush(self) -> None:
        """Deliver what nodes have produced on their own."""
        self.send(*(sent for raft in self.nodes.values() for sent in drain(raft) if self._passes(sent)))

    def campaign(self, node: int) -> None:
        self.send(Message(M.HUP, node, node))

    def beat(self, node: int) -> None:
        self.send(Message(M.BEAT, node, node))

    def propose(self, node: int, *datas: bytes) -> None:
        entries = tuple(Entry(0, 0, EntryType.NORMAL, data) for data in datas or (b"some data",))
        self.send(Message(M.PROP, node, node, entries=entries))

    def transfer(self, told: int, target: int) -> None:
        self.send(Message(M.TRANSFER_LEADER, told, target))

    def roles(self) -> list[Role]:
        return [raft.role for raft in self.nodes.values()]

    def terms(self) -> list[int]:
        return [raft.term for raft in self.nodes.values()]
