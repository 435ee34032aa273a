"""Two of three members are gone: what still works, what fails, and how it comes back by itself."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request

import pytest

from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2
from tests.cluster.harness import LocalCluster, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

REQUEST_TIMEOUT_S = 7.0
ETCD_TEXTS = ("etcdserver: request timed out", "context deadline exceeded", "etcdserver: leader changed")


def api_get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        document: dict[str, object] = json.load(answer)
    return document


def create_configmap(url: str, name: str) -> None:
    body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()


async def test_a_minority_serves_stale_reads_only_and_recovers_by_itself(own_cluster: LocalCluster) -> None:
    configmaps = f"{own_cluster.api_url}/api/v1/namespaces/default/configmaps"
    create_configmap(configmaps, "kept")
    names = [member.name for member in own_cluster.layout.members]
    leader = own_cluster.leader()
    survivor = next(name for name in names if name != leader)
    client = EtcdClient([own_cluster.layout.member(survivor).client_url])
    try:
        await client.put(rpc_pb2.PutRequest(key=b"k", value=b"before"))
        for name in names:
            if name != survivor:
                own_cluster.command("kill-member", name)

        write = _outcome(client.put(rpc_pb2.PutRequest(key=b"k", value=b"lost?"), timeout_s=REQUEST_TIMEOUT_S + 3))
        read = _outcome(client.range(rpc_pb2.RangeRequest(key=b"k"), timeout_s=REQUEST_TIMEOUT_S + 3))
        for text, seconds in await asyncio.gather(write, read):
            assert any(known in text for known in ETCD_TEXTS), text
            assert seconds < REQUEST_TIMEOUT_S + 1.5

        stale = await client.range(rpc_pb2.RangeRequest(key=b"k", serializable=True))
        assert stale.kvs[0].value == b"before"
        cached = await asyncio.to_thread(api_get, f"{configmaps}?resourceVersion=0")
        items = cached["items"]
        assert isinstance(items, list)
        assert "kept" in [item["metadata"]["name"] for item in items]

        await asyncio.to_thread(own_cluster.command, "start-member", leader)
        await asyncio.to_thread(own_cluster.leader)
        await client.put(rpc_pb2.PutRequest(key=b"k", value=b"after"), timeout_s=10)
        fresh = await client.range(rpc_pb2.RangeRequest(key=b"k"), timeout_s=10)
        assert fresh.kvs[0].value == b"after"
        await asyncio.to_thread(wait_until, lambda: _lists(configmaps), 10.0, "the API server's consistent list")
    finally:
        await client.aclose()


def _lists(url: str) -> bool:
    try:
        return bool(api_get(url)["items"])
    except OSError:
        return False


async def _outcome(call: object) -> tuple[str, float]:
    """The error text of a call that must fail, and how long it took."""
    began = time.monotonic()
    with pytest.raises(ClientError) as failure:
        await call  # type: ignore[misc]
    return failure.value.text, time.monotonic() - began
