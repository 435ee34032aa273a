"""The newest writes of the log in a plain file: what is not in the database yet, and durable all the same.

A record is appended by one write and one sync within a file that has its final length from the start: nothing
is looked up, no page of a tree is changed, no length is committed to the file system's journal. The database
takes the records over from time to time, many in one transaction, which also writes down the salt of the
records that follow; those begin at the start of the file again. A record counts only with the salt of the
moment, a checksum over salt, position, length and content, and all records before it. So after a crash:

* before the transaction was durable, the old salt is in force and all old records are still there;
* after it, the old records have a salt that is no longer in force.

The first two pages hold the salt in force and the next one, which is there before the database has it: a file
that was exchanged or wiped is no file without records. Each record begins a page and is padded to whole ones,
so that no write touches a sector that holds another record. A record is written only when the one before is
durable. One that is torn is therefore the last: if a valid record follows it, the file is damaged, and is
refused instead of being cut short. Damage to the last one alone cannot be told from a torn write.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Final

from raft.sqlite import sync_directory

log = logging.getLogger(__name__)

SIZE: Final = 4 << 20
"""Part of the format: a shorter file is refused."""
PAGE: Final = 4096
_SALT_BYTES: Final = 8
_FIRST_RECORD: Final = 2 * PAGE

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_HEADER: Final = struct.Struct(">8sII")
"""Salt, length of the content, checksum."""
_CHECKED: Final = struct.Struct(">8sQI")
"""What the checksum begins with: salt, position, length."""


def _sync(descriptor: int) -> None:
    """The data, and the length where it has changed. macOS has only the sync of everything."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


class TailFile:
    """The file, open. Everything may block: it belongs to the database's thread. Raises OSError."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._salt = self._next_salt = b""
        self._slot = 0
        """The page of the salt in force."""
        self._position = _FIRST_RECORD

    @classmethod
    def create(cls, path: Path) -> TailFile | None:
        """A new file, durably of its full length, in the place of one that may be there.

        None on a disk without room for it and for as much again of what will be written beside it: what this
        takes of a small disk, the database would lack.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            disk = os.fstatvfs(descriptor)
            free = disk.f_bavail * disk.f_frsize
            if free < 2 * SIZE:
                raise OSError(errno.ENOSPC, f"the disk has {free} bytes left")
            # By the page: what is written at once is kept in memory as one large piece, and each later write of a
            # page then goes through all of it (pwrite and fdatasync together 70 us of CPU instead of 93 us).
            for position in range(0, SIZE, PAGE):
                _write_all(descriptor, bytes(PAGE), position)
            os.fsync(descriptor)
            sync_directory(path.parent)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                path.unlink()
                log.warning("%s is not used, every write goes to the database at once: %s", path, error)
                return None
            raise
        return cls(path, descriptor)

    def announce(self) -> bytes:
        """A salt for the next records, durably in the file; the one in force, and its records, stay."""
        self._next_salt = os.urandom(_SALT_BYTES)
        self._write(self._next_salt, (1 - self._slot) * PAGE, b"")
        return self._next_salt

    def begin(self) -> None:
        """What was announced is durably in force: the next record is the first with it."""
        self._salt, self._slot = self._next_salt, 1 - self._slot
        self._position = _FIRST_RECORD

    def append(self, content: bytes) -> bool:
        """Make a record durable; False where it does not fit any more, and nothing was written."""
        size = _record_bytes(content)
        if self._position + size > SIZE:
            return False
        self._write(self._salt, self._position, content)
        self._position += size
        return True

    def _write(self, salt: bytes, position: int, content: bytes) -> None:
        record = _HEADER.pack(salt, len(content), _checksum(salt, position, content)) + content
        # Whole pages: for a part of one, the system would have to read it first when it is not in memory.
        _write_all(self._descriptor, record.ljust(_record_bytes(content), b"\0"), position)
        _sync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read(path: Path, salt: bytes) -> list[bytes]:
    """The contents of the records with ``salt``, in order. Raises ValueError for a damaged file or none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path.name} beside it is missing, which holds its newest writes") from None
    if len(data) < SIZE:
        raise ValueError(f"{path.name} beside it, which holds its newest writes, was cut to {len(data)} bytes")
    if all(_content(data, slot, salt) is None for slot in range(0, _FIRST_RECORD, PAGE)):
        raise ValueError(f"{path.name} beside it, which held its newest writes, is that of another log or damaged")
    contents: list[bytes] = []
    position = _FIRST_RECORD
    while (content := _content(data, position, salt)) is not None:
        contents.append(content)
        position += _record_bytes(content)
    for later in range(position + PAGE, len(data), PAGE):
        if _content(data, later, salt) is not None:
            raise ValueError(f"{path.name}: the record at byte {position} is damaged, and others follow it")
    return contents


def _record_bytes(content: bytes) -> int:
    """The length of its record, in whole pages."""
    return -(-(_HEADER.size + len(content)) // PAGE) * PAGE


def _content(data: bytes, position: int, salt: bytes) -> bytes | None:
    """Of the record at ``position``; None where there is none with ``salt`` that is whole."""
    begin = position + _HEADER.size
    if begin > len(data):
        return None
    found, length, checksum = _HEADER.unpack_from(data, position)
    if found != salt or begin + length > len(data):
        return None
    content = data[begin : begin + length]
    return content if _checksum(salt, position, content) == checksum else None


def _checksum(salt: bytes, position: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(_CHECKED.pack(salt, position, len(content))))


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    """A write that the system cuts short has met the end of the room, which the next one says."""
    while data:
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written
