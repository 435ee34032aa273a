"""Length-prefixed messages out of a byte stream, and the windows that say how much of it may arrive.

A peer may send a window's worth ahead of what the handler has taken. A message larger than the window could
never complete that way: for it the connection reserves its whole size from a budget first, and then lets the
window move while it is being assembled. So memory is bounded by windows and one budget, and a granted message
always finishes.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

PREFIX_BYTES: Final = 5
CODE_UNIMPLEMENTED: Final = 12
CODE_INTERNAL: Final = 13
CODE_EXHAUSTED: Final = 8


class MessageError(Exception):
    """A message that cannot be accepted; carries the gRPC status code that says so."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Budget:
    """Bytes that oversize messages of one connection may hold, granted in order of asking."""

    def __init__(self, total_bytes: int) -> None:
        self._free = total_bytes
        self._total = total_bytes
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    def reserve(self, size: int, grant: Callable[[], bool]) -> None:
        """Call ``grant`` once ``size`` bytes are free, now or later; it says whether they are still wanted."""
        self._waiting.append((min(size, self._total), grant))
        self._serve()

    def release(self, size: int) -> None:
        self._free += min(size, self._total)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, grant = self._waiting.popleft()
            if grant():
                self._free -= size


class Deframer:
    """The messages of one stream. ``acknowledge(n)`` is called as ``n`` more bytes may be sent by the peer."""

    __slots__ = (
        "_acknowledge",
        "_budget",
        "_buffer",
        "_closed",
        "_early",
        "_encoding",
        "_max",
        "_outstanding",
        "_ready",
        "_reserved",
        "_wanted",
        "_window",
    )

    def __init__(
        self,
        max_bytes: int,
        window_bytes: int,
        encoding: bytes,
        budget: Budget,
        acknowledge: Callable[[int], None],
    ) -> None:
        self._max = max_bytes
        self._window = window_bytes
        self._encoding = encoding
        self._budget = budget
        self._acknowledge = acknowledge
        self._buffer = bytearray()
        self._ready: deque[tuple[bytes, int, int]] = deque()  # message, bytes to acknowledge, bytes reserved
        self._outstanding = 0
        self._early = 0
        self._reserved = 0
        self._wanted = 0
        self._closed = False

    @property
    def partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._buffer)

    def __len__(self) -> int:
        return len(self._ready)

    def feed(self, data: bytes) -> None:
        """Take what arrived.

        Raises:
            MessageError: too large, or in an encoding that is not accepted.
        """
        self._outstanding += len(data)
        if not self._buffer and len(data) >= PREFIX_BYTES:
            size = int.from_bytes(data[1:5], "big")
            if len(data) == PREFIX_BYTES + size and size <= self._max:  # most often: one message, whole
                self._ready.append((self._decode(data[0], data[5:]), len(data), 0))
                return
        self._buffer += data
        if self._reserved:
            self._let_in(len(data))
        self._cut()

    def take(self) -> bytes | None:
        """The next message, whose bytes may now be replaced by others; None when there is none."""
        if not self._ready:
            return None
        message, cost, reserved = self._ready.popleft()
        self._let(cost)
        if reserved:
            self._budget.release(reserved)
        return message

    def close(self) -> None:
        """Give everything back; what arrives later is acknowledged by the caller."""
        if self._closed:
            return
        self._closed = True
        reserved = self._reserved + sum(entry[2] for entry in self._ready)
        self._ready.clear()
        self._buffer.clear()
        self._reserved = 0
        self._let(self._outstanding)
        if reserved:
            self._budget.release(reserved)

    def _let(self, count: int) -> None:
        if count:
            self._outstanding -= count
            self._acknowledge(count)

    def _let_in(self, count: int) -> None:
        self._early += count
        self._let(count)

    def _cut(self) -> None:
        buffer, position, missing = self._buffer, 0, 0
        while len(buffer) - position >= PREFIX_BYTES:
            size = int.from_bytes(buffer[position + 1 : position + 5], "big")
            if size > self._max:
                raise MessageError(
                    CODE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {self._max})"
                )
            end = position + PREFIX_BYTES + size
            if len(buffer) < end:
                missing = size
                break
            with memoryview(buffer) as view:
                body = bytes(view[position + PREFIX_BYTES : end])
            # What was let in beyond this message belongs to the next one.
            settled = min(self._early, PREFIX_BYTES + size)
            self._early -= settled
            self._ready.append(
                (self._decode(buffer[position], body), PREFIX_BYTES + size - settled, self._reserved)
            )
            self._reserved = self._wanted = 0
            position = end
        if position:
            del buffer[:position]
        if missing:
            self._want(missing)

    def _want(self, size: int) -> None:
        """Reserve room for a message that the window alone would never let through."""
        if size + PREFIX_BYTES <= self._window or self._wanted:
            return
        self._wanted = size
        self._budget.reserve(size, self._grant)

    def _grant(self) -> bool:
        if self._closed:
            return False
        self._reserved = self._wanted
        self._let_in(len(self._buffer) - self._early)
        return True

    def _decode(self, flag: int, body: bytes) -> bytes:
        if not flag:
            return body
        if flag != 1:
            raise MessageError(CODE_INTERNAL, f"grpc: received unexpected payload format {flag}")
        if self._encoding in (b"", b"identity"):
            raise MessageError(CODE_INTERNAL, "grpc: compressed flag set with identity or empty encoding")
        if self._encoding != b"gzip":
            name = self._encoding.decode("latin-1")
            raise MessageError(
                CODE_UNIMPLEMENTED, f'grpc: Decompressor is not installed for grpc-encoding "{name}"'
            )
        return _gunzip(body, self._max)


def _gunzip(body: bytes, max_bytes: int) -> bytes:
    """Decompress, and stop at the limit however much more there would be."""
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        message = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise MessageError(CODE_INTERNAL, f"grpc: failed to decompress the received message: {error}") from None
    if len(message) > max_bytes:
        raise MessageError(
            CODE_EXHAUSTED, f"grpc: received message after decompression larger than max {max_bytes}"
        )
    if not inflater.eof:
        raise MessageError(CODE_INTERNAL, "grpc: failed to decompress the received message: unexpected EOF")
    return message


def frame(message: bytes) -> bytes:
    """An uncompressed message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message
