"""Sending the raw requests to a cluster, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from store.etcdpb import rpc_pb2, rpc_pb2_grpc
from tests.fuzz.requests import RawCall, Requests

IN_FLIGHT: Final = 16
CALL_TIMEOUT_S: Final = 0.5
"""Locks and elections may well be waited for in vain."""
ANSWERS_READ: Final = 3
"""Of a stream of answers: a watch has no end of its own."""
HEALTHY_S: Final = 20.0


class Campaign:
    """``run`` sends; the codes that came back are counted in ``codes``."""

    def __init__(self, endpoints: Sequence[str], seed: int) -> None:
        self._requests = Requests(seed)
        self._channels = [grpc.aio.insecure_channel(endpoint) for endpoint in endpoints]
        self.codes: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        """The texts behind UNKNOWN: etcd has some errors of that code, and a fault of ours shows there."""
        self.sent = 0

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    async def run(self, count: int, progress: Callable[[int], None] = lambda _sent: None) -> None:
        async def worker(channel: grpc.aio.Channel) -> None:
            while self.sent < count:
                self.sent += 1
                if self.sent % 500 == 0:
                    progress(self.sent)
                    await self._disarm()
                self.codes[await self._call(channel, self._requests.next())] += 1

        async with asyncio.TaskGroup() as tasks:
            for number in range(IN_FLIGHT):
                tasks.create_task(worker(self._channels[number % len(self._channels)]))

    async def _disarm(self) -> None:
        """Alarms that a request has raised: with them most of what follows would be refused early."""
        stub: Any = rpc_pb2_grpc.MaintenanceStub(self._channels[0])  # type: ignore[no-untyped-call]
        alarms = await stub.Alarm(rpc_pb2.AlarmRequest(), timeout=HEALTHY_S, wait_for_ready=True)
        for alarm in alarms.alarms:
            request = rpc_pb2.AlarmRequest(
                action=rpc_pb2.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm
            )
            await stub.Alarm(request, timeout=HEALTHY_S, wait_for_ready=True)

    async def digests(self) -> list[tuple[int, int]]:
        """(revision, HashKV at it) of every member, once each answers a linearizable read and takes a write."""
        await self._disarm()
        newest = 0
        for channel in self._channels:
            kv: Any = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
            put = await kv.Put(
                rpc_pb2.PutRequest(key=b"after", value=b"all"), timeout=HEALTHY_S, wait_for_ready=True
            )
            newest = max(newest, put.header.revision)
        found = []
        for channel in self._channels:
            kv = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
            read = await kv.Range(rpc_pb2.RangeRequest(key=b"after"), timeout=HEALTHY_S, wait_for_ready=True)
            stub: Any = rpc_pb2_grpc.MaintenanceStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.HashKV(
                rpc_pb2.HashKVRequest(revision=newest), timeout=HEALTHY_S, wait_for_ready=True
            )
            found.append((read.kvs[0].mod_revision, answer.hash))
        return found

    async def _call(self, channel: grpc.aio.Channel, raw: RawCall) -> str:
        """The name of the status that a call ended with."""
        kind = ("stream" if raw.client_streams else "unary") + ("_stream" if raw.server_streams else "_unary")
        method = getattr(channel, kind)(raw.path)
        request = iter([raw.payload]) if raw.client_streams else raw.payload
        call = method(request, timeout=CALL_TIMEOUT_S)
        try:
            if not raw.server_streams:
                await call
            else:
                for _ in range(ANSWERS_READ):
                    if await call.read() is grpc.aio.EOF:  # type: ignore[attr-defined]
                        break
                call.cancel()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNKNOWN:
                self.unknown[error.details() or ""] += 1
            return error.code().name
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            return "CANCELLED"
        return "OK"
