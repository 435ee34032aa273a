"""The event loop that every Kvorum process runs on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final

try:
    import uvloop

    _LOOP_FACTORY: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
except ImportError:  # not built for every platform; the standard loop is slower, nothing else
    _LOOP_FACTORY = None

READY_FD_VARIABLE: Final = "KVORUM_READY_FD"
"""Names a file descriptor on which a child process says one line when it serves, for the launcher to await."""


def run(main: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Run ``main(stop)`` to its end and return its exit code; ``stop`` is set by SIGTERM or SIGINT."""

    async def body() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await main(stop)

    with asyncio.Runner(loop_factory=_LOOP_FACTORY) as runner:
        return runner.run(body())


def say_ready(line: str = "ready") -> None:
    """Tell the launcher that this process serves, if a launcher waits."""
    descriptor = os.environ.pop(READY_FD_VARIABLE, "")
    if descriptor.isdigit():
        os.write(int(descriptor), f"{line}\n".encode())
        os.close(int(descriptor))


def configure_logging(level: str = "info") -> None:
    """One line per record on standard error: time, level, logger, text."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        force=True,
    )
