"""What a client that stops reading its watch costs a member, measured on a process of its own.

``python -m tests.listener.stopped_reader [--megabytes 1000] [--kind live|history|prev|socket|none]`` prints the
figures. ``none`` is the same traffic without a reader.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.client import EtcdClient, EtcdWatch
from store.etcdpb import rpc_pb2
from tests.listener.process import Running, member_process

MB: Final = 1 << 20
VALUE_BYTES: Final = MB
WARM_UP: Final = 96
"""Values written before the measurement: by then every buffer that all traffic fills is full."""
MORE: Final = 8
"""Values written beside a stopped reader of history."""
KINDS: Final = ("live", "history", "prev", "socket", "none")
TIMEOUT_S: Final = 600.0
KEY: Final = b"big"
_SHORT_LOG: Final = ("--snapshot-count", "16", "--snapshot-catchup-entries", "8")
"""The raft log in memory would grow with the traffic, whoever reads: kept short, it does not hide the reader."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes of resident memory beyond what the member held before, at their highest, and others' latencies."""

    pending: int
    before: int
    """Resident memory before."""
    stopped_growth: int
    """While the reader did not read."""
    growth: int
    """Until it had caught up."""
    received: int
    worst_put_s: float
    worst_get_s: float

    def __str__(self) -> str:
        return (
            f"pending {self.pending / MB:.0f} MB, memory {self.before / MB:.1f} MB, "
            f"+{self.stopped_growth / MB:.1f} MB while stopped, +{self.growth / MB:.1f} MB until caught up; "
            f"{self.received} events received; worst put {self.worst_put_s * 1e3:.0f} ms, "
            f"worst get of another client {self.worst_get_s * 1e3:.0f} ms"
        )


class Memory:
    """The resident memory of a process, and its highest since a moment, from the kernel."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.base = self._field("VmRSS")

    def mark(self) -> None:
        """Measure from here: what it holds now, and a new highest."""
        (self._folder / "clear_refs").write_text("5")
        self.base = self._field("VmRSS")

    def growth(self) -> int:
        """The highest since the mark, above what was there at the mark."""
        return self._field("VmHWM") - self.base

    def _field(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", (self._folder / "status").read_text())
        assert found is not None
        return int(found[1]) * 1024


async def measure(megabytes: int, kind: str, warm_up: int = WARM_UP) -> Figures:
    """Overwrite one key of 1 MB so many times beside a reader that does not read; then let it read."""
    with tempfile.TemporaryDirectory(prefix="kvorum-reader") as folder:
        async with asyncio.timeout(TIMEOUT_S), member_process(Path(folder), *_SHORT_LOG) as member:
            client = EtcdClient([member.url])
            try:
                return await _measure(client, member, megabytes, kind, warm_up)
            finally:
                await client.aclose()


async def _measure(client: EtcdClient, member: Running, megabytes: int, kind: str, warm_up: int) -> Figures:
    # What serves a reader is in memory before the measurement: code, threads, buffers of the database.
    await _write(client, warm_up)
    await _read_all(await _watch(client, "live", 2), warm_up)
    memory, first = Memory(member.process.pid), warm_up + 2
    other = EtcdClient([member.url])
    stop, latencies = asyncio.Event(), [0.0]
    beside = asyncio.create_task(_beside(other, stop, latencies))
    watch: EtcdWatch | None = None
    if kind == "history":
        await _write(client, megabytes)
    memory.mark()
    if kind != "none":
        watch = await _watch(client, kind, first)
    worst_put_s = await _write(client, MORE if kind == "history" else megabytes)
    stopped = memory.growth()
    received = 0
    if watch is not None:
        received = await _read_all(watch, megabytes + (MORE if kind == "history" else 0))
    growth = memory.growth()
    stop.set()
    await beside
    await other.aclose()
    return Figures(megabytes * VALUE_BYTES, memory.base, stopped, growth, received, worst_put_s, max(latencies))


async def _beside(client: EtcdClient, stop: asyncio.Event, latencies: list[float]) -> None:
    while not stop.is_set():
        began = time.monotonic()
        await client.get(b"small")
        latencies.append(time.monotonic() - began)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await stop.wait()


async def _write(client: EtcdClient, count: int) -> float:
    worst = 0.0
    for _ in range(count):
        began = time.monotonic()
        await client.put(rpc_pb2.PutRequest(key=KEY, value=os.urandom(VALUE_BYTES)))
        worst = max(worst, time.monotonic() - began)
    return worst


async def _watch(client: EtcdClient, kind: str, first: int) -> EtcdWatch:
    request = rpc_pb2.WatchCreateRequest(key=KEY, start_revision=first, prev_kv=kind == "prev")
    watch = await client.watch(request)
    if kind == "socket":
        _transport(watch).pause_reading()
    return watch


async def _read_all(watch: EtcdWatch, count: int) -> int:
    """Read ``count`` events in order of revision, none missing; how many came."""
    if not _transport(watch).is_reading():
        _transport(watch).resume_reading()
    received, last = 0, 0
    try:
        while received < count:
            for event in (await watch.read()).events:
                assert not last or event.kv.mod_revision == last + 1
                received, last = received + 1, event.kv.mod_revision
    finally:
        await watch.aclose()
    return received


def _transport(watch: EtcdWatch) -> asyncio.Transport:
    transport = watch._stream._transport
    assert transport is not None
    return transport


def main() -> None:
    parser = argparse.ArgumentParser(description="What a client that stops reading costs a member.")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--kind", choices=KINDS, default="live")
    args = parser.parse_args()
    sys.stdout.write(f"{args.kind}: {asyncio.run(measure(args.megabytes, args.kind))}\n")


if __name__ == "__main__":
    main()
