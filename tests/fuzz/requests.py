"""A seeded stream of raw requests for every method that a member serves.

Half are messages built field by field from the descriptors with values that tend to hurt (limits of the number
types, empty and large bytes, many elements, unknown enum numbers); the rest are such messages damaged, and bytes
that are no message at all.
"""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from store.etcdpb import auth_pb2, election_pb2, lock_pb2, rpc_pb2

NUMBERS: Final = (0, 1, 2, 3, 5, 127, 128, 255, 2**31 - 1, 2**31, 2**63 - 1, -1, -(2**63), -(2**31))
KEYS: Final = (b"", b"\0", b"a", b"b", b"k1", b"k2", b"\xff", b"\xff\xff", b"z" * 300, b"/registry/x")
LIMIT_DEPTH: Final = 4
_UNSIGNED: Final = {FieldDescriptor.TYPE_UINT64: 2**64, FieldDescriptor.TYPE_UINT32: 2**32}
_SKIPPED: Final = frozenset({"MoveLeader", "MemberRemove", "MemberPromote", "MemberAdd", "MemberUpdate"})
"""Asked with bytes that are no message only: a well-formed one is allowed to take the cluster apart."""

SERVICES: Final[tuple[ServiceDescriptor, ...]] = (
    *(
        rpc_pb2.DESCRIPTOR.services_by_name[name]
        for name in ("KV", "Watch", "Lease", "Cluster", "Maintenance", "Auth")
    ),
    lock_pb2.DESCRIPTOR.services_by_name["Lock"],
    election_pb2.DESCRIPTOR.services_by_name["Election"],
)
assert auth_pb2  # its messages are those of the Auth service


class RawCall(NamedTuple):
    """One call: a path, how it streams, and the bytes of its only request."""

    path: str
    client_streams: bool
    server_streams: bool
    payload: bytes


class Requests:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._methods = [(service, method) for service in SERVICES for method in service.methods]

    def next(self) -> RawCall:
        service, method = self._rng.choice(self._methods)
        payload = self._payload(method)
        return RawCall(
            f"/{service.full_name}/{method.name}", method.client_streaming, method.server_streaming, payload
        )

    def _payload(self, method: MethodDescriptor) -> bytes:
        rng = self._rng
        kind = rng.random()
        if method.name in _SKIPPED or kind < 0.15:
            return rng.randbytes(rng.choice((0, 1, 2, 7, 40, 300)))
        message: bytes = self._message(method.input_type, 0).SerializeToString()
        return message if kind < 0.6 else self._damaged(message)

    def _damaged(self, message: bytes) -> bytes:
        rng, data = self._rng, bytearray(message)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(data) + 1)
            change = rng.randrange(4)
            if change == 0 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            elif change == 1:
                data[at:at] = rng.randbytes(rng.randrange(1, 5))
            elif change == 2:
                del data[at : at + rng.randrange(1, 6)]
            else:
                data += bytes(data[at:])
        return bytes(data)

    def _message(self, descriptor: Any, depth: int) -> Any:
        message = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self._rng.random() > 0.45:
                continue
            if field.message_type is not None:
                self._fill_messages(message, field, depth)
            elif field.is_repeated:
                getattr(message, field.name).extend(self._value(field) for _ in range(self._rng.choice((0, 1, 3))))
            else:
                setattr(message, field.name, self._value(field))
        return message

    def _fill_messages(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        if depth >= LIMIT_DEPTH:
            return
        if field.is_repeated:
            count = self._rng.choice((0, 1, 2, 3, 140 if depth == 0 else 2))
            getattr(message, field.name).extend(self._message(field.message_type, depth + 1) for _ in range(count))
        else:
            getattr(message, field.name).CopyFrom(self._message(field.message_type, depth + 1))

    def _value(self, field: FieldDescriptor) -> Any:
        rng = self._rng
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice(KEYS)
        if field.type == FieldDescriptor.TYPE_STRING:
            return rng.choice(("", "a", "\0", "\u20ac" * 20, "http://", "x" * 1000))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        number = rng.choice(NUMBERS)
        if field.type in _UNSIGNED:
            return number % _UNSIGNED[field.type]
        small = field.type in (FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_INT32)
        return number if not small else max(-(2**31), min(2**31 - 1, number))
