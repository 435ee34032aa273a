"""get, list and watch over HTTP (contract §1, §3.4 - §3.6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aiohttp import ClientConnectionResetError, web

from watchcache.backend import BackendError
from watchcache.codec import StoredObject, dump
from watchcache.errors import Expired, TooLargeResourceVersion
from watchcache.events import Watcher, WatchEvent
from watchcache.options import ListResult, validate_list, validate_watch

from .context import Context
from .errors import to_api_error
from .negotiation import JSON, Representation, json_response, negotiate, wants_pretty
from .query import flag, list_options, watch_options
from .representation import Representer, list_metadata

log = logging.getLogger(__name__)

_STREAM_ITEMS_MIN = 1000
_WRITE_LIMIT_S = 60.0


async def get(context: Context) -> web.Response:
    """One object."""
    request = context.request
    representation = negotiate(request.headers.get("Accept", ""))
    item = await context.store.get(context.key, request.query.get("resourceVersion", ""))
    return object_response(context, item.raw, representation)


def object_response(
    context: Context,
    raw: bytes,
    representation: Representation | None = None,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """A single object in the representation the client asked for."""
    request = context.request
    chosen = representation or negotiate(request.headers.get("Accept", ""))
    if chosen.transform:
        raw = Representer(context.kind, chosen, request.query.get("includeObject", "")).single(raw)
    return json_response(request, raw, status, headers)


async def list_objects(context: Context) -> web.StreamResponse:
    """A list; large ones leave in pieces made of ready-made objects."""
    request = context.request
    representation = negotiate(request.headers.get("Accept", ""))
    options = list_options(request, context.kind, context.namespace)
    validate_list(options, send_initial_events="sendInitialEvents" in request.query)
    result = await context.store.list(options)
    if representation.transform:
        include = request.query.get("includeObject", "")
        return json_response(request, Representer(context.kind, representation, include).many(result))
    head = _list_head(context, result)
    if len(result.items) < _STREAM_ITEMS_MIN or wants_pretty(request):
        body = head + b",".join([item.raw for item in result.items]) + b"]}"
        return json_response(request, body)
    return await _stream_list(request, head, result.items)


def _list_head(context: Context, result: ListResult) -> bytes:
    kind = context.kind
    head = {"kind": kind.list_kind, "apiVersion": kind.api_version}
    metadata = dump(list_metadata(result))
    return dump(head)[:-1] + b',"metadata":' + metadata + b',"items":['


async def _stream_list(request: web.Request, head: bytes, items: Sequence[StoredObject]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": JSON})
    await response.prepare(request)
    separator = b""
    for first in range(0, len(items), _STREAM_ITEMS_MIN):
        chunk = b",".join([item.raw for item in items[first : first + _STREAM_ITEMS_MIN]])
        await response.write(head + separator + chunk)
        head, separator = b"", b","
    await response.write(b"]}\n")
    await response.write_eof()
    return response


async def watch(context: Context) -> web.StreamResponse:
    """A watch: one JSON line per event until the time-out, an ERROR event, or the end of the watcher."""
    request = context.request
    representation = negotiate(request.headers.get("Accept", ""))
    options = watch_options(request, context.kind, context.namespace, context.name)
    validate_watch(options, continue_token=request.query.get("continue", ""))
    encoder = _EventEncoder(context, representation)
    try:
        watcher = await context.store.watch(options)
    except (Expired, TooLargeResourceVersion, BackendError) as exc:
        # These belong to the stream: clients look for them in an ERROR event.
        response = await _start(request)
        await response.write(encoder.encode([WatchEvent("ERROR", 0, error=exc)]))
        await response.write_eof()
        return response
    try:
        response = await _start(request)
        await _pump(request, response, watcher, encoder, options.timeout_s)
    finally:
        await watcher.aclose()
    return response


async def _start(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": JSON})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def _pump(
    request: web.Request,
    response: web.StreamResponse,
    watcher: Watcher,
    encoder: _EventEncoder,
    timeout_s: float,
) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while events := await watcher.next_batch():
                if not await _written(response, encoder.encode(events)):
                    _abort(request)
                    return
    except TimeoutError:
        log.debug("watch of %s reached its time-out", request.path)
    except ClientConnectionResetError:
        return
    if not await _written(response, b""):
        _abort(request)


async def _written(response: web.StreamResponse, data: bytes) -> bool:
    """Write, or with no data end the stream; False if the client has not taken in anything for a minute."""
    try:
        async with asyncio.timeout(_WRITE_LIMIT_S):
            await (response.write(data) if data else response.write_eof())
    except TimeoutError:
        return False
    return True


def _abort(request: web.Request) -> None:
    """Drop the connection of a client that does not read."""
    if request.transport is not None:
        request.transport.abort()


class _EventEncoder:
    """Watch events to JSON lines; ready-made objects are only wrapped."""

    def __init__(self, context: Context, representation: Representation) -> None:
        self._kind = context.kind
        self._codec_bookmark = context.store.bookmark
        self._representer: Representer | None = None
        if representation.transform:
            include = context.request.query.get("includeObject", "")
            self._representer = Representer(context.kind, representation, include)

    def encode(self, events: Sequence[WatchEvent]) -> bytes:
        parts: list[bytes] = []
        for event in events:
            parts += (b'{"type":"', event.kind.encode(), b'","object":', self._object(event), b"}\n")
        return b"".join(parts)

    def _object(self, event: WatchEvent) -> bytes:
        if event.error is not None:
            error = to_api_error(event.error, self._kind)
            assert error is not None
            return dump(error.status())
        if event.object is not None:
            raw = event.object.raw
        else:
            raw = self._codec_bookmark(event.resource_version, initial_events_end=event.initial_events_end)
        return self._representer.event(raw) if self._representer else raw


def is_watch(context: Context) -> bool:
    return context.path.watch or flag(context.request, "watch")
