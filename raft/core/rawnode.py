"""The face of the core: what a driver calls, and the Ready it gets (contract §16, §17).

A driver repeats: feed ticks and messages; while ``has_ready()``, take ``ready()`` and do what it says. With
async storage writes that is only routing messages; without them it is persist, send, apply, ``advance()``.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import confchange
from .config import Config
from .errors import CallerError, NotReadyToAdvance, StepLocalMessage, StepPeerNotFound
from .raft import Raft
from .roles import Cause
from .sizes import entries_size
from .status import Status, status_of
from .types import (
    APPEND_THREAD,
    APPLY_THREAD,
    EMPTY_HARD_STATE,
    NO_NODE,
    ConfChange,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    Ready,
    Role,
    Snapshot,
)

LOCAL_TYPES = frozenset(
    {
        MessageType.HUP,
        MessageType.BEAT,
        MessageType.UNREACHABLE,
        MessageType.SNAP_STATUS,
        MessageType.CHECK_QUORUM,
        MessageType.STORAGE_APPEND,
        MessageType.STORAGE_APPEND_RESP,
        MessageType.STORAGE_APPLY,
        MessageType.STORAGE_APPLY_RESP,
    }
)
"""What a node only ever tells itself, through its driver or its storage threads."""

RESPONSE_TYPES = frozenset(
    {
        MessageType.APP_RESP,
        MessageType.VOTE_RESP,
        MessageType.HEARTBEAT_RESP,
        MessageType.UNREACHABLE,
        MessageType.READ_INDEX_RESP,
        MessageType.PRE_VOTE_RESP,
        MessageType.STORAGE_APPEND_RESP,
        MessageType.STORAGE_APPLY_RESP,
        MessageType.CONF_CHANGE_REFUSED,
    }
)
"""What only a member may answer."""

_THREADS = (APPEND_THREAD, APPLY_THREAD)


class RawNode:
    """One node without threads, clock, disk or network. Not safe for concurrent use, and it need not be."""

    def __init__(self, config: Config) -> None:
        """Start or restart from ``config.storage``; raises ConfigError."""
        self.raft = Raft(config)
        self._async_writes = config.async_storage_writes
        self._previous_soft_state = self.raft.soft_state
        self._previous_hard_state = self.raft.hard_state
        self._steps_on_advance: list[Message] | None = None

    # --- cheap to ask

    @property
    def id(self) -> int:
        return self.raft.id

    @property
    def lead(self) -> int:
        """The leader this node follows, 0 when it knows none."""
        return self.raft.lead

    @property
    def role(self) -> Role:
        return self.raft.role

    @property
    def term(self) -> int:
        return self.raft.term

    @property
    def commit(self) -> int:
        return self.raft.log.committed

    @property
    def last_index(self) -> int:
        return self.raft.log.last_index

    @property
    def applied(self) -> int:
        return self.raft.log.applied

    @property
    def is_leader(self) -> bool:
        return self.raft.role == Role.LEADER

    def status(self) -> Status:
        """Everything about this node, copied."""
        return status_of(self.raft)

    # --- input

    def tick(self) -> None:
        """One unit of time has passed."""
        self.raft.tick()

    def campaign(self) -> None:
        """Stand for election now, as if the election timeout had passed."""
        self.raft.hup()

    def propose(self, data: bytes) -> None:
        """Propose one entry; raises ProposalDropped with a reason. Accepted is not yet committed."""
        self.propose_batch((data,))

    def propose_batch(self, datas: Sequence[bytes]) -> None:
        """Propose entries that are accepted or refused together; raises ProposalDropped."""
        if not datas:
            return
        if self.raft.role == Role.LEADER:
            self.raft.append_proposed(datas)
        else:
            entries = tuple([Entry(0, 0, EntryType.NORMAL, data) for data in datas])
            self.raft.step(Message(MessageType.PROP, from_=self.raft.id, entries=entries))

    def propose_conf_change(self, change: ConfChange | ConfChangeV2) -> bool:
        """Propose a configuration change; raises ProposalDropped.

        False when this leader refused it and appended an empty entry in its place; ``Ready`` then names its
        context in ``refused_conf_changes``. True from a follower means forwarded: a refusal comes back the
        same way, for a change with a context.
        """
        kind, data = confchange.encode(change)
        message = Message(MessageType.PROP, from_=self.raft.id, entries=(Entry(0, 0, kind, data),))
        return self.raft.step(message)

    def apply_conf_change(self, change: ConfChange | ConfChangeV2) -> ConfState:
        """Bring a committed change into force; to be called for every one that the application accepts.

        Returns what must be stored with the state machine. InvariantViolation when it does not fit.
        """
        return self.raft.apply_conf_change(change)

    def step(self, message: Message) -> None:
        """Process a message from a peer or from a storage thread.

        Raises StepLocalMessage, StepPeerNotFound, MalformedMessage, ProposalDropped. After any of these the
        node is intact and goes on; at most it has moved to the message's term.
        """
        kind, sender = message.type, message.from_
        if sender not in _THREADS:
            if kind in LOCAL_TYPES:
                raise StepLocalMessage(f"{MessageType(kind).name} may not come from outside")
            if kind in RESPONSE_TYPES and sender not in self.raft.tracker.progress:
                raise StepPeerNotFound(f"{MessageType(kind).name} from {sender}, which is no member")
        self.raft.step(message)

    def read_index(self, context: bytes) -> None:
        """Ask for a position at which a read is linearizable; it comes as a ReadState with this context.

        It may never come (no leader, leader change): ask again, with a new context.
        """
        request = Entry(0, 0, EntryType.NORMAL, context)
        self.raft.step(Message(MessageType.READ_INDEX, entries=(request,)))

    def transfer_leader(self, target: int) -> None:
        """Ask the leader to hand over to ``target``; given up after one election timeout."""
        self.raft.step(Message(MessageType.TRANSFER_LEADER, from_=target))

    def forget_leader(self) -> None:
        """Tell a follower that its leader is dead, so that it grants votes at once."""
        self.raft.step(Message(MessageType.FORGET_LEADER))

    def report_unreachable(self, peer: int) -> None:
        """A message to ``peer`` was not sent."""
        self.raft.step(Message(MessageType.UNREACHABLE, from_=peer))

    def report_snapshot(self, peer: int, ok: bool) -> None:
        """How the sending of a snapshot ended; owed for every one, or replication to ``peer`` stands still."""
        self.raft.step(Message(MessageType.SNAP_STATUS, from_=peer, reject=not ok))

    def set_randomized_election_timeout(self, ticks: int) -> None:
        """Fix the timeout until the next change of role, for tests that must not depend on chance."""
        self.raft.randomized_election_timeout = ticks

    def bootstrap(self, voters: Sequence[int]) -> None:
        """Give an empty node its first members, as committed entries of term 1 (contract §18).

        A snapshot with a ConfState, the same on every initial member, is the better way. Raises CallerError
        where the log is not empty.
        """
        if not voters or self.raft.log.last_index:
            raise CallerError("only a node with an empty log can be given its first members")
        self.raft.become_follower(1, NO_NODE, Cause.TERM_ADVANCED)
        changes = [ConfChange(ConfChangeType.ADD_VOTER, voter) for voter in voters]
        encoded = [confchange.encode(change) for change in changes]
        entries = [Entry(1, index, kind, data) for index, (kind, data) in enumerate(encoded, 1)]
        self.raft.log.append(entries)
        self.raft.log.commit_to(len(entries))
        for change in changes:
            self.raft.apply_conf_change(change)

    # --- output

    def has_ready(self) -> bool:
        """Whether there is anything to do."""
        raft = self.raft
        log = raft.log
        if raft.messages or raft.after_append or log.unstable.has_next_entries:
            return True
        if raft.read_states or raft.refused_conf_changes or log.unstable.next_snapshot() is not None:
            return True
        # Field by field: this is asked several times for every message, and mostly nothing has changed.
        hard, soft = self._previous_hard_state, self._previous_soft_state
        if log.committed != hard.commit or raft.term != hard.term or raft.vote != hard.vote:
            return True
        if raft.lead != soft.lead or raft.role != soft.role:
            return True
        return log.has_next_committed(allow_unstable=not self._async_writes)

    def peek_ready(self) -> Ready:
        """What ``ready`` would return, without taking it."""
        raft = self.raft
        log = raft.log
        hard_state, soft_state = self._changed_hard_state(), raft.soft_state
        entries, snapshot = log.unstable.next_entries(), log.unstable.next_snapshot()
        committed = log.next_committed(allow_unstable=not self._async_writes)
        previous = self._previous_hard_state
        return Ready(
            soft_state if soft_state != self._previous_soft_state else None,
            hard_state,
            tuple(raft.read_states),
            entries,
            snapshot,
            committed,
            self._outgoing(hard_state, entries, snapshot, committed),
            bool(entries) or (raft.term, raft.vote) != (previous.term, previous.vote),
            tuple(raft.refused_conf_changes),
        )

    def ready(self) -> Ready:
        """Take everything there is to do. Without async storage writes, ``advance`` must follow."""
        if self._steps_on_advance is not None:
            raise NotReadyToAdvance("the previous Ready has not been advanced")
        ready = self.peek_ready()
        self._accept(ready)
        return ready

    def advance(self) -> None:
        """The last Ready is persisted and applied: its acknowledgements reach the core now."""
        if self._steps_on_advance is None:
            raise NotReadyToAdvance("there is no Ready to advance, or storage writes are asynchronous")
        steps, self._steps_on_advance = self._steps_on_advance, None
        for message in steps:
            self.raft.step(message)

    def _changed_hard_state(self) -> HardState | None:
        hard_state = self.raft.hard_state
        if hard_state in (self._previous_hard_state, EMPTY_HARD_STATE):
            return None
        return hard_state

    def _outgoing(
        self,
        hard_state: HardState | None,
        entries: tuple[Entry, ...],
        snapshot: Snapshot | None,
        committed: tuple[Entry, ...],
    ) -> tuple[Message, ...]:
        """In the order they were sent; then what waits for the disk; then the work of the storage threads."""
        raft = self.raft
        messages = list(raft.messages)
        if not self._async_writes:
            messages += [message for message in raft.after_append if message.to != raft.id]
            return tuple(messages)
        if entries or hard_state is not None or snapshot is not None or raft.after_append:
            messages.append(self._storage_append(hard_state or EMPTY_HARD_STATE, entries, snapshot))
        if committed:
            responses = (self._storage_applied(committed),)
            messages.append(
                Message(MessageType.STORAGE_APPLY, APPLY_THREAD, raft.id, entries=committed, responses=responses)
            )
        return tuple(messages)

    def _storage_append(
        self, hard_state: HardState, entries: tuple[Entry, ...], snapshot: Snapshot | None
    ) -> Message:
        responses = list(self.raft.after_append)
        if self._wants_append_response(snapshot):
            responses.append(self._storage_appended(snapshot))
        return Message(
            MessageType.STORAGE_APPEND,
            APPEND_THREAD,
            self.raft.id,
            term=hard_state.term,
            entries=entries,
            commit=hard_state.commit,
            vote=hard_state.vote,
            snapshot=snapshot,
            responses=tuple(responses),
        )

    def _wants_append_response(self, snapshot: Snapshot | None) -> bool:
        """Whenever anything is unstable, also when this write has no entries: a later term must trim what an
        acknowledgement of an earlier one could not (contract §17)."""
        return bool(self.raft.log.unstable.entries) or snapshot is not None

    def _storage_appended(self, snapshot: Snapshot | None) -> Message:
        """The acknowledgement of a write: the position and term it makes durable, as of now."""
        raft = self.raft
        unstable = bool(raft.log.unstable.entries)
        return Message(
            MessageType.STORAGE_APPEND_RESP,
            raft.id,
            APPEND_THREAD,
            raft.term,
            raft.log.last_term if unstable else 0,
            raft.log.last_index if unstable else 0,
            snapshot=snapshot,
        )

    def _storage_applied(self, committed: tuple[Entry, ...]) -> Message:
        return Message(MessageType.STORAGE_APPLY_RESP, self.raft.id, APPLY_THREAD, entries=committed)

    def _accept(self, ready: Ready) -> None:
        raft = self.raft
        if ready.soft_state is not None:
            self._previous_soft_state = ready.soft_state
        if ready.hard_state is not None:
            self._previous_hard_state = ready.hard_state
        if not self._async_writes:
            steps = [message for message in raft.after_append if message.to == raft.id]
            if self._wants_append_response(ready.snapshot):
                steps.append(self._storage_appended(ready.snapshot))
            if ready.committed_entries:
                steps.append(self._storage_applied(ready.committed_entries))
            self._steps_on_advance = steps
        raft.read_states.clear()
        raft.refused_conf_changes.clear()
        raft.messages.clear()
        raft.after_append.clear()
        raft.log.accept_unstable()
        if ready.committed_entries:
            raft.log.accept_applying(
                ready.committed_entries[-1].index,
                entries_size(ready.committed_entries),
                allow_unstable=not self._async_writes,
            )
