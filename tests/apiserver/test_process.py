"""The API server as a process: starts, says ready, stops quickly with watches open."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence

import aiohttp
import pytest

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
@pytest.mark.parametrize("servers", ["", "ftp://x"])
async def test_unusable_endpoints_are_wrong_usage(servers: str) -> None:
    process = await _start("--etcd-servers", servers)
    _, err = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 2
    assert b"Traceback" not in err
