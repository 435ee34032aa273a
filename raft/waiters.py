"""Who waits for which proposal, and the ids that tie them together (contract §29)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from raft.errors import NoLeader, OutcomeUnknown

log = logging.getLogger(__name__)

ID_BYTES: Final = 8


class RequestIds:
    """Ids unique across members and restarts: 2 bytes of member id, 5 of start time in ms, 1 that counts.

    The counter carries into the time bytes, so an id repeats only if a member made 256 proposals for every
    millisecond since its last start.
    """

    def __init__(self, member_id: int, now_ms: int | None = None) -> None:
        start_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._prefix = (member_id & 0xFFFF) << 48
        self._suffix = (start_ms & 0xFF_FFFF_FFFF) << 8

    def next(self) -> int:
        self._suffix = (self._suffix + 1) & 0xFFFF_FFFF_FFFF
        return self._prefix | self._suffix


Settle = Callable[[Any], None]
"""Takes an outcome: what applying returned, or the exception that says why there is none. Must not raise."""


def settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Hand an outcome to a future, unless its owner gave up."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Waiters:
    """Callbacks by request id. Each is called at most once: applied, refused, or unknown when time runs out.

    All deadlines are the same distance away, so the oldest waiter is always the first to expire and a look
    at the front of the dict is enough: no timer per proposal.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._waiting: dict[int, tuple[Settle, float]] = {}
        """With the deadline."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def register(self, request_id: int, settle: Settle) -> None:
        if request_id in self._waiting:
            raise AssertionError(f"request id {request_id:x} is already waited for")
        self._waiting[request_id] = (settle, self._clock() + self.timeout_s)

    def resolve(self, request_id: int, outcome: Any) -> None:
        """Hand ``outcome`` to the waiter. Too late: dropped."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return
        try:
            waiting[0](outcome)
        except Exception as error:  # a fault of whoever waits: applying, and the others who wait, go on
            log.error("nobody took the outcome of proposal %x", request_id, exc_info=error)

    def forget(self, request_id: int) -> None:
        self._waiting.pop(request_id, None)

    def expire(self, never_sent: Callable[[int], bool]) -> None:
        """Fail what has waited too long: NoLeader if it never left this member, else the outcome is unknown."""
        now = self._clock()
        while self._waiting:
            request_id, (_, deadline) = next(iter(self._waiting.items()))
            if deadline > now:
                return
            if never_sent(request_id):
                self.resolve(request_id, NoLeader("no leader took the proposal in time"))
            else:
                self.resolve(request_id, OutcomeUnknown("the proposal was not applied in time"))

    def fail_all(self, error: Exception) -> None:
        for request_id in list(self._waiting):
            self.resolve(request_id, error)
