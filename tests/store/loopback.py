"""A replica without raft: one process that leads itself and applies what is proposed at once.

``python -m tests.store.loopback --port N`` serves the etcd v3 API on it, fresh and empty.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from store.api.context import MAX_APPLY_LAG, ApiContext, ApiOptions, Reconfigure
from store.api.front import make_server
from store.errors import NO_LEADER, REQUEST_TOO_LARGE, TIMEOUT, EtcdError
from store.etcdpb import internal_pb2
from store.lessor import Lessor
from store.machine import Machine, MachineOptions
from store.replica import MemberInfo

CLUSTER_ID = 0xCDF818194E3A8C32
MEMBER_ID = 0x8E9E05C52164694D


class LoopbackReplica:
    """store.replica.Replica over one machine. ``leader_id`` may be set to 0 to play a lost leader."""

    cluster_id = CLUSTER_ID
    member_id = MEMBER_ID
    is_learner = False
    election_timeout_s = 1.0
    term = 2

    def __init__(self, machine: Machine, max_request_bytes: int = 1572864, client_url: str = "") -> None:
        self._machine = machine
        self._max_request_bytes = max_request_bytes
        self._client_url = client_url
        self._next_id = 1 << 56
        self._handlers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}
        self._callbacks: list[Callable[[int, bool], None]] = []
        self.leader_id = MEMBER_ID

    @property
    def commit_index(self) -> int:
        return self._machine.applied_index

    @property
    def applied_index(self) -> int:
        return self._machine.applied_index

    def members(self) -> Sequence[MemberInfo]:
        return [MemberInfo(MEMBER_ID, "default", ["http://localhost:2380"], [self._client_url])]

    async def propose(self, request: internal_pb2.InternalRequest, *, as_leader: bool = False) -> Any:
        self._next_id += 1
        request.header.ID = self._next_id
        if request.ByteSize() > self._max_request_bytes:
            raise REQUEST_TOO_LARGE.again()
        if self.leader_id == 0:
            raise TIMEOUT.again()
        if as_leader and self.leader_id != MEMBER_ID:
            raise NO_LEADER.again()
        await self._machine.backpressure()
        result = self._machine.apply(self._machine.applied_index + 1, self.term, request)
        if isinstance(result, EtcdError):
            raise result
        return result

    def submit(self, payload: bytes, done: Callable[[Any], None]) -> Callable[[], None] | None:
        if len(payload) > self._max_request_bytes or self.leader_id == 0 or not self._machine.has_room:
            return None
        if self.commit_index > self.applied_index + MAX_APPLY_LAG:
            return None
        request = internal_pb2.InternalRequest.FromString(payload)

        def apply() -> None:
            done(self._machine.apply(self._machine.applied_index + 1, self.term, request))

        return asyncio.get_running_loop().call_soon(apply).cancel  # as with a driver: never before this returns

    async def read_barrier(self) -> None:
        if self.leader_id == 0:
            raise TIMEOUT.again()

    async def call_leader(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        if self.leader_id == 0:
            raise NO_LEADER.again()
        return await self._handlers[method](payload)

    def handle(self, method: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._handlers[method] = handler

    def on_leader_change(self, callback: Callable[[int, bool], None]) -> None:
        self._callbacks.append(callback)

    def set_leader(self, leader_id: int) -> None:
        self.leader_id = leader_id
        for callback in self._callbacks:
            callback(leader_id, leader_id == MEMBER_ID)


class Node:
    """Machine, lessor and services of one loopback member."""

    def __init__(self, machine: Machine, api: ApiContext, replica: LoopbackReplica, lessor: Lessor) -> None:
        self.machine = machine
        self.api = api
        self.replica = replica
        self.lessor = lessor
        self.port = 0


@contextlib.asynccontextmanager
async def serving(
    path: Path,
    port: int = 0,
    options: ApiOptions | None = None,
    machine_options: MachineOptions | None = None,
    clock: Callable[[], float] = time.monotonic,
    reconfigure: Callable[[LoopbackReplica], Reconfigure] | None = None,
) -> AsyncIterator[Node]:
    """A running loopback member on 127.0.0.1. Shuts down in the order a member should: server, tasks, machine."""
    options = options or ApiOptions()
    machine = await Machine.open(path, machine_options)
    replica = LoopbackReplica(machine, options.max_request_bytes, f"http://127.0.0.1:{port}")
    lessor = Lessor(machine, replica, clock)
    changes = None if reconfigure is None else reconfigure(replica)
    node = Node(machine, ApiContext(replica, machine, lessor, options, changes), replica, lessor)
    replica.on_leader_change(lessor.leader_changed)
    server = make_server(node.api)
    tasks = asyncio.gather(machine.run(), lessor.run())
    try:
        replica.set_leader(MEMBER_ID)
        node.port = await server.listen("127.0.0.1", port)
        yield node
    finally:
        await server.stop()
        tasks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks
        await machine.close()


async def main(port: int, quota_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kvorum-loopback") as folder:
        async with serving(Path(folder) / "state.db", port, ApiOptions(quota_bytes=quota_bytes)):
            await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--quota-backend-bytes", type=int, default=0)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(arguments.port, arguments.quota_backend_bytes))
