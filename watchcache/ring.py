"""The event history: a ring that grows when it turns over too fast and shrinks when it is idle (contract §2)."""

from __future__ import annotations

import math
from collections.abc import Callable

from .errors import Expired
from .events import Change

BOOKMARK_PERIOD_S = 60.0
FRESH_S = BOOKMARK_PERIOD_S + 15.0  # a client that got a bookmark must find its history still here
CAPACITY_MIN = 100
CAPACITY_MAX = 102_400


def capacity_upper_bound(history_window_s: float) -> int:
    """The largest ring for a history window: it doubles each time the window exceeds 75 s twofold."""
    if history_window_s <= FRESH_S:
        return CAPACITY_MAX
    return int(CAPACITY_MAX * 2 ** math.ceil(math.log2(history_window_s / FRESH_S)))


class EventRing:
    """Changes in revision order. Positions count from the start of time and never move.

    Args:
        clock: seconds, monotonic.

    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        capacity_min: int = CAPACITY_MIN,
        capacity_max: int = CAPACITY_MAX,
        fresh_s: float = FRESH_S,
    ) -> None:
        self._clock = clock
        self._min = capacity_min
        self._max = capacity_max
        self._fresh_s = fresh_s
        self.capacity = capacity_min
        self._slots: list[Change | None] = [None] * capacity_min
        self.start = 0
        self.end = 0
        self.list_version = 0
        self._evicted = False

    def __len__(self) -> int:
        return self.end - self.start

    def reset(self, list_version: int) -> None:
        """Forget everything: the state was listed anew at ``list_version``. The capacity stays."""
        self._slots = [None] * self.capacity
        self.start = self.end
        self.list_version = list_version
        self._evicted = False

    def add(self, change: Change) -> None:
        """Append; a full ring is resized or drops its oldest entry."""
        now = self._clock()
        change.at = now
        if len(self) == self.capacity:
            self._resize(now)
        if len(self) == self.capacity:
            self.start += 1
            self._evicted = True
        self._slots[self.end % self.capacity] = change
        self.end += 1

    def at(self, position: int) -> Change:
        change = self._slots[position % self.capacity]
        assert change is not None
        return change

    def _resize(self, now: float) -> None:
        if now - self.at(self.start).at < self._fresh_s:
            self._move(min(self.capacity * 2, self._max))
        elif now - self.at(self.end - self.capacity // 4).at > self._fresh_s:
            self._move(max(self.capacity // 2, self._min))

    def _move(self, capacity: int) -> None:
        if capacity == self.capacity:
            return
        start = max(self.start, self.end - capacity)
        kept = [self.at(position) for position in range(start, self.end)]
        self._evicted = self._evicted or start > self.start
        self.start, self.capacity = start, capacity
        self._slots = [None] * capacity
        for position, change in enumerate(kept, start):
            self._slots[position % capacity] = change

    @property
    def oldest_version(self) -> int:
        """The first version whose change is certainly here."""
        if self._evicted and len(self):
            return self.at(self.start).resource_version
        return self.list_version + 1

    def position_after(self, resource_version: int) -> int:
        """The position of the first change newer than ``resource_version``.

        Raises:
            Expired: changes between it and the ring have been dropped.
        """
        oldest = self.oldest_version
        if resource_version < oldest - 1:
            raise Expired(f"too old resource version: {resource_version} ({oldest - 1})")
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            if self.at(middle).resource_version > resource_version:
                high = middle
            else:
                low = middle + 1
        return low
