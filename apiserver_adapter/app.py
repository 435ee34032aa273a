"""The API server: routing, errors as Status, and the caches and controllers behind it."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from watchcache.backend import Backend, BackendError
from watchcache.cacher import Cacher
from watchcache.codec import Codec
from watchcache.recovery import StoreRecovery

from . import handlers_delete, handlers_read, handlers_sub, handlers_write, paths, reviews
from .body import BODY_BYTES_MAX
from .compactor import INTERVAL_S, Compactor
from .context import Context, Stores
from .custom_resources import DefinitionController
from .discovery import Discovery
from .errors import ApiError, internal_error, method_not_allowed, to_api_error
from .health import Health
from .leases import LeaseManager
from .metrics import CONTENT_TYPE, Metrics
from .namespaces import NamespaceController, ensure_system_namespaces
from .negotiation import json_response, status_response, text_not_found
from .openapi import OpenApi
from .query import flag
from .resources import Kind, Registry
from .store import ObjectStore

log = logging.getLogger(__name__)

Handler = Callable[[Context], Awaitable[web.StreamResponse]]

VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+kvorum",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": f"{platform.system().lower()}/{'amd64' if platform.machine() == 'x86_64' else platform.machine()}",
}
_ROOT_PATHS = ("/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version")
_SETUP_RETRY_S = 0.2
_CUSTOM_READY_LIMIT_S = 5.0


class ApiServer:
    """Everything behind one listening address.

    :meth:`run` keeps the caches fed; :meth:`application` answers requests meanwhile.

    Args:
        trust_progress: see :class:`watchcache.cacher.Cacher`.
        compaction_interval_s: see :class:`apiserver_adapter.compactor.Compactor`.

    """

    def __init__(
        self,
        backend: Backend,
        registry: Registry | None = None,
        *,
        trust_progress: bool | None = None,
        compaction_interval_s: float = INTERVAL_S,
    ) -> None:
        self.registry = registry or Registry()
        self._backend = backend
        self._recovery = StoreRecovery(backend)
        self._compactor = Compactor(backend, compaction_interval_s)
        self._leases = LeaseManager(backend)
        self._trust_progress = trust_progress
        self.cachers: dict[str, Cacher] = {}
        self.stores = Stores(self.registry, {})
        for kind in self.registry:
            cacher = self._add_store(kind)
            if cacher is not None:
                self.cachers[kind.group_resource] = cacher
        self._tasks: asyncio.TaskGroup | None = None
        self._custom: dict[str, asyncio.Task[None]] = {}
        self._definitions = DefinitionController(self.stores, self._serve_custom, self._withdraw_custom)
        self.health = Health(backend, self.is_ready)
        self.metrics = Metrics()
        self._set_up = asyncio.Event()
        self._discovery = Discovery(self.registry)
        self._openapi = OpenApi(self.registry)

    def _add_store(self, kind: Kind) -> Cacher | None:
        codec = Codec(kind.resource())
        cacher = None
        if kind.cached:
            cacher = Cacher(self._backend, codec, self._recovery, trust_progress=self._trust_progress)
        self.stores.by_kind[kind.identity] = ObjectStore(self._backend, codec, cacher, self._leases)
        return cacher

    async def _serve_custom(self, kind: Kind) -> None:
        """Serve a kind that a definition has brought; returns once its cache has a state."""
        known = self.registry.find(kind.group, kind.version, kind.plural)
        if (known is not None and not known.custom) or self._tasks is None:
            return
        cacher = self._add_store(kind)
        assert cacher is not None
        self._custom[kind.identity] = self._tasks.create_task(cacher.run())
        with suppress(TimeoutError):  # it is served anyway: its cache answers 429 until it has a state
            await asyncio.wait_for(cacher.wait_ready(), _CUSTOM_READY_LIMIT_S)
        self.registry.add(kind)

    def _withdraw_custom(self, kind: Kind) -> None:
        task = self._custom.pop(kind.identity, None)
        if task is not None:
            self.registry.remove(kind)
            self.stores.by_kind.pop(kind.identity, None)
            task.cancel()

    def is_ready(self) -> bool:
        """Whether the system namespaces exist and every cache holds a complete state."""
        ready = self._set_up.is_set() and self._definitions.synced.is_set()
        return ready and all(cacher.ready for cacher in self.cachers.values())

    async def wait_ready(self) -> None:
        """Until :meth:`is_ready` for the first time."""
        await self._set_up.wait()
        await self._definitions.synced.wait()
        for cacher in self.cachers.values():
            await cacher.wait_ready()

    async def run(self) -> None:
        """Feed the caches and run the controllers until cancelled; running watches end then."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._recovery.run())
            tasks.create_task(self._prepare_store())
            tasks.create_task(self._compactor.run())
            for cacher in self.cachers.values():
                tasks.create_task(cacher.run())
            tasks.create_task(NamespaceController(self.stores).run())
            tasks.create_task(self._definitions.run())

    async def _prepare_store(self) -> None:
        while not self._set_up.is_set():
            try:
                await ensure_system_namespaces(self.stores)
                self._set_up.set()
            except BackendError as exc:
                self._recovery.lost(exc.text)
                await self._recovery.wait(_SETUP_RETRY_S)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; whatever fails becomes a Status."""
        started = time.monotonic()
        try:
            response = await self._respond(request)
        except ApiError as exc:
            response = status_response(request, exc.status())
        except Exception as exc:
            error = to_api_error(exc)
            if error is None:
                log.exception("request failed: %s %s", request.method, request.path)
                error = internal_error(exc)
            response = status_response(request, error.status())
        self._observe(request, response.status, time.monotonic() - started)
        if not response.prepared:
            response.headers.setdefault("Cache-Control", "no-cache, private")
            response.headers.setdefault("Audit-Id", str(uuid.uuid4()))
        return response

    def _observe(self, request: web.Request, code: int, seconds: float) -> None:
        path = paths.parse(request.path)
        kind = self.registry.find(path.group, path.version, path.plural) if path else None
        if path is None or kind is None:
            return  # paths of no resource would make as many series as clients can think of
        verb = request.method
        if verb == "GET" and (path.watch or flag(request, "watch")):
            verb = "WATCH"
        elif verb == "GET" and not path.name:
            verb = "LIST"
        resource = f"{kind.plural}/{path.subresource}" if path.subresource in kind.subresources else kind.plural
        self.metrics.observe(verb, kind.group, resource, code, seconds)

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        for respond in (self._openapi.respond, self._discovery.respond, self._root):
            response = respond(request)
            if response is not None:
                return response
        health = await self.health.respond(request)
        if health is not None:
            return health
        path = paths.parse(request.path)
        if path is None:
            return text_not_found()
        review = reviews.review_kind(path)
        if review is not None:
            return await reviews.respond(request, path, review)
        kind = self.registry.find(path.group, path.version, path.plural)
        if kind is None:
            return text_not_found()
        return await self._serve(Context(request, path, kind, self.stores))

    def _root(self, request: web.Request) -> web.Response | None:
        path = request.path.rstrip("/")
        if path == "/metrics":
            text = self.metrics.render(self.cachers).encode()
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
        if path == "/version":
            return json_response(request, VERSION)
        return json_response(request, {"paths": list(_ROOT_PATHS)}) if path == "" else None

    async def _serve(self, context: Context) -> web.StreamResponse:
        """Run the handler of a resource request, naming the object in whatever it refuses."""
        handler = route(context)
        if handler is None:
            return text_not_found()
        try:
            return await handler(context)
        except ApiError:
            raise
        except Exception as exc:
            error = to_api_error(exc, context.kind, context.name)
            if error is None:
                raise
            raise error from exc


def route(context: Context) -> Handler | None:
    """The handler for a method and path shape; None where no such path exists.

    Raises:
        ApiError: 405.
    """
    kind, path, method = context.kind, context.path, context.request.method
    if path.subresource:
        return handlers_sub.handle if path.subresource in kind.subresources else None
    if path.namespace and not kind.namespaced:
        return None
    if path.name:
        if kind.namespaced and not path.namespace:
            return None
        if method == "GET" and handlers_read.is_watch(context):
            return handlers_read.watch
        handler = _OBJECT_HANDLERS.get(method)
    elif method == "GET":
        return handlers_read.watch if handlers_read.is_watch(context) else handlers_read.list_objects
    else:
        handler = _COLLECTION_HANDLERS.get(method)
        if method == "POST" and kind.namespaced and not path.namespace:
            handler = None
    if handler is None:
        raise method_not_allowed(kind, _verb(kind, method))
    return handler


_OBJECT_HANDLERS: dict[str, Handler] = {
    "GET": handlers_read.get,
    "PUT": handlers_write.update,
    "PATCH": handlers_write.patch,
    "DELETE": handlers_delete.delete,
}
_COLLECTION_HANDLERS: dict[str, Handler] = {
    "POST": handlers_write.create,
    "DELETE": handlers_delete.delete_collection,
}


def _verb(kind: Kind, method: str) -> str:
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, method.lower())
