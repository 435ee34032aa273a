"""A store survives its way through snapshot files: etcd to Kvorum and back, and every member of a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store.api.context import ApiOptions
from store.bbolt.reader import BoltFile
from store.etcdpb import rpc_pb2
from store.snapshots import check
from tests.snapshot.etcd import contents, etcd, etcdctl, etcdutl, fill, kvorum, stubs
from tests.store.loopback import serving

KEYS = int(os.environ.get("KVORUM_ROUND_TRIP_KEYS", "1000"))
"""50000 takes about a minute."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def buckets(path: Path) -> dict[bytes, dict[bytes, bytes]]:
    with BoltFile(path) as bolt:
        return {name: dict(bolt.items(name)) for name in bolt.buckets}


async def test_etcd_to_kvorum_to_etcd_changes_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    with etcd(tmp_path / "etcd") as endpoint:
        async with stubs(endpoint) as api:
            await fill(api, KEYS)
            expected = await contents(api)
            done = await kvorum("snapshot", "save", str(first), "--endpoints", f"http://{endpoint}")
            assert done.code == 0, done.err
    done = await kvorum("snapshot", "restore", str(first), "--data-dir", str(tmp_path / "ours"))
    assert done.code == 0, done.err
    async with serving(tmp_path / "ours" / "member" / "state.db", options=ApiOptions(quota_bytes=-1)) as node:
        endpoint = f"127.0.0.1:{node.port}"
        async with stubs(endpoint) as api:
            assert await contents(api) == expected
        done = await etcdctl(endpoint, "snapshot", "save", str(second))
        assert done.code == 0, done.err
    before, after = buckets(first), buckets(second)
    assert set(before) == set(after)
    for name in (b"key", b"lease", b"alarm", b"auth", b"authUsers", b"authRoles", b"cluster"):
        assert after[name] == before[name], name
    done = await etcdutl("snapshot", "restore", str(second), "--data-dir", str(tmp_path / "theirs"))
    assert done.code == 0, done.err
    with etcd(tmp_path / "theirs") as endpoint:
        async with stubs(endpoint) as api:
            assert await contents(api) == expected


async def test_etcdutl_and_kvorum_see_the_same_in_a_file_of_either(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.db", tmp_path / "ours.db"
    with etcd(tmp_path / "etcd") as endpoint:
        async with stubs(endpoint) as api:
            await fill(api, 300)
            assert (await etcdctl(endpoint, "snapshot", "save", str(theirs))).code == 0
    async with serving(tmp_path / "state.db") as node, stubs(f"127.0.0.1:{node.port}") as api:
        for i in range(200):
            await api.call(api.kv.Put, rpc_pb2.PutRequest(key=b"k%d" % (i % 50), value=b"v%d" % i))
        done = await kvorum("snapshot", "save", str(ours), "--endpoints", f"127.0.0.1:{node.port}")
        assert done.code == 0, done.err
        assert done.out == f"Snapshot saved at {ours}\n"
    for path in (theirs, ours):
        for output in ("simple", "table", "json", "fields"):
            expected = await etcdutl("snapshot", "status", str(path), "-w", output)
            found = await kvorum("snapshot", "status", str(path), "-w", output)
            assert (found.code, found.out) == (0, expected.out)
        check.check_checksum(path)
        assert check.verify(path) == check.status(path).revision


async def test_a_bare_database_of_a_data_directory_is_restored_when_told_to(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as endpoint:
        async with stubs(endpoint) as api:
            await fill(api, 300)
            expected = await contents(api)
            database = tmp_path / "etcd" / "member" / "snap" / "db"
            copy = tmp_path / "copy.db"
            assert (await etcdctl(endpoint, "snapshot", "save", str(tmp_path / "any.db"))).code == 0
            copy.write_bytes(database.read_bytes())
    target = tmp_path / "ours"
    done = await kvorum("snapshot", "restore", str(copy), "--data-dir", str(target))
    assert done.code == 1
    assert "--skip-hash-check" in done.err
    assert not target.exists()
    done = await kvorum("snapshot", "restore", str(copy), "--data-dir", str(target), "--skip-hash-check")
    assert done.code == 0, done.err
    async with serving(target / "member" / "state.db") as node, stubs(f"127.0.0.1:{node.port}") as api:
        assert await contents(api) == expected
