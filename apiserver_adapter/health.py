"""/healthz, /livez and /readyz (contract §3.14): ready means a linearizable read works and the caches are full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from watchcache.backend import Backend, BackendError

from .negotiation import text_not_found

Check = Callable[[], Awaitable[bool]]
_ETCD_LIMIT_S = 2.0
_PROBE_KEY = b"/registry/health"


async def _always() -> bool:
    return True


class Health:
    """Answers the three health paths, each with ?verbose, ?exclude=NAME and /NAME."""

    def __init__(self, backend: Backend, caches_ready: Callable[[], bool]) -> None:
        self._backend = backend
        self._caches_ready = caches_ready
        self.shutting_down = False
        base: dict[str, Check] = {"ping": _always, "log": _always, "etcd": self._etcd}
        ready: dict[str, Check] = {
            "etcd-readiness": self._etcd,
            "informer-sync": self._caches,
            "shutdown": self._running,
        }
        self._checks: Mapping[str, Mapping[str, Check]] = {
            "healthz": base,
            "livez": base,
            "readyz": base | ready,
        }

    async def _etcd(self) -> bool:
        try:
            async with asyncio.timeout(_ETCD_LIMIT_S):
                await self._backend.range(_PROBE_KEY, timeout_s=_ETCD_LIMIT_S)
        except (BackendError, TimeoutError):
            return False
        return True

    async def _caches(self) -> bool:
        return self._caches_ready()

    async def _running(self) -> bool:
        return not self.shutting_down

    async def respond(self, request: web.Request) -> web.Response | None:
        """The response, or None if the path is not one of health."""
        parts = request.path.strip("/").split("/")
        checks = self._checks.get(parts[0])
        if checks is None or len(parts) > 2:
            return None
        if len(parts) == 2:
            if parts[1] not in checks:
                return text_not_found()
            checks = {parts[1]: checks[parts[1]]}
        return await self._run(request, "/".join(parts), checks)

    async def _run(self, request: web.Request, path: str, checks: Mapping[str, Check]) -> web.Response:
        excluded = set(request.query.getall("exclude", []))
        names = [name for name in checks if name not in excluded]
        passed = dict(zip(names, await asyncio.gather(*(checks[name]() for name in names)), strict=True))
        lines = []
        for name in checks:
            if name in excluded:
                lines.append(f"[+]{name} excluded: ok")
            elif passed[name]:
                lines.append(f"[+]{name} ok")
            else:
                lines.append(f"[-]{name} failed: reason withheld")
        if not all(passed.values()):
            return _text("\n".join([*lines, f"{path} check failed", ""]), 500)
        if "verbose" in request.query:
            return _text("\n".join([*lines, f"{path} check passed", ""]))
        return _text("ok")


def _text(text: str, status: int = 200) -> web.Response:
    headers = {"X-Content-Type-Options": "nosniff"}
    return web.Response(text=text, status=status, content_type="text/plain", headers=headers)
