"""Coming back after the store was lost: back-off for every cache, and one probe that ends it early."""

from __future__ import annotations

import asyncio
import logging
import random

from .backend import Backend, BackendError

log = logging.getLogger(__name__)

_DELAY_MIN_S = 0.8
_DELAY_MAX_S = 30.0
_FLOOR_S = 0.1
_PROBE_INTERVAL_S = 0.25
_PROBE_TIMEOUT_S = 2.0
_PROBE_KEY = b"/registry/health"


class Backoff:
    """0.8 s to 30 s, doubling, with full jitter on top."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._delay_s = _DELAY_MIN_S

    def next_s(self) -> float:
        delay = self._delay_s * (1 + self._rng.random())
        self._delay_s = min(self._delay_s * 2, _DELAY_MAX_S)
        return delay

    def reset(self) -> None:
        self._delay_s = _DELAY_MIN_S


class StoreRecovery:
    """Probes a lost store on behalf of all caches, so that each may back off and still return promptly.

    :meth:`run` is a task of the owner; without it :meth:`wait` only backs off.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._wanted = asyncio.Event()
        self._back = asyncio.Event()
        self._is_lost = False
        self.newest = 0
        """The highest revision that any cache has seen of the store."""
        self.rewinds = 0
        """How often the store has been found behind that: every cache from before is then of another history."""

    def seen(self, revision: int) -> None:
        self.newest = max(self.newest, revision)

    def rewound(self, revision: int) -> None:
        """The store was found at ``revision``, below what had been seen of it."""
        self.rewinds += 1
        self.newest = revision

    def lost(self, text: str) -> None:
        """Somebody could not reach the store. One warning for all of them, until it answers again."""
        log.log(logging.DEBUG if self._is_lost else logging.WARNING, "the store does not answer: %s", text)
        self._is_lost = True

    def found(self) -> None:
        """The store has answered."""
        if self._is_lost:
            log.info("the store answers again")
        self._is_lost = False

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            if await self._probe():
                self.found()
                self._wanted.clear()
                self._back.set()
            else:
                await asyncio.sleep(_PROBE_INTERVAL_S)

    async def _probe(self) -> bool:
        try:
            await self._backend.range(_PROBE_KEY, timeout_s=_PROBE_TIMEOUT_S)
        except BackendError:
            return False
        return True

    async def wait(self, delay_s: float) -> None:
        """Until a linearizable read succeeds, or ``delay_s`` has passed; never less than a short floor."""
        await asyncio.sleep(_FLOOR_S)
        self._back.clear()
        self._wanted.set()
        try:
            async with asyncio.timeout(max(0.0, delay_s - _FLOOR_S)):
                await self._back.wait()
        except TimeoutError:
            return
