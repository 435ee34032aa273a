"""Is this file a snapshot, whole and undamaged, and what is in it (contract §9, §14)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import google_crc32c
from google.protobuf.message import DecodeError

from store.bbolt.format import BoltError
from store.bbolt.reader import BoltFile, Item
from store.etcdpb import kv_pb2, lease_pb2, rpc_pb2
from store.mvcc.record import SUB_BITS
from store.snapshots.layout import (
    ALARM,
    CHECKSUM_ALIGNMENT,
    CHECKSUM_BYTES,
    KEY,
    LEASE,
    META,
    SnapshotError,
    position_of,
)

READ_BYTES: Final = 1 << 20
_CRC_BATCH: Final = 256


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
            revision = 0
            for name in bolt.buckets:
                for key, value in bolt.items(name):
                    if name == b"key":
                        revision = position_of(key)
                        _check_pair(key, value)
                    else:
                        _check_entry(name.decode(errors="replace"), key, value)
            return revision >> 1 + SUB_BITS
        except (BoltError, SnapshotError) as error:
            raise SnapshotError(f"{path} is damaged: {error}") from None


_parse_pair: Final = kv_pb2.KeyValue.FromString


def _check_pair(key: bytes, value: bytes) -> None:
    try:
        _parse_pair(value)
    except DecodeError:
        raise SnapshotError(f"bucket key: the value at {key!r} is no key-value pair") from None


def _check_entry(bucket: str, key: bytes, value: bytes) -> None:
    try:
        if bucket == LEASE:
            lease_pb2.Lease.FromString(value)
        elif bucket == ALARM:
            rpc_pb2.AlarmMember.FromString(key)
    except DecodeError:
        raise SnapshotError(f"bucket {bucket}: the entry {key!r} cannot be decoded") from None


def _count(bolt: BoltFile) -> Status:
    crc, total, last = 0, 0, b""
    for name in bolt.buckets:
        crc = google_crc32c.extend(crc, name)
        for batch in _batches(bolt.items(name)):
            crc = google_crc32c.extend(crc, b"".join([part for item in batch for part in item]))
            total += len(batch)
            if name == b"key":
                last = batch[-1][0]
    revision = position_of(last) >> 1 + SUB_BITS if last else 0
    return Status(crc, revision, total, bolt.size)


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    for item in items:
        batch.append(item)
        if len(batch) >= _CRC_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
