"""Linearizable reads that wait for a quorum to confirm the leader (thesis §6.4, contract §12).

A round is named by a *position*, a counter of this node, and never by the caller's own context: a context that
is used twice could take the acknowledgements of an older round for its own and return a stale index.
"""

from __future__ import annotations

import struct
from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from .types import Message

_POSITION: Final = struct.Struct("<Q")


class ReadOnlyOption(Enum):
    """How a leader proves that it still leads before it answers a read."""

    SAFE = "safe"
    """Ask a quorum."""
    LEASE_BASED = "lease_based"
    """Trust the clock: unsafe when clocks drift, a process pauses or ticks are starved."""


class PendingRead(NamedTuple):
    """A request and the commit index that was in force when it came."""

    request: Message
    commit: int


class ReadQueue:
    """Unconfirmed reads, oldest first. Confirming a position confirms every read up to it."""

    __slots__ = ("_acks", "_position", "_reads")

    def __init__(self) -> None:
        self._reads: deque[PendingRead] = deque()
        self._position = 0
        self._acks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, request: Message, commit: int, self_id: int) -> bytes:
        """Queue a read; returns the context of the heartbeats that ask for its confirmation."""
        self._position += 1
        self._reads.append(PendingRead(request, commit))
        self._acks[self_id] = self._position
        return _POSITION.pack(self._position)

    def heartbeat_context(self) -> bytes:
        """The newest unconfirmed position; a lost round heals with the next heartbeat. Empty without reads."""
        return _POSITION.pack(self._position) if self._reads else b""

    def acknowledge(self, node: int, context: bytes) -> dict[int, int]:
        """``node`` echoed a heartbeat context; returns the highest position each node has echoed."""
        if len(context) == _POSITION.size:
            (position,) = _POSITION.unpack(context)
            if self._acks.get(node, 0) < position <= self._position:
                self._acks[node] = position
        return self._acks

    def confirm(self, position: int) -> list[PendingRead]:
        """Take out every read up to ``position``, oldest first."""
        confirmed: list[PendingRead] = []
        oldest = self._position - len(self._reads) + 1
        for _ in range(oldest, min(position, self._position) + 1):
            confirmed.append(self._reads.popleft())  # noqa: PERF401  # popping while counting is the point
        return confirmed

    def clear(self) -> None:
        """Forget all of it: the role or the term changed, and callers ask again. Positions never restart."""
        self._reads.clear()
        self._acks.clear()
