"""The replicated part of leases: which exist, and which keys hang on them (contract §7).

There is no clock here. When a lease ends is decided by the leader (store.lessor) and arrives as a revoke.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from store.etcdpb import lease_pb2

MAX_TTL_S: Final = 9_000_000_000
"""The longest lease, in seconds."""


@dataclass(slots=True)
class Lease:
    """``remaining_s`` is the last checkpointed remainder; 0 where there is none."""

    id: int
    ttl_s: int
    remaining_s: int = 0
    keys: set[bytes] = field(default_factory=set)

    def encode(self) -> bytes:
        """As it is stored (contract §14)."""
        return lease_pb2.Lease(ID=self.id, TTL=self.ttl_s, RemainingTTL=self.remaining_s).SerializeToString()


class LeaseBook:
    """All leases by id."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}

    def __contains__(self, lease_id: int) -> bool:
        return lease_id in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, lease_id: int) -> Lease | None:
        return self._leases.get(lease_id)

    def all(self) -> list[Lease]:
        return list(self._leases.values())

    def add(self, lease: Lease) -> None:
        self._leases[lease.id] = lease

    def remove(self, lease_id: int) -> None:
        del self._leases[lease_id]

    def move(self, key: bytes, old: int, new: int) -> None:
        """Detach ``key`` from lease ``old`` and attach it to ``new`` (0: none).

        An unknown lease is passed over: a restored database may hold keys whose lease is gone (contract §7).
        """
        if old and (lease := self._leases.get(old)) is not None:
            lease.keys.discard(key)
        if new and (lease := self._leases.get(new)) is not None:
            lease.keys.add(key)
