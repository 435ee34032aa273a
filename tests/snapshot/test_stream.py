"""The Snapshot RPC: the shape of its stream, one consistent state, a member that goes on (contract §9)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from kvorum import cli, snapshot
from store.api import snapshot as stream
from store.etcdpb import rpc_pb2
from store.snapshots import check
from store.snapshots.layout import BUCKETS
from tests.snapshot.etcd import Stubs, contents, kvorum, stubs
from tests.store.loopback import Node, serving

pytestmark = pytest.mark.process

BLOB_BYTES = 32768


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path / "state.db") as running:
        yield running


@pytest.fixture
async def api(node: Node) -> AsyncIterator[Stubs]:
    async with stubs(f"127.0.0.1:{node.port}") as made:
        yield made


async def put(api: Stubs, key: bytes, value: bytes = b"v") -> int:
    answer = await api.call(api.kv.Put, rpc_pb2.PutRequest(key=key, value=value))
    revision: int = answer.header.revision
    return revision


async def taken(api: Stubs) -> list[rpc_pb2.SnapshotResponse]:
    return [part async for part in api.maintenance.Snapshot(rpc_pb2.SnapshotRequest())]


def joined(parts: list[rpc_pb2.SnapshotResponse]) -> bytes:
    return b"".join(part.blob for part in parts)


async def test_blobs_count_down_and_the_last_is_the_checksum(api: Stubs) -> None:
    for i in range(30):
        await put(api, b"k%d" % i, bytes(10_000))
    parts = await taken(api)
    *blobs, last = parts
    data = joined(blobs)
    assert [len(part.blob) for part in blobs[:-1]] == [BLOB_BYTES] * (len(blobs) - 1)
    left = len(data)
    for part in blobs:
        left -= len(part.blob)
        assert part.remaining_bytes == left
    assert (left, last.remaining_bytes) == (0, 0)
    assert last.blob == hashlib.sha256(data).digest()
    assert len(data) % 512 == 0


async def test_a_file_has_all_buckets_of_etcd(api: Stubs, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.write_bytes(joined(await taken(api)))
    with check.open_snapshot(path) as bolt:
        assert bolt.buckets == [name.encode() for name in BUCKETS]
    assert check.status(path).revision == 0


async def test_writes_go_on_during_a_snapshot_which_shows_one_moment(
    api: Stubs, node: Node, tmp_path: Path
) -> None:
    """Each pair of keys is written in one transaction: a snapshot never has one without the other."""
    stop = asyncio.Event()
    written = 0

    async def write() -> None:
        nonlocal written
        while not stop.is_set():
            value = b"%d" % written
            ops = [
                rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key, value=value)) for key in (b"a", b"b")
            ]  # fmt: skip
            await api.call(api.kv.Txn, rpc_pb2.TxnRequest(success=ops))
            written += 1

    for i in range(40):
        await put(api, b"ballast/%d" % i, bytes(100_000))
    writer = asyncio.create_task(write())
    parts = await taken(api)
    during = written
    stop.set()
    await writer
    assert during > 10
    path = tmp_path / "snapshot.db"
    path.write_bytes(joined(parts))
    target = tmp_path / "restored"
    done = await kvorum("snapshot", "restore", str(path), "--data-dir", str(target))
    assert done.code == 0, done.err
    async with serving(target / "member" / "state.db") as copy, stubs(f"127.0.0.1:{copy.port}") as restored:
        found = await contents(restored)
        pair = {kv.key: (kv.value, kv.mod_revision) for kv in found["keys"] if kv.key in (b"a", b"b")}
        assert pair == {} or (pair[b"a"] == pair[b"b"] and len(pair) == 2)
        past = rpc_pb2.HashKVRequest(revision=found["revision"])
        assert (await api.call(api.maintenance.HashKV, past)).hash == found["hashes"][found["revision"]]
    assert node.machine.revision >= found["revision"]


async def test_a_client_that_leaves_ends_the_snapshot_and_nothing_is_left(api: Stubs, tmp_path: Path) -> None:
    for i in range(40):
        await put(api, b"k%d" % i, bytes(100_000))
    call = api.maintenance.Snapshot(rpc_pb2.SnapshotRequest())
    await call.read()
    call.cancel()
    assert (await taken(api))[-1].remaining_bytes == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.db", "state.db-shm", "state.db-wal"]


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and what it said on standard error."""
    code = cli.main(["snapshot", *arguments])
    return code, capsys.readouterr().err


def test_saving_from_nobody_or_from_several_fails_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CONNECT_TIMEOUT_S", 0.2)
    for endpoints, problem in (
        ("http://127.0.0.1:1", "http://127.0.0.1:1 cannot be reached"),
        ("http://127.0.0.1:1,http://127.0.0.1:2", "one member"),
        ("ftp://127.0.0.1:1", "not http://HOST:PORT"),
    ):
        code, error = command(capsys, "save", str(tmp_path / "x.db"), "--endpoints", endpoints)
        assert (code, error.count("\n")) == (1, 1)
        assert problem in error
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_of_restore_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, target = str(tmp_path / "x.db"), str(tmp_path / "d")
    for flags in (
        ("--bump-revision", "5"),
        ("--mark-compacted",),
        ("--bump-revision", "-5", "--mark-compacted"),
        ("--name", "a", "--initial-cluster", "b=http://127.0.0.1:1"),
        ("--initial-advertise-peer-urls", "nowhere"),
    ):
        code, error = command(capsys, "restore", file, "--data-dir", target, *flags)
        assert (code, error.count("\n")) == (2, 1), error
    assert command(capsys, "restore", file, "--data-dir", target) == (
        1,
        f"kvorum: {file}: No such file or directory\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", ["save", "status", "restore"])
def test_every_snapshot_command_has_help_with_an_example(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["snapshot", action, "--help"])
    assert left.value.code == 0
    assert "example:\n  kvorum snapshot" in capsys.readouterr().out


async def test_answers_of_downgrade(api: Stubs) -> None:
    downgrade, request = api.maintenance.Downgrade, rpc_pb2.DowngradeRequest
    answer = await api.call(downgrade, request(action=request.VALIDATE, version="3.4"))
    assert answer.version == "3.5.0"
    assert (await api.call(downgrade, request(action=request.VALIDATE, version="3.4.0"))).version == "3.5.0"
    for action, version, code, text in (
        (request.VALIDATE, "soon", grpc.StatusCode.INVALID_ARGUMENT, "wrong downgrade target version format"),
        (request.ENABLE, "", grpc.StatusCode.INVALID_ARGUMENT, "wrong downgrade target version format"),
        (request.VALIDATE, "3.5.0", grpc.StatusCode.INVALID_ARGUMENT, "invalid downgrade target version"),
        (request.ENABLE, "3.3.0", grpc.StatusCode.INVALID_ARGUMENT, "invalid downgrade target version"),
        (request.CANCEL, "", grpc.StatusCode.FAILED_PRECONDITION, "no inflight downgrade job"),
        (request.ENABLE, "3.4.0", grpc.StatusCode.UNIMPLEMENTED, "no older release"),
        (7, "3.4.0", grpc.StatusCode.UNKNOWN, "unknown method"),
    ):
        command = request(version=version)
        command.action = action  # type: ignore[assignment]  # any number travels through an open enum
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await api.call(downgrade, command)
        assert caught.value.code() == code
        assert text in (caught.value.details() or "")


async def test_a_snapshot_cancelled_as_its_process_ends_is_cancelled_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may end between the cancellation and the kill: killing it then finds nobody."""
    converting = asyncio.Event()

    class Ended:
        returncode = 0

        async def communicate(self) -> tuple[bytes, bytes]:
            converting.set()
            await asyncio.Event().wait()
            raise AssertionError

        def kill(self) -> None:
            raise ProcessLookupError

        async def wait(self) -> int:
            return 0

    async def start(*_command: str, **_options: object) -> Ended:
        return Ended()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with (tmp_path / "out").open("wb") as out:
        task = asyncio.create_task(stream._convert(tmp_path / "state.db", out))
        await converting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
