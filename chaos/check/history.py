"""What clients asked and were told: the vocabulary of a recorded history.

Times are integers (nanoseconds of one monotonic clock, or ticks of a simulated one). Field names are etcd's. An
operation is one request of one *sequential* client: its next call comes after its last return, and a client that
does not know what became of a request is not used again (checkers contract §1.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

COMPACTED: Final = "etcdserver: mvcc: required revision has been compacted"
FUTURE_REVISION: Final = "etcdserver: mvcc: required revision is a future revision"
LEASE_NOT_FOUND: Final = "etcdserver: requested lease not found"
LEASE_EXISTS: Final = "etcdserver: lease already exists"
REFUSALS: Final = frozenset({COMPACTED, FUTURE_REVISION, LEASE_NOT_FOUND, LEASE_EXISTS})
"""Errors that say something about the state, so they are checked like answers; other failures say nothing."""


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    """Definitely not applied; ``error`` says why."""
    UNKNOWN = "unknown"
    """Applied or not, at any time after the call."""


class Relation(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


class Target(StrEnum):
    VERSION = "version"
    CREATE = "create_revision"
    MOD = "mod_revision"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


# Requests. ``end`` is etcd's range_end: empty for one key, b"\0" for every key from ``key`` on.


@dataclass(frozen=True, slots=True)
class Range:
    """A get. ``revision`` 0 is the latest, ``limit`` 0 none. Serializable reads may be stale, so they are no part
    of the linearizability check (see chaos.check.reads)."""

    key: bytes
    end: bytes = b""
    limit: int = 0
    revision: int = 0
    serializable: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: bytes
    end: bytes = b""


Action: TypeAlias = Range | Put | Delete


@dataclass(frozen=True, slots=True)
class Compare:
    """Stored ``target`` of ``key`` stands in ``relation`` to ``value``; a missing key counts as 0, and fails every
    comparison of values."""

    key: bytes
    target: Target
    relation: Relation
    value: int | bytes


@dataclass(frozen=True, slots=True)
class Txn:
    compares: tuple[Compare, ...]
    success: tuple[Action, ...] = ()
    failure: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """The id is the client's choice; the lease must outlive the run: nothing here models expiry."""

    lease: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Revoke:
    lease: int


@dataclass(frozen=True, slots=True)
class Compact:
    revision: int


Request: TypeAlias = Range | Put | Delete | Txn | Grant | Revoke | Compact


# Results.


@dataclass(frozen=True, slots=True)
class Found:
    """Of a Range: ``count`` is that of the whole range, whatever the limit."""

    kvs: tuple[KeyValue, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Deleted:
    count: int


@dataclass(frozen=True, slots=True)
class Done:
    """Of a Put, Grant, Revoke or Compact."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Of a Txn: one result for each action of the branch taken."""

    succeeded: bool
    results: tuple[Found | Deleted | Done, ...] = ()


Result: TypeAlias = Found | Deleted | Done | Chosen


@dataclass(frozen=True, slots=True)
class Answer:
    """``revision`` is that of the response header; 0 where the recorder was not told."""

    revision: int
    result: Result


@dataclass(frozen=True, slots=True)
class Operation:
    """One request. ``end`` is None exactly when the outcome is unknown, ``answer`` is there when it is OK.
    ``seen_at``, of an unknown one, is the revision at which others saw its effect (chaos.check.evidence)."""

    client: int
    call: int
    end: int | None
    request: Request
    outcome: Outcome
    answer: Answer | None = None
    error: str = ""
    endpoint: str = ""
    seen_at: int = 0

    @property
    def is_stale_read(self) -> bool:
        """Whether the member that was asked may answer from an older state."""
        request = self.request
        if isinstance(request, Txn):  # of such reads only, or of nothing (etcd contract §4.6)
            acts = request.success + request.failure
            return all(isinstance(act, Range) and act.serializable for act in acts)
        return isinstance(request, Range) and request.serializable

    @property
    def is_refusal(self) -> bool:
        return self.outcome is Outcome.FAILED and self.error in REFUSALS

    @property
    def exact_revision(self) -> int:
        """The store's revision just after the operation took effect; 0 where none is known. Headers of leases and
        compactions show the revision when the answer was made, which may be later (etcd contract §1)."""
        if self.answer is None or isinstance(self.request, Grant | Revoke | Compact):
            return 0
        return self.answer.revision

    @property
    def writes(self) -> bool:
        if isinstance(self.request, Txn):
            return any(not isinstance(act, Range) for act in self.request.success + self.request.failure)
        return not isinstance(self.request, Range)


# Watches.


@dataclass(frozen=True, slots=True)
class Event:
    """``is_put`` False is a deletion: then only key and mod_revision of ``kv`` mean something."""

    is_put: bool
    kv: KeyValue
    prev: KeyValue | None = None

    @property
    def revision(self) -> int:
        return self.kv.mod_revision

    @property
    def is_create(self) -> bool:
        return self.is_put and self.kv.create_revision == self.kv.mod_revision


@dataclass(frozen=True, slots=True)
class WatchResponse:
    """One message of a watch, as it came."""

    time: int
    revision: int
    events: tuple[Event, ...] = ()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    reason: str = ""
    fragment: bool = False

    @property
    def is_progress(self) -> bool:
        return not (self.events or self.created or self.canceled or self.fragment)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """``start_revision`` 0 is "from now". ``number`` is unique in the history."""

    number: int
    client: int
    time: int
    key: bytes
    end: bytes = b""
    start_revision: int = 0
    prev_kv: bool = False
    no_put: bool = False
    no_delete: bool = False
    fragment: bool = False
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch on one stream from creation until it was cancelled, lost or left."""

    request: WatchRequest
    responses: tuple[WatchResponse, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """Under what conditions a history was recorded.

    ``start_revision`` is the store's revision before the first operation (1: an empty store) when no key of the
    history existed. ``exclusive`` means that nobody else wrote, so that every revision is accounted for.
    ``note`` is for people: how the history was made.
    """

    start_revision: int = 1
    exclusive: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: faults over, and enough time for ``watches`` to deliver everything up to ``revision``."""

    revision: int
    watches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class History:
    setting: Setting
    operations: tuple[Operation, ...] = ()
    watches: tuple[Watch, ...] = ()
    ending: Ending | None = None


def in_range(key: bytes, start: bytes, end: bytes) -> bool:
    """Whether ``key`` lies in etcd's range [start, end)."""
    if not end:
        return key == start
    return key >= start and (end == b"\0" or key < end)
