"""One Watch stream of a client: its watchers, and the bounded queue of answers to it (contract §6).

No gRPC here: requests come in through ``handle``, encoded WatchResponses go out through ``next``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from store.errors import COMPACTED
from store.etcdpb import rpc_pb2
from store.mvcc.index import FROM_KEY
from store.mvcc.record import Event
from store.watch.hub import Watcher, WatchHub
from store.wire import field_bytes, field_varint

QUEUE_RESPONSES: Final = 128
QUEUE_BYTES: Final = 32 << 20
INVALID_ID: Final = -1
DEFAULT_FRAGMENT_BYTES: Final = 1572864 + 512 * 1024

_DUPLICATE_ID: Final = "mvcc: duplicate watch ID provided on the WatchStream"
_EMPTY_RANGE: Final = "mvcc: watcher range is empty"


@dataclass(slots=True)
class _Answer:
    """A WatchResponse before it is encoded. ``size`` is what its events weigh in the queue, in bytes."""

    watch_id: int
    revision: int
    events: Sequence[Event] = ()
    prev_kv: bool = False
    may_fragment: bool = False
    size: int = 0
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    reason: str = ""


class WatchStream:
    """``header`` gives the encoded ResponseHeader field for a revision."""

    def __init__(
        self,
        hub: WatchHub,
        revision: Callable[[], int],
        header: Callable[[int], bytes],
        fragment_bytes: int = DEFAULT_FRAGMENT_BYTES,
        queue_responses: int = QUEUE_RESPONSES,
    ) -> None:
        self._queue_responses = queue_responses
        self._hub = hub
        self._revision = revision
        self._header = header
        self._fragment_bytes = fragment_bytes
        self._watchers: dict[int, Watcher] = {}
        self._next_id = 0
        self._queue: deque[_Answer] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    def close(self) -> None:
        for watcher in self._watchers.values():
            self._hub.remove(watcher)
        self._watchers.clear()
        self._queue.clear()

    # -- requests -----------------------------------------------------------------------------------------

    async def handle(self, request: rpc_pb2.WatchRequest) -> None:
        """Take one request. Waits while the client does not read its answers."""
        await self._drained.wait()
        kind = request.WhichOneof("request_union")
        if kind == "create_request":
            self._create(request.create_request)
        elif kind == "cancel_request":
            self._cancel(request.cancel_request.watch_id)
        elif kind == "progress_request":
            self._progress()

    def _create(self, request: rpc_pb2.WatchCreateRequest) -> None:
        key, end = request.key or b"\x00", request.range_end
        reason = ""
        if request.start_revision < 0:
            reason = COMPACTED.message
        elif end and end != FROM_KEY and end <= key:
            reason = _EMPTY_RANGE
        elif request.watch_id in self._watchers and request.watch_id:
            reason = _DUPLICATE_ID
        current = self._revision()
        if reason:
            self._put(_Answer(INVALID_ID, current, created=True, canceled=True, reason=reason))
            return
        watcher = Watcher(self, self._pick_id(request.watch_id), key, end, request.start_revision or current + 1)
        watcher.no_put = rpc_pb2.WatchCreateRequest.NOPUT in request.filters
        watcher.no_delete = rpc_pb2.WatchCreateRequest.NODELETE in request.filters
        watcher.prev_kv = request.prev_kv
        watcher.fragment = request.fragment
        watcher.progress_notify = request.progress_notify
        self._watchers[watcher.id] = watcher
        self._put(_Answer(watcher.id, current, created=True))
        self._hub.add(watcher)

    def _pick_id(self, wanted: int) -> int:
        if wanted:
            return wanted
        while self._next_id in self._watchers:
            self._next_id += 1
        self._next_id += 1
        return self._next_id - 1

    def _cancel(self, watch_id: int) -> None:
        watcher = self._watchers.pop(watch_id, None)
        if watcher is None:
            return
        self._hub.remove(watcher)
        self._put(_Answer(watch_id, self._revision(), canceled=True))

    def _progress(self) -> None:
        """Promise, for all watchers at once, that everything up to the current revision was sent before. Not
        answered at all where that is not so; clients ask again."""
        current = self._revision()
        watchers = self._watchers.values()
        if watchers and all(w.synced and w.next_revision <= current + 1 for w in watchers):
            self._put(_Answer(INVALID_ID, current))

    def progress_tick(self) -> None:
        """The progress interval is over: tell the watchers that asked and have heard nothing since the last."""
        current = self._revision()
        for watcher in self._watchers.values():
            if not watcher.progress_notify:
                continue
            if watcher.quiet and watcher.synced and watcher.next_revision <= current + 1:
                self._put(_Answer(watcher.id, current))
            watcher.quiet = True

    # -- from the hub -------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Room for history: only with half of the queue free, so that batches stay large."""
        return len(self._queue) < self._queue_responses // 2 and self._queued_bytes < QUEUE_BYTES // 2

    def offer(self, watcher: Watcher, revision: int, events: Sequence[Event], size: int) -> bool:
        if len(self._queue) >= self._queue_responses or self._queued_bytes >= QUEUE_BYTES:
            return False
        self._queued_bytes += size
        watcher.quiet = False
        self._put(
            _Answer(watcher.id, revision, events, watcher.prev_kv, watcher.fragment, size),
        )
        return True

    def compacted(self, watcher: Watcher, compact_revision: int) -> None:
        # The watcher stays in _watchers, and its id taken, until the client cancels it.
        self._put(_Answer(watcher.id, 0, canceled=True, compact_revision=compact_revision))

    def _put(self, answer: _Answer) -> None:
        self._queue.append(answer)
        self._wake.set()
        if len(self._queue) >= 2 * self._queue_responses:
            self._drained.clear()

    # -- answers ------------------------------------------------------------------------------------------

    async def next(self) -> Iterator[bytes]:
        """Wait for an answer and return it encoded: in several parts only where it is fragmented."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        was_full = not self.has_room
        answer = self._queue.popleft()
        self._queued_bytes -= answer.size
        if len(self._queue) < self._queue_responses:
            self._drained.set()
        if was_full and self.has_room:
            self._hub.room()
        return self._encode(answer)

    def _encode(self, answer: _Answer) -> Iterator[bytes]:
        head = self._header(answer.revision) + field_varint(b"\x10", answer.watch_id)
        if answer.created:
            head += b"\x18\x01"
        if answer.canceled:
            head += b"\x20\x01"
        head += field_varint(b"\x28", answer.compact_revision)
        if answer.reason:
            head += field_bytes(b"\x32", answer.reason.encode())
        events = [e.wire_with_prev() if answer.prev_kv else e.wire() for e in answer.events]
        if not answer.may_fragment or len(events) < 2:
            return iter((head + b"".join(events),))
        return self._fragments(head, events)

    def _fragments(self, head: bytes, events: list[bytes]) -> Iterator[bytes]:
        """Cut between events so that a part stays below the limit, unless one event alone exceeds it."""
        part: list[bytes] = []
        size = len(head)
        for event in events:
            if part and size + len(event) >= self._fragment_bytes:
                yield head + b"\x38\x01" + b"".join(part)
                part, size = [], len(head)
            part.append(event)
            size += len(event)
        yield head + b"".join(part)
