"""Situations that a batch of runs must reach sometimes: what is never reached is never tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chaos.sim.plan import RATES

EXPECTED: Final[Sequence[str]] = (
    *(f"fault: {kind}" for kind in RATES),
    "leader elected",
    "leader elected by a transfer",
    "campaign refused: unapplied conf change",
    "vote request ignored under a lease",
    "uncommitted tail of a log replaced",
    "acknowledgement of a write ignored: lower term",
    "acknowledgement of a write ignored: not unstable",
    "change refused: an earlier change may not be applied yet",
    "joint configuration entered",
    "joint configuration left by another leader",
    "membership changed",
    "membership change refused",
    "removed member switched off",
    "snapshot installed",
    "log truncated below a checkpoint",
    "log replayed after a restart",
    "state taken back by a power loss",
    "unsynced log write lost",
    "torn end of a log cut off",
    "exit: SyncFailed",
    "exit: LogError",
    "disk wiped",
    "outcome unknown to a client",
    "lease expired",
    "progress notification",
    "watch ended by a compaction",
    "watch moved to another member",
)


def never_reached(reached: Mapping[str, int]) -> list[str]:
    """Those of ``EXPECTED`` that did not occur."""
    return [name for name in EXPECTED if not reached.get(name)]
