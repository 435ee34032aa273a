"""HTTP/1.1 on the gRPC port: health, version, metrics, and the JSON gateway (contract §12)."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from store.api.gateway import Gateway, paths_of
from store.api.server import service_handlers
from store.etcdpb import rpc_pb2
from tests.listener.member import Loopback, loopback

WIRE = Path(__file__).parents[3] / "shared" / "contracts" / "etcd_wire.tsv"


class Http:
    def __init__(self, member: Loopback, session: aiohttp.ClientSession) -> None:
        self.member = member
        self.session = session

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.member.port}{path}"

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url(path)) as response:
            return response.status, await response.text()

    async def post(self, path: str, document: Any) -> tuple[int, Any]:
        async with self.session.post(self.url(path), json=document) as response:
            return response.status, json.loads(await response.text())


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    async with loopback() as member, aiohttp.ClientSession() as session:
        yield Http(member, session)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_health(http: Http) -> None:
    assert await http.get("/health") == (200, '{"health":"true","reason":""}\n')
    http.member.node.replica.set_leader(0)
    assert await http.get("/health") == (503, '{"health":"false","reason":"RAFT NO LEADER"}\n')
    assert (await http.get("/health?serializable=true"))[0] == 200


async def test_health_names_alarms_unless_they_are_excluded(http: Http) -> None:
    alarm = {"action": "ACTIVATE", "memberID": "1", "alarm": "NOSPACE"}
    assert (await http.post("/v3/maintenance/alarm", alarm))[0] == 200
    assert await http.get("/health") == (503, '{"health":"false","reason":"ALARM NOSPACE"}\n')
    assert (await http.get("/health?exclude=NOSPACE"))[0] == 200
    assert (await http.get("/health?exclude=CORRUPT"))[0] == 503


async def test_probes(http: Http) -> None:
    assert await http.get("/livez") == (200, "ok\n")
    assert await http.get("/readyz") == (200, "ok\n")
    status, text = await http.get("/readyz?verbose")
    assert (status, text.splitlines()[0], text.splitlines()[-1]) == (200, "[+]data_corruption ok", "ok")
    http.member.node.replica.set_leader(0)
    assert (await http.get("/livez"))[0] == 200
    status, text = await http.get("/readyz")
    assert status == 503
    assert "[-]linearizable_read failed: etcdserver: request timed out" in text
    assert await http.get("/readyz?exclude=linearizable_read") == (200, "ok\n")
    assert (await http.get("/readyz/linearizable_read"))[0] == 503
    assert await http.get("/readyz/serializable_read?verbose") == (200, "[+]serializable_read ok\nok\n")
    assert (await http.get("/readyz/other"))[0] == 404


async def test_version_and_metrics(http: Http) -> None:
    status, text = await http.get("/version")
    assert (status, sorted(json.loads(text))) == (200, ["etcdcluster", "etcdserver"])
    status, text = await http.get("/metrics")
    assert status == 200
    assert "etcd_server_has_leader 1\n" in text
    assert "# TYPE etcd_mvcc_db_total_size_in_bytes gauge\n" in text


@pytest.mark.parametrize("path", ["/", "/v2/keys", "/nothing"])
async def test_unknown_paths(http: Http, path: str) -> None:
    assert (await http.get(path))[0] == 404


async def test_methods(http: Http) -> None:
    async with http.session.post(http.url("/health")) as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET")
    assert (await http.get("/v3/kv/range"))[0] == 405
    assert await http.get("/v3/kv/nothing") == (404, "Not Found\n")


async def test_put_and_range_as_json(http: Http) -> None:
    status, answer = await http.post("/v3/kv/put", {"key": b64(b"a"), "value": b64(b"1"), "unknown": 1})
    assert status == 200
    assert answer["header"]["revision"] == "2"
    assert "prev_kv" not in answer
    status, answer = await http.post("/v3/kv/range", {"key": b64(b"a"), "rangeEnd": b64(b"b"), "limit": "5"})
    assert answer["count"] == "1"
    assert answer["kvs"][0] == {
        "key": b64(b"a"), "value": b64(b"1"), "create_revision": "2", "mod_revision": "2", "version": "1",
    }  # fmt: skip
    assert "more" not in answer
    status, answer = await http.post("/v3beta/kv/range", {"key": b64(b"a"), "sort_order": "DESCEND"})
    assert (status, answer["count"]) == (200, "1")


async def test_errors_as_json(http: Http) -> None:
    text = "etcdserver: key is not provided"
    assert await http.post("/v3/kv/put", {}) == (400, {"error": text, "code": 3, "message": text})
    status, answer = await http.post("/v3/lease/revoke", {"ID": "77"})
    assert (status, answer["code"], answer["message"]) == (404, 5, "etcdserver: requested lease not found")
    status, answer = await http.post("/v3/kv/range", {"key": 5})
    assert (status, answer["code"]) == (400, 3)
    async with http.session.post(http.url("/v3/kv/range"), data=b"{not json") as response:
        assert response.status == 400


async def test_txn_as_json(http: Http) -> None:
    request = {
        "compare": [{"target": "VERSION", "key": b64(b"t"), "version": 0}],
        "success": [{"request_put": {"key": b64(b"t"), "value": b64(b"1")}}],
        "failure": [{"requestRange": {"key": b64(b"t")}}],
    }
    assert (await http.post("/v3/kv/txn", request))[1]["succeeded"] is True
    answer = (await http.post("/v3/kv/txn", request))[1]
    assert "succeeded" not in answer
    assert answer["responses"][0]["response_range"]["kvs"][0]["value"] == b64(b"1")


async def test_watch_is_one_object_per_line(http: Http) -> None:
    create = {"create_request": {"key": b64(b"w"), "start_revision": "1"}}
    async with http.session.post(http.url("/v3/watch"), json=create) as response:
        created = json.loads(await response.content.readline())
        assert created["result"]["created"] is True
        await http.post("/v3/kv/put", {"key": b64(b"w"), "value": b64(b"1")})
        line = json.loads(await response.content.readline())
        assert line["result"]["events"][0]["kv"]["value"] == b64(b"1")
        assert "type" not in line["result"]["events"][0]
    async with asyncio.timeout(5):  # the client left: the watcher goes
        while http.member.node.machine.statistics()["watch_synced"]:  # noqa: ASYNC110  # the hub has no event
            await asyncio.sleep(0.01)


async def test_snapshot_is_streamed(http: Http) -> None:
    async with http.session.post(http.url("/v3/maintenance/snapshot"), data=b"") as response:
        lines = [json.loads(line)["result"] async for line in response.content]
    assert "remaining_bytes" not in lines[-1]
    assert len(base64.b64decode(lines[-1]["blob"])) == 32


async def test_keep_alive_answers_each_object_of_the_body(http: Http) -> None:
    assert (await http.post("/v3/lease/grant", {"ID": 9, "TTL": 60}))[1]["ID"] == "9"
    body = b'{"ID":9}\n{"ID":"9"} {"ID":10}'
    async with http.session.post(http.url("/v3/lease/keepalive"), data=body) as response:
        lines = [json.loads(line)["result"] async for line in response.content]
    assert [line.get("TTL") for line in lines] == ["60", "60", None]


async def test_large_requests_are_refused(http: Http) -> None:
    async with http.session.post(http.url("/v3/kv/put"), data=io.BytesIO(bytes(5_000_000))) as response:
        assert response.status == 413


async def test_grpc_and_http_share_the_port(http: Http) -> None:
    from store.client import EtcdClient

    client = EtcdClient([http.url("")])
    try:
        assert (await client.status(timeout_s=5)).version
        assert (await http.get("/health"))[0] == 200
    finally:
        await client.aclose()


def test_every_path_of_the_wire_contract_is_served() -> None:
    if not WIRE.exists():
        pytest.skip("the contract lies beside the checkout, and is not here")
    with WIRE.open() as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if row[0] == "rpc"]
    own = {service.full_name for service in rpc_pb2.DESCRIPTOR.services_by_name.values()}
    for _, package, service, rpc, *_, paths in rows:
        if f"{package}.{service}" in own:
            wanted = {word.removeprefix("/v3/") for word in paths.split() if word.startswith("/v3/")}
            assert set(paths_of(service, rpc)) == wanted, rpc


async def test_the_gateway_serves_all_services_of_the_member(http: Http) -> None:
    gateway = Gateway(service_handlers(http.member.node.api))
    assert "/v3/watch" in gateway.methods
    assert "/v3/auth/user/changepw" in gateway.methods
    assert len(gateway.methods) >= 40
