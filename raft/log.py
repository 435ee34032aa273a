"""The durable log as the driver needs it, independent of what keeps it.

Two things implement it: SQLite (raft.sqlite_log) and a simulated disk that forgets unsynced writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from raft.core.types import Entry, HardState, Message, Snapshot


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


class DurableLog(Protocol):
    """Every write returns once it would survive a power loss. A failed write is fatal and never retried."""

    async def load(self) -> LoadedLog: ...

    async def write(self, writes: Sequence[LogWrite]) -> None:
        """Make all of ``writes`` durable with one sync, atomically: after a crash all of them are there or none.

        Raises SyncFailed; the log must not be used after that.
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
