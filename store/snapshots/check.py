"""Is this file a snapshot, whole and undamaged, and what is in it (contract §9, §14)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import google_crc32c
from google.protobuf.message import DecodeError

from store.bbolt.format import BoltError
from store.bbolt.reader import BoltFile
from store.etcdpb import kv_pb2, lease_pb2, rpc_pb2
from store.mvcc.position import SUB_BITS
from store.snapshots.layout import (
    ALARM,
    CHECKSUM_ALIGNMENT,
    CHECKSUM_BYTES,
    KEY,
    LEASE,
    META,
    SnapshotError,
    positions,
)

READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Status:
    """What ``snapshot status`` shows, as etcdutl 3.5 counts it.

    ``hash`` covers bucket names, keys and values; ``total_key`` counts the entries of all buckets;
    ``total_bytes`` is the size without the checksum.
    """

    hash: int
    revision: int
    total_key: int
    total_bytes: int


def check_checksum(path: Path, *, required: bool = True) -> None:
    """Compare the file with the SHA-256 at its end. Raises SnapshotError, for a missing one if ``required``."""
    try:
        size = path.stat().st_size
        if size % CHECKSUM_ALIGNMENT != CHECKSUM_BYTES:
            if required:
                raise SnapshotError(_without_checksum(path))
            return
        with path.open("rb") as file:
            found = _digest(file, size - CHECKSUM_BYTES)
            expected = file.read(CHECKSUM_BYTES)
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from None
    if found != expected:
        raise SnapshotError(
            f"{path} is damaged: its SHA-256 is {found.hex()}, and {expected.hex()} is what it should be"
        )


def _digest(file: BinaryIO, size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0:
        part = file.read(min(READ_BYTES, size))
        if not part:
            break
        digest.update(part)
        size -= len(part)
    return digest.digest()


def _without_checksum(path: Path) -> str:
    """Why a file without a checksum is refused: cut short, foreign, or a bare copy of a database."""
    try:
        BoltFile(path).close()
    except BoltError as error:
        return f"{path} is no usable snapshot: {error}"
    return (
        f"{path} has no checksum at its end: it is cut short, or a copy from a data directory, "
        "which needs --skip-hash-check"
    )


def open_snapshot(path: Path) -> BoltFile:
    """The file, open for reading. Raises SnapshotError where it is none of etcd's."""
    try:
        bolt = BoltFile(path)
    except BoltError as error:
        raise SnapshotError(f"{path} is no usable snapshot: {error}") from None
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from None
    missing = [name for name in (KEY, META) if name.encode() not in bolt.buckets]
    if missing:
        bolt.close()
        raise SnapshotError(f"{path} is a bbolt file, but not etcd's: it has no bucket {missing[0]!r}")
    return bolt


def status(path: Path) -> Status:
    """Read and check the whole file. Raises SnapshotError."""
    check_checksum(path, required=False)
    with open_snapshot(path) as bolt:
        try:
            return _count(bolt)
        except (BoltError, SnapshotError) as error:
            raise SnapshotError(f"{path} is damaged: {error}") from None


def verify(path: Path) -> int:
    """Check every page, key and value; the last revision in bucket ``key``, 0 for none. Raises SnapshotError."""
    with open_snapshot(path) as bolt:
        try:
            last = 0
            for keys, values in bolt.batches(KEY.encode()):
                if keys:
                    last = positions(keys)[0][-1]
                    _check_pairs(values)
            for name in bolt.buckets:
                if name != KEY.encode():
                    for key, value in bolt.items(name):
                        _check_entry(name.decode(errors="replace"), key, value)
            return last >> SUB_BITS
        except (BoltError, SnapshotError) as error:
            raise SnapshotError(f"{path} is damaged: {error}") from None


def _check_pairs(values: list[bytes]) -> None:
    parse = kv_pb2.KeyValue.FromString
    try:
        for value in values:
            parse(value)
    except DecodeError:
        raise SnapshotError("bucket key: a value is no key-value pair") from None


def _check_entry(bucket: str, key: bytes, value: bytes) -> None:
    try:
        if bucket == LEASE:
            lease_pb2.Lease.FromString(value)
        elif bucket == ALARM:
            rpc_pb2.AlarmMember.FromString(key)
    except DecodeError:
        raise SnapshotError(f"bucket {bucket}: the entry {key!r} cannot be decoded") from None


def _count(bolt: BoltFile) -> Status:
    crc, total, revision = 0, 0, 0
    for name in bolt.buckets:
        crc = google_crc32c.extend(crc, name)
        for keys, values in bolt.batches(name):
            crc = google_crc32c.extend(crc, b"".join(chain.from_iterable(zip(keys, values, strict=True))))
            total += len(keys)
            if keys and name == KEY.encode():
                revision = positions(keys)[0][-1] >> SUB_BITS
    return Status(crc, revision, total, bolt.size)
