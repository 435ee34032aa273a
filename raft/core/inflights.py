"""The window of appends a follower has been sent and has not acknowledged (contract §9.5)."""

from __future__ import annotations

from collections import deque

from .errors import InvariantViolation


class Inflights:
    """A FIFO of (last index of the message, payload bytes), bounded by messages and by bytes.

    The byte bound may be overshot by one message, because a message is sent whenever the window is not full.
    """

    __slots__ = ("_window", "bytes", "max_bytes", "max_messages")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        """``max_bytes`` 0 means no byte bound."""
        self._window: deque[tuple[int, int]] = deque()
        self.bytes = 0
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._window)

    @property
    def full(self) -> bool:
        return len(self._window) >= self.max_messages or (0 < self.max_bytes <= self.bytes)

    def add(self, last_index: int, payload: int) -> None:
        """Remember a message; adding to a full window is a bug of the sender."""
        if self.full:
            raise InvariantViolation("cannot add to a full inflight window")
        self._window.append((last_index, payload))
        self.bytes += payload

    def free_to(self, index: int) -> None:
        """Forget every message whose last index is at most ``index``."""
        window = self._window
        while window and window[0][0] <= index:
            self.bytes -= window.popleft()[1]

    def reset(self) -> None:
        self._window.clear()
        self.bytes = 0
