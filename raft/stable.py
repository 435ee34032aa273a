"""The part of the log that is on disk, as the core reads it: a copy in memory that knows its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raft.core.storage import MemoryStorage
from raft.core.types import ConfState, Entry, HardState, Snapshot


class StableLog(MemoryStorage):
    """The stable part of the log in memory. Configuration and snapshots are at the applied position, which
    the state machine keeps, and not at the position where the log happens to begin."""

    def __init__(self, position: Callable[[], Snapshot]) -> None:
        super().__init__()
        self._position = position
        self.bytes = 0
        """Of the entries' data."""

    def append(self, entries: Sequence[Entry]) -> None:
        replaces = bool(entries) and entries[0].index <= self.last_index()
        super().append(entries)
        self.bytes = data_bytes(self._entries) if replaces else self.bytes + data_bytes(entries)

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        super().apply_snapshot(snapshot)
        self.bytes = 0

    def compact(self, index: int) -> None:
        super().compact(index)
        self.bytes = data_bytes(self._entries[1:])

    def index_before_last(self, size: int) -> int:
        """The index after which no more than ``size`` bytes of entries follow."""
        index = self.last_index()
        for entry in reversed(self._entries[1:]):
            size -= len(entry.data)
            if size < 0:
                break
            index -= 1
        return index

    def initial_state(self) -> tuple[HardState, ConfState]:
        return super().initial_state()[0], self._position().conf_state

    def snapshot(self) -> Snapshot:
        return self._position()


def data_bytes(entries: Sequence[Entry]) -> int:
    return sum([len(entry.data) for entry in entries])
