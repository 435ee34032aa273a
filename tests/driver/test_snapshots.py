"""Truncating the log and catching up by snapshot, crashes included, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from chaos import virtual
from raft.config import DriverConfig
from tests.driver.virtual_cluster import IDS, Durable, ImageJournal, VirtualCluster, cluster, new_disks


def short_log(node: int) -> DriverConfig:
    return dataclasses.replace(DriverConfig(node), snapshot_count=20, catch_up_entries=5)


def in_cluster(scenario: Callable[[VirtualCluster], Awaitable[None]], seed: int = 1) -> None:
    async def body() -> None:
        states = {node: Durable() for node in IDS}
        async with cluster(new_disks(seed), seed, states, short_log) as running:
            await scenario(running)

    virtual.run(body())


async def fill(running: VirtualCluster, count: int) -> None:
    leader = await running.leader()
    for number in range(count):
        await leader.propose(b"%d" % number)


async def follower(running: VirtualCluster) -> int:
    leader = await running.leader()
    return next(node for node in IDS if node != leader.config.member_id)


def test_the_log_is_truncated_and_keeps_entries_to_catch_up_with() -> None:
    async def scenario(running: VirtualCluster) -> None:
        await fill(running, 100)
        leader = await running.leader()
        loaded = await leader._log.load()
        assert loaded.snapshot.index > 50
        assert loaded.snapshot.index <= running.states[leader.config.member_id].snapshot.index - 5  # type: ignore[index]

    in_cluster(scenario)


def test_large_entries_are_truncated_by_their_size() -> None:
    limit = 10_000

    def few_bytes(node: int) -> DriverConfig:
        return dataclasses.replace(DriverConfig(node), log_bytes=limit)

    async def body() -> None:
        async with cluster(new_disks(1), 1, {node: Durable() for node in IDS}, few_bytes) as running:
            away = await follower(running)
            await running.stop(away)
            leader = await running.leader()
            for _ in range(100):
                await leader.propose(bytes(1000))
                assert leader._storage.bytes <= limit + 2 * 1100
            await running.settle()
            loaded = await leader._log.load()
            assert loaded.snapshot.index > 80
            kept = sum(len(entry.data) for entry in loaded.entries)
            assert limit // 2 - 1100 <= kept <= limit  # enough stays to catch up with
            await running.start(away)
            await running.settle()
            assert running.wire.snapshots >= 1
            assert running.journals[away].values == running.journals[leader.config.member_id].values

    virtual.run(body())


def test_a_member_that_was_away_gets_a_snapshot_and_then_entries() -> None:
    async def scenario(running: VirtualCluster) -> None:
        away = await follower(running)
        await running.stop(away)
        await fill(running, 100)
        await running.start(away)
        await running.settle()
        leader = await running.leader()
        assert running.wire.snapshots >= 1
        assert running.journals[away].values == running.journals[leader.config.member_id].values
        assert running.failures == {}

    in_cluster(scenario)


def test_m24_the_log_is_not_truncated_while_a_snapshot_travels() -> None:
    async def scenario(running: VirtualCluster) -> None:
        away = await follower(running)
        await running.stop(away)
        await fill(running, 100)
        running.wire.snapshot_delay_s = 5.0
        await running.start(away)
        leader = await running.leader()
        while not running.wire.snapshots:
            await leader.propose(b"until the snapshot leaves")
        before = leader._log_snapshot_index
        await fill(running, 100)
        assert leader._log_snapshot_index == before
        await asyncio.sleep(6.0)  # virtual: the snapshot arrives
        await running.settle()
        assert running.wire.snapshots == 1, "it was overtaken by truncation and had to be sent again"
        assert running.journals[away].values == running.journals[leader.config.member_id].values

    in_cluster(scenario)


@pytest.mark.parametrize("step", ["accepted", "logged", "installed"])
def test_m25_a_crash_at_any_step_of_an_installation_is_mended_at_the_next_start(step: str) -> None:
    async def scenario(running: VirtualCluster) -> None:
        away = await follower(running)
        await running.stop(away)
        await fill(running, 100)
        await running.start(away)
        journal = running.journals[away]
        assert isinstance(journal, ImageJournal)
        journal.crash_at = step
        async with asyncio.timeout(30):
            await running.failed.wait()
        assert list(running.failures) == [away]
        await running.stop(away)
        running.failures.clear()
        await running.start(away)
        await running.settle()
        leader = await running.leader()
        assert running.journals[away].values == running.journals[leader.config.member_id].values
        assert running.failures == {}

    in_cluster(scenario)


def test_all_members_restart_on_truncated_logs() -> None:
    async def scenario(running: VirtualCluster) -> None:
        await fill(running, 100)
        for node in IDS:
            await running.stop(node)
        for node in IDS:
            await running.start(node)
        await running.settle()
        values = [running.journals[node].values for node in IDS]
        assert values[0] == values[1] == values[2]
        assert len(values[0]) >= 100

    in_cluster(scenario)
