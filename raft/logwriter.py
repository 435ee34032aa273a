"""The order of log writes: one at a time, and whatever waits meanwhile together in the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from raft.core.types import HardState, Message, Snapshot
from raft.log import DurableLog, LogWrite
from raft.prompt import tell

Stored = Callable[[Sequence[Message], Sequence[LogWrite]], None]
"""Takes the core's messages and what they had written, which is durable now."""


class LogWriter:
    """Writes what the core's messages to the append thread ask for.

    ``stored`` is called in the order of the messages; ``install`` before it for a snapshot, which has replaced the
    log by then; ``ended`` once all that ended has been told of, and what waits is being written; ``fail`` when a
    write fails or one of the others raises: nothing is written after that.
    """

    def __init__(
        self,
        log: DurableLog,
        hard_state: HardState,
        clock: Callable[[], float],
        stored: Stored,
        install: Callable[[Snapshot], Awaitable[None]],
        ended: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.hard_state = hard_state
        """As it is stored; to be kept up to date by ``stored``."""
        self.since: float | None = None
        """When the write under way began."""
        self._log = log
        self._clock = clock
        self._stored = stored
        self._install = install
        self._ended = ended
        self._fail = fail
        self._queue: deque[Message] = deque()
        self._under_way: asyncio.Future[None] | None = None
        """A write, or the installation of the snapshot that it brought."""
        self._group: asyncio.TaskGroup | None = None
        self._stopped = False

    def __len__(self) -> int:
        """How many messages wait for a write to begin."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        return self._under_way is None and not self._queue

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to write; what is a task is one of ``group``."""
        self._group = group
        self.write_next()

    def stop(self) -> None:
        """Nothing is called any more. A write under way goes to its end, in the database's thread."""
        self._stopped = True

    def add(self, message: Message) -> None:
        """Have it written; begin with ``write_next``."""
        self._queue.append(message)

    def write_next(self) -> None:
        """Write everything that waits, in one go, unless a write is under way: the next one begins at its end."""
        while self._queue and self._under_way is None and self._group is not None:
            batch = self._take()
            writes = [LogWrite.of(message) for message in batch]
            if any(write.must_sync(self.hard_state) for write in writes):
                self.since = self._clock()
                begun = self._log.write(writes)
                self._under_way = begun if isinstance(begun, asyncio.Future) else _begin(begun, self._group)
                tell(self._under_way, partial(self._written, batch, writes))
            else:
                self._stored(batch, writes)

    def _take(self) -> list[Message]:
        """Everything that waits, up to and including the first snapshot: what follows it must see it installed."""
        batch: list[Message] = []
        while self._queue:
            batch.append(self._queue.popleft())
            if batch[-1].snapshot is not None:
                break
        return batch

    def _written(self, batch: Sequence[Message], writes: Sequence[LogWrite], write: asyncio.Future[None]) -> None:
        if write.cancelled():
            return
        error = write.exception()
        if self._stopped:
            return
        self.since = None
        try:
            if error is not None:
                raise error
            if writes[-1].snapshot is not None:
                assert self._group is not None
                self._under_way = self._group.create_task(self._installed(batch, writes), name="install")
                return
            self._under_way = None
            self._stored(batch, writes)
            self.write_next()
            self._ended()
        except Exception as failure:
            self._fail(failure)

    async def _installed(self, batch: Sequence[Message], writes: Sequence[LogWrite]) -> None:
        """The rest of a write whose last part is a snapshot: the state is replaced before others hear of it."""
        snapshot = writes[-1].snapshot
        assert snapshot is not None
        self._stored(batch[:-1], writes[:-1])
        self._ended()
        await self._install(snapshot)
        self._stored(batch[-1:], writes[-1:])
        self._under_way = None
        self.write_next()
        self._ended()


def _begin(write: Coroutine[Any, Any, None], group: asyncio.TaskGroup) -> asyncio.Task[None]:
    """Raises RuntimeError when the group is ending, since a part of the member has failed: nothing is written."""
    try:
        return group.create_task(write)
    except RuntimeError:
        write.close()
        raise
