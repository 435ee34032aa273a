"""What has been applied and is not yet in the state database."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

from store.backend import BucketKey, Row
from store.mvcc.record import Event, Version
from store.wire import encode_pair, unframe

_POSITION = attrgetter("pos")


class WriteBuffer:
    """Versions in order of position, and the last value of each changed bucket entry."""

    def __init__(self) -> None:
        self._versions: list[Version] = []
        self._buckets: dict[BucketKey, bytes | None] = {}
        self.bytes = 0

    def add_events(self, events: Sequence[Event], size: int) -> None:
        """Add the changes of one revision, whose new versions have ``size`` bytes."""
        self.bytes += size
        for event in events:
            self._versions.append(event.version)

    def put_bucket(self, key: BucketKey, value: bytes | None) -> None:
        self._buckets[key] = value

    def find(self, pos: int) -> Version | None:
        at = bisect_left(self._versions, pos, key=_POSITION)
        if at < len(self._versions) and self._versions[at].pos == pos:
            return self._versions[at]
        return None

    @property
    def first_position(self) -> int | None:
        return self._versions[0].pos if self._versions else None

    def take(self) -> tuple[Sequence[Version], dict[BucketKey, bytes | None]]:
        """What to write now. The versions stay findable until ``written``; give buckets back on failure."""
        buckets, self._buckets = self._buckets, {}
        return tuple(self._versions), buckets

    def written(self, count: int) -> None:
        self.bytes -= sum(len(v.framed) for v in self._versions[:count])
        del self._versions[:count]

    def give_back(self, buckets: dict[BucketKey, bytes | None]) -> None:
        self._buckets = buckets | self._buckets


def rows_of(versions: Iterable[Version]) -> Iterable[Row]:
    """The versions as rows of table kv. A tombstone is stored as its key only, as etcd does (HashKV)."""
    for v in versions:
        if v.version:
            yield v.pos, 0, unframe(v.framed)
        else:
            yield v.pos, 1, unframe(encode_pair(v.key, b"", 0, 0, 0, 0))
