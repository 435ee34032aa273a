"""What etcd keeps in its bbolt file, by bucket (contract §14), and the checksum that ends a snapshot file."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from store.mvcc.position import SUB_BITS

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


class SnapshotError(Exception):
    """The file is no snapshot that can be used; one line that says why."""


def positions(keys: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Positions (store.mvcc.record) of keys of bucket ``key``, and 1 for each that is a tombstone, else 0.

    Raises SnapshotError for anything that etcd does not write there.
    """
    sizes = set(map(len, keys))
    tombstones = [0] * len(keys)
    plain = keys
    if REVISION_BYTES + 1 in sizes:
        tombstones = [int(key[REVISION_BYTES:] == TOMBSTONE_MARK) for key in keys]
        plain = [key[:REVISION_BYTES] if dead else key for key, dead in zip(keys, tombstones, strict=True)]
        sizes = set(map(len, plain))
    if sizes == {REVISION_BYTES}:
        packed = _pack(b"".join(plain))
        if packed is not None:
            return list(struct.unpack(f">{len(keys)}q", packed)), tombstones
    raise SnapshotError(f"bucket key: {keys[0][:32]!r} or a key after it is no revision")


_TAKEN: Final = (3, 4, 5, 6, 7, 14, 15, 16)
"""Bytes of a stored revision that make its position: the low five of main, the low three of sub."""
_ZERO: Final = (0, 1, 2, 9, 10, 11, 12, 13)
_SEPARATOR: Final = 8


def revision_keys(places: Sequence[int]) -> list[bytes]:
    """What bucket ``key`` calls the versions at these positions: ``positions`` backwards, tombstones aside."""
    packed = struct.pack(f">{len(places)}q", *places)
    revisions = bytearray(REVISION_BYTES * len(places))
    revisions[_SEPARATOR::REVISION_BYTES] = b"_" * len(places)
    for at, to in enumerate(_TAKEN):
        revisions[to::REVISION_BYTES] = packed[at :: len(_TAKEN)]
    whole = bytes(revisions)
    return [whole[start : start + REVISION_BYTES] for start in range(0, len(whole), REVISION_BYTES)]


def _pack(revisions: bytes) -> bytes | None:
    """Positions, big endian, of stored revisions that follow each other; None if one of them is none.

    Byte by byte over all of them at once, which takes a fifth of the time of unpacking each.
    """
    count = len(revisions) // REVISION_BYTES
    column = [revisions[at::REVISION_BYTES] for at in range(REVISION_BYTES)]
    if any(column[at].count(0) != count for at in _ZERO) or column[_SEPARATOR].count(b"_") != count:
        return None
    if not column[_TAKEN[0]].isascii():
        return None  # above MAIN_MAX: a position is signed
    packed = bytearray(len(_TAKEN) * count)
    for to, at in enumerate(_TAKEN):
        packed[to :: len(_TAKEN)] = column[at]
    return bytes(packed)
