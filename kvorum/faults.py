"""The five process faults: stop, start, kill, pause and resume a member of a running local cluster."""

from __future__ import annotations

import asyncio
import signal
from argparse import Namespace
from typing import Final

from kvorum.layout import Cluster, Member, UserError, directory_of, load
from kvorum.processes import STOP_TIMEOUT_S, Child, send_signal, start_member, wait_gone

START_TIMEOUT_S: Final = 15.0


def _find(args: Namespace) -> Member:
    return load(directory_of(args.data_dir)).member(args.name)


async def kill(member: Member) -> None:
    """SIGKILL, as a crash would. Raises UserError when it is not running, or does not end."""
    send_signal(member, signal.SIGKILL)
    if await wait_gone([member.process], STOP_TIMEOUT_S):
        raise UserError(f"{member.name} (pid {member.process.pid}) did not end after SIGKILL")


def pause(member: Member) -> None:
    """SIGSTOP. Raises UserError when it is not running."""
    send_signal(member, signal.SIGSTOP)


def resume(member: Member) -> None:
    """SIGCONT. Raises UserError when it is not running."""
    send_signal(member, signal.SIGCONT)


async def restart(cluster: Cluster, member: Member) -> Child:
    """Start a member and wait until it serves. Raises UserError."""
    _, child = await start_member(cluster, member)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await child.ready()
    except TimeoutError:
        raise UserError(f"{member.name} was started but serves nothing yet: see {child.log_file}") from None
    return child


async def stop_member(args: Namespace, stop: asyncio.Event) -> int:
    member = _find(args)
    send_signal(member, signal.SIGCONT)
    send_signal(member, signal.SIGTERM)
    if await wait_gone([member.process], STOP_TIMEOUT_S):
        raise UserError(f"{member.name} has not stopped after {STOP_TIMEOUT_S:.0f} s; 'kvorum kill-member' will")
    print(f"{member.name} stopped")
    return 0


async def kill_member(args: Namespace, stop: asyncio.Event) -> int:
    member = _find(args)
    await kill(member)
    print(f"{member.name} killed (SIGKILL)")
    return 0


async def pause_member(args: Namespace, stop: asyncio.Event) -> int:
    member = _find(args)
    pause(member)
    print(f"{member.name} paused (SIGSTOP); 'kvorum resume-member {member.name}' wakes it")
    return 0


async def resume_member(args: Namespace, stop: asyncio.Event) -> int:
    member = _find(args)
    resume(member)
    print(f"{member.name} resumed")
    return 0


async def start(args: Namespace, stop: asyncio.Event) -> int:
    cluster = load(directory_of(args.data_dir))
    member = cluster.member(args.name)
    child = await restart(cluster, member)
    print(f"{member.name} started (pid {child.process.pid}) on {member.client_url}")
    return 0
