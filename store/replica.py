"""The port between the etcd services and the replicated log under them.

The services know this protocol only, so they run the same over a member of a cluster, over a single
in-process replica in a test, and in a simulation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from store.etcdpb import internal_pb2


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member as MemberList shows it. A member that has never started has no name and no client URLs."""

    id: int
    name: str
    peer_urls: Sequence[str]
    client_urls: Sequence[str]
    is_learner: bool = False


class Replica(Protocol):
    """What a member offers the services above it. Times are seconds; errors are store.errors.EtcdError."""

    @property
    def cluster_id(self) -> int: ...
    @property
    def member_id(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def leader_id(self) -> int:
        """0 while no leader is known."""
        ...

    @property
    def is_learner(self) -> bool: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def applied_index(self) -> int: ...
    @property
    def election_timeout_s(self) -> float: ...

    def members(self) -> Sequence[MemberInfo]:
        """The members as this replica knows them, sorted by id."""
        ...

    async def propose(self, request: internal_pb2.InternalRequest, *, as_leader: bool = False) -> Any:
        """Replicate one command and return what applying it returned here (or raise what it raised).

        With ``as_leader`` only in the term that this member leads now, and never by way of another leader.
        The header's ID is set here. Raises EtcdError: request too large, too many requests, timed out (the
        outcome is then unknown: it may still be applied), stopped.
        """
        ...

    def submit(self, payload: bytes, done: Callable[[Any], None]) -> Callable[[], None] | None:
        """As ``propose``, for an encoded InternalRequest, and without a task that waits.

        ``done`` gets what applying it returned here, an EtcdError included, within the turn that applied it; it
        must not raise. Returns what tells that nobody waits any more; None when nothing is proposed, as where this
        member is behind in applying: ``propose`` says why.
        """
        ...

    async def read_barrier(self) -> None:
        """Return once this replica has applied everything that was committed anywhere when it was called."""
        ...

    async def call_leader(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask the leader's handler ``method`` (lease renewal and the like); local when this is the leader.

        Raises EtcdError 'etcdserver: no leader' when none is known for the whole time-out.
        """
        ...

    def handle(self, method: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Register what other members may ask this one as leader."""
        ...

    def on_leader_change(self, callback: Callable[[int, bool], None]) -> None:
        """Call back with (leader id or 0, is it this member) at each change. The callback must not block."""
        ...
