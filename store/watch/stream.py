"""One Watch stream of a client: its watchers, and the bounded queue of answers to it (contract §6).

No gRPC here: requests come in through ``handle``, encoded WatchResponses go out through ``next``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from store.errors import COMPACTED
from store.etcdpb import rpc_pb2
from store.mvcc.index import FROM_KEY
from store.mvcc.record import Event, Part
from store.watch.hub import Watcher, WatchHub
from store.wire import field_bytes, field_varint

QUEUE_RESPONSES: Final = 128
QUEUE_BYTES: Final = 4 << 20
"""What a client that reads too slowly may have waiting; more of it is read again when the client has read this."""
BATCH_BYTES: Final = 64 << 10
"""Small answers leave together up to this size: most of what a delivery costs is the way of one to the socket."""
INVALID_ID: Final = -1
DEFAULT_FRAGMENT_BYTES: Final = 1572864 + 512 * 1024

_DUPLICATE_ID: Final = "mvcc: duplicate watch ID provided on the WatchStream"
_EMPTY_RANGE: Final = "mvcc: watcher range is empty"


class _Delivery:
    """Events for a watcher before they are encoded. ``size`` is what they weigh in the queue, in bytes."""

    __slots__ = ("events", "revision", "size", "watcher")

    def __init__(self, watcher: Watcher, revision: int, events: Sequence[Event], size: int) -> None:
        self.watcher = watcher
        self.revision = revision
        self.events = events
        self.size = size


@dataclass(slots=True)
class _Answer:
    """A WatchResponse without events before it is encoded."""

    watch_id: int
    revision: int
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
        self._queue: deque[_Answer | _Delivery] = deque()
        self._queued_bytes = 0
        self._last_key: tuple[int, Event | None, bool] = (0, None, False)
        self._last_head = self._last_tail = b""
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
        self._put(_Delivery(watcher, revision, events, size))
        return True

    def compacted(self, watcher: Watcher, compact_revision: int) -> None:
        # The watcher stays in _watchers, and its id taken, until the client cancels it.
        self._put(_Answer(watcher.id, 0, canceled=True, compact_revision=compact_revision))

    def _put(self, answer: _Answer | _Delivery) -> None:
        self._queue.append(answer)
        self._wake.set()
        if len(self._queue) >= 2 * self._queue_responses:
            self._drained.clear()

    # -- answers ------------------------------------------------------------------------------------------

    async def next(self) -> Iterable[bytes]:
        """Wait for an answer and return it encoded, with those behind it as far as they are small.

        An answer may be in several parts: only where it is fragmented.
        """
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        had_room = self.has_room
        parts: bytes | Iterable[bytes] = self._encode(self._take())
        if isinstance(parts, bytes):
            parts = self._with_more(parts)
        if len(self._queue) < self._queue_responses:
            self._drained.set()
        if not had_room and self.has_room:
            self._hub.room()
        return parts

    def _with_more(self, first: bytes) -> list[bytes]:
        batch, size = [first], len(first)
        while self._queue and size < BATCH_BYTES and not _may_be_large(self._queue[0]):
            parts = self._encode(self._take())
            batch += (parts,) if isinstance(parts, bytes) else parts
            size += len(batch[-1])
        return batch

    def _take(self) -> _Answer | _Delivery:
        answer = self._queue.popleft()
        if isinstance(answer, _Delivery):
            self._queued_bytes -= answer.size
        return answer

    def _encode(self, answer: _Answer | _Delivery) -> bytes | Iterator[bytes]:
        """One message, or those of its fragments."""
        if isinstance(answer, _Answer):
            return self._header(answer.revision) + _about(answer)
        watcher, events = answer.watcher, answer.events
        if len(events) == 1:
            return self._encode_one(watcher, answer.revision, events[0])
        head = self._header(answer.revision) + watcher.id_field
        parts = [event.parts(prev_kv=watcher.prev_kv) for event in events]
        if watcher.fragment:
            return self._fragments(head, parts)
        return b"".join((head, *chain.from_iterable(parts)))

    def _encode_one(self, watcher: Watcher, revision: int, event: Event) -> bytes:
        """Neighbours in the queue often tell the same of a key to several watchers: only the id differs then."""
        key = (revision, event, watcher.prev_kv)
        if key != self._last_key:
            head = self._header(revision)
            tail = b"".join(event.parts(prev_kv=watcher.prev_kv))
            if len(tail) > BATCH_BYTES:
                return head + watcher.id_field + tail
            self._last_key, self._last_head, self._last_tail = key, head, tail
        return self._last_head + watcher.id_field + self._last_tail

    def _fragments(self, head: bytes, events: list[tuple[Part, ...]]) -> Iterator[bytes]:
        """Cut between events so that a part stays below the limit, unless one event alone exceeds it."""
        fragment: list[Part] = []
        size = len(head)
        for event in events:
            event_size = sum(map(len, event))
            if fragment and size + event_size >= self._fragment_bytes:
                yield b"".join((head, b"\x38\x01", *fragment))
                fragment, size = [], len(head)
            fragment += event
            size += event_size
        yield b"".join((head, *fragment))


def _may_be_large(answer: _Answer | _Delivery) -> bool:
    return isinstance(answer, _Delivery) and answer.size > BATCH_BYTES


def _about(answer: _Answer) -> bytes:
    """An answer without events, after its header."""
    out = field_varint(b"\x10", answer.watch_id)
    if answer.created:
        out += b"\x18\x01"
    if answer.canceled:
        out += b"\x20\x01"
    out += field_varint(b"\x28", answer.compact_revision)
    return out + field_bytes(b"\x32", answer.reason.encode()) if answer.reason else out
