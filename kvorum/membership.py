"""Replacing a member of a local cluster through etcd's cluster API, as an operator would."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio

from kvorum.layout import Cluster, Member, UserError
from kvorum.processes import Child, signal_quietly, start_member, wait_gone
from store.etcdpb import rpc_pb2, rpc_pb2_grpc

STEP_TIMEOUT_S: Final = 40.0
"""For one step of a change: the store refuses one until a quorum has been in contact for five seconds, and
promotes a learner only when it has caught up."""
_CALL_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 0.3


async def replace_member(cluster: Cluster, member: Member) -> Child:
    """Remove ``member``, delete its data, and let it join again as a new learner that becomes a voter.

    Raises UserError when a step does not succeed in time.
    """
    others = [each for each in cluster.members if each.name != member.name]
    await _until(others, lambda stub: _removed(stub, member), f"the removal of {member.name}")
    signal_quietly(member.process, signal.SIGKILL)
    await wait_gone([member.process], STEP_TIMEOUT_S)
    shutil.rmtree(Path(member.data_dir), ignore_errors=True)
    await _until(others, lambda stub: _added(stub, member), f"the addition of {member.name}")
    _, child = await start_member(cluster, member, "existing")
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await child.ready()
    except TimeoutError:
        raise UserError(f"{member.name} joins, but serves nothing: see {child.log_file}") from None
    await _until(others, lambda stub: _promoted(stub, member), f"the promotion of {member.name}")
    return child


async def _until(members: list[Member], step: Callable[[Any], Awaitable[bool]], what: str) -> None:
    """Try a step at one member after the other until it is seen to be done. Each says what is so before it asks,
    so a lost answer does no harm."""
    last = ""
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while True:
                for member in members:
                    async with grpc.aio.insecure_channel(urlsplit(member.client_url).netloc) as channel:
                        stub = rpc_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
                        try:
                            if await step(stub):
                                return
                        except grpc.aio.AioRpcError as error:
                            last = error.details() or error.code().name
                await asyncio.sleep(_AGAIN_S)  # members are other processes: there is only asking again
    except TimeoutError:
        raise UserError(f"{what} did not succeed within {STEP_TIMEOUT_S:.0f} s: {last}") from None


async def _listed(stub: Any, member: Member) -> rpc_pb2.Member | None:
    answer = await stub.MemberList(rpc_pb2.MemberListRequest(linearizable=True), timeout=_CALL_TIMEOUT_S)
    return next((each for each in answer.members if member.peer_url in each.peerURLs), None)


async def _removed(stub: Any, member: Member) -> bool:
    listed = await _listed(stub, member)
    if listed is not None:
        await stub.MemberRemove(rpc_pb2.MemberRemoveRequest(ID=listed.ID), timeout=_CALL_TIMEOUT_S)
    return True


async def _added(stub: Any, member: Member) -> bool:
    if await _listed(stub, member) is None:
        request = rpc_pb2.MemberAddRequest(peerURLs=[member.peer_url], isLearner=True)
        await stub.MemberAdd(request, timeout=_CALL_TIMEOUT_S)
    return True


async def _promoted(stub: Any, member: Member) -> bool:
    listed = await _listed(stub, member)
    if listed is not None and listed.isLearner:
        await stub.MemberPromote(rpc_pb2.MemberPromoteRequest(ID=listed.ID), timeout=_CALL_TIMEOUT_S)
    return True
