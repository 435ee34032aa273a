"""Delivery of changes to watchers.

A synced watcher gets every change from ``notify``, inside apply, as a reference to shared events. A watcher
that starts in the past, or whose stream was full, is unsynced: the catch-up task reads history for all such
watchers together, in bounded batches, whenever their streams have room. A slow reader therefore costs memory
up to its stream's limit and delays nobody (contract §6).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from store.mvcc.index import FROM_KEY
from store.mvcc.record import Event
from store.watch.interest import Interest
from store.wire import field_varint

BATCH_REVISIONS: Final = 1000
"""Most revisions in one answer from history."""
BATCH_BYTES: Final = 1 << 20
"""Enough of them for one answer: what is read at once is held several times over until it has been sent."""
SYNC_GROUP: Final = 512
"""Most watchers that catch up on one reading of history."""
RECENT_REVISIONS: Final = 4096
RECENT_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class HistoryBatch:
    """All changes wanted of the revisions up to and including ``last``, in order."""

    events: Sequence[Event]
    last: int


class Source(Protocol):
    """The key space as the hub sees it."""

    @property
    def revision(self) -> int: ...
    @property
    def compact_revision(self) -> int: ...
    async def history(
        self, first: int, last: int, wanted: Callable[[bytes], bool], with_prev: bool
    ) -> HistoryBatch:
        """Changes of keys for which ``wanted`` holds, of revisions first..last or a beginning of them."""
        ...


class Outlet(Protocol):
    """A stream of a client."""

    @property
    def has_room(self) -> bool: ...
    def offer(self, watcher: Watcher, revision: int, events: Sequence[Event], size: int) -> bool:
        """Queue one answer whose events weigh ``size`` bytes; False, and nothing queued, when it is full."""
        ...

    def compacted(self, watcher: Watcher, compact_revision: int) -> None:
        """Tell the client that the watcher ended because its next revision is gone."""
        ...


class Watcher:
    """One watch of a stream. ``next_revision`` is the first one it has not been given and may be given."""

    __slots__ = (
        "end",
        "fragment",
        "id",
        "id_field",
        "key",
        "next_revision",
        "no_delete",
        "no_put",
        "outlet",
        "prev_kv",
        "progress_notify",
        "quiet",
        "synced",
    )

    def __init__(self, outlet: Outlet, watch_id: int, key: bytes, end: bytes, next_revision: int) -> None:
        self.outlet = outlet
        self.id = watch_id
        self.id_field = field_varint(b"\x10", watch_id)
        """The id as every answer's field of it, encoded once."""
        self.key = key
        self.end = end
        self.next_revision = next_revision
        self.no_put = False
        self.no_delete = False
        self.prev_kv = False
        self.fragment = False
        self.progress_notify = False
        self.quiet = True
        """No event was sent since the last progress tick."""
        self.synced = False

    def covers(self, key: bytes) -> bool:
        if not self.end:
            return key == self.key
        return self.key <= key and (self.end == FROM_KEY or key < self.end)

    def wants(self, event: Event) -> bool:
        return not (self.no_delete if event.is_delete else self.no_put)


class WatchHub:
    """All watchers of this member."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._interest: Interest[Watcher] = Interest()
        self._unsynced: dict[Watcher, None] = {}
        self._work = asyncio.Event()
        self._recent: deque[tuple[int, Sequence[Event], int]] = deque()
        self._recent_bytes = 0
        self.overflows = 0

    def statistics(self) -> dict[str, int]:
        return {
            "synced": len(self._interest),
            "unsynced": len(self._unsynced),
            "overflows": self.overflows,
            "recent_revisions": len(self._recent),
            "recent_bytes": self._recent_bytes,
        }

    # -- watchers -----------------------------------------------------------------------------------------

    def add(self, watcher: Watcher) -> None:
        """Begin to serve a watcher from its ``next_revision``."""
        if watcher.next_revision > self._source.revision:
            self._sync(watcher)
        else:
            self._unsynced[watcher] = None
            self._work.set()

    def remove(self, watcher: Watcher) -> None:
        """Serve it no longer. Removing one that was ended by a compaction does nothing."""
        if watcher.synced:
            self._interest.remove(watcher.key, watcher.end, watcher)
            watcher.synced = False
        else:
            self._unsynced.pop(watcher, None)

    def room(self) -> None:
        """A stream has room again."""
        if self._unsynced:
            self._work.set()

    def resync(self, revision: int) -> None:
        """The key space was replaced; everything up to ``revision`` had been delivered to synced watchers."""
        self._recent.clear()
        self._recent_bytes = 0
        for watcher in list(self._interest.all()):
            watcher.next_revision = max(watcher.next_revision, revision + 1)
            self.remove(watcher)
            self.add(watcher)

    def _sync(self, watcher: Watcher) -> None:
        self._unsynced.pop(watcher, None)
        watcher.synced = True
        self._interest.add(watcher.key, watcher.end, watcher)

    # -- live ---------------------------------------------------------------------------------------------

    def notify(self, revision: int, events: Sequence[Event], size: int) -> None:
        """Hand out the changes of a new revision, which weigh ``size`` bytes: one answer per watcher, with all
        of its events."""
        self._remember(revision, events, size)
        if not self._interest:
            return
        matched: dict[Watcher, list[Event]] = {}
        for event in events:
            for watcher in self._interest.matching(event.key):
                if revision >= watcher.next_revision and watcher.wants(event):
                    if watcher in matched:
                        matched[watcher].append(event)
                    else:
                        matched[watcher] = [event]
        for watcher, part in matched.items():
            # The size of the whole revision is an upper bound that need not be counted per watcher.
            if not watcher.outlet.offer(watcher, revision, part, size):
                self._fall_behind(watcher, revision)

    def _fall_behind(self, watcher: Watcher, revision: int) -> None:
        self.overflows += 1
        self.remove(watcher)
        watcher.next_revision = revision
        self._unsynced[watcher] = None

    def _remember(self, revision: int, events: Sequence[Event], size: int) -> None:
        recent = self._recent
        recent.append((revision, events, size))
        self._recent_bytes += size
        while len(recent) > RECENT_REVISIONS or (self._recent_bytes > RECENT_BYTES and len(recent) > 1):
            self._recent_bytes -= recent.popleft()[2]

    # -- catching up --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Bring unsynced watchers up to date, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while group := self._ready():
                await self._advance(group)
                await asyncio.sleep(0)

    def _ready(self) -> list[Watcher]:
        """Watchers that are behind and can take an answer. Those behind a compaction end here."""
        compact = self._source.compact_revision
        for watcher in [w for w in self._unsynced if w.next_revision < compact]:
            del self._unsynced[watcher]
            watcher.outlet.compacted(watcher, compact)
        return list(islice((w for w in self._unsynced if w.outlet.has_room), SYNC_GROUP))

    async def _advance(self, group: list[Watcher]) -> None:
        first = min(w.next_revision for w in group)
        last = min(first + BATCH_REVISIONS - 1, self._source.revision)
        if self._recent and self._recent[0][0] <= first:
            batch = self._from_recent(first, last)
        else:
            if self._recent:
                last = min(last, self._recent[0][0] - 1)
            with_prev = any(w.prev_kv for w in group)
            # Filtering rows by watcher before they are decoded keeps a narrow watch over a long history cheap.
            batch = await self._source.history(
                first, last, lambda key: any(w.covers(key) for w in group), with_prev
            )
        for watcher in group:
            self._deliver(watcher, batch)

    def _from_recent(self, first: int, last: int) -> HistoryBatch:
        events: list[Event] = []
        taken = 0
        for revision, changes, size in islice(self._recent, first - self._recent[0][0], None):
            if revision > last:
                break
            if taken >= BATCH_BYTES:
                last = revision - 1
                break
            events += changes
            taken += size
        if first <= self._source.compact_revision:
            # What was before the compacted revision can no longer be told (contract §6, prev_kv).
            compact = self._source.compact_revision
            events = [Event(e.version, None) if e.version.mod <= compact else e for e in events]
        return HistoryBatch(events, last)

    def _deliver(self, watcher: Watcher, batch: HistoryBatch) -> None:
        """Give one watcher its part of a batch, unless it has gone or filled up while the batch was read."""
        source, start = self._source, watcher.next_revision
        if watcher not in self._unsynced or start < source.compact_revision or not watcher.outlet.has_room:
            return
        if start > batch.last:
            return
        events = [e for e in batch.events if e.version.mod >= start and watcher.covers(e.key) and watcher.wants(e)]
        if events:
            size = sum(e.weight for e in events)
            if not watcher.outlet.offer(watcher, source.revision, events, size):
                return
        watcher.next_revision = batch.last + 1
        if watcher.next_revision > source.revision:
            self._sync(watcher)
