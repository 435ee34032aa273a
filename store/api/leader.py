"""Metadata ``hasleader``: calls that would rather fail than wait where there is no leader (contract §6, §11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from store.errors import NO_LEADER
from store.replica import Replica

LOST_AFTER_ELECTION_TIMEOUTS: Final = 3


def requires_leader(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    return any(key == "hasleader" and value in ("true", b"true") for key, value in metadata or ())


class LeaderWatch:
    """Knows whether there is a leader, and tells those who wait when there has been none for long."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._changed = asyncio.Event()
        replica.on_leader_change(self._on_change)

    def _on_change(self, _leader_id: int, _is_self: bool) -> None:
        # Every waiter holds the event it saw; a fresh one is for those who come later.
        self._changed.set()
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Raise NO_LEADER when no leader is known now."""
        if self._replica.leader_id == 0:
            raise NO_LEADER.again()

    async def fail_when_lost(self) -> None:
        """Wait; raise NO_LEADER after three election time-outs without a leader."""
        patience_s = LOST_AFTER_ELECTION_TIMEOUTS * self._replica.election_timeout_s
        while True:
            changed = self._changed
            try:
                async with asyncio.timeout(patience_s if self._replica.leader_id == 0 else None):
                    await changed.wait()
            except TimeoutError:
                self.check()
