"""What really happened to the replicated state: the commands in the order of the log, and every revision.

The simulation sees every entry applied, so what a client may only guess is known here: whether a request whose
outcome is unknown was carried out, and what the store held at every revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chaos.check import history as h
from raft.core.types import Entry, EntryType
from raft.waiters import ID_BYTES
from store.etcdpb import internal_pb2
from store.mvcc.record import Event, Version


class Truth:
    """One run's. Every member reports; the first report of a revision counts, and later ones must agree."""

    def __init__(self) -> None:
        self.events: dict[int, tuple[h.Event, ...]] = {}
        self.values: Counter[bytes] = Counter()
        """How often each value that a client wrote stands in the log."""
        self.revoked: set[int] = set()
        self.granted: set[int] = set()
        self.compactions: set[int] = set()
        self.deletes: set[bytes] = set()
        self._index = 0
        self._encoded: dict[int, tuple[bytes, ...]] = {}

    def applied(self, entry: Entry) -> None:
        """An entry was applied somewhere. Raises AssertionError when a client's write stands in the log twice."""
        if entry.index <= self._index:
            return
        self._index = entry.index
        if entry.type is EntryType.NORMAL and entry.data:
            self._note(internal_pb2.InternalRequest.FromString(entry.data[ID_BYTES:]))

    def _note(self, request: internal_pb2.InternalRequest) -> None:
        if request.HasField("put"):
            self._wrote(request.put.value)
        elif request.HasField("txn"):
            puts = [op.request_put for op in request.txn.success if op.HasField("request_put")]
            for put in puts[:1]:  # a transaction's value is one
                self._wrote(put.value)
        elif request.HasField("delete_range"):
            self.deletes.add(request.delete_range.key)
        elif request.HasField("lease_revoke"):
            self.revoked.add(request.lease_revoke.ID)
        elif request.HasField("lease_grant"):
            self.granted.add(request.lease_grant.ID)
        elif request.HasField("compaction"):
            self.compactions.add(request.compaction.revision)

    def _wrote(self, value: bytes) -> None:
        self.values[value] += 1
        assert self.values[value] == 1, f"exactly once: {value!r} was proposed once and stands in the log twice"

    def committed(self, revision: int, events: Sequence[Event]) -> None:
        """A revision's changes, on some member. Raises AssertionError where members differ, in order too."""
        encoded = tuple([event.version.framed for event in events])
        if revision not in self.events:
            self.events[revision] = tuple(map(_event, events))
            self._encoded[revision] = encoded
        assert self._encoded[revision] == encoded, f"I5: two different revisions {revision}"

    def as_watch(self) -> h.Watch:
        """Every revision, as somebody would have seen it who watched everything from the beginning."""
        request = h.WatchRequest(number=0, client=0, time=0, key=b"\0", end=b"\0", start_revision=1)
        return h.Watch(
            request,
            tuple(h.WatchResponse(0, revision, events) for revision, events in sorted(self.events.items())),
        )

    def was_carried_out(self, request: h.Request) -> bool:
        """Whether a request of unknown outcome stands in the log; True where that cannot be told."""
        match request:
            case h.Put():
                return request.value in self.values
            case h.Txn():
                return any(isinstance(act, h.Put) and act.value in self.values for act in request.success)
            case h.Delete():
                return request.key in self.deletes
            case h.Grant():
                return request.lease in self.granted
            case h.Revoke():
                return request.lease in self.revoked
            case h.Compact():
                return request.revision in self.compactions
            case h.Range():
                return False

    def states(self) -> dict[int, dict[bytes, h.KeyValue]]:
        """What the store held at every revision."""
        now: dict[bytes, h.KeyValue] = {}
        out = {1: dict(now)}
        for revision in sorted(self.events):
            for event in self.events[revision]:
                if event.is_put:
                    now[event.kv.key] = event.kv
                else:
                    now.pop(event.kv.key, None)
            out[revision] = dict(now)
        return out


def _event(event: Event) -> h.Event:
    prev = None if event.prev is None else _pair(event.prev)
    return h.Event(not event.is_delete, _pair(event.version), prev)


def _pair(version: Version) -> h.KeyValue:
    kv = version.decode()
    return h.KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)
