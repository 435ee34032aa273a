"""Pods to write and watch in tests."""

from __future__ import annotations

import asyncio
from typing import Any

from watchcache.codec import Codec, Object, Resource
from watchcache.events import Watcher, WatchEvent
from watchcache.selectors import Predicate, parse_fields, parse_labels

PREFIX = "/registry/pods/"


def node_of(obj: Object) -> dict[str, str]:
    return {"spec.nodeName": str((obj.get("spec") or {}).get("nodeName", ""))}


def pod_resource(prefix: str = PREFIX) -> Resource:
    return Resource("v1", "Pod", prefix, fields=node_of, trigger="spec.nodeName")


def pod(namespace: str, name: str, *, node: str = "", labels: dict[str, str] | None = None) -> Object:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "uid": f"uid-{name}"}
    if labels:
        metadata["labels"] = labels
    obj: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    if node:
        obj["spec"] = {"nodeName": node}
    return obj


def encoded(namespace: str, name: str, **kwargs: Any) -> bytes:
    return Codec(pod_resource()).encode(pod(namespace, name, **kwargs))


def select(labels: str = "", fields: str = "") -> Predicate:
    return Predicate(parse_labels(labels), parse_fields(fields, lambda name: True))


async def take(watcher: Watcher, count: int, limit_s: float = 5.0) -> list[WatchEvent]:
    """Exactly ``count`` events; fails if the watch ends before or more arrive in the same batch."""
    events: list[WatchEvent] = []
    async with asyncio.timeout(limit_s):
        while len(events) < count:
            batch = await watcher.next_batch()
            assert batch, f"the watch ended after {events}"
            events += batch
    assert len(events) == count, events
    return events


async def assert_silent(watcher: Watcher, for_s: float = 0.05) -> None:
    """No event within ``for_s``."""
    try:
        async with asyncio.timeout(for_s):
            events = await watcher.next_batch()
    except TimeoutError:
        return
    raise AssertionError(f"unexpected {events}")


def summary(events: list[WatchEvent]) -> list[tuple[str, str]]:
    """(type, name) of each event."""
    return [(event.kind, event.object.name if event.object else "") for event in events]
