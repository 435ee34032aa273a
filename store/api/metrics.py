"""Prometheus metrics of a member under etcd's names, where the value means what etcd's means.

The names are those that etcd's own dashboards and alerts read (contrib/mixin), and what a member of ours can tell
beside them. A page is made from the parts' own counters when it is asked for; nothing is registered anywhere.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from raft.histogram import Histogram
from store.api.context import CLUSTER_VERSION, VERSION, ApiContext
from store.observations import Method

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STARTED_AT: Final = time.time()
_PAGE_BYTES: Final = resource.getpagesize()

_CODES: Final[Mapping[int, str]] = {
    0: "OK", 1: "Canceled", 2: "Unknown", 3: "InvalidArgument", 4: "DeadlineExceeded", 5: "NotFound",
    6: "AlreadyExists", 7: "PermissionDenied", 8: "ResourceExhausted", 9: "FailedPrecondition", 10: "Aborted",
    11: "OutOfRange", 12: "Unimplemented", 13: "Internal", 14: "Unavailable", 15: "DataLoss",
    16: "Unauthenticated",
}  # fmt: skip
"""As grpc-go spells them."""

Sample = tuple[Mapping[str, str], float]


class Page:
    """The text of /metrics, format 0.0.4, family by family."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
        self._head(name, kind, text)
        self._lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]

    def gauge(self, name: str, text: str, value: float) -> None:
        self.family(name, "gauge", text, [({}, value)])

    def counter(self, name: str, text: str, value: float) -> None:
        self.family(name, "counter", text, [({}, value)])

    def histogram(self, name: str, text: str, samples: Iterable[tuple[Mapping[str, str], Histogram]]) -> None:
        self._head(name, "histogram", text)
        for labels, histogram in samples:
            counts = histogram.cumulative()
            for bound, count in zip((*map(_number, histogram.bounds), "+Inf"), counts, strict=True):
                self._lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {count}")
            self._lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.total)}")
            self._lines.append(f"{name}_count{_labels(labels)} {counts[-1]}")

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def exposition(api: ApiContext) -> str:
    """All metrics of this member."""
    page = Page()
    _server(page, api)
    _mvcc(page, api)
    _calls(page, api)
    if api.plant is not None:
        _disk_and_network(page, api)
    _process(page)
    return str(page)


def _server(page: Page, api: ApiContext) -> None:
    replica, seen = api.replica, api.observations
    page.gauge("etcd_server_has_leader", "Whether or not a leader exists.", bool(replica.leader_id))
    page.gauge(
        "etcd_server_is_leader", "Whether or not this member leads.", replica.leader_id == replica.member_id
    )
    page.gauge("etcd_server_is_learner", "Whether or not this member is a learner.", replica.is_learner)
    page.counter("etcd_server_leader_changes_seen_total", "Leader changes seen.", seen.leader_changes)
    page.gauge("etcd_server_proposals_committed_total", "Proposals committed.", replica.commit_index)
    page.gauge("etcd_server_proposals_applied_total", "Proposals applied.", replica.applied_index)
    page.counter("etcd_server_proposals_failed_total", "Proposals without an outcome.", seen.proposals_failed)
    page.counter("etcd_server_read_indexes_failed_total", "Reads without a confirmed leader.", seen.reads_failed)
    page.counter("etcd_server_slow_apply_total", "Commands that took long to apply.", seen.slow_applies)
    page.counter("kvorum_server_slow_requests_total", "Unary requests that took long.", seen.slow_requests)
    page.counter("etcd_server_health_success", "Successful health checks.", seen.health[True])
    page.counter("etcd_server_health_failures", "Failed health checks.", seen.health[False])
    page.gauge("etcd_server_quota_backend_bytes", "Quota of the database.", api.options.effective_quota_bytes)
    for name, label, shown in (
        ("etcd_server_id", "server_id", f"{replica.member_id:x}"),
        ("etcd_server_version", "server_version", VERSION),
        ("etcd_cluster_version", "cluster_version", "{}.{}".format(*CLUSTER_VERSION)),
    ):
        page.family(name, "gauge", "1, labelled.", [({label: shown}, 1)])


def _mvcc(page: Page, api: ApiContext) -> None:
    machine, lessor = api.machine, api.lessor
    now = machine.statistics()
    for prefix in ("etcd_mvcc", "etcd_debugging_mvcc"):
        page.gauge(f"{prefix}_db_total_size_in_bytes", "Size of the database file.", now["db_bytes"])
    page.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Of that, in use.", now["db_in_use_bytes"])
    for prefix in ("etcd_mvcc", "etcd_debugging_mvcc"):
        for name in ("put", "delete", "range", "txn"):
            page.counter(f"{prefix}_{name}_total", f"Operations of kind {name}.", now[f"{name}s"])
    page.gauge("etcd_debugging_mvcc_current_revision", "The current revision.", machine.revision)
    page.gauge("etcd_debugging_mvcc_compact_revision", "The last compacted revision.", machine.compact_revision)
    page.gauge("etcd_debugging_mvcc_keys_total", "Keys.", now["keys"])
    watchers = now["watch_synced"] + now["watch_unsynced"]
    page.gauge("etcd_debugging_mvcc_watcher_total", "Watchers.", watchers)
    page.gauge("etcd_debugging_mvcc_slow_watcher_total", "Watchers that are behind.", now["watch_unsynced"])
    page.counter("kvorum_watch_overflows_total", "Times a watcher fell behind.", now["watch_overflows"])
    page.counter("etcd_debugging_server_lease_expired_total", "Leases that expired.", lessor.revoked_total)
    page.gauge("kvorum_lease_leases", "Leases.", now["leases"])


def _calls(page: Page, api: ApiContext) -> None:
    seen = api.observations
    page.family(
        "grpc_server_started_total", "counter", "Calls started.",
        [(_method(method), count) for method, count in seen.started.items()],
    )  # fmt: skip
    page.family(
        "grpc_server_handled_total", "counter", "Calls ended, by status.",
        [({"grpc_code": _CODES.get(code, str(code)), **_method(method)}, count)
         for (method, code), count in seen.handled.items()],
    )  # fmt: skip
    page.histogram(
        "grpc_server_handling_seconds", "Time until a unary call was answered.",
        [(_method(method), histogram) for method, histogram in seen.seconds.items()],
    )  # fmt: skip


def _method(method: Method) -> dict[str, str]:
    return {"grpc_method": method.name, "grpc_service": method.service, "grpc_type": method.kind}


def _disk_and_network(page: Page, api: ApiContext) -> None:
    plant = api.plant
    assert plant is not None
    page.gauge("etcd_server_proposals_pending", "Proposals that wait for their outcome.", plant.pending())
    page.histogram(
        "etcd_disk_wal_fsync_duration_seconds", "Writes of the raft log, sync included.", [({}, plant.log_sync)]
    )
    page.histogram(
        "etcd_disk_backend_commit_duration_seconds", "Transactions of the state database.",
        [({}, api.machine.backend.commit_seconds)],
    )  # fmt: skip
    page.counter("etcd_network_client_grpc_received_bytes_total", "Bytes from clients.", plant.client_bytes()[0])
    page.counter("etcd_network_client_grpc_sent_bytes_total", "Bytes to clients.", plant.client_bytes()[1])
    peers = plant.transport
    for name, label, text, counts in (
        ("etcd_network_peer_sent_bytes_total", "To", "Bytes of messages sent to a member.", peers.sent_bytes()),
        ("etcd_network_peer_received_bytes_total", "From", "Bytes of messages of a member.", peers.received_bytes),
    ):
        page.family(name, "counter", text, [({label: f"{peer:x}"}, count) for peer, count in counts.items()])
    page.histogram(
        "etcd_network_peer_round_trip_time_seconds", "Round trips to a member.",
        [({"To": f"{peer:x}"}, histogram) for peer, histogram in peers.round_trips().items()],
    )  # fmt: skip
    statistics = peers.statistics()
    page.counter(
        "kvorum_network_messages_dropped_total", "Messages for members out of reach.", statistics["dropped"]
    )
    page.gauge(
        "kvorum_network_peers_connected", "Members that this one has a connection to.", statistics["connected"]
    )


def _process(page: Page) -> None:
    page.counter("process_cpu_seconds_total", "User and system CPU time.", time.process_time())
    page.gauge("process_start_time_seconds", "Start of the process, Unix time.", _STARTED_AT)
    page.gauge("process_max_fds", "Open files allowed.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        page.gauge("process_open_fds", "Open files.", len(os.listdir("/proc/self/fd")))
        virtual, resident = Path("/proc/self/statm").read_text().split()[:2]
    except OSError:
        return  # not Linux: these are not told
    page.gauge("process_virtual_memory_bytes", "Virtual memory.", int(virtual) * _PAGE_BYTES)
    page.gauge("process_resident_memory_bytes", "Resident memory.", int(resident) * _PAGE_BYTES)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
