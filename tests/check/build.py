"""Short words for histories made by hand: times are small numbers, and every operation has a client of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from chaos.check.history import (
    Answer,
    Chosen,
    Compare,
    Deleted,
    Done,
    Event,
    Found,
    KeyValue,
    Operation,
    Outcome,
    Put,
    Range,
    Relation,
    Request,
    Result,
    Target,
    Txn,
    Watch,
    WatchRequest,
    WatchResponse,
)

DONE = Done()
_clients = itertools.count(1000)


def kv(key: str, value: str, mod: int, version: int = 1, create: int | None = None) -> KeyValue:
    return KeyValue(key.encode(), value.encode(), mod if create is None else create, mod, version)


def op(
    call: int,
    end: int | None,
    request: Request,
    result: Result | None = None,
    revision: int = 0,
    client: int | None = None,
    endpoint: str = "",
    error: str = "",
) -> Operation:
    """Without an end: of unknown outcome; with an error: refused."""
    number = next(_clients) if client is None else client
    if end is None:
        return Operation(number, call, None, request, Outcome.UNKNOWN, endpoint=endpoint)
    if error:
        return Operation(number, call, end, request, Outcome.FAILED, error=error, endpoint=endpoint)
    assert result is not None
    return Operation(number, call, end, request, Outcome.OK, Answer(revision, result), endpoint=endpoint)


def put(call: int, end: int | None, key: str, value: str, revision: int = 0) -> Operation:
    return op(call, end, Put(key.encode(), value.encode()), DONE, revision)


def get(call: int, end: int, key: str, found: KeyValue | None, revision: int = 0) -> Operation:
    kvs = (found,) if found is not None else ()
    return op(call, end, Range(key.encode()), Found(kvs, len(kvs)), revision)


def swap(call: int, end: int | None, key: str, mod: int, value: str, won: bool, revision: int = 0) -> Operation:
    """Compare-and-swap on the mod revision."""
    compare = Compare(key.encode(), Target.MOD, Relation.EQUAL, mod)
    request = Txn((compare,), (Put(key.encode(), value.encode()),))
    return op(call, end, request, Chosen(won, (DONE,) if won else ()), revision)


def deletion(key: str, revision: int, prev: KeyValue | None = None) -> Event:
    return Event(False, KeyValue(key.encode(), b"", 0, revision, 0), prev)


def deleted(count: int) -> Deleted:
    return Deleted(count)


def event(found: KeyValue, prev: KeyValue | None = None) -> Event:
    return Event(True, found, prev)


def batch(*events: Event, revision: int = 0, fragment: bool = False) -> WatchResponse:
    """One response; its header shows the last of its events unless it is told otherwise."""
    return WatchResponse(0, revision or events[-1].revision, events, fragment=fragment)


def progress(revision: int) -> WatchResponse:
    return WatchResponse(0, revision)


def created(revision: int) -> WatchResponse:
    return WatchResponse(0, revision, created=True)


def cancelled(compacted: int = 0) -> WatchResponse:
    return WatchResponse(0, 0, canceled=True, compact_revision=compacted)


def watch(
    responses: Iterable[WatchResponse],
    start: int = 0,
    key: str = "a",
    end: str = "z",
    number: int = 1,
    prev_kv: bool = False,
    no_put: bool = False,
    no_delete: bool = False,
) -> Watch:
    request = WatchRequest(
        number, 1, 0, key.encode(), end.encode(), start, prev_kv=prev_kv, no_put=no_put, no_delete=no_delete
    )
    return Watch(request, tuple(responses))
