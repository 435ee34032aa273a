"""The ``kvorum`` command. Subcommands import what they need when they run: a launcher must start in no time."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kvorum.layout import PORT_MAX, UsageError, UserError
from kvorum.numbers import real, whole

DEFAULT_DATA_DIR: Final = ".kvorum"
_CHECK_ACTIONS: Final = ("history", "run", "-h", "--help")

Command = Callable[[argparse.Namespace], int]
AsyncCommand = Callable[[argparse.Namespace, asyncio.Event], Awaitable[int]]


class _Parser(argparse.ArgumentParser):
    """Exit code 2 and one line for wrong usage."""

    def error(self, message: str) -> Any:
        print(f"kvorum: {message} (see '{self.prog} --help')", file=sys.stderr)
        raise SystemExit(2)


class _Noted(argparse.Action):
    """Stores the value and notes that it was given, so that a default can be told from a choice."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = {*getattr(namespace, "given", ()), self.dest}


def _port(text: str) -> int:
    return whole(text, f"a port (1 to {PORT_MAX})", 1, PORT_MAX)


def _base_port_of_three(text: str) -> int:
    if _port(text) > PORT_MAX - 6:
        raise argparse.ArgumentTypeError(f"{text} is too high: three members and an API server use seven ports")
    return int(text)


def _count(text: str) -> int:
    return whole(text, "a positive number", 1)


def _size(text: str) -> int:
    return whole(text, "a number of bytes")


def _seconds(text: str) -> float:
    return real(text, "a positive number of seconds")


def _member_count(text: str) -> int:
    if text not in ("1", "3", "5", "7"):
        raise argparse.ArgumentTypeError(f"{text!r} members: a cluster has 1, 3, 5 or 7")
    return int(text)


def _add(
    commands: Any, name: str, summary: str, example: str, run: Command, **options: Any
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}" + ("" if summary.endswith("?") else "."),
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **options,
    )
    parser.set_defaults(run=run, given=frozenset())
    return parser


def _data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", default=DEFAULT_DATA_DIR, metavar="DIR", help="folder of the cluster (default: ./.kvorum)"
    )


def _in_loop(command: AsyncCommand) -> Command:
    def run(args: argparse.Namespace) -> int:
        from kvorum import loop

        return loop.run(lambda stop: command(args, stop))

    return run


def _measured(command: AsyncCommand) -> Command:
    """A benchmark takes minutes, and Ctrl-C ends it at once, wherever it is."""
    return _in_loop(lambda args, stop: _until_stopped(command, args, stop))


def _until_stopped(command: AsyncCommand, args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum import loop

    return loop.unless_stopped(stop, command(args, stop))


def _up(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum import up

    return up.up(args, stop)


def _down(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum import up

    return up.down(args, stop)


def _status(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum import status

    return status.status(args, stop)


def _fault(name: str) -> AsyncCommand:
    def run(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
        from kvorum import faults

        command: AsyncCommand = getattr(faults, name)
        return command(args, stop)

    return run


def _bench_raft(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum.bench import raft

    return raft.main(args)


def _bench_rpc(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum.bench import rpc

    return rpc.run(args, stop)


def _no_action(args: argparse.Namespace) -> int:
    raise AssertionError("a second word is required, so the parser has refused this")


def _bench_failover(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum.bench import failover

    return failover.main(args, stop)


def _bench_etcd(args: argparse.Namespace, stop: asyncio.Event) -> Awaitable[int]:
    from kvorum.bench import etcd

    return etcd.main(args, stop)


def _add_benchmarks(benchmarks: Any) -> None:
    _add_comparison(benchmarks)
    raft = _add(
        benchmarks,
        "raft",
        "proposals per second through drivers in one process, over real logs and no network",
        "kvorum bench raft --nodes 1 3 --seconds 5",
        _measured(_bench_raft),
    )
    raft.add_argument("--nodes", type=int, nargs="+", choices=(1, 3, 5, 7), default=[3, 1], help="cluster sizes")
    raft.add_argument("--seconds", type=_seconds, default=5.0, help="how long to measure each")
    raft.add_argument("--in-flight", type=_count, default=64, help="proposals under way at a time")
    raft.add_argument("--value-bytes", type=_size, default=256, help="size of a proposal")
    failover = _add(
        benchmarks,
        "failover",
        "the cost of three idle members, and how long writes wait after the leader is killed",
        "kvorum bench failover --rounds 20",
        _measured(_bench_failover),
    )
    failover.add_argument("--rounds", type=_count, default=20, help="leaders to kill")
    failover.add_argument(
        "--base-port",
        type=_base_port_of_three,
        default=29379,
        metavar="PORT",
        help="client port of the first member",
    )
    rpc = _add(
        benchmarks,
        "rpc",
        "server CPU per call: the member's listener and grpc.aio, echoing 300 bytes",
        "kvorum bench rpc --seconds 5",
        _measured(_bench_rpc),
    )
    rpc.add_argument("--seconds", type=_seconds, default=5.0, help="how long to measure each")
    rpc.add_argument(
        "--in-flight", type=_count, default=64, help="calls, or messages of a stream, under way at a time"
    )


def _add_comparison(benchmarks: Any) -> None:
    etcd = _add(
        benchmarks,
        "etcd",
        "Kvorum and a real etcd in turn: writes, reads, ranges, watches, memory, snapshots; prints the ratios",
        "kvorum bench etcd --parts writes reads --rounds 3",
        _measured(_bench_etcd),
    )
    parts = ("writes", "reads", "range", "watch", "memory", "snapshot")
    etcd.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="what to measure")
    etcd.add_argument("--rounds", type=_count, default=1, help="how often, each time afresh; medians are printed")
    etcd.add_argument("--seconds", type=_seconds, default=5.0, help="how long to measure each load")
    etcd.add_argument("--watchers", type=_count, default=1000, help="watchers on one key")
    etcd.add_argument("--writes", type=_count, default=100, help="writes to the watched key")
    etcd.add_argument("--keys", type=_count, default=200_000, help="keys for memory, restart and snapshot")
    etcd.add_argument(
        "--etcd", metavar="FILE", help="the etcd program (default: beside this Python, or on the PATH)"
    )


def _member(args: argparse.Namespace) -> int:
    from kvorum import member

    return member.run(args.arguments)


def _sim(args: argparse.Namespace) -> int:
    from kvorum import sim

    return sim.run(args)


def _apiserver(args: argparse.Namespace) -> int:
    from kvorum import apiserver

    return apiserver.run(args)


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole command line. ``command`` names the one about to run: only its options need to be complete."""
    parser = _Parser(
        prog="kvorum",
        description="etcd and the Kubernetes list/watch API in one command: replicated, watchable, breakable.",
        epilog="example:\n  kvorum up        # three members and an API server; Ctrl-C stops them",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    up = _add(commands, "up", "start members and an API server", "kvorum up --members 3", _in_loop(_up))
    _data_dir(up)
    up.add_argument("--members", type=_member_count, default=3, action=_Noted, metavar="N", help="1, 3, 5 or 7")
    up.add_argument(
        "--base-port",
        type=_port,
        default=2379,
        action=_Noted,
        metavar="PORT",
        help="client port of the first member",
    )
    up.add_argument(
        "--api-port", type=_port, default=8001, action=_Noted, metavar="PORT", help="port of the API server"
    )
    up.add_argument("--tls", action="store_true", help="make certificates, and serve clients and peers with TLS")
    up.add_argument("--detach", action="store_true", help="leave everything running and return")
    up.add_argument("--fresh", action="store_true", help="forget the data of an earlier run")

    down = _add(commands, "down", "stop everything that 'up' started", "kvorum down", _in_loop(_down))
    _data_dir(down)

    status = _add(
        commands,
        "status",
        "show every member: role, term, revision, sizes",
        "kvorum status --json",
        _in_loop(_status),
    )
    _data_dir(status)
    status.add_argument("--json", action="store_true", help="one JSON document")

    for name, summary, function in (
        ("stop-member", "stop a member cleanly (SIGTERM)", "stop_member"),
        ("start-member", "start a member that was stopped or killed", "start"),
        ("kill-member", "kill a member (SIGKILL), as a crash would", "kill_member"),
        ("pause-member", "freeze a member (SIGSTOP)", "pause_member"),
        ("resume-member", "wake a frozen member (SIGCONT)", "resume_member"),
    ):
        fault = _add(commands, name, summary, f"kvorum {name} m1", _in_loop(_fault(function)))
        fault.add_argument("name", metavar="NAME", help="the member, as 'kvorum status' names it")
        _data_dir(fault)

    bench = _add(commands, "bench", "measure the parts and the whole", "kvorum bench raft --nodes 3", _no_action)
    _add_benchmarks(bench.add_subparsers(metavar="BENCHMARK", required=True, parser_class=_Parser))

    snapshot = _add(
        commands,
        "snapshot",
        "save, inspect and restore snapshots in etcd's file format",
        "kvorum snapshot save backup.db",
        _no_action,
    )
    if command in (None, "snapshot"):
        from kvorum import snapshot as snapshots

        snapshots.add_commands(
            snapshot.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser), _add
        )

    sim = _add(
        commands,
        "sim",
        "whole clusters in simulation: every run from one seed, every fault, every invariant",
        "kvorum sim --seeds 1..500 --jobs 2\n  kvorum sim --replay 42 --trace timeline.html",
        _sim,
    )
    if command in (None, "sim"):
        from kvorum import sim as simulation

        simulation.add_arguments(sim)

    check = _add(
        commands,
        "check",
        "judge what clients of a store saw: linearizable? watches complete?",
        "kvorum check run --duration 60 --nemesis kill,pause\n  kvorum check kvorum-check-7/history.jsonl",
        _no_action,
    )
    if command in (None, "check"):
        from kvorum import check as checks

        checks.add_commands(check.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser), _add)

    member = _add(
        commands,
        "member",
        "run one member; takes etcd's flags ('kvorum member --help')",
        "kvorum member --name n1 --data-dir n1.data",
        _member,
        add_help=False,
    )
    member.add_argument("arguments", nargs=argparse.REMAINDER)

    api = _add(
        commands,
        "apiserver",
        "run the API server alone, over Kvorum or a real etcd",
        "kvorum apiserver --etcd-servers http://127.0.0.1:2379 --port 8001",
        _apiserver,
    )
    if command in (None, "apiserver"):
        from kvorum import apiserver

        apiserver.add_arguments(api)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 it worked, 1 it failed (one line on standard error), 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else None
    try:
        if command == "member":  # its flags are etcd's: argparse's remainder would take some of them away
            args = argparse.Namespace(run=_member, arguments=arguments[1:])
        else:
            if command == "check" and len(arguments) > 1 and arguments[1] not in _CHECK_ACTIONS:
                arguments.insert(1, "history")  # its first word may be left out
            args = build_parser(command).parse_args(arguments)
        run: Command = args.run
        code = run(args)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"kvorum: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        from kvorum.loop import drop_output

        drop_output()
        return 1
    except OSError as error:
        if error.filename is None:
            raise  # no file of the user's: a defect, whose traceback is wanted
        name = error.filename if isinstance(error.filename, str) else repr(error.filename)
        print(f"kvorum: {name}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
