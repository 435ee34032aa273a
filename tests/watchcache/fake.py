"""A small in-memory store with etcd's semantics: the obviously right model the cache is tested against."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from watchcache.backend import (
    BackendError,
    BackendStatus,
    Compacted,
    Compare,
    Delete,
    Event,
    EventType,
    FutureRevision,
    Get,
    KeyValue,
    Op,
    Put,
    RangeResult,
    TxnResult,
    Unavailable,
    WatchBatch,
)

COMPACTED = "etcdserver: mvcc: required revision has been compacted"


@dataclass
class FakeWatch:
    """One watch: batches in a queue, or an error."""

    backend: FakeBackend
    key: bytes
    range_end: bytes
    queue: asyncio.Queue[WatchBatch | BackendError] = field(default_factory=asyncio.Queue)
    held: bool = False

    def covers(self, key: bytes) -> bool:
        return key == self.key if not self.range_end else self.key <= key < self.range_end

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[WatchBatch]:
        while True:
            item = await self.queue.get()
            if isinstance(item, BackendError):
                raise item
            yield item

    async def request_progress(self) -> None:
        self.backend.progress_requests += 1
        if not self.backend.withhold_progress:
            self.queue.put_nowait(WatchBatch(self.backend.revision))

    async def aclose(self) -> None:
        if self in self.backend.watches:
            self.backend.watches.remove(self)


def _property(kv: KeyValue, target: str) -> int:
    return kv.mod_revision if target == "mod" else kv.version


class FakeBackend:
    """See :class:`watchcache.backend.Backend`. ``fail`` makes every call raise it; ``calls`` counts them.

    Args:
        version: what :meth:`status` reports; decides whether progress notifications are trusted.

    """

    def __init__(self, version: str = "3.5.17") -> None:
        self.version = version
        self.revision = 1
        self.compacted = 0
        self.history: list[Event] = []
        self.watches: list[FakeWatch] = []
        self.fail: BackendError | None = None
        self.calls: dict[str, int] = {}
        self.ranges: list[tuple[bytes, int, int]] = []
        self.progress_requests = 0
        self.withhold_progress = False
        self.before_txn: Callable[[], None] | None = None
        self.leases: dict[int, int] = {}

    def _called(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.fail is not None:
            raise self.fail

    def _state(self, revision: int) -> dict[bytes, KeyValue]:
        state: dict[bytes, KeyValue] = {}
        for event in self.history:
            if event.kv.mod_revision > revision:
                break
            if event.type is EventType.PUT:
                state[event.kv.key] = event.kv
            else:
                state.pop(event.kv.key, None)
        return state

    async def range(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        revision: int = 0,
        limit: int = 0,
        serializable: bool = False,
        keys_only: bool = False,
        count_only: bool = False,
        timeout_s: float = 10.0,
    ) -> RangeResult:
        self._called("range")
        if not keys_only:
            self.ranges.append((key, limit, revision))
        if revision > self.revision:
            raise FutureRevision("etcdserver: mvcc: required revision is a future revision")
        if revision and revision < self.compacted:
            raise Compacted(COMPACTED, self.compacted)
        state = self._state(revision or self.revision)
        end = range_end or key + b"\0"
        found = [state[k] for k in sorted(state) if key <= k < end]
        taken = found[:limit] if limit else found
        return RangeResult(self.revision, taken, len(taken) < len(found), len(found))

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Op],
        failure: Sequence[Op] = (),
        *,
        timeout_s: float = 10.0,
    ) -> TxnResult:
        if self.before_txn is not None:
            hook, self.before_txn = self.before_txn, None
            hook()
        self._called("txn")
        state = self._state(self.revision)
        absent = KeyValue(b"")
        succeeded = all(_property(state.get(c.key, absent), c.target) == c.value for c in compares)
        responses: list[Sequence[KeyValue]] = []
        events: list[Event] = []
        for op in success if succeeded else failure:
            found = state.get(op.key)
            if isinstance(op, Get):
                responses.append([found] if found else [])
                continue
            responses.append(())
            if isinstance(op, Put):
                events.append(self._put_event(op, found))
            elif isinstance(op, Delete) and found:
                kv = KeyValue(op.key, mod_revision=self.revision + 1)
                events.append(Event(EventType.DELETE, kv, found))
        self._commit(events)
        return TxnResult(self.revision, succeeded, responses)

    def _put_event(self, op: Put, found: KeyValue | None) -> Event:
        revision = self.revision + 1
        created = found.create_revision if found else revision
        version = found.version + 1 if found else 1
        kv = KeyValue(op.key, op.value, created, revision, version=version, lease=op.lease)
        return Event(EventType.PUT, kv, found)

    def _commit(self, events: list[Event]) -> None:
        if not events:
            return
        self.revision += 1
        self.history += events
        for watch in self.watches:
            seen = tuple(event for event in events if watch.covers(event.kv.key))
            if seen and not watch.held:
                watch.queue.put_nowait(WatchBatch(self.revision, seen))

    def put(self, key: str, value: bytes) -> int:
        """A write behind everybody's back; returns its revision."""
        state = self._state(self.revision)
        self._commit([self._put_event(Put(key.encode(), value), state.get(key.encode()))])
        return self.revision

    def remove(self, key: str) -> int:
        """A deletion behind everybody's back; returns its revision."""
        found = self._state(self.revision)[key.encode()]
        kv = KeyValue(key.encode(), mod_revision=self.revision + 1)
        self._commit([Event(EventType.DELETE, kv, found)])
        return self.revision

    def put_many(self, pairs: dict[str, bytes]) -> int:
        """Several writes in one revision."""
        state = self._state(self.revision)
        self._commit([self._put_event(Put(k.encode(), v), state.get(k.encode())) for k, v in pairs.items()])
        return self.revision

    def interrupt(self, error: BackendError | None = None) -> None:
        """Break all running watches."""
        for watch in list(self.watches):
            watch.queue.put_nowait(error or Unavailable("etcdserver: no leader"))

    def rewind(self, revision: int) -> None:
        """As after a restore from an older backup."""
        self.history = [event for event in self.history if event.kv.mod_revision <= revision]
        self.revision = revision

    async def watch(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        start_revision: int = 0,
        prev_kv: bool = True,
        progress_notify: bool = True,
    ) -> FakeWatch:
        self._called("watch")
        watch = FakeWatch(self, key, range_end)
        if start_revision and start_revision <= self.compacted:
            watch.queue.put_nowait(Compacted(COMPACTED, self.compacted))
            return watch
        past: dict[int, list[Event]] = {}
        for event in self.history:
            if start_revision and event.kv.mod_revision >= start_revision and watch.covers(event.kv.key):
                event = self._without_compacted_prev(event)
                past.setdefault(event.kv.mod_revision, []).append(event)
        for revision, events in past.items():
            watch.queue.put_nowait(WatchBatch(revision, tuple(events)))
        self.watches.append(watch)
        return watch

    def _without_compacted_prev(self, event: Event) -> Event:
        previous = event.prev_kv
        return replace(event, prev_kv=None) if previous and event.kv.mod_revision <= self.compacted else event

    async def lease_grant(self, ttl_s: int) -> int:
        self._called("lease_grant")
        self.leases[len(self.leases) + 1] = ttl_s
        return len(self.leases)

    async def lease_revoke(self, lease_id: int) -> None:
        self._called("lease_revoke")

    async def compact(self, revision: int, *, physical: bool = False) -> None:
        self._called("compact")
        if revision <= self.compacted:
            raise Compacted(COMPACTED, self.compacted)
        self.compacted = revision

    async def status(self) -> BackendStatus:
        self._called("status")
        return BackendStatus(self.version, 0, leader=True)
