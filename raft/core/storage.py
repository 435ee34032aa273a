"""What the core reads from durable storage, and an implementation in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .errors import Compacted, InvariantViolation, SnapshotOutOfDate, Unavailable
from .sizes import limit_size
from .types import EMPTY_HARD_STATE, ConfState, Entry, HardState, Snapshot


class Storage(Protocol):
    """The six reads of the core (contract §1). It must show everything acknowledged as stable so far.

    The reads are synchronous and on the hot path: an implementation over a disk keeps the recent entries in
    memory. An exception other than the documented ones is fatal to the node.
    """

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The durable state, and the configuration at the applied (or snapshot) position."""

    def entries(self, low: int, high: int, max_size: int) -> Sequence[Entry]:
        """Entries ``low <= index < high``, cut to ``max_size`` bytes (``sizes.entries_size``), at least one.

        Raises Compacted below ``first_index``, Unavailable when the positions are not there.
        """

    def term(self, index: int) -> int:
        """The term at ``first_index - 1 <= index <= last_index``; raises Compacted or Unavailable outside."""

    def first_index(self) -> int:
        """The oldest entry that can be read, snapshot position + 1."""

    def last_index(self) -> int:
        """The newest entry, or the snapshot position when there is none."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; raises SnapshotTemporarilyUnavailable where it takes time to make."""


class MemoryStorage:
    """A log in a list. ``_entries[0]`` is never an entry: it stands at the snapshot position."""

    def __init__(self) -> None:
        self._hard_state = EMPTY_HARD_STATE
        self._snapshot = Snapshot()
        self._entries: list[Entry] = [Entry(0, 0)]

    def initial_state(self) -> tuple[HardState, ConfState]:
        return self._hard_state, self._snapshot.conf_state

    def set_hard_state(self, hard_state: HardState) -> None:
        self._hard_state = hard_state

    def first_index(self) -> int:
        return self._entries[0].index + 1

    def last_index(self) -> int:
        return self._entries[0].index + len(self._entries) - 1

    def entries(self, low: int, high: int, max_size: int) -> Sequence[Entry]:
        offset = self._entries[0].index
        if low <= offset:
            raise Compacted(f"entries from {low}: the log starts at {offset + 1}")
        if high > self.last_index() + 1:
            raise InvariantViolation(f"entries up to {high - 1}: the log ends at {self.last_index()}")
        if len(self._entries) == 1:
            raise Unavailable(f"entries from {low}: the log is empty")
        return limit_size(self._entries[low - offset : high - offset], max_size)

    def term(self, index: int) -> int:
        position = index - self._entries[0].index
        if position < 0:
            raise Compacted(f"term of {index}: the log starts at {self.first_index()}")
        if position >= len(self._entries):
            raise Unavailable(f"term of {index}: the log ends at {self.last_index()}")
        return self._entries[position].term

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries; stored entries from the first of them on are replaced. No gap may arise."""
        if not entries:
            return
        first = self.first_index()
        if entries[-1].index < first:
            return
        if entries[0].index < first:
            entries = entries[first - entries[0].index :]
        position = entries[0].index - self._entries[0].index
        if position > len(self._entries):
            raise InvariantViolation(f"missing log entries before {entries[0].index}")
        self._entries[position:] = entries

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Replace everything by ``snapshot``; raises SnapshotOutOfDate when it is not newer.

        At index 0 a snapshot may carry only a configuration: that is how a cluster is given its first one.
        """
        if self._snapshot.index >= snapshot.index and snapshot.index != 0:
            raise SnapshotOutOfDate(f"snapshot {snapshot.index} is not newer than {self._snapshot.index}")
        self._snapshot = snapshot
        self._entries = [Entry(snapshot.term, snapshot.index)]

    def create_snapshot(self, index: int, conf_state: ConfState | None, data: bytes) -> Snapshot:
        """Make ``snapshot()`` return the state at ``index``; raises SnapshotOutOfDate when it is not newer."""
        if index <= self._snapshot.index:
            raise SnapshotOutOfDate(f"snapshot {index} is not newer than {self._snapshot.index}")
        if index > self.last_index():
            raise InvariantViolation(f"snapshot {index} is beyond the last index {self.last_index()}")
        config = self._snapshot.conf_state if conf_state is None else conf_state
        self._snapshot = Snapshot(index, self.term(index), config, data)
        return self._snapshot

    def compact(self, index: int) -> None:
        """Forget the entries up to ``index``, which becomes the position before the first entry."""
        offset = self._entries[0].index
        if index <= offset:
            raise Compacted(f"compact to {index}: the log starts at {offset + 1}")
        if index > self.last_index():
            raise InvariantViolation(f"compact to {index} is beyond the last index {self.last_index()}")
        kept = self._entries[index - offset :]
        kept[0] = Entry(kept[0].term, index)
        self._entries = kept
