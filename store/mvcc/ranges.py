"""A range read: which versions it selects, then filter, sort, limit (contract §2).

Selecting needs the index only and is instantaneous: it fixes what the answer is about. Older versions are
selected by position and read from the state database afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.errors import COMPACTED, FUTURE_REVISION
from store.etcdpb import rpc_pb2
from store.mvcc.index import KeyIndex
from store.mvcc.record import Version

MAX_LIMIT: Final = 1 << 62

_SORT_KEYS = {
    rpc_pb2.RangeRequest.KEY: lambda v: v.key,
    rpc_pb2.RangeRequest.VERSION: lambda v: v.version,
    rpc_pb2.RangeRequest.CREATE: lambda v: v.create,
    rpc_pb2.RangeRequest.MOD: lambda v: v.pos,
    rpc_pb2.RangeRequest.VALUE: lambda v: v.value,
}


@dataclass(slots=True)
class RangeResult:
    """A finished range. ``revision`` is the store's, for the header; ``pairs`` are framed KeyValues."""

    revision: int
    pairs: Sequence[bytes] = ()
    more: bool = False
    count: int = 0


@dataclass(slots=True, weakref_slot=True, eq=False)
class Selection:
    """A range whose entries are chosen but, where they are positions, not yet read."""

    request: rpc_pb2.RangeRequest
    revision: int
    entries: Sequence[Version | int]
    count: int

    def missing(self) -> list[int]:
        """Positions of the versions that have to be read, ascending in key order as selected."""
        return [entry for entry in self.entries if type(entry) is int]

    def finish(self, read: dict[int, Version] | None = None) -> RangeResult:
        """Filter, sort and cut. ``read`` holds what ``missing`` named.

        Raises KeyError when a row is absent: a compaction has overtaken the read.
        """
        known = read or {}
        versions = [known[e] if isinstance(e, int) else e for e in self.entries]
        return _finish(self.request, self.revision, versions, self.count)


def check_revision(wanted: int, current: int, compacted: int, *, in_txn: bool = False) -> None:
    """Raise COMPACTED or FUTURE_REVISION unless ``wanted`` can be read.

    0 is the latest. A negative revision is the latest too, but inside a txn it compares as a number.
    """
    if wanted > current:
        raise FUTURE_REVISION.again()
    if wanted < compacted and (wanted > 0 or (in_txn and wanted < 0)):
        raise COMPACTED.again()


def select(index: KeyIndex, request: rpc_pb2.RangeRequest, current: int, revision: int) -> Selection:
    """Choose the entries of a range. The requested revision has been checked; ``current`` is the newest one
    as this reader sees it and ``revision`` what the header will say."""
    key, end, limit = request.key, request.range_end, request.limit
    old = 0 < request.revision < current
    if request.count_only:
        count = index.count_at(key, end, request.revision) if old else index.count(key, end)
        return Selection(request, revision, (), count)
    # One more than asked tells whether there is more; no store has as many keys as the cap.
    fetch = min(limit, MAX_LIMIT) + 1 if limit > 0 and not _needs_all(request) else 0
    if old:
        entries = index.range_at(key, end, request.revision, fetch)
        count = len(entries) if not fetch or len(entries) < fetch else index.count_at(key, end, request.revision)
        return Selection(request, revision, entries, count)
    if not fetch:
        live = index.live_in(key, end)
        return Selection(request, revision, live, len(live))
    first = index.first_in(key, end, fetch)
    count = len(first) if len(first) < fetch else index.count(key, end)
    return Selection(request, revision, first, count)


def _needs_all(request: rpc_pb2.RangeRequest) -> bool:
    """A filter or an explicit order is applied before the limit. An order left at NONE is not, even where the
    target makes it ascending: the first keys are cut, then sorted (contract §2, quirk)."""
    return bool(
        request.sort_order
        or request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    )


def _finish(request: rpc_pb2.RangeRequest, revision: int, versions: list[Version], count: int) -> RangeResult:
    versions = _filtered(request, versions)
    order, target = request.sort_order, request.sort_target
    if order == rpc_pb2.RangeRequest.NONE and target != rpc_pb2.RangeRequest.KEY:
        order = rpc_pb2.RangeRequest.ASCEND
    if order == rpc_pb2.RangeRequest.DESCEND or (order and target != rpc_pb2.RangeRequest.KEY):
        versions.sort(key=_SORT_KEYS[target], reverse=order == rpc_pb2.RangeRequest.DESCEND)
    more = 0 < request.limit < len(versions)
    if more:
        del versions[request.limit :]
    pairs = [v.without_value() for v in versions] if request.keys_only else [v.framed for v in versions]
    return RangeResult(revision, pairs, more, count)


def _filtered(request: rpc_pb2.RangeRequest, versions: list[Version]) -> list[Version]:
    if low := request.min_mod_revision:
        versions = [v for v in versions if v.mod >= low]
    if high := request.max_mod_revision:
        versions = [v for v in versions if v.mod <= high]
    if low := request.min_create_revision:
        versions = [v for v in versions if v.create >= low]
    if high := request.max_create_revision:
        versions = [v for v in versions if v.create <= high]
    return versions
