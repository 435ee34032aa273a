"""A loopback member behind the real client port."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from store.api.context import ApiOptions
from store.api.front import make_server
from store.listener import Server, ServerTls
from tests.store.loopback import Node, serving


@dataclass
class Loopback:
    node: Node
    server: Server
    port: int


@contextlib.asynccontextmanager
async def loopback(tls: ServerTls | None = None, options: ApiOptions | None = None) -> AsyncIterator[Loopback]:
    """One member that leads itself, fresh and empty."""
    with tempfile.TemporaryDirectory(prefix="kvorum-listener") as folder:
        async with serving(Path(folder) / "state.db", options=options) as node:
            server = make_server(node.api)
            port = await server.listen("127.0.0.1", 0, tls)
            try:
                yield Loopback(node, server, port)
            finally:
                await server.stop()
