"""A local cluster on disk: ``cluster.json`` and the folders around it.

The file is the truth about which processes belong to a cluster: commands in other shells read it, and those
that start a process write it. It is replaced atomically, never edited in place.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

FILE_NAME: Final = "cluster.json"
LOCK_NAME: Final = "cluster.lock"
FORMAT: Final = 1
FAULTS_VARIABLE: Final = "KVORUM_FAULTS"
"""In the environment of a member: 1 lets faults be injected through files in its data directory."""
LOCK_TIMEOUT_S: Final = 10.0
_LOCK_POLL_S: Final = 0.02
PORT_MAX: Final = 65535
_PID_END: Final = 2**31  # pid_t has 32 bits, with a sign


class UserError(Exception):
    """Something the user can mend. Printed as one line; exit code 1."""


class UsageError(UserError):
    """A command line that cannot work whatever the state of the cluster. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the cluster. ``started`` tells it from a later process that got the same pid (0: unknown)."""

    pid: int
    started: int = 0

    def alive(self) -> bool:
        if self.pid <= 0:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return _state(self.pid) != "Z" and self.started in (0, start_time(self.pid))

    def paused(self) -> bool:
        """Whether it lives but does not run, by SIGSTOP."""
        return self.alive() and _state(self.pid) in ("T", "t")


NO_PROCESS: Final = Process(0)


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    client_url: str
    peer_url: str
    data_dir: str
    process: Process = NO_PROCESS


@dataclass(frozen=True, slots=True)
class Api:
    url: str
    process: Process = NO_PROCESS


@dataclass(frozen=True, slots=True)
class Cluster:
    """What ``cluster.json`` says."""

    directory: Path
    members: tuple[Member, ...]
    api: Api
    token: str

    @property
    def endpoints(self) -> str:
        return ",".join(member.client_url for member in self.members)

    @property
    def is_secured(self) -> bool:
        """Whether its members serve TLS, with the certificates in ``tls``."""
        return self.members[0].client_url.startswith("https:")

    @property
    def tls(self) -> Path:
        return self.directory / "tls"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def member(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members)
        raise UserError(f"no member named {name!r} in {self.directory}; its members are {known}")

    def with_member(self, member: Member) -> Cluster:
        members = tuple(member if known.name == member.name else known for known in self.members)
        return replace(self, members=members)

    def processes(self) -> list[Process]:
        return [self.api.process, *(member.process for member in self.members)]

    def running(self) -> list[Process]:
        return [process for process in self.processes() if process.alive()]

    def log_file(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def save(self) -> None:
        document = {
            "format": FORMAT,
            "token": self.token,
            "members": [_flat(member) for member in self.members],
            "api": _flat(self.api),
        }
        path = self.directory / FILE_NAME
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        temporary.replace(path)


def _flat(item: Member | Api) -> dict[str, Any]:
    document = asdict(item)
    document.update(document.pop("process"))
    return document


def directory_of(data_dir: str) -> Path:
    """The folder that ``--data-dir`` names. Raises UserError."""
    try:
        return Path(data_dir).resolve()
    except RuntimeError:  # what pathlib makes of ELOOP
        raise UserError(f"{data_dir} is a symbolic link that leads to itself") from None


@asynccontextmanager
async def locked(directory: Path) -> AsyncIterator[None]:
    """Nobody else changes ``cluster.json`` meanwhile: commands in several shells may start processes at once.

    Raises UserError when another command holds it for too long.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with (directory / LOCK_NAME).open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(f"another kvorum command is changing the cluster in {directory}") from None
            await asyncio.sleep(_LOCK_POLL_S)  # a blocking flock could not be cancelled
        yield


def load(directory: Path) -> Cluster:
    """Read ``cluster.json``. Raises UserError when it is missing, cannot be read, or is damaged."""
    path = directory / FILE_NAME
    try:
        return _cluster(directory, _json(path.read_bytes()))
    except FileNotFoundError:
        raise UserError(f"no cluster in {directory}: start one with 'kvorum up --data-dir {directory}'") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}); stop any kvorum process that still runs, then restore the file or "
            f"start over with 'kvorum up --fresh --data-dir {directory}'"
        ) from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _cluster(directory: Path, document: Any) -> Cluster:
    """Every ValueError below says what is wrong with the file, for its owner to read."""
    form = _field(document, "format", "the document")
    if form != FORMAT:
        raise ValueError(f"format {form}, this release reads {FORMAT}")
    rows = _field(document, "members", "the document")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("members is not a list of objects")
    if not rows:
        raise ValueError("it lists no member")
    members = tuple(_member(row, f"members[{number}]") for number, row in enumerate(rows))
    row = _field(document, "api", "the document")
    api = Api(_url(row, "url", "api"), _process(row, "api"))
    return Cluster(directory, members, api, _text(document, "token", "the document"))


def _member(row: Any, where: str) -> Member:
    return Member(
        _text(row, "name", where),
        _url(row, "client_url", where),
        _url(row, "peer_url", where),
        _text(row, "data_dir", where),
        _process(row, where),
    )


def _field(row: Any, key: str, where: str) -> Any:
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not an object")
    if key not in row:
        raise ValueError(f"{where} has no {key!r}")
    return row[key]


def _text(row: Any, key: str, where: str) -> str:
    value = _field(row, key, where)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} of {where} is not a text")
    return value


def _url(row: Any, key: str, where: str) -> str:
    value = _text(row, key, where)
    if not is_url(value):
        raise ValueError(f"{key} of {where} is {value!r}, not http://HOST:PORT")
    return value


def is_url(text: str) -> bool:
    """Whether this is http://HOST:PORT or https://HOST:PORT, with a port that exists."""
    try:
        parts = urlsplit(text)
        complete = bool(parts.hostname and parts.port)
    except ValueError:
        return False
    return complete and parts.scheme in ("http", "https") and parts.path in ("", "/")


def _process(row: Any, where: str) -> Process:
    pid, started = _field(row, "pid", where), _field(row, "started", where)
    if type(pid) is not int or not 0 <= pid < _PID_END:
        raise ValueError(f"pid of {where} is not the number of a process")
    if type(started) is not int or started < 0:
        raise ValueError(f"started of {where} is not a time in clock ticks")
    return Process(pid, started)


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 where the system does not tell."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name; empty where there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
