"""Compacting history by itself, on the leader (contract §5): by age, or by number of revisions.

Followers watch the revisions too, so that a new leader knows at once what is old.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from store.clock import Clock
from store.errors import COMPACTED, EtcdError
from store.etcdpb import internal_pb2, rpc_pb2

log = logging.getLogger(__name__)

HOUR_S: Final = 3600.0
REVISION_CHECK_S: Final = 300.0
SAMPLES_PER_INTERVAL: Final = 10


class Mode(StrEnum):
    PERIODIC = "periodic"
    REVISION = "revision"


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept: ``amount`` seconds of history, or so many revisions."""

    mode: Mode
    amount: float


class Store(Protocol):
    """What the compactors need of the machine."""

    @property
    def revision(self) -> int: ...


class Leader(Protocol):
    """What they need of the replica."""

    @property
    def leader_id(self) -> int: ...
    @property
    def member_id(self) -> int: ...
    async def propose(self, request: internal_pb2.InternalRequest) -> object: ...


class AutoCompactor:
    """``run`` until cancelled."""

    def __init__(self, retention: Retention, store: Store, replica: Leader, clock: Clock) -> None:
        self._retention = retention
        self._store = store
        self._replica = replica
        self._clock = clock
        self._last = 0

    async def run(self) -> None:
        if self._retention.mode is Mode.PERIODIC:
            await self._periodic(self._retention.amount)
        else:
            await self._by_revision(int(self._retention.amount))

    async def _periodic(self, period_s: float) -> None:
        """First after one period, then every period or hour, to the revision of one period ago."""
        interval_s = min(period_s, HOUR_S)
        sample_s = interval_s / SAMPLES_PER_INTERVAL
        samples = deque[int](maxlen=round(period_s / sample_s))
        due = self._clock.now() + period_s
        while True:
            samples.append(self._store.revision)
            await self._clock.sleep(sample_s)
            # A leader that has just been elected must not compact again what was compacted a moment ago.
            if self._clock.now() >= due and await self._compact(samples[0]):
                due = self._clock.now() + interval_s

    async def _by_revision(self, keep: int) -> None:
        while True:
            await self._clock.sleep(REVISION_CHECK_S)
            await self._compact(self._store.revision - keep)

    async def _compact(self, revision: int) -> bool:
        """Whether history up to ``revision`` is compacted now; False also on a member that does not lead."""
        if self._replica.leader_id != self._replica.member_id or revision <= self._last:
            return False
        command = internal_pb2.InternalRequest(compaction=rpc_pb2.CompactionRequest(revision=revision))
        try:
            await self._replica.propose(command)
        except EtcdError as error:
            if error != COMPACTED:
                log.warning("automatic compaction at revision %d will be repeated: %s", revision, error)
                return False
        self._last = revision
        log.info("compacted history up to revision %d automatically", revision)
        return True
