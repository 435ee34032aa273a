"""Changing the members of a running cluster while clients write; every acknowledged write is checked."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.client import EtcdClient
from tests.cluster.harness import LocalCluster, wait_until
from tests.cluster.writing import check_members, writing
from tests.ports import free_base

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@contextmanager
def extra_member(
    cluster: LocalCluster, name: str, client: str, peer: str, directory: Path, initial: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A member beside those that 'kvorum up' started."""
    command = [
        sys.executable, "-m", "kvorum", "member", "--name", name, "--data-dir", str(directory),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", initial, "--initial-cluster-state", "existing",
    ]  # fmt: skip
    with (cluster.directory / f"{name}.log").open("ab") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


def member_id(cluster: LocalCluster, name: str) -> str:
    for line in cluster.etcdctl("member", "list").out.splitlines():
        fields = line.split(", ")
        if fields[2] == name:
            return fields[0]
    raise AssertionError(f"no member {name}")


def ok(cluster: LocalCluster, *arguments: str) -> str:
    done = cluster.etcdctl(*arguments)
    assert done.code == 0, done.err
    return done.out


def initial_cluster(cluster: LocalCluster, **more: str) -> str:
    urls = {member.name: member.peer_url for member in cluster.layout.members} | more
    return ",".join(f"{name}={url}" for name, url in urls.items())


def add_member(cluster: LocalCluster, name: str, peer: str, *extra: str) -> bool:
    return cluster.etcdctl("member", "add", name, "--peer-urls", peer, *extra).code == 0


def promote(cluster: LocalCluster, number: str) -> bool:
    return cluster.etcdctl("member", "promote", number).code == 0


def has_all(url: str, revision: int) -> bool:
    async def ask() -> int:
        client = EtcdClient([url])
        try:
            return int((await client.status(timeout_s=2)).header.revision)
        finally:
            await client.aclose()

    return asyncio.run(ask()) >= revision


async def test_a_fourth_member_learns_is_promoted_and_replaces_the_old_leader(own_cluster: LocalCluster) -> None:
    base = free_base(2)
    client, peer = f"http://127.0.0.1:{base}", f"http://127.0.0.1:{base + 1}"
    directory = own_cluster.directory / "m4"
    async with writing(own_cluster.endpoints) as writer:
        leader = await asyncio.to_thread(own_cluster.leader)
        # the strict check wants a quorum in contact for five seconds before members change
        await asyncio.to_thread(
            wait_until,
            lambda: add_member(own_cluster, "m4", peer, "--learner"),
            15.0,
            "the learner to be accepted",
        )
        with extra_member(own_cluster, "m4", client, peer, directory, initial_cluster(own_cluster, m4=peer)):
            number = await asyncio.to_thread(_started_id, own_cluster, "m4")
            await asyncio.to_thread(wait_until, lambda: promote(own_cluster, number), 15.0, "the promotion")
            old = await asyncio.to_thread(member_id, own_cluster, leader)
            await asyncio.to_thread(ok, own_cluster, "member", "remove", old)
            process = own_cluster.layout.member(leader).process
            await asyncio.to_thread(wait_until, lambda: not process.alive(), 10.0, "the removed member to stop")
            await writer.next_ack(5)
            left = [m.client_url for m in own_cluster.layout.members if m.name != leader]
            await writer.finish()
            await check_members([*left, client], writer)


def _started_id(cluster: LocalCluster, name: str) -> str:
    """The id of a member once it has started and said its name."""
    wait_until(lambda: f", started, {name}, " in cluster.etcdctl("member", "list").out, 15.0, f"{name} to start")
    return member_id(cluster, name)


async def test_a_member_whose_data_was_wiped_is_refused_as_itself_and_replaced(own_cluster: LocalCluster) -> None:
    async with writing(own_cluster.endpoints) as writer:
        leader = await asyncio.to_thread(own_cluster.leader)
        lost = next(member for member in own_cluster.layout.members if member.name != leader)
        await asyncio.to_thread(own_cluster.command, "kill-member", lost.name)
        shutil.rmtree(lost.data_dir)
        refused = await asyncio.to_thread(own_cluster.start_unchecked, lost.name)
        assert refused.code == 1
        assert "has run before" in refused.err
        assert "remove it from the cluster, add it again" in refused.err

        old = await asyncio.to_thread(member_id, own_cluster, lost.name)
        await asyncio.to_thread(ok, own_cluster, "member", "remove", old)
        await asyncio.to_thread(
            wait_until,
            lambda: own_cluster.etcdctl("member", "add", lost.name, "--peer-urls", lost.peer_url).code == 0,
            15.0,
            "the member to be accepted again",
        )
        with extra_member(
            own_cluster,
            lost.name,
            lost.client_url,
            lost.peer_url,
            Path(lost.data_dir),
            initial_cluster(own_cluster),
        ):
            await asyncio.to_thread(_started_id, own_cluster, lost.name)
            await writer.next_ack(5)
            await writer.finish()
            await check_members(own_cluster.endpoints, writer)


async def test_a_member_that_was_away_too_long_catches_up_by_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_SNAPSHOT_COUNT", "50")
    monkeypatch.setenv("ETCD_SNAPSHOT_CATCHUP_ENTRIES", "10")
    cluster = LocalCluster(tmp_path / "c")
    assert (await asyncio.to_thread(cluster.up)).code == 0
    try:
        async with writing(cluster.endpoints) as writer:
            leader = await asyncio.to_thread(cluster.leader)
            away = next(member for member in cluster.layout.members if member.name != leader)
            await asyncio.to_thread(cluster.command, "kill-member", away.name)
            target = len(writer.acked) + 400
            while len(writer.acked) < target:
                await writer.next_ack(5)
            await asyncio.to_thread(cluster.command, "start-member", away.name)
            revision = max(writer.acked.values())
            await asyncio.to_thread(wait_until, lambda: has_all(away.client_url, revision), 15.0, "it to catch up")
            await writer.finish()
        await check_members(cluster.endpoints, writer)
        assert "snapshot" in cluster.log_of(away.name), "the log was not truncated, so nothing was tested"
    finally:
        await asyncio.to_thread(cluster.down)


async def test_a_single_survivor_goes_on_alone_with_force_new_cluster(own_cluster: LocalCluster) -> None:
    async with writing(own_cluster.endpoints) as writer:
        while len(writer.acked) < 50:
            await writer.next_ack(5)
    layout = own_cluster.layout
    for member in layout.members:
        await asyncio.to_thread(own_cluster.command, "kill-member", member.name)
    survivor = layout.members[0]
    command = [
        sys.executable, "-m", "kvorum", "member", "--name", survivor.name, "--data-dir", survivor.data_dir,
        "--listen-client-urls", survivor.client_url, "--advertise-client-urls", survivor.client_url,
        "--listen-peer-urls", survivor.peer_url, "--initial-advertise-peer-urls", survivor.peer_url,
        "--initial-cluster", f"{survivor.name}={survivor.peer_url}", "--force-new-cluster",
    ]  # fmt: skip
    with started(command) as process:
        try:
            await asyncio.to_thread(
                wait_until,
                lambda: own_cluster.etcdctl("put", "alone", "1", endpoint=survivor.client_url).code == 0,
                15.0,
                "the survivor to serve writes",
            )
            members = own_cluster.etcdctl("member", "list", endpoint=survivor.client_url).out
            assert members.count("\n") == 1
            assert survivor.name in members
            await check_members([survivor.client_url], writer)
        finally:
            process.terminate()


@pytest.mark.parametrize("url", ["http://h:99999"])
async def test_a_member_updated_to_a_useless_url_costs_no_other_member(
    own_cluster: LocalCluster, url: str
) -> None:
    """etcd takes any text there; it must not end a member, now or at its next start."""
    leader = await asyncio.to_thread(own_cluster.leader)
    victim = next(member for member in own_cluster.layout.members if member.name != leader)
    number = await asyncio.to_thread(member_id, own_cluster, victim.name)
    await asyncio.to_thread(own_cluster.etcdctl, "member", "update", number, f"--peer-urls={url}")
    others = [member for member in own_cluster.layout.members if member.name != victim.name]
    for member in others:
        await asyncio.to_thread(own_cluster.command, "stop-member", member.name)
    for member in others:
        await asyncio.to_thread(own_cluster.command, "start-member", member.name)
    reached = ",".join(member.client_url for member in others)  # nobody reaches the third, so it knows no leader
    await asyncio.to_thread(
        wait_until,
        lambda: own_cluster.etcdctl("put", "k", "v", endpoint=reached).code == 0,
        15.0,
        "the other two to accept writes",
    )
    assert all(member.process.alive() for member in own_cluster.layout.members)
