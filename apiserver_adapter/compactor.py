"""Keeping the store's history short: every round compacts to the revision of the round before (contract §2.3)."""

from __future__ import annotations

import asyncio
import logging

from watchcache.backend import Backend, BackendError, Compacted, Compare, Get, Put

log = logging.getLogger(__name__)

INTERVAL_S = 300.0
KEY = b"compact_rev_key"


class Compactor:
    """Several servers over one store share a logical clock, the version of a key: who moves it, compacts.

    Args:
        interval_s: seconds between rounds; 0 never compacts.

    """

    def __init__(self, backend: Backend, interval_s: float = INTERVAL_S) -> None:
        self._backend = backend
        self._interval_s = interval_s
        self._time = 0
        self._revision = 0

    async def run(self) -> None:
        """A round per interval, for ever; a failed one is left to the next."""
        if self._interval_s <= 0:
            return
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.round()
            except BackendError as exc:
                log.info("compaction put off: %s", exc.text)

    async def round(self) -> int:
        """One round; returns the revision compacted to, 0 if it was not this server's turn.

        Raises:
            BackendError: the store refused or is lost.
        """
        target, own_time = self._revision, Compare(KEY, "version", self._time)
        result = await self._backend.txn([own_time], [Put(KEY, b"%d" % target)], [Get(KEY)])
        self._revision = result.revision
        if not result.succeeded:
            found = result.responses[0]
            self._time = found[0].version if found else 0
            return 0
        self._time += 1
        if target == 0:
            return 0
        try:
            await self._backend.compact(target)
        except Compacted:
            return 0  # somebody, a test perhaps, has compacted further
        return target
