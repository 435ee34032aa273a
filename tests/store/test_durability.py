"""What is on disk is always whole entries with the index that describes them (architecture §2)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from store.errors import COMPACTED, EtcdError
from store.etcdpb import rpc_pb2
from store.machine import Machine, MachineOptions
from store.mvcc.ranges import RangeResult
from store.mvcc.txn import TxnResult
from tests.store.driver import Driver
from tests.store.watching import Client

EVERYTHING = rpc_pb2.RangeRequest(key=b"\x00", range_end=b"\x00")


async def test_a_crash_between_flushes_loses_whole_entries_only(tmp_path: Path) -> None:
    """Every entry changes two keys and a lease; after a crash all three agree with the applied index."""
    path = tmp_path / "state.db"
    driver = Driver(path, MachineOptions(flush_interval_s=3600))
    await driver.start()
    op = rpc_pb2.RequestOp
    for i in range(1, 101):
        driver.apply(
            rpc_pb2.TxnRequest(
                success=[
                    op(request_put=rpc_pb2.PutRequest(key=b"x", value=b"%d" % i)),
                    op(request_put=rpc_pb2.PutRequest(key=b"y", value=b"%d" % i)),
                ]
            )
        )
        if i == 60:
            await driver.machine.flush()
    await driver.crash()
    await driver.start()
    assert (driver.machine.applied_index, driver.machine.revision) == (60, 61)
    answer = await driver.ask(EVERYTHING)
    assert [pair.value for pair in answer.kvs] == [b"60", b"60"]
    assert driver.machine.flushed_index == driver.machine.durable_index == 60
    await driver.stop()


async def test_a_killed_process_leaves_index_and_data_that_agree(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    program = (
        "import asyncio, sys, pathlib\n"
        "from store.machine import Machine, MachineOptions\n"
        "from store.etcdpb import internal_pb2, rpc_pb2\n"
        "async def main():\n"
        "    machine = await Machine.open(pathlib.Path(sys.argv[1]), MachineOptions(flush_interval_s=0.002))\n"
        "    running = asyncio.create_task(machine.run())\n"
        "    for i in range(1, 1000000):\n"
        "        put = rpc_pb2.PutRequest(key=b'k%d' % (i % 50), value=b'%d' % i)\n"
        "        machine.apply(i, 1, internal_pb2.InternalRequest(put=put))\n"
        "        if i % 20 == 0:\n"
        "            await asyncio.sleep(0)\n"
        "        if i % 100 == 0 and machine.flushed_index > 400:\n"
        "            print('flushed', machine.flushed_index, flush=True)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path), stdout=PIPE)
    assert process.stdout is not None
    promised = int((await process.stdout.readline()).split()[1])
    process.kill()
    await process.wait()
    async with Driver(path) as driver:
        applied = driver.machine.applied_index
        assert applied >= promised
        assert driver.machine.revision == applied + 1
        newest = max((await driver.ask(EVERYTHING)).kvs, key=lambda pair: pair.mod_revision)
        assert (newest.mod_revision, newest.value) == (applied + 1, b"%d" % applied)


async def test_entries_without_effect_still_move_the_index_on_disk(tmp_path: Path) -> None:
    async with Driver(tmp_path / "state.db") as driver:
        driver.machine.apply_system(1, 3, {})
        driver.machine.apply_system(2, 3, {("members", b"a1"): b"{}", ("meta", b"confState"): b"{}"})
        await driver.stop()
        await driver.start()
        assert (driver.machine.applied_index, driver.machine.applied_term) == (2, 3)
        assert driver.machine.bucket("members") == {b"a1": b"{}"}
        driver.machine.apply_system(3, 3, {("members", b"a1"): None})
        await driver.stop()
        await driver.start()
        assert driver.machine.bucket("members") == {}


async def test_an_entry_out_of_order_is_refused(tmp_path: Path) -> None:
    async with Driver(tmp_path / "state.db") as driver:
        driver.put(b"a")
        with pytest.raises(ValueError, match="already applied"):
            driver.machine.apply_system(1, 1, {})


async def test_backpressure_waits_until_the_buffer_is_written(tmp_path: Path) -> None:
    options = MachineOptions(flush_interval_s=3600, buffer_limit_bytes=1000)
    async with Driver(tmp_path / "state.db", options) as driver:
        await driver.machine.backpressure()
        driver.put(b"a", b"v" * 2000)
        assert driver.machine.flushed_index == 0
        await driver.machine.backpressure()
        assert driver.machine.flushed_index == 1


async def test_a_flush_that_was_cancelled_is_made_up_for(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "state.db", MachineOptions(flush_interval_s=3600))
    await driver.start()
    for _ in range(3):
        driver.put(b"a")
        driver.machine.store("members", b"m", b"1")
        flush = asyncio.create_task(driver.machine.flush())
        await asyncio.sleep(0)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
    await driver.stop()
    await driver.start()
    assert (driver.machine.revision, dict(driver.machine.bucket("members"))) == (4, {b"m": b"1"})
    await driver.stop()


async def test_what_a_failed_flush_took_is_written_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError("no disk")

    driver = Driver(tmp_path / "state.db", MachineOptions(flush_interval_s=3600))
    await driver.start()
    driver.machine.apply_system(1, 1, {("members", b"m"): b"1"})
    with monkeypatch.context() as broken:
        broken.setattr(driver.machine.backend, "commit", fail)
        with pytest.raises(OSError, match="no disk"):
            await driver.machine.flush()
    assert driver.machine.flushed_index == 0
    await driver.stop()
    await driver.start()
    assert (driver.machine.applied_index, dict(driver.machine.bucket("members"))) == (1, {b"m": b"1"})
    await driver.stop()


async def test_compaction_waits_for_the_rows_an_answer_still_needs(tmp_path: Path) -> None:
    async with Driver(tmp_path / "state.db") as driver:
        for value in (b"1", b"2", b"3"):
            driver.put(b"a", value)
        old = rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=b"a", revision=2))
        put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=b"b"))
        result = driver.apply(rpc_pb2.TxnRequest(success=[put, old]))
        driver.apply(rpc_pb2.CompactionRequest(revision=4))
        finished = asyncio.create_task(driver.machine.compactor.wait_finished(4))
        await driver.machine.flush()
        done, _ = await asyncio.wait([finished], timeout=0.05)
        assert not done
        assert isinstance(result, TxnResult)
        await driver.machine.resolve(result)
        found = result.responses[1]
        assert isinstance(found, RangeResult)
        assert b"1" in found.pairs[0]
        await finished


async def test_an_interrupted_compaction_is_finished_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    driver = Driver(path)
    await driver.start()
    for _ in range(50):
        driver.put(b"a")
    driver.apply(rpc_pb2.CompactionRequest(revision=40))
    await driver.machine.flush()
    await driver.crash()
    await driver.start()
    with pytest.raises(EtcdError) as caught:
        await driver.ask(rpc_pb2.RangeRequest(key=b"a", revision=39))
    assert caught.value == COMPACTED
    await driver.machine.compactor.wait_finished(40)
    await driver.stop()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT min(rev) >> 24, count(*) FROM kv").fetchone() == (40, 12)
    db.close()


async def test_a_snapshot_is_the_state_at_its_index_and_installs_elsewhere(tmp_path: Path) -> None:
    async with Driver(tmp_path / "a.db") as source, Driver(tmp_path / "b.db") as target:
        source.apply(rpc_pb2.LeaseGrantRequest(ID=9, TTL=60))
        target.apply(rpc_pb2.LeaseGrantRequest(ID=9, TTL=60))
        watcher = Client(target.machine)
        await watcher.create(b"k0")
        for i in range(30):
            source.put(b"k%d" % (i % 3), b"%d" % i, lease=9)
            if i < 8:
                target.put(b"k%d" % (i % 3), b"%d" % i, lease=9)
        index, term = await source.machine.snapshot_to(tmp_path / "snapshot.db")
        assert (index, term) == (31, 1)
        source.put(b"later")
        await target.machine.install(tmp_path / "snapshot.db")
        assert target.machine.applied_index == target.machine.durable_index == 31
        assert (await target.machine.hash_kv(0))[0] == (await source.machine.hash_kv(31))[0]
        assert target.machine.state.leases.get(9) is not None
        seen = [revision for revision, _, _ in await watcher.events(10)]
        assert seen == list(range(2, 32, 3))
        target.put(b"k0")
        await target.stop()
        await target.start()
        assert (target.machine.applied_index, target.machine.revision) == (32, 32)


async def test_a_snapshot_that_is_older_or_no_database_changes_nothing(tmp_path: Path) -> None:
    async with Driver(tmp_path / "a.db") as driver:
        driver.put(b"a")
        await driver.machine.snapshot_to(tmp_path / "old.db")
        driver.put(b"a")
        with pytest.raises(ValueError, match="not newer"):
            await driver.machine.install(tmp_path / "old.db")
        (tmp_path / "bad.db").write_bytes(b"nonsense" * 1000)
        with pytest.raises(sqlite3.Error):
            await driver.machine.install(tmp_path / "bad.db")
        assert driver.put(b"a") == 4


async def test_a_file_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ValueError, match="newer"):
        await Machine.open(path)


async def test_a_watcher_that_comes_while_a_snapshot_is_installed_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Driver(tmp_path / "a.db") as source, Driver(tmp_path / "b.db") as target:
        for i in range(6):
            source.put(b"k", b"%d" % i)
            if i < 3:
                target.put(b"k", b"%d" % i)
        await source.machine.snapshot_to(tmp_path / "snapshot.db")
        watcher, checkpoint = Client(target.machine), target.machine.checkpoint

        async def watched_checkpoint() -> None:
            await watcher.create(b"k", start_revision=6)
            for _ in range(5):
                await asyncio.sleep(0)
            await checkpoint()

        monkeypatch.setattr(target.machine, "checkpoint", watched_checkpoint)
        await target.machine.install(tmp_path / "snapshot.db")
        monkeypatch.undo()
        assert [revision for revision, _, _ in await watcher.events(2)] == [6, 7]
