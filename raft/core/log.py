"""The log as the protocol sees it: durable storage below, the unstable tail above (contract §8).

Order of positions: ``applied <= applying <= committed <= last_index``. Handed out for apply is not yet applied;
the bytes in between are bounded, so that a slow state machine stops the flow instead of filling memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .errors import Compacted, InvariantViolation, MalformedMessage, Unavailable
from .sizes import NO_LIMIT, entries_size, limit_size
from .storage import Storage
from .trace import AckIgnored
from .types import Entry, Snapshot
from .unstable import Unstable


class RaftLog:
    """Invariant used throughout: the last index is always ``unstable.offset + len(unstable.entries) - 1``."""

    __slots__ = (
        "_on_truncate",
        "applied",
        "applying",
        "applying_paused",
        "applying_size",
        "committed",
        "max_applying_size",
        "storage",
        "unstable",
    )

    def __init__(
        self,
        storage: Storage,
        max_applying_size: int = NO_LIMIT,
        on_truncate: Callable[[int], None] | None = None,
    ) -> None:
        """``max_applying_size``: bytes handed out for apply and not acknowledged, at most.

        ``on_truncate`` hears the index from which conflicting entries were dropped.
        """
        first, last = storage.first_index(), storage.last_index()
        self.storage = storage
        self.unstable = Unstable(last + 1)
        self.committed = first - 1
        self.applying = first - 1
        self.applied = first - 1
        self.applying_size = 0
        self.applying_paused = False
        self.max_applying_size = max_applying_size
        self._on_truncate = on_truncate

    # --- positions and terms

    @property
    def first_index(self) -> int:
        snapshot = self.unstable.snapshot
        return snapshot.index + 1 if snapshot is not None else self.storage.first_index()

    @property
    def last_index(self) -> int:
        return self.unstable.offset + len(self.unstable.entries) - 1

    @property
    def last_term(self) -> int:
        entries = self.unstable.entries
        return entries[-1].term if entries else self.term(self.last_index)

    def term(self, index: int) -> int:
        """The term of ``index``; known from the position before the first entry to the last.

        Raises Compacted below and Unavailable above.
        """
        term = self.unstable.maybe_term(index)
        if term is not None:
            return term
        if index > self.last_index:
            raise Unavailable(f"term of {index}: the log ends at {self.last_index}")
        if index + 1 < self.first_index:
            raise Compacted(f"term of {index}: the log starts at {self.first_index}")
        return self.storage.term(index)

    def term_or_zero(self, index: int) -> int:
        """The term of ``index``, 0 where it is compacted or not there yet."""
        try:
            return self.term(index)
        except (Compacted, Unavailable):
            return 0

    def matches(self, term: int, index: int) -> bool:
        """Whether the entry at ``index`` is the one written in ``term`` (paper §5.3, log matching)."""
        try:
            return self.term(index) == term
        except (Compacted, Unavailable):
            return False

    def is_up_to_date(self, last_term: int, last_index: int) -> bool:
        """Whether a log that ends so is at least as complete as this one: term first, then length (§5.4.1)."""
        own = self.last_term
        return last_term > own or (last_term == own and last_index >= self.last_index)

    def find_conflict(self, entries: Sequence[Entry]) -> int:
        """The index of the first entry that is not in this log, with the same term; 0 when all are."""
        if entries and entries[0].index > self.last_index:
            return entries[0].index
        for entry in entries:
            if not self.matches(entry.term, entry.index):
                return entry.index
        return 0

    def find_conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """The largest position at most ``index`` whose term is at most ``term``, and that term (contract §9.4).

        Where a term is not known any more, or not yet, the position itself with term 0. This skips a whole
        term of a diverged log in one probe.
        """
        while index > 0:
            try:
                own = self.term(index)
            except (Compacted, Unavailable):
                return index, 0
            if own <= term:
                return index, own
            index -= 1
        return 0, 0

    # --- reading

    def entries(self, low: int, max_size: int) -> tuple[Entry, ...]:
        """Entries from ``low`` to the end, cut to ``max_size``; raises Compacted."""
        last = self.last_index
        return self.slice(low, last + 1, max_size) if low <= last else ()

    def slice(self, low: int, high: int, max_size: int) -> tuple[Entry, ...]:
        """Entries ``low <= index < high`` cut to ``max_size`` bytes, at least one if there is any.

        Raises Compacted below the first entry; a range that ends beyond the last one is a bug.
        """
        self._check_bounds(low, high)
        if low == high:
            return ()
        offset = self.unstable.offset
        if low >= offset:
            return tuple(limit_size(self.unstable.slice(low, high), max_size))
        stable = tuple(self.storage.entries(low, min(high, offset), max_size))
        if high <= offset or len(stable) < offset - low:
            return stable
        size = entries_size(stable)
        if size >= max_size:
            return stable
        rest = limit_size(self.unstable.slice(offset, high), max_size - size)
        if entries_size(rest[:1]) + size > max_size:
            return stable
        return stable + tuple(rest)

    def scan(self, low: int, high: int, page_size: int) -> Iterator[tuple[Entry, ...]]:
        """The same range in pages of at most ``page_size`` bytes."""
        while low < high:
            page = self.slice(low, high, page_size)
            if not page:
                raise InvariantViolation(f"the log has no entry at {low}")
            yield page
            low += len(page)

    def _check_bounds(self, low: int, high: int) -> None:
        if low > high:
            raise InvariantViolation(f"invalid slice [{low}, {high})")
        if high > self.last_index + 1:
            raise InvariantViolation(f"slice [{low}, {high}) ends beyond the last index {self.last_index}")
        if low < self.first_index:
            raise Compacted(f"slice from {low}: the log starts at {self.first_index}")

    # --- writing

    def append(self, entries: Sequence[Entry]) -> int:
        """Put entries at their indexes, dropping what followed; returns the last index."""
        if entries:
            start = entries[0].index
            if start <= self.committed:
                raise InvariantViolation(f"appending at {start}, but {self.committed} is committed")
            if self.unstable.truncate_and_append(entries) and self._on_truncate is not None:
                self._on_truncate(start)
        return self.last_index

    def maybe_append(
        self, prev_index: int, prev_term: int, entries: Sequence[Entry], leader_commit: int
    ) -> int | None:
        """A leader's append (paper figure 2): None when ``prev`` does not match, else the last new index.

        Only entries that conflict are removed: an old append that arrives late must not cut the tail. The
        commit index follows the leader's, but never beyond the last entry this append speaks of.
        """
        if not self.matches(prev_term, prev_index):
            return None
        last_new = prev_index + len(entries)
        conflict = self.find_conflict(entries)
        if conflict:
            if conflict <= self.committed:
                raise InvariantViolation(f"entry {conflict} conflicts with the committed one")
            self.append(entries[conflict - prev_index - 1 :] if conflict > prev_index + 1 else entries)
        self.commit_to(min(leader_commit, last_new))
        return last_new

    def commit_to(self, index: int) -> None:
        """Move the commit index forward; never back, and never beyond the log."""
        if index > self.committed:
            if index > self.last_index:
                raise InvariantViolation(f"commit {index} is beyond the last index {self.last_index}")
            self.committed = index

    def maybe_commit(self, term: int, index: int) -> bool:
        """Commit ``index`` if its entry is of ``term``: never by counting an older term's (paper §5.4.2)."""
        if index <= self.committed or not term or not self.matches(term, index):
            return False
        self.commit_to(index)
        return True

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a leader's snapshot."""
        self.committed = snapshot.index
        self.unstable.restore(snapshot)

    # --- towards the disk

    def accept_unstable(self) -> None:
        """What is unstable has been handed out for writing."""
        self.unstable.accept_in_progress()

    def stable_to(self, term: int, index: int) -> AckIgnored | None:
        """The storage wrote up to (term, index); a reason when that proves nothing."""
        return self.unstable.stable_to(term, index)

    def stable_snapshot_to(self, index: int) -> None:
        self.unstable.stable_snapshot_to(index)

    # --- towards the state machine

    def max_appliable_index(self, *, allow_unstable: bool) -> int:
        """The last index that may be applied; without ``allow_unstable`` only what is durable here."""
        return self.committed if allow_unstable else min(self.committed, self.unstable.offset - 1)

    def has_next_committed(self, *, allow_unstable: bool) -> bool:
        """Whether entries can be handed out for apply now."""
        if self.applying_paused or self.unstable.snapshot is not None:
            return False
        return self.applying < self.max_appliable_index(allow_unstable=allow_unstable)

    def next_committed(self, *, allow_unstable: bool) -> tuple[Entry, ...]:
        """The entries to hand out for apply next, cut to what the bound on outstanding bytes leaves."""
        if not self.has_next_committed(allow_unstable=allow_unstable):
            return ()
        room = self.max_applying_size - self.applying_size
        if room <= 0:
            raise InvariantViolation(f"apply window overdrawn by {-room} bytes without a pause")
        return self.slice(self.applying + 1, self.max_appliable_index(allow_unstable=allow_unstable) + 1, room)

    def accept_applying(self, index: int, size: int, *, allow_unstable: bool) -> None:
        """Entries up to ``index``, ``size`` bytes, have been handed out for apply.

        Pauses when the window is used up, also when a batch was cut because one more entry did not fit.
        """
        if index > self.committed:
            raise InvariantViolation(f"applying {index}, but only {self.committed} is committed")
        self.applying = index
        self.applying_size += size
        self.applying_paused = self.applying_size >= self.max_applying_size or index < self.max_appliable_index(
            allow_unstable=allow_unstable
        )

    def applied_to(self, index: int, size: int) -> None:
        """The state machine applied up to ``index``; ``size`` bytes are not outstanding any more."""
        if not self.applied <= index <= self.committed:
            raise InvariantViolation(f"applied {index} is outside [{self.applied}, {self.committed}]")
        self.applied = index
        self.applying = max(self.applying, index)
        self.applying_size = max(self.applying_size - size, 0)
        self.applying_paused = self.applying_size >= self.max_applying_size


def check_log_slice(prev_index: int, entries: Sequence[Entry], leader_term: int) -> None:
    """Assert what every append must satisfy, in full: contiguous, terms not falling, none above the leader's.

    Raises MalformedMessage. The hot path checks only both ends; simulators and tests check it all.
    """
    index, term = prev_index, 0
    for entry in entries:
        index += 1
        if entry.index != index:
            raise MalformedMessage(f"entry {entry.index} where {index} was expected")
        if not term <= entry.term <= leader_term:
            raise MalformedMessage(f"entry {index} has term {entry.term} after {term}, leader {leader_term}")
        term = entry.term
