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

log = logging.getLogger(__name__)

READY_FD_VARIABLE: Final = "KVORUM_READY_FD"
"""Names a file descriptor on which a child process says one line when it serves, for the launcher to await."""
INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C has ended, as shells have it."""


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


async def unless_stopped(stop: asyncio.Event, work: Awaitable[int]) -> int:
    """Await ``work``, or cancel it as soon as ``stop`` is set: INTERRUPTED, once it has tidied up."""
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait((working, stopping))
    return INTERRUPTED if working.cancelled() else working.result()


def say_ready(line: str = "ready") -> None:
    """Tell the launcher that this process serves, if a launcher waits. One that has gone is no reason to end."""
    text = os.environ.pop(READY_FD_VARIABLE, "")
    if not text.isdecimal():
        return
    try:
        descriptor = int(text)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except (OSError, OverflowError) as error:
        log.info("the launcher does not listen any more: %s", error)


def drop_output() -> None:
    """The reader of standard output has gone: what is still to be written goes nowhere, without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _is_peer_fault(kind: type[BaseException]) -> bool:
    """By name: most commands need no aiohttp, and start faster without."""
    return kind.__module__ == "aiohttp.http_exceptions" or kind.__name__ == "RequestPayloadError"


class _PeerFaults(logging.Filter):
    """What a peer sends that is not HTTP is answered with 400: no error of this process, no traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not _is_peer_fault(type(error)):
            return True
        # Neither the text of the error, which quotes the peer's bytes, nor more than one line.
        log.debug("a request that is not HTTP: %s", type(error).__name__)
        return False


_PEER_FAULTS: Final = _PeerFaults()


def configure_logging(level: str = "info") -> None:
    """One line per record on standard error: time, level, logger, text."""
    logging.getLogger("aiohttp.server").addFilter(_PEER_FAULTS)
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        force=True,
    )
