"""Headers of gRPC over HTTP/2: metadata, timeouts, status messages (gRPC's PROTOCOL-HTTP2 document)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Final

Headers = Sequence[tuple[bytes, bytes]]
Metadata = tuple[tuple[str, str | bytes], ...]

_RESERVED: Final = frozenset(
    (
        b":method",
        b":scheme",
        b":path",
        b":authority",
        b"te",
        b"content-type",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"grpc-message-type",
        b"host",
    )
)
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS: Final = 8
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}


class MalformedHeader(ValueError):
    """A header of gRPC that does not follow its grammar."""


def decode_metadata(headers: Headers) -> Metadata:
    """The custom metadata among ``headers``: text, or bytes where the name ends with ``-bin``.

    Raises:
        MalformedHeader: a binary value is no base64.
    """
    found: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name in _RESERVED:
            continue
        if name.endswith(b"-bin"):
            found.extend((name.decode("latin-1"), _unbase64(part)) for part in value.split(b","))
        else:
            found.append((name.decode("latin-1"), value.decode("latin-1")))
    return tuple(found)


def _unbase64(value: bytes) -> bytes:
    text = value.strip()
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise MalformedHeader("malformed binary metadata") from None


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> list[tuple[bytes, bytes]]:
    """Metadata as header fields; binary values in base64 without padding."""
    fields = []
    for key, value in metadata or ():
        name = key.lower().encode("ascii")
        if name.endswith(b"-bin"):
            raw = value if isinstance(value, bytes) else value.encode()
            fields.append((name, base64.b64encode(raw).rstrip(b"=")))
        else:
            fields.append((name, value if isinstance(value, bytes) else value.encode("latin-1")))
    return fields


def decode_timeout(value: bytes) -> float:
    """Seconds of a ``grpc-timeout``: at most eight digits and a unit.

    Raises:
        MalformedHeader: anything else.
    """
    digits, unit = value[:-1], value[-1:]
    if not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS or unit not in _UNITS_S:
        raise MalformedHeader(f"malformed grpc-timeout: {value.decode('latin-1')!r}")
    return int(digits) * _UNITS_S[unit]


def encode_message(text: str) -> bytes:
    """A status message: printable ASCII stays, every other byte of the UTF-8 form is ``%XX``."""
    raw = text.encode("utf-8", "replace")
    if _PLAIN.issuperset(raw):
        return raw
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in raw)
