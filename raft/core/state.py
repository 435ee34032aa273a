"""The state of one node, and what every role shares: sending, resetting, changing role (contract §3).

The state machine is one class in layers, one subject per file, each layer building on the ones before it:
state, replication, reads, proposals, membership, elections, follower, leader, raft.
"""

from __future__ import annotations

from typing import Final

from .config import Config
from .errors import InvariantViolation
from .log import RaftLog
from .readonly import ReadOnlyOption, ReadQueue
from .roles import INITIAL_ROLE, Cause, next_role
from .trace import CommitAdvanced, LogTruncated, RoleChanged, TraceEvent
from .tracker import Progress, ProgressTracker
from .types import (
    NO_NODE,
    HardState,
    Message,
    MessageType,
    ReadState,
    RefusedConfChange,
    Role,
    SoftState,
)

AFTER_APPEND: Final = frozenset({MessageType.APP_RESP, MessageType.VOTE_RESP, MessageType.PRE_VOTE_RESP})
"""Promises about durable state, accepted or rejected: they leave only after that state is on disk."""


class RaftState:
    """Plain numbers and lists; no clock, no disk, no network."""

    def __init__(self, config: Config) -> None:
        config.validate()
        self.id = config.id
        self.term = 0
        self.vote = NO_NODE
        self.role = INITIAL_ROLE
        self.lead = NO_NODE
        self.log = RaftLog(config.storage, config.applying_limit, self._truncated)
        self.tracker = ProgressTracker(config.max_inflight_msgs, config.max_inflight_bytes)
        self.is_learner = False

        self.messages: list[Message] = []
        self.after_append: list[Message] = []
        self.read_states: list[ReadState] = []
        self.refused_conf_changes: list[RefusedConfChange] = []

        self.transferee = NO_NODE
        self.pending_conf_index = 0
        self.uncommitted_size = 0
        self.reads = ReadQueue()
        self.postponed_reads: list[Message] = []

        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.randomized_election_timeout = 0
        self.election_timeout = config.election_tick
        self.heartbeat_timeout = config.heartbeat_tick

        self.check_quorum = config.check_quorum
        self.pre_vote = config.pre_vote
        self.lease_reads = config.read_only == ReadOnlyOption.LEASE_BASED
        self.forwards_proposals = not config.disable_proposal_forwarding
        self.validates_conf_changes = not config.disable_conf_change_validation
        self.step_down_on_removal = config.step_down_on_removal
        self.commit_notices = config.commit_notices
        self.max_size_per_msg = config.max_size_per_msg
        self.max_uncommitted_size = config.uncommitted_limit
        self._rng = config.rng
        self._trace_callback = config.trace

    # --- what others may ask

    @property
    def soft_state(self) -> SoftState:
        return SoftState(self.lead, self.role)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)

    @property
    def is_leader(self) -> bool:
        return self.role == Role.LEADER

    @property
    def promotable(self) -> bool:
        """Whether this node may become leader: a voter of its own configuration, without a snapshot to apply."""
        progress = self.tracker.progress.get(self.id)
        return progress is not None and not progress.is_learner and self.log.unstable.snapshot is None

    @property
    def in_lease(self) -> bool:
        """Whether a leader was heard within the last election timeout. A leader hears itself."""
        return self.check_quorum and self.lead != NO_NODE and self.election_elapsed < self.election_timeout

    # --- sending and reporting

    def send(self, message: Message) -> None:
        """Queue a message, behind the next durable write if it is a promise about durable state."""
        if message.type in AFTER_APPEND:
            self.after_append.append(message)
        elif message.to == self.id:
            raise InvariantViolation(f"a node must not send {message.type.name} to itself")
        else:
            self.messages.append(message)

    def trace(self, event: TraceEvent) -> None:
        if self._trace_callback is not None:
            self._trace_callback(event)

    def commit_to(self, index: int) -> None:
        """Follow a leader's commit index."""
        if index > self.log.committed:
            self.log.commit_to(index)
            self.trace(CommitAdvanced(self.id, index))

    def _truncated(self, index: int) -> None:
        if self.role == Role.LEADER:
            raise InvariantViolation("a leader must not truncate its own log")
        self.trace(LogTruncated(self.id, index))

    # --- changing role

    def reset(self, term: int) -> None:
        """Enter ``term`` with nothing left of the role before: no leader, no votes, no view of the peers."""
        if term != self.term:
            self.term = term
            self.vote = NO_NODE
        self.lead = NO_NODE
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.reset_randomized_timeout()
        self.abort_transfer()
        self.tracker.votes.clear()
        self._reset_progress()
        self.pending_conf_index = 0
        self.uncommitted_size = 0
        self.reads.clear()
        self.postponed_reads.clear()

    def _reset_progress(self) -> None:
        last, tracker = self.log.last_index, self.tracker
        for node, old in tracker.progress.items():
            match = last if node == self.id else 0
            fresh = Progress(match, last + 1, tracker.new_inflights(), is_learner=old.is_learner)
            tracker.progress[node] = fresh

    def reset_randomized_timeout(self) -> None:
        """Uniform in [election timeout, twice that), so that voters seldom split (paper §5.2)."""
        self.randomized_election_timeout = self._rng.randrange(self.election_timeout, 2 * self.election_timeout)

    def abort_transfer(self) -> None:
        self.transferee = NO_NODE

    def become_follower(self, term: int, lead: int, cause: Cause | None) -> None:
        """Follow ``lead`` (or no one yet) in ``term``. ``cause`` None is the start of the process."""
        role = INITIAL_ROLE if cause is None else next_role(self.role, cause)
        if role != Role.FOLLOWER:
            raise InvariantViolation(f"{cause} does not lead to a follower")
        self.reset(term)
        self.role = role
        self.lead = lead
        self.trace(RoleChanged(self.id, role, self.term))
