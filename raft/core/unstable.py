"""The tail of the log that is not known to be durable yet, and a snapshot that is not (contract §8)."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InvariantViolation
from .trace import AckIgnored
from .types import Entry, Snapshot


class Unstable:
    """``entries[i]`` has index ``offset + i``; ``offset`` may lie inside the storage, which is then truncated
    by the next write. What was handed out for writing is *in progress* and is not handed out again.

    Invariant: ``offset <= offset_in_progress <= offset + len(entries)``.
    """

    __slots__ = ("entries", "offset", "offset_in_progress", "snapshot", "snapshot_in_progress")

    def __init__(self, offset: int) -> None:
        self.snapshot: Snapshot | None = None
        self.entries: list[Entry] = []
        self.offset = offset
        self.offset_in_progress = offset
        self.snapshot_in_progress = False

    def maybe_first_index(self) -> int | None:
        """Only a snapshot moves the start of the log."""
        return self.snapshot.index + 1 if self.snapshot is not None else None

    def maybe_last_index(self) -> int | None:
        if self.entries:
            return self.offset + len(self.entries) - 1
        return self.snapshot.index if self.snapshot is not None else None

    def maybe_term(self, index: int) -> int | None:
        """The term of ``index`` if this part of the log knows it."""
        if index < self.offset:
            snapshot = self.snapshot
            return snapshot.term if snapshot is not None and snapshot.index == index else None
        position = index - self.offset
        return self.entries[position].term if position < len(self.entries) else None

    def next_entries(self) -> tuple[Entry, ...]:
        """Entries not handed out for writing yet."""
        return tuple(self.entries[self.offset_in_progress - self.offset :])

    @property
    def has_next_entries(self) -> bool:
        return self.offset_in_progress < self.offset + len(self.entries)

    def next_snapshot(self) -> Snapshot | None:
        """The snapshot, unless it was handed out for writing already."""
        return None if self.snapshot_in_progress else self.snapshot

    def accept_in_progress(self) -> None:
        """Everything there is has been handed out for writing."""
        self.offset_in_progress = self.offset + len(self.entries)
        self.snapshot_in_progress = self.snapshot is not None

    def stable_to(self, term: int, index: int) -> AckIgnored | None:
        """``index`` was written with ``term``: forget what is durable now, or say why that is not certain.

        An entry that was replaced meanwhile is not durable, however often its predecessor was written
        (the ABA race of contract §17).
        """
        position = index - self.offset
        if not 0 <= position < len(self.entries):
            return AckIgnored.NOT_UNSTABLE
        if self.entries[position].term != term:
            return AckIgnored.TERM_MISMATCH
        del self.entries[: position + 1]
        self.offset = index + 1
        self.offset_in_progress = max(self.offset_in_progress, self.offset)
        return None

    def stable_snapshot_to(self, index: int) -> None:
        """The snapshot at ``index`` is durable."""
        if self.snapshot is not None and self.snapshot.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        """The whole log becomes ``snapshot``."""
        self.offset = snapshot.index + 1
        self.offset_in_progress = self.offset
        self.entries = []
        self.snapshot = snapshot
        self.snapshot_in_progress = False

    def truncate_and_append(self, entries: Sequence[Entry]) -> bool:
        """Put ``entries`` at their indexes and drop what followed; whether anything had to be dropped."""
        start = entries[0].index
        end = self.offset + len(self.entries)
        if start == end:
            self.entries.extend(entries)
            return False
        if start > end:
            raise InvariantViolation(f"appending at {start} to an unstable log that ends at {end}")
        if start <= self.offset:
            self.entries = list(entries)
            self.offset = start
            self.offset_in_progress = start
        else:
            self.entries[start - self.offset :] = entries
            self.offset_in_progress = min(self.offset_in_progress, start)
        return True

    def slice(self, low: int, high: int) -> list[Entry]:
        """Entries ``low <= index < high``, all of which must be here."""
        if not self.offset <= low <= high <= self.offset + len(self.entries):
            raise InvariantViolation(f"unstable slice [{low}, {high}) out of bounds")
        return self.entries[low - self.offset : high - self.offset]
