"""What a leader knows about each member, and what every node knows about the configuration (contract §9, §14)."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple

from . import quorum
from .errors import InvariantViolation
from .inflights import Inflights
from .types import ConfState

_EMPTY: Final[frozenset[int]] = frozenset()


class ProgressState(IntEnum):
    """How a leader feeds one follower (contract §9.1)."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Progress:
    """The leader's view of one follower. Invariant: ``0 <= match < next``.

    ``match``: the last index known to be durable there. ``next``: the first index not sent yet (replicate) or
    to be tried (probe). ``sent_commit``: the highest commit index it was told.
    """

    __slots__ = (
        "inflights",
        "is_learner",
        "match",
        "next",
        "paused",
        "pending_snapshot",
        "recent_active",
        "sent_commit",
        "state",
    )

    def __init__(self, match: int, next_index: int, inflights: Inflights, *, is_learner: bool = False) -> None:
        self.match = match
        self.next = next_index
        self.state = ProgressState.PROBE
        self.paused = False
        self.pending_snapshot = 0
        self.recent_active = False
        self.sent_commit = 0
        self.inflights = inflights
        self.is_learner = is_learner

    def copy(self) -> Progress:
        """A copy that shares the inflight window, for a configuration that replaces the old one."""
        twin = Progress(self.match, self.next, self.inflights, is_learner=self.is_learner)
        twin.state, twin.paused, twin.pending_snapshot = self.state, self.paused, self.pending_snapshot
        twin.recent_active, twin.sent_commit = self.recent_active, self.sent_commit
        return twin

    @property
    def is_paused(self) -> bool:
        """Nothing may be sent: a probe or a full window is outstanding, or a snapshot is on its way."""
        return self.state == ProgressState.SNAPSHOT or self.paused

    def _reset(self, state: ProgressState) -> None:
        self.state = state
        self.paused = False
        self.pending_snapshot = 0
        self.inflights.reset()

    def become_probe(self) -> None:
        """Try one append at a time, from where the follower is known to be."""
        pending = self.pending_snapshot if self.state == ProgressState.SNAPSHOT else 0
        self._reset(ProgressState.PROBE)
        self.next = max(self.match, pending) + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Stream appends optimistically."""
        self._reset(ProgressState.REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """Wait for a snapshot of ``index`` to arrive."""
        self._reset(ProgressState.SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def sent_entries(self, count: int, payload: int) -> None:
        """Account for an append with ``count`` entries of ``payload`` bytes in all."""
        if self.state == ProgressState.REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, payload)
            # A full window still lets one empty append out per heartbeat response: see leader.py.
            self.paused = self.inflights.full
        elif self.state == ProgressState.PROBE:
            if count:
                self.paused = True
        else:
            raise InvariantViolation("sending entries to a follower that waits for a snapshot")

    def can_bump_commit(self, commit: int) -> bool:
        """Whether telling ``commit`` now lets the follower commit something it was already sent."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: int) -> bool:
        """The follower acknowledged ``index``. False when that is old news."""
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.paused = False
        return True

    def maybe_decrease(self, rejected: int, hint: int) -> bool:
        """The follower rejected the append after ``rejected``; ``hint`` is where to try. False when stale."""
        if self.state == ProgressState.REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
            self.sent_commit = min(self.sent_commit, self.next - 1)
            return True
        if self.next - 1 != rejected:
            return False
        self.next = max(min(rejected, hint + 1), self.match + 1)
        self.sent_commit = min(self.sent_commit, self.next - 1)
        self.paused = False
        return True


class Configuration(NamedTuple):
    """Who votes and who only learns. ``outgoing`` is not empty exactly while the configuration is joint."""

    incoming: frozenset[int] = _EMPTY
    outgoing: frozenset[int] = _EMPTY
    learners: frozenset[int] = _EMPTY
    learners_next: frozenset[int] = _EMPTY
    auto_leave: bool = False

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def voters(self) -> frozenset[int]:
        """Every voter of either half."""
        return self.incoming | self.outgoing if self.outgoing else self.incoming

    def conf_state(self) -> ConfState:
        """The stored form."""
        return ConfState(
            voters=tuple(sorted(self.incoming)),
            learners=tuple(sorted(self.learners)),
            voters_outgoing=tuple(sorted(self.outgoing)),
            learners_next=tuple(sorted(self.learners_next)),
            auto_leave=self.auto_leave,
        )

    def check(self, members: Collection[int]) -> None:
        """Assert the invariants of contract §14; ``members`` are the ids that have a progress."""
        everyone = self.incoming | self.outgoing | self.learners | self.learners_next
        broken = (
            ("a member without progress", not everyone <= frozenset(members)),
            ("a learner that votes", bool(self.learners & (self.incoming | self.outgoing))),
            ("learners_next outside the outgoing voters", not self.learners_next <= self.outgoing),
            (
                "leftovers of a joint configuration",
                not self.outgoing and (bool(self.learners_next) or self.auto_leave),
            ),
        )
        for what, is_broken in broken:
            if is_broken:
                raise InvariantViolation(f"configuration with {what}: {self}")


class ProgressTracker:
    """The configuration in force, a Progress per member in ascending id order, and the votes of an election."""

    __slots__ = ("config", "max_inflight_bytes", "max_inflight_messages", "progress", "votes")

    def __init__(self, max_inflight_messages: int, max_inflight_bytes: int) -> None:
        self.config = Configuration()
        self.progress: dict[int, Progress] = {}
        self.votes: dict[int, bool] = {}
        self.max_inflight_messages = max_inflight_messages
        self.max_inflight_bytes = max_inflight_bytes

    def new_inflights(self) -> Inflights:
        return Inflights(self.max_inflight_messages, self.max_inflight_bytes)

    @property
    def is_singleton(self) -> bool:
        """One voter, not joint: it is a quorum by itself."""
        return len(self.config.incoming) == 1 and not self.config.outgoing

    def committed(self) -> int:
        """The largest index that a (joint) quorum of the voters has made durable."""
        acked = {node: progress.match for node, progress in self.progress.items()}
        return quorum.joint_committed_index(self.config.incoming, self.config.outgoing, acked)

    def quorum_active(self, self_id: int) -> bool:
        """Whether a (joint) quorum was heard since the marks were cleared; ``self_id`` always was."""
        heard = {node: progress.recent_active or node == self_id for node, progress in self.progress.items()}
        config = self.config
        return quorum.joint_vote_result(config.incoming, config.outgoing, heard) == quorum.VoteResult.WON

    def record_vote(self, node: int, granted: bool) -> None:
        """The first answer of a node counts; a repeated or changed one does not."""
        self.votes.setdefault(node, granted)

    def tally(self) -> quorum.VoteResult:
        return quorum.joint_vote_result(self.config.incoming, self.config.outgoing, self.votes)
