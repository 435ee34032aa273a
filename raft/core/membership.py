"""The configuration: switched when a change is applied, replaced by a snapshot (contract §14, §15)."""

from __future__ import annotations

from . import confchange
from .errors import ConfChangeError, InvariantViolation, ProposalDropped
from .proposals import Proposals
from .roles import Cause
from .sizes import ENTRY_OVERHEAD, payload_size
from .trace import CommitAdvanced, ConfigSwitched
from .tracker import Configuration, Progress
from .types import (
    NO_NODE,
    ConfChange,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    Message,
    MessageType,
    Role,
    Snapshot,
)


class Membership(Proposals):
    """What follows from entries and snapshots being applied."""

    # --- changes

    def apply_conf_change(self, change: ConfChange | ConfChangeV2) -> ConfState:
        """Bring a committed change into force; returns the configuration to store with the state machine.

        A change that does not fit here fits nowhere, since every member applies it to the same configuration:
        InvariantViolation.
        """
        general = confchange.as_v2(change)
        changer = confchange.Changer(self.tracker, self.log.last_index)
        auto_leave = confchange.joint_auto_leave(general)
        try:
            if confchange.leaves_joint(general):
                result = changer.leave_joint()
            elif auto_leave is not None:
                result = changer.enter_joint(general.changes, auto_leave=auto_leave)
            else:
                result = changer.simple(general.changes)
        except ConfChangeError as error:
            raise InvariantViolation(f"a committed configuration change cannot be applied: {error}") from error
        return self.switch_config(*result)

    def switch_config(self, config: Configuration, progress: dict[int, Progress]) -> ConfState:
        """Put a configuration into force and act on what it changes for this node."""
        self.tracker.config, self.tracker.progress = config, progress
        state = config.conf_state()
        self.trace(ConfigSwitched(self.id, state))
        own = progress.get(self.id)
        self.is_learner = own is not None and own.is_learner
        if self.role != Role.LEADER:
            return state
        if own is None or own.is_learner:
            # Without step-down it leads on, without a vote, until the new quorum has committed the change.
            if self.step_down_on_removal:
                self.become_follower(self.term, NO_NODE, Cause.REMOVED)
            return state
        if not config.incoming:
            return state
        self._serve_new_config()
        if self.transferee not in config.voters:
            self.abort_transfer()
        return state

    def _serve_new_config(self) -> None:
        """A smaller quorum may have committed more; a new member must be probed."""
        if self.maybe_commit():
            self.release_postponed_reads()
            self.broadcast_append()
            return
        for node, progress in self.tracker.progress.items():
            if node != self.id:
                self.maybe_send_append(node, progress, send_if_empty=False)

    def has_unapplied_conf_change(self, index: int) -> bool:
        """Whether an entry up to ``index`` that is not applied yet changes the configuration."""
        log = self.log
        pages = log.scan(log.applied + 1, index + 1, log.max_applying_size)
        return any(entry.type != EntryType.NORMAL for page in pages for entry in page)

    # --- applied

    def applied_entries(self, entries: tuple[Entry, ...]) -> None:
        """The state machine has applied ``entries``."""
        if entries:
            payload = payload_size(entries)
            self.applied_to(entries[-1].index, payload + ENTRY_OVERHEAD * len(entries))
            self.reduce_uncommitted(payload)

    def applied_to(self, index: int, size: int) -> None:
        """The state machine is at ``index``; leaves a joint configuration that asks for it (paper §6)."""
        applied = max(index, self.log.applied)
        self.log.applied_to(applied, size)
        if self.role == Role.LEADER and self.tracker.config.auto_leave and applied >= self.pending_conf_index:
            kind, data = confchange.encode(ConfChangeV2())
            leave = Message(MessageType.PROP, from_=self.id, entries=(Entry(0, 0, kind, data),))
            try:
                self.append_message(leave)
            except ProposalDropped:
                return  # during a transfer; the next applied entry tries again

    def applied_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot is durable and the state machine stands on it."""
        self.log.stable_snapshot_to(snapshot.index)
        self.applied_to(snapshot.index, 0)

    # --- snapshots from a leader

    def restore(self, snapshot: Snapshot) -> bool:
        """Replace log and configuration by a leader's snapshot; False when there is no need to."""
        if snapshot.index <= self.log.committed:
            return False
        if self.role != Role.FOLLOWER:
            raise InvariantViolation(f"a {self.role.name.lower()} was given a snapshot to restore")
        config = snapshot.conf_state
        if self.id not in config.voters + config.learners + config.voters_outgoing:
            return False  # not meant for a member of this configuration
        if self.log.matches(snapshot.term, snapshot.index):
            self.commit_to(snapshot.index)  # nothing is missing, only the news that it is committed
            return False
        if self.has_unapplied_conf_change(self.log.applying):
            # The state machine is at work on a change, and would bring it into force on top of the snapshot's
            # configuration. It will be done soon, and the leader will send another snapshot if need be.
            return False
        self.log.restore(snapshot)
        self.trace(CommitAdvanced(self.id, snapshot.index))
        self.restore_config(config)
        own = self.tracker.progress[self.id]
        own.maybe_update(own.next - 1)
        return True

    def restore_config(self, state: ConfState) -> None:
        """The configuration of a snapshot, or of the storage at start."""
        try:
            result = confchange.restore(self.tracker, state, self.log.last_index)
        except ConfChangeError as error:
            raise InvariantViolation(f"cannot restore the configuration: {error}") from error
        switched = self.switch_config(*result)
        if switched != confchange.normalized(state):
            raise InvariantViolation(f"restored {switched} instead of {state}")
