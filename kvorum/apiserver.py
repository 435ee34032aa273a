"""``kvorum apiserver``: the Kubernetes API layer as a process of its own, over any etcd v3 endpoints."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from contextlib import suppress

from aiohttp import web

from apiserver_adapter.app import ApiServer
from apiserver_adapter.compactor import INTERVAL_S
from store.client import EtcdClient
from store.tls import NO_TLS, TlsError, TlsFiles

from . import loop
from .backends import RemoteBackend
from .layout import PORT_MAX, UserError, is_url
from .numbers import real, whole

log = logging.getLogger(__name__)

_SHUTDOWN_LIMIT_S = 1.0
_SWITCH_INTERVAL_S = 0.0002


def _endpoints(text: str) -> list[str]:
    endpoints = [url.strip() for url in text.split(",") if url.strip()]
    if not endpoints:
        raise argparse.ArgumentTypeError("it names no endpoint")
    for url in endpoints:
        if not is_url(url):
            raise argparse.ArgumentTypeError(f"{url!r} is not http://HOST:PORT")
    return endpoints


def _port(text: str) -> int:
    return whole(text, f"a port (0 to {PORT_MAX})", 0, PORT_MAX)


def _interval_s(text: str) -> float:
    return real(text, "a number of seconds", positive=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``kvorum apiserver``."""
    parser.add_argument(
        "--etcd-servers",
        required=True,
        type=_endpoints,
        metavar="URL[,URL]",
        help="client URLs of the store, comma-separated: Kvorum members or a real etcd",
    )
    for flag, what in (
        ("cafile", "CA that the store's certificate must be of"),
        ("certfile", "own certificate"),
        ("keyfile", "key of the own certificate"),
    ):
        parser.add_argument(f"--etcd-{flag}", default="", metavar="FILE", help=f"{what}, for https:// servers")
    parser.add_argument("--bind-address", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8001, help="port to listen on, 0 for any (%(default)s)")
    parser.add_argument(
        "--etcd-compaction-interval",
        type=_interval_s,
        default=INTERVAL_S,
        metavar="SECONDS",
        help="how often the store's history is compacted, 0 for never (%(default)s)",
    )


class Listener:
    """A running API server on one address. Start it with :meth:`start`, end it with :meth:`stop`."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._runner = web.AppRunner(
            server.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_LIMIT_S,
        )
        self._background: asyncio.Task[None] | None = None

    @property
    def background(self) -> asyncio.Task[None]:
        """The task behind the caches; it ends only by a defect or by :meth:`stop`."""
        assert self._background is not None
        return self._background

    async def start(self, host: str, port: int) -> str:
        """Listen; returns the base URL. Raises OSError if the address cannot be had."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        await site.start()
        self._background = asyncio.create_task(self._server.run())
        bound = self._runner.addresses[0]
        return f"http://{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        """End all watches, then close the listener; within about a second."""
        self._server.health.shutting_down = True
        if self._background is not None:
            self._background.cancel()
            with suppress(asyncio.CancelledError):
                await self._background
        await self._runner.cleanup()


async def serve(
    endpoints: list[str],
    host: str,
    port: int,
    stop: asyncio.Event,
    compaction_interval_s: float = INTERVAL_S,
    tls: TlsFiles = NO_TLS,
) -> int:
    """Serve until ``stop``. Returns the exit code."""
    try:
        client = EtcdClient(endpoints, tls=tls)
    except TlsError as error:
        raise UserError(f"--etcd-cafile, --etcd-certfile, --etcd-keyfile: {error}") from None
    server = ApiServer(RemoteBackend(client), compaction_interval_s=compaction_interval_s)
    listener = Listener(server)
    ready = asyncio.create_task(_say_when_ready(server))
    try:
        try:
            url = await listener.start(host, port)
        except OSError as exc:
            sys.stderr.write(f"kvorum apiserver: cannot listen on {host}:{port}: {exc.strerror or exc}\n")
            return 1
        log.info("serving the Kubernetes API at %s over %s", url, ", ".join(endpoints))
        waiter = asyncio.create_task(stop.wait())
        await asyncio.wait((waiter, listener.background), return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done():
            waiter.cancel()
            sys.stderr.write(f"kvorum apiserver: failed: {listener.background.exception()}\n")
            return 1
        return 0
    finally:
        ready.cancel()
        await listener.stop()
        await client.aclose()


async def _say_when_ready(server: ApiServer) -> None:
    """Ready is when every cache holds what a linearizable read of the store returned."""
    await server.wait_ready()
    loop.say_ready()


def run(args: argparse.Namespace) -> int:
    """Run until told to stop. Exit codes: 0 stopped on request, 1 failed, 2 wrong usage."""
    loop.configure_logging()
    endpoints: list[str] = args.etcd_servers
    # The store client's poller thread must get the interpreter lock quickly: with the default of 5 ms a busy
    # loop makes every answer of the store wait (measured: 530 against 890 creates per second).
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    interval_s = args.etcd_compaction_interval
    tls = TlsFiles(args.etcd_certfile, args.etcd_keyfile, args.etcd_cafile)
    return loop.run(lambda stop: serve(endpoints, args.bind_address, args.port, stop, interval_s, tls))
