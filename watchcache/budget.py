"""How long one cache may wait for its slow watchers: 50 ms per second, at most 100 ms saved up."""

from __future__ import annotations

from collections.abc import Callable

REFILL_S_PER_S = 0.050
CAP_S = 0.100


class TimeBudget:
    """Starts empty; a clock that goes back gives no credit. ``clock`` is in seconds."""

    def __init__(
        self, clock: Callable[[], float], *, refill_s_per_s: float = REFILL_S_PER_S, cap_s: float = CAP_S
    ) -> None:
        self._clock = clock
        self._refill = refill_s_per_s
        self._cap_s = cap_s
        self._budget_s = 0.0
        self._last = clock()

    def take(self) -> float:
        """All of it, in seconds."""
        now = self._clock()
        earned = max(0.0, now - self._last) * self._refill
        self._last = now
        taken = min(self._budget_s + earned, self._cap_s)
        self._budget_s = 0.0
        return taken

    def give_back(self, unused_s: float) -> None:
        self._budget_s = min(self._budget_s + max(0.0, unused_s), self._cap_s)
