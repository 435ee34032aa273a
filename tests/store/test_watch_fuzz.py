"""Random writers, readers of every pace, compactions and a snapshot: each watcher gets exactly its events.

In order, once, whole revisions only; or it is cancelled because a compaction overtook it (contract §6).
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from store.errors import EtcdError
from store.etcdpb import rpc_pb2
from store.machine import MachineOptions
from store.watch import hub, stream
from tests.store.driver import Driver
from tests.store.model import Model, inside
from tests.store.watching import Client, summary

KEYS = [b"a", b"a/1", b"a/2", b"b", b"c"]
RANGES = [(b"a", b""), (b"a/", b"a0"), (b"a", b"c"), (b"b", b"\x00"), (b"", b"\x00"), (b"c", b"")]
STEPS = 400


class Follower:
    """A watcher of one range, and what it should see by the model."""

    def __init__(self, driver: Driver, model: Model, rng: random.Random) -> None:
        self.client = Client(driver.machine)
        self.model = model
        self.key, self.end = rng.choice(RANGES)
        self.start = rng.choice((0, max(1, model.revision - rng.randint(0, 200)), model.revision + 5))
        self.first = self.start or model.revision + 1
        self.pace = rng.choice((0.02, 0.3, 0.9))
        self.seen: list[tuple[int, str, bytes]] = []
        self.canceled_at = 0

    async def begin(self) -> None:
        await self.client.create(self.key, self.end, start_revision=self.start)

    def expected(self) -> list[tuple[int, str, bytes]]:
        return [
            (revision, "DELETE" if event.type else "PUT", event.kv.key)
            for revision, event in self.model.events
            if revision >= self.first and inside(event.kv.key, self.key or b"\x00", self.end)
        ]

    async def take(self) -> None:
        response = await self.client.receive()
        if response.canceled:
            self.canceled_at = response.compact_revision
            assert self.canceled_at
        events = summary(response)
        if events and self.seen:
            assert events[0][0] > self.seen[-1][0], "a revision was split over two answers"
        self.seen += events

    def check(self) -> None:
        expected = self.expected()
        if self.canceled_at:
            assert self.seen == expected[: len(self.seen)]
            # It may have been behind without an event of its own to come below the compacted revision.
            assert self.first < self.canceled_at
        else:
            assert self.seen == expected


def _command(rng: random.Random, model: Model) -> object:
    op, key = rpc_pb2.RequestOp, rng.choice(KEYS)
    match rng.randrange(12):
        case 0:
            return rpc_pb2.DeleteRangeRequest(key=key, range_end=rng.choice((b"", b"a0", b"\x00")))
        case 1:
            puts = [op(request_put=rpc_pb2.PutRequest(key=k)) for k in rng.sample(KEYS, 3)]
            return rpc_pb2.TxnRequest(success=puts)
        case 2 if rng.random() < 0.3:
            return rpc_pb2.CompactionRequest(revision=max(model.revision - rng.randint(0, 60), 1))
        case _:
            return rpc_pb2.PutRequest(key=key, value=b"%d" % model.revision)


async def _apply_both(driver: Driver, model: Model, command: object) -> None:
    try:
        match command:
            case rpc_pb2.CompactionRequest():
                model.compact(command.revision)
            case rpc_pb2.DeleteRangeRequest():
                model.delete_range(command)
            case rpc_pb2.TxnRequest():
                model.txn(command)
            case rpc_pb2.PutRequest():
                model.put(command)
    except EtcdError:
        return
    driver.apply(command)


@pytest.mark.parametrize("seed", range(6))
async def test_every_watcher_gets_exactly_its_events(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RECENT_REVISIONS", 16)
    monkeypatch.setattr(hub, "BATCH_REVISIONS", 20)
    monkeypatch.setattr(stream, "QUEUE_RESPONSES", 8)
    rng, model = random.Random(seed), Model()
    followers: list[Follower] = []
    async with Driver(tmp_path / "state.db", MachineOptions(history_bytes=500, flush_interval_s=0.001)) as driver:
        for step in range(STEPS):
            await _apply_both(driver, model, _command(rng, model))
            if rng.random() < 0.05:
                followers.append(Follower(driver, model, rng))
                await followers[-1].begin()
            for follower in followers:
                if rng.random() < follower.pace and follower.client.stream._queue:
                    await follower.take()
            if step % 7 == 0:
                await asyncio.sleep(0.001)
        for follower in followers:
            async with asyncio.timeout(10):
                while not follower.canceled_at and follower.seen != follower.expected():
                    await follower.take()
            follower.check()
    assert any(f.seen for f in followers)
