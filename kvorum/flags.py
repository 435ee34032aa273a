"""etcd's flags as ``kvorum member`` takes them: which work, which are accepted and ignored, and why.

A script that runs ``etcd …`` runs with ``kvorum member …``: single or double dash, ``=`` or a space, booleans
with or without a value, and every flag also as ``ETCD_FLAG_NAME`` (the flag wins). What is neither here nor in
kvorum.etcdflags is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvorum import configfile
from kvorum.etcdflags import BOOLEANS, EXPERIMENTAL, IGNORED, REFUSED, plain_name
from kvorum.layout import UsageError
from store.autocompact import HOUR_S, Mode, Retention


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
    """Read a member's command line, or instead of it the file that it names with --config-file.

    Raises UsageError for an unknown flag or a value that does not fit.
    """
    environment = os.environ if environment is None else environment
    settings = _variables(environment)
    settings.update(_split(arguments))
    if path := settings.pop("config-file", ""):
        settings = dict(configfile.read(path))
        for name in settings:
            _check_known(name, f"{path}: unknown setting {name}")
    texts = {plain_name(name): value for name, value in settings.items()}
    for name, refused in REFUSED.items():
        if name in texts and texts[name].lower() not in {value.lower() for value in refused.harmless}:
            raise UsageError(f"--{name} {texts[name]} cannot be had: {refused.reason}")
    ignored = [name for name in texts if name in IGNORED]
    texts = {name: value for name, value in texts.items() if name in _BY_NAME}
    return Parsed(_values(texts), frozenset(texts), ignored)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings from ETCD_FLAG_NAME. Those of flags without effect are nobody's concern."""
    names = [*_BY_NAME, *REFUSED, "config-file"]
    names += [f"experimental-{name}" for name in EXPERIMENTAL if name in _BY_NAME]
    return {name: environment[_variable(name)] for name in names if _variable(name) in environment}


def _variable(name: str) -> str:
    return "ETCD_" + name.upper().replace("-", "_")


def _split(arguments: Sequence[str]) -> dict[str, str]:
    """Flags and their values; the last one wins, as in Go."""
    texts: dict[str, str] = {}
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or not name:
            raise UsageError(f"{argument!r} is not a flag: kvorum member takes flags only")
        _check_known(name, f"unknown flag --{name} (see 'kvorum member --help')")
        if not equals and _is_boolean(plain_name(name)):
            value = queue.pop(0) if queue and queue[0].lower() in ("true", "false") else "true"
        elif not equals:
            if not queue:
                raise UsageError(f"--{name} needs a value")
            value = queue.pop(0)
        texts[name] = value
    return texts


def _check_known(name: str, problem: str) -> None:
    plain = plain_name(name)
    if plain not in _BY_NAME and plain not in IGNORED and plain not in REFUSED and plain != "config-file":
        raise UsageError(problem)


def _is_boolean(plain: str) -> bool:
    return plain in BOOLEANS or (plain in _BY_NAME and _BY_NAME[plain].is_boolean)


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
    lines += [
        f"  --{'config-file':<32} YAML file of these names; no other flag and no variable counts then",
        f"  --{'version':<32} print the version and end",
    ]
    lines += ["", "accepted, without effect:"]
    lines += [f"  --{name:<40} {reason}" for name, reason in sorted(IGNORED.items())]
    lines += ["", "accepted only where they change nothing:"]
    lines += [f"  --{name:<40} {refused.reason}" for name, refused in sorted(REFUSED.items())]
    lines += ["", "also accepted with 'experimental-' before the name, as in etcd 3.5:"]
    lines += [f"  --experimental-{name}" for name in sorted(EXPERIMENTAL)]
    lines += ["", "example:", "  kvorum member --name n1 --data-dir n1.data"]
    return "\n".join(lines)
