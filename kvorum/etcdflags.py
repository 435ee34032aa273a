"""Flags of etcd 3.5 and 3.6 that do nothing here, each with the reason, and those that would do harm if ignored.

A flag is refused rather than ignored where somebody who sets it relies on it: for security, for data, or for a
port that would not be there. Its default is accepted, because scripts spell defaults out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_DISK: Final = "the state is kept in SQLite, which has no such setting"
_LOGS: Final = "logs are lines on standard error"
_NO_V2: Final = "there is no v2 API"
_PEER_DEATH: Final = "dead peers are found by heartbeats"
_TRACES: Final = "no traces are sent; a slow request is logged with its stages"
_AUTH: Final = "the Auth RPCs are not offered (docs/scope.md)"
_PROXY: Final = "there is no v2 proxy"
_DISCOVERY: Final = "only with --discovery or --discovery-endpoints, which are refused"

IGNORED: Final[Mapping[str, str]] = {
    "wal-dir": "the raft log lies in --data-dir",
    "max-snapshots": "no snapshot files are kept",
    "max-wals": "the raft log is truncated by itself, and has no files to keep",
    "backend-bbolt-freelist-type": _DISK,
    "backend-batch-interval": _DISK,
    "backend-batch-limit": _DISK,
    "bootstrap-defrag-threshold-megabytes": _DISK,
    "txn-mode-write-with-shared-buffer": _DISK,
    "memory-mlock": "memory is not locked",
    "logger": _LOGS,
    "log-outputs": _LOGS,
    "log-format": _LOGS,
    "enable-log-rotation": _LOGS,
    "log-rotation-config-json": _LOGS,
    "enable-v2": _NO_V2,
    "v2-deprecation": _NO_V2,
    "enable-v2v3": _NO_V2,
    "enable-pprof": "use py-spy on the running process",
    "metrics": "histograms are always shown",
    "strict-reconfig-check": "always on",
    "grpc-keepalive-min-time": "pings of any frequency are tolerated",
    "socket-reuse-port": "never reused",
    "socket-reuse-address": "always reused",
    "raft-read-timeout": _PEER_DEATH,
    "raft-write-timeout": _PEER_DEATH,
    "downgrade-check-time": "there is nothing to downgrade to",
    "compaction-batch-limit": "compaction deletes 1000 versions at a time",
    "compaction-sleep-interval": "compaction yields between batches by itself",
    "unsafe-no-fsync": "the raft log is always synced",
    "cors": "no cross-origin header is sent",
    "host-whitelist": "any Host is served",
    "enable-grpc-gateway": "always on",
    "compact-hash-check-enabled": "use --corrupt-check-time",
    "compact-hash-check-time": "use --corrupt-check-time",
    "enable-lease-checkpoint-persist": "lease checkpoints are always kept",
    "stop-grpc-service-on-defrag": "a member serves while it is defragmented",
    "wait-cluster-ready-timeout": "after a start, reads of a member's own state wait up to 5 s for a leader",
    "set-member-localaddr": "the operating system chooses the address that peers are dialled from",
    "auth-token": _AUTH,
    "auth-token-ttl": _AUTH,
    "bcrypt-cost": _AUTH,
    "cipher-suites": "OpenSSL's own choice for TLS 1.2 and 1.3, which holds no broken suite",
    "client-cert-file": "the JSON gateway calls the services without a connection",
    "client-key-file": "the JSON gateway calls the services without a connection",
    "peer-skip-client-san-verification": "addresses in a peer's client certificate are never checked",
    "self-signed-cert-validity": "only with --auto-tls and --peer-auto-tls, which are refused",
    "enable-distributed-tracing": _TRACES,
    "distributed-tracing-address": _TRACES,
    "distributed-tracing-service-name": _TRACES,
    "distributed-tracing-instance-id": _TRACES,
    "distributed-tracing-sampling-rate": _TRACES,
    "proxy-failure-wait": _PROXY,
    "proxy-refresh-interval": _PROXY,
    "proxy-dial-timeout": _PROXY,
    "proxy-write-timeout": _PROXY,
    "proxy-read-timeout": _PROXY,
    "discovery-fallback": _DISCOVERY,
    "discovery-proxy": _DISCOVERY,
    "discovery-srv-name": _DISCOVERY,
    "discovery-token": _DISCOVERY,
    "discovery-dial-timeout": _DISCOVERY,
    "discovery-request-timeout": _DISCOVERY,
    "discovery-keepalive-time": _DISCOVERY,
    "discovery-keepalive-timeout": _DISCOVERY,
    "discovery-insecure-transport": _DISCOVERY,
    "discovery-insecure-skip-tls-verify": _DISCOVERY,
    "discovery-cert": _DISCOVERY,
    "discovery-key": _DISCOVERY,
    "discovery-cacert": _DISCOVERY,
    "discovery-user": _DISCOVERY,
    "discovery-password": _DISCOVERY,
}
"""Accepted with any value, without effect."""


class Refused(NamedTuple):
    """Values that change nothing and are therefore accepted, and why no other is."""

    harmless: frozenset[str]
    reason: str


_EMPTY: Final = frozenset(("",))
_OFF: Final = frozenset(("false", "f", "0"))
_FOUND: Final = "name the members with --initial-cluster"
_REVOKED: Final = "revocation lists are not read, and a revoked certificate would be accepted"
_NAMES: Final = "names in client certificates are not checked: any certificate of the CA is accepted"

REFUSED: Final[Mapping[str, Refused]] = {
    "auto-tls": Refused(_OFF, "make a certificate and name it with --cert-file, or use 'kvorum up --tls'"),
    "peer-auto-tls": Refused(_OFF, "make a certificate and name it with --peer-cert-file"),
    "client-crl-file": Refused(_EMPTY, _REVOKED),
    "peer-crl-file": Refused(_EMPTY, _REVOKED),
    "client-cert-allowed-hostname": Refused(_EMPTY, _NAMES),
    "peer-cert-allowed-cn": Refused(_EMPTY, _NAMES),
    "peer-cert-allowed-hostname": Refused(_EMPTY, _NAMES),
    "peer-client-cert-file": Refused(_EMPTY, "a member shows --peer-cert-file to others, as server and as client"),
    "peer-client-key-file": Refused(_EMPTY, "a member shows --peer-cert-file to others, as server and as client"),
    "tls-min-version": Refused(frozenset(("", "TLS1.2")), "TLS 1.2 and 1.3 are both accepted"),
    "tls-max-version": Refused(frozenset(("", "TLS1.3")), "TLS 1.2 and 1.3 are both accepted"),
    "listen-client-http-urls": Refused(_EMPTY, "HTTP is served on the ports of --listen-client-urls, beside gRPC"),
    "discovery": Refused(_EMPTY, _FOUND),
    "discovery-srv": Refused(_EMPTY, _FOUND),
    "discovery-endpoints": Refused(_EMPTY, _FOUND),
    "proxy": Refused(frozenset(("off",)), _PROXY),
}
"""Accepted at a harmless value only."""

EXPERIMENTAL: Final = frozenset((
    "bootstrap-defrag-threshold-megabytes", "compact-hash-check-enabled", "compact-hash-check-time",
    "compaction-batch-limit", "compaction-sleep-interval", "corrupt-check-time",
    "distributed-tracing-address", "distributed-tracing-instance-id", "distributed-tracing-sampling-rate",
    "distributed-tracing-service-name", "downgrade-check-time", "enable-distributed-tracing",
    "enable-lease-checkpoint-persist", "enable-v2v3", "max-learners", "memory-mlock",
    "peer-skip-client-san-verification", "set-member-localaddr", "snapshot-catchup-entries",
    "stop-grpc-service-on-defrag", "txn-mode-write-with-shared-buffer", "wait-cluster-ready-timeout",
    "warning-apply-duration", "warning-unary-request-duration", "watch-progress-notify-interval",
))  # fmt: skip
"""Flags that are also known as --experimental-NAME, with the same meaning."""

BOOLEANS: Final = frozenset((
    "auto-tls", "compact-hash-check-enabled", "discovery-insecure-skip-tls-verify", "discovery-insecure-transport",
    "enable-distributed-tracing", "enable-grpc-gateway", "enable-lease-checkpoint-persist", "enable-log-rotation",
    "enable-pprof", "enable-v2", "memory-mlock", "peer-auto-tls", "peer-skip-client-san-verification",
    "set-member-localaddr", "socket-reuse-address", "socket-reuse-port", "stop-grpc-service-on-defrag",
    "strict-reconfig-check", "txn-mode-write-with-shared-buffer", "unsafe-no-fsync",
))  # fmt: skip
"""Of the flags above, those that need no value."""


def plain_name(name: str) -> str:
    """The name of now of a flag that etcd 3.5 calls experimental."""
    plain = name.removeprefix("experimental-")
    return plain if plain in EXPERIMENTAL else name
