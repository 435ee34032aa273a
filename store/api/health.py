"""The standard gRPC health service, for probes (contract §12). It knows one name, the empty one.

Its two messages are a string and an enum, so they are read and written as bytes here.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from store.errors import Code, EtcdError
from store.wire import Encoded

SERVICE: Final = "grpc.health.v1.Health"
_SERVING: Final = Encoded(b"\x08\x01")
_EMPTY_NAMES: Final = (b"", b"\x0a\x00")


class HealthServicer:
    """Serving as long as it answers: whether the cluster can commit is what linearizable reads tell."""

    async def Check(self, request: bytes, _context: object) -> Encoded:
        _check_name(request)
        return _SERVING

    async def Watch(self, request: bytes, context: Any) -> None:
        _check_name(request)
        await context.write(_SERVING)
        await asyncio.Event().wait()


def _check_name(request: bytes) -> None:
    if request not in _EMPTY_NAMES:
        raise EtcdError(Code.NOT_FOUND, "unknown service")
