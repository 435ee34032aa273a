"""Leases for objects with a time to live, shared by many objects (contract §4, TTL)."""

from __future__ import annotations

import time
from collections.abc import Callable

from watchcache.backend import Backend

REUSE_S_MAX = 60
REUSE_FRACTION = 0.05
OBJECTS_PER_LEASE_MAX = 1000


def lease_ttl_s(ttl_s: int) -> int:
    """The lease outlives its objects a little, so that later ones can share it: +5 %, at most +60 s."""
    return ttl_s + min(REUSE_S_MAX, int(ttl_s * REUSE_FRACTION))


class LeaseManager:
    """Hands out lease ids. ``clock`` is in seconds, monotonic."""

    def __init__(
        self,
        backend: Backend,
        *,
        objects_max: int = OBJECTS_PER_LEASE_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._objects_max = objects_max
        self._clock = clock
        self._lease_id = 0
        self._expires_at = 0.0
        self._objects = 0

    async def lease_for(self, ttl_s: int) -> int:
        """A lease that lives at least ``ttl_s`` seconds more. Raises BackendError."""
        now = self._clock()
        left_s = self._expires_at - now
        if self._lease_id and ttl_s <= left_s <= lease_ttl_s(ttl_s) and self._objects < self._objects_max:
            self._objects += 1
            return self._lease_id
        granted_s = lease_ttl_s(ttl_s)
        self._lease_id = await self._backend.lease_grant(granted_s)
        self._expires_at = now + granted_s
        self._objects = 1
        return self._lease_id

    def forget(self) -> None:
        """The store does not know the lease any more: revoked, or another store came in its place."""
        self._lease_id = 0
