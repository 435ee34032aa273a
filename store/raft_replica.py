"""The Replica port over a Raft driver: proposals, read barriers, leadership, and calls to the leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from raft.core.types import NO_NODE
from raft.driver import RaftDriver
from raft.errors import LeaderChanged, NoLeader, OutcomeUnknown, Overloaded, RaftError, Refused, Stopped
from raft.log import Identity
from raft.transport import PeerCallError, TcpTransport
from store.application import MachineApplication
from store.config import MemberConfig
from store.errors import (
    DEADLINE_EXCEEDED,
    LEADER_CHANGED,
    NO_LEADER,
    REQUEST_TOO_LARGE,
    STOPPED,
    TIMEOUT,
    TIMEOUT_CONNECTION_LOST,
    TIMEOUT_LEADER_FAILURE,
    TOO_MANY_REQUESTS,
    Code,
    EtcdError,
)
from store.etcdpb import internal_pb2
from store.replica import MemberInfo

log = logging.getLogger(__name__)

HEADER_BYTES: Final = 14
"""What etcd's request header adds to a proposal. Ours travels outside the message, and the limit of
--max-request-bytes is a promise to clients, so it is counted all the same."""


class CallRefused(RaftError):
    """A definite answer of another member that the caller should see: code and text of an EtcdError."""


class RaftReplica:
    """A store.replica.Replica. One per member, made before the services and after the driver."""

    def __init__(
        self,
        identity: Identity,
        config: MemberConfig,
        driver: RaftDriver,
        transport: TcpTransport,
        application: MachineApplication,
    ) -> None:
        self._identity = identity
        self._driver = driver
        self._transport = transport
        self._application = application
        self._max_request_bytes = config.max_request_bytes
        self._handlers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}
        self._leader_known = asyncio.Event()
        self.election_timeout_s = driver.config.election_s
        driver.on_leader_change(self._note_leader)

    @property
    def cluster_id(self) -> int:
        return self._identity.cluster_id

    @property
    def member_id(self) -> int:
        return self._identity.member_id

    @property
    def term(self) -> int:
        return self._driver.term

    @property
    def leader_id(self) -> int:
        return self._driver.leader_id

    @property
    def is_learner(self) -> bool:
        return self._application.is_learner(self.member_id)

    @property
    def commit_index(self) -> int:
        return self._driver.commit_index

    @property
    def applied_index(self) -> int:
        return self._application.applied_index

    def members(self) -> Sequence[MemberInfo]:
        return self._application.membership.members()

    def on_leader_change(self, callback: Callable[[int, bool], None]) -> None:
        self._driver.on_leader_change(callback)

    def _note_leader(self, leader: int, leading: bool) -> None:
        if leader == NO_NODE:
            self._leader_known.clear()
        else:
            self._leader_known.set()

    async def propose(self, request: internal_pb2.InternalRequest, *, as_leader: bool = False) -> Any:
        payload = request.SerializeToString()
        if len(payload) + HEADER_BYTES > self._max_request_bytes:
            raise REQUEST_TOO_LARGE.again()
        started = asyncio.get_running_loop().time()
        try:
            return await self._driver.propose(payload, as_leader=as_leader)
        except RaftError as error:
            raise self._explained(error, started) from error

    def submit(self, payload: bytes, done: Callable[[Any], None]) -> Callable[[], None] | None:
        if len(payload) + HEADER_BYTES > self._max_request_bytes:
            return None
        settle = partial(self._settle, done, asyncio.get_running_loop().time())
        try:
            return partial(self._driver.withdraw, self._driver.submit(payload, settle))
        except RaftError:
            return None

    def _settle(self, done: Callable[[Any], None], started: float, outcome: Any) -> None:
        done(self._explained(outcome, started) if isinstance(outcome, RaftError) else outcome)

    def _explained(self, error: RaftError, started: float) -> EtcdError:
        return self._time_out(started) if isinstance(error, OutcomeUnknown) else etcd_error(error)

    def _time_out(self, started: float) -> EtcdError:
        """Which of etcd's three time-out texts fits: the leader failed, or was out of reach, or neither."""
        driver = self._driver
        if driver.leader_since - 2 * self.election_timeout_s <= started <= driver.leader_since:
            return TIMEOUT_LEADER_FAILURE.again()
        leader = driver.leader_id
        if leader not in (NO_NODE, self.member_id):
            active = self._transport.active_since(leader)
            if active is None or active >= started:
                return TIMEOUT_CONNECTION_LOST.again()
        return TIMEOUT.again()

    async def read_barrier(self) -> None:
        try:
            await self._driver.read_barrier()
        except RaftError as error:
            raise etcd_error(error) from error

    def handle(self, method: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._handlers[method] = handler

        async def serve(payload: bytes) -> bytes:
            try:
                return await handler(payload)
            except EtcdError as error:
                raise CallRefused(f"{int(error.code)} {error.message}") from error

        self._transport.handle(method, serve)

    async def call_leader(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._leader_known.wait()
        except TimeoutError:
            raise NO_LEADER.again() from None
        leader = self._driver.leader_id
        try:
            if leader == self.member_id:
                async with asyncio.timeout_at(deadline):
                    return await self._handlers[method](payload)
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
            return await self._transport.call(leader, method, payload, left_s)
        except TimeoutError:
            raise TIMEOUT.again() from None
        except PeerCallError as error:
            if error.refused:
                raise _refusal(str(error)) from None
            raise (TIMEOUT_CONNECTION_LOST if error.sent else NO_LEADER).again() from error


def _refusal(answer: str) -> EtcdError:
    """What ``serve`` made of an EtcdError at the leader, or whatever else went wrong there."""
    code, _, text = answer.partition(" ")
    if code.isdigit() and int(code) in set(Code):
        return EtcdError(Code(int(code)), text)
    return EtcdError(Code.UNKNOWN, f"kvorum: the leader answered: {answer}")


def etcd_error(error: RaftError) -> EtcdError:
    """The status that a client sees for what the driver reports."""
    match error:
        case Overloaded():
            return TOO_MANY_REQUESTS.again()
        case LeaderChanged():
            return LEADER_CHANGED.again()
        case Stopped():
            return STOPPED.again()
        case NoLeader():
            return DEADLINE_EXCEEDED.again()
        case OutcomeUnknown():
            return TIMEOUT.again()
        case Refused():
            return EtcdError(Code.UNKNOWN, str(error))
        case _:
            return EtcdError(Code.UNKNOWN, f"kvorum: {error}")
