"""The durable log as the driver needs it, independent of what keeps it.

Two things implement it: SQLite (raft.sqlite_log) and a simulated disk that forgets unsynced writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from raft.core.errors import InvariantViolation
from raft.core.types import APPEND_THREAD, Entry, HardState, Message, MessageType, Snapshot


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose log this is. A log opened by another member, or for another cluster, is refused."""

    cluster_id: int
    member_id: int


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """What a restart finds: ``snapshot`` marks the position just before the first entry."""

    hard_state: HardState
    snapshot: Snapshot
    entries: Sequence[Entry]


class LogWrite(NamedTuple):
    """One write, in the order the core emitted it.

    ``entries`` replace everything stored at and above their first index. ``snapshot`` (metadata only) replaces
    the whole log. ``hard_state`` None means unchanged.
    """

    entries: Sequence[Entry] = ()
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None

    @classmethod
    def of(cls, message: Message) -> LogWrite:
        """What the core's message to the append thread asks for."""
        hard_state = None
        if message.term or message.vote or message.commit:
            hard_state = HardState(message.term, message.vote, message.commit)
        snapshot = message.snapshot
        return cls(message.entries, hard_state, snapshot._replace(data=b"") if snapshot else None)

    def must_sync(self, stored: HardState) -> bool:
        """A commit index alone need not be synced: it is found again from the leader (contract §16)."""
        if self.entries or self.snapshot:
            return True
        new = self.hard_state
        return new is not None and (stored.term, stored.vote) != (new.term, new.vote)


def held_until_durable(messages: Sequence[Message]) -> Sequence[Message]:
    """The core's messages, with the requests for votes among what waits for the log's write of that term.

    Only a leader may send while it writes (contract §16). A candidate that asked before its term is durable could
    win it by the votes of others, lose it in a crash, and win it once more without the entries it wrote as its
    leader: two entries of one index and term. The write of everything before comes first too, so what a new leader
    counts as its own is on its disk.
    """
    votes = tuple([message for message in messages if message.type is MessageType.VOTE])
    if not votes:
        return messages
    rest = [message for message in messages if message.type is not MessageType.VOTE]
    for position, message in enumerate(rest):
        if message.to == APPEND_THREAD:
            rest[position] = message._replace(responses=(*votes, *message.responses))
            return rest
    raise InvariantViolation("votes are asked for in a term that is not written with the request")


Write: TypeAlias = asyncio.Future[None] | Coroutine[Any, Any, None]
"""A write of the log: begun already, or to be begun by who awaits it."""


class DurableLog(Protocol):
    """Every write returns once it would survive a power loss. A failed write is fatal and never retried."""

    async def load(self) -> LoadedLog: ...

    def write(self, writes: Sequence[LogWrite]) -> Write:
        """Make all of ``writes`` durable with one sync, atomically: after a crash all of them are there or none.

        Raises SyncFailed when it is awaited; the log must not be used after that.
        """
        ...

    async def compact(self, snapshot: Snapshot) -> None:
        """Forget the entries up to snapshot.index, which the state machine has durably applied.

        Does nothing when the log begins later already: a snapshot that was received overtook this.
        """
        ...

    async def close(self) -> None: ...

    def statistics(self) -> Mapping[str, float]:
        """Counts and seconds, for metrics."""
        ...
