"""Recovery from a snapshot, as operators do it: three members, a client that remembers the old timeline.

Without a bump the revision rewinds, and clients of the old timeline miss what is written until it has caught
up. With a bump they are told that their revision is compacted, at once, and list again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc
import pytest

from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2
from tests.cluster.harness import LocalCluster
from tests.snapshot.etcd import contents, kvorum, stubs

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

LOST_WRITES = 300
"""Acknowledged after the snapshot was taken, and gone with the disaster."""
BUMP = 1_000_000


async def write(client: EtcdClient, key: bytes, value: bytes = b"v") -> int:
    return (await client.put(rpc_pb2.PutRequest(key=key, value=value))).header.revision


async def recover(cluster: LocalCluster, file: Path, *flags: str) -> None:
    """Stop everything, lose every disk, restore each member from the file, start again."""
    assert cluster.down().code == 0
    members = cluster.layout.members
    initial = ",".join(f"{member.name}={member.peer_url}" for member in members)
    for member in members:
        shutil.rmtree(member.data_dir)
        done = await kvorum(
            "snapshot", "restore", str(file), "--name", member.name, "--data-dir", member.data_dir,
            "--initial-cluster", initial, "--initial-advertise-peer-urls", member.peer_url,
            "--initial-cluster-token", "after-the-disaster", *flags,
        )  # fmt: skip
        assert done.code == 0, done.err
    done = cluster.up()
    assert done.code == 0, f"{done.err}\n{cluster.logs()}"


async def disaster(cluster: LocalCluster, file: Path, *flags: str) -> tuple[int, int]:
    """Write, take a snapshot, write more, lose everything, recover; the revisions at the snapshot and the end."""
    client = EtcdClient(cluster.endpoints)
    try:
        for i in range(50):
            saved = await write(client, b"/drill/%d" % (i % 20), b"saved %d" % i)
        lease = await client.lease_grant(3600, 77)
        await client.put(rpc_pb2.PutRequest(key=b"/drill/leased", lease=lease))
        done = await kvorum("snapshot", "save", str(file), "--endpoints", cluster.endpoints[0])
        assert done.code == 0, done.err
        saved = (await client.range(rpc_pb2.RangeRequest(key=b"x"))).header.revision
        for i in range(LOST_WRITES):
            lost = await write(client, b"/drill/lost", b"%d" % i)
    finally:
        await client.aclose()
    await recover(cluster, file, *flags)
    return saved, lost


async def refusal(client: EtcdClient, revision: int) -> str:
    with pytest.raises(ClientError) as caught:
        await client.range(rpc_pb2.RangeRequest(key=b"/drill/1", revision=revision))
    assert caught.value.code == grpc.StatusCode.OUT_OF_RANGE
    return caught.value.text


async def check_members(cluster: LocalCluster) -> None:
    """Every member holds the same history and serves it."""
    found = []
    for endpoint in cluster.endpoints:
        async with stubs(endpoint.removeprefix("http://")) as api:
            await api.call(api.kv.Range, rpc_pb2.RangeRequest(key=b"x"))
            found.append(await contents(api))
    assert found[0] == found[1] == found[2]
    drill = {pair.key: pair.value for pair in found[0]["keys"] if pair.key.startswith(b"/drill/")}
    assert drill[b"/drill/19"] == b"saved 39"
    assert b"/drill/lost" not in drill
    assert found[0]["leases"][77] == (3600, [b"/drill/leased"])


async def test_a_plain_restore_rewinds_and_old_watchers_miss_writes(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    _, lost = await disaster(own_cluster, tmp_path / "backup.db")
    await check_members(own_cluster)
    client = EtcdClient(own_cluster.endpoints)
    try:
        assert "future revision" in await refusal(client, lost)
        watch = await client.watch(rpc_pb2.WatchCreateRequest(key=b"/drill/1", start_revision=lost + 1))
        assert not watch.created.canceled
        missed = await write(client, b"/drill/1", b"missed")
        assert missed < lost
        while await write(client, b"/drill/other") <= lost:
            pass
        seen = await write(client, b"/drill/1", b"seen")
        response = await watch.read()
        assert [(event.kv.value, event.kv.mod_revision) for event in response.events] == [(b"seen", seen)]
        await watch.aclose()
    finally:
        await client.aclose()


async def test_a_bumped_restore_tells_every_old_client_to_list_again(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    flags = ("--bump-revision", str(BUMP), "--mark-compacted")
    saved, lost = await disaster(own_cluster, tmp_path / "backup.db", *flags)
    client = EtcdClient(own_cluster.endpoints)
    try:
        for revision in (saved, lost, lost + 1):
            assert "compacted" in await refusal(client, revision)
            request = rpc_pb2.WatchCreateRequest(key=b"/drill/1", start_revision=revision)
            watch = await client.watch(request)
            response = await watch.read()
            assert (response.canceled, response.compact_revision) == (True, saved + BUMP)
            await watch.aclose()
        listed = await client.range(rpc_pb2.RangeRequest(key=b"/drill/", range_end=b"/drill0"))
        assert listed.header.revision >= saved + BUMP
        assert listed.kvs[0].mod_revision <= saved
        start = listed.header.revision + 1
        watch = await client.watch(rpc_pb2.WatchCreateRequest(key=b"/drill/1", start_revision=start))
        written = await write(client, b"/drill/1", b"new timeline")
        assert written > lost
        response = await watch.read()
        assert [(event.kv.value, event.kv.mod_revision) for event in response.events] == [
            (b"new timeline", written)
        ]
        await watch.aclose()
    finally:
        await client.aclose()
    await check_members(own_cluster)
