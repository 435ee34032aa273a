"""Real clusters for tests: the kvorum command in processes of its own, in a directory of the test's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvorum.layout import Cluster, load
from tests.ports import free_base

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Finished:
    """What a command left."""

    code: int
    out: str
    err: str


def run(*command: str, timeout_s: float = 30.0, env: dict[str, str] | None = None, stdin: str = "") -> Finished:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **(env or {})}, input=stdin
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def kvorum(*arguments: str, timeout_s: float = 40.0) -> Finished:
    return run(sys.executable, "-m", "kvorum", *arguments, timeout_s=timeout_s)


def tool(name: str) -> str:
    """The path of a program, or skip the test where it is missing."""
    for folder in (str(BIN), None):
        found = shutil.which(name, path=folder)
        if found:
            return found
    pytest.skip(f"{name} is not installed here")


class LocalCluster:
    """A cluster started with ``kvorum up --detach``."""

    def __init__(self, directory: Path, members: int = 3) -> None:
        self.directory = directory
        self.members = members
        self.base_port = free_base(2 * members + 1)
        self.api_port = self.base_port + 2 * members

    def up(self, *extra: str) -> Finished:
        return kvorum(
            "up", "--data-dir", str(self.directory), "--members", str(self.members), "--detach",
            "--base-port", str(self.base_port), "--api-port", str(self.api_port), *extra,
        )  # fmt: skip

    def down(self) -> Finished:
        return kvorum("down", "--data-dir", str(self.directory))

    def command(self, name: str, *arguments: str) -> Finished:
        done = kvorum(name, *arguments, "--data-dir", str(self.directory))
        assert done.code == 0, done.err
        return done

    @property
    def layout(self) -> Cluster:
        return load(self.directory)

    @property
    def endpoints(self) -> list[str]:
        return [member.client_url for member in self.layout.members]

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    def status(self) -> list[dict[str, Any]]:
        document = json.loads(self.command("status", "--json").out)
        members: list[dict[str, Any]] = document["members"]
        return members

    def leader(self, timeout_s: float = 10.0) -> str:
        """The name of the leader that a majority agrees on; waits for one."""
        found: list[str] = []

        def one() -> bool:
            found[:] = [row["name"] for row in self.status() if row["role"] == "leader"]
            return len(found) == 1

        wait_until(one, timeout_s, "a leader")
        return found[0]

    def etcdctl(self, *arguments: str, endpoint: str | None = None, timeout_s: float = 30.0) -> Finished:
        endpoints = endpoint or ",".join(self.endpoints)
        return run(
            tool("etcdctl"), "--endpoints", endpoints, *arguments, env={"ETCDCTL_API": "3"}, timeout_s=timeout_s
        )

    def start_unchecked(self, name: str) -> Finished:
        """start-member, which may fail."""
        return kvorum("start-member", name, "--data-dir", str(self.directory))

    def log_of(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.directory.glob("*.log"))
        )


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Ask a process from outside until it says so; there is no event to wait on across processes."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.05)
