"""``kvorum status``: what every member says of itself."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Final

from kvorum.layout import Member, Process, directory_of, load
from kvorum.processes import client_files
from store.client import ClientError, EtcdClient
from store.tls import NO_TLS, TlsFiles

TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One row. Unless ``state`` is "running", only ``name``, ``url``, ``pid`` and ``error`` mean something."""

    name: str
    url: str
    pid: int
    state: str
    role: str = ""
    term: int = 0
    revision: int = 0
    applied_index: int = 0
    db_size: int = 0
    alarms: tuple[str, ...] = ()
    error: str = ""


async def ask(member: Member, tls: TlsFiles = NO_TLS) -> MemberStatus:
    alive = member.process.alive()
    base = (member.name, member.client_url, member.process.pid if alive else 0)
    if not alive:
        return MemberStatus(*base, state="stopped")
    if member.process.paused():
        return MemberStatus(*base, state="paused")
    client = EtcdClient([member.client_url], tls=tls)
    try:
        answer = await client.status(timeout_s=TIMEOUT_S)
    except ClientError as error:
        return MemberStatus(*base, state="no answer", error=error.text)
    finally:
        await client.aclose()
    role = "learner" if answer.isLearner else "follower"
    if answer.leader == answer.header.member_id:
        role = "leader"
    elif not answer.leader:
        role = "no leader"
    return MemberStatus(
        *base,
        state="running",
        role=role,
        term=answer.raftTerm,
        revision=answer.header.revision,
        applied_index=answer.raftAppliedIndex,
        db_size=answer.dbSize,
        alarms=tuple(answer.errors),
    )


def _state(process: Process) -> str:
    if process.paused():
        return "paused"
    return "running" if process.alive() else "stopped"


async def status(args: Namespace, stop: asyncio.Event) -> int:
    cluster = load(directory_of(args.data_dir))
    tls = client_files(cluster)
    rows = await asyncio.gather(*(ask(member, tls) for member in cluster.members))
    api = _state(cluster.api.process)
    if args.json:
        document = {"members": [asdict(row) for row in rows], "api": {"url": cluster.api.url, "state": api}}
        print(json.dumps(document, indent=2))
        return 0
    header = ("NAME", "STATE", "ROLE", "TERM", "REVISION", "APPLIED", "DB SIZE", "ALARMS", "CLIENT URL")
    table = [header]
    for row in rows:
        up = row.state == "running"
        table.append(
            (
                row.name,
                row.state,
                row.role or "-",
                str(row.term) if up else "-",
                str(row.revision) if up else "-",
                str(row.applied_index) if up else "-",
                f"{row.db_size / 1024:.0f} KiB" if up else "-",
                "; ".join(row.alarms) or "-",
                row.url,
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(header))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print(f"API server {api} at {cluster.api.url}")
    return 0
