"""The real etcdctl against a three-member cluster, through every member."""

from __future__ import annotations

import json
import re
import select
import subprocess
import threading
from typing import Any

import pytest

from tests.cluster.harness import LocalCluster, tool

pytestmark = pytest.mark.process


@pytest.fixture(params=[0, 1, 2], ids=["m1", "m2", "m3"])
def endpoint(request: pytest.FixtureRequest, shared_cluster: LocalCluster) -> str:
    tool("etcdctl")
    number: int = request.param
    return shared_cluster.endpoints[number]


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return f"/{name}/"


def ok(cluster: LocalCluster, endpoint: str, *arguments: str) -> str:
    done = cluster.etcdctl(*arguments, endpoint=endpoint)
    assert done.code == 0, done.err
    return done.out


def as_json(cluster: LocalCluster, endpoint: str, *arguments: str) -> Any:
    return json.loads(ok(cluster, endpoint, *arguments, "-w", "json"))


def test_put_get_del(shared_cluster: LocalCluster, endpoint: str, prefix: str) -> None:
    for name in ("a", "b", "c"):
        assert ok(shared_cluster, endpoint, "put", prefix + name, f"value-{name}") == "OK\n"
    assert ok(shared_cluster, endpoint, "get", prefix + "a") == f"{prefix}a\nvalue-a\n"
    listed = as_json(shared_cluster, endpoint, "get", "--prefix", prefix)
    assert listed["count"] == 3
    limited = as_json(shared_cluster, endpoint, "get", "--prefix", prefix, "--limit", "2")
    assert (len(limited["kvs"]), limited["more"], limited["count"]) == (2, True, 3)
    first = listed["kvs"][0]["mod_revision"]
    ok(shared_cluster, endpoint, "put", prefix + "a", "changed")
    assert (
        ok(shared_cluster, endpoint, "get", prefix + "a", "--rev", str(first), "--print-value-only") == "value-a\n"
    )
    assert ok(shared_cluster, endpoint, "del", "--prefix", prefix) == "3\n"
    assert ok(shared_cluster, endpoint, "get", "--prefix", prefix) == ""


def test_txn_takes_the_branch_its_compares_say(shared_cluster: LocalCluster, endpoint: str, prefix: str) -> None:
    key = prefix + "k"
    text = f'mod("{key}") = "0"\n\nput {key} made\n\nget {key}\n\n'
    command = [tool("etcdctl"), "--endpoints", endpoint, "txn"]
    first = subprocess.run(command, input=text, capture_output=True, text=True, timeout=20, check=True)
    assert first.stdout == "SUCCESS\n\nOK\n"
    second = subprocess.run(command, input=text, capture_output=True, text=True, timeout=20, check=True)
    assert second.stdout == f"FAILURE\n\n{key}\nmade\n"


def test_watch_from_a_past_revision_with_previous_values(
    shared_cluster: LocalCluster, endpoint: str, prefix: str
) -> None:
    key = prefix + "k"
    revision = as_json(shared_cluster, endpoint, "put", key, "1")["header"]["revision"]
    ok(shared_cluster, endpoint, "put", key, "2")
    ok(shared_cluster, endpoint, "del", key)
    command = [tool("etcdctl"), "--endpoints", endpoint, "watch", key, "--rev", str(revision), "--prev-kv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        try:
            lines = [watch.stdout.readline().rstrip("\n") for _ in range(12)]
        finally:
            watch.terminate()
    assert lines == ["PUT", key, "1", "PUT", key, "1", key, "2", "DELETE", key, "2", key]


def test_a_watch_goes_on_over_a_restart_of_its_member(own_cluster: LocalCluster) -> None:
    """A member that stops ends it with UNAVAILABLE, and etcdctl resumes at the revision it had seen."""
    endpoint = own_cluster.endpoints[0]
    command = [tool("etcdctl"), "--endpoints", endpoint, "watch", "k"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        timer = threading.Timer(60, watch.kill)  # reading lines has no timeout
        timer.start()
        try:
            seen = False
            while not seen:  # etcdctl does not say when its watch is established
                ok(own_cluster, endpoint, "put", "k", "before")
                seen = bool(select.select([watch.stdout], [], [], 0.2)[0])
            for command_ in ("stop-member", "start-member"):
                assert own_cluster.command(command_, "m1").code == 0
                ok(own_cluster, own_cluster.endpoints[1], "put", "k", f"after {command_}")
            lines: list[str] = []
            while "after start-member" not in lines:
                lines.append(watch.stdout.readline().rstrip("\n"))
                assert lines[-1], lines
        finally:
            timer.cancel()
            watch.terminate()
    assert "after stop-member" in lines


def test_a_compacted_revision_gives_etcds_own_error(
    shared_cluster: LocalCluster, endpoint: str, prefix: str
) -> None:
    revision = as_json(shared_cluster, endpoint, "put", prefix + "k", "1")["header"]["revision"]
    last = as_json(shared_cluster, endpoint, "put", prefix + "k", "2")["header"]["revision"]
    assert ok(shared_cluster, endpoint, "compact", str(last)) == f"compacted revision {last}\n"
    done = shared_cluster.etcdctl("get", prefix + "k", "--rev", str(revision), endpoint=endpoint)
    assert done.code == 1
    assert done.err.splitlines()[-1] == "Error: etcdserver: mvcc: required revision has been compacted"


def test_lease_grant_attach_keep_alive_revoke(shared_cluster: LocalCluster, endpoint: str, prefix: str) -> None:
    granted = ok(shared_cluster, endpoint, "lease", "grant", "60")
    match = re.fullmatch(r"lease ([0-9a-f]+) granted with TTL\(60s\)\n", granted)
    assert match
    lease = match[1]
    ok(shared_cluster, endpoint, "put", prefix + "k", "v", "--lease", lease)
    alive = ok(shared_cluster, endpoint, "lease", "keep-alive", "--once", lease)
    assert alive == f"lease {lease} keepalived with TTL(60)\n"
    left = ok(shared_cluster, endpoint, "lease", "timetolive", lease, "--keys")
    assert f"attached keys([{prefix}k])" in left
    assert ok(shared_cluster, endpoint, "lease", "revoke", lease) == f"lease {lease} revoked\n"
    assert ok(shared_cluster, endpoint, "get", prefix + "k") == ""


def test_a_lease_expires_and_takes_its_keys(shared_cluster: LocalCluster, endpoint: str, prefix: str) -> None:
    key = prefix + "k"
    lease = ok(shared_cluster, endpoint, "lease", "grant", "2").split()[1]
    revision = as_json(shared_cluster, endpoint, "put", key, "v", "--lease", lease)["header"]["revision"]
    command = [tool("etcdctl"), "--endpoints", endpoint, "watch", key, "--rev", str(revision + 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        try:
            assert watch.stdout.readline() == "DELETE\n"
        finally:
            watch.terminate()


def test_status_health_and_members(shared_cluster: LocalCluster, endpoint: str) -> None:
    table = ok(shared_cluster, endpoint, "endpoint", "status", "-w", "table")
    assert "RAFT APPLIED INDEX" in table
    assert "3.5.21" in table
    healthy = shared_cluster.etcdctl("endpoint", "health")
    assert (healthy.out + healthy.err).count("is healthy") == 3
    members = ok(shared_cluster, endpoint, "member", "list")
    assert members.count("started") == 3
    assert all(f", m{number}, " in members for number in (1, 2, 3))


def test_the_leadership_moves_where_it_is_told_and_nowhere_else(shared_cluster: LocalCluster) -> None:
    tool("etcdctl")
    status = [as_json(shared_cluster, url, "endpoint", "status")[0]["Status"] for url in shared_cluster.endpoints]
    ids = [each["header"]["member_id"] for each in status]
    leader = ids.index(status[0]["leader"])
    target = (leader + 1) % 3
    follower, old = shared_cluster.endpoints[target], shared_cluster.endpoints[leader]
    to = f"{ids[target]:x}"
    # etcdctl finds the leader among its endpoints; through a follower alone it cannot.
    done = shared_cluster.etcdctl("move-leader", to, endpoint=follower)
    assert done.code != 0
    assert "bad leader transferee" in shared_cluster.etcdctl("move-leader", "99", endpoint=old).err
    assert f"Leadership transferred from {ids[leader]:x} to {to}" in ok(shared_cluster, old, "move-leader", to)
    assert as_json(shared_cluster, old, "endpoint", "status")[0]["Status"]["leader"] == ids[target]
    assert ok(shared_cluster, old, "put", "/after-the-move", "v") == "OK\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("get", ""), "Error: etcdserver: key is not provided"),
        (("put", "k", "v", "--lease", "1234"), "Error: etcdserver: requested lease not found"),
        (("put", "k", "--ignore-value"), "Error: etcdserver: key not found"),
        (("compact", "999999999"), "Error: etcdserver: mvcc: required revision is a future revision"),
        (("get", "k", "--rev", "999999999"), "Error: etcdserver: mvcc: required revision is a future revision"),
        (("lease", "revoke", "77"), "Error: failed to revoke lease (etcdserver: requested lease not found)"),
    ],
)
def test_bad_requests_get_etcds_own_errors(
    shared_cluster: LocalCluster, arguments: tuple[str, ...], error: str
) -> None:
    tool("etcdctl")
    shared_cluster.etcdctl("del", "k")
    done = shared_cluster.etcdctl(*arguments)
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith(error)


def test_a_request_above_the_limit_is_refused_and_nothing_is_stored(shared_cluster: LocalCluster) -> None:
    etcdctl = tool("etcdctl")
    command = [etcdctl, "--endpoints", shared_cluster.endpoints[0], "put", "big"]
    done = subprocess.run(command, input="x" * 1_600_000, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "Error: etcdserver: request is too large"
    assert ok(shared_cluster, shared_cluster.endpoints[0], "get", "big") == ""
