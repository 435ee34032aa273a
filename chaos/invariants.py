"""The safety invariants of contract §19, checked against what the nodes of a simulation do and have on disk.

The checker sees nodes only through ``Observed``; any simulator that offers it can use this file. It is told
about each step of a node (``after_step``), each message that leaves one (``on_send``), each entry applied, and
each read. It raises AssertionError naming the invariant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from raft.core import (
    Compacted,
    ConfState,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    ProgressState,
    RawNode,
    Role,
    Unavailable,
)
from raft.core.log import check_log_slice
from raft.core.raft import Raft


class Durable(Protocol):
    """What is on the disk of a node."""

    @property
    def conf_state(self) -> ConfState: ...
    def hard_state(self) -> HardState: ...
    def term(self, index: int) -> int: ...
    def first_index(self) -> int: ...
    def last_index(self) -> int: ...


class Observed(Protocol):
    """A member of a cluster under observation; ``node`` is None while it is down."""

    @property
    def id(self) -> int: ...
    @property
    def node(self) -> RawNode | None: ...
    @property
    def disk(self) -> Durable: ...


class Checker:
    """History of one cluster, and the invariants on it."""

    def __init__(self, members: Mapping[int, Observed], *, async_writes: bool, start: int = 0) -> None:
        """``start`` is the position all first members begin with, committed by definition."""
        self._members = members
        self._async_writes = async_writes
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, Entry] = {}
        self._committed_in: dict[int, int] = {}
        """Index to the term of the leader that committed it."""
        self.max_committed = start
        self.max_applied = 0
        self._entries: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._last_of_term: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._seen: dict[int, tuple[int, int, Role, int]] = {}
        self._states: dict[int, tuple[bytes, ConfState]] = {}
        self._unstable: dict[int, list[Entry]] = {}

    # --- hooks

    def forget(self, node: int) -> None:
        """The process ended: only what is durable must stay monotone."""
        self._seen.pop(node, None)
        self._unstable.pop(node, None)

    def after_step(self, member: Observed) -> None:
        """Check everything that a step of this node may have changed."""
        if member.node is None:
            return
        raft = member.node.raft
        self._check_positions(raft)
        self._check_monotone(raft)
        self._check_stable(raft)
        self._check_entries(raft)
        if raft.role == Role.LEADER:
            self._check_leader(raft)
        self._check_commit(raft)
        self._check_config(raft, member.disk.conf_state)

    def on_commit(self, raft: Raft) -> None:
        """The commit index has just moved. For simulators whose step is more than one message, so that the role in
        which it moved is not known afterwards."""
        self._check_commit(raft)

    def on_leader(self, raft: Raft) -> None:
        """This node has just become leader; for the same simulators."""
        self._check_new_leader(raft)

    def on_send(self, sender: Observed, message: Message) -> None:
        """Persisted state covers every promise; appends are well formed."""
        hard_state, disk = sender.disk.hard_state(), sender.disk
        if message.type == MessageType.APP:
            check_log_slice(message.index, message.entries, message.term)
        elif message.type == MessageType.VOTE_RESP and not message.reject:
            assert hard_state.term >= message.term, "persisted: vote of a term that is not on disk"
            if hard_state.term == message.term:
                assert hard_state.vote == message.to, "persisted: vote that is not on disk"
        elif message.type == MessageType.APP_RESP and not message.reject:
            assert hard_state.term >= message.term, "persisted: acknowledgement in a term not on disk"
            if hard_state.term == message.term:
                assert disk.last_index() >= message.index, "persisted: acknowledged entry not on disk"

    def on_apply(self, entry: Entry, digest: bytes, conf_state: ConfState) -> None:
        """I5: every state machine goes through the same states."""
        known = self.committed.setdefault(entry.index, entry)
        assert known == entry, f"I5: {entry} applied where {known} is committed"
        self.on_state(entry.index, digest, conf_state)

    def on_state(self, index: int, digest: bytes, conf_state: ConfState) -> None:
        """The state machine of a node is at ``index``, by an entry or by a snapshot."""
        self.max_applied = max(self.max_applied, index)
        state = (digest, conf_state)
        assert self._states.setdefault(index, state) == state, f"I5: two states at {index}"

    # --- one node

    def _check_config(self, raft: Raft, applied: ConfState) -> None:
        """Changes are in force when they are applied, neither sooner nor later (§14)."""
        config = raft.tracker.config
        config.check(raft.tracker.progress)
        if raft.log.unstable.snapshot is None:
            assert config.conf_state() == applied, f"configuration {config}, but {applied} is applied"

    def _check_positions(self, raft: Raft) -> None:
        log, unstable = raft.log, raft.log.unstable
        assert log.applied <= log.applying <= log.committed <= log.last_index, "order of positions"
        end = unstable.offset + len(unstable.entries)
        assert unstable.offset <= unstable.offset_in_progress <= end, "unstable positions"
        if self._async_writes and unstable.snapshot is None:
            assert log.applying < unstable.offset, "applied before it was durable"
        for message in raft.messages:
            assert message.to != raft.id, "message to itself outside the durable path"

    def _check_monotone(self, raft: Raft) -> None:
        term, commit, role, vote = self._seen.get(raft.id, (0, 0, Role.FOLLOWER, 0))
        assert raft.term >= term, "term went back"
        assert raft.log.committed >= commit, "commit went back"
        hard_state = self._members[raft.id].disk.hard_state()
        assert raft.term >= hard_state.term, "term behind the disk"
        assert term != raft.term or vote in (0, raft.vote), f"vote of {raft.id} changed in term {term}"
        if hard_state.vote:  # a vote that was never written was never sent either, and may be lost
            voted = self._votes.setdefault((raft.id, hard_state.term), hard_state.vote)
            assert voted == hard_state.vote, f"two votes of {raft.id} in term {hard_state.term}"
        if raft.role == Role.LEADER and (role != Role.LEADER or term != raft.term):
            self._check_new_leader(raft)
        self._seen[raft.id] = (raft.term, raft.log.committed, raft.role, raft.vote)

    def _check_stable(self, raft: Raft) -> None:
        """What the node stopped to consider unstable is on its disk, and is the same entry."""
        disk, unstable = self._members[raft.id].disk, raft.log.unstable
        for entry in self._unstable.get(raft.id, ()):
            if entry.index >= unstable.offset or unstable.snapshot is not None:
                break
            if entry.index >= disk.first_index():
                assert disk.last_index() >= entry.index, f"stable entry {entry.index} is not on disk"
                assert disk.term(entry.index) == entry.term, f"stable entry {entry.index} is another on disk"
        self._unstable[raft.id] = list(unstable.entries)

    def _check_entries(self, raft: Raft) -> None:
        """I3, by induction: an (index, term) has one content and one predecessor."""
        previous = -1
        for entry in raft.log.unstable.entries:
            key = (entry.term, entry.index)
            if previous < 0:
                previous = raft.log.term_or_zero(entry.index - 1)
            known = self._entries.get(key)
            if known is None:
                self._entries[key] = (entry, previous)
                self._last_of_term[entry.term] = max(self._last_of_term.get(entry.term, 0), entry.index)
                assert previous <= entry.term, "terms in a log fall"
            else:
                assert known[0] == entry, f"I3: two entries at {key}"
                assert known[1] == previous or not previous, f"I3: two predecessors of {key}"
            previous = entry.term

    # --- leaders

    def _check_new_leader(self, raft: Raft) -> None:
        elected = self.leaders.setdefault(raft.term, raft.id)
        assert elected == raft.id, f"I1: {elected} and {raft.id} lead term {raft.term}"
        for index, entry in self.committed.items():
            # A node may learn late that it has won; what a later leader committed meanwhile is not its to hold.
            if self._committed_in.get(index, 0) < raft.term:
                self._check_holds(raft, index, entry)
        pending = [
            entry
            for page in raft.log.scan(raft.log.applied + 1, raft.log.last_index + 1, 1 << 20)
            for entry in page
            if entry.type != EntryType.NORMAL
        ]
        assert len(pending) <= 1, f"more than one unapplied configuration change: {pending}"

    @staticmethod
    def _check_holds(raft: Raft, index: int, entry: Entry) -> None:
        try:
            term = raft.log.term(index)
        except Compacted:
            return  # covered by its snapshot
        except Unavailable:
            raise AssertionError(f"I4: leader {raft.id} lacks committed {index}") from None
        assert term == entry.term, f"I4: leader {raft.id} has another entry at committed {index}"

    def _check_leader(self, raft: Raft) -> None:
        last = self._last_of_term.get(raft.term, 0)
        assert raft.log.last_index >= last, "I8, I2: a leader lacks an entry of its own term"
        for node, progress in raft.tracker.progress.items():
            assert 0 <= progress.match < progress.next, "match < next"
            if progress.state == ProgressState.SNAPSHOT:
                assert not len(progress.inflights), "inflights while a snapshot is pending"
            self._check_match(raft, node, progress.match)

    def _check_match(self, raft: Raft, node: int, match: int) -> None:
        """What a leader counts as replicated is on that disk, as long as no later term may replace it."""
        member = self._members.get(node)
        if member is None or not match or member.disk.hard_state().term > raft.term:
            return
        assert member.disk.last_index() >= match, f"match {match} of {node} is not on its disk"
        if match >= member.disk.first_index() and match >= raft.log.first_index:
            assert member.disk.term(match) == raft.log.term(match), f"match {match} of {node} differs"

    # --- commits

    def _check_commit(self, raft: Raft) -> None:
        commit = raft.log.committed
        if commit <= self.max_committed:
            return
        for index in range(self.max_committed + 1, commit + 1):
            if index >= raft.log.first_index:
                (entry,) = raft.log.slice(index, index + 1, 1)
                self._register_commit(raft, index, entry)
        assert raft.role == Role.LEADER, "a follower is the first to know of a commit"
        assert raft.log.term(commit) == raft.term, "commit by counting an entry of an older term (§5.4.2)"
        self._check_durable(raft, commit)
        self.max_committed = commit

    def _register_commit(self, raft: Raft, index: int, entry: Entry) -> None:
        known = self.committed.setdefault(index, entry)
        self._committed_in.setdefault(index, raft.term)
        assert known == entry, f"I5: two committed entries at {index}"
        for other in self._members.values():
            if other.node is not None and other.node.is_leader and other.node.term > raft.term:
                self._check_holds(other.node.raft, index, entry)

    def _check_durable(self, raft: Raft, index: int) -> None:
        """I6: on a quorum of each half of the configuration in force."""
        term, config = raft.log.term(index), raft.tracker.config
        for half in (config.incoming, config.outgoing):
            holders = [node for node in half if self._on_disk(node, term, index)]
            assert len(holders) > len(half) // 2 or not half, f"I6: {index} is committed, but only on {holders}"

    def _on_disk(self, node: int, term: int, index: int) -> bool:
        member = self._members.get(node)
        if member is None or member.disk.last_index() < index:
            return False
        return index < member.disk.first_index() or member.disk.term(index) == term

    # --- all nodes, at the end of a run

    def check_up_to_date(self, members: Collection[Observed]) -> None:
        """I7: a log at least as complete as another contains the other's committed prefix."""
        running = [member.node.raft for member in members if member.node is not None]
        for mine in running:
            for other in running:
                if mine.log.is_up_to_date(other.log.last_term, other.log.last_index):
                    continue
                for index in range(mine.log.first_index, other.log.committed + 1):
                    known = self.committed.get(index)
                    if known is not None:
                        self._check_holds(mine, index, known)
