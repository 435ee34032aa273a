"""``kvorum bench failover``: what three idle members cost, and how long writes wait when the leader is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvorum.layout import Cluster, Member, start_time
from kvorum.processes import start_member, stop_all, wait_gone
from kvorum.up import plan
from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2

IDLE_S: Final = 10.0
SETTLE_S: Final = 2.0
TRY_TIMEOUT_S: Final = 1.0


async def main(args: Namespace, stop: asyncio.Event) -> int:
    with tempfile.TemporaryDirectory(prefix="kvorum-bench-") as folder:
        cluster = plan(
            Namespace(
                data_dir=str(Path(folder) / "c"), members=3, base_port=args.base_port, api_port=args.base_port + 6,
                fresh=True, tls=False, given=frozenset(),
            )
        )  # fmt: skip
        cluster.directory.mkdir()
        children = []
        try:
            for member in cluster.members:
                cluster, child = await start_member(cluster, member)
                children.append(child)
                await child.ready()
            print(f"idle: {await _idle(cluster):.1f} % of a core for three members")
            cluster = await _rounds(cluster, args.rounds)
        finally:
            await stop_all(cluster.processes())
            for child in children:
                child.reap()
    return 0


async def _idle(cluster: Cluster) -> float:
    """Per cent of one core that all members use while nobody asks anything."""
    await asyncio.sleep(SETTLE_S)  # what is measured is time passing
    before = _cpu_s(cluster.members)
    await asyncio.sleep(IDLE_S)
    return (_cpu_s(cluster.members) - before) / IDLE_S * 100


def _cpu_s(members: Sequence[Member]) -> float:
    ticks = 0
    for member in members:
        fields = Path(f"/proc/{member.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def _rounds(cluster: Cluster, rounds: int) -> Cluster:
    waits: list[float] = []
    for number in range(1, rounds + 1):
        leader = await _leader(cluster)
        os.kill(leader.process.pid, signal.SIGKILL)
        killed = time.monotonic()
        others = [member for member in cluster.members if member.name != leader.name]
        await _write(others)
        waits.append(time.monotonic() - killed)
        print(f"round {number:2}: killed {leader.name}, the next write was accepted after {waits[-1]:.2f} s")
        await wait_gone([leader.process], 5.0)
        cluster, child = await start_member(cluster, leader)
        await child.ready()
        await _write(cluster.members)
    print(f"median {statistics.median(waits):.2f} s, max {max(waits):.2f} s over {rounds} rounds")
    return cluster


async def _leader(cluster: Cluster) -> Member:
    """The member that says it leads; waits for one."""
    while True:
        for member in cluster.members:
            client = EtcdClient([member.client_url])
            try:
                answer = await client.status(timeout_s=1.0)
            except ClientError:
                continue
            finally:
                await client.aclose()
            if answer.leader == answer.header.member_id and start_time(member.process.pid):
                return member
        await asyncio.sleep(0.1)  # members are other processes: there is only asking again


async def _write(members: Sequence[Member]) -> None:
    """Return when one write has been accepted. Clients of all members try, each again and again."""
    done = asyncio.Event()

    async def attempt(member: Member) -> None:
        client = EtcdClient([member.client_url])
        try:
            while not done.is_set():
                try:
                    await client.put(rpc_pb2.PutRequest(key=b"bench", value=b"x"), timeout_s=TRY_TIMEOUT_S)
                    done.set()
                except ClientError:
                    await asyncio.sleep(0.01)  # refused at once: let others run before the next try
        finally:
            await client.aclose()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(member)) for member in members]
        await done.wait()
        for task in tasks:
            task.cancel()
