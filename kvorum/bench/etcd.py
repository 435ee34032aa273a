"""``kvorum bench etcd``: Kvorum and a real etcd in turn, the same load on the same machine, and the ratios.

Each round starts both afresh. What is printed is the median over the rounds; a ratio above 1 says that Kvorum
does more (rates) or needs more (times, memory).
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kvorum.bench.backup import save_and_restore
from kvorum.bench.load import KV, Connection, LoadError, drive
from kvorum.bench.systems import ETCD, KVORUM, System, build, find_etcd, running
from kvorum.layout import UserError
from store.etcdpb import rpc_pb2

VALUE: Final = bytes(range(256))
KEYS: Final = 10_000
RANGE_KEYS: Final = 10_000
WATCH_CONNECTIONS: Final = 10
_BATCH_OPS: Final = 100
_IN_FLIGHT: Final = 8
_WATCH_TIMEOUT_S: Final = 120.0


class Line(NamedTuple):
    """One row of the table."""

    name: str
    unit: str
    etcd: float
    kvorum: float

    def __str__(self) -> str:
        return (
            f"{self.name:<44} {self.unit:>5} {self.etcd:10.1f} {self.kvorum:10.1f} {self.kvorum / self.etcd:7.2f}x"
        )


Figures = dict[tuple[str, str], float]
"""(name, unit) to value."""


# -- messages ---------------------------------------------------------------------------------------------


def _put_messages(value: bytes = VALUE) -> Callable[[], bytes]:
    numbers = itertools.count()
    return lambda: rpc_pb2.PutRequest(key=b"k%07d" % (next(numbers) % KEYS), value=value).SerializeToString()


def _get_messages(serializable: bool) -> Callable[[], bytes]:
    numbers = itertools.count()
    return lambda: rpc_pb2.RangeRequest(
        key=b"k%07d" % (next(numbers) % 1000), serializable=serializable
    ).SerializeToString()


async def _fill(connection: Connection, prefix: bytes, keys: int, value: bytes, batch_ops: int) -> None:
    """Put ``keys`` keys, many in a transaction."""
    starts = iter(range(0, keys, batch_ops))

    async def worker() -> None:
        for start in starts:
            txn = rpc_pb2.TxnRequest()
            for number in range(start, min(start + batch_ops, keys)):
                txn.success.add().request_put.CopyFrom(
                    rpc_pb2.PutRequest(key=prefix + b"%08d" % number, value=value)
                )
            await connection.ask(KV + "Txn", txn.SerializeToString())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_IN_FLIGHT):
            tasks.create_task(worker())


# -- what is measured -------------------------------------------------------------------------------------


async def rates(system: System, clients: Sequence[int], seconds: float) -> Figures:
    """Puts at several numbers of clients.

    A single one has the cluster to itself, and whom it asks makes a difference of two messages: it asks the leader
    first, and then a follower.
    """
    figures: Figures = {}
    for count in clients:
        targets = {f"{count} clients": system.ports}
        if count == 1 and len(system.ports) > 1:
            leader, followers = await system.roles()
            targets = {"1 client at the leader": [leader], "1 client at a follower": followers[:1]}
        for name, ports in targets.items():
            rate = await drive(ports, count, "Put", _put_messages(), seconds)
            figures[f"puts, {name}", "/s"] = rate.per_s
            figures[f"puts, {name}, p50", "ms"] = rate.p50_ms
            figures[f"puts, {name}, p99", "ms"] = rate.p99_ms
    return figures


async def read_rates(system: System, seconds: float) -> Figures:
    figures: Figures = {}
    for name, serializable in (("linearizable gets", False), ("serializable gets", True)):
        rate = await drive(system.ports, 64, "Range", _get_messages(serializable), seconds)
        figures[f"{name}, 64 clients", "/s"] = rate.per_s
        figures[f"{name}, 64 clients, p99", "ms"] = rate.p99_ms
    return figures


async def large_range(system: System) -> Figures:
    """The whole of 10,000 keys of 1 KiB, the median of several reads."""
    connection = await Connection.open(system.ports[0])
    try:
        await _fill(connection, b"r", RANGE_KEYS, VALUE * 4, _BATCH_OPS)
        request = rpc_pb2.RangeRequest(key=b"r", range_end=b"s").SerializeToString()
        times = []
        for _ in range(10):
            began = time.perf_counter()
            answer = await connection.ask(KV + "Range", request)
            times.append(time.perf_counter() - began)
        count = rpc_pb2.RangeResponse.FromString(answer).count
        if count != RANGE_KEYS:
            raise LoadError(f"the range holds {count} keys instead of {RANGE_KEYS}")
    finally:
        connection.close()
    return {("range of 10,000 keys of 1 KiB", "ms"): statistics.median(times) * 1e3}


async def fan_out(system: System, watchers: int, writes: int) -> Figures:
    """From the first of ``writes`` writes to one key until every watcher has the last one."""
    port = system.ports[0]
    writer = await Connection.open(port)
    connections = [await Connection.open(port) for _ in range(WATCH_CONNECTIONS)]
    created, finished, everyone = 0, 0, asyncio.Event()
    marker = b"the-last-write-of-all"

    def received(data: bytes) -> None:
        nonlocal created, finished
        # A watcher's first answer says that it exists (created = true is field 3); its last has the marker.
        created += data.count(b"\x18\x01")
        finished += data.count(marker)
        if finished >= watchers:
            everyone.set()

    create = rpc_pb2.WatchRequest(create_request=rpc_pb2.WatchCreateRequest(key=b"w")).SerializeToString()
    try:
        for connection in connections:
            connection.watch([create] * (watchers // WATCH_CONNECTIONS), received)
        deadline = time.monotonic() + _WATCH_TIMEOUT_S
        while created < watchers:
            if time.monotonic() > deadline:
                raise LoadError(f"only {created} of {watchers} watches were created")
            await asyncio.sleep(0.01)  # the load generator has no event for the last of many
        began = time.perf_counter()
        for number in range(writes):
            value = marker if number == writes - 1 else b"%08d" % number
            await writer.ask(KV + "Put", rpc_pb2.PutRequest(key=b"w", value=value).SerializeToString())
        async with asyncio.timeout(_WATCH_TIMEOUT_S):
            await everyone.wait()
        elapsed_s = time.perf_counter() - began
    finally:
        for connection in (writer, *connections):
            connection.close()
    return {(f"{watchers} watchers, {writes} writes: last delivery", "ms"): elapsed_s * 1e3}


async def footprint(system: System, keys: int) -> Figures:
    """Memory with many keys, and how long the member takes from its start until it serves them again."""
    member = system.members[0]
    connection = await Connection.open(member.port)
    try:
        await _fill(connection, b"f", keys, VALUE, _BATCH_OPS)
    finally:
        connection.close()
    figures = {(f"{keys} keys of 256 bytes: memory", "MiB"): member.rss_bytes() / 2**20}
    await member.stop()
    began = time.perf_counter()
    await member.start()
    await member.ready()
    figures[f"{keys} keys of 256 bytes: restart", "s"] = time.perf_counter() - began
    return figures


async def snapshot(system: System, keys: int) -> Figures:
    """Saving many keys and restoring them, with the tools that come with each system."""
    connection = await Connection.open(system.ports[0])
    try:
        await _fill(connection, b"s", keys, VALUE, _BATCH_OPS)
    finally:
        connection.close()
    save_s, restore_s = await save_and_restore(system)
    name = f"snapshot of {keys} keys"
    return {(f"{name}, save", "s"): save_s, (f"{name}, restore", "s"): restore_s}


# -- the run ----------------------------------------------------------------------------------------------

Measure = Callable[[System], Awaitable[Figures]]


def plan(args: Namespace) -> dict[str, list[tuple[int, Measure]]]:
    """What each part measures: (members, measurement), a fresh cluster for each."""
    seconds = args.seconds
    return {
        "writes": [(3, lambda system: rates(system, (1, 16, 64), seconds)),
                   (1, lambda system: rates(system, (64,), seconds))],
        "reads": [(3, lambda system: _prepared_reads(system, seconds))],
        "range": [(1, large_range)],
        "watch": [(3, lambda system: fan_out(system, args.watchers, args.writes))],
        "memory": [(1, lambda system: footprint(system, args.keys))],
        "snapshot": [(1, lambda system: snapshot(system, args.keys))],
    }  # fmt: skip


async def _prepared_reads(system: System, seconds: float) -> Figures:
    connection = await Connection.open(system.ports[0])
    try:
        for number in range(1000):
            put = rpc_pb2.PutRequest(key=b"k%07d" % number, value=VALUE)
            await connection.ask(KV + "Put", put.SerializeToString())
    finally:
        connection.close()
    return await read_rates(system, seconds)


async def measure(etcd: Path, members: int, work: Measure, rounds: int) -> list[Line]:
    """Both in turn, ``rounds`` times; the second round begins with the other one."""
    collected: dict[str, dict[tuple[str, str], list[float]]] = {ETCD: {}, KVORUM: {}}
    for number in range(rounds):
        for kind in (ETCD, KVORUM) if number % 2 == 0 else (KVORUM, ETCD):
            with tempfile.TemporaryDirectory(prefix="kvorum-bench-") as folder:
                async with running(kind, etcd, members, Path(folder)) as system:
                    for key, value in (await work(system)).items():
                        collected[kind].setdefault(key, []).append(value)
    where = "3 members: " if members == 3 else "1 member:  "
    return [
        Line(where + name, unit, statistics.median(values), statistics.median(collected[KVORUM][name, unit]))
        for (name, unit), values in collected[ETCD].items()
    ]


async def main(args: Namespace, stop: asyncio.Event) -> int:
    etcd = find_etcd(args.etcd)
    print(f"kvorum: {build()}")
    print(f"{'':<44} {'unit':>5} {'etcd':>10} {'kvorum':>10} {'ratio':>8}", flush=True)
    for part, works in plan(args).items():
        if part not in args.parts:
            continue
        for members, work in works:
            try:
                lines = await measure(etcd, members, work, args.rounds)
            except (LoadError, OSError, TimeoutError) as error:
                raise UserError(f"{part}: {error or 'no answer in time'}") from None
            print("\n".join(map(str, lines)), flush=True)
    return 0
