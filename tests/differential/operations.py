"""A seeded stream of requests of the etcd v3 API, right ones and wrong ones, over few keys so that they meet.

Nothing here depends on a clock or on ids that a server chooses: two servers that get the same stream from their
first revision on must give the same answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from store.etcdpb import rpc_pb2

KEYS: Final = (*(b"%c/%02d" % (folder, n) for folder in b"abc" for n in range(12)), b"a", b"b", b"\0", b"zz")
ENDS: Final = (b"", b"\0", b"b", b"b/", b"b0", b"c/06", b"d", b"a/05", b"\xff")
LEASES: Final = tuple(range(1, 9))
LEASE_TTL_S: Final = 100_000
"""Long enough never to end while a comparison runs."""
COMPACT_LAG: Final = 40


class Operation(NamedTuple):
    """One unary call."""

    service: str
    method: str
    request: Any


class Operations:
    """Draws operations; ``revision`` is to be kept up to date by the caller, from the answers."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.revision = 1
        self._kinds: dict[Callable[[], Operation], int] = {
            self._put_call: 34,
            self._range_call: 24,
            self._delete_call: 8,
            self._txn_call: 26,
            self._compact_call: 1,
            self._grant: 2,
            self._revoke: 2,
            self._time_to_live: 2,
            self._leases: 1,
        }

    def next(self) -> Operation:
        rng = self._rng
        return rng.choices(list(self._kinds), list(self._kinds.values()))[0]()

    # -- parts --------------------------------------------------------------------------------------------

    def _maybe(self, share: float) -> bool:
        return self._rng.random() < share

    def _key(self) -> bytes:
        return b"" if self._maybe(0.005) else self._rng.choice(KEYS)

    def _end(self) -> bytes:
        rng = self._rng
        return rng.choice(ENDS) if self._maybe(0.4) else b""

    def _value(self) -> bytes:
        return self._rng.choice((b"", b"v", b"w", self._rng.randbytes(self._rng.randrange(40))))

    def _past(self) -> int:
        """A revision: now, some time ago, long ago, in the future, or none at all."""
        rng = self._rng
        return rng.choice((0, 0, 0, self.revision, self.revision - rng.randrange(60), 1, self.revision + 3, -1))

    def _number(self) -> int:
        return self._rng.choice((0, 1, 2, 3, self.revision, self.revision - 5, self.revision // 2))

    # -- requests -----------------------------------------------------------------------------------------

    def _put(self) -> rpc_pb2.PutRequest:
        request = rpc_pb2.PutRequest(key=self._key(), value=self._value(), prev_kv=self._maybe(0.3))
        if self._maybe(0.15):
            request.lease = self._rng.choice((*LEASES, 99))
        if self._maybe(0.08):
            request.ignore_value = True
            if self._maybe(0.8):
                request.value = b""
        if self._maybe(0.08):
            request.ignore_lease = True
            if self._maybe(0.8):
                request.lease = 0
        return request

    def _range(self) -> rpc_pb2.RangeRequest:
        rng = self._rng
        request = rpc_pb2.RangeRequest(key=self._key(), range_end=self._end(), revision=self._past())
        request.serializable = self._maybe(0.2)
        if self._maybe(0.3):
            request.limit = rng.choice((1, 2, 5, 100, -1))
        if self._maybe(0.3):
            # Only orders and targets that exist: others are refused since etcd 3.5.5 and ignored before.
            request.sort_order = rng.choice((0, 1, 2, 2))  # type: ignore[assignment]  # open enum
            request.sort_target = rng.randrange(5)  # type: ignore[assignment]
        # Sorted by a value that is not shown, keys come in an order that cannot be judged.
        request.keys_only = self._maybe(0.15) and request.sort_target != rpc_pb2.RangeRequest.VALUE
        request.count_only = self._maybe(0.1)
        for bound in ("min_mod_revision", "max_mod_revision", "min_create_revision", "max_create_revision"):
            if self._maybe(0.08):
                setattr(request, bound, self._number())
        return request

    def _delete(self) -> rpc_pb2.DeleteRangeRequest:
        end = self._rng.choice((b"b/", b"c/06", b"d")) if self._maybe(0.06) else b""
        return rpc_pb2.DeleteRangeRequest(key=self._key(), range_end=end, prev_kv=self._maybe(0.4))

    def _compare(self) -> rpc_pb2.Compare:
        rng = self._rng
        compare = rpc_pb2.Compare(key=self._key())
        if self._maybe(0.25):
            compare.range_end = rng.choice(ENDS)
        compare.result = rng.randrange(4)  # type: ignore[assignment]
        compare.target = rng.randrange(5)  # type: ignore[assignment]
        if self._maybe(0.05):
            return compare  # a target without a value to compare with
        field = rpc_pb2.Compare.CompareTarget.Name(compare.target).lower()
        values: dict[str, Any] = {
            "version": rng.choice((0, 1, 2)), "create": self._number(), "mod": self._number(),
            "value": rng.choice((b"", b"v", b"w")), "lease": rng.choice((0, *LEASES)),
        }  # fmt: skip
        name = {"create": "create_revision", "mod": "mod_revision"}.get(field, field)
        setattr(compare, name, values[field])
        return compare

    def _txn(self, depth: int = 0) -> rpc_pb2.TxnRequest:
        rng = self._rng
        txn = rpc_pb2.TxnRequest(compare=[self._compare() for _ in range(rng.choice((0, 1, 1, 2)))])
        for branch in (txn.success, txn.failure):
            for _ in range(rng.choice((0, 1, 1, 2, 3))):
                self._fill(branch.add(), depth)
        return txn

    def _fill(self, op: rpc_pb2.RequestOp, depth: int) -> None:
        kind = self._rng.random()
        if kind < 0.45:
            op.request_put.CopyFrom(self._put())
        elif kind < 0.75:
            op.request_range.CopyFrom(self._range())
        elif kind < 0.88 or depth > 2:
            op.request_delete_range.CopyFrom(self._delete())
        elif kind < 0.99:
            op.request_txn.CopyFrom(self._txn(depth + 1))
        # else: an operation that is none

    # -- calls --------------------------------------------------------------------------------------------

    def _put_call(self) -> Operation:
        return Operation("KV", "Put", self._put())

    def _range_call(self) -> Operation:
        return Operation("KV", "Range", self._range())

    def _delete_call(self) -> Operation:
        return Operation("KV", "DeleteRange", self._delete())

    def _txn_call(self) -> Operation:
        return Operation("KV", "Txn", self._txn())

    def _compact_call(self) -> Operation:
        rng = self._rng
        revision = rng.choice((self.revision - COMPACT_LAG, self.revision - COMPACT_LAG, 1, self.revision + 5, 0))
        return Operation("KV", "Compact", rpc_pb2.CompactionRequest(revision=revision, physical=True))

    def _grant(self) -> Operation:
        number = self._rng.choice((*LEASES, *LEASES, 1))
        return Operation("Lease", "LeaseGrant", rpc_pb2.LeaseGrantRequest(ID=number, TTL=LEASE_TTL_S + number))

    def _revoke(self) -> Operation:
        return Operation("Lease", "LeaseRevoke", rpc_pb2.LeaseRevokeRequest(ID=self._rng.choice((*LEASES, 99))))

    def _time_to_live(self) -> Operation:
        request = rpc_pb2.LeaseTimeToLiveRequest(ID=self._rng.choice((*LEASES, 99)), keys=True)
        return Operation("Lease", "LeaseTimeToLive", request)

    def _leases(self) -> Operation:
        return Operation("Lease", "LeaseLeases", rpc_pb2.LeaseLeasesRequest())
