"""What etcd keeps in its bbolt file, by bucket (contract §14), and the checksum that ends a snapshot file."""

from __future__ import annotations

import struct
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

CLUSTER_DEFAULTS: Final = {b"clusterVersion": b"3.5.0", b"downgrade": b'{"target-version":"","enabled":false}'}
AUTH_ENABLED: Final = ("auth", b"authEnabled")
STORAGE_VERSION: Final = b"storageVersion"

CHECKSUM_BYTES: Final = 32
CHECKSUM_ALIGNMENT: Final = 512
"""A file with a checksum is 32 bytes longer than a multiple of this; a bare database is a multiple."""

REVISION_BYTES: Final = 17
TOMBSTONE_MARK: Final = b"t"
MAIN_MAX: Final = (1 << 63 - SUB_BITS) - 1
"""The largest revision that a position can hold."""
_REVISION: Final = struct.Struct(">qcq")


class SnapshotError(Exception):
    """The file is no snapshot that can be used; one line that says why."""


def position_of(key: bytes) -> int:
    """Position (store.mvcc.record) times two, plus one for a tombstone, of a key of bucket ``key``.

    Raises SnapshotError for anything that etcd does not write there.
    """
    if len(key) not in (REVISION_BYTES, REVISION_BYTES + 1):
        raise SnapshotError(f"bucket key: {key[:32]!r} is no revision")
    main: int
    sub: int
    main, separator, sub = _REVISION.unpack_from(key)
    if separator != b"_" or not 0 <= main <= MAIN_MAX or not 0 <= sub <= MAX_SUB:
        raise SnapshotError(f"bucket key: {key!r} is no revision")
    if len(key) == REVISION_BYTES:
        return (main << SUB_BITS | sub) << 1
    if key[REVISION_BYTES:] != TOMBSTONE_MARK:
        raise SnapshotError(f"bucket key: {key!r} is no revision")
    return (main << SUB_BITS | sub) << 1 | 1
