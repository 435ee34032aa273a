"""The Snapshot stream: this member's state as a file in etcd's format, with its checksum (contract §9, §14)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final

import store
from store.api.context import STORAGE_VERSION
from store.errors import Code, EtcdError
from store.etcdpb import rpc_pb2
from store.machine import Machine

log = logging.getLogger(__name__)

BLOB_BYTES: Final = 32 * 1024
READ_BYTES: Final = 32 * BLOB_BYTES
"""Read and hashed in one visit to a thread."""


async def snapshot_parts(machine: Machine) -> AsyncIterator[rpc_pb2.SnapshotResponse]:
    """Blobs that joined are the file; each tells how many bytes follow it, the last holds the SHA-256.

    The file exists without a name beside the state database for as long as it is sent, so nothing is left
    over however this ends. Raises EtcdError when it cannot be made.
    """
    await machine.flush()
    with await asyncio.to_thread(lambda: tempfile.TemporaryFile(dir=machine.path.parent)) as file:
        await _convert(machine.path, file)
        digest = hashlib.sha256()
        remaining = await asyncio.to_thread(file.seek, 0, os.SEEK_END)
        await asyncio.to_thread(file.seek, 0)
        while part := await asyncio.to_thread(_read, file, digest):
            for start in range(0, len(part), BLOB_BYTES):
                blob = part[start : start + BLOB_BYTES]
                remaining -= len(blob)
                yield rpc_pb2.SnapshotResponse(remaining_bytes=remaining, blob=blob, version=STORAGE_VERSION)
        yield rpc_pb2.SnapshotResponse(blob=digest.digest(), version=STORAGE_VERSION)


async def _convert(state_db: Path, out: BinaryIO) -> None:
    """Run the conversion in a process of its own: the member goes on at full speed."""
    root = str(Path(store.__file__).parent.parent)
    search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "store.snapshots.export", str(state_db)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=out,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search},
    )
    try:
        _, errors = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself in this very moment
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        log.error("making a snapshot failed:\n%s", errors.decode(errors="replace"))
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise EtcdError(Code.UNKNOWN, f"kvorum: the snapshot could not be made: {reason}")


def _read(file: BinaryIO, digest: hashlib._Hash) -> bytes:
    part = file.read(READ_BYTES)
    digest.update(part)
    return part
