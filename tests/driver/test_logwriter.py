"""The order of log writes: LogWriter over a log that the test ends write by write."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raft.core.types import APPEND_THREAD, ConfState, Entry, HardState, Message, MessageType, Snapshot
from raft.errors import SyncFailed
from raft.log import LoadedLog, LogWrite, Write
from raft.logwriter import LogWriter
from raft.prompt import PromptFuture


class Log:
    """A write ends when the test says so."""

    def __init__(self, as_task: bool = False, prompt: bool = False) -> None:
        self.asked: list[Sequence[LogWrite]] = []
        self.ends: list[asyncio.Future[None]] = []
        self._as_task = as_task
        self._prompt = prompt

    def write(self, writes: Sequence[LogWrite]) -> Write:
        self.asked.append(writes)
        loop = asyncio.get_running_loop()
        self.ends.append(PromptFuture(loop=loop) if self._prompt else loop.create_future())
        return self.ends[-1] if not self._as_task else self._wait(self.ends[-1])

    async def _wait(self, end: asyncio.Future[None]) -> None:
        await end

    async def load(self) -> LoadedLog:
        return LoadedLog(HardState(), Snapshot(), ())

    async def compact(self, snapshot: Snapshot) -> None: ...

    async def close(self) -> None: ...

    def statistics(self) -> dict[str, float]:
        return {}


class Owner:
    """What the writer told, in order."""

    def __init__(self, log: Log) -> None:
        self.told: list[str] = []
        self.failures: list[Exception] = []
        self.ended = 0
        self.may_install = asyncio.Event()
        self.writer = LogWriter(
            log,
            HardState(),
            asyncio.get_running_loop().time,
            self._stored,
            self._install,
            self._ended,
            self.failures.append,
        )

    def _stored(self, batch: Sequence[Message], writes: Sequence[LogWrite]) -> None:
        assert [LogWrite.of(message) for message in batch] == list(writes)
        self.told += [f"{write.entries[0].index}" if write.entries else "snapshot" for write in writes]

    def _ended(self) -> None:
        self.ended += 1

    async def _install(self, snapshot: Snapshot) -> None:
        await self.may_install.wait()
        self.told.append(f"installed {snapshot.index}")


@asynccontextmanager
async def running(log: Log) -> AsyncIterator[Owner]:
    owner = Owner(log)
    async with asyncio.TaskGroup() as group:
        owner.writer.start(group)
        yield owner


def entry(index: int) -> Message:
    entries = (Entry(1, index, data=b"x"),)
    return Message(MessageType.STORAGE_APPEND, APPEND_THREAD, 1, entries=entries)


def snapshot(index: int) -> Message:
    return Message(MessageType.STORAGE_APPEND, APPEND_THREAD, 1, snapshot=Snapshot(index, 1, ConfState((1,))))


async def turns(count: int = 4) -> None:
    """Let what is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def end(log: Log, number: int) -> None:
    log.ends[number].set_result(None)
    await turns()


async def test_nothing_is_told_before_its_write_has_ended_and_what_waited_is_one_write() -> None:
    log = Log()
    async with running(log) as owner:
        owner.writer.add(entry(1))
        owner.writer.write_next()
        assert owner.writer.since is not None
        for index in (2, 3):
            owner.writer.add(entry(index))
            owner.writer.write_next()
        assert (owner.told, len(log.asked), len(owner.writer)) == ([], 1, 2)
        await end(log, 0)
        assert (owner.told, [len(writes) for writes in log.asked]) == (["1"], [1, 2])
        await end(log, 1)
        assert owner.told == ["1", "2", "3"]
        assert owner.writer.is_idle


async def test_the_end_of_a_write_in_another_thread_is_told_in_the_same_turn_and_once() -> None:
    """Each turn in between is a poll of the sockets on the way of every write."""
    log = Log(prompt=True)
    async with running(log) as owner:
        owner.writer.add(entry(1))
        owner.writer.write_next()
        log.ends[0].set_result(None)
        assert (owner.told, owner.ended, owner.writer.is_idle) == (["1"], 1, True)
        owner.writer.add(entry(2))
        owner.writer.write_next()
        log.ends[1].set_exception(SyncFailed(Path("raft.db"), OSError("no")))
        assert (owner.told, len(owner.failures)) == (["1"], 1)
        await turns()
        assert (owner.told, owner.ended, len(owner.failures)) == (["1"], 1, 1)


async def test_what_came_before_a_snapshot_can_be_acted_on_while_that_is_installed() -> None:
    log = Log()
    async with running(log) as owner:
        owner.writer.add(entry(1))
        owner.writer.add(snapshot(9))
        owner.writer.write_next()
        await end(log, 0)
        assert (owner.told, owner.ended) == (["1"], 1)
        owner.may_install.set()
        await turns()
        assert owner.ended == 2


async def test_what_comes_before_the_start_is_written_at_the_start() -> None:
    log = Log()
    owner = Owner(log)
    owner.writer.add(entry(1))
    owner.writer.write_next()
    assert log.asked == []
    async with asyncio.TaskGroup() as group:
        owner.writer.start(group)
        await end(log, 0)
    assert owner.told == ["1"]


async def test_a_snapshot_is_installed_before_it_is_told_and_before_what_follows_is_written() -> None:
    log = Log()
    async with running(log) as owner:
        for message in (entry(1), snapshot(9), entry(10)):
            owner.writer.add(message)
        owner.writer.write_next()
        await end(log, 0)
        assert (owner.told, len(log.asked), owner.writer.since) == (["1"], 1, None)
        owner.may_install.set()
        await turns()
        assert (owner.told, len(log.asked)) == (["1", "installed 9", "snapshot"], 2)
        await end(log, 1)
        assert owner.told[-1] == "10"


async def test_after_a_write_that_failed_nothing_is_told_or_written() -> None:
    log = Log()
    async with running(log) as owner:
        owner.writer.add(entry(1))
        owner.writer.write_next()
        owner.writer.add(entry(2))
        failed = SyncFailed(Path("raft.db"), OSError("no"))
        log.ends[0].set_exception(failed)
        await turns()
        owner.writer.write_next()
        assert (owner.failures, owner.told, len(log.asked)) == ([failed], [], 1)


async def test_a_write_that_the_end_overtakes_is_not_left_behind() -> None:
    """The member is ending because another of its parts failed; filterwarnings turns what is never awaited into a
    failure."""
    owner = Owner(Log(as_task=True))
    async with asyncio.TaskGroup() as group:
        owner.writer.start(group)
    owner.writer.add(entry(1))
    with pytest.raises(RuntimeError, match="finished"):
        owner.writer.write_next()
    gc.collect()
    assert owner.told == []


@pytest.mark.parametrize("as_task", [False, True])
async def test_after_the_end_nothing_is_told_and_no_task_is_left(as_task: bool) -> None:
    log, before, owners = Log(as_task), asyncio.all_tasks(), []

    async def life() -> None:
        async with running(log) as owner:
            owners.append(owner)
            owner.writer.add(entry(1))
            owner.writer.write_next()
            try:
                await asyncio.Event().wait()
            finally:
                owner.writer.stop()

    task = asyncio.create_task(life())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before
    if not as_task:
        log.ends[0].set_exception(OSError("too late"))
        await turns()
    assert (owners[0].told, owners[0].failures) == ([], [])
