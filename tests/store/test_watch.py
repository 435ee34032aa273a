"""The watch guarantees of contract §6."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store.etcdpb import rpc_pb2
from store.machine import MachineOptions
from store.mvcc.position import SUB_BITS
from store.mvcc.record import Event, Version, tombstone
from store.watch import hub
from store.watch import stream as streams
from store.watch.hub import BATCH_BYTES, HistoryBatch
from tests.store.driver import Driver
from tests.store.watching import Client, summary


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    async with Driver(tmp_path / "state.db") as running:
        yield running


@pytest.fixture
def client(driver: Driver) -> Client:
    return Client(driver.machine)


def txn(*ops: rpc_pb2.RequestOp) -> rpc_pb2.TxnRequest:
    return rpc_pb2.TxnRequest(success=ops)


def put_op(key: bytes) -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key, value=b"v"))


def delete_op(key: bytes, end: bytes = b"") -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=key, range_end=end))


# -- creation and cancellation ----------------------------------------------------------------------------


async def test_created_comes_first_with_the_current_revision(driver: Driver, client: Client) -> None:
    driver.put(b"a")
    created = await client.create(b"a", start_revision=1)
    assert (created.created, created.watch_id, created.header.revision) == (True, 0, 2)
    assert summary(await client.receive()) == [(2, "PUT", b"a")]


async def test_ids_are_picked_around_those_in_use_and_reused_after_cancel(client: Client) -> None:
    assert (await client.create(b"a", watch_id=1)).watch_id == 1
    assert (await client.create(b"a")).watch_id == 0
    assert (await client.create(b"a")).watch_id == 2
    refused = await client.create(b"a", watch_id=1)
    assert (refused.created, refused.canceled, refused.watch_id) == (True, True, -1)
    assert refused.cancel_reason == "mvcc: duplicate watch ID provided on the WatchStream"
    await client.cancel(1)
    assert (await client.receive()).canceled
    assert not (await client.create(b"a", watch_id=1)).canceled


async def test_a_range_that_holds_no_key_is_refused(client: Client) -> None:
    refused = await client.create(b"b", b"a")
    assert (refused.canceled, refused.watch_id, refused.cancel_reason) == (
        True,
        -1,
        "mvcc: watcher range is empty",
    )


async def test_a_negative_start_revision_is_refused_as_compacted(client: Client) -> None:
    refused = await client.create(b"a", start_revision=-1)
    assert (refused.created, refused.canceled, refused.watch_id) == (True, True, -1)
    assert refused.cancel_reason == "etcdserver: mvcc: required revision has been compacted"


async def test_an_empty_key_is_the_key_zero_or_with_range_end_zero_everything(
    driver: Driver, client: Client
) -> None:
    await client.create(b"", b"\x00")
    driver.put(b"anything")
    assert await client.events(1) == [(2, "PUT", b"anything")]


async def test_cancel_of_an_unknown_id_is_not_answered(driver: Driver, client: Client) -> None:
    await client.cancel(77)
    assert await client.is_silent(driver.machine)


async def test_nothing_is_delivered_after_cancel(driver: Driver, client: Client) -> None:
    await client.create(b"a")
    await client.cancel(0)
    assert (await client.receive()).canceled
    driver.put(b"a")
    assert await client.is_silent(driver.machine)


# -- events -----------------------------------------------------------------------------------------------


async def test_all_events_of_a_revision_come_in_one_answer_in_order(driver: Driver, client: Client) -> None:
    for key in (b"k3", b"k1"):
        driver.put(key)
    await client.create(b"k", b"l")
    driver.apply(txn(put_op(b"k9"), delete_op(b"k1", b"k5"), put_op(b"x"), put_op(b"k0")))
    live = await client.receive()
    assert summary(live) == [(4, "PUT", b"k9"), (4, "DELETE", b"k1"), (4, "DELETE", b"k3"), (4, "PUT", b"k0")]
    assert live.header.revision == 4


async def test_start_in_the_future_hears_nothing_before(driver: Driver, client: Client) -> None:
    await client.create(b"a", start_revision=4)
    for _ in range(3):
        driver.put(b"a")
    assert await client.events(1) == [(4, "PUT", b"a")]


async def test_history_then_live_without_gap_or_repetition(driver: Driver, client: Client) -> None:
    """The watcher catches up over three batches while the writer goes on."""
    for i in range(2500):
        driver.put(b"k%d" % (i % 7))
    await client.create(b"k", b"l", start_revision=2)
    seen: list[tuple[int, str, bytes]] = []
    for i in range(500):
        driver.put(b"k%d" % (i % 7))
        if i % 50 == 0:
            seen += summary(await client.receive())
    seen += await client.events(3000 - len(seen))
    assert [revision for revision, _, _ in seen] == list(range(2, 3002))


async def test_history_from_disk_equals_history_from_memory(driver: Driver) -> None:
    def commands() -> None:
        driver.put(b"a")
        driver.put(b"b")
        driver.apply(txn(put_op(b"a"), put_op(b"c"), delete_op(b"b")))
        driver.delete(b"a", b"d")
        driver.put(b"a")

    commands()
    answers = []
    for _ in ("memory", "disk"):
        client = Client(driver.machine)
        await client.create(b"a", b"\x00", start_revision=1, prev_kv=True)
        answers.append(await client.receive())
        await driver.stop()
        await driver.start()
    assert answers[0] == answers[1]
    assert len(answers[0].events) == 8


async def test_a_batch_from_history_never_splits_a_revision(tmp_path: Path) -> None:
    options = MachineOptions(history_bytes=200)
    async with Driver(tmp_path / "state.db", options) as driver:
        for _ in range(20):
            driver.apply(txn(*(put_op(b"k%02d" % i) for i in range(9))))
        await driver.stop()
        await driver.start()
        client = Client(driver.machine)
        await client.create(b"k", b"l", start_revision=1)
        seen = 0
        while seen < 20:
            events = summary(await client.receive())
            assert len(events) % 9 == 0
            seen += len(events) // 9


async def test_prev_kv_is_the_pair_before_and_unset_for_creations(driver: Driver, client: Client) -> None:
    await client.create(b"a", prev_kv=True)
    for value in (b"1", b"2"):
        driver.put(b"a", value)
    driver.delete(b"a")
    created, updated, deleted = [(await client.receive()).events[0] for _ in range(3)]
    assert not created.HasField("prev_kv")
    assert (updated.prev_kv.value, updated.prev_kv.mod_revision, updated.kv.value) == (b"1", 2, b"2")
    assert (deleted.prev_kv.value, deleted.kv.value, deleted.kv.mod_revision) == (b"2", b"", 4)


async def test_prev_kv_that_a_compaction_dropped_is_unset(driver: Driver) -> None:
    for value in (b"1", b"2", b"3"):
        driver.put(b"a", value)
    driver.apply(rpc_pb2.CompactionRequest(revision=3))
    for _ in ("memory", "disk"):
        client = Client(driver.machine)
        await client.create(b"a", start_revision=3, prev_kv=True)
        first, second = (await client.receive()).events
        assert not first.HasField("prev_kv")
        assert second.prev_kv.value == b"2"
        await driver.machine.compactor.wait_finished(3)
        await driver.stop()
        await driver.start()


async def test_filters_drop_events_and_an_empty_answer_is_not_sent(driver: Driver, client: Client) -> None:
    no_put, no_delete = rpc_pb2.WatchCreateRequest.NOPUT, rpc_pb2.WatchCreateRequest.NODELETE
    await client.create(b"a", filters=[no_put])
    await client.create(b"a", filters=[no_delete])
    driver.put(b"a")
    driver.delete(b"a")
    first, second = await client.receive(), await client.receive()
    assert (first.watch_id, summary(first)) == (1, [(2, "PUT", b"a")])
    assert (second.watch_id, summary(second)) == (0, [(3, "DELETE", b"a")])
    assert await client.is_silent(driver.machine)


async def test_a_large_answer_is_cut_between_events_only_where_asked(driver: Driver) -> None:
    client = Client(driver.machine, fragment_bytes=60)
    await client.create(b"k", b"l", fragment=True)
    await client.create(b"k", b"l")
    driver.apply(txn(*(put_op(b"k%02d" % i) for i in range(10))))
    parts: dict[int, list[rpc_pb2.WatchResponse]] = {0: [], 1: []}
    while sum(len(summary(p)) for part in parts.values() for p in part) < 20:
        response = await client.receive()
        parts[response.watch_id].append(response)
    assert len(parts[1]) == 1
    assert len(parts[0]) > 2
    assert [p.fragment for p in parts[0]] == [True] * (len(parts[0]) - 1) + [False]
    assert [e for p in parts[0] for e in summary(p)] == summary(parts[1][0])


# -- slow readers -----------------------------------------------------------------------------------------


async def test_a_slow_reader_costs_bounded_memory_and_misses_nothing(driver: Driver, client: Client) -> None:
    other = Client(driver.machine)
    await client.create(b"a")
    await other.create(b"a")
    for i in range(1000):
        driver.put(b"a")
        if i % 100 == 0:
            await other.receive()
    assert len(client.stream._queue) <= streams.QUEUE_RESPONSES
    assert driver.machine.hub.overflows > 0
    for reader, missed in ((client, 0), (other, 10)):
        seen = await reader.events(1000 - missed)
        assert [revision for revision, _, _ in seen] == list(range(2 + missed, 1002))


async def test_a_watcher_that_overflowed_is_served_live_again(driver: Driver, client: Client) -> None:
    await client.create(b"a")
    for _ in range(300):
        driver.put(b"a")
    await client.events(300)
    driver.put(b"a")
    last = await client.receive()
    assert (summary(last), driver.machine.hub.statistics()["unsynced"]) == ([(302, "PUT", b"a")], 0)


# -- compaction -------------------------------------------------------------------------------------------


async def test_a_start_below_the_compacted_revision_is_cancelled(driver: Driver, client: Client) -> None:
    for _ in range(5):
        driver.put(b"a")
    driver.apply(rpc_pb2.CompactionRequest(revision=4))
    created = await client.create(b"a", start_revision=3)
    assert not created.canceled
    ended = await client.receive()
    assert (ended.canceled, ended.compact_revision, ended.watch_id) == (True, 4, 0)
    assert (ended.cancel_reason, ended.header.revision, ended.created) == ("", 0, False)


async def test_a_start_at_the_compacted_revision_sees_a_deletion_there(driver: Driver) -> None:
    driver.put(b"a")
    revision = driver.delete(b"a")
    driver.apply(rpc_pb2.CompactionRequest(revision=revision))
    for _ in ("memory", "disk"):
        client = Client(driver.machine)
        await client.create(b"a", start_revision=revision)
        assert await client.events(1) == [(revision, "DELETE", b"a")]
        await driver.machine.compactor.wait_finished(revision)
        await driver.stop()
        await driver.start()


async def test_a_watcher_that_is_behind_is_cancelled_and_a_synced_one_is_not(
    driver: Driver, client: Client
) -> None:
    synced = Client(driver.machine)
    await client.create(b"a")
    for _ in range(200):
        driver.put(b"a")
    await synced.create(b"a")
    driver.apply(rpc_pb2.CompactionRequest(revision=201))
    while not (answer := await client.receive()).canceled:
        assert answer.events
    assert answer.compact_revision == 201
    driver.put(b"a")
    assert await synced.events(1) == [(202, "PUT", b"a")]


async def test_a_compaction_during_the_reading_of_history_cancels_too(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read may have holes by then."""
    for _ in range(5):
        driver.put(b"a")
    await driver.stop()
    await driver.start()
    machine = driver.machine
    history = machine.history

    async def overtaken(*arguments: Any) -> HistoryBatch:
        batch = await history(*arguments)
        monkeypatch.undo()
        driver.apply(rpc_pb2.CompactionRequest(revision=4))
        return batch

    monkeypatch.setattr(machine, "history", overtaken)
    client = Client(machine)
    await client.create(b"a", start_revision=2)
    ended = await client.receive()
    assert (ended.canceled, ended.compact_revision, len(ended.events)) == (True, 4, 0)


async def test_the_id_of_a_watcher_ended_by_compaction_stays_taken_until_cancelled(
    driver: Driver, client: Client
) -> None:
    for _ in range(5):
        driver.put(b"a")
    driver.apply(rpc_pb2.CompactionRequest(revision=4))
    await client.create(b"a", start_revision=2, watch_id=5)
    assert (await client.receive()).compact_revision == 4
    assert (await client.create(b"a", watch_id=5)).watch_id == -1
    await client.progress()
    assert await client.is_silent(driver.machine)
    await client.cancel(5)
    assert (await client.receive()).canceled
    assert (await client.create(b"a", watch_id=5)).watch_id == 5
    await client.progress()
    assert (await client.receive()).watch_id == -1


# -- progress ---------------------------------------------------------------------------------------------


async def test_progress_is_answered_after_every_event_before_it(driver: Driver, client: Client) -> None:
    await client.create(b"a")
    driver.put(b"a")
    driver.put(b"other")
    await client.progress()
    assert summary(await client.receive()) == [(2, "PUT", b"a")]
    progress = await client.receive()
    assert (progress.watch_id, progress.header.revision, len(progress.events)) == (-1, 3, 0)


async def test_progress_is_dropped_while_a_watcher_is_behind(driver: Driver, client: Client) -> None:
    driver.put(b"a")
    await client.create(b"a")
    create = rpc_pb2.WatchCreateRequest(key=b"a", start_revision=2)
    await client.stream.handle(rpc_pb2.WatchRequest(create_request=create))
    await client.progress()
    assert (await client.receive()).created
    assert await client.events(1) == [(2, "PUT", b"a")]
    assert await client.is_silent(driver.machine)
    await client.progress()
    assert (await client.receive()).watch_id == -1


async def test_progress_is_dropped_before_a_start_revision_and_without_watchers(
    driver: Driver, client: Client
) -> None:
    await client.progress()
    assert await client.is_silent(driver.machine)
    await client.create(b"a", start_revision=3)
    await client.progress()
    assert await client.is_silent(driver.machine)
    driver.put(b"x")
    await client.progress()
    assert (await client.receive()).header.revision == 2


async def test_the_progress_tick_tells_only_quiet_watchers_that_asked(driver: Driver, client: Client) -> None:
    await client.create(b"a", progress_notify=True)
    await client.create(b"b")
    driver.put(b"a")
    client.stream.progress_tick()
    assert summary(await client.receive()) == [(2, "PUT", b"a")]
    assert await client.is_silent(driver.machine)
    client.stream.progress_tick()
    notice = await client.receive()
    assert (notice.watch_id, notice.header.revision, len(notice.events)) == (0, 2, 0)
    assert await client.is_silent(driver.machine)


async def test_answers_about_one_event_carry_the_term_of_their_own_time(driver: Driver) -> None:
    """The encoded event is shared; the header is not, as a new leader may have come in between."""
    term = 2
    client = Client(driver.machine)
    client.stream._header = lambda revision: rpc_pb2.WatchResponse(
        header=rpc_pb2.ResponseHeader(revision=revision, raft_term=term)
    ).SerializeToString()
    driver.put(b"a")
    for term in (2, 3):
        await client.create(b"a", start_revision=2)
        assert (await client.receive()).header.raft_term == term


async def test_progress_ticks_do_not_grow_the_queue_of_a_client_that_does_not_read(
    driver: Driver, client: Client
) -> None:
    for _ in range(10):
        await client.create(b"a", progress_notify=True)
    for _ in range(100):
        client.stream.progress_tick()
    assert len(client.stream._queue) == streams.QUEUE_RESPONSES


async def test_what_a_stream_holds_and_what_is_read_for_it_is_bounded_in_bytes(
    driver: Driver, client: Client
) -> None:
    await client.create(b"a", prev_kv=True)
    value = bytes(300_000)
    for _ in range(40):
        driver.put(b"a", value)
    assert client.stream._queued_bytes < streams.QUEUE_BYTES + 2 * len(value)
    largest = received = 0
    while received < 40:
        response = await client.receive()
        received += len(response.events)
        largest = max(largest, response.ByteSize())
    assert largest < BATCH_BYTES + 2 * len(value) + 1000


def test_a_deletion_weighs_what_it_keeps_in_memory() -> None:
    """The pair before it is remembered with it, and may be large where the deletion itself is small."""
    version = Version(b"a", b"\x12" + bytes(1_000_000), 1 << SUB_BITS, 1, 1, 0)
    event = Event(tombstone(b"a", 2 << SUB_BITS), version)
    assert event.weight > 1_000_000
    assert sum(map(len, event.parts(prev_kv=True))) > 1_000_000
    assert sum(map(len, event.parts())) < 100


async def test_remembered_deletions_are_bounded_in_bytes(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RECENT_BYTES", 100_000)
    for i in range(20):
        driver.put(b"k%d" % i, bytes(20_000))
    for i in range(20):
        driver.delete(b"k%d" % i)
    assert driver.machine.hub.statistics()["recent_revisions"] <= 6
