"""``kvorum up --tls`` from end to end: members, the API server over them, the settings that are printed."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.processes import client_files
from store.client import ClientError, EtcdClient
from store.etcdpb import rpc_pb2
from store.listener import TlsError, TlsFiles
from tests.cluster.harness import LocalCluster, kvorum, run, tool

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, printed: list[str]) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("tls") / "cluster", members=1)
    done = cluster.up("--tls")
    assert done.code == 0, f"{done.err}\n{cluster.logs()}"
    printed.append(done.out)
    try:
        yield cluster
    finally:
        cluster.down()


def test_the_settings_that_are_printed_work(cluster: LocalCluster, printed: list[str]) -> None:
    settings = dict(
        word.split("=", 1)
        for line in printed[0].splitlines() if line.startswith("export ") for word in shlex.split(line)[1:]
    )  # fmt: skip
    assert settings["ETCDCTL_ENDPOINTS"].startswith("https://")
    assert run(tool("etcdctl"), "put", "a", "1", env=settings).out == "OK\n"
    server = json.loads(Path(settings["KUBECONFIG"]).read_text())["clusters"][0]["cluster"]["server"]
    with urllib.request.urlopen(f"{server}/api/v1/namespaces", timeout=10) as answer:
        names = {item["metadata"]["name"] for item in json.load(answer)["items"]}
    assert "default" in names  # the API server has written them through its own TLS client
    status = json.loads(cluster.command("status", "--json").out)
    assert [member["state"] for member in status["members"]] == ["running"]


async def test_the_client_of_the_store_by_files(cluster: LocalCluster) -> None:
    client = EtcdClient(cluster.endpoints, tls=client_files(cluster.layout))
    try:
        watch = await client.watch(rpc_pb2.WatchCreateRequest(key=b"tls"))
        await client.put(rpc_pb2.PutRequest(key=b"tls", value=b"1"))
        assert (await watch.read()).events[0].kv.value == b"1"
        await watch.aclose()
    finally:
        await client.aclose()


async def test_a_store_of_another_ca_is_not_talked_to(cluster: LocalCluster, tmp_path: Path) -> None:
    client = EtcdClient(cluster.endpoints)  # held to the system's authorities
    try:
        with pytest.raises(ClientError):
            await client.get(b"a", timeout_s=1)
        with pytest.raises(ClientError):
            await client.watch(rpc_pb2.WatchCreateRequest(key=b"a"), timeout_s=1)
    finally:
        await client.aclose()
    with pytest.raises(TlsError, match=r"missing\.crt"):
        EtcdClient(cluster.endpoints, tls=TlsFiles("", "", str(tmp_path / "missing.crt")))


def test_files_that_the_api_server_cannot_use_are_one_line(cluster: LocalCluster) -> None:
    done = kvorum(
        "apiserver", "--etcd-servers", cluster.endpoints[0], "--port", "0", "--etcd-cafile", "missing.crt"
    )
    assert done.code == 1
    assert re.fullmatch(r"kvorum.*missing\.crt.*\n", done.err.splitlines(keepends=True)[-1])
    assert "Traceback" not in done.err
