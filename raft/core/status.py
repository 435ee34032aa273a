"""A picture of a node for people and for metrics; copies, so that it does not change under the reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .tracker import Progress, ProgressState
from .types import ConfState, Role

if TYPE_CHECKING:
    from .raft import Raft


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One member as its leader sees it (contract §9.1)."""

    id: int
    state: ProgressState
    match: int
    next: int
    is_learner: bool
    paused: bool
    pending_snapshot: int
    recent_active: bool
    inflight: int
    inflight_bytes: int
    inflight_full: bool


@dataclass(frozen=True, slots=True)
class Status:
    """``progress`` is empty unless this node leads. Times are ticks, positions are log indexes."""

    id: int
    term: int
    vote: int
    lead: int
    role: Role
    commit: int
    applied: int
    first_index: int
    last_index: int
    last_term: int
    config: ConfState
    is_learner: bool
    transferee: int
    pending_conf_index: int
    uncommitted_size: int
    pending_reads: int
    election_elapsed: int
    heartbeat_elapsed: int
    randomized_election_timeout: int
    progress: dict[int, PeerStatus]


def status_of(raft: Raft) -> Status:
    """The state of ``raft`` now."""
    progress = raft.tracker.progress if raft.is_leader else {}
    return Status(
        id=raft.id,
        term=raft.term,
        vote=raft.vote,
        lead=raft.lead,
        role=raft.role,
        commit=raft.log.committed,
        applied=raft.log.applied,
        first_index=raft.log.first_index,
        last_index=raft.log.last_index,
        last_term=raft.log.last_term,
        config=raft.tracker.config.conf_state(),
        is_learner=raft.is_learner,
        transferee=raft.transferee,
        pending_conf_index=raft.pending_conf_index,
        uncommitted_size=raft.uncommitted_size,
        pending_reads=len(raft.reads) + len(raft.postponed_reads),
        election_elapsed=raft.election_elapsed,
        heartbeat_elapsed=raft.heartbeat_elapsed,
        randomized_election_timeout=raft.randomized_election_timeout,
        progress={node: peer_status(node, one) for node, one in progress.items()},
    )


def peer_status(node: int, progress: Progress) -> PeerStatus:
    """A copy of one Progress."""
    return PeerStatus(
        id=node,
        state=progress.state,
        match=progress.match,
        next=progress.next,
        is_learner=progress.is_learner,
        paused=progress.is_paused,
        pending_snapshot=progress.pending_snapshot,
        recent_active=progress.recent_active,
        inflight=len(progress.inflights),
        inflight_bytes=progress.inflights.bytes,
        inflight_full=progress.inflights.full,
    )
