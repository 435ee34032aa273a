"""The layout of a bbolt file: pages, elements, the two meta pages (contract §14). All integers little endian."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

MAGIC: Final = 0xED0CDAED
VERSION: Final = 2

BRANCH: Final = 1
LEAF: Final = 2
META: Final = 4
FREELIST: Final = 16

BUCKET_ELEMENT: Final = 1
"""Flag of a leaf element whose value is a bucket."""

NO_FREELIST: Final = 2**64 - 1
"""Freelist page of a file that stores none: what no tree reaches is free."""
LONG_FREELIST: Final = 0xFFFF
"""Page count that says: the first id of the freelist is the real count."""

PAGE_HEADER: Final = struct.Struct("<QHHI")
"""id, flags, count of elements, count of overflow pages that follow"""
BRANCH_ELEMENT: Final = struct.Struct("<IIQ")
"""position of the key from here, key size, child page"""
BUCKET_HEADER: Final = struct.Struct("<QQ")
"""root page (0: inline, a page follows), sequence"""
ELEMENT_BYTES: Final = 16
"""A leaf element is four u32: flags, position of key and value from here, key size, value size."""

_META: Final = struct.Struct("<IIIIQQQQQQ")
_META_CHECKED_BYTES: Final = _META.size - 8

PAGE_SIZE_MIN: Final = 512
PAGE_SIZE_MAX: Final = 1 << 16
PAGE_SIZE_DEFAULT: Final = 4096
KEY_BYTES_MAX: Final = 32768
VALUE_BYTES_MAX: Final = 2**31 - 2


class BoltError(Exception):
    """The file is no sound bbolt file; the message says where."""


@dataclass(frozen=True, slots=True)
class Meta:
    """One of the two roots of a file; the sound one with the larger ``transaction`` counts."""

    page_size: int
    root: int
    freelist: int
    high_water: int
    """Number of pages in use: every page id is below it."""
    transaction: int

    def encode(self) -> bytes:
        """The meta without its page header, checksum included."""
        fields = (
            MAGIC,
            VERSION,
            self.page_size,
            0,
            self.root,
            0,
            self.freelist,
            self.high_water,
            self.transaction,
        )
        checked = _META.pack(*fields, 0)[:_META_CHECKED_BYTES]
        return checked + fnv1a_64(checked).to_bytes(8, "little")

    @classmethod
    def decode(cls, data: bytes) -> Meta | str:
        """The meta in the bytes after a page header, or what is wrong with them."""
        if len(data) < _META.size:
            return "it is cut short"
        fields = _META.unpack_from(data)
        magic, version, page_size, _, root, _, freelist, high_water, transaction, checksum = fields
        if magic != MAGIC:
            return "it has no bbolt magic number"
        if version != VERSION:
            return f"format version {version} is not {VERSION}"
        if checksum != fnv1a_64(data[:_META_CHECKED_BYTES]):
            return "its checksum is wrong"
        if not PAGE_SIZE_MIN <= page_size <= PAGE_SIZE_MAX or page_size & (page_size - 1):
            return f"{page_size} is no page size"
        return cls(page_size, root, freelist, high_water, transaction)


META_BYTES: Final = PAGE_HEADER.size + _META.size


def fnv1a_64(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
