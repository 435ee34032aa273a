"""Prometheus metrics of a member under etcd's names, where the value means what etcd's means."""

from __future__ import annotations

import time
from typing import Final

from store.api.context import VERSION, ApiContext

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STARTED_AT: Final = time.time()


def exposition(api: ApiContext) -> str:
    """The text of /metrics, format 0.0.4."""
    replica, machine = api.replica, api.machine
    statistics = machine.statistics()
    gauges: dict[str, tuple[str, float]] = {
        "etcd_server_has_leader": ("Whether or not a leader exists.", bool(replica.leader_id)),
        "etcd_server_is_leader": ("Whether or not this member leads.", replica.leader_id == replica.member_id),
        "etcd_server_is_learner": ("Whether or not this member is a learner.", replica.is_learner),
        "etcd_server_proposals_committed_total": ("The consensus proposals committed.", replica.commit_index),
        "etcd_server_proposals_applied_total": ("The consensus proposals applied.", replica.applied_index),
        "etcd_server_quota_backend_bytes": ("The quota of the database.", api.options.effective_quota_bytes),
        "etcd_mvcc_db_total_size_in_bytes": ("Size of the database file.", statistics["db_bytes"]),
        "etcd_mvcc_db_total_size_in_use_in_bytes": ("Of that, in use.", statistics["db_in_use_bytes"]),
        "etcd_debugging_mvcc_current_revision": ("The current revision.", machine.revision),
        "etcd_debugging_mvcc_compact_revision": ("The last compacted revision.", machine.compact_revision),
        "etcd_debugging_mvcc_keys_total": ("Keys.", statistics["keys"]),
        "etcd_debugging_mvcc_watcher_total": (
            "Watchers.",
            statistics["watch_synced"] + statistics["watch_unsynced"],
        ),
        "etcd_debugging_mvcc_slow_watcher_total": ("Watchers that are behind.", statistics["watch_unsynced"]),
        "process_cpu_seconds_total": ("User and system CPU time.", time.process_time()),
        "process_start_time_seconds": ("Start of the process, Unix time.", _STARTED_AT),
    }
    lines = []
    for name, (text, value) in gauges.items():
        kind = "counter" if name == "process_cpu_seconds_total" else "gauge"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {_number(value)}"]
    for name, label, shown in (
        ("etcd_server_id", "server_id", f"{replica.member_id:x}"),
        ("etcd_server_version", "server_version", VERSION),
    ):
        lines += [f"# HELP {name} 1, labelled.", f"# TYPE {name} gauge", f'{name}{{{label}="{shown}"}} 1']
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
