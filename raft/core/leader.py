"""What a leader does with messages and ticks (contract §5, §9.3, §13)."""

from __future__ import annotations

from .follower import Follower
from .roles import Cause
from .tracker import Progress, ProgressState
from .types import NO_NODE, Message, Role


class Leader(Follower):
    """Handlers that need the sender's progress are only called for members; see raft.py."""

    # --- time

    def tick_leader(self) -> None:
        """One tick of leading: check the quorum once per election timeout, then beat."""
        self.heartbeat_elapsed += 1
        self.election_elapsed += 1
        if self.election_elapsed >= self.election_timeout:
            self.election_elapsed = 0
            if self.check_quorum:
                self.on_check_quorum()
            if self.role == Role.LEADER:
                self.abort_transfer()  # it had a whole election timeout
        if self.role == Role.LEADER and self.heartbeat_elapsed >= self.heartbeat_timeout:
            self.heartbeat_elapsed = 0
            self.broadcast_heartbeat()

    def on_check_quorum(self) -> None:
        """Step down when no quorum was heard since the last check (thesis §6.2)."""
        if not self.tracker.quorum_active(self.id):
            self.become_follower(self.term, NO_NODE, Cause.QUORUM_LOST)
        for node, progress in self.tracker.progress.items():
            if node != self.id:
                progress.recent_active = False

    # --- acknowledgements

    def on_append_response(self, message: Message, progress: Progress) -> None:
        progress.recent_active = True
        if message.reject:
            self._on_rejected(message, progress)
        elif progress.maybe_update(message.index) or (
            progress.match == message.index and progress.state == ProgressState.PROBE
        ):
            self._on_accepted(message, progress)

    def _on_rejected(self, message: Message, progress: Progress) -> None:
        """Step back to where the logs may agree: at most one probe per term (contract §9.4)."""
        next_probe = message.reject_hint
        if message.log_term > 0:
            next_probe, _ = self.log.find_conflict_by_term(next_probe, message.log_term)
        if progress.maybe_decrease(message.index, next_probe):
            if progress.state == ProgressState.REPLICATE:
                progress.become_probe()
            self.maybe_send_append(message.from_, progress, send_if_empty=True)

    def _on_accepted(self, message: Message, progress: Progress) -> None:
        node = message.from_
        if progress.state == ProgressState.PROBE:
            progress.become_replicate()
        elif progress.state == ProgressState.REPLICATE:
            progress.inflights.free_to(message.index)
        elif progress.match + 1 >= self.log.first_index:
            # It need not be the snapshot that was sent: what counts is that the log connects again.
            progress.become_probe()
            progress.become_replicate()
        if self.maybe_commit():
            self.release_postponed_reads()
            self.broadcast_commit()
        elif node != self.id and progress.can_bump_commit(self.log.committed):
            self.tell_commit(node, progress)
        if node == self.id:
            return
        while self.maybe_send_append(node, progress, send_if_empty=False):
            pass
        if node == self.transferee and progress.match == self.log.last_index:
            self.send_timeout_now(node)

    def on_heartbeat_response(self, message: Message, progress: Progress) -> None:
        """The peer lives: unstick it, whatever was lost, and count its echo of the read round."""
        progress.recent_active = True
        progress.paused = False
        if progress.match < self.log.last_index or progress.state == ProgressState.PROBE:
            self.maybe_send_append(message.from_, progress, send_if_empty=True)
        if not self.lease_reads:
            self.acknowledge_reads(message.from_, message.context)

    # --- reports of the driver

    def on_snapshot_status(self, message: Message, progress: Progress) -> None:
        """A snapshot arrived or failed: probe again, once the peer is heard (an early append would be lost)."""
        if progress.state != ProgressState.SNAPSHOT:
            return
        if message.reject:
            progress.pending_snapshot = 0
        progress.become_probe()
        progress.paused = True

    def on_unreachable(self, message: Message, progress: Progress) -> None:
        """Optimistic sending lost something; find out what."""
        if progress.state == ProgressState.REPLICATE:
            progress.become_probe()

    # --- handing over

    def on_transfer_request(self, message: Message, progress: Progress) -> None:
        """Bring the target up to date, then tell it to stand (thesis §3.10).

        A repeated wish for the same target does not extend its time; another target replaces it.
        """
        target = message.from_
        if progress.is_learner or target == self.transferee:
            return
        self.abort_transfer()
        if target == self.id:
            return
        self.election_elapsed = 0
        self.transferee = target
        if progress.match == self.log.last_index:
            self.send_timeout_now(target)
        else:
            self.maybe_send_append(target, progress, send_if_empty=True)
