"""Which watchers may want a change: an index by namespace, name and trigger value."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from .codec import Resource
from .events import Change
from .selectors import Predicate
from .watcher import CacheWatcher

_Bucket = tuple[str | None, str | None, str | None]


class InterestIndex:
    """None in a bucket's key means: any. A watcher sits in exactly one bucket."""

    def __init__(self, resource: Resource) -> None:
        self._trigger = resource.trigger
        self._buckets: dict[_Bucket, dict[CacheWatcher, None]] = {}
        self._bucket_of: dict[CacheWatcher, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def __iter__(self) -> Iterator[CacheWatcher]:
        return iter(list(self._bucket_of))

    def trigger_value(self, predicate: Predicate) -> str | None:
        return predicate.exact_field(self._trigger) if self._trigger else None

    def add(self, watcher: CacheWatcher, namespace: str | None) -> None:
        predicate = watcher.predicate
        bucket = (namespace, predicate.exact_field("metadata.name"), self.trigger_value(predicate))
        self._buckets.setdefault(bucket, {})[watcher] = None
        self._bucket_of[watcher] = bucket

    def discard(self, watcher: CacheWatcher) -> None:
        bucket = self._bucket_of.pop(watcher, None)
        if bucket is None:
            return
        members = self._buckets[bucket]
        del members[watcher]
        if not members:
            del self._buckets[bucket]

    def interested(self, change: Change) -> Iterator[CacheWatcher]:
        """Watchers whose bucket fits the change's old or new state; their selectors are not yet applied."""
        subject = change.subject
        triggers: set[str | None] = {None}
        if self._trigger:
            states = (change.current, change.previous)
            triggers.update(state.fields.get(self._trigger, "") for state in states if state is not None)
        namespaces = (None, subject.namespace) if subject.namespace else (None,)
        for bucket in product(namespaces, (None, subject.name), triggers):
            members = self._buckets.get(bucket)
            if members:
                yield from list(members)
