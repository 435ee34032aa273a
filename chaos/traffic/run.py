"""One recorded run: clients and watchers on every member for a while, faults meanwhile, an end in peace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.check.history import Ending, Put, Range, Setting
from chaos.traffic.clients import drive, settle
from chaos.traffic.mix import Mix
from chaos.traffic.recorder import Recorder
from chaos.traffic.watchers import Watcher
from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2

PREFIX: Final = b"check/"
SETTLE_TIMEOUT_S: Final = 30.0
"""How long the members may take to answer again once faults are over, and watches to deliver everything."""
_RANDOM_WATCHERS: Final = 2
"""Watchers of every kind for each member, beside the one that follows everything."""
_PROBE_TIMEOUT_S: Final = 5.0
_PROGRESS_ANSWERS: Final = (3, 5, 8)
"""Before this version etcd answers progress requests without having sent all events (etcd contract §6)."""
_TOMBSTONES_STAY: Final = (3, 5, 18)
"""Before this version etcd forgets a deletion at the compacted revision itself (etcd contract §5)."""


class CannotRun(Exception):
    """The store cannot be used for a recorded run; the text says why."""


@dataclass(frozen=True, slots=True)
class Store:
    """What was found at the endpoints before the run."""

    urls: tuple[str, ...]
    version: str
    revision: int

    def is_at_least(self, version: tuple[int, int, int]) -> bool:
        numbers = tuple(int(part) for part in self.version.split("-")[0].split(".") if part.isdecimal())
        return numbers >= version

    @property
    def limits(self) -> str:
        """What the traffic leaves out because this version is known to do it wrong; for people."""
        left_out = []
        if not self.is_at_least(_PROGRESS_ANSWERS):
            left_out.append("progress requests")
        if not self.is_at_least(_TOMBSTONES_STAY):
            left_out.append("compaction to a deletion")
        return f"; left out for version {self.version}: {', '.join(left_out)}" if left_out else ""


@dataclass(frozen=True, slots=True)
class Load:
    """How much traffic: ``clients`` in all, spread over the members, with ``rate`` requests a second together."""

    clients: int
    rate: float
    seed: int


Nemesis = Callable[[asyncio.Event], Awaitable[None]]


async def probe(urls: Sequence[str]) -> Store:
    """Look at the store; its keys below PREFIX must not exist. Raises CannotRun."""
    client = EtcdClient(urls)
    try:
        status = await client.status(_PROBE_TIMEOUT_S)
        request = rpc_pb2.RangeRequest(key=PREFIX, range_end=PREFIX[:-1] + b"0", count_only=True)
        answer = await client.range(request, _PROBE_TIMEOUT_S)
    except ClientError as error:
        raise CannotRun(f"no answer from {', '.join(urls)}: {error.text}") from None
    finally:
        await client.aclose()
    if answer.count:
        raise CannotRun(
            f"the store holds {answer.count} keys below {PREFIX.decode()}: a run must start without any"
        )
    return Store(tuple(client.endpoints), status.version, answer.header.revision)


def setting(store: Store, load: Load, exclusive: bool, faults: Sequence[str]) -> Setting:
    note = (
        f"seed {load.seed}, {load.clients} clients at {load.rate:g} requests/s on {', '.join(store.urls)} "
        f"(version {store.version}), faults: {', '.join(faults) or 'none'}{store.limits}"
    )
    return Setting(store.revision, exclusive, note)


async def record(
    store: Store, load: Load, recorder: Recorder, nemesis: Nemesis | None, duration_s: float, stop: asyncio.Event
) -> None:
    """Run for ``duration_s`` or until ``stop``. Raises CannotRun when a member does not come back at the end."""
    random = Random(load.seed)
    mix = Mix(random, PREFIX, store.revision, tombstones_stay=store.is_at_least(_TOMBSTONES_STAY))
    watchers = [
        Watcher(url, mix, recorder, random, store.is_at_least(_PROGRESS_ANSWERS), follows=number == 0)
        for url in store.urls
        for number in range(1 + _RANDOM_WATCHERS)
    ]
    watched = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for watcher in watchers:
            group.create_task(watcher.run(watched))
        try:
            await _traffic(store, load, mix, recorder, random, nemesis, duration_s, stop)
            await _end(store, mix, recorder, [watcher for watcher in watchers if watcher.follows])
        finally:
            watched.set()


async def _traffic(
    store: Store,
    load: Load,
    mix: Mix,
    recorder: Recorder,
    random: Random,
    nemesis: Nemesis | None,
    duration_s: float,
    stop: asyncio.Event,
) -> None:
    """Clients and faults until it is time; returns when all have ended and every fault is healed."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(load.clients):
            url = store.urls[number % len(store.urls)]
            group.create_task(drive(url, mix, recorder, random, load.clients / load.rate, over))
        if nemesis is not None:
            group.create_task(_ensure(nemesis, over))
        try:
            async with asyncio.timeout(duration_s):
                await stop.wait()
        except TimeoutError:
            pass
        finally:
            over.set()


async def _ensure(nemesis: Nemesis, over: asyncio.Event) -> None:
    await nemesis(over)


async def _end(store: Store, mix: Mix, recorder: Recorder, followers: Sequence[Watcher]) -> None:
    """A write after all others, seen by every member and delivered by every follower's watch."""
    for url in store.urls:
        try:
            await settle([url], recorder, lambda: Range(mix.prefix, mix.end), SETTLE_TIMEOUT_S)
        except TimeoutError:
            raise CannotRun(
                f"{url} answers no linearizable read {SETTLE_TIMEOUT_S:.0f} s after the last fault"
            ) from None
    last = await settle(store.urls, recorder, lambda: Put(mix.keys[0], mix.value()), SETTLE_TIMEOUT_S)
    assert last.answer is not None
    revision = last.answer.revision
    await settle(store.urls, recorder, lambda: Range(mix.prefix, mix.end), SETTLE_TIMEOUT_S)
    waiting = [asyncio.ensure_future(follower.reached(revision)) for follower in followers]
    try:
        await asyncio.wait(waiting, timeout=SETTLE_TIMEOUT_S)
    finally:
        for task in waiting:
            task.cancel()
    recorder.ending(Ending(revision, tuple(follower.number for follower in followers)))
