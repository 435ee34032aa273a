"""The replicated state machine of one member: state in memory, history and checkpoints in a SQLite file.

Life of a Machine: ``open`` it; run ``run()`` as a task; ``apply`` entries in log order; ``close`` it after
``run`` was cancelled. ``apply`` is synchronous and never fails for what a command asks. What it changed is
written to the file in the background, whole entries only, the applied index in the same transaction.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mypy_extensions import mypyc_attr

from raft import sqlite
from store import state as states
from store.apply import Applier, Result
from store.backend import Backend, BucketKey, Row, Sizes, StateDiskError
from store.errors import COMPACTED, EtcdError
from store.etcdpb import internal_pb2, rpc_pb2
from store.leases import Lease
from store.mvcc import hashkv
from store.mvcc.compactor import Compactor, Readers
from store.mvcc.position import SUB_BITS, last_position, position
from store.mvcc.ranges import RangeResult, Selection, check_revision, select
from store.mvcc.record import Event, Version, stored_version, tombstone
from store.mvcc.txn import TxnResult, WriteTxn, plan
from store.state import CONSISTENT_INDEX, LEASE, META, TERM, State
from store.watch.hub import BATCH_BYTES, HistoryBatch, WatchHub
from store.wire import key_of
from store.writebuffer import WriteBuffer, rows_of


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Limits of the write path."""

    flush_interval_s: float = 0.05
    """How long changes may wait for company before they are written."""
    flush_bytes: int = 4 << 20
    """Changes of this size are written at once."""
    buffer_limit_bytes: int = 64 << 20
    """Above this, ``backpressure`` waits."""
    checkpoint_bytes: int = 16 << 20
    """Written since the last checkpoint before the next one is made."""
    history_bytes: int = BATCH_BYTES
    """Rows read at once for watchers that catch up."""


class LeaseListener(Protocol):
    """Who keeps the clocks of leases (store.lessor)."""

    def granted(self, lease: Lease) -> None: ...
    def revoked(self, lease_id: int) -> None: ...
    def replaced(self) -> None:
        """All leases may have changed."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Machine:
    """The state machine. One per member; all methods belong to its event loop."""

    def __init__(self, path: Path, state: State, options: MachineOptions, backend: Backend | None = None) -> None:
        self.path = path
        self.state = state
        self.options = options
        self.backend = backend or Backend(path)
        self.readers = Readers()
        self.compactor = Compactor(self)
        self.hub = WatchHub(self)
        self._applier = Applier(state, self)
        self._buffer = WriteBuffer()
        self._lease_listener: LeaseListener | None = None
        self._flush_lock = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._urgent = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._unchecked_bytes = 0
        self.puts = self.deletes = self.ranges = self.txns = 0
        self.flushed_index = state.applied_index
        """Entries up to here survive the death of this process."""
        self.durable_index = 0
        """Entries up to here survive the death of this machine: the raft log may be cut below it."""

    # -- life ---------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, path: Path, options: MachineOptions | None = None) -> Machine:
        """Open or create the state database at ``path``.

        Raises sqlite3.Error or ValueError when the file is damaged or of a newer schema, StateDiskError
        when the disk does not let it be opened.
        """
        try:
            state = await asyncio.to_thread(states.load, path)
        except sqlite3.OperationalError as error:
            if sqlite.is_disk_trouble(error):
                raise StateDiskError(path, error) from error
            raise
        machine = cls(path, state, options or MachineOptions())
        await machine.backend.open()
        try:
            await machine.checkpoint()
        except BaseException:
            await machine.backend.close()
            raise
        return machine

    async def run(self) -> None:
        """Flush, compact and serve watchers that catch up, until cancelled. Raises what the disk raises."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flusher())
            tasks.create_task(self.compactor.run())
            tasks.create_task(self.hub.run())

    async def close(self) -> None:
        """Write what is left and close the file. Call it after ``run`` has ended."""
        try:
            await self.flush()
            await self.checkpoint()
        except BaseException:
            await self.backend.close()
            raise
        await self.backend.close()

    # -- what is known ------------------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        return self.state.applied_index

    @property
    def applied_term(self) -> int:
        return self.state.applied_term

    @property
    def revision(self) -> int:
        return self.state.revision

    @property
    def compact_revision(self) -> int:
        return self.state.compact_revision

    @property
    def sizes(self) -> Sizes:
        return self.backend.sizes

    def bucket(self, name: str) -> Mapping[bytes, bytes]:
        """The replicated entries that other parts of the member store (see ``apply_system``)."""
        return self.state.bucket(name)

    def statistics(self) -> dict[str, int]:
        return {
            "buffer_bytes": self._buffer.bytes,
            "puts": self.puts,
            "deletes": self.deletes,
            "ranges": self.ranges,
            "txns": self.txns,
            "keys": len(self.state.index.live),
            "leases": len(self.state.leases),
            "db_bytes": self.sizes.total,
            "db_in_use_bytes": self.sizes.in_use,
            **{f"watch_{name}": value for name, value in self.hub.statistics().items()},
        }

    def set_lease_listener(self, listener: LeaseListener) -> None:
        self._lease_listener = listener

    # -- applying -----------------------------------------------------------------------------------------

    def apply(self, index: int, term: int, request: internal_pb2.InternalRequest) -> Result | EtcdError:
        """Apply one committed command; a refusal is returned, not raised. Raises ValueError out of order."""
        self._advance(index, term)
        return self._applier.apply(request)

    def apply_system(self, index: int, term: int, writes: Mapping[BucketKey, bytes | None]) -> None:
        """Apply an entry that is no client command: a configuration change, or an empty one (no writes).

        ``writes`` are bucket entries, None deleting one. They become durable together with the index.
        """
        self._advance(index, term)
        for (bucket, key), value in writes.items():
            entries = self.state.bucket(bucket)
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
            self.store(bucket, key, value)

    def _advance(self, index: int, term: int) -> None:
        if index <= self.state.applied_index:
            raise ValueError(f"entry {index} is already applied (at {self.state.applied_index})")
        self.state.applied_index = index
        self.state.applied_term = term
        self._dirty.set()

    @property
    def has_room(self) -> bool:
        """Whether the buffer may take more now."""
        return self._buffer.bytes <= self.options.buffer_limit_bytes

    async def backpressure(self) -> None:
        """Wait while the buffer is too large. To be awaited between batches of entries."""
        if not self.has_room:
            self._has_room.clear()
            self._urgent.set()
            await self._has_room.wait()

    # -- what applying reports (store.apply.Changes) ------------------------------------------------------

    def committed(self, revision: int, events: Sequence[Event]) -> None:
        size = weight = deleted = 0
        for event in events:
            size += len(event.version.framed)
            weight += event.weight
            deleted += event.is_delete
        self._buffer.add_events(events, size)
        if self._buffer.bytes > self.options.flush_bytes:
            self._urgent.set()
        self.hub.notify(revision, events, weight)
        self.txns += 1
        self.deletes += deleted
        self.puts += len(events) - deleted

    def store(self, bucket: str, key: bytes, value: bytes | None) -> None:
        self._buffer.put_bucket((bucket, key), value)

    def lease_granted(self, lease: Lease) -> None:
        if self._lease_listener is not None:
            self._lease_listener.granted(lease)

    def lease_revoked(self, lease_id: int) -> None:
        if self._lease_listener is not None:
            self._lease_listener.revoked(lease_id)

    def compacted(self, revision: int) -> None:
        self.compactor.wake()
        self.hub.room()

    def unread(self, selections: Sequence[Selection]) -> None:
        for selection in selections:
            self.readers.add(selection)

    # -- writing to disk ----------------------------------------------------------------------------------

    async def _flusher(self) -> None:
        while True:
            await self._dirty.wait()
            try:
                async with asyncio.timeout(self.options.flush_interval_s):
                    await self._urgent.wait()
            except TimeoutError:
                pass  # the interval is over: nothing urgent, write what there is
            self._urgent.clear()
            await self.flush()
            if self._unchecked_bytes > self.options.checkpoint_bytes:
                await self.checkpoint()

    async def flush(self) -> None:
        """Write everything applied so far to the file, in one transaction with the applied index.

        Safe to cancel: writing the same again changes nothing.
        """
        async with self._flush_lock:
            self._dirty.clear()
            index, term = self.state.applied_index, self.state.applied_term
            if index == self.flushed_index:
                return
            versions, buckets = self._buffer.take()
            meta = {CONSISTENT_INDEX: index.to_bytes(8, "big"), TERM: term.to_bytes(8, "big")}
            try:
                await self.backend.commit(lambda: rows_of(versions), (buckets | meta).items())
            except BaseException:
                self._buffer.give_back(buckets)
                self._dirty.set()
                raise
            before = self._buffer.bytes
            self._buffer.written(len(versions))
            self._unchecked_bytes += before - self._buffer.bytes
            self.flushed_index = index
            if self.has_room:
                self._has_room.set()

    async def checkpoint(self) -> None:
        """Make everything flushed so far durable: ``durable_index`` rises to ``flushed_index``."""
        covered = self.flushed_index
        if await self.backend.checkpoint():
            self.durable_index = max(self.durable_index, covered)
            self._unchecked_bytes = 0

    async def defragment(self) -> None:
        """Give the space of deleted rows back to the file system. Applying goes on meanwhile."""
        await self.flush()
        await self.backend.vacuum()

    # -- reading ------------------------------------------------------------------------------------------

    async def range(self, request: rpc_pb2.RangeRequest) -> RangeResult:
        """Answer a range from this member's state. Raises COMPACTED or FUTURE_REVISION."""
        state = self.state
        self.ranges += 1
        check_revision(request.revision, state.revision, state.compact_revision)
        return await self._finish(select(state.index, request, state.revision, state.revision))

    async def read_txn(self, request: rpc_pb2.TxnRequest) -> TxnResult:
        """Answer a transaction that only reads."""
        state = self.state
        txn = WriteTxn(state.index, state.leases, state.revision, state.compact_revision)
        chosen = plan(state.index, request)
        txn.check_plan(chosen)
        result = txn.execute(chosen)
        self.unread(txn.unread)
        return await self.resolve(result)

    async def resolve(self, result: TxnResult) -> TxnResult:
        """Read what a transaction's answer still lacks: versions older than the state in memory."""
        for i, response in enumerate(result.responses):
            if isinstance(response, Selection):
                result.responses[i] = await self._finish(response)
            elif isinstance(response, TxnResult):
                await self.resolve(response)
        return result

    async def _finish(self, selection: Selection) -> RangeResult:
        missing = selection.missing()
        if not missing:
            return selection.finish()
        self.readers.add(selection)
        try:
            return selection.finish(await self._versions_at(missing))
        except KeyError:
            raise COMPACTED.again() from None

    async def _versions_at(self, positions: Iterable[int]) -> dict[int, Version]:
        found: dict[int, Version] = {}
        stored: list[int] = []
        for pos in positions:
            version = self._buffer.find(pos)
            if version is None:
                stored.append(pos)
            else:
                found[pos] = version
        if stored:
            stored.sort()
            for pos, body in await self.backend.fetch(stored):
                found[pos] = stored_version(pos, body)
        return found

    async def history(
        self, first: int, last: int, wanted: Callable[[bytes], bool], with_prev: bool
    ) -> HistoryBatch:
        """Changes of revisions first..last, or of a beginning of them that is at most history_bytes."""
        unflushed = self._buffer.first_position
        if unflushed is not None and unflushed <= last_position(last):
            await self.flush()
        rows, last = await self.backend.read(lambda db: _read_rows(db, first, last, self.options.history_bytes))
        chosen = [(pos, dead, body) for pos, dead, body in rows if wanted(key_of(body))]
        versions = [tombstone(key_of(b), pos) if dead else stored_version(pos, b) for pos, dead, b in chosen]
        if not with_prev:
            return HistoryBatch([Event(v, None) for v in versions], last)
        index, compact = self.state.index, self.state.compact_revision
        before = [index.before(v.key, v.pos) if v.mod > compact else None for v in versions]
        read = await self._versions_at([b for b in before if isinstance(b, int)])
        prevs = [read.get(b) if isinstance(b, int) else b for b in before]
        return HistoryBatch([Event(v, prev) for v, prev in zip(versions, prevs, strict=True)], last)

    async def hash_kv(self, revision: int) -> tuple[int, int, int]:
        """(hash, compact revision, revision hashed); 0 asks for the current revision."""
        check_revision(revision, self.revision, self.compact_revision)
        revision = revision if revision > 0 else self.revision
        await self.flush()
        while True:
            compact = self.compact_revision
            crc = await self.backend.scan(
                functools.partial(hashkv.hash_kv, revision=revision, compact_revision=compact)
            )
            if compact == self.compact_revision:
                return crc, compact, revision
            # A compaction meanwhile may have deleted rows that had to count.
            check_revision(revision, self.revision, self.compact_revision)

    async def hash_all(self) -> int:
        await self.flush()
        return await self.backend.scan(hashkv.hash_all)

    # -- snapshots ----------------------------------------------------------------------------------------

    async def snapshot_to(self, path: Path) -> tuple[int, int]:
        """Write a consistent copy of the state to ``path`` (must not exist); returns its index and term.

        The copy is made beside the loop; entries applied meanwhile are not in it.
        """
        await self.flush()
        await self.backend.copy_to(path)
        return await self._position_in(path)

    async def _position_in(self, image: Path) -> tuple[int, int]:
        return await asyncio.to_thread(states.read_applied, image)

    async def _load_image(self, image: Path) -> State:
        return await asyncio.to_thread(states.load, image)

    async def install(self, path: Path) -> None:
        """Replace the whole state by the snapshot at ``path``, which is moved into place.

        Watchers go on from their next revision. Raises ValueError when the snapshot is not newer, and
        sqlite3.Error when it is no sound database; the state is then unchanged.
        """
        state = await self._load_image(path)
        if state.applied_index <= self.applied_index:
            raise ValueError(f"snapshot at {state.applied_index} is not newer than {self.applied_index}")
        async with self._flush_lock:
            await self.backend.replace(path)
            delivered = self.state.revision
            self._buffer = WriteBuffer()
            self.state = state
            self._applier = Applier(state, self)
            self.flushed_index = state.applied_index
            # At once: a watcher that comes while we wait below must not be served from before the replacement.
            self.hub.resync(delivered)
            self.compactor.wake()
            if self._lease_listener is not None:
                self._lease_listener.replaced()
        self._has_room.set()
        await self.checkpoint()
        self.durable_index = state.applied_index


def _read_rows(db: sqlite3.Connection, first: int, last: int, limit_bytes: int) -> tuple[list[Row], int]:
    """Rows of whole revisions, and the last revision they cover."""
    rows: list[Row] = []
    size = 0
    cursor = db.execute(
        "SELECT rev, tombstone, value FROM kv WHERE rev BETWEEN ? AND ? ORDER BY rev",
        (position(first), last_position(last)),
    )
    for row in cursor:
        if size > limit_bytes and row[0] >> SUB_BITS != rows[-1][0] >> SUB_BITS:
            return rows, rows[-1][0] >> SUB_BITS
        rows.append(row)
        size += len(row[2])
    return rows, last


__all__ = ["LEASE", "META", "Machine", "MachineOptions"]
