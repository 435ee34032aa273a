"""An event loop whose clock jumps to the next timer: seconds of waiting take no time, and every run is the same.

Nothing outside the loop may be waited for: no threads, no sockets, no processes. What is scheduled runs in the
order that asyncio defines, so a run is a function of its inputs and its seeds.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

LIMIT_S: Final = 600.0
"""Virtual time that a run may take: what waits for something that never comes would tick on for ever."""


class Stuck(Exception):
    """The run would hang for ever: every task waits and no timer is set, or only timers go on."""


class _Selector(selectors.SelectSelector):
    """Instead of sleeping, moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._ends_at = LIMIT_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stuck("every task waits and no timer is set")
        self.now += max(timeout, 0.0)
        if self.now > self._ends_at:
            self._ends_at += LIMIT_S  # for the cancelling of all tasks, which comes next
            raise Stuck(f"the run has not ended after {LIMIT_S:.0f} s")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` begins at 0 and moves only when nothing is left to run at the present moment."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` in a virtual loop of its own and return what it returns."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
