"""What etcd keeps in its bbolt file, by bucket (contract §14), and the checksum that ends a snapshot file."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from store.mvcc.record import MAX_SUB, SUB_BITS

KEY: Final = "key"
META: Final = "meta"
LEASE: Final = "lease"
ALARM: Final = "alarm"
CLUSTER: Final = "cluster"
MEMBERS: Final = "members"
MEMBERS_REMOVED: Final = "members_removed"
BUCKETS: Final = tuple(
    sorted((KEY, META, LEASE, ALARM, CLUSTER, MEMBERS, MEMBERS_REMOVED, "auth", "authUsers", "authRoles"))
)
"""All of them exist in every file, empty or not: etcdutl 3.6 takes that for granted."""

CLUSTER_DEFAULTS: Final = {b"clusterVersion": b"3.5.0"}
AUTH_ENABLED: Final = ("auth", b"authEnabled")
STORAGE_VERSION: Final = b"storageVersion"

CHECKSUM_BYTES: Final = 32
CHECKSUM_ALIGNMENT: Final = 512
"""A file with a checksum is 32 bytes longer than a multiple of this; a bare database is a multiple."""

REVISION_BYTES: Final = 17
TOMBSTONE_MARK: Final = b"t"
MAIN_MAX: Final = (1 << 63 - SUB_BITS) - 1
"""The largest revision that a position can hold."""
_REVISION: Final = struct.Struct(">QcQ")


class SnapshotError(Exception):
    """The file is no snapshot that can be used; one line that says why."""


def positions(keys: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Positions (store.mvcc.record) of keys of bucket ``key``, and 1 for each that is a tombstone, else 0.

    Raises SnapshotError for anything that etcd does not write there.
    """
    sizes = set(map(len, keys))
    plain = keys if sizes == {REVISION_BYTES} else [key[:REVISION_BYTES] for key in keys]
    if sizes <= {REVISION_BYTES, REVISION_BYTES + 1}:
        mains, separators, subs = zip(*_REVISION.iter_unpack(b"".join(plain)), strict=True)
        tombstones = [len(key) - REVISION_BYTES for key in keys]
        if (
            set(separators) == {b"_"}
            and max(mains) <= MAIN_MAX
            and max(subs) <= MAX_SUB
            and {key[REVISION_BYTES:] for key in keys} <= {b"", TOMBSTONE_MARK}
        ):
            return [main << SUB_BITS | sub for main, sub in zip(mains, subs, strict=True)], tombstones
    raise SnapshotError(f"bucket key: {keys[0][:32]!r} or a key after it is no revision")
