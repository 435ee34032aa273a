"""One version of a key, and one change as watchers see it."""

from __future__ import annotations

from store.etcdpb import kv_pb2
from store.mvcc.position import SUB_BITS
from store.wire import encode_pair, frame_pair, varint


class Version:
    """One version of a key. Never changed after it is made, so it is shared freely.

    ``framed`` is the encoded KeyValue with tag and length in front (see store.wire). A tombstone has version 0
    and carries key and mod_revision only, as a DELETE event does.
    """

    __slots__ = ("create", "framed", "key", "lease", "pos", "version")

    def __init__(self, key: bytes, framed: bytes, pos: int, create: int, version: int, lease: int) -> None:
        self.key = key
        self.framed = framed
        self.pos = pos
        self.create = create
        self.version = version
        self.lease = lease

    @property
    def mod(self) -> int:
        return self.pos >> SUB_BITS

    @property
    def is_tombstone(self) -> bool:
        return self.version == 0

    @property
    def value(self) -> bytes:
        """Decoded on demand: only compares, sorts by value and ignore_value need it."""
        return self.decode().value

    def decode(self) -> kv_pb2.KeyValue:
        event = kv_pb2.Event.FromString(self.framed)
        return event.kv

    def without_value(self) -> bytes:
        """``framed`` with the value left out, for keys_only."""
        return encode_pair(self.key, b"", self.create, self.mod, self.version, self.lease)


def tombstone(key: bytes, pos: int) -> Version:
    return Version(key, encode_pair(key, b"", 0, pos >> SUB_BITS, 0, 0), pos, 0, 0, 0)


def stored_version(pos: int, body: bytes) -> Version:
    """The version read back from the state database (not a tombstone)."""
    pair = kv_pb2.KeyValue.FromString(body)
    return Version(pair.key, frame_pair(body), pos, pair.create_revision, pair.version, pair.lease)


Part = bytes | memoryview


class Event:
    """A change: the new version (or tombstone) and the one before it, if any. Encoded once for all watchers.

    Its wire form is a few pieces to be joined, among them the versions' own bytes: a copy kept here would double
    the memory of every change that is still remembered.
    """

    __slots__ = ("_parts", "_parts_with_prev", "prev", "version")

    def __init__(self, version: Version, prev: Version | None) -> None:
        self.version = version
        self.prev = prev
        self._parts: tuple[Part, ...] | None = None
        self._parts_with_prev: tuple[Part, ...] | None = None

    @property
    def key(self) -> bytes:
        return self.version.key

    @property
    def is_delete(self) -> bool:
        return self.version.version == 0

    def parts(self, *, prev_kv: bool = False) -> tuple[Part, ...]:
        """As element of WatchResponse.events, in pieces; with the previous pair if that is wanted and known."""
        if prev_kv and self.prev is not None:
            if self._parts_with_prev is None:
                # The same KeyValue under another tag: framed as field 2, wanted as field 3.
                self._parts_with_prev = self._make_parts(b"\x1a", memoryview(self.prev.framed)[1:])
            return self._parts_with_prev
        if self._parts is None:
            self._parts = self._make_parts()
        return self._parts

    @property
    def weight(self) -> int:
        """Bytes of the pairs that it keeps in memory: the previous one may be the larger, as with a deletion."""
        return len(self.version.framed) + (len(self.prev.framed) if self.prev is not None else 0)

    def _make_parts(self, *more: Part) -> tuple[Part, ...]:
        kind = b"\x08\x01" if self.is_delete else b""
        size = len(kind) + len(self.version.framed) + sum(map(len, more))
        return (b"\x5a" + varint(size) + kind, self.version.framed, *more)
