"""What clients ask for: a weighted mix of everything the model knows, from one seeded generator."""

from __future__ import annotations

import itertools
from collections import deque
from random import Random
from typing import Final

from chaos.check.history import (
    Action,
    Answer,
    Chosen,
    Compact,
    Compare,
    Delete,
    Found,
    Grant,
    KeyValue,
    Operation,
    Outcome,
    Put,
    Range,
    Relation,
    Request,
    Revoke,
    Target,
    Txn,
)

KEYS: Final = 10
LEASE_TTL_S: Final = 86_400
"""Leases outlive the run: expiry is the server's deed, and no model of clients knows when."""

_BIG_VALUE_BYTES: Final = 600_000
"""Two of them fit into one request; two events with their previous versions do not fit into one response."""

_WEIGHTS: Final = {
    "get": 22,
    "list": 8,
    "stale_get": 10,
    "old_get": 8,
    "put": 22,
    "delete": 7,
    "compare_and_swap": 10,
    "create": 4,
    "txn": 5,
    "grant": 1.5,
    "revoke": 1,
    "compact": 0.8,
    "big": 0.05,
}


class Mix:
    """The requests of a run. It learns from answers what there is to compare with, to read again, to compact."""

    def __init__(
        self, random: Random, prefix: bytes, start_revision: int = 1, *, tombstones_stay: bool = True
    ) -> None:
        self._random = random
        self.floor = start_revision + 1 if start_revision > 1 else 1
        """Nothing is asked of older revisions: what others did, and compacted, before the run is not recorded."""
        self.prefix = prefix
        self.end = prefix[:-1] + bytes((prefix[-1] + 1,))
        self.keys = tuple(prefix + b"key%d" % number for number in range(KEYS))
        self._list_end = prefix + b"kez"
        self._tombstones_stay = tombstones_stay
        self._values = itertools.count(1)
        self._known: dict[bytes, KeyValue] = {}
        self._leases: list[int] = []
        self._put_revisions: deque[int] = deque(maxlen=200)
        self.revision = start_revision
        self.compacted = 0
        self._kinds, self._weights = list(_WEIGHTS), list(_WEIGHTS.values())

    def value(self) -> bytes:
        """One that nobody has written before."""
        return b"v%d" % next(self._values)

    def next(self) -> Request:
        kind = self._random.choices(self._kinds, self._weights)[0]
        request: Request = getattr(self, f"_{kind}")(self._random.choice(self.keys))
        return request

    def learn(self, operation: Operation) -> None:
        if operation.outcome is not Outcome.OK or operation.answer is None:
            return
        self.revision = max(self.revision, operation.answer.revision)
        match operation.request:
            case Put():
                self._put_revisions.append(operation.answer.revision)
            case Grant(lease=lease):
                self._leases.append(lease)
            case Revoke(lease=lease) if lease in self._leases:
                self._leases.remove(lease)
            case Compact(revision=revision):
                self.compacted = max(self.compacted, revision)
        self._learn_kvs(operation.answer)

    def _learn_kvs(self, answer: Answer) -> None:
        results = answer.result.results if isinstance(answer.result, Chosen) else (answer.result,)
        for result in results:
            if isinstance(result, Found):
                self._known.update((kv.key, kv) for kv in result.kvs)

    def _get(self, key: bytes) -> Request:
        return Range(key)

    def _list(self, key: bytes) -> Request:
        return Range(self.prefix + b"key", self._list_end, limit=self._random.choice((0, 0, 3)))

    def _stale_get(self, key: bytes) -> Request:
        if self._random.random() < 0.3:
            return Range(self.prefix + b"key", self._list_end, serializable=True)
        return Range(key, serializable=True)

    def _old_get(self, key: bytes) -> Request:
        """Mostly of a revision that is still there; sometimes of a compacted or a future one."""
        oldest = max(self.floor, self.compacted, self.revision - 300)
        pick = self._random.random()
        if pick < 0.1:
            revision = max(self.floor, self.compacted - self._random.randint(1, 5))
        elif pick < 0.2:
            revision = self.revision + self._random.randint(1, 20)
        else:
            revision = self._random.randint(min(oldest, self.revision), self.revision)
        end = self._list_end if self._random.random() < 0.3 else b""
        return Range(key, end, revision=revision, serializable=self._random.random() < 0.3)

    def _put(self, key: bytes) -> Request:
        lease = self._random.choice(self._leases) if self._leases and self._random.random() < 0.15 else 0
        return Put(key, self.value(), lease)

    def _delete(self, key: bytes) -> Request:
        return Delete(self.prefix + b"key", self._list_end) if self._random.random() < 0.03 else Delete(key)

    def _compare_and_swap(self, key: bytes) -> Request:
        known = self._known.get(key)
        compare = Compare(key, Target.MOD, Relation.EQUAL, known.mod_revision if known else 0)
        return Txn((compare,), (Put(key, self.value()),), (Range(key),))

    def _create(self, key: bytes) -> Request:
        compare = Compare(key, Target.CREATE, Relation.EQUAL, 0)
        return Txn((compare,), (Put(key, self.value()),), (Delete(key),))

    def _txn(self, key: bytes) -> Request:
        other = self._random.choice(self.keys)
        known = self._known.get(other)
        compares = (
            Compare(key, Target.VERSION, self._random.choice((Relation.GREATER, Relation.LESS)), 2),
            Compare(other, Target.VALUE, Relation.EQUAL, known.value if known else b"none"),
        )
        value = self.value()
        success: tuple[Action, ...] = (Put(key, value), Range(other))
        if other != key:
            success += (self._random.choice((Put(other, value), Delete(other))),)
        return Txn(compares[: self._random.randint(1, 2)], success, (Range(key), Delete(other)))

    def _grant(self, key: bytes) -> Request:
        return Grant(self._random.getrandbits(48) + 1, LEASE_TTL_S)

    def _revoke(self, key: bytes) -> Request:
        return Revoke(self._random.choice(self._leases)) if self._leases else self._get(key)

    def _compact(self, key: bytes) -> Request:
        """A little behind the newest revision. A store that forgets a deletion at the compacted revision itself
        (etcd before 3.5.18) is only asked to compact to puts."""
        if not self._put_revisions:
            return self._get(key)
        if self._tombstones_stay and self._random.random() < 0.7:
            return Compact(max(self.floor, self.revision - self._random.choice((0, 1, 5, 50, 200))))
        return Compact(self._random.choice(self._put_revisions))

    def _big(self, key: bytes) -> Request:
        value = self.value()
        padded = value + b"." * (_BIG_VALUE_BYTES - len(value))
        return Txn((), (Put(self.prefix + b"big1", padded), Put(self.prefix + b"big2", padded)))
