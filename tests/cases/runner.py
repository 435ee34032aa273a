"""Runs the reference data's own runner against members of ours: one fresh member a case, or a lasting follower."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.harness import tool
from tests.ports import free_base
from tests.store.processes import members

FOLDER: Final = Path(__file__).parents[3] / "shared" / "cases" / "etcd"
ABOUT_AUTH: Final = ("auth", "user", "role")
"""Cases of a service that is not there yet (docs/scope.md)."""
TIMEOUT_S: Final = 1800.0


def case_ids(file: Path = FOLDER / "etcd_cases.jsonl") -> list[str]:
    """The ids of a file of cases, without those about users, roles and passwords."""
    found = [json.loads(line)["id"] for line in file.read_text().splitlines() if line.strip()]
    return [name for name in found if not name.startswith(ABOUT_AUTH)]


def command(endpoint: str, cases: Path, *arguments: str) -> list[str]:
    return [
        sys.executable, str(FOLDER / "run_cases.py"), "--endpoints", endpoint, "--etcdctl", tool("etcdctl"),
        "--cases", str(cases), *arguments,
    ]  # fmt: skip


def selected(directory: Path, ids: list[str], file: Path = FOLDER / "etcd_cases.jsonl") -> Path:
    """A file with these cases only: the runner selects by a part of an id, which may fit others too."""
    wanted = set(ids)
    lines = [line for line in file.read_text().splitlines() if line.strip() and json.loads(line)["id"] in wanted]
    chosen = directory / "cases.jsonl"
    chosen.write_text("\n".join(lines) + "\n")
    return chosen


def on_fresh_members(directory: Path, cases: Path) -> subprocess.CompletedProcess[str]:
    """Every case against a member of its own."""
    port = free_base(2)
    restart = shlex.join([sys.executable, "-m", "tests.cases.fresh", str(directory / "fresh"), str(port)])
    try:
        return _run(command(f"127.0.0.1:{port}", cases, "--restart-cmd", restart))
    finally:
        subprocess.run([sys.executable, "-m", "tests.cases.fresh", str(directory / "fresh"), "stop"], check=True)


@contextmanager
def follower(directory: Path) -> Iterator[str]:
    """The endpoint of a member of three that does not lead."""
    with members(directory, count=3) as cluster:
        endpoints = [member.endpoint for member in cluster]
        status = [tool("etcdctl"), "--endpoints", ",".join(endpoints), "endpoint", "status", "-w", "json"]
        subprocess.run([tool("etcdctl"), "--endpoints", endpoints[0], "--command-timeout", "20s", "get", "x"],
                       check=True, capture_output=True)  # fmt: skip
        shown = json.loads(subprocess.run(status, check=True, capture_output=True).stdout)
        yield next(
            entry["Endpoint"] for entry in shown
            if entry["Status"]["leader"] != entry["Status"]["header"]["member_id"]
        )  # fmt: skip


def on_follower(directory: Path, cases: Path) -> subprocess.CompletedProcess[str]:
    with follower(directory) as endpoint:
        return _run(command(endpoint, cases))


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
