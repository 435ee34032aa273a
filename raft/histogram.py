"""Counts of measured values by size, as a monitoring system reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def exponential(first: float, count: int) -> tuple[float, ...]:
    """Bounds that double, ``count`` of them."""
    return tuple(first * 2**i for i in range(count))


DISK_SECONDS = exponential(0.001, 14)
"""What etcd measures its disk with: 1 ms to 8 s."""
ROUND_TRIP_SECONDS = exponential(0.0001, 16)


class Histogram:
    """How many values were at most each bound; cheap enough for every sync and every call."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """For each bound how many values were not above it, and last how many there are."""
        out, seen = [], 0
        for count in self.counts:
            seen += count
            out.append(seen)
        return out
