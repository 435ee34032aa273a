"""The store client, and the whole server, while the store goes away and comes back."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from apiserver_adapter.app import ApiServer
from kvorum.backends import RemoteBackend
from store.client import ClientError, EtcdClient, OutcomeUnknown
from store.etcdpb import rpc_pb2
from tests.apiserver.conftest import Answer, Etcd, free_ports, serving, start_etcd
from tests.apiserver.test_custom_resources import CRD, CRDS
from watchcache.backend import Compacted, Compare, FutureRevision, Get, LeaseNotFound, Put, Unavailable

CMS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of one's own, to stop and start."""
    etcd = start_etcd(tmp_path / "data")
    yield etcd
    etcd.stop()


async def test_backend_errors_have_their_classes(backend: RemoteBackend) -> None:
    first = await backend.txn([], [Put(b"/registry/k", b"1")])
    second = await backend.txn([Compare(b"/registry/k", "mod", first.revision)], [Put(b"/registry/k", b"2")])
    assert second.succeeded
    with pytest.raises(FutureRevision):
        await backend.range(b"/registry/k", revision=second.revision + 100)
    await backend.compact(second.revision)
    with pytest.raises(Compacted):
        await backend.range(b"/registry/k", revision=first.revision)
    with pytest.raises(LeaseNotFound):
        await backend.lease_revoke(12345)
    lost = await backend.txn(
        [Compare(b"/registry/k", "mod", 1)], [Put(b"/registry/k", b"3")], [Get(b"/registry/k")]
    )
    assert (lost.succeeded, lost.responses[0][0].value) == (False, b"2")
    stream = await backend.watch(b"/registry/k", start_revision=first.revision)
    with pytest.raises(Compacted) as caught:
        await anext(aiter(stream))
    assert caught.value.compact_revision == second.revision
    await stream.aclose()


async def test_reads_fail_over_to_an_endpoint_that_answers(etcd: Etcd) -> None:
    (dead,) = free_ports(1)
    client = EtcdClient([f"http://127.0.0.1:{dead}", etcd.url])
    assert (await client.range(rpc_pb2.RangeRequest(key=b"x"))).header.revision >= 1
    put = await client.put(rpc_pb2.PutRequest(key=b"x", value=b"y"))
    assert put.header.revision > 1
    value = await client.get(b"x")
    assert value is not None
    assert value.value == b"y"
    await client.aclose()


async def test_no_endpoint_is_an_error_within_the_deadline() -> None:
    (dead,) = free_ports(1)
    client = EtcdClient([f"http://127.0.0.1:{dead}"])
    async with asyncio.timeout(5):
        with pytest.raises(ClientError):
            await client.range(rpc_pb2.RangeRequest(key=b"x"), timeout_s=1.0)
        with pytest.raises(ClientError) as caught:
            await client.put(rpc_pb2.PutRequest(key=b"x"), timeout_s=1.0)
    assert not isinstance(caught.value, OutcomeUnknown)  # it was never sent
    await client.aclose()


async def test_a_write_whose_answer_is_lost_is_unknown_and_not_repeated() -> None:
    calls = 0

    async def hang_up(request: rpc_pb2.PutRequest, context: Any) -> rpc_pb2.PutResponse:
        nonlocal calls
        calls += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed")
        raise AssertionError

    handler = grpc.unary_unary_rpc_method_handler(
        hang_up,
        request_deserializer=rpc_pb2.PutRequest.FromString,
        response_serializer=rpc_pb2.PutResponse.SerializeToString,
    )
    servers, urls = [], []
    for _ in range(2):
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("etcdserverpb.KV", {"Put": handler}),)
        )
        urls.append(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    client = EtcdClient(urls)
    with pytest.raises(OutcomeUnknown, match="etcdserver: leader changed"):
        await client.put(rpc_pb2.PutRequest(key=b"x"))
    assert calls == 1
    await client.aclose()
    for server in servers:
        await server.stop(None)


async def test_a_watch_ends_with_an_error_when_the_store_goes(etcd: Etcd) -> None:
    client = EtcdClient([etcd.url])
    stream = await RemoteBackend(client).watch(b"x")
    reading = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    await asyncio.to_thread(etcd.stop)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(reading, 10)
    await stream.aclose()
    await client.aclose()


async def test_a_running_watch_survives_a_restart_of_the_store_without_loss(etcd: Etcd) -> None:
    client = EtcdClient([etcd.url])
    async with serving(ApiServer(RemoteBackend(client))) as api:
        version = (await api.get(CMS)).body["metadata"]["resourceVersion"]
        async with api.watch(CMS, resourceVersion=version) as watch:
            await api.post(CMS, {"metadata": {"name": "before"}})
            await watch.take(1)
            await asyncio.to_thread(etcd.stop)
            stale = await api.get(f"{CMS}?resourceVersion=0")
            assert [item["metadata"]["name"] for item in stale.body["items"]] == ["before"]
            assert (await api.get("/readyz")).status == 500
            await asyncio.to_thread(etcd.start)
            started = asyncio.get_running_loop().time()
            names = ["during-0", "during-1", "during-2"]
            for name in names:
                assert (await api.post(CMS, {"metadata": {"name": name}})).status == 201
            events = await watch.take(3)
            assert asyncio.get_running_loop().time() - started < 3
            assert [event["object"]["metadata"]["name"] for event in events] == names
            assert await watch.silent()
        assert (await api.get("/readyz")).status == 200
    await client.aclose()


async def test_a_server_started_before_its_store_becomes_ready_when_the_store_comes(etcd: Etcd) -> None:
    await asyncio.to_thread(etcd.stop)
    client = EtcdClient([etcd.url])
    async with serving(ApiServer(RemoteBackend(client)), wait=False) as api:
        assert (await api.get("/readyz")).status == 500
        await asyncio.to_thread(etcd.start)
        await asyncio.wait_for(api.server.wait_ready(), 10)
        assert (await api.get("/readyz")).status == 200
    await client.aclose()


async def until(ask: Callable[[], Awaitable[Answer]], status: int) -> None:
    """Ask until the answer has the status; a server has no event for its clients to await."""
    while (await ask()).status != status:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_what_every_cluster_has_comes_back_to_a_store_that_lost_everything(etcd: Etcd) -> None:
    client = EtcdClient([etcd.url])
    events = "/api/v1/namespaces/default/events"
    widgets = "/apis/example.com/v1/widgets"
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
    async with serving(ApiServer(RemoteBackend(client))) as api:
        for number in range(30):  # far enough for the new store to be behind
            assert (await api.post(CMS, {"metadata": {"name": f"n{number}"}})).status == 201
        assert (await api.post(events, event)).status == 201
        assert (await api.post(CRDS, CRD)).status == 201
        async with asyncio.timeout(5):
            await until(lambda: api.get(widgets), 200)
        await asyncio.to_thread(etcd.stop)
        shutil.rmtree(etcd.data_dir)
        await asyncio.to_thread(etcd.start)
        async with asyncio.timeout(8):
            await until(lambda: api.post(CMS, {"metadata": {"name": "after"}}), 201)
            names: set[str] = set()
            while not names >= {"default", "kube-system", "kube-public", "kube-node-lease"}:
                listed = (await api.get("/api/v1/namespaces")).body
                names = {item["metadata"]["name"] for item in listed.get("items", ())}
            await until(lambda: api.get(widgets), 404)
        assert (await api.post(events, event)).status == 201  # under a lease that the new store knows
    await client.aclose()


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelname == "WARNING" for record in caplog.records)


async def test_a_store_out_of_reach_is_one_warning_for_all_caches(
    etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(etcd.stop)
    client = EtcdClient([etcd.url])
    with caplog.at_level("INFO"):
        async with serving(ApiServer(RemoteBackend(client)), wait=False) as api:
            await asyncio.sleep(1.0)  # time for every cache to have failed, and failed again
            assert warnings(caplog) == 1
            assert "the store does not answer" in caplog.text
            await asyncio.to_thread(etcd.start)
            await asyncio.wait_for(api.server.wait_ready(), 10)
            assert "the store answers again" in caplog.text
            caplog.clear()
            # At once: an etcd that is asked to stop answers some for a while, which is another outage each time.
            await asyncio.to_thread(etcd.stop, signal.SIGKILL)
            await asyncio.sleep(1.0)
            assert warnings(caplog) == 1
    await client.aclose()


async def test_a_progress_request_is_answered_on_the_wire(backend: RemoteBackend) -> None:
    stream = await backend.watch(b"/registry/quiet/", b"/registry/quiet0")
    written = await backend.txn([], [Put(b"/registry/other", b"1")])
    await stream.request_progress()
    batch = await asyncio.wait_for(anext(aiter(stream)), 5)
    assert batch.is_progress
    assert batch.revision >= written.revision
    await stream.aclose()


async def test_consistent_lists_come_from_the_cache_where_progress_can_be_trusted(
    backend: RemoteBackend,
) -> None:
    async with serving(ApiServer(backend, trust_progress=True)) as api:
        # Old etcd versions report progress to a watch that is still catching up: let it have caught up.
        async with api.watch(CMS, resourceVersion=0) as watch:
            await api.post(CMS, {"metadata": {"name": "n"}})
            await watch.take(1)
        for number in range(1, 6):
            created = await api.post(CMS, {"metadata": {"name": f"n{number}"}})
            listed = (await api.get(CMS)).body
            assert len(listed["items"]) == number + 1
            assert int(listed["metadata"]["resourceVersion"]) >= int(created.body["metadata"]["resourceVersion"])
        statistics = api.server.cachers["configmaps"].statistics()
        assert (statistics.consistent_reads, statistics.consistent_read_fallbacks) == (5, 0)


async def test_a_watch_takes_in_a_response_larger_than_its_window(backend: RemoteBackend) -> None:
    """History arrives in one message; flow control must not wait for it to be read before it is complete."""
    first = 0
    for number in range(12):
        result = await backend.txn([], [Put(b"/registry/large/%d" % number, b"x" * 500_000)])
        first = first or result.revision
    stream = await backend.watch(b"/registry/large/", b"/registry/large0", start_revision=first)
    seen = 0
    async with asyncio.timeout(10):
        async for batch in stream:
            seen += len(batch.events)
            if seen == 12:
                break
    last = await backend.txn([], [Put(b"/registry/large/last", b"y" * 1_000_000)])
    batch = await asyncio.wait_for(anext(aiter(stream)), 5)
    assert (batch.revision, len(batch.events)) == (last.revision, 1)
    await stream.aclose()


async def test_a_watch_stays_within_its_window_over_many_megabytes(backend: RemoteBackend) -> None:
    stream = await backend.watch(b"/registry/steady/", b"/registry/steady0")
    batches = aiter(stream)
    for number in range(30):
        written = await backend.txn([], [Put(b"/registry/steady/k", b"%d" % number * 200_000)])
        batch = await asyncio.wait_for(anext(batches), 5)
        assert batch.revision == written.revision
    await stream.aclose()
