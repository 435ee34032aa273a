"""A local cluster on disk: ``cluster.json`` and the folders around it.

The file is the truth about which processes belong to a cluster: commands in other shells read it, and those
that start a process write it. It is replaced atomically, never edited in place.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

FILE_NAME: Final = "cluster.json"
FORMAT: Final = 1


class UserError(Exception):
    """Something the user can mend. Printed as one line; exit code 1."""


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


def load(directory: Path) -> Cluster:
    """Read ``cluster.json``. Raises UserError when it is missing or damaged."""
    path = directory / FILE_NAME
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}, this release reads {FORMAT}")
        members = tuple(_member(row) for row in document["members"])
        api = Api(_text(document["api"], "url"), _process(document["api"]))
        if not members:
            raise ValueError("it lists no member")
        return Cluster(directory, members, api, _text(document, "token"))
    except FileNotFoundError:
        raise UserError(f"no cluster in {directory}: start one with 'kvorum up --data-dir {directory}'") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"{path} is damaged ({reason}); stop any kvorum process that still runs, then restore the file or "
            f"start over with 'kvorum up --fresh --data-dir {directory}'"
        ) from None


def _member(row: Any) -> Member:
    name, client_url, peer_url, data_dir = (
        _text(row, key) for key in ("name", "client_url", "peer_url", "data_dir")
    )
    return Member(name, client_url, peer_url, data_dir, _process(row))


def _text(row: Any, key: str) -> str:
    value = row[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is not a text")
    return value


def _process(row: Any) -> Process:
    pid, started = row["pid"], row["started"]
    if type(pid) is not int or type(started) is not int:
        raise ValueError("a pid is not a number")
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
