"""Watching clients: they follow a range, move to another member now and then, and go on where they were."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from chaos import wire
from chaos.check import history as h
from store.etcdpb import rpc_pb2
from store.watch.stream import WatchStream

if TYPE_CHECKING:
    from chaos.sim.member import Process
    from chaos.sim.world import World


class Watcher:
    """``run`` until cancelled. Every stream becomes one recorded watch."""

    def __init__(self, world: World, rng: random.Random, client: int) -> None:
        self._world = world
        self._rng = rng
        self._client = client
        self._next = 0
        """Revision to go on from; 0: from now."""
        self._over = asyncio.Event()
        self._responses: list[h.WatchResponse] = []
        self.seen = 0
        """The newest revision that this watcher knows to be complete."""

    async def run(self) -> None:
        world, rng = self._world, self._rng
        while True:
            await asyncio.sleep(rng.random() * 0.3)
            process = world.network.processes.get(world.any_member(rng))
            if process is not None:
                await self._follow(process)

    def _request(self, process: Process) -> h.WatchRequest:
        rng, world = self._rng, self._world
        start = self._next
        if rng.random() < 0.15:
            start = rng.randint(1, max(1, self.seen + 2))
        elif rng.random() < 0.15:
            start = world.compacted_to
        key, end = (b"k", b"l") if rng.random() < 0.7 else (b"k%d" % rng.randrange(world.options.keys), b"")
        return h.WatchRequest(
            world.watch_number(),
            self._client,
            world.ticks(),
            key,
            end,
            start,
            prev_kv=rng.random() < 0.5,
            no_delete=rng.random() < 0.1,
            endpoint=f"m{process.member.id}",
        )

    async def _follow(self, process: Process) -> None:
        """One stream: until it breaks, is ended by the member, or has been followed long enough."""
        world, request = self._world, self._request(process)
        self._responses = []
        self._over.clear()
        task = process.serve(lambda: self._serve(process, request), "serve-watch")
        task.add_done_callback(lambda _: self._over.set())
        patience_s = self._rng.expovariate(1 / 1.5)
        try:
            async with asyncio.timeout(patience_s):
                await self._over.wait()
        except TimeoutError:
            world.trace.situation("watch moved to another member")
        finally:
            task.cancel()
            world.record_watch(h.Watch(request, tuple(self._responses)))

    async def _serve(self, process: Process, request: h.WatchRequest) -> None:
        """On the member: what the Watch service does for one stream."""
        stream = WatchStream(
            process.machine.hub,
            lambda: process.machine.revision,
            process.api.header_field,
            queue_responses=self._world.options.watch_queue,
        )
        filters = [rpc_pb2.WatchCreateRequest.NODELETE] if request.no_delete else []
        create = rpc_pb2.WatchCreateRequest(
            key=request.key,
            range_end=request.end,
            start_revision=request.start_revision,
            prev_kv=request.prev_kv,
            filters=filters,
        )
        ask_progress = rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest())
        try:
            await stream.handle(rpc_pb2.WatchRequest(create_request=create))
            while True:
                for part in await stream.next():
                    if not process.port.alive:
                        return
                    self._take(part)
                    if self._over.is_set():
                        return
                roll = self._rng.random()
                if roll < 0.3:
                    await stream.handle(ask_progress)
                elif roll < 0.4:
                    await asyncio.sleep(self._rng.random() * 0.5)  # a slow reader
        finally:
            stream.close()

    def _take(self, part: bytes) -> None:
        response = wire.watch_response(rpc_pb2.WatchResponse.FromString(part), self._world.ticks())
        self._responses.append(response)
        if response.canceled:
            self._world.trace.situation("watch ended by a compaction")
            self._next = response.compact_revision
            self._over.set()
        elif response.events:
            self.seen = max(self.seen, response.events[-1].revision)
            self._next = self.seen + 1
        elif response.is_progress:
            self._world.trace.situation("progress notification")
            self.seen = max(self.seen, response.revision)
            self._next = self.seen + 1
