"""The leader's side of replication: appending, sending, committing (paper §5.3, §5.4; contract §9, §10)."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import Compacted, InvariantViolation, SnapshotTemporarilyUnavailable, Unavailable
from .sizes import payload_size
from .state import RaftState
from .trace import CommitAdvanced
from .tracker import Progress, ProgressState
from .types import NOTICE, Entry, Message, MessageType


class Replication(RaftState):
    """Everything that makes the log grow here, and there."""

    # --- the own log

    def append_entries(self, entries: Sequence[Entry], payload: int) -> bool:
        """Append entries that carry their term and index already; False when the quota refuses them.

        The leader's acknowledgement of its own write waits for the disk like any follower's.
        """
        if not self._grow_uncommitted(payload):
            return False
        last = self.log.append(entries)
        self.send(Message(MessageType.APP_RESP, self.id, self.id, self.term, 0, last))
        return True

    def _grow_uncommitted(self, payload: int) -> bool:
        """Count a proposal against the quota. The first one always fits, and so do empty ones."""
        size = self.uncommitted_size
        if size > 0 and payload > 0 and size + payload > self.max_uncommitted_size:
            return False
        self.uncommitted_size = size + payload
        return True

    def reduce_uncommitted(self, payload: int) -> None:
        """Entries were applied. They may have been another leader's, so this must not fall below 0."""
        self.uncommitted_size = max(self.uncommitted_size - payload, 0)

    def maybe_commit(self) -> bool:
        """Commit what a quorum has made durable, if its last entry is of this term (paper §5.4.2)."""
        if not self.log.maybe_commit(self.term, self.tracker.committed()):
            return False
        self.trace(CommitAdvanced(self.id, self.log.committed))
        return True

    def committed_in_current_term(self) -> bool:
        """Whether this leader has committed an entry of its own, and so knows the latest commit index."""
        return self.log.matches(self.term, self.log.committed)

    # --- appends

    def broadcast_append(self) -> None:
        """Send every peer what it lacks, or at least the commit index."""
        for node, progress in self.tracker.progress.items():
            if node != self.id:
                self.maybe_send_append(node, progress, send_if_empty=True)

    def broadcast_commit(self) -> None:
        """Tell every peer that more is committed, together with what it lacks."""
        for node, progress in self.tracker.progress.items():
            if node != self.id:
                self.tell_commit(node, progress)

    def tell_commit(self, to: int, progress: Progress) -> None:
        """Tell one peer. With ``commit_notices``, nothing is answered where nothing else is to be sent.

        An answer would say what the acknowledgements under way say as well. Should one of them be lost, the next
        heartbeat's answer causes an append of the usual kind.
        """
        log, prev = self.log, progress.next - 1
        if not self.commit_notices or progress.state != ProgressState.REPLICATE or prev != log.last_index:
            self.maybe_send_append(to, progress, send_if_empty=True)
        elif not progress.is_paused:
            commit, term = log.committed, log.term(prev)
            notice = Message(MessageType.APP, to, self.id, self.term, term, prev, commit=commit, context=NOTICE)
            self.messages.append(notice)
            progress.sent_commit = commit

    def send_append(self, to: int) -> None:
        """Send ``to`` what it lacks, or an empty append."""
        self.maybe_send_append(to, self.tracker.progress[to], send_if_empty=True)

    def maybe_send_append(self, to: int, progress: Progress, *, send_if_empty: bool) -> bool:
        """Send one append, or a snapshot where the log does not reach back far enough; whether one was sent."""
        if progress.is_paused:
            return False
        log, prev = self.log, progress.next - 1
        entries: tuple[Entry, ...] = ()
        try:
            prev_term = log.term(prev)
            # With a full window only an empty append goes out: it recovers from appends that were lost.
            if progress.state != ProgressState.REPLICATE or not progress.inflights.full:
                entries = log.entries(prev + 1, self.max_size_per_msg)
        except (Compacted, Unavailable):
            return self._maybe_send_snapshot(to, progress)
        if not entries and not send_if_empty:
            return False
        commit = log.committed
        self.messages.append(Message(MessageType.APP, to, self.id, self.term, prev_term, prev, entries, commit))
        progress.sent_entries(len(entries), payload_size(entries))
        progress.sent_commit = commit
        return True

    def _maybe_send_snapshot(self, to: int, progress: Progress) -> bool:
        """A snapshot is costly: only for a peer that answers, and only when the storage has one."""
        if not progress.recent_active:
            return False
        try:
            snapshot = self.log.unstable.snapshot or self.log.storage.snapshot()
        except SnapshotTemporarilyUnavailable:
            return False
        if snapshot.index == 0:
            raise InvariantViolation(f"node {to} needs a snapshot and the storage has none")
        progress.become_snapshot(snapshot.index)
        self.send(Message(MessageType.SNAP, to, self.id, self.term, snapshot=snapshot))
        return True

    # --- heartbeats

    def broadcast_heartbeat(self) -> None:
        """Tell every peer that this node leads; the context asks for confirmation of the newest read."""
        context = self.reads.heartbeat_context()
        for node, progress in self.tracker.progress.items():
            if node == self.id:
                continue
            # Never commit on a peer what is not known to match there: it may lack it, or hold another entry.
            commit = min(progress.match, self.log.committed)
            progress.sent_commit = commit  # may fall, so that a lost newer one is sent again
            self.send(Message(MessageType.HEARTBEAT, node, self.id, self.term, commit=commit, context=context))

    def send_timeout_now(self, to: int) -> None:
        """Tell a peer whose log is complete to stand for election at once (thesis §3.10)."""
        self.send(Message(MessageType.TIMEOUT_NOW, to, self.id, self.term))
