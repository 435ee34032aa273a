"""The client port of a member: the services and plain HTTP on one listener, for URLs as etcd takes them."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from store.api.context import ApiContext
from store.api.http import HttpFront
from store.api.server import service_handlers
from store.config import MemberConfig
from store.listener import Limits, Server, ServerTls

log = logging.getLogger(__name__)


class ListenError(Exception):
    """An address cannot be had; the message names it and the flag that chose it."""


def limits_of(config: MemberConfig, max_message_bytes: int) -> Limits:
    """The listener's limits, with what a member's flags change of them."""
    limits = Limits(
        max_receive_message_bytes=max_message_bytes,
        keepalive_interval_s=config.keepalive_interval_s,
        keepalive_timeout_s=config.keepalive_timeout_s,
    )
    if config.max_concurrent_streams:
        limits = replace(limits, max_concurrent_streams=config.max_concurrent_streams)
    return limits


def make_server(api: ApiContext, limits: Limits | None = None) -> Server:
    """A listener with every etcd v3 service and the plain HTTP beside them; call in a running loop."""
    services = service_handlers(api)
    limits = limits or Limits(max_receive_message_bytes=api.options.max_message_bytes)
    server = Server(limits, HttpFront(api, services))
    for name, handlers in services.items():
        server.add_registered_method_handlers(name, handlers)
    return server


def make_metrics_server(api: ApiContext) -> Server:
    """A listener with the pages of plain HTTP only, for --listen-metrics-urls."""
    return Server(Limits(), HttpFront(api, {}))


async def listen(
    server: Server, urls: Sequence[str], tls: ServerTls | None, flag: str = "listen-client-urls"
) -> None:
    """Serve on every URL, which ``flag`` gave: http and unix plainly, https and unixs with ``tls``.

    Raises:
        ListenError: one of them cannot be had.
    """
    for url in urls:
        parts = urlsplit(url)
        secured = tls if parts.scheme in ("https", "unixs") else None
        try:
            if parts.scheme in ("unix", "unixs"):
                await server.listen_unix(f"{parts.netloc}{parts.path}", secured)
                continue
            host = parts.hostname or ""
            # localhost is one address here, not the two that it may resolve to
            await server.listen("127.0.0.1" if host == "localhost" else host, parts.port or 0, secured)
        except OSError as error:
            if isinstance(error, socket.gaierror):  # its numbers are not those of the system's errors
                reason = (error.strerror or str(error)).lower()
            else:
                reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ListenError(f"--{flag}: {parts.netloc or parts.path} cannot be used: {reason}") from None
        if secured is None and not is_loopback(host):
            log.warning("%s: anyone who reaches it may read and write everything; serve https:// instead", url)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
