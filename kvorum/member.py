"""``kvorum member``: one member from etcd's flags."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from kvorum import loop
from kvorum.flags import Parsed, help_text, parse, retention
from kvorum.layout import FAULTS_VARIABLE, UsageError, UserError
from raft.errors import FatalError
from store import member
from store.api.context import VERSION
from store.bootstrap import DataDirError
from store.config import ConfigError, MemberConfig, UpkeepOptions, parse_initial_cluster
from store.listener import TlsError, TlsFiles

log = logging.getLogger(__name__)


def run(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT. 0 after a clean stop, 1 when it could not run, 2 for wrong usage."""
    if any(argument in ("-h", "-help", "--help") for argument in arguments):
        print(help_text())
        return 0
    if any(argument in ("-version", "--version") for argument in arguments):
        print(f"etcd Version: {VERSION} (as answered to clients)\nkvorum Version: {version('kvorum')}")
        return 0
    try:
        parsed = parse(arguments)
        config = make_config(parsed)
    except (UsageError, ConfigError) as error:
        print(f"kvorum: {error}", file=sys.stderr)
        return 2
    loop.configure_logging(parsed["log-level"])
    for name in parsed.ignored:
        log.info("--%s is accepted and has no effect", name)
    return loop.run(lambda stop: _serve(config, stop))


async def _serve(config: MemberConfig, stop: asyncio.Event) -> int:
    # Long-lived objects by the million (the key index) make full collections slow, and none of them is garbage.
    gc.freeze()
    # Requests leave few cycles behind: the default of a collection every 700 allocations cost a tenth of the CPU.
    gc.set_threshold(20_000, 20, 20)
    try:
        await member.run(config, stop, loop.say_ready)
    except ConfigError as error:
        print(f"kvorum: {error}", file=sys.stderr)
        return 2
    except (DataDirError, TlsError, member.ListenError, OSError) as error:
        raise UserError(str(error)) from None
    except FatalError as error:
        raise UserError(f"this member stops: {error}") from None
    except BaseExceptionGroup as group:
        fatal = _first_fatal(group)
        if fatal is None:
            raise
        raise UserError(f"this member stops: {fatal}") from None
    return 0


def _first_fatal(error: BaseException) -> FatalError | None:
    """Why everything ended: the first FatalError in a group, however deep. What fell with it is no news."""
    if isinstance(error, FatalError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_first_fatal, error.exceptions)), None)
    return None


def make_config(parsed: Parsed) -> MemberConfig:
    """Flags as a MemberConfig, with etcd's defaults for what was not given. Raises ConfigError, UsageError."""
    if parsed["initial-cluster-state"] not in ("new", "existing"):
        raise UsageError(f"--initial-cluster-state: {parsed['initial-cluster-state']!r} is not new or existing")
    if parsed["log-level"] not in ("debug", "info", "warn", "warning", "error"):
        raise UsageError(f"--log-level: {parsed['log-level']!r} is not debug, info, warn or error")
    if "listen-client-urls" in parsed.given and "advertise-client-urls" not in parsed.given:
        raise UsageError("--advertise-client-urls is required when --listen-client-urls is given")
    name = parsed["name"]
    peers = parsed["initial-advertise-peer-urls"] or parsed["listen-peer-urls"]
    initial = parse_initial_cluster(parsed["initial-cluster"]) or {name: tuple(peers)}
    return MemberConfig(
        name=name,
        data_dir=Path(parsed["data-dir"] or f"{name}.etcd").absolute(),
        listen_client_urls=parsed["listen-client-urls"],
        advertise_client_urls=parsed["advertise-client-urls"] or parsed["listen-client-urls"],
        listen_peer_urls=parsed["listen-peer-urls"],
        advertise_peer_urls=peers,
        initial_cluster=initial,
        joining=parsed["initial-cluster-state"] == "existing",
        force_new_cluster=parsed["force-new-cluster"],
        token=parsed["initial-cluster-token"],
        heartbeat_ms=parsed["heartbeat-interval"],
        election_ms=parsed["election-timeout"],
        fast_start=parsed["initial-election-tick-advance"],
        pre_vote=parsed["pre-vote"],
        snapshot_count=parsed["snapshot-count"],
        catch_up_entries=parsed["snapshot-catchup-entries"],
        quota_bytes=parsed["quota-backend-bytes"],
        max_txn_ops=parsed["max-txn-ops"],
        max_request_bytes=parsed["max-request-bytes"],
        max_learners=parsed["max-learners"],
        progress_notify_s=parsed["watch-progress-notify-interval"],
        client_tls=_tls(parsed, ""),
        peer_tls=_tls(parsed, "peer-"),
        max_concurrent_streams=parsed["max-concurrent-streams"],
        keepalive_interval_s=parsed["grpc-keepalive-interval"],
        keepalive_timeout_s=parsed["grpc-keepalive-timeout"],
        slow_apply_s=parsed["warning-apply-duration"],
        slow_request_s=parsed["warning-unary-request-duration"],
        listen_metrics_urls=parsed["listen-metrics-urls"],
        upkeep=_upkeep(parsed),
        takes_faults=os.environ.get(FAULTS_VARIABLE) == "1",
    )


def _upkeep(parsed: Parsed) -> UpkeepOptions:
    gates = parsed["feature-gates"]
    return UpkeepOptions(
        retention=retention(parsed["auto-compaction-mode"], parsed["auto-compaction-retention"]),
        lease_checkpoints=gates.get("LeaseCheckpoint", parsed["experimental-enable-lease-checkpoint"]),
        initial_corrupt_check=gates.get("InitialCorruptCheck", parsed["experimental-initial-corrupt-check"]),
        corrupt_check_s=parsed["corrupt-check-time"],
    )


def _tls(parsed: Parsed, prefix: str) -> TlsFiles:
    return TlsFiles(
        parsed[f"{prefix}cert-file"],
        parsed[f"{prefix}key-file"],
        parsed[f"{prefix}trusted-ca-file"],
        parsed[f"{prefix}client-cert-auth"],
    )
