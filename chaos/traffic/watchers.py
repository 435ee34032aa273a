"""Watches of all kinds on all members, recorded as they come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from chaos import wire
from chaos.check.history import WatchRequest
from chaos.traffic.clients import pause
from chaos.traffic.mix import Mix
from chaos.traffic.recorder import Recorder
from store.client import ClientError, EtcdClient, EtcdWatch

OPEN_TIMEOUT_S: Final = 3.0
REOPEN_PAUSE_S: Final = 0.2
LIFE_S: Final = (0.3, 8.0)
"""How long a watch lives that is not a follower's: from, to."""
PROGRESS_EVERY_S: Final = 0.7
_CLOSE_S: Final = 2.0


@dataclass
class Watcher:
    """One watch after the other at one member, of every kind; the follower's see everything, each from where the
    one before ended."""

    url: str
    mix: Mix
    recorder: Recorder
    random: Random
    asks_progress: bool
    follows: bool = False
    lost: int = 0
    """Watches that could not be opened, or whose stream broke."""
    number: int = 0
    """That of the watch in use."""
    seen: int = 0
    """Everything up to this revision was delivered (followers only)."""
    caught_up: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            # A client of its own: nothing of the last watch, not even its connection, is left.
            client = EtcdClient([self.url], dial_timeout_s=OPEN_TIMEOUT_S)
            try:
                await self._watch(client, stop)
            except ClientError:
                self.lost += 1
            finally:
                await client.aclose()
            await pause(REOPEN_PAUSE_S, stop)

    async def reached(self, revision: int) -> None:
        """Return when everything up to ``revision`` was delivered."""
        async with self.caught_up:
            await self.caught_up.wait_for(lambda: self.seen >= revision)

    async def _watch(self, client: EtcdClient, stop: asyncio.Event) -> None:
        asked = self._following() if self.follows else self._any()
        watch = await client.watch(wire.watch_create(asked), OPEN_TIMEOUT_S)
        try:
            self.recorder.watch(asked)
            self.number = asked.number
            self.recorder.response(asked.number, wire.watch_response(watch.created, self.recorder.now()))
            if self.follows and not asked.start_revision:
                self.seen = watch.created.header.revision
            if not watch.created.canceled:
                await self._read(watch, asked, stop)
        finally:
            await watch.aclose()

    async def _read(self, watch: EtcdWatch, asked: WatchRequest, stop: asyncio.Event) -> None:
        """Record responses until the watch ends, or is old enough."""
        life_s = None if self.follows else self.random.uniform(*LIFE_S)
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._ask_progress(watch, ended)) if self.asks_progress else None
            reading = group.create_task(self._record(watch, asked))
            stopping = group.create_task(stop.wait())
            await asyncio.wait((reading, stopping), timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
            ended.set()
            reading.cancel()
            stopping.cancel()
            if asking is not None:
                await asyncio.wait((asking,), timeout=_CLOSE_S)

    async def _record(self, watch: EtcdWatch, asked: WatchRequest) -> None:
        while True:
            try:
                message = await watch.read()
            except ClientError:
                return
            response = wire.watch_response(message, self.recorder.now())
            self.recorder.response(asked.number, response)
            if self.follows and not response.fragment and (response.events or response.is_progress):
                async with self.caught_up:
                    newest = response.events[-1].revision if response.events else response.revision
                    self.seen = max(self.seen, newest)
                    self.caught_up.notify_all()
            if response.canceled:
                if response.compact_revision:
                    self.seen = max(self.seen, response.compact_revision)  # what is gone cannot be followed
                return

    async def _ask_progress(self, watch: EtcdWatch, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await pause(self.random.expovariate(1 / PROGRESS_EVERY_S), ended)
            try:
                await watch.request_progress()
            except ClientError:
                return

    def _following(self) -> WatchRequest:
        start = self.seen + 1 if self.seen else 0
        asked = self._request(self.mix.prefix, self.mix.end, start)
        return replace(asked, prev_kv=True, fragment=True)

    def _any(self) -> WatchRequest:
        random, mix = self.random, self.mix
        key, end = random.choice(
            (
                (mix.prefix, mix.end),
                (random.choice(mix.keys), b""),
                (mix.keys[2], mix.keys[7]),
                (mix.prefix, b"\0"),
            )
        )
        starts = (
            0,
            mix.revision,
            mix.revision - random.choice((1, 5, 100)),
            mix.compacted - random.randint(0, 5),
            mix.compacted + 1,
            mix.revision + random.randint(1, 30),
        )
        start = random.choice(starts)
        start = max(start, mix.floor) if start else 0
        asked = self._request(key, end, start)
        return replace(
            asked,
            prev_kv=random.random() < 0.5,
            no_put=random.random() < 0.1,
            no_delete=random.random() < 0.1,
            fragment=random.random() < 0.5,
        )

    def _request(self, key: bytes, end: bytes, start: int) -> WatchRequest:
        recorder = self.recorder
        return WatchRequest(
            recorder.new_watch(), recorder.new_client(), recorder.now(), key, end, start, endpoint=self.url
        )
