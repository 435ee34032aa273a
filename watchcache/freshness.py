"""Waiting until a cache has caught up with a revision (contract §1.4)."""

from __future__ import annotations

import asyncio

from .errors import TooLargeResourceVersion

WAIT_LIMIT_S = 3.0
PROGRESS_INTERVAL_S = 0.1


class Freshness:
    """Tracks the version a cache has reached and wakes those who wait for one."""

    def __init__(self) -> None:
        self.version = 0
        self._waiters: dict[asyncio.Future[None], int] = {}
        self.wanted = asyncio.Event()

    def advance(self, version: int) -> None:
        """The cache has reached ``version``."""
        self.version = version
        for waiter, wanted in list(self._waiters.items()):
            if wanted <= version and not waiter.done():
                waiter.set_result(None)

    async def wait(self, version: int, limit_s: float = WAIT_LIMIT_S) -> None:
        """Until the cache has reached ``version``.

        Raises:
            TooLargeResourceVersion: not within ``limit_s`` seconds.
        """
        if version <= self.version:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = version
        self.wanted.set()
        try:
            async with asyncio.timeout(limit_s):
                await waiter
        except TimeoutError as exc:
            raise TooLargeResourceVersion(version, self.version) from exc
        finally:
            del self._waiters[waiter]
            if not self._waiters:
                self.wanted.clear()


def progress_is_safe(version: str) -> bool:
    """Whether a progress notification of this etcd version never overtakes events: >= 3.4.31, >= 3.5.13."""
    try:
        major, minor, patch = (int(part) for part in version.split("-")[0].split("+")[0].split(".")[:3])
    except ValueError:
        return False
    if (major, minor) == (3, 4):
        return patch >= 31
    return (major, minor, patch) >= (3, 5, 13)
