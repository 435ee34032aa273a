"""``kvorum snapshot save|status|restore``: as etcdctl and etcdutl do it, for the files of either."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kvorum.layout import UserError

CONNECT_TIMEOUT_S: Final = 5.0
_HEADER: Final = ("HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE")


def add_commands(commands: Any, add: Any) -> None:
    """The three subcommands; ``add`` is the maker of parsers of kvorum.cli."""
    name = add(
        commands, "save", "store a running member's data in a file",
        "kvorum snapshot save backup.db --endpoints http://127.0.0.1:2379", save,
    )  # fmt: skip
    name.add_argument("file", metavar="FILE")
    name.add_argument(
        "--endpoints",
        default=os.environ.get("ETCDCTL_ENDPOINTS", "http://127.0.0.1:2379"),
        metavar="URL",
        help="the one member to ask (default: $ETCDCTL_ENDPOINTS, else http://127.0.0.1:2379)",
    )
    for flag, what in (
        ("cacert", "CA that signed the server"),
        ("cert", "client certificate"),
        ("key", "its key"),
    ):
        name.add_argument(f"--{flag}", metavar="FILE", type=Path, help=f"{what}, for https")

    name = add(
        commands, "status", "what a snapshot file holds, after checking all of it",
        "kvorum snapshot status backup.db -w table", status,
    )  # fmt: skip
    name.add_argument("file", metavar="FILE")
    name.add_argument("-w", "--write-out", choices=("simple", "table", "json", "fields"), default="simple")

    name = add(
        commands, "restore", "make the data directory of a member of a new cluster from a snapshot file",
        "kvorum snapshot restore backup.db --data-dir default.etcd", restore,
    )  # fmt: skip
    _restore_arguments(name)


def _restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="from 'kvorum snapshot save', 'etcdctl snapshot save'")
    parser.add_argument("--data-dir", metavar="DIR", type=Path, help="folder to make (default: NAME.etcd)")
    parser.add_argument("--name", default="default", help="name of this member (default: %(default)s)")
    parser.add_argument(
        "--initial-cluster",
        default="",
        metavar="NAME=URL,...",
        help="every member of the new cluster with its peer URLs (default: this member alone)",
    )
    parser.add_argument(
        "--initial-cluster-token",
        default="etcd-cluster",
        metavar="TEXT",
        help="tells clusters with equal URLs apart (default: %(default)s)",
    )
    parser.add_argument(
        "--initial-advertise-peer-urls",
        default="http://localhost:2380",
        metavar="URL,...",
        help="peer URLs of this member (default: %(default)s)",
    )
    parser.add_argument(
        "--skip-hash-check", action="store_true", help="take a file without a checksum, as copied from a data dir"
    )
    parser.add_argument(
        "--bump-revision",
        type=int,
        default=0,
        metavar="N",
        help="raise the revision by N, more than was written since the snapshot; needs --mark-compacted",
    )
    parser.add_argument(
        "--mark-compacted",
        action="store_true",
        help="declare everything before the raised revision compacted, so that clients list again",
    )


# -- save -------------------------------------------------------------------------------------------------


def save(args: argparse.Namespace) -> int:
    import grpc

    endpoints = [part for part in args.endpoints.split(",") if part]
    if len(endpoints) != 1:
        raise UserError(f"a snapshot is taken from one member: --endpoints names {len(endpoints)}")
    target = Path(args.file)
    try:
        with _unfinished(target) as partial, _channel(endpoints[0], args) as channel:
            _receive(channel, partial)
    except grpc.FutureTimeoutError:
        raise UserError(f"{endpoints[0]} cannot be reached") from None
    except grpc.RpcError as error:
        raise UserError(f"{endpoints[0]}: {error.details()}") from None
    except OSError as error:
        raise UserError(f"{target}: {error.strerror or error}") from None
    print(f"Snapshot saved at {target}")
    return 0


@contextlib.contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """A file beside ``target`` that takes its place, complete and synced, or is gone."""
    partial = target.with_name(f"{target.name}.part")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _channel(endpoint: str, args: argparse.Namespace) -> Iterator[Any]:
    import grpc

    parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
    options = [("grpc.max_receive_message_length", -1)]
    if parts.scheme == "https":
        files = [None if path is None else path.read_bytes() for path in (args.cacert, args.key, args.cert)]
        channel = grpc.secure_channel(parts.netloc, grpc.ssl_channel_credentials(*files), options)
    elif parts.scheme == "http" and parts.netloc:
        channel = grpc.insecure_channel(parts.netloc, options)
    else:
        raise UserError(f"--endpoints: {endpoint!r} is not http://HOST:PORT")
    with channel:
        grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
        yield channel


def _receive(channel: Any, partial: Path) -> None:
    """Write the stream to ``partial`` and compare it with the checksum at its end."""
    from store.etcdpb import rpc_pb2, rpc_pb2_grpc

    stub: Any = rpc_pb2_grpc.MaintenanceStub(channel)  # type: ignore[no-untyped-call]
    digest, last = hashlib.sha256(), b""
    with partial.open("xb") as file:
        for part in stub.Snapshot(rpc_pb2.SnapshotRequest()):
            digest.update(last)
            last = part.blob
            file.write(last)
        if last != digest.digest():
            raise UserError("the snapshot was damaged on its way: its checksum is wrong")
        file.flush()
        os.fsync(file.fileno())


# -- status -----------------------------------------------------------------------------------------------


def status(args: argparse.Namespace) -> int:
    from store.snapshots import check
    from store.snapshots.layout import SnapshotError

    try:
        found = check.status(Path(args.file))
    except SnapshotError as error:
        raise UserError(str(error)) from None
    size = _human_bytes(found.total_bytes)
    cells = (f"{found.hash:x}", str(found.revision), str(found.total_key), size)
    if args.write_out == "json":
        document = {
            "hash": found.hash,
            "revision": found.revision,
            "totalKey": found.total_key,
            "totalSize": found.total_bytes,
        }
        print(json.dumps(document, separators=(",", ":")))
    elif args.write_out == "table":
        print(_table(cells))
    elif args.write_out == "fields":
        values = (found.hash, found.revision, found.total_key, found.total_bytes)
        for name, value in zip(("Hash", "Revision", "Keys", "Size"), values, strict=True):
            print(f'"{name}" : {value}')
    else:
        print(", ".join(cells))
    return 0


def _table(cells: tuple[str, ...]) -> str:
    widths = [max(len(head), len(cell)) for head, cell in zip(_HEADER, cells, strict=True)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    heads = []
    for head, width in zip(_HEADER, widths, strict=True):
        left = (width - len(head)) // 2
        heads.append(" " * left + head + " " * (width - len(head) - left))
    row = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "\n".join((line, f"| {' | '.join(heads)} |", line, f"| {' | '.join(row)} |", line))


def _human_bytes(size: int) -> str:
    """Powers of 1000, one digit after the point below 10, as etcd's tools print sizes."""
    if size < 10:
        return f"{size} B"
    value, units = float(size), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    value = int(value * 10 + 0.5) / 10
    return f"{value:.0f} {units[0]}" if value >= 10 else f"{value:.1f} {units[0]}"


# -- restore ----------------------------------------------------------------------------------------------


def restore(args: argparse.Namespace) -> int:
    from store.config import ConfigError, MemberConfig, check, parse_initial_cluster
    from store.snapshots.layout import SnapshotError
    from store.snapshots.restore import restore as make

    if (args.bump_revision > 0) != args.mark_compacted or args.bump_revision < 0:
        print("kvorum: --bump-revision (a positive number) and --mark-compacted go together", file=sys.stderr)
        return 2
    peers = tuple(part.strip() for part in args.initial_advertise_peer_urls.split(",") if part.strip())
    unused = ("http://localhost:2379",)
    try:
        config = MemberConfig(
            name=args.name,
            data_dir=(args.data_dir or Path(f"{args.name}.etcd")).absolute(),
            listen_client_urls=unused,
            advertise_client_urls=unused,
            listen_peer_urls=peers,
            advertise_peer_urls=peers,
            initial_cluster=parse_initial_cluster(args.initial_cluster) or {args.name: peers},
            token=args.initial_cluster_token,
        )
        check(config)
    except ConfigError as error:
        print(f"kvorum: {error}", file=sys.stderr)
        return 2
    try:
        done = asyncio.run(
            make(
                Path(args.file),
                config,
                skip_hash_check=args.skip_hash_check,
                bump_revision=args.bump_revision,
            )
        )
    except SnapshotError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{error.filename or config.data_dir}: {error.strerror or error}") from None
    if done.auth_enabled:
        print("kvorum: warning: authentication was on; this release does not ask for passwords", file=sys.stderr)
    print(
        f"Restored member {args.name} ({done.identity.member_id:x}) of cluster {done.identity.cluster_id:x} "
        f"at revision {done.revision} in {config.data_dir}"
    )
    return 0
