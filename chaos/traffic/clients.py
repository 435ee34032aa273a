"""Sequential clients: one request at a time, at one member, at a pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from chaos.check.history import Operation, Outcome, Request
from chaos.traffic.caller import Caller
from chaos.traffic.mix import Mix
from chaos.traffic.recorder import Recorder

CALL_TIMEOUT_S: Final = 3.0
"""Longer than an election, shorter than most pauses: some outcomes shall be unknown."""


class Client:
    """A client of one member. After an unknown outcome it goes on under a new number, since its old one never
    learns; the same after its member restarted."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self._caller = Caller(url)
        self._recorder = recorder
        self._number = recorder.new_client()
        self._restarts = recorder.restarts[self._caller.url]

    async def aclose(self) -> None:
        await self._caller.aclose()

    async def do(self, request: Request, timeout_s: float = CALL_TIMEOUT_S) -> Operation:
        """Send a request once, and record it with its outcome. One that is cancelled is recorded as unknown."""
        restarts = self._recorder.restarts[self._caller.url]
        if restarts != self._restarts:
            self._restarts, self._number = restarts, self._recorder.new_client()
        number, call = self._number, self._recorder.now()
        try:
            outcome, answer, error = await self._caller.call(request, timeout_s)
        except BaseException:
            self._number = self._recorder.new_client()
            self._note(Operation(number, call, None, request, Outcome.UNKNOWN, error="cancelled"))
            raise
        end = None if outcome is Outcome.UNKNOWN else self._recorder.now()
        if outcome is not Outcome.OK and not error.startswith("etcdserver: mvcc"):
            self._number = self._recorder.new_client()  # whatever went wrong may have reconnected it
        return self._note(Operation(number, call, end, request, outcome, answer, error, self._caller.url))

    def _note(self, operation: Operation) -> Operation:
        self._recorder.operation(operation)
        return operation


async def drive(
    url: str, mix: Mix, recorder: Recorder, random: Random, pace_s: float, stop: asyncio.Event
) -> None:
    """Requests of ``mix`` at one member until ``stop``, one every ``pace_s`` seconds on average if it can."""
    client = Client(url, recorder)
    try:
        while not stop.is_set():
            mix.learn(await client.do(mix.next()))
            await pause(random.expovariate(1 / pace_s), stop)
    finally:
        await client.aclose()


async def pause(seconds: float, stop: asyncio.Event) -> None:
    """Let time pass, until ``stop`` at most."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def settle(
    urls: Sequence[str], recorder: Recorder, request: Callable[[], Request], timeout_s: float
) -> Operation:
    """A request that one of the members answered; each is asked in turn, every time for a new one.

    Raises TimeoutError.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            for url in urls:
                client = Client(url, recorder)
                try:
                    done = await client.do(request())
                finally:
                    await client.aclose()
                if done.outcome is Outcome.OK:
                    return done
            await asyncio.sleep(0.2)  # members are other processes: there is only asking again
