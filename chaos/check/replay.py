"""The oracle: what the store held, and what it had to tell its watchers, at every revision.

It is a legal order of all operations, as the linearizability check found it, run through the model. So it needs no
look into anybody's log, and every acknowledged write is in it. A write of unknown outcome that nobody saw is in it
only where a revision has to be explained; at the end of the history some of them may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from chaos.check.etcd_model import EtcdModel, Slot, State, keys_written
from chaos.check.history import Compact, Event, Found, KeyValue, Operation, Outcome, Range, WatchRequest, in_range


class Replay:
    """Revisions ``first`` (before any operation) to ``last``, both included, can be asked for. No revision above
    ``newest`` can exist.

    ``leftover`` are the writes of unknown outcome that the order has no place for: after it, those that were seen
    follow one another, as far as the revisions are known without a gap.
    """

    def __init__(
        self, order: Sequence[Operation], start_revision: int = 1, leftover: Sequence[Operation] = ()
    ) -> None:
        self.model = EtcdModel(keys_written((*order, *leftover)))
        state = self.model.empty(start_revision)
        self.first = start_revision
        self._states = [state]
        self._changes: dict[int, Sequence[Event]] = {}
        self._compactions: list[tuple[int, int]] = []  # (the store's revision at the latest, compacted to)
        for operation in order:
            state = self._do(state, operation)
        for operation in sorted(leftover, key=lambda each: each.seen_at):
            if operation.seen_at == self.last + 1:
                state = self._do(state, operation)
        self.newest = self.last + len(leftover)

    def _do(self, state: State, operation: Operation) -> State:
        state, _ = self.model.perform(state, operation.request)
        if state.revision > self.last:
            self._states.append(state)
        if state.compacted > self._states[-1].compacted:
            self._states[-1] = self._states[-1]._replace(compacted=state.compacted)
            if operation.answer is not None and operation.answer.revision:
                self._compactions.append((operation.answer.revision, state.compacted))
        return state

    @property
    def last(self) -> int:
        return self.first + len(self._states) - 1

    def state(self, revision: int) -> State:
        assert self.first <= revision <= self.last, revision
        return self._states[revision - self.first]

    def find(self, asked: Range, revision: int) -> Found:
        """The right answer to a range read of the store as it was at ``revision``."""
        return self.model.find(self.state(revision).slots, asked)

    def kv(self, key: bytes, revision: int) -> KeyValue | None:
        """The version of a key at ``revision``; None if it did not exist."""
        place = self.model.place(key)
        slot = self.state(revision).slots[place] if place is not None else None
        return KeyValue(key, *slot) if slot is not None else None

    def compacted(self, revision: int) -> int:
        """What a member that shows ``revision`` has certainly compacted to; -1 for nothing.

        A compaction makes no revision of its own, and where it stands in the order is one possibility of several:
        it was applied by the revision of its answer, so only a later revision proves it, and no answer proves
        nothing.
        """
        return max((to for at, to in self._compactions if at < revision), default=-1)

    def events(self, asked: WatchRequest, first: int, last: int) -> Iterator[Event]:
        """What a watch has to deliver of the revisions ``first`` to ``last``, previous versions included."""
        for revision in range(max(first, self.first + 1), min(last, self.last) + 1):
            yield from (event for event in self.changes(revision) if wanted(asked, event))

    def changes(self, revision: int) -> Sequence[Event]:
        """All events of one revision, in the order of keys; kept, because every watch asks for them."""
        if revision not in self._changes:
            before, after = self.state(revision - 1).slots, self.state(revision).slots
            self._changes[revision] = tuple(changes(self.model.keys, before, after, revision))
        return self._changes[revision]


def changes(
    keys: Sequence[bytes], before: Sequence[Slot | None], after: Sequence[Slot | None], revision: int
) -> Iterator[Event]:
    """The events between two states, in the order of keys."""
    for key, old, new in zip(keys, before, after, strict=True):
        if old is not new and old != new:
            yield _event(key, old, new, revision)


def _event(key: bytes, old: Slot | None, new: Slot | None, revision: int) -> Event:
    prev = KeyValue(key, *old) if old is not None else None
    if new is None:
        return Event(False, KeyValue(key, b"", 0, revision, 0), prev)
    return Event(True, KeyValue(key, *new), prev)


def wanted(asked: WatchRequest, event: Event) -> bool:
    """Whether the range and the filters of a watch let an event through."""
    hidden = asked.no_put if event.is_put else asked.no_delete
    return not hidden and in_range(event.kv.key, asked.key, asked.end)


def compactions_asked(operations: Iterable[Operation]) -> list[int]:
    """Every revision somebody may have compacted to."""
    return [
        operation.request.revision
        for operation in operations
        if isinstance(operation.request, Compact) and operation.outcome is not Outcome.FAILED
    ]
