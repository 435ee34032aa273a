"""``kvorum check``: judge a recorded history, or record one on a real store and judge it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.check import recordfile
from chaos.check.history import History
from chaos.check.linearizability import Budget, HistoryError, Verdict
from chaos.check.verify import Report, verify
from chaos.traffic.recorder import Recorder
from chaos.traffic.run import CannotRun, Load, probe, record, setting
from kvorum import loop
from kvorum.layout import FAULTS_VARIABLE, Cluster, UsageError, UserError, directory_of, is_url, load
from kvorum.nemesis import KINDS, Nemesis, check_kinds
from kvorum.processes import start_member, stop_all
from kvorum.up import check_ports, plan

HISTORY_NAME: Final = "history.jsonl"
REPORT_NAME: Final = "report.txt"
BUDGET_S: Final = 300.0
_PROGRESS_S: Final = 1.0
_PROGRESS_NO_TERMINAL_S: Final = 15.0
_PORT_TRIES: Final = 50
_PORTS: Final = (20_000, 32_000)

AddCommand = Callable[..., argparse.ArgumentParser]


def add_commands(commands: Any, add: AddCommand) -> None:
    """The subcommands ``history`` (which may be left out) and ``run``."""
    history = add(
        commands, "history", "judge a recorded history: 0 ok, 1 violated", "kvorum check history.jsonl", _check
    )
    history.add_argument("history", metavar="HISTORY.jsonl", help="file that 'kvorum check run' has recorded")
    history.add_argument(
        "--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="how long to search (default: 300)"
    )
    run = add(
        commands,
        "run",
        "record clients of a real store under faults, and judge what they saw",
        "kvorum check run --duration 60 --nemesis kill,pause,slow-disk,member --seed 7",
        lambda args: loop.run(lambda stop: _run(args, stop)),
    )
    where = run.add_mutually_exclusive_group()
    where.add_argument(
        "--endpoints",
        metavar="URL[,URL]",
        help="any etcd v3 store, real etcd too; nobody else may write to it, and it gets no process faults",
    )
    where.add_argument(
        "--data-dir", metavar="DIR", help="a running local cluster (default: a fresh one of three members)"
    )
    run.add_argument("--duration", type=float, default=60.0, metavar="SECONDS", help="default: 60")
    run.add_argument("--nemesis", default="", metavar="FAULTS", help=f"of {','.join(KINDS)}; default: none")
    run.add_argument("--seed", type=int, metavar="N", help="of requests and faults (default: a new one, printed)")
    run.add_argument("--out", metavar="DIR", help="for the history and the report (default: ./kvorum-check-SEED)")
    run.add_argument("--clients", type=int, default=6, metavar="N", help="default: 6")
    run.add_argument("--rate", type=float, default=60.0, metavar="N", help="requests a second (default: 60)")


def _check(args: argparse.Namespace) -> int:
    path = Path(args.history)
    return _finish(_judged(path, args.budget), None)


def _judged(path: Path, budget_s: float) -> Report:
    try:
        history: History = recordfile.load(path)
        return verify(history, Budget(seconds=budget_s))
    except recordfile.RecordError as error:
        raise UserError(f"{path}: {error}") from None
    except HistoryError as error:
        raise UserError(f"{path} cannot be judged: {error}") from None


def _finish(report: Report, folder: Path | None) -> int:
    text = "\n".join(report.lines())
    print(text)
    if folder is not None:
        (folder / REPORT_NAME).write_text(text + "\n")
        print(f"recorded in {folder}; 'kvorum check {folder / HISTORY_NAME}' judges it again")
    return 0 if report.verdict is Verdict.OK else 1


async def _run(args: argparse.Namespace, stop: asyncio.Event) -> int:
    kinds = _kinds(args)
    seed = args.seed if args.seed is not None else secrets.randbelow(1_000_000)
    folder = Path(args.out or f"kvorum-check-{seed}").absolute()
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        async with _store(args, folder, kinds) as (urls, cluster):
            await _record(args, seed, folder, urls, cluster, kinds, stop)
    except CannotRun as error:
        raise UserError(str(error)) from None
    except ExceptionGroup as group:
        raise _first(group) from None
    print("checking", file=sys.stderr)
    return _finish(await asyncio.to_thread(_judged, folder / HISTORY_NAME, BUDGET_S), folder)


def _kinds(args: argparse.Namespace) -> list[str]:
    kinds = [kind for kind in args.nemesis.split(",") if kind]
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"--nemesis: {kind!r} is none of {', '.join(KINDS)}")
    for url in args.endpoints.split(",") if args.endpoints else ():
        if not is_url(url if "//" in url else f"http://{url}"):
            raise UsageError(f"--endpoints: {url!r} is not http://HOST:PORT")
    if kinds and args.endpoints:
        raise UsageError("--nemesis hurts processes of a local cluster: with --endpoints there is none")
    if args.duration <= 0 or args.clients < 1 or args.rate <= 0:
        raise UsageError("--duration, --clients and --rate must be positive")
    return kinds


@asynccontextmanager
async def _store(
    args: argparse.Namespace, folder: Path, kinds: Sequence[str]
) -> AsyncIterator[tuple[list[str], Cluster | None]]:
    """The endpoints to load, and the cluster behind them where it is a local one."""
    if args.endpoints:
        yield args.endpoints.split(","), None
    elif args.data_dir:
        cluster = load(directory_of(args.data_dir))
        if dead := [member.name for member in cluster.members if not member.process.alive()]:
            raise UserError(f"not all members of {cluster.directory} are running: {', '.join(dead)}")
        if cluster.is_secured:
            raise UserError(f"the members of {cluster.directory} serve TLS, which this command does not speak yet")
        check_kinds(kinds, cluster)
        yield [member.client_url for member in cluster.members], cluster
    else:
        async with _own_cluster(folder / "cluster") as cluster:
            yield [member.client_url for member in cluster.members], cluster


@asynccontextmanager
async def _own_cluster(directory: Path) -> AsyncIterator[Cluster]:
    """Three fresh members that take faults, without an API server: nobody but the clients shall write."""
    os.environ[FAULTS_VARIABLE] = "1"
    cluster = _planned(directory)
    directory.mkdir()
    children = []
    try:
        for member in cluster.members:
            cluster, child = await start_member(cluster, member)
            children.append(child)
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(child.ready())
        yield cluster
    finally:
        with contextlib.suppress(UserError):
            cluster = load(directory)  # members were restarted meanwhile
        await stop_all(cluster.processes())
        for child in children:
            child.reap()


def _planned(directory: Path) -> Cluster:
    """A cluster on ports that nobody uses now."""
    random = Random()
    for attempt in range(_PORT_TRIES):
        base = random.randrange(*_PORTS)
        cluster = plan(
            argparse.Namespace(
                data_dir=str(directory), members=3, base_port=base, api_port=base + 6, fresh=True, tls=False,
                given=frozenset(),
            )
        )  # fmt: skip
        try:
            check_ports(cluster)
        except UserError:
            if attempt == _PORT_TRIES - 1:
                raise
            continue
        break
    return cluster


async def _record(
    args: argparse.Namespace,
    seed: int,
    folder: Path,
    urls: Sequence[str],
    cluster: Cluster | None,
    kinds: Sequence[str],
    stop: asyncio.Event,
) -> None:
    load_ = Load(args.clients, args.rate, seed)
    store = await probe(urls)
    exclusive = cluster is None or not cluster.api.process.alive()
    made = setting(store, load_, exclusive, kinds)
    print(made.note, file=sys.stderr)
    with (folder / HISTORY_NAME).open("w", encoding="utf-8") as file:
        recorder = Recorder(file, made)
        nemesis = None
        if kinds and cluster is not None:
            nemesis = Nemesis(
                cluster.directory, kinds, Random(seed + 1), lambda member: _restarted(recorder, member)
            )
        showing = asyncio.create_task(_show(recorder, nemesis, args.duration))
        try:
            await record(store, load_, recorder, nemesis.run if nemesis else None, args.duration, stop)
        finally:
            showing.cancel()
            await asyncio.wait((showing,))
    if nemesis is not None:
        print("faults: " + ", ".join(f"{n} {kind}" for kind, n in sorted(nemesis.counts.items())), file=sys.stderr)


def _restarted(recorder: Recorder, member: Any) -> None:
    recorder.restarts[member.client_url] += 1


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """What the user should read first: an error of ours if there is one."""
    flat: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        else:
            flat.append(error)
    ours = next((error for error in flat if isinstance(error, UserError | CannotRun)), group)
    return UserError(str(ours)) if isinstance(ours, CannotRun) else ours


async def _show(recorder: Recorder, nemesis: Nemesis | None, duration_s: float) -> None:
    """A line of progress, rewritten on a terminal."""
    began, is_terminal = time.monotonic(), sys.stderr.isatty()
    while True:
        await asyncio.sleep(_PROGRESS_S if is_terminal else _PROGRESS_NO_TERMINAL_S)
        counts = recorder.counts
        line = (
            f"{time.monotonic() - began:4.0f}/{duration_s:.0f} s  revision {recorder.revision}  "
            f"{counts['operations']} requests ({counts['unknown']} unknown, {counts['failed']} failed)  "
            f"{counts['watches']} watches, {counts['events']} events  {nemesis.now if nemesis else ''}"
        )
        print(
            f"\r\033[K{line}" if is_terminal else line,
            end="" if is_terminal else "\n",
            file=sys.stderr,
            flush=True,
        )
