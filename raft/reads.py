"""Linearizable reads in batches: one round with the leader answers every reader that waited for it to begin.

A reader that arrives after a round's index was asked for waits for the next round (M48). A round is retried
with a new id, so a late answer to an old one is never taken for it (M10). When a new leader appears, waiting
readers are told to ask again (M11).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from raft.errors import LeaderChanged, OutcomeUnknown, RaftError

RETRY_S: Final = 0.5


class ReadRounds:
    """At most one round is under way. ``ask`` sends a read request with a context into the core."""

    def __init__(
        self,
        ask: Callable[[bytes], None],
        clock: Callable[[], float],
        timeout_s: float,
        first_round: int | None = None,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._timeout_s = timeout_s
        self._next: list[tuple[asyncio.Future[int], float]] = []
        self._current: list[tuple[asyncio.Future[int], float]] = []
        self._context = b""
        # Not from 0: an answer to a round of an earlier life of this process must not look like one to ours.
        self._counter = time.time_ns() if first_round is None else first_round
        self._retry_at = 0.0
        self._for_apply: list[tuple[int, asyncio.Future[int]]] = []

    def __len__(self) -> int:
        return len(self._next) + len(self._current) + len(self._for_apply)

    def add(self) -> asyncio.Future[int]:
        """A reader: its future is done once this member has applied what its round's index says."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._next.append((future, self._clock() + self._timeout_s))
        return future

    def begin(self) -> None:
        """Start a round if readers wait and none is under way."""
        if self._next and not self._current:
            self._current, self._next = self._next, []
            self._send()

    def _send(self) -> None:
        self._counter += 1
        self._context = self._counter.to_bytes(8, "big")
        self._retry_at = self._clock() + RETRY_S
        self._ask(self._context)

    def confirmed(self, context: bytes, index: int, applied: int) -> None:
        """The leader confirmed a round: its readers wait for ``index`` to be applied."""
        if context != self._context or not self._current:
            return
        readers, self._current = self._current, []
        self._context = b""
        self._for_apply += [(index, future) for future, _ in readers]
        self.applied(applied)

    def applied(self, applied: int) -> None:
        """Wake the readers whose index has been applied."""
        if not self._for_apply:
            return
        later = []
        for index, future in self._for_apply:
            if index > applied:
                later.append((index, future))
            elif not future.done():
                future.set_result(index)
        self._for_apply = later

    def tick(self) -> None:
        """Give up on readers whose time is over, and repeat a round that got no answer."""
        now = self._clock()
        for queue in (self._current, self._next):
            while queue and queue[0][1] <= now:
                self._fail([queue.pop(0)[0]], OutcomeUnknown("no leader confirmed the read in time"))
        if self._current and now >= self._retry_at:
            self._send()
        elif not self._current:
            self._context = b""
            self.begin()

    def resend(self) -> None:
        """Ask again at once: an answer could not have been given before (first commit of a term)."""
        if self._current:
            self._send()

    def leader_changed(self) -> None:
        """A different leader appeared: whatever was asked of the old one may never be answered."""
        readers = [future for future, _ in self._current]
        self._current, self._context = [], b""
        self._fail(readers, LeaderChanged("the leader changed while the read waited"))

    def fail_all(self, error: RaftError) -> None:
        readers = [future for future, _ in (*self._current, *self._next)]
        readers += [future for _, future in self._for_apply]
        self._current, self._next, self._for_apply = [], [], []
        self._fail(readers, error)

    @staticmethod
    def _fail(readers: list[asyncio.Future[int]], error: RaftError) -> None:
        for future in readers:
            if not future.done():
                future.set_exception(error)
