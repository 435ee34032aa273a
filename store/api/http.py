"""Plain HTTP on the client port: health, version, metrics, and the way to the JSON gateway (contract §12)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from store.api.context import CLUSTER_VERSION_TEXT, VERSION, ApiContext
from store.api.gateway import Gateway
from store.api.metrics import CONTENT_TYPE, exposition
from store.errors import EtcdError
from store.etcdpb import rpc_pb2
from store.listener import HttpRequest, HttpResponse

CHECK_TIMEOUT_S: Final = 7.0
_ALARMS: Final[Mapping[int, str]] = {rpc_pb2.NOSPACE: "NOSPACE", rpc_pb2.CORRUPT: "CORRUPT"}


class CheckFailed(Exception):
    """A health check's finding; the message is the reason."""


Check = Callable[[], Awaitable[None]]


class HttpFront:
    """The HTTP application of a member; pass it to the listener."""

    def __init__(self, api: ApiContext, handlers: Mapping[str, Mapping[str, Any]]) -> None:
        self._api = api
        self._gateway = Gateway(handlers)
        self._pages: dict[str, Callable[[HttpRequest], Awaitable[HttpResponse]]] = {
            "/health": self._health,
            "/version": self._version,
            "/metrics": self._metrics,
        }
        self._live: dict[str, Check] = {"serializable_read": self._check_serializable}
        self._ready: dict[str, Check] = {
            "data_corruption": self._check_corruption,
            "serializable_read": self._check_serializable,
            "linearizable_read": self._check_linearizable,
            "non_learner": self._check_voter,
        }

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        path = request.path
        if self._gateway.serves(path):
            return await self._gateway(request)
        first = path.split("/", 2)[1] if path.startswith("/") else ""
        if path in self._pages:
            page = self._pages[path]
        elif first in ("livez", "readyz"):
            page = self._probe
        else:
            return HttpResponse(404, b"404 page not found\n")
        if request.method != "GET":
            return HttpResponse(405, b"Method Not Allowed\n", headers={"Allow": "GET"})
        return await page(request)

    # -- /health ------------------------------------------------------------------------------------------

    async def _health(self, request: HttpRequest) -> HttpResponse:
        serializable = request.values("serializable") == ["true"]
        reason = await self._trouble(set(request.values("exclude")), serializable)
        self._api.observations.health[not reason] += 1
        document = {"health": "false" if reason else "true", "reason": reason}
        body = json.dumps(document, separators=(",", ":")) + "\n"
        return HttpResponse(503 if reason else 200, body.encode(), headers={"X-Content-Type-Options": "nosniff"})

    async def _trouble(self, excluded: set[str], serializable: bool) -> str:
        for _, kind in sorted(self._api.machine.state.alarms):
            name = _ALARMS.get(kind, str(kind))
            if name not in excluded:
                return f"ALARM {name}"
        if not serializable and not self._api.replica.leader_id:
            return "RAFT NO LEADER"
        try:
            await (self._check_serializable() if serializable else self._check_linearizable())
        except CheckFailed as error:
            return f"RANGE ERROR:{error}"
        return ""

    # -- /livez, /readyz ----------------------------------------------------------------------------------

    async def _probe(self, request: HttpRequest) -> HttpResponse:
        _, kind, *rest = request.path.rstrip("/").split("/")
        checks = self._live if kind == "livez" else self._ready
        if rest:
            if len(rest) > 1 or rest[0] not in checks:
                return HttpResponse(404, b"404 page not found\n")
            checks = {rest[0]: checks[rest[0]]}
        excluded = set(request.values("exclude"))
        lines, failed = [], False
        for name, check in checks.items():
            if name in excluded:
                continue
            try:
                await check()
                lines.append(f"[+]{name} ok\n")
            except CheckFailed as error:
                failed = True
                lines.append(f"[-]{name} failed: {error}\n")
        text = "".join(lines) if failed or any(key == "verbose" for key, _ in request.query) else ""
        body = text if failed else f"{text}ok\n"
        return HttpResponse(503 if failed else 200, body.encode(), headers={"X-Content-Type-Options": "nosniff"})

    async def _check_serializable(self) -> None:
        try:
            await self._api.machine.range(rpc_pb2.RangeRequest(key=b"health", serializable=True))
        except EtcdError as error:
            raise CheckFailed(error.message) from None

    async def _check_linearizable(self) -> None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._api.read_barrier()
                await self._api.machine.range(rpc_pb2.RangeRequest(key=b"health"))
        except TimeoutError:
            raise CheckFailed("context deadline exceeded") from None
        except EtcdError as error:
            raise CheckFailed(error.message) from None

    async def _check_corruption(self) -> None:
        if any(kind == rpc_pb2.CORRUPT for _, kind in self._api.machine.state.alarms):
            raise CheckFailed("alarm activated: CORRUPT")

    async def _check_voter(self) -> None:
        if self._api.replica.is_learner:
            raise CheckFailed("the local member is a learner")

    # -- the rest -----------------------------------------------------------------------------------------

    async def _version(self, _request: HttpRequest) -> HttpResponse:
        document = {"etcdserver": VERSION, "etcdcluster": CLUSTER_VERSION_TEXT}
        body = json.dumps(document, separators=(",", ":")).encode()
        return HttpResponse(200, body, "application/json")

    async def _metrics(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, exposition(self._api).encode(), CONTENT_TYPE)
