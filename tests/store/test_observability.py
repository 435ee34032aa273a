"""What a member tells about itself: metrics under etcd's names, slow requests with their stages, reflection."""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.request
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from raft.histogram import Histogram
from store.etcdpb import internal_pb2, rpc_pb2, rpc_pb2_grpc
from store.observations import Method, Observations, describe, stage
from tests.ports import free_port
from tests.store.loopback import serving
from tests.store.processes import members

ON_THE_DASHBOARD = (
    "etcd_server_has_leader", "etcd_server_leader_changes_seen_total", "etcd_server_proposals_failed_total",
    "etcd_server_proposals_pending", "etcd_server_proposals_committed_total",
    "etcd_server_proposals_applied_total", "etcd_mvcc_db_total_size_in_bytes",
    "etcd_mvcc_db_total_size_in_use_in_bytes", "etcd_server_quota_backend_bytes",
    "etcd_disk_wal_fsync_duration_seconds_bucket", "etcd_disk_backend_commit_duration_seconds_bucket",
    "etcd_network_client_grpc_received_bytes_total", "etcd_network_client_grpc_sent_bytes_total",
    "etcd_network_peer_received_bytes_total", "etcd_network_peer_sent_bytes_total",
    "etcd_network_peer_round_trip_time_seconds_bucket", "grpc_server_started_total", "grpc_server_handled_total",
    "grpc_server_handling_seconds_bucket", "process_resident_memory_bytes", "etcd_server_id",
)  # fmt: skip
"""What etcd's Grafana dashboard and its alert rules ask for."""


def samples(page: str) -> dict[str, float]:
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    }


async def test_every_series_of_etcds_dashboard_is_there_and_counts(tmp_path: Path) -> None:
    port = free_port()
    with members(tmp_path, "--listen-metrics-urls", f"http://127.0.0.1:{port}", count=1) as cluster:
        async with grpc.aio.insecure_channel(cluster[0].endpoint) as channel:
            kv = rpc_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
            for number in range(3):
                put = rpc_pb2.PutRequest(key=b"k%d" % number, value=b"v" * 1000)
                await kv.Put(put, timeout=20, wait_for_ready=True)
            with pytest.raises(grpc.aio.AioRpcError):
                await kv.Put(rpc_pb2.PutRequest(), timeout=20)
        url = f"http://127.0.0.1:{port}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    found = samples(page)
    alone = {"etcd_network_peer_received_bytes_total", "etcd_network_peer_sent_bytes_total",
             "etcd_network_peer_round_trip_time_seconds_bucket"}  # fmt: skip
    names = {name.partition("{")[0] for name in found}
    assert not set(ON_THE_DASHBOARD) - alone - names
    assert all(f"# TYPE {name.removesuffix('_bucket')} " in page for name in alone)
    put_labels = 'grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"'
    assert found[f'grpc_server_handled_total{{grpc_code="OK",{put_labels}}}'] == 3
    assert found[f'grpc_server_handled_total{{grpc_code="InvalidArgument",{put_labels}}}'] == 1
    assert found["etcd_mvcc_put_total"] == 3
    assert found["etcd_disk_wal_fsync_duration_seconds_count"] >= 3
    assert found["etcd_network_client_grpc_received_bytes_total"] > 3000


def test_a_histogram_counts_what_is_at_most_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    assert histogram.cumulative() == [2, 3, 4]
    assert histogram.total == 6.0


def test_a_slow_request_is_logged_with_its_stages_and_without_its_value(caplog: pytest.LogCaptureFixture) -> None:
    observations = Observations(slow_request_s=1e-9)
    method = Method("unary", "etcdserverpb.KV", "Put")
    with caplog.at_level(logging.WARNING):
        trace = observations.begin(method)
        stage("checks")
        stage("agreement and apply")
        observations.end(method, trace, 0, rpc_pb2.PutRequest(key=b"secret-key", value=b"secret-value"))
    assert "method=Put" in caplog.text
    for name in ("checks", "agreement and apply", "answer"):
        assert re.search(rf"[(, ]{name} \d+ ms", caplog.text)
    assert "key=b'secret-key' value_bytes=12" in caplog.text
    assert "secret-value" not in caplog.text
    assert observations.slow_requests == 1


def test_a_quick_request_is_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    observations = Observations(slow_request_s=60.0)
    method = Method("unary", "etcdserverpb.KV", "Range")
    observations.end(method, observations.begin(method), 0, rpc_pb2.RangeRequest())
    assert not caplog.text
    assert observations.handled[method, 0] == 1


def test_a_slow_apply_is_logged_with_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    observations = Observations(slow_apply_s=0.1)
    command = internal_pb2.InternalRequest(delete_range=rpc_pb2.DeleteRangeRequest(key=b"a", range_end=b"b"))
    observations.applied(0.05, 7, command)
    assert not caplog.text
    observations.applied(0.2, 8, command)
    assert "index=8" in caplog.text
    assert "range_end=b'b'" in caplog.text
    assert observations.slow_applies == 1


def test_a_description_of_a_transaction_counts_its_parts() -> None:
    txn = rpc_pb2.TxnRequest(success=[rpc_pb2.RequestOp(), rpc_pb2.RequestOp()])
    assert describe(txn) == "success=2"


async def test_reflection_lists_the_services_and_knows_their_files(tmp_path: Path) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="etcdserverpb.KV"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="etcdserverpb.KV.Put"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="etcdserverpb.KV.Nothing"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing"),
    ]
    async with (
        serving(tmp_path / "state.db") as node,
        grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel,
    ):
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(iter(requests), timeout=10)
        listed, known, method, *unknown = [answer async for answer in call]
    names = {service.name for service in listed.list_services_response.service}
    assert {"etcdserverpb.KV", "etcdserverpb.Watch", "v3lockpb.Lock", "grpc.health.v1.Health"} <= names
    assert known.file_descriptor_response.file_descriptor_proto
    assert method.file_descriptor_response == known.file_descriptor_response
    codes = [answer.error_response.error_code for answer in unknown]
    assert codes == [grpc.StatusCode.NOT_FOUND.value[0]] * 2
