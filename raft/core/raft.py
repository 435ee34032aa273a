"""The state machine: the rules of terms, then the table of who handles what (contract §4, §5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from .config import Config
from .errors import InvariantViolation
from .leader import Leader
from .roles import Cause
from .trace import AckIgnored, AppendAckIgnored, NodeStarted
from .tracker import Progress
from .types import EMPTY_HARD_STATE, NO_NODE, HardState, Message, MessageType, Role

_FROM_LEADER: Final = frozenset({MessageType.APP, MessageType.HEARTBEAT, MessageType.SNAP})
_VOTE_REQUESTS: Final = frozenset({MessageType.VOTE, MessageType.PRE_VOTE})


class Raft(Leader):
    """One node: ``step`` a message, ``tick`` the clock; what it wants done is collected by ``RawNode``."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        hard_state, conf_state = config.storage.initial_state()
        self.restore_config(conf_state)
        if hard_state != EMPTY_HARD_STATE:
            self._load(hard_state)
        if config.applied:
            self.applied_to(config.applied, 0)
        self.become_follower(self.term, NO_NODE, None)
        log = self.log
        self.trace(
            NodeStarted(self.id, self.term, log.committed, log.applied, log.last_index, log.last_term, conf_state)
        )

    def _load(self, hard_state: HardState) -> None:
        if not self.log.committed <= hard_state.commit <= self.log.last_index:
            bounds = f"[{self.log.committed}, {self.log.last_index}]"
            raise InvariantViolation(f"the stored commit {hard_state.commit} is outside the log {bounds}")
        self.log.committed = hard_state.commit
        self.term = hard_state.term
        self.vote = hard_state.vote

    def tick(self) -> None:
        """One unit of time. The core knows no other."""
        if self.role == Role.LEADER:
            self.tick_leader()
        else:
            self.tick_election()

    # --- messages

    def step(self, message: Message) -> bool:
        """Process one message. False only when a proposed configuration change was refused by this leader.

        Raises ProposalDropped for a proposal that was not accepted.
        """
        term = message.term
        if term > self.term:
            if not self._enter_higher_term(message):
                return True
        elif term and term < self.term:
            self._answer_stale(message)
            return True
        kind = message.type
        if kind == MessageType.STORAGE_APPEND_RESP:
            self._on_storage_append(message)
        elif kind == MessageType.STORAGE_APPLY_RESP:
            self.applied_entries(message.entries)
        elif kind in _VOTE_REQUESTS:
            self.handle_vote_request(message)
        elif kind == MessageType.HUP:
            self.hup()
        elif kind == MessageType.PROP:
            return _PROPOSAL[self.role](self, message)
        else:
            self._dispatch(message)
        return True

    def _dispatch(self, message: Message) -> None:
        handler = _HANDLERS[self.role].get(message.type)
        if handler is not None:
            handler(self, message)
        elif self.role == Role.LEADER:
            about_peer = _LEADER_PEER_HANDLERS.get(message.type)
            progress = self.tracker.progress.get(message.from_)
            if about_peer is not None and progress is not None:
                about_peer(self, message, progress)

    def _enter_higher_term(self, message: Message) -> bool:
        """The message is of a later term; False when it is ignored for that."""
        kind = message.type
        if kind in _VOTE_REQUESTS and self.ignores_vote_request(message):
            return False
        # A pre-vote asks about a term nobody has entered; only a refusal carries a real one.
        hypothetical = kind == MessageType.PRE_VOTE or (kind == MessageType.PRE_VOTE_RESP and not message.reject)
        if not hypothetical:
            lead = message.from_ if kind in _FROM_LEADER else NO_NODE
            self.become_follower(message.term, lead, Cause.TERM_ADVANCED)
        return True

    def _answer_stale(self, message: Message) -> None:
        """The message is of an earlier term: mostly ignored, but never where silence could last for ever."""
        kind = message.type
        if kind in (MessageType.APP, MessageType.HEARTBEAT):
            # With CheckQuorum or PreVote a higher term does not disturb by itself: the stale leader must be
            # told, or this node could neither follow it nor win an election.
            if self.check_quorum or self.pre_vote:
                self.send(Message(MessageType.APP_RESP, message.from_, self.id, self.term))
        elif kind == MessageType.PRE_VOTE:
            # Silence could deadlock an election between nodes with and without PreVote.
            self.send(Message(MessageType.PRE_VOTE_RESP, message.from_, self.id, self.term, reject=True))
        elif kind == MessageType.STORAGE_APPEND_RESP:
            if message.index:
                self.trace(AppendAckIgnored(self.id, AckIgnored.LOWER_TERM))
            if message.snapshot is not None:
                self.applied_snapshot(message.snapshot)

    def _on_storage_append(self, message: Message) -> None:
        if message.index:
            ignored = self.log.stable_to(message.log_term, message.index)
            if ignored is not None:
                self.trace(AppendAckIgnored(self.id, ignored))
        if message.snapshot is not None:
            self.applied_snapshot(message.snapshot)

    # --- small handlers that need no file

    def on_beat(self, message: Message) -> None:
        self.broadcast_heartbeat()

    def on_check_quorum_message(self, message: Message) -> None:
        self.on_check_quorum()


_Handler = Callable[[Raft, Message], None]
_PeerHandler = Callable[[Raft, Message, Progress], None]

_PROPOSAL: Final[Mapping[Role, Callable[[Raft, Message], bool]]] = {
    Role.FOLLOWER: Raft.on_proposal,
    Role.PRE_CANDIDATE: Raft.drop_proposal,
    Role.CANDIDATE: Raft.drop_proposal,
    Role.LEADER: Raft.append_message,
}

_CANDIDATE_HANDLERS: Final[Mapping[MessageType, _Handler]] = {
    MessageType.APP: Raft.on_append,
    MessageType.HEARTBEAT: Raft.on_heartbeat,
    MessageType.SNAP: Raft.on_snapshot,
    MessageType.VOTE_RESP: Raft.handle_vote_response,
    MessageType.PRE_VOTE_RESP: Raft.handle_vote_response,
    MessageType.CONF_CHANGE_REFUSED: Raft.on_conf_change_refused,
}

_HANDLERS: Final[Mapping[Role, Mapping[MessageType, _Handler]]] = {
    Role.FOLLOWER: {
        MessageType.APP: Raft.on_append,
        MessageType.HEARTBEAT: Raft.on_heartbeat,
        MessageType.SNAP: Raft.on_snapshot,
        MessageType.TIMEOUT_NOW: Raft.on_timeout_now,
        MessageType.TRANSFER_LEADER: Raft.on_transfer_leader,
        MessageType.READ_INDEX: Raft.on_read_index,
        MessageType.READ_INDEX_RESP: Raft.on_read_response,
        MessageType.FORGET_LEADER: Raft.on_forget_leader,
        MessageType.CONF_CHANGE_REFUSED: Raft.on_conf_change_refused,
    },
    Role.PRE_CANDIDATE: _CANDIDATE_HANDLERS,
    Role.CANDIDATE: _CANDIDATE_HANDLERS,
    Role.LEADER: {
        MessageType.BEAT: Raft.on_beat,
        MessageType.CHECK_QUORUM: Raft.on_check_quorum_message,
        MessageType.READ_INDEX: Raft.handle_read_request,
        MessageType.CONF_CHANGE_REFUSED: Raft.on_conf_change_refused,
    },
}

_LEADER_PEER_HANDLERS: Final[Mapping[MessageType, _PeerHandler]] = {
    MessageType.APP_RESP: Raft.on_append_response,
    MessageType.HEARTBEAT_RESP: Raft.on_heartbeat_response,
    MessageType.SNAP_STATUS: Raft.on_snapshot_status,
    MessageType.UNREACHABLE: Raft.on_unreachable,
    MessageType.TRANSFER_LEADER: Raft.on_transfer_request,
}
