"""What a member is told: who it is, where it listens, whom it starts with, and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from store.autocompact import Retention
from store.tls import NO_TLS, TlsFiles

DEFAULT_QUOTA_BYTES: Final = 2 << 30

SLOW_DISK_FILE: Final = "slow-disk"
"""In the data directory of one that takes faults: how many milliseconds longer every write of its log takes."""


class ConfigError(Exception):
    """A setting that cannot be used; the message names the flag, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """What a member does by itself; by default, as in etcd, nothing."""

    retention: Retention | None = None  # auto-compaction-mode, auto-compaction-retention
    lease_checkpoints: bool = False  # feature gate LeaseCheckpoint
    initial_corrupt_check: bool = False  # feature gate InitialCorruptCheck
    corrupt_check_s: float = 0.0  # corrupt-check-time; 0: never


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """Flag names in etcd's spelling are in the comments where they differ."""

    name: str
    data_dir: Path
    listen_client_urls: Sequence[str]
    advertise_client_urls: Sequence[str]
    listen_peer_urls: Sequence[str]
    advertise_peer_urls: Sequence[str]  # initial-advertise-peer-urls
    initial_cluster: Mapping[str, Sequence[str]]
    joining: bool = False  # initial-cluster-state existing
    force_new_cluster: bool = False
    token: str = "etcd-cluster"  # initial-cluster-token
    heartbeat_ms: int = 100
    election_ms: int = 1000
    fast_start: bool = True  # initial-election-tick-advance
    pre_vote: bool = True
    snapshot_count: int = 10_000
    catch_up_entries: int = 5_000
    quota_bytes: int = DEFAULT_QUOTA_BYTES  # quota-backend-bytes; negative: no limit
    max_txn_ops: int = 128
    max_request_bytes: int = 1_572_864
    max_learners: int = 1
    progress_notify_s: float = 600.0
    client_tls: TlsFiles = NO_TLS  # cert-file, key-file, trusted-ca-file, client-cert-auth
    peer_tls: TlsFiles = NO_TLS  # the same with peer- before them
    max_concurrent_streams: int = 0  # 0: the listener's own bound
    keepalive_interval_s: float = 60.0  # grpc-keepalive-interval
    keepalive_timeout_s: float = 20.0  # grpc-keepalive-timeout
    slow_apply_s: float = 0.1  # warning-apply-duration
    slow_request_s: float = 0.3  # warning-unary-request-duration
    listen_metrics_urls: Sequence[str] = ()
    upkeep: UpkeepOptions = UpkeepOptions()
    takes_faults: bool = False
    """Whether SLOW_DISK_FILE in the data directory slows the log: for rehearsals."""

    @property
    def member_dir(self) -> Path:
        return self.data_dir / "member"


def parse_initial_cluster(text: str) -> dict[str, tuple[str, ...]]:
    """``a=http://h:1,a=http://h:2,b=http://h:3`` as names with their peer URLs."""
    members: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, url = part.partition("=")
        if not equals or not name:
            raise ConfigError(f"--initial-cluster: {part!r} is not NAME=PEER-URL")
        members[name] = (*members.get(name, ()), url)
    return members


def check_urls(flag: str, urls: Sequence[str], *, sockets: bool = False) -> None:
    """Refuse what is not ``http://HOST:PORT`` or https; with ``sockets``, unix and unixs are URLs too."""
    for url in urls:
        parts = urlsplit(url)
        if sockets and parts.scheme in ("unix", "unixs") and parts.netloc + parts.path:
            continue
        try:
            port = parts.port
        except ValueError:
            port = None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or port is None
            or parts.path not in ("", "/")
        ):
            raise ConfigError(f"--{flag}: {url!r} is not http://HOST:PORT or https://HOST:PORT")


def check(config: MemberConfig) -> None:
    """Raises ConfigError for settings that contradict each other or make no sense."""
    check_urls("listen-client-urls", config.listen_client_urls, sockets=True)
    check_urls("advertise-client-urls", config.advertise_client_urls, sockets=True)
    check_urls("listen-peer-urls", config.listen_peer_urls)
    check_urls("listen-metrics-urls", config.listen_metrics_urls)
    check_urls("initial-advertise-peer-urls", config.advertise_peer_urls)
    for name, urls in config.initial_cluster.items():
        check_urls(f"initial-cluster ({name})", urls)
    for flag, urls in (
        ("listen-client-urls", config.listen_client_urls),
        ("listen-peer-urls", config.listen_peer_urls),
    ):
        if not urls:
            raise ConfigError(f"--{flag} is empty")
    _check_tls("", "listen-client-urls", config.listen_client_urls, config.client_tls)
    _check_tls("", "listen-metrics-urls", config.listen_metrics_urls, config.client_tls)
    _check_tls("peer-", "listen-peer-urls", config.listen_peer_urls, config.peer_tls)
    if config.heartbeat_ms < 1:
        raise ConfigError(f"--heartbeat-interval: {config.heartbeat_ms} is not at least 1 ms")
    if not 5 * config.heartbeat_ms <= config.election_ms <= 50_000:
        raise ConfigError(
            f"--election-timeout: {config.election_ms} ms must be at least 5 times --heartbeat-interval "
            f"({config.heartbeat_ms} ms) and at most 50000 ms"
        )
    for flag, value in (
        ("max-txn-ops", config.max_txn_ops),
        ("max-request-bytes", config.max_request_bytes),
        ("snapshot-count", config.snapshot_count),
    ):
        if value < 1:
            raise ConfigError(f"--{flag}: {value} is not a positive number")
    own = config.initial_cluster.get(config.name)
    if own is None:
        raise ConfigError(
            f"--initial-cluster names {', '.join(config.initial_cluster) or 'no member'}, "
            f"but not --name {config.name}"
        )
    if sorted(own) != sorted(config.advertise_peer_urls):
        raise ConfigError(
            f"--initial-cluster gives {config.name} the peer URLs {','.join(own)}, "
            f"but --initial-advertise-peer-urls says {','.join(config.advertise_peer_urls)}"
        )


def _check_tls(prefix: str, flag: str, urls: Sequence[str], files: TlsFiles) -> None:
    """A URL that promises TLS needs a certificate; a client certificate needs a CA to be held against."""
    secured = [url for url in urls if urlsplit(url).scheme in ("https", "unixs")]
    if secured and not (files.cert_file and files.key_file):
        raise ConfigError(f"--{flag}: {secured[0]!r} needs --{prefix}cert-file and --{prefix}key-file")
    if files.client_cert_auth and not files.trusted_ca_file:
        raise ConfigError(f"--{prefix}client-cert-auth needs --{prefix}trusted-ca-file")


def listen_address(url: str) -> str:
    """``http://host:port`` as the host:port to bind; localhost is 127.0.0.1 to bind one address, not two."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = "127.0.0.1" if host == "localhost" else host
    return f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"


def dial_address(url: str) -> str | None:
    """The host:port at which a peer URL is reached; None for what is none (a member update may bring any text)."""
    try:
        check_urls("peer-urls", [url])
    except (ConfigError, ValueError):
        return None
    return listen_address(url)
