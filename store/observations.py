"""What a member counts about itself beyond the state of its parts, and where the time of a request went."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol

from raft.histogram import Histogram

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SHOWN_BYTES: Final = 60
WAITING: Final = frozenset({"Lock", "Campaign"})
"""Calls whose purpose is to wait: however long they take, nothing is slow."""
OK: Final = 0


class Method(NamedTuple):
    """An RPC as etcd's metrics name it."""

    kind: str
    service: str
    name: str


class Timed(Protocol):
    """What is known of one request's time."""

    began: float

    def text(self, ended: float) -> str:
        """The stages of its time, for people."""
        ...


class Trace:
    """The stages of one request: each ends where the next begins."""

    __slots__ = ("began", "stages")

    def __init__(self, began: float | None = None, *stages: tuple[str, float]) -> None:
        self.began = time.perf_counter() if began is None else began
        self.stages = list(stages)

    def text(self, ended: float) -> str:
        """``checks 0 ms, agreement 409 ms, answer 3 ms``"""
        before, parts = self.began, []
        for name, at in (*self.stages, ("answer", ended)):
            parts.append(f"{name} {(at - before) * 1e3:.0f} ms")
            before = at
        return ", ".join(parts)


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


def stage(name: str) -> None:
    """What the running request did since its last stage is called ``name``."""
    trace = _current.get()
    if trace is not None:
        trace.stages.append((name, time.perf_counter()))


class Observations:
    """One per member. ``last_sync_s`` tells how long the latest write of the raft log took."""

    def __init__(self, slow_request_s: float = 0.3, slow_apply_s: float = 0.1) -> None:
        self.slow_request_s = slow_request_s
        self.slow_apply_s = slow_apply_s
        self.last_sync_s: Callable[[], float] = float
        self.started: Counter[Method] = Counter()
        self.handled: Counter[tuple[Method, int]] = Counter()
        """By gRPC status code."""
        self.seconds: dict[Method, Histogram] = {}
        self.slow_applies = 0
        self.slow_requests = 0
        self.leader_changes = 0
        self.proposals_failed = 0
        self.reads_failed = 0
        self.health: Counter[bool] = Counter()
        self._leader = 0

    def leader_changed(self, leader: int, _leading: bool) -> None:
        """To be registered with Replica.on_leader_change: counts the leaders that this member has seen."""
        if leader and leader != self._leader:
            self.leader_changes += 1
            self._leader = leader

    def begin(self, method: Method) -> Trace:
        self.started[method] += 1
        trace = Trace()
        _current.set(trace)
        return trace

    def end_stream(self, method: Method, code: int) -> None:
        self.handled[method, code] += 1

    def end(self, method: Method, trace: Timed, code: int, request: Any) -> None:
        """A unary call is answered. One that took long is logged, with the stages of its time (etcd's trace)."""
        ended = time.perf_counter()
        took = ended - trace.began
        self.handled[method, code] += 1
        histogram = self.seconds.get(method)
        if histogram is None:
            histogram = self.seconds[method] = Histogram(REQUEST_SECONDS)
        histogram.observe(took)
        if method.name in WAITING:
            return
        if 0 < self.slow_request_s <= took:
            self.slow_requests += 1
            log.warning(
                "slow request: method=%s took=%.0fms expected=%.0fms code=%d stages=(%s) last_log_sync=%.0fms %s",
                method.name, took * 1e3, self.slow_request_s * 1e3, code, trace.text(ended),
                self.last_sync_s() * 1e3, describe(request),
            )  # fmt: skip

    def applied(self, took_s: float, index: int, request: Any) -> None:
        """One command was applied; one that held the loop for long is logged."""
        if 0 < self.slow_apply_s <= took_s:
            self.slow_applies += 1
            log.warning(
                "slow apply: index=%d took=%.0fms expected=%.0fms %s",
                index, took_s * 1e3, self.slow_apply_s * 1e3, describe(request),
            )  # fmt: skip


def describe(request: Any) -> str:
    """What a request is about, without its values: keys, bounds and sizes."""
    if not hasattr(request, "ListFields"):
        return f"bytes={len(request)}"
    parts = []
    for field, value in request.ListFields():
        if field.name in ("key", "range_end"):
            shown = bytes(value[:SHOWN_BYTES])
            parts.append(f"{field.name}={shown!r}{'...' if len(value) > SHOWN_BYTES else ''}")
        elif field.is_repeated:
            parts.append(f"{field.name}={len(value)}")
        elif field.message_type is not None:
            parts.append(f"{field.name}=({describe(value)})")
        elif field.type == field.TYPE_BYTES:
            parts.append(f"{field.name}_bytes={len(value)}")
        else:
            parts.append(f"{field.name}={value}")
    return " ".join(parts)
