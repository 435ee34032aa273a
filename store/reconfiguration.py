"""Changing the members of a running cluster: add, promote, update, remove, and moving the leadership.

Only the leader knows how far each member has come and whom it reaches, so every change is checked and
proposed there; other members pass it on. What follows from an accepted change (store.cluster) is the same on
every member.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

import msgpack

from raft.driver import RaftDriver
from raft.errors import ConfChangeRefused, NotLeader, OutcomeUnknown, RaftError
from raft.transport import TcpTransport
from store.application import MachineApplication
from store.cluster import (
    ChangeKind,
    ClusterError,
    LastVoter,
    MemberChange,
    MemberExists,
    MemberNotFound,
    MemberNotLearner,
    PeerUrlExists,
    TooManyLearners,
    decode_member,
    encode_member,
    member_id,
)
from store.config import ConfigError, check_urls
from store.errors import (
    BAD_LEADER_TRANSFEREE,
    LEARNER_NOT_READY,
    MEMBER_BAD_URLS,
    MEMBER_EXISTS,
    MEMBER_NOT_ENOUGH_STARTED,
    MEMBER_NOT_FOUND,
    MEMBER_NOT_LEARNER,
    NOT_LEADER,
    PEER_URL_EXISTS,
    TIMEOUT,
    TIMEOUT_CONNECTION_LOST,
    TIMEOUT_LEADER_TRANSFER,
    TOO_MANY_LEARNERS,
    UNHEALTHY,
    Code,
    EtcdError,
)
from store.raft_replica import RaftReplica, etcd_error
from store.replica import MemberInfo

log = logging.getLogger(__name__)

METHOD: Final = "reconfigure"
CONTACT_S: Final = 5.0
"""A member counts as in contact once its connection has stood this long (etcd's health interval)."""
READY_SHARE: Final = 0.9
"""A learner may be promoted once it has this share of the leader's log (etcd)."""

_REFUSALS: Final[dict[type[ClusterError], EtcdError]] = {
    MemberExists: MEMBER_EXISTS,
    PeerUrlExists: PEER_URL_EXISTS,
    MemberNotFound: MEMBER_NOT_FOUND,
    MemberNotLearner: MEMBER_NOT_LEARNER,
    TooManyLearners: TOO_MANY_LEARNERS,
    LastVoter: MEMBER_NOT_ENOUGH_STARTED,
}


class Reconfiguration:
    """The membership operations of one member. Errors are EtcdError with etcd's codes and texts."""

    def __init__(
        self,
        replica: RaftReplica,
        driver: RaftDriver,
        transport: TcpTransport,
        application: MachineApplication,
        token: str,
    ) -> None:
        self._replica = replica
        self._driver = driver
        self._transport = transport
        self._application = application
        self._token = token
        replica.handle(METHOD, self._serve)

    async def add(self, peer_urls: Sequence[str], is_learner: bool) -> tuple[MemberInfo, list[MemberInfo]]:
        """A new member, learner or voter; returns it and all members."""
        try:
            check_urls("peerURLs", peer_urls)
        except ConfigError:
            raise MEMBER_BAD_URLS.again() from None
        if not peer_urls:
            raise MEMBER_BAD_URLS.again()
        if not self._replica.leader_id:
            raise UNHEALTHY.again()
        urls = tuple(sorted(peer_urls))
        change = MemberChange(ChangeKind.ADD, member_id(urls, self._token, int(time.time())), urls, is_learner)
        members = await self._change(change)
        return next(member for member in members if member.id == change.id), members

    async def remove(self, number: int) -> list[MemberInfo]:
        return await self._change(MemberChange(ChangeKind.REMOVE, number))

    async def update(self, number: int, peer_urls: Sequence[str]) -> list[MemberInfo]:
        """New peer URLs for a member. etcd does not validate them, and neither is an empty list refused."""
        return await self._change(MemberChange(ChangeKind.UPDATE, number, tuple(peer_urls)))

    async def promote(self, number: int) -> list[MemberInfo]:
        """A learner that has caught up becomes a voter."""
        return await self._change(MemberChange(ChangeKind.PROMOTE, number))

    async def _change(self, change: MemberChange) -> list[MemberInfo]:
        timeout_s = self._driver.config.request_timeout_s
        try:
            answer = await self._replica.call_leader(METHOD, change.encode(), timeout_s)
        except EtcdError as error:
            # A leader that is removed may be gone before its answer is here; what it did is here all the same.
            membership = self._application.membership
            if error == TIMEOUT_CONNECTION_LOST and membership.shows(change):
                return membership.members()
            raise
        return [decode_member(member) for member in msgpack.unpackb(answer)]

    async def _serve(self, payload: bytes) -> bytes:
        """The leader's part."""
        change = MemberChange.decode(payload)
        refusal = self._application.membership.check(change)
        if refusal is not None:
            raise _REFUSALS[type(refusal)].again()
        self._check_quorum(change)
        try:
            members = await self._driver.propose_conf_change(change.conf_change())
        except ClusterError as error:
            raise _REFUSALS[type(error)].again() from None
        except NotLeader:
            raise NOT_LEADER.again() from None
        except ConfChangeRefused as error:
            raise EtcdError(Code.UNAVAILABLE, f"kvorum: no membership change now, {error}; try again") from None
        except OutcomeUnknown:
            raise TIMEOUT.again() from None
        except RaftError as error:
            raise etcd_error(error) from error
        return bytes(msgpack.packb([encode_member(member) for member in members]))

    def _check_quorum(self, change: MemberChange) -> None:
        """etcd's strict reconfiguration check: the cluster must stay able to commit after the change."""
        members = self._application.membership.members()
        voters = [member for member in members if not member.is_learner]
        started = [member for member in voters if member.name]
        if change.kind is ChangeKind.PROMOTE:
            self._check_caught_up(change.id)
        if change.kind is ChangeKind.PROMOTE or (change.kind is ChangeKind.ADD and not change.is_learner):
            needed = (len(voters) + 1) // 2 + 1
            if len(started) < needed and not (len(voters) == 1 and len(started) == 1):
                raise MEMBER_NOT_ENOUGH_STARTED.again()
            if len(self._in_contact(voters)) < min(needed, len(voters)):
                raise UNHEALTHY.again()
        if change.kind is ChangeKind.REMOVE and any(member.id == change.id for member in voters):
            left = [member for member in voters if member.id != change.id]
            needed = len(left) // 2 + 1
            if len([member for member in left if member.name]) < needed:
                raise MEMBER_NOT_ENOUGH_STARTED.again()
            active = {member.id for member in voters if self._reached(member.id, 0.0)}
            if change.id in active and len(active) - 1 < needed:
                raise UNHEALTHY.again()

    def _in_contact(self, voters: Sequence[MemberInfo]) -> list[int]:
        return [member.id for member in voters if self._reached(member.id, CONTACT_S)]

    def _reached(self, number: int, for_s: float) -> bool:
        if number == self._replica.member_id:
            return True
        since = self._transport.active_since(number)
        return since is not None and asyncio.get_running_loop().time() - since >= for_s

    def _check_caught_up(self, number: int) -> None:
        status = self._driver.status()
        progress = status.progress.get(number)
        if progress is None or progress.match < READY_SHARE * status.last_index:
            raise LEARNER_NOT_READY.again()

    async def move_leader(self, target: int) -> None:
        """Hand the leadership to ``target``; returns once it leads."""
        driver = self._driver
        if not driver.is_leader:
            raise NOT_LEADER.again()
        member = self._application.membership.get(target)
        if member is None or member.is_learner:
            raise BAD_LEADER_TRANSFEREE.again()
        if target == self._replica.member_id:
            return
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def note(leader: int, leading: bool) -> None:
            if leader == target and not moved.done():
                moved.set_result(None)

        driver.on_leader_change(note)
        try:
            driver.transfer_leader(target)
            async with asyncio.timeout(driver.config.request_timeout_s):
                await moved
        except TimeoutError:
            raise TIMEOUT_LEADER_TRANSFER.again() from None
        finally:
            driver.forget_leader_callback(note)
