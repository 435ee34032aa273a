"""The event history (contract §2; cases D 89 - 95, 99)."""

from __future__ import annotations

import pytest

from tests.watchcache.pods import encoded, pod_resource
from watchcache.backend import KeyValue
from watchcache.budget import TimeBudget
from watchcache.codec import Codec
from watchcache.errors import Expired, retry_after_s
from watchcache.events import Change
from watchcache.freshness import progress_is_safe
from watchcache.keys import has_path_prefix
from watchcache.ring import EventRing, capacity_upper_bound
from watchcache.selectors import EVERYTHING
from watchcache.watcher import HistoryOverrun, history, suggested_queue_size


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def change(version: int) -> Change:
    key = b"/registry/pods/ns/a"
    item = Codec(pod_resource()).decode(KeyValue(key, encoded("ns", "a"), mod_revision=version))
    return Change(version, item, None)


def filled(ring: EventRing, first: int, last: int) -> EventRing:
    for version in range(first, last + 1):
        ring.add(change(version))
    return ring


def versions_after(ring: EventRing, version: int) -> list[int]:
    start = ring.position_after(version)
    return [ring.at(position).resource_version for position in range(start, ring.end)]


def test_case_90_history_reaches_back_to_just_before_the_oldest_event() -> None:
    ring = EventRing(Clock(), capacity_min=5, capacity_max=5)
    filled(ring, 4, 9)
    with pytest.raises(Expired, match=r"too old resource version: 3 \(4\)"):
        ring.position_after(3)
    assert versions_after(ring, 4) == [5, 6, 7, 8, 9]
    assert versions_after(ring, 9) == []


def test_case_91_after_a_replace_only_what_is_newer_is_known() -> None:
    ring = filled(EventRing(Clock()), 2, 8)
    ring.reset(9)
    with pytest.raises(Expired):
        ring.position_after(8)
    assert versions_after(ring, 9) == []
    ring.add(change(12))
    assert versions_after(ring, 9) == [12]
    assert versions_after(ring, 10) == [12]


def test_case_89_an_empty_ring_starts_at_the_listed_version() -> None:
    ring = EventRing(Clock())
    ring.reset(100)
    with pytest.raises(Expired):
        ring.position_after(99 - 1)
    assert versions_after(ring, 100) == []
    assert versions_after(ring, 101) == []


def test_a_full_ring_grows_while_its_oldest_event_is_fresh() -> None:
    ring = EventRing(Clock(), capacity_min=4, capacity_max=16)
    filled(ring, 2, 10)
    assert ring.capacity == 16
    assert versions_after(ring, 1) == list(range(2, 11))


def test_a_ring_at_its_upper_bound_drops_the_oldest() -> None:
    ring = EventRing(Clock(), capacity_min=4, capacity_max=8)
    filled(ring, 1, 20)
    assert (ring.capacity, len(ring)) == (8, 8)
    assert ring.oldest_version == 13


def test_a_full_ring_of_old_events_shrinks_but_not_below_its_lower_bound() -> None:
    clock = Clock()
    ring = EventRing(clock, capacity_min=4, capacity_max=16)
    filled(ring, 1, 16)
    assert ring.capacity == 16
    clock.now += 100
    ring.add(change(17))
    assert ring.capacity == 8
    assert versions_after(ring, ring.oldest_version - 1)[-1] == 17
    clock.now += 100
    filled(ring, 18, 18)
    assert ring.capacity == 4


def test_age_alone_never_drops_an_event() -> None:
    clock = Clock()
    ring = filled(EventRing(clock), 2, 50)
    clock.now += 10_000
    ring.add(change(51))
    assert versions_after(ring, 1) == list(range(2, 52))


def test_case_93_a_growing_ring_loses_nothing_to_a_reader() -> None:
    ring = filled(EventRing(Clock(), capacity_min=4, capacity_max=1024), 1, 300)
    chunks = history(ring, ring.position_after(0), ring.end, EVERYTHING)
    seen = [event.resource_version for event in next(chunks)]
    filled(ring, 301, 600)
    seen += [event.resource_version for chunk in chunks for event in chunk]
    assert seen == list(range(1, 301))


def test_case_99_an_overrun_history_ends_after_the_chunk_already_read() -> None:
    ring = filled(EventRing(Clock(), capacity_min=200, capacity_max=200), 1, 200)
    chunks = history(ring, ring.position_after(0), ring.end, EVERYTHING)
    assert len(next(chunks)) == 100
    filled(ring, 201, 320)
    with pytest.raises(HistoryOverrun):
        next(chunks)


@pytest.mark.parametrize(
    ("window_s", "expected"), [(0, 102_400), (75, 102_400), (76, 204_800), (150, 204_800), (300, 409_600)]
)
def test_case_95_capacity_upper_bound_doubles_with_the_window(window_s: float, expected: int) -> None:
    assert capacity_upper_bound(window_s) == expected


def test_case_94_queue_sizes_stay_within_their_bounds() -> None:
    for capacity in (100, 200, 1600, 102_400):
        assert suggested_queue_size(capacity, indexed=True, trigger_used=True) == 10
        assert 10 <= suggested_queue_size(capacity, indexed=True, trigger_used=False) <= 1000
        assert 10 <= suggested_queue_size(capacity, indexed=False, trigger_used=False) <= 100
    assert suggested_queue_size(102_400, indexed=False, trigger_used=False) == 100
    assert suggested_queue_size(102_400, indexed=True, trigger_used=False) == 1000


def test_case_113_the_budget_starts_empty_accrues_to_its_cap_and_takes_back_the_rest() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    assert budget.take() == 0
    clock.now += 1
    assert budget.take() == pytest.approx(0.05)
    clock.now += 100
    assert budget.take() == pytest.approx(0.1)
    budget.give_back(0.03)
    assert budget.take() == pytest.approx(0.03)
    clock.now -= 50
    assert budget.take() == 0


@pytest.mark.parametrize(("down_s", "expected"), [(0, 1), (10, 1), (14, 2), (20, 3), (30, 6), (40, 11), (540, 30)])
def test_case_110_retry_after_grows_with_the_downtime(down_s: float, expected: int) -> None:
    assert retry_after_s(down_s) == expected


@pytest.mark.parametrize(
    ("path", "prefix", "expected"),
    [("/a/b", "/a", True), ("/a/b", "/a/", True), ("/ab", "/a", False), ("/a", "/a", True)],
)
def test_case_118_path_prefixes_end_at_a_slash(path: str, prefix: str, expected: bool) -> None:
    assert has_path_prefix(path, prefix) is expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.4.30", False),
        ("3.4.31", True),
        ("3.5.1", False),
        ("3.5.12", False),
        ("3.5.13", True),
        ("3.6.0-rc.1", True),
        ("3.3.9", False),
        ("4.0.0", True),
        ("", False),
    ],
)
def test_progress_notifications_are_trusted_from_fixed_versions_on(version: str, expected: bool) -> None:
    assert progress_is_safe(version) is expected
