"""The vocabulary of the protocol: entries, durable state, configurations, messages, and what a Ready carries.

Everything here is an immutable value. They are named tuples rather than frozen dataclasses because the core
makes tens of thousands of them a second, and because a tuple goes to msgpack and to SQLite as it is.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

NO_NODE: Final = 0
"""The id of no one: an unknown leader, an unused vote, a local message's term."""

NOTICE: Final = b"commit"
"""The context of an append that only tells a commit index, and wants no answer (Config.commit_notices)."""

APPEND_THREAD: Final = (1 << 64) - 1
"""The reserved id of a node's own log writer, the target of StorageAppend (contract §17)."""

APPLY_THREAD: Final = (1 << 64) - 2
"""The reserved id of a node's own state machine, the target of StorageApply."""


class EntryType(IntEnum):
    NORMAL = 0
    CONF_V1 = 1
    CONF_V2 = 2


class Entry(NamedTuple):
    """One log position. An empty NORMAL entry is what a new leader appends first."""

    term: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    type: EntryType = EntryType.NORMAL
    data: bytes = b""


class HardState(NamedTuple):
    """What must be on disk before any message that depends on it leaves (Raft paper, figure 2)."""

    term: int = 0
    vote: int = NO_NODE
    commit: int = 0


EMPTY_HARD_STATE: Final = HardState()


class Role(IntEnum):
    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2
    PRE_CANDIDATE = 3


class SoftState(NamedTuple):
    """Volatile: who leads, and what this node is. For logging and for waking waiters, never for safety."""

    lead: int
    role: Role


class ConfState(NamedTuple):
    """A cluster configuration as it is stored and travels in snapshots. Every list is sorted."""

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False


class Snapshot(NamedTuple):
    """The state machine at one log position. index 0 is 'no snapshot'.

    ``data`` is opaque to the core and empty where the driver streams the image beside the message.
    """

    index: int = 0  # type: ignore[assignment]  # shadows tuple.index
    term: int = 0
    conf_state: ConfState = ConfState()
    data: bytes = b""


class ConfChangeType(IntEnum):
    ADD_VOTER = 0
    REMOVE = 1
    UPDATE = 2
    ADD_LEARNER = 3


class ConfChangeTransition(IntEnum):
    AUTO = 0
    JOINT_IMPLICIT = 1
    JOINT_EXPLICIT = 2


class ConfChange(NamedTuple):
    """One change of one member. ``context`` travels only with a change proposed alone (the v1 form)."""

    type: ConfChangeType
    node_id: int
    context: bytes = b""


class ConfChangeV2(NamedTuple):
    """A set of changes made at once. No changes and AUTO means: leave the joint configuration."""

    changes: tuple[ConfChange, ...] = ()
    transition: ConfChangeTransition = ConfChangeTransition.AUTO
    context: bytes = b""


class MessageType(IntEnum):
    """Contract §2. Numbers are Kvorum's own wire numbers: append only, never renumber."""

    HUP = 0
    BEAT = 1
    PROP = 2
    APP = 3
    APP_RESP = 4
    VOTE = 5
    VOTE_RESP = 6
    SNAP = 7
    HEARTBEAT = 8
    HEARTBEAT_RESP = 9
    UNREACHABLE = 10
    SNAP_STATUS = 11
    CHECK_QUORUM = 12
    TRANSFER_LEADER = 13
    TIMEOUT_NOW = 14
    READ_INDEX = 15
    READ_INDEX_RESP = 16
    PRE_VOTE = 17
    PRE_VOTE_RESP = 18
    STORAGE_APPEND = 19
    STORAGE_APPEND_RESP = 20
    STORAGE_APPLY = 21
    STORAGE_APPLY_RESP = 22
    FORGET_LEADER = 23
    # The leader replaced a forwarded configuration change by an empty entry at ``index``; ``context`` is the
    # change's own. Only sent when there is a context to resolve (contract §20 M47).
    CONF_CHANGE_REFUSED = 24


class Message(NamedTuple):
    """One message between nodes, or between a node and its own storage threads (``to`` a reserved id).

    term 0 marks a local or forwarded message that bypasses the term rules. Which fields a type uses is in
    contract §2; ``responses`` only ever travels to the append and apply threads.
    """

    type: MessageType
    to: int = NO_NODE
    from_: int = NO_NODE
    term: int = 0
    log_term: int = 0
    index: int = 0  # type: ignore[assignment]  # shadows tuple.index
    entries: tuple[Entry, ...] = ()
    commit: int = 0
    vote: int = NO_NODE
    snapshot: Snapshot | None = None
    reject: bool = False
    reject_hint: int = 0
    context: bytes = b""
    responses: tuple[Message, ...] = ()


class ReadState(NamedTuple):
    """A confirmed linearizable read: serve it once applied >= index. ``context`` is the caller's own."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    context: bytes


class RefusedConfChange(NamedTuple):
    """A proposed configuration change that the leader replaced by an empty entry (contract §11, M47)."""

    index: int  # type: ignore[assignment]  # shadows tuple.index
    context: bytes


class Ready(NamedTuple):
    """Everything the core wants done, in one batch (contract §16, §17).

    With async storage writes the driver only routes ``messages``: those to APPEND_THREAD and APPLY_THREAD
    go to its writer and its state machine, the rest to peers; ``advance`` is not called. Without it the
    driver persists ``snapshot``, ``entries`` and ``hard_state``, sends ``messages``, applies
    ``committed_entries`` and calls ``advance``.
    """

    soft_state: SoftState | None = None
    hard_state: HardState | None = None
    read_states: tuple[ReadState, ...] = ()
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    committed_entries: tuple[Entry, ...] = ()
    messages: tuple[Message, ...] = ()
    must_sync: bool = False
    refused_conf_changes: tuple[RefusedConfChange, ...] = ()
