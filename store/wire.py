"""The parts of the protobuf wire format that are written by hand, so that ready-made bytes can be joined.

A key-value pair is encoded once, when it is written. Everything that carries it later (range answers, events
of any number of watchers) joins those bytes: encoding 150k objects again takes ten times as long.
"""

from __future__ import annotations

from typing import Final

KV_TAG = b"\x12"
"""Field 2, length-delimited: RangeResponse.kvs, Event.kv and PutResponse.prev_kv all use this number."""


class Encoded:
    """A response that is already in wire format. Offers what a serializer calls on a message."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:
        return self.data


_LAST: Final = [bytes((bits,)) for bits in range(0x80)]
_MORE: Final = [bytes((bits | 0x80,)) for bits in range(0x80)]
"""Groups of seven bits as bytes, with and without others after them."""


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as 64-bit two's complement."""
    if 0 <= value < 0x1000_0000:  # every write encodes several, mostly small
        if value < 0x80:
            return _LAST[value]
        if value < 0x4000:
            return _MORE[value & 0x7F] + _LAST[value >> 7]
        if value < 0x20_0000:
            return _MORE[value & 0x7F] + _MORE[value >> 7 & 0x7F] + _LAST[value >> 14]
        return _MORE[value & 0x7F] + _MORE[value >> 7 & 0x7F] + _MORE[value >> 14 & 0x7F] + _LAST[value >> 21]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_varint(tag: bytes, value: int) -> bytes:
    """A varint field, left out when zero, as proto3 does."""
    return tag + varint(value) if value else b""


def field_bytes(tag: bytes, body: bytes) -> bytes:
    """A length-delimited field, present also when empty (a message, or an element of a repeated field)."""
    return tag + varint(len(body)) + body


def encode_pair(key: bytes, value: bytes, create: int, mod: int, version: int, lease: int) -> bytes:
    """A KeyValue as field 2 of an enclosing message: tag, length, message."""
    head = b"".join((
        b"\x0a" + varint(len(key)) if key else b"",
        key,
        b"\x10" + varint(create) if create else b"",
        b"\x18" + varint(mod) if mod else b"",
        b"\x20" + varint(version) if version else b"",
        b"\x2a" + varint(len(value)) if value else b"",
    ))  # fmt: skip
    tail = b"\x30" + varint(lease) if lease else b""
    return b"".join((KV_TAG, varint(len(head) + len(value) + len(tail)), head, value, tail))


def frame_pair(body: bytes) -> bytes:
    """An encoded KeyValue with tag and length in front."""
    return KV_TAG + varint(len(body)) + body


def unframe(framed: bytes) -> bytes:
    """The message inside a length-delimited field with a one-byte tag."""
    start = 2
    while framed[start - 1] & 0x80:
        start += 1
    return framed[start:]


def key_of(pair: bytes) -> bytes:
    """The key of an encoded KeyValue, without decoding the rest; empty for an empty message."""
    if not pair or pair[0] != 0x0A:
        return b""
    size = pair[1]
    if size < 0x80:
        return pair[2 : 2 + size]
    size, shift, at = size & 0x7F, 7, 2
    while True:
        byte = pair[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return pair[at : at + size]
        shift += 7
