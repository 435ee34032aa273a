"""An asyncio event loop in which time, order and death are decided by the simulation.

Work belongs to *hosts*: a task started in a host's context, and all timers, callbacks and tasks that come of it,
run on that host. So a host can be paused (its work is kept back), its clock can drift, and when its process is
killed nothing of it runs any more. Inside one host callbacks keep the order that asyncio promises; between hosts
the order is drawn.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from chaos.virtual import Stuck

T = TypeVar("T")

MOMENT_MAX: Final = 100_000
"""Callbacks at one moment: a whole run has a tenth as many."""
LOOK_AHEAD: Final = 8
"""How many callbacks that could run next the draw of the order looks at."""

_HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("simulated host", default=None)


class Host:
    """Where one process runs, and how its clocks go. ``stepped`` is called after every callback that ran here."""

    def __init__(self, name: str, rate: float = 1.0) -> None:
        self.name = name
        self.rate = rate
        """Seconds of its clock per true second."""
        self.wall_offset_s = 0.0
        self.paused = False
        self.held: list[Handle] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """In the order they were started."""
        self.stepped: Callable[[], None] | None = None
        self.context = contextvars.copy_context()
        self.context.run(_HOST.set, self)


class Handle:
    """A callback that will run, as asyncio.Handle: made by ``call_soon`` and ``call_at``."""

    __slots__ = ("_cancelled", "_when", "args", "callback", "context", "host")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context, when: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.host = context.get(_HOST)
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    """``run`` drives one coroutine to its end. ``rng`` None keeps asyncio's order between hosts too."""

    def __init__(self, rng: random.Random | None) -> None:
        self._rng = rng
        self.now = 0.0
        """True time in seconds, which no host sees."""
        self.callbacks = 0
        self.problems: list[dict[str, Any]] = []
        """What reached the exception handler: a callback or a task failed and nobody was told."""
        self._failure: BaseException | None = None
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._timers_made = 0
        self._moved_at = 0
        """The number of callbacks when time last moved."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._hosts: dict[Host, None] = {}

    # -- running ------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until ``main`` returns. Raises what it raises, what ``stepped`` raises, and Stuck."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._run_one()
                if self._failure is not None:
                    raise self._failure
            result: T = task.result()
            return result
        finally:
            self._end()
            asyncio._set_running_loop(None)

    def fail(self, error: BaseException) -> None:
        """End the run with ``error`` after the present callback, whatever that does with exceptions."""
        if self._failure is None:
            self._failure = error

    def _run_one(self) -> None:
        ready = self._ready
        while not ready:
            if not self._timers:
                raise Stuck("every task waits and no timer is set")
            when, _, handle = heapq.heappop(self._timers)
            if not handle._cancelled:
                self.now = max(self.now, when)
                self._moved_at = self.callbacks
                ready.append(handle)
                self._collect_due()
        handle = self._choose()
        host = handle.host
        if handle._cancelled:
            return
        if host is not None and host.paused:
            host.held.append(handle)
            return
        self.callbacks += 1
        if self.callbacks - self._moved_at > MOMENT_MAX:
            name = _name(handle.callback)
            raise Stuck(f"{MOMENT_MAX} callbacks, and no time has passed: {name} is called again and again")
        try:
            handle.context.run(handle.callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except Exception as error:
            self.call_exception_handler({"message": f"callback {handle.callback!r} failed", "exception": error})
        if host is not None and host.stepped is not None:
            host.stepped()

    def _collect_due(self) -> None:
        """Timers of the same moment become ready together, so that their order is drawn too."""
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                self._ready.append(handle)

    def _choose(self) -> Handle:
        """The next callback: any host's, but the first of those of that host."""
        ready, rng = self._ready, self._rng
        if rng is None or len(ready) == 1:
            return ready.popleft()
        drawn = int(rng.random() * min(len(ready), LOOK_AHEAD))
        host = ready[drawn].host
        for at in range(drawn):
            if ready[at].host is host:
                drawn = at
                break
        handle = ready[drawn]
        del ready[drawn]
        return handle

    def resume(self, host: Host) -> None:
        """Let a paused host go on, with what it has missed."""
        host.paused = False
        self._ready.extend(host.held)
        host.held.clear()

    def kill(self, host: Host) -> None:
        """End everything that runs on ``host``. Its ports must be cut already: the tasks are cancelled, and what
        they still do to clean up must reach nobody."""
        host.stepped = None
        for task in list(host.tasks):
            task.cancel()
        if host.paused:
            self.resume(host)

    def _end(self) -> None:
        """Cancel what is left and let it clean up, with nobody looking."""
        for _ in range(3):
            for task in list(self._tasks):
                task.cancel()
            for host in list(self._hosts):
                self.kill(host)
            self._drain()
        for task in (*self._tasks, *(task for host in self._hosts for task in host.tasks)):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._timers.clear()

    def _drain(self) -> None:
        while self._ready:
            handle = self._ready.popleft()
            if not handle._cancelled:
                try:
                    handle.context.run(handle.callback, *handle.args)
                except Exception as error:
                    self.call_exception_handler({"message": "during the end", "exception": error})

    # -- what asyncio asks of a loop ----------------------------------------------------------------------

    def time(self) -> float:
        """The clock of the host that asks."""
        host = _HOST.get()
        return self.now if host is None else self.now * host.rate

    def wall_time(self) -> float:
        """Seconds since the epoch on the host that asks, right or wrong."""
        host = _HOST.get()
        return 1_700_000_000.0 + self.now + (0.0 if host is None else host.wall_offset_s)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, self.now)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, when)
        host = handle.host
        true = when if host is None else when / host.rate
        self._timers_made += 1
        heapq.heappush(self._timers, (true, self._timers_made, handle))
        return handle

    def call_in(self, delay: float, host: Host | None, callback: Any, *args: Any) -> None:
        """Run ``callback`` on ``host`` after ``delay`` true seconds: what the world does to a host."""
        context = contextvars.Context() if host is None else host.context.copy()
        self._timers_made += 1
        handle = Handle(callback, args, context, self.now + delay)
        heapq.heappush(self._timers, (self.now + delay, self._timers_made, handle))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        host = _HOST.get() if context is None else context.get(_HOST)
        tasks = self._tasks if host is None else host.tasks
        if host is not None:
            self._hosts[host] = None
        tasks[task] = None
        task.add_done_callback(lambda done: tasks.pop(done, None))
        return task

    def start_on(self, host: Host, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task that runs on ``host``, as does everything it starts."""
        return self.create_task(coro, name=name, context=host.context.copy())

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)


def _name(callback: Any) -> str:
    """What a callback is, in words that are the same in every run."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"the task of {getattr(owner.get_coro(), '__qualname__', 'a coroutine')}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))
