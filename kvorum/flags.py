"""etcd's flags as ``kvorum member`` takes them: which work, which are accepted and ignored, and why.

A script that runs ``etcd …`` runs with ``kvorum member …``: single or double dash, ``=`` or a space, booleans
with or without a value, and every flag also as ``ETCD_FLAG_NAME`` (the flag wins). What is not in these
tables is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvorum.layout import UserError
from store.autocompact import HOUR_S, Mode, Retention


class UsageError(UserError):
    """Wrong usage: exit code 2."""


def _text(value: str) -> str:
    return value


def _whole(value: str) -> int:
    return int(value, 0)


def _boolean(value: str) -> bool:
    lowered = value.lower()
    if lowered in ("1", "t", "true"):
        return True
    if lowered in ("0", "f", "false"):
        return False
    raise ValueError(value)


def _urls(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def _duration(value: str) -> float:
    """A Go duration ("1m30s", "500ms", "0") in seconds."""
    rest, total = value.strip(), 0.0
    if rest == "0":
        return 0.0
    if not rest:
        raise ValueError(value)
    while rest:
        number = rest[: len(rest) - len(rest.lstrip("0123456789."))]
        rest = rest[len(number) :]
        unit = rest[: len(rest) - len(rest.lstrip("hmsuµn"))]
        rest = rest[len(unit) :]
        total += float(number) * _UNITS[unit]
    return total


GATES: Final = (
    "CompactHashCheck",
    "FastLeaseKeepAlive",
    "InitialCorruptCheck",
    "LeaseCheckpoint",
    "LeaseCheckpointPersist",
    "PriorityRequest",
    "SetMemberLocalAddr",
    "StopGRPCServiceOnDefrag",
    "TxnModeWriteWithSharedBuffer",
)


def _gates(value: str) -> dict[str, bool]:
    """etcd's feature gates: ``Name=true,Other=false``."""
    gates: dict[str, bool] = {}
    for part in filter(None, value.split(",")):
        name, _, setting = part.strip().partition("=")
        if name not in GATES:
            raise ValueError(value)
        gates[name] = _boolean(setting)
    return gates


def retention(mode: str, text: str) -> Retention | None:
    """--auto-compaction-retention, which means hours, a duration or revisions. Raises UsageError."""
    try:
        kind = Mode(mode)
    except ValueError:
        raise UsageError(f"--auto-compaction-mode: {mode!r} is not periodic or revision") from None
    try:
        if kind is Mode.REVISION or text.isdigit():
            amount = float(int(text)) * (HOUR_S if kind is Mode.PERIODIC else 1)
        else:
            amount = _duration(text)
    except (ValueError, KeyError):
        what = "hours or a duration like 30m" if kind is Mode.PERIODIC else "a number of revisions"
        raise UsageError(f"--auto-compaction-retention: {text!r} is not {what}") from None
    if amount < 0:
        raise UsageError(f"--auto-compaction-retention: {text!r} is negative")
    return Retention(kind, amount) if amount else None


_KINDS: Final[Mapping[Callable[[str], Any], str]] = {
    _whole: "a whole number",
    _boolean: "true or false",
    _duration: "a duration like 10s or 1m30s",
    _gates: "NAME=true or NAME=false of known gates, comma separated",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: how its value is read, its default, and what it does."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str

    @property
    def is_boolean(self) -> bool:
        return self.parse is _boolean

    @property
    def variable(self) -> str:
        return "ETCD_" + self.name.upper().replace("-", "_")


FLAGS: Final[Sequence[Flag]] = (
    Flag("name", _text, "default", "name of this member, as --initial-cluster spells it"),
    Flag("data-dir", _text, "", "folder of this member's data (default: NAME.etcd)"),
    Flag("listen-client-urls", _urls, ("http://localhost:2379",), "where clients are served"),
    Flag("advertise-client-urls", _urls, (), "client URLs told to the rest of the cluster"),
    Flag("listen-peer-urls", _urls, ("http://localhost:2380",), "where other members are served"),
    Flag("initial-advertise-peer-urls", _urls, (), "peer URLs told to the rest of the cluster"),
    Flag("initial-cluster", _text, "", "NAME=PEER-URL of every initial member, comma separated"),
    Flag("initial-cluster-state", _text, "new", "new, or existing for a member added to a running cluster"),
    Flag("initial-cluster-token", _text, "etcd-cluster", "tells clusters with equal URLs apart"),
    Flag("force-new-cluster", _boolean, False, "go on alone with this member's data: recovery from a lost quorum"),
    Flag("heartbeat-interval", _whole, 100, "milliseconds between a leader's heartbeats"),
    Flag("election-timeout", _whole, 1000, "milliseconds without a leader before an election; >= 5 heartbeats"),
    Flag("initial-election-tick-advance", _boolean, True, "do not wait a whole election timeout after a start"),
    Flag("snapshot-count", _whole, 10_000, "applied entries between two truncations of the raft log"),
    Flag("snapshot-catchup-entries", _whole, 5_000, "entries kept for slow members after a truncation"),
    Flag("pre-vote", _boolean, True, "ask before an election whether it could be won"),
    Flag("quota-backend-bytes", _whole, 0, "size at which writes are refused (0: 2 GiB, negative: no limit)"),
    Flag("max-txn-ops", _whole, 128, "operations in one transaction"),
    Flag("max-request-bytes", _whole, 1_572_864, "size of one request"),
    Flag("max-learners", _whole, 1, "learners in the cluster"),
    Flag("watch-progress-notify-interval", _duration, 600.0, "time between progress notifications"),
    Flag("auto-compaction-mode", _text, "periodic", "periodic (keep history by age) or revision (by number)"),
    Flag("auto-compaction-retention", _text, "0", "hours or a duration, or revisions, of history to keep; 0: all"),
    Flag("corrupt-check-time", _duration, 0.0, "time between comparisons of the members' data; 0: never"),
    Flag("experimental-corrupt-check-time", _duration, 0.0, "the same, in etcd 3.5"),
    Flag(
        "experimental-initial-corrupt-check", _boolean, False, "compare this member with the others at its start"
    ),
    Flag(
        "experimental-enable-lease-checkpoint", _boolean, False, "long leases keep their age over leader changes"
    ),
    Flag("feature-gates", _gates, {}, "NAME=true,...: InitialCorruptCheck and LeaseCheckpoint have an effect"),
    Flag("cert-file", _text, "", "certificate of the client port, PEM; read again when it changes"),
    Flag("key-file", _text, "", "its key"),
    Flag("trusted-ca-file", _text, "", "CA that client certificates are held against"),
    Flag("client-cert-auth", _boolean, False, "require a client certificate of that CA"),
    Flag("peer-cert-file", _text, "", "certificate shown to other members, as server and as client"),
    Flag("peer-key-file", _text, "", "its key"),
    Flag("peer-trusted-ca-file", _text, "", "CA that other members are held against"),
    Flag("peer-client-cert-auth", _boolean, False, "require a certificate of that CA from other members"),
    Flag("max-concurrent-streams", _whole, 0, "streams on one client connection (0: 65536)"),
    Flag("grpc-keepalive-interval", _duration, 60.0, "silence after which a client is asked whether it lives"),
    Flag("grpc-keepalive-timeout", _duration, 20.0, "time it has to answer"),
    Flag("warning-apply-duration", _duration, 0.1, "a command that takes longer to apply is logged"),
    Flag(
        "warning-unary-request-duration", _duration, 0.3, "a request that takes longer is logged with its stages"
    ),
    Flag(
        "listen-metrics-urls", _urls, (), "URLs for /metrics, /health, /livez and /readyz beside the client port"
    ),
    Flag("log-level", _text, "info", "debug, info, warn, error"),
)

_DISK: Final = "the state is kept in SQLite, which has no such setting"
_LOGS: Final = "logs are lines on standard error"

IGNORED: Final[Mapping[str, str]] = {
    "wal-dir": "the raft log lies in --data-dir",
    "max-snapshots": "no snapshot files are kept",
    "max-wals": "the raft log is one file that is truncated",
    "backend-bbolt-freelist-type": _DISK,
    "backend-batch-interval": _DISK,
    "backend-batch-limit": _DISK,
    "bootstrap-defrag-threshold-megabytes": _DISK,
    "memory-mlock": "memory is not locked",
    "logger": _LOGS,
    "log-outputs": _LOGS,
    "log-format": _LOGS,
    "enable-log-rotation": _LOGS,
    "log-rotation-config-json": _LOGS,
    "enable-v2": "there is no v2 API",
    "v2-deprecation": "there is no v2 API",
    "enable-pprof": "use py-spy on the running process",
    "metrics": "histograms are always shown",
    "strict-reconfig-check": "always on",
    "grpc-keepalive-min-time": "pings of any frequency are tolerated",
    "socket-reuse-port": "never reused",
    "socket-reuse-address": "always reused",
    "raft-read-timeout": "dead peers are found by gRPC pings",
    "raft-write-timeout": "dead peers are found by gRPC pings",
    "downgrade-check-time": "there is nothing to downgrade to",
    "compaction-batch-limit": "compaction deletes 1000 versions at a time",
    "compaction-sleep-interval": "compaction yields between batches by itself",
    "unsafe-no-fsync": "the raft log is always synced",
    "cors": "no cross-origin header is sent",
    "host-whitelist": "any Host is served",
    "enable-grpc-gateway": "always on",
    "experimental-watch-progress-notify-interval": "use --watch-progress-notify-interval",
    "compact-hash-check-time": "use --corrupt-check-time",
    "experimental-compact-hash-check-enabled": "use --corrupt-check-time",
    "experimental-compact-hash-check-time": "use --corrupt-check-time",
    "experimental-warning-apply-duration": "use --warning-apply-duration",
    "experimental-warning-unary-request-duration": "use --warning-unary-request-duration",
    "experimental-compaction-batch-limit": "compaction deletes 1000 versions at a time",
    "experimental-memory-mlock": "memory is not locked",
    "experimental-txn-mode-write-with-shared-buffer": _DISK,
    "experimental-enable-lease-checkpoint-persist": "lease checkpoints are always kept",
}

_IGNORED_BOOLEANS: Final = frozenset(
    name
    for name in IGNORED
    if name.startswith(("enable-", "experimental-enable", "experimental-initial", "socket-", "unsafe-"))
    or name in ("memory-mlock", "strict-reconfig-check", "experimental-memory-mlock",
                "experimental-compact-hash-check-enabled", "experimental-txn-mode-write-with-shared-buffer")
)  # fmt: skip

_BY_NAME: Final = {flag.name: flag for flag in FLAGS}


@dataclass(frozen=True, slots=True)
class Parsed:
    """Values by flag name, which of them were given, and the ignored flags that were."""

    values: Mapping[str, Any]
    given: frozenset[str]
    ignored: Sequence[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def parse(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Parsed:
    """Read a member's command line. Raises UsageError for an unknown flag or a value that does not fit."""
    environment = os.environ if environment is None else environment
    texts: dict[str, str] = {}
    for flag in FLAGS:
        if flag.variable in environment:
            texts[flag.name] = environment[flag.variable]
    ignored: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or not name:
            raise UsageError(f"{argument!r} is not a flag: kvorum member takes flags only")
        if name not in _BY_NAME and name not in IGNORED:
            raise UsageError(f"unknown flag --{name} (see 'kvorum member --help')")
        boolean = name in _IGNORED_BOOLEANS or (name in _BY_NAME and _BY_NAME[name].is_boolean)
        if not equals and boolean:
            value = queue.pop(0) if queue and queue[0].lower() in ("true", "false") else "true"
        elif not equals:
            if not queue:
                raise UsageError(f"--{name} needs a value")
            value = queue.pop(0)
        if name in IGNORED:
            ignored.append(name)
        else:
            texts[name] = value
    return Parsed(_values(texts), frozenset(texts), ignored)


def _values(texts: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for flag in FLAGS:
        if flag.name not in texts:
            values[flag.name] = flag.default
            continue
        try:
            values[flag.name] = flag.parse(texts[flag.name])
        except (ValueError, KeyError):
            kind = _KINDS.get(flag.parse, "a text")
            raise UsageError(f"--{flag.name}: {texts[flag.name]!r} is not {kind}") from None
    return values


def help_text() -> str:
    """What ``kvorum member --help`` prints."""
    lines = [
        "usage: kvorum member [FLAG ...]",
        "",
        "Run one member. Takes etcd's flags, and each also as a variable ETCD_FLAG_NAME (the flag wins).",
        "",
        "flags:",
    ]
    for flag in FLAGS:
        default = ",".join(flag.default) if isinstance(flag.default, tuple | dict) else str(flag.default).lower()
        shown = f" [{default}]" if default else ""
        lines.append(f"  --{flag.name:<32} {flag.help}{shown}")
    lines += ["", "accepted, without effect:"]
    lines += [f"  --{name:<48} {reason}" for name, reason in sorted(IGNORED.items())]
    lines += ["", "example:", "  kvorum member --name n1 --data-dir n1.data"]
    return "\n".join(lines)
