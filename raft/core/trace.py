"""What a node reports about itself while it runs: typed events, given to an injected callback.

They explain decisions that leave no other trace, drive the viewer, and let a model checker follow an execution.
They are never needed for correctness: a core without a callback behaves the same.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from .types import ConfState, MessageType, Role


class NodeStarted(NamedTuple):
    """A core was created from its storage."""

    node: int
    term: int
    commit: int
    applied: int
    last_index: int
    last_term: int
    conf_state: ConfState


class RoleChanged(NamedTuple):
    """A node entered a role; also when it re-enters the one it had."""

    node: int
    role: Role
    term: int


class ConfigSwitched(NamedTuple):
    """A configuration came into force: at start, by a snapshot, or by an applied change."""

    node: int
    conf_state: ConfState


class CommitAdvanced(NamedTuple):
    """The commit index moved forward."""

    node: int
    commit: int


class Voted(NamedTuple):
    """A node gave its one vote of this term."""

    node: int
    term: int
    candidate: int


class VoteIgnored(NamedTuple):
    """A vote request met a live lease and got no answer (CheckQuorum, thesis §6.4.1)."""

    node: int
    type: MessageType
    peer: int
    remaining_ticks: int


class RefusedCampaign(StrEnum):
    ALREADY_LEADER = "already_leader"
    NOT_PROMOTABLE = "not_promotable"
    UNAPPLIED_CONF_CHANGE = "unapplied_conf_change"


class CampaignRefused(NamedTuple):
    """A node did not stand for election although it was told to."""

    node: int
    reason: RefusedCampaign


class RefusedChange(StrEnum):
    PENDING = "an earlier change may not be applied yet"
    JOINT = "the joint configuration must be left first"
    NOT_JOINT = "there is no joint configuration to leave"
    MALFORMED = "the entry holds no configuration change"


class ConfChangeIgnored(NamedTuple):
    """A leader replaced a proposed configuration change by an empty entry at ``index``."""

    node: int
    index: int  # type: ignore[assignment]  # shadows tuple.index
    reason: RefusedChange
    context: bytes


class LogTruncated(NamedTuple):
    """Entries from ``index`` on conflicted with the leader's and were dropped."""

    node: int
    index: int  # type: ignore[assignment]  # shadows tuple.index


class AckIgnored(StrEnum):
    LOWER_TERM = "lower_term"
    NOT_UNSTABLE = "not_unstable"
    TERM_MISMATCH = "term_mismatch"


class AppendAckIgnored(NamedTuple):
    """A storage acknowledgement does not prove that what is in the log now is durable."""

    node: int
    reason: AckIgnored


TraceEvent: TypeAlias = (
    NodeStarted
    | RoleChanged
    | ConfigSwitched
    | CommitAdvanced
    | Voted
    | VoteIgnored
    | CampaignRefused
    | ConfChangeIgnored
    | LogTruncated
    | AppendAckIgnored
)

TraceCallback: TypeAlias = Callable[[TraceEvent], None]
