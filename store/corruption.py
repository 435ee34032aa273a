"""Do all members hold the same data? HashKV of one revision is compared, at a start and then periodically.

A member whose data differs is named by a CORRUPT alarm, after which the cluster takes no more writes
(contract §9); one that finds it out about itself at its start does not serve at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgpack

from raft.errors import FatalError, RaftError
from store.clock import Clock
from store.errors import COMPACTED, FUTURE_REVISION, EtcdError
from store.etcdpb import internal_pb2, rpc_pb2
from store.replica import MemberInfo

log = logging.getLogger(__name__)

HASH_KV: Final = "hash-kv"
ANSWER_TIMEOUT_S: Final = 5.0
"""For catching up, and for hashing; a member that takes longer is not compared this time."""
TRIES: Final = 3
"""Compactions may come between the hashes of two members; then they are taken again."""


class CorruptError(FatalError):
    """This member's data differs from that of the others."""


class Hasher(Protocol):
    """The machine."""

    @property
    def revision(self) -> int: ...
    async def hash_kv(self, revision: int) -> tuple[int, int, int]: ...


class Peers(Protocol):
    """How other members are asked (raft.transport)."""

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes: ...


class Members(Protocol):
    """The replica."""

    @property
    def leader_id(self) -> int: ...
    @property
    def member_id(self) -> int: ...
    def members(self) -> Sequence[MemberInfo]: ...
    async def read_barrier(self) -> None: ...
    async def propose(self, request: internal_pb2.InternalRequest) -> object: ...
    def handle(self, method: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None: ...


@dataclass(frozen=True, slots=True)
class Hash:
    """CRC of the history up to ``revision``, of which everything to ``compact_revision`` is compacted."""

    crc: int
    compact_revision: int
    revision: int


class CorruptionCheck:
    """One per member; it answers the checks of the others from the start."""

    def __init__(self, machine: Hasher, replica: Members, peers: Peers, clock: Clock) -> None:
        self._machine = machine
        self._replica = replica
        self._peers = peers
        self._clock = clock
        replica.handle(HASH_KV, self._answer)

    async def _answer(self, payload: bytes) -> bytes:
        """The hash another member asks for, after catching up with it if need be."""
        revision = int(msgpack.unpackb(payload))
        if revision > self._machine.revision:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await self._replica.read_barrier()
            except TimeoutError:
                raise FUTURE_REVISION.again() from None
        return bytes(msgpack.packb(await self._machine.hash_kv(revision)))

    # -- periodically -------------------------------------------------------------------------------------

    async def run(self, interval_s: float) -> None:
        """Check every ``interval_s`` while this member leads, until cancelled."""
        while True:
            await self._clock.sleep(interval_s)
            if self._replica.leader_id == self._replica.member_id:
                try:
                    await self.check()
                except EtcdError as error:
                    log.warning("members are not compared this time: %s", error)

    async def check(self) -> None:
        """Compare all members with this one, and raise the alarm for those that differ."""
        await self._replica.read_barrier()
        for member_id in await self._differing():
            log.error("member %x: its data differs from that of the others", member_id)
            alarm = rpc_pb2.AlarmRequest(
                action=rpc_pb2.AlarmRequest.ACTIVATE, memberID=member_id, alarm=rpc_pb2.CORRUPT
            )
            await self._replica.propose(internal_pb2.InternalRequest(alarm=alarm))

    async def _differing(self) -> list[int]:
        hashes = await self._comparable()
        own = hashes[self._replica.member_id]
        counts: dict[int, int] = {}
        for crc in hashes.values():
            counts[crc] = counts.get(crc, 0) + 1
        majority = len(self._replica.members()) // 2 + 1
        right = next((crc for crc, count in counts.items() if count >= majority), own)
        return sorted(member_id for member_id, crc in hashes.items() if crc != right)

    # -- at a start ---------------------------------------------------------------------------------------

    async def check_start(self) -> None:
        """Compare this member with those that answer. Raises CorruptError when more of them differ than agree.

        Members that have not come as far, or have compacted further, say nothing.
        """
        hashes = await self._comparable()
        own = hashes.pop(self._replica.member_id)
        differing = sorted(member_id for member_id, crc in hashes.items() if crc != own)
        if len(differing) > len(hashes) - len(differing):
            names = ", ".join(f"{member_id:x}" for member_id in differing)
            raise CorruptError(
                f"the data of this member ({self._replica.member_id:x}) differs from that of {names}: "
                "if they are sound, remove this member, delete its data directory and add it again"
            )

    # -- asking -------------------------------------------------------------------------------------------

    async def _comparable(self) -> dict[int, int]:
        """CRCs by member, this one's included, of those that have the same revision and compaction."""
        own_id = self._replica.member_id
        own = Hash(0, 0, 0)
        found: dict[int, Hash] = {}
        for _ in range(TRIES):
            own = Hash(*await self._machine.hash_kv(0))
            others = [member.id for member in self._replica.members() if member.id != own_id]
            answers = await asyncio.gather(*(self._ask(member_id, own.revision) for member_id in others))
            found = {
                member_id: answer for member_id, answer in zip(others, answers, strict=True) if answer is not None
            }
            if all(answer.compact_revision == own.compact_revision for answer in found.values()):
                break
        same = {m: a.crc for m, a in found.items() if a.compact_revision == own.compact_revision}
        return same | {own_id: own.crc}

    async def _ask(self, member_id: int, revision: int) -> Hash | None:
        try:
            answer = await self._peers.call(member_id, HASH_KV, msgpack.packb(revision), 2 * ANSWER_TIMEOUT_S)
            return Hash(*msgpack.unpackb(answer))
        except RaftError as error:
            if not any(expected.message in str(error) for expected in (COMPACTED, FUTURE_REVISION)):
                log.info("member %x is not compared: %s", member_id, error)
            return None
