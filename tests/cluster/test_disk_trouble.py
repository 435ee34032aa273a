"""A disk that is full, and files that are gone: the member says what is the matter, and loses nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raft import tailfile
from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2
from tests.cluster.harness import LocalCluster, wait_until
from tests.ports import free_base

pytestmark = pytest.mark.process


class Single:
    """A cluster of one, as a process of the test's own."""

    def __init__(self, directory: Path) -> None:
        base = free_base(2)
        self.url, self.peer = f"http://127.0.0.1:{base}", f"http://127.0.0.1:{base + 1}"
        self.directory = directory
        self.log = directory.with_suffix(".log")

    def start(self, limits: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "kvorum", "member", "--name", "n1", "--data-dir", str(self.directory),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer,
            "--initial-cluster", f"n1={self.peer}",
        ]  # fmt: skip
        self.log.touch()
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, stderr=log, preexec_fn=limits)
        wait_until(lambda: "leader in term" in self.log.read_text(), 10, "the member to lead")
        return process

    def last_line(self) -> str:
        return self.log.read_text().strip().splitlines()[-1]


@pytest.mark.parametrize("limit", [700_000, 4_500_000], ids=["without room for the tail", "with a tail"])
async def test_a_full_disk_ends_the_member_in_one_line_and_costs_no_acknowledged_write(
    limit: int, tmp_path: Path
) -> None:
    member = Single(tmp_path / "d")
    process = member.start(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert (member.directory / "member/raft.db-tail").exists() == (limit > tailfile.SIZE)
    acknowledged = []
    client = EtcdClient([member.url])
    try:
        for number in range(150):
            key = b"k%03d" % number
            try:
                await client.put(rpc_pb2.PutRequest(key=key, value=bytes(100_000)), timeout_s=10)
            except ClientError:
                break
            acknowledged.append(key)
        assert process.wait(10) == 1
        assert acknowledged
        assert "this member stops: " in member.last_line()
        assert "start it again" in member.last_line() or "start this member again" in member.last_line()
        assert "Traceback" not in member.last_line()

        process = member.start()
        # A client of its own: the old one has met the closed port, and its channel waits before it tries again.
        await client.aclose()
        client = EtcdClient([member.url])
        answer = await client.range(rpc_pb2.RangeRequest(key=b"k", range_end=b"l", keys_only=True), timeout_s=15)
        assert set(acknowledged) <= {kv.key for kv in answer.kvs}
    finally:
        await client.aclose()
        process.terminate()
        process.wait(10)


async def test_a_missing_log_beside_a_state_is_refused_even_when_no_peer_answers(
    own_cluster: LocalCluster,
) -> None:
    """Starting over would forget what this member acknowledged and voted, and the others might follow it."""
    assert own_cluster.etcdctl("put", "k", "v").code == 0
    victim = own_cluster.layout.members[1]
    for member in own_cluster.layout.members:
        own_cluster.command("stop-member", member.name)
    for path in Path(victim.data_dir, "member").glob("raft.db*"):
        path.unlink()
    refused = own_cluster.start_unchecked(victim.name)
    assert refused.code == 1
    assert "the raft log is missing beside a state database" in refused.err
    assert "remove it from the cluster" in refused.err
    own_cluster.command("start-member", own_cluster.layout.members[0].name)
    own_cluster.command("start-member", own_cluster.layout.members[2].name)
    wait_until(lambda: own_cluster.etcdctl("get", "k").out == "k\nv\n", 10, "the other two to go on")


async def test_what_an_interrupted_first_start_left_is_no_obstacle(tmp_path: Path) -> None:
    member = Single(tmp_path / "d")
    (tmp_path / "d/member").mkdir(parents=True)
    (tmp_path / "d/member/state.db").touch()
    process = member.start()
    client = EtcdClient([member.url])
    try:
        await client.put(rpc_pb2.PutRequest(key=b"k", value=b"v"), timeout_s=15)
    finally:
        await client.aclose()
        process.terminate()
        process.wait(10)
