"""``kvorum up`` and ``kvorum down``: a whole cluster from one command, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kvorum.certificates import Certificates, make_certificates
from kvorum.layout import (
    FILE_NAME,
    LOCK_NAME,
    PORT_MAX,
    Api,
    Cluster,
    Member,
    UsageError,
    UserError,
    directory_of,
    load,
    locked,
)
from kvorum.loop import drop_output
from kvorum.processes import Child, api_command, spawn_member, stop_all

READY_TIMEOUT_S: Final = 30.0
WATCH_CHILDREN_S: Final = 0.5


def plan(args: Namespace) -> Cluster:
    """The cluster that ``up`` was asked for: the one in the data directory, or a new one."""
    directory = directory_of(args.data_dir)
    if (directory / FILE_NAME).exists() and not args.fresh:
        return _with_own_ports(_existing(args, directory))
    cluster = _with_own_ports(_new(args, directory))  # before anything is cleared for it
    if directory.exists():
        if not directory.is_dir():
            raise UserError(f"{directory} is not a folder: choose another --data-dir")
        if args.fresh:
            _clear(directory)
        elif _content(directory):
            raise UserError(f"{directory} is not empty and holds no {FILE_NAME}: choose another --data-dir")
    return cluster


def _new(args: Namespace, directory: Path) -> Cluster:
    last = args.base_port + 2 * args.members - 1
    if last > PORT_MAX:
        raise UsageError(
            f"--base-port {args.base_port} is too high: {args.members} members use two ports each, up to {last}, "
            f"and the highest port is {PORT_MAX}"
        )
    scheme = "https" if args.tls else "http"
    members = tuple(
        Member(
            name=f"m{number}",
            client_url=f"{scheme}://127.0.0.1:{args.base_port + 2 * (number - 1)}",
            peer_url=f"{scheme}://127.0.0.1:{args.base_port + 2 * (number - 1) + 1}",
            data_dir=str(directory / f"m{number}"),
        )
        for number in range(1, args.members + 1)
    )
    api = Api(f"http://127.0.0.1:{args.api_port}")
    return Cluster(directory, members, api, token=f"kvorum-{secrets.token_hex(4)}")


def _with_own_ports(cluster: Cluster) -> Cluster:
    """The cluster, whose API server has a port that no member has. Raises UsageError."""
    port = urlsplit(cluster.api.url).port
    for member in cluster.members:
        if port in (urlsplit(member.client_url).port, urlsplit(member.peer_url).port):
            raise UsageError(f"port {port} is for {member.name}: choose another --api-port or --base-port")
    return cluster


def _existing(args: Namespace, directory: Path) -> Cluster:
    cluster = load(directory)
    running = cluster.running()
    if running:
        raise UserError(
            f"the cluster in {directory} is running already ({len(running)} processes); "
            f"'kvorum down --data-dir {directory}' stops it"
        )
    if len(cluster.members) != args.members and "members" in args.given:
        raise UserError(
            f"the cluster in {directory} has {len(cluster.members)} members, not {args.members}: use --fresh to "
            "start over, or another --data-dir"
        )
    if args.tls and not cluster.is_secured:
        raise UserError(
            f"the cluster in {directory} was made without --tls: use --fresh to start over, or another --data-dir"
        )
    base_port = urlsplit(cluster.members[0].client_url).port
    if base_port != args.base_port and "base_port" in args.given:
        raise UserError(
            f"the cluster in {directory} was made with --base-port {base_port}: use --fresh to start over, or "
            "another --data-dir"
        )
    if "api_port" in args.given:
        cluster = replace(cluster, api=Api(f"http://127.0.0.1:{args.api_port}"))
    return cluster


def _content(directory: Path) -> list[Path]:
    """What lies in a data directory, apart from the lock, which stays for those who wait for it."""
    return [item for item in directory.iterdir() if item.name != LOCK_NAME]


def _clear(directory: Path) -> None:
    """Empty a data directory of ours, and nothing that might be someone's home."""
    if (directory / FILE_NAME).exists():
        try:
            running = load(directory).running()
        except UserError:
            running = []  # damaged: --fresh is the way out that its message names
        if running:
            raise UserError(f"the cluster in {directory} is running: stop it with 'kvorum down' first")
    elif _content(directory):
        raise UserError(
            f"{directory} holds no {FILE_NAME}, so --fresh does not touch it: choose another --data-dir"
        )
    for item in _content(directory):
        shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


def check_ports(cluster: Cluster) -> None:
    """Refuse to start when a port is taken: an error here is clearer than one in three log files."""
    urls = [(member.client_url, f"{member.name} clients") for member in cluster.members]
    urls += [(member.peer_url, f"{member.name} peers") for member in cluster.members]
    urls.append((cluster.api.url, "the API server"))
    for url, use in urls:
        parts = urlsplit(url)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((parts.hostname, parts.port))
            except OSError as error:
                raise UserError(
                    f"port {parts.port} (for {use}) cannot be used: {os.strerror(error.errno or 0).lower()}; "
                    "choose others with --base-port and --api-port"
                ) from None


def write_kubeconfig(cluster: Cluster) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kvorum", "cluster": {"server": cluster.api.url}}],
        "users": [{"name": "kvorum", "user": {}}],
        "contexts": [{"name": "kvorum", "context": {"cluster": "kvorum", "user": "kvorum"}}],
        "current-context": "kvorum",
    }
    cluster.kubeconfig.write_text(json.dumps(document, indent=2) + "\n")


async def start(cluster: Cluster) -> tuple[Cluster, list[Child]]:
    """Start every process and wait until the API server has answered a linearizable read."""
    cluster.directory.mkdir(parents=True, exist_ok=True)
    children: list[Child] = []
    try:
        async with locked(cluster.directory):
            _check_nobody_was_faster(cluster)
            cluster = _spawn_all(cluster, children)
        await _all_ready(cluster, children)
    except BaseException:
        await stop_all([child.process for child in children])
        for child in children:
            child.reap()
        raise
    return cluster, children


def _check_nobody_was_faster(cluster: Cluster) -> None:
    """Another ``up`` may have come between the plan and the lock."""
    if (cluster.directory / FILE_NAME).exists() and load(cluster.directory).running():
        raise UserError(f"the cluster in {cluster.directory} is running already: another command started it")


def _spawn_all(cluster: Cluster, children: list[Child]) -> Cluster:
    """Start every process; ``children`` gets each as soon as it runs."""
    if cluster.is_secured:
        make_certificates(cluster.tls)
    write_kubeconfig(cluster)
    for member in cluster.members:
        cluster, child = spawn_member(cluster, member)
        children.append(child)
    api = Child("the API server", api_command(cluster), cluster.log_file("apiserver"))
    children.append(api)
    cluster = replace(cluster, api=replace(cluster.api, process=api.process))
    cluster.save()
    return cluster


async def _all_ready(cluster: Cluster, children: list[Child]) -> None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S), asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(child.ready())
    except TimeoutError:
        raise UserError(
            f"the cluster was not ready after {READY_TIMEOUT_S:.0f} s: see the logs in {cluster.directory}"
        ) from None
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def announce(cluster: Cluster, seconds: float) -> None:
    lines = [f"ready in {seconds:.1f} s: {len(cluster.members)} members and an API server"]
    lines += [f"  {member.name:<4} {member.client_url}" for member in cluster.members]
    lines += [
        f"  api  {cluster.api.url}",
        "",
        f"export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={cluster.endpoints}",
        *_tls_lines(cluster),
        f"export KUBECONFIG={cluster.kubeconfig}",
    ]
    _say("\n".join(lines))


def _say(text: str) -> None:
    """Print; a reader that has gone, as ``head`` does, must not end the cluster."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_output()


def _tls_lines(cluster: Cluster) -> list[str]:
    if not cluster.is_secured:
        return []
    tls = Certificates(cluster.tls)
    client = tls.pair("client")
    return [
        f"export ETCDCTL_CACERT={tls.ca_file} ETCDCTL_CERT={client.cert_file} ETCDCTL_KEY={client.key_file}",
    ]


async def up(args: Namespace, stop: asyncio.Event) -> int:
    began = time.monotonic()
    cluster = plan(args)
    check_ports(cluster)
    starting = asyncio.ensure_future(start(cluster))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise UserError("stopped before it was ready")
    stopping.cancel()
    cluster, children = starting.result()
    announce(cluster, time.monotonic() - began)
    if args.detach:
        return 0
    _say("\nCtrl-C stops everything")
    await _until_stopped(stop, children, cluster)
    return 0


async def _until_stopped(stop: asyncio.Event, children: list[Child], cluster: Cluster) -> None:
    """Hold until Ctrl-C, or until someone else stopped the whole cluster; then stop what is left."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(WATCH_CHILDREN_S):
                await stop.wait()
        except TimeoutError:
            for child in children:
                child.reap()
            cluster = _reload(cluster)
            if not cluster.running():
                print("every process has ended", file=sys.stderr)
                return
    print("stopping", file=sys.stderr)
    # Members may have been restarted from another shell: cluster.json knows the processes of now.
    await stop_all(_reload(cluster).processes())
    for child in children:
        child.reap()


def _reload(cluster: Cluster) -> Cluster:
    try:
        return load(cluster.directory)
    except UserError:
        return cluster  # damaged meanwhile: what we knew is the best there is


async def down(args: Namespace, stop: asyncio.Event) -> int:
    cluster = load(directory_of(args.data_dir))
    running = cluster.running()
    if not running:
        print(f"nothing runs in {cluster.directory}")
        return 0
    await stop_all(running)
    print(f"stopped {len(running)} processes; the data stays in {cluster.directory}")
    return 0
