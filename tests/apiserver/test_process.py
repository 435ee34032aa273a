"""The API server as a process: starts, says ready, stops quickly with watches open."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence

import aiohttp
import pytest
from aiohttp.http_exceptions import BadStatusLine

from kvorum import loop
from store.client import EtcdClient
from tests.apiserver.conftest import free_ports

_MAIN = """
import argparse, sys
from kvorum import apiserver
parser = argparse.ArgumentParser()
apiserver.add_arguments(parser)
sys.exit(apiserver.run(parser.parse_args()))
"""


async def _start(*args: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", _MAIN, *args, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def _until_ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                async with session.get(f"{url}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


@pytest.mark.process
async def test_the_process_serves_and_stops_within_two_seconds(
    client: EtcdClient, etcd_endpoints: Sequence[str]
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    process = await _start("--etcd-servers", ",".join(etcd_endpoints), "--port", str(port))
    async with aiohttp.ClientSession() as session:
        await _until_ready(session, url)
        async with session.get(f"{url}/api/v1/configmaps?watch=1&resourceVersion=0") as watch:
            configmaps = f"{url}/api/v1/namespaces/default/configmaps"
            async with session.post(configmaps, json={"metadata": {"name": "a"}}) as created:
                assert created.status == 201
            line = await asyncio.wait_for(watch.content.readline(), 5)
            assert line.startswith(b'{"type":"ADDED"')
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(watch.content.read(), 5) == b""
            _, err = await asyncio.wait_for(process.communicate(), 5)
    assert time.monotonic() - started < 2
    assert process.returncode == 0, err
    assert b"Traceback" not in err


@pytest.mark.process
async def test_a_taken_port_is_one_clear_line(etcd_endpoints: Sequence[str]) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    process = await _start("--etcd-servers", etcd_endpoints[0], "--port", str(port))
    _, err = await asyncio.wait_for(process.communicate(), 15)
    server.close()
    await server.wait_closed()
    assert process.returncode == 1
    assert b"cannot listen on 127.0.0.1" in err
    assert b"Traceback" not in err


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--etcd-servers", ""], b"--etcd-servers: it names no endpoint"),
        (["--etcd-servers", "ftp://x:1"], b"'ftp://x:1' is not http://HOST:PORT"),
        (["--etcd-servers", "foo"], b"'foo' is not http://HOST:PORT"),
        (["--etcd-servers", "http://127.0.0.1:1,http://x"], b"'http://x' is not http://HOST:PORT"),
        (["--etcd-servers", "http://127.0.0.1:70000"], b"is not http://HOST:PORT"),
        (["--etcd-servers", "http://127.0.0.1:1", "--port", "65536"], b"'65536' is not a port (0 to 65535)"),
        (["--etcd-servers", "http://127.0.0.1:1", "--port", "-1"], b"'-1' is not a port"),
        (
            ["--etcd-servers", "http://x:1", "--etcd-compaction-interval", "nan"],
            b"'nan' is not a number of seconds",
        ),
    ],
)
async def test_unusable_flags_are_one_line_of_wrong_usage(flags: list[str], problem: bytes) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvorum", "apiserver", *flags, stderr=asyncio.subprocess.PIPE
    )
    _, err = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 2
    assert problem in err
    assert len(err.splitlines()) == 1


@pytest.mark.process
async def test_bytes_that_are_no_http_are_no_error_in_the_log(etcd_endpoints: Sequence[str]) -> None:
    (port,) = free_ports(1)
    process = await _start("--etcd-servers", ",".join(etcd_endpoints), "--port", str(port))
    async with aiohttp.ClientSession() as session:
        await _until_ready(session, f"http://127.0.0.1:{port}")
    path = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n"
    for garbage in (
        b"secret\x00\xff garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\nsecret\r\n\r\n",
        b"GET / HTTP/1.1\r\nsecret: " + b"x" * 20_000 + b"\r\n\r\n",
        path + b"Content-Length: secret\r\n\r\n",
        path + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n",
        path + b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nsecret",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        answer = await asyncio.wait_for(reader.readline(), 5)
        assert b" 400 " in answer, (garbage, answer)
        writer.close()
        await writer.wait_closed()
    process.send_signal(signal.SIGTERM)
    _, err = await asyncio.wait_for(process.communicate(), 5)
    assert process.returncode == 0
    assert b"secret" not in err
    assert b"ERROR" not in err
    assert b"Traceback" not in err


def test_errors_of_our_own_handlers_stay_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = logging.getLogger("aiohttp.server")
    server.addFilter(loop._PEER_FAULTS)
    try:
        for error in (BadStatusLine("secret"), RuntimeError("a defect")):
            server.error("Error handling request", exc_info=error)
    finally:
        server.removeFilter(loop._PEER_FAULTS)
    assert "a defect" in caplog.text
    assert "secret" not in caplog.text
