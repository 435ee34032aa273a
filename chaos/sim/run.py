"""One seed, played to its end: what came out, and what can be said about it."""

from __future__ import annotations

import builtins
import contextlib
import gc
import logging
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.sim.options import Options, draw
from chaos.sim.plan import Fault
from chaos.sim.trace import Record
from chaos.sim.world import World
from chaos.virtual import Stuck

TRACE_BEFORE: Final = 40
"""Records shown before a violation."""


@dataclass
class Report:
    """The outcome of a seed. ``violation`` is empty when everything held."""

    seed: int
    violation: str = ""
    hash: int = 0
    virtual_s: float = 0.0
    callbacks: int = 0
    operations: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    tail: list[Record] = field(default_factory=list)
    """The last records before the violation."""

    @property
    def rule(self) -> str:
        """The name of what was violated."""
        return rule_of(self.violation)


def rule_of(violation: str) -> str:
    head = violation.split("\n")[0]
    return head.split(":")[0] if ":" in head[:60] else head[:60]


class OutsideWorld(RuntimeError):
    """The simulated code reached for something real: a thread, a socket, a file."""


def play(seed: int, options: Options | None = None, faults: Sequence[Fault] | None = None) -> Report:
    """Run one seed; ``options`` and ``faults`` replace what it draws. Never raises for what the cluster does."""
    report, _ = play_world(seed, options, faults)
    return report


def play_world(
    seed: int, options: Options | None = None, faults: Sequence[Fault] | None = None
) -> tuple[Report, World]:
    """As ``play``, with everything that was recorded."""
    world = World(seed, options or draw(seed), faults)
    report = Report(seed)
    with _sealed(world):
        try:
            world.loop.run(world.run())
        except Exception as error:
            report.violation = _text(error)
    problems = [problem for problem in world.loop.problems if not _harmless(problem)]
    if problems and not report.violation:
        report.violation = f"unhandled: {problems[0]['message']}: {problems[0].get('exception')!r}"
    report.hash = world.trace.hash
    report.virtual_s = world.loop.now
    report.callbacks = world.loop.callbacks
    report.operations = len(world.operations)
    report.reached = world.trace.reached
    if report.violation:
        report.tail = world.trace.records[-TRACE_BEFORE:]
    return report, world


def _text(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AssertionError):
        return str(error) or "assertion without a text"
    if isinstance(error, Stuck):
        return f"stuck: {error}"
    return f"exception: {type(error).__name__}: {error}"


def _harmless(problem: dict[str, Any]) -> bool:
    """A client that gave up does not hear what became of its request; nobody else waits for it."""
    future = problem.get("future")
    name = getattr(future, "get_name", lambda: "")()
    return bool(name.startswith("serve-"))


@contextlib.contextmanager
def _sealed(world: World) -> Iterator[None]:
    """Nothing real is reachable while a world runs, its clocks are the only ones, and nobody writes a log line."""

    def refuse(what: str) -> Callable[..., Any]:
        def refused(*_: Any, **__: Any) -> Any:
            raise OutsideWorld(f"the simulated code used {what}")

        return refused

    def now() -> float:
        return world.loop.wall_time()

    patches: list[tuple[Any, str, Any]] = [
        (threading.Thread, "start", refuse("a thread")),
        (socket, "socket", refuse("a socket")),
        (builtins, "open", refuse("a file")),
        (os, "open", refuse("a file")),
        (random, "random", refuse("the shared random generator")),
        (random, "getrandbits", refuse("the shared random generator")),
        (time, "sleep", refuse("a blocking sleep")),
        (time, "time", now),
        (time, "time_ns", lambda: int(now() * 1e9)),
        (time, "monotonic", world.loop.time),
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.disable()  # so that what it finalizes, and when, does not depend on what ran before
    try:
        for owner, name, value in patches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
        gc.enable()
        logging.disable(disabled)
