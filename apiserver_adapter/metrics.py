"""/metrics in the Prometheus text format, with the original's names (contract §3.14)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from watchcache.cacher import Cacher, CacheStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# Metric name, type, help, and what it reads from the statistics of one cache.
_CACHE_METRICS = (
    ("apiserver_watch_cache_capacity", "gauge", "Size of the event history.", "ring_capacity"),
    ("apiserver_watch_cache_events", "gauge", "Events in the history.", "ring_length"),
    ("apiserver_watch_cache_resource_version", "gauge", "How far the cache has come.", "version"),
    ("apiserver_watch_cache_initializations_total", "counter", "Complete lists taken in.", "initializations"),
    (
        "apiserver_watch_cache_events_dispatched_total",
        "counter",
        "Events handed to watchers.",
        "events_dispatched",
    ),
    ("apiserver_storage_objects", "gauge", "Objects held.", "objects"),
    ("apiserver_registered_watchers", "gauge", "Watches being served.", "watchers"),
    (
        "apiserver_terminated_watchers_total",
        "counter",
        "Watches ended because their reader was too slow.",
        "slow_watchers_terminated",
    ),
)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    text = ",".join(f'{key}="{_escape(item)}"' for key, item in labels.items())
    return f"{name}{{{text}}} {value:g}" if text else f"{name} {value:g}"


class Metrics:
    """Counts requests; reads the caches when asked."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._durations: Counter[str] = Counter()

    def observe(self, verb: str, group: str, resource: str, code: int, seconds: float) -> None:
        """One request that has been answered. Watches are counted, their duration means nothing."""
        self._requests[verb, group, resource, str(code)] += 1
        if verb == "WATCH":
            return
        self._durations[verb] += 1
        self._seconds[verb] += seconds
        for bound in _BUCKETS_S:
            if seconds <= bound:
                self._buckets[verb, bound] += 1

    def render(self, cachers: Mapping[str, Cacher]) -> str:
        """The whole page."""
        lines = list(self._request_lines())
        statistics = {resource: cacher.statistics() for resource, cacher in cachers.items()}
        for name, kind, text, attribute in _CACHE_METRICS:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for resource, found in statistics.items():
                lines.append(_sample(name, {"resource": resource}, getattr(found, attribute)))
        lines += _consistent_reads(statistics)
        return "\n".join([*lines, ""])

    def _request_lines(self) -> Iterable[str]:
        name = "apiserver_request_total"
        yield f"# HELP {name} Requests answered."
        yield f"# TYPE {name} counter"
        for (verb, group, resource, code), count in sorted(self._requests.items()):
            labels = {"verb": verb, "group": group, "resource": resource, "code": code}
            yield _sample(name, labels, count)
        name = "apiserver_request_duration_seconds"
        yield f"# HELP {name} Time to answer, watches excluded."
        yield f"# TYPE {name} histogram"
        for verb in sorted(self._durations):
            for bound in _BUCKETS_S:
                yield _sample(f"{name}_bucket", {"verb": verb, "le": f"{bound:g}"}, self._buckets[verb, bound])
            yield _sample(f"{name}_bucket", {"verb": verb, "le": "+Inf"}, self._durations[verb])
            yield _sample(f"{name}_sum", {"verb": verb}, self._seconds[verb])
            yield _sample(f"{name}_count", {"verb": verb}, self._durations[verb])


def _consistent_reads(statistics: Mapping[str, CacheStatistics]) -> list[str]:
    name = "apiserver_watch_cache_consistent_read_total"
    lines = [f"# HELP {name} Lists of the most recent state, by whether the cache caught up in time."]
    lines.append(f"# TYPE {name} counter")
    for resource, found in statistics.items():
        caught_up = {"resource": resource, "success": "true", "fallback": "false"}
        fell_back = {"resource": resource, "success": "true", "fallback": "true"}
        lines.append(_sample(name, caught_up, found.consistent_reads))
        lines.append(_sample(name, fell_back, found.consistent_read_fallbacks))
    return lines
