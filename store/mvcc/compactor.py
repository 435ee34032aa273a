"""The physical half of a compaction: deleting rows in the background, in batches (contract §5).

The logical half is immediate (reads below the revision fail as soon as the command is applied), so nothing
here has to be deterministic, and an interrupted run is simply done again after a restart.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Final, Protocol

from store.backend import Backend
from store.mvcc.ranges import Selection
from store.state import FINISHED_COMPACTION, State, revision_bytes

KEYS_PER_BATCH: Final = 1000
READERS_WAIT_S: Final = 5.0


class Readers:
    """Ranges that have chosen their rows and not read them yet. Forgotten ones count no longer."""

    def __init__(self) -> None:
        self._active: set[weakref.ref[Selection]] = set()
        self._changed = asyncio.Event()

    def add(self, selection: Selection) -> None:
        self._active.add(weakref.ref(selection, self._gone))

    def _gone(self, ref: weakref.ref[Selection]) -> None:
        self._active.discard(ref)
        self._changed.set()

    async def wait_current(self) -> None:
        """Wait until those that are active now have finished, at most READERS_WAIT_S."""
        waiting = set(self._active)
        try:
            async with asyncio.timeout(READERS_WAIT_S):
                while waiting & self._active:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return  # a reader that slow is told that its revision was compacted


class Keeper(Protocol):
    """What the compactor needs of the machine."""

    @property
    def state(self) -> State: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def readers(self) -> Readers: ...
    async def flush(self) -> None: ...


class Compactor:
    """Carries out the newest compaction that was applied."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._work = asyncio.Event()
        self._finished = asyncio.Condition()

    def wake(self) -> None:
        self._work.set()

    async def run(self) -> None:
        """Compact whenever there is something to, until cancelled."""
        while True:
            state = self._keeper.state
            while state.finished_compaction < state.compact_revision:
                await self._compact(state, state.compact_revision)
                async with self._finished:
                    self._finished.notify_all()
                state = self._keeper.state
            self._work.clear()
            await self._work.wait()

    async def wait_finished(self, revision: int) -> None:
        """Return once every row that a compaction at ``revision`` drops is deleted."""
        async with self._finished:
            await self._finished.wait_for(lambda: self._keeper.state.finished_compaction >= revision)

    async def _compact(self, state: State, revision: int) -> None:
        keeper = self._keeper
        await keeper.flush()
        await keeper.readers.wait_current()
        keys = list(state.index.history)
        for start in range(0, len(keys), KEYS_PER_BATCH):
            if keeper.state is not state:
                return  # replaced by a snapshot, which brings its own compaction
            victims: list[int] = []
            for key in keys[start : start + KEYS_PER_BATCH]:
                victims += state.index.compact_key(key, revision)
            if victims:
                await keeper.backend.delete_rows(victims)
            await asyncio.sleep(0)
        if keeper.state is state:
            await keeper.backend.delete_rows((), [(FINISHED_COMPACTION, revision_bytes(revision))])
            state.finished_compaction = revision
