"""The parts of the protobuf wire format that are written by hand, so that ready-made bytes can be joined.

A key-value pair is encoded once, when it is written. Everything that carries it later (range answers, events
of any number of watchers) joins those bytes: encoding 150k objects again takes ten times as long.
"""

from __future__ import annotations

from store.etcdpb import kv_pb2

KV_TAG = b"\x12"
"""Field 2, length-delimited: RangeResponse.kvs, Event.kv and PutResponse.prev_kv all use this number."""


class Encoded:
    """A response that is already in wire format. Offers what a serializer calls on a message."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:
        return self.data


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as 64-bit two's complement."""
    if 0 <= value < 0x80:
        return bytes((value,))
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
    return frame_pair(
        kv_pb2.KeyValue(
            key=key, create_revision=create, mod_revision=mod, version=version, value=value, lease=lease
        ).SerializeToString()
    )


def frame_pair(body: bytes) -> bytes:
    """An encoded KeyValue with tag and length in front."""
    size = len(body)
    if size < 0x80:
        return b"\x12%c%b" % (size, body)
    if size < 0x4000:
        return b"\x12%c%c%b" % (size & 0x7F | 0x80, size >> 7, body)
    return KV_TAG + varint(size) + body


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
