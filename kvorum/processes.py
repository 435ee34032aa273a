"""Starting, stopping and hurting the processes of a local cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kvorum.certificates import Certificates
from kvorum.layout import FILE_NAME, Cluster, Member, Process, UserError, load, locked, start_time
from kvorum.loop import READY_FD_VARIABLE
from store.tls import NO_TLS, TlsFiles

STOP_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.02


def member_command(cluster: Cluster, member: Member, state: str = "new") -> list[str]:
    """The command line of one member; ``state`` "existing" is for one that joins a cluster that runs.

    With ``-P``: what lies in the current folder, a package ``store`` of the user's own perhaps, is not ours.
    """
    initial = ",".join(f"{each.name}={each.peer_url}" for each in cluster.members)
    return [
        sys.executable, "-P", "-m", "kvorum", "member",
        "--name", member.name,
        "--data-dir", member.data_dir,
        "--listen-client-urls", member.client_url,
        "--advertise-client-urls", member.client_url,
        "--listen-peer-urls", member.peer_url,
        "--initial-advertise-peer-urls", member.peer_url,
        "--initial-cluster", initial,
        "--initial-cluster-token", cluster.token,
        "--initial-cluster-state", state,
        *(_tls_flags(cluster) if cluster.is_secured else ()),
    ]  # fmt: skip


def _tls_flags(cluster: Cluster) -> list[str]:
    """Clients are told who they talk to, members show each other certificates."""
    tls = Certificates(cluster.tls)
    server, peer, ca = tls.pair("server"), tls.pair("peer"), str(tls.ca_file)
    return [
        "--cert-file", str(server.cert_file), "--key-file", str(server.key_file), "--trusted-ca-file", ca,
        "--peer-cert-file", str(peer.cert_file), "--peer-key-file", str(peer.key_file),
        "--peer-trusted-ca-file", ca, "--peer-client-cert-auth",
    ]  # fmt: skip


def client_files(cluster: Cluster) -> TlsFiles:
    """What a client of the cluster needs to trust it, and to be known."""
    if not cluster.is_secured:
        return NO_TLS
    tls = Certificates(cluster.tls)
    own = tls.pair("client")
    return TlsFiles(str(own.cert_file), str(own.key_file), str(tls.ca_file))


def api_command(cluster: Cluster) -> list[str]:
    """The command line of the API server."""
    url = urlsplit(cluster.api.url)
    return [
        sys.executable, "-P", "-m", "kvorum", "apiserver",
        "--etcd-servers", cluster.endpoints,
        "--bind-address", str(url.hostname),
        "--port", str(url.port),
        *(_client_flags(client_files(cluster)) if cluster.is_secured else ()),
    ]  # fmt: skip


def _client_flags(tls: TlsFiles) -> list[str]:
    return [
        "--etcd-cafile", tls.trusted_ca_file, "--etcd-certfile", tls.cert_file, "--etcd-keyfile", tls.key_file,
    ]  # fmt: skip


class Child:
    """A process just started, and the pipe on which it says that it serves."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_file: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._read, write = os.pipe()
        with log_file.open("ab") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
                env={**os.environ, **(variables or {}), READY_FD_VARIABLE: str(write)},
                start_new_session=True,  # a Ctrl-C is for the launcher, which then stops the rest in order
            )
        os.close(write)
        self.process = Process(self._popen.pid, start_time(self._popen.pid))

    async def ready(self) -> None:
        """Return when the process serves. Raises UserError, with its last words, if it ends before that."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._read, "rb")
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            if not await reader.readline():
                await asyncio.to_thread(self._popen.wait)
                raise UserError(f"{self.name} did not start: {last_words(self.log_file)}")
        finally:
            transport.close()

    def reap(self) -> None:
        """Collect the exit status if the process has ended, so that no zombie stays while the launcher runs."""
        self._popen.poll()


def last_words(log_file: Path) -> str:
    """The last line a process wrote, without the log prefix."""
    try:
        lines = log_file.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("kvorum: ") if lines else f"see {log_file}"


async def start_member(cluster: Cluster, member: Member, state: str = "new") -> tuple[Cluster, Child]:
    """Start a member's process and note it in cluster.json, whatever others note there at the same time."""
    async with locked(cluster.directory):
        if (cluster.directory / FILE_NAME).exists():
            cluster = load(cluster.directory)
            member = cluster.member(member.name)
        return spawn_member(cluster, member, state)


def spawn_member(cluster: Cluster, member: Member, state: str = "new") -> tuple[Cluster, Child]:
    """The same for who has the lock, and in ``cluster`` the state of now."""
    if member.process.alive():
        raise UserError(f"{member.name} is running already (pid {member.process.pid})")
    child = Child(member.name, member_command(cluster, member, state), cluster.log_file(member.name))
    cluster = cluster.with_member(replace(member, process=child.process))
    cluster.save()
    return cluster, child


def send_signal(member: Member, number: signal.Signals) -> None:
    """Raises UserError when the member is not running."""
    if not member.process.alive():
        raise UserError(f"{member.name} is not running")
    os.kill(member.process.pid, number)


async def wait_gone(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Wait until the processes have ended; returns those that have not. They need not be our children, so
    there is nothing to wait on but their pids."""
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if process.alive()]
    while left and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        left = [process for process in left if process.alive()]
    return left


async def stop_all(processes: Sequence[Process]) -> None:
    """SIGTERM, and SIGKILL for what has not ended in time; a paused process is woken first."""
    for process in processes:
        signal_quietly(process, signal.SIGCONT)
        signal_quietly(process, signal.SIGTERM)
    for process in await wait_gone(processes, STOP_TIMEOUT_S):
        signal_quietly(process, signal.SIGKILL)
    await wait_gone(processes, STOP_TIMEOUT_S)


def signal_quietly(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    if process.alive():
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return  # it ended between the look and the signal
