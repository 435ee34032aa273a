"""A durable log on a disk that can be slowed from outside: every write waits as long as a file says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from raft.core.types import Snapshot
from raft.log import DurableLog, LoadedLog, LogWrite

DELAY_MAX_S: Final = 60.0


class SlowLog:
    """Passes everything on to ``log``; a write first waits for as many milliseconds as ``file`` holds (none when
    there is no such file), as it would on a disk whose sync takes that long."""

    def __init__(self, log: DurableLog, file: Path) -> None:
        self._log = log
        self._file = file

    async def load(self) -> LoadedLog:
        return await self._log.load()

    async def write(self, writes: Sequence[LogWrite]) -> None:
        delay_s = await asyncio.to_thread(_delay_s, self._file)
        if delay_s:
            await asyncio.sleep(delay_s)
        await self._log.write(writes)

    async def compact(self, snapshot: Snapshot) -> None:
        await self._log.compact(snapshot)

    async def close(self) -> None:
        await self._log.close()

    def statistics(self) -> Mapping[str, float]:
        return self._log.statistics()


def _delay_s(file: Path) -> float:
    try:
        text = file.read_text().strip()
    except OSError:
        return 0.0
    return min(int(text) / 1000, DELAY_MAX_S) if text.isdecimal() else 0.0
