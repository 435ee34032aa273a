"""The store as the watch cache and the API layer see it: etcd v3 semantics, nothing about who provides it.

Two things implement it: a member in the same event loop, and a client of any etcd v3 endpoint. Keys and
values are bytes, revisions are etcd main revisions (positive ints), times are seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol


class BackendError(Exception):
    """The store refused or could not be reached. ``text`` is the store's own message, unchanged."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Compacted(BackendError):
    """The revision asked for is below the compact revision (etcd: required revision has been compacted).

    ``compact_revision`` is 0 where the store did not say it.
    """

    def __init__(self, text: str, compact_revision: int = 0) -> None:
        super().__init__(text)
        self.compact_revision = compact_revision


class FutureRevision(BackendError):
    """The revision asked for does not exist yet."""


class NoSpace(BackendError):
    """The space quota is used up: only deletes, compaction and reads pass."""


class LeaseNotFound(BackendError):
    """The lease named does not exist (any more)."""


class Unavailable(BackendError):
    """No leader, a lost connection, a time-out: a write may or may not have happened."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One version of one key. In a delete event only ``key`` and ``mod_revision`` are set."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class RangeResult:
    """``revision`` is the store's current revision at the read, also when an older one was asked for.

    ``count`` counts the whole range, ignoring ``limit``.
    """

    revision: int
    kvs: Sequence[KeyValue] = ()
    more: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """A guard of a transaction: the named property of ``key`` equals ``value`` (absent: 0)."""

    key: bytes
    target: Literal["mod", "version"]
    value: int


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: bytes
    range_end: bytes = b""


@dataclass(frozen=True, slots=True)
class Get:
    key: bytes


Op = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """``responses`` holds, per operation of the branch taken: the KeyValues of a Get, () for a Put, and for a
    Delete () as well (its count is in ``deleted``, at the same position)."""

    revision: int
    succeeded: bool
    responses: Sequence[Sequence[KeyValue]] = ()
    deleted: Sequence[int] = ()


class EventType(Enum):
    PUT = "PUT"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Event:
    """One change. ``prev_kv`` is the state before it: None for a creation, or where it was compacted."""

    type: EventType
    kv: KeyValue
    prev_kv: KeyValue | None = None

    @property
    def is_create(self) -> bool:
        return self.type is EventType.PUT and self.kv.create_revision == self.kv.mod_revision


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events in revision order, never a part of a revision; or, with no events, a progress notification:
    every event up to ``revision`` has been delivered."""

    revision: int
    events: Sequence[Event] = field(default_factory=tuple)

    @property
    def is_progress(self) -> bool:
        return not self.events


class WatchStream(Protocol):
    """A running watch. Iterating raises Compacted when the start revision is gone, Unavailable when the store
    is lost; it never ends silently. Close it when done: leaving the iteration does not."""

    def __aiter__(self) -> AsyncIterator[WatchBatch]: ...

    async def request_progress(self) -> None:
        """Ask for a progress notification soon; it may be dropped when the watch is behind."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What the store says of itself. ``version`` is its semantic version, ``db_size`` bytes on disk."""

    version: str
    db_size: int
    leader: bool
    errors: Sequence[str] = ()


class Backend(Protocol):
    """Every call raises a BackendError. Reads are linearizable unless ``serializable``."""

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
    ) -> RangeResult: ...

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Op],
        failure: Sequence[Op] = (),
        *,
        timeout_s: float = 10.0,
    ) -> TxnResult: ...

    async def watch(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        start_revision: int = 0,
        prev_kv: bool = True,
        progress_notify: bool = True,
    ) -> WatchStream:
        """Open a watch; returns once the store has acknowledged it. start_revision 0 means from now on."""
        ...

    async def lease_grant(self, ttl_s: int) -> int:
        """A new lease; returns its id."""
        ...

    async def lease_revoke(self, lease_id: int) -> None: ...

    async def compact(self, revision: int, *, physical: bool = False) -> None: ...

    async def status(self) -> BackendStatus: ...


def prefix_end(prefix: bytes) -> bytes:
    r"""The range_end of a prefix range; b"\0" (everything from the key on) where there is none."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return b"\0"
    return stripped[:-1] + bytes((stripped[-1] + 1,))
