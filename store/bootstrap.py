"""From a data directory and flags to a member that can start: new, or as it was before (contract §25).

Files of a member, under DIR/member: ``lock`` (one process at a time), ``state.db``, ``raft.db``, ``snap/``.
raft.db is made last and moved into place, so a directory without it has never acknowledged anything.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raft.core.types import ConfState, Snapshot
from raft.log import Identity
from raft.sqlite_log import SqliteLog
from store.application import CONF_STATE_KEY, MachineApplication
from store.cluster import MEMBERS, cluster_id, encode_conf_state, encode_member, member_id, member_key
from store.config import ConfigError, MemberConfig
from store.machine import META, Machine
from store.replica import MemberInfo

FIRST_INDEX: Final = 1
FIRST_TERM: Final = 1

_REPLACE: Final = (
    "if this member is lost, remove it from the cluster, delete its data directory and add it again; "
    "its peers hold the data"
)


class DataDirError(Exception):
    """The data directory cannot be used; the message names the file and what to do."""


@dataclass
class Opened:
    """A member's files, open."""

    identity: Identity
    machine: Machine
    log: SqliteLog
    is_new: bool


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process. Raises DataDirError when another process has it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DataDirError(f"{directory}: {error.strerror}; choose a --data-dir this user can write") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataDirError(
                f"{directory} is in use by another member process; stop it or choose another --data-dir"
            ) from None
        yield
    finally:
        os.close(descriptor)


async def open_member(config: MemberConfig) -> Opened:
    """Open what is there, or make a new member. Raises DataDirError, ConfigError or raft.errors.LogError."""
    directory = config.member_dir
    snap = directory / "snap"
    snap.mkdir(exist_ok=True)
    raft_db, state_db = directory / "raft.db", directory / "state.db"
    if raft_db.exists():
        return await _reopen(config, raft_db, state_db)
    if config.joining:
        raise ConfigError("--initial-cluster-state existing: joining a running cluster is not built yet")
    _remove(state_db)
    return await _create(config, raft_db, state_db)


async def _reopen(config: MemberConfig, raft_db: Path, state_db: Path) -> Opened:
    log = await SqliteLog.open_existing(raft_db)
    try:
        machine = await _open_state(state_db)
    except BaseException:
        await log.close()
        raise
    try:
        _check_owner(config, log.identity, MachineApplication(machine, config.max_learners))
    except BaseException:
        await machine.close()
        await log.close()
        raise
    return Opened(log.identity, machine, log, is_new=False)


async def _open_state(state_db: Path) -> Machine:
    if not state_db.exists():
        raise DataDirError(f"{state_db}: the state database is missing beside a raft log; {_REPLACE}")
    try:
        return await Machine.open(state_db)
    except (sqlite3.Error, ValueError, KeyError) as error:
        raise DataDirError(f"{state_db}: the state database is damaged ({error}); {_REPLACE}") from error


def _check_owner(config: MemberConfig, identity: Identity, application: MachineApplication) -> None:
    """Refuse the directory of another member: two members must never run with one identity."""
    member = application.membership.get(identity.member_id)
    if member is not None and member.name and member.name != config.name:
        raise DataDirError(
            f"{config.data_dir} belongs to member {member.name!r} of cluster {identity.cluster_id:x}, not to "
            f"{config.name!r}: use the --data-dir of {config.name!r}, or an empty one"
        )
    own = config.initial_cluster.get(config.name, ())
    if member is not None and own and sorted(own) != sorted(member.peer_urls):
        ids = {member_id(urls, config.token) for urls in config.initial_cluster.values()}
        if identity.cluster_id != cluster_id(ids) and not set(own) & set(member.peer_urls):
            raise DataDirError(
                f"{config.data_dir} belongs to a member with peer URLs {','.join(member.peer_urls)} of cluster "
                f"{identity.cluster_id:x}, not to {','.join(own)}: use another --data-dir"
            )


async def _create(config: MemberConfig, raft_db: Path, state_db: Path) -> Opened:
    """A member of a new cluster. Every initial member computes the same ids, members and first position."""
    members = [
        MemberInfo(member_id(urls, config.token), name, tuple(sorted(urls)), ())
        for name, urls in config.initial_cluster.items()
    ]
    ids = {member.id for member in members}
    if len(ids) != len(members):
        raise ConfigError("--initial-cluster: two members have the same peer URLs")
    own = next(member.id for member in members if member.name == config.name)
    identity = Identity(cluster_id(ids), own)
    machine = await Machine.open(state_db)
    try:
        conf_state = ConfState(voters=tuple(sorted(ids)))
        writes: dict[tuple[str, bytes], bytes | None] = {
            (MEMBERS, member_key(member.id)): encode_member(member) for member in members
        }
        writes[META, CONF_STATE_KEY] = encode_conf_state(conf_state)
        machine.apply_system(FIRST_INDEX, FIRST_TERM, writes)
        await machine.flush()
        await machine.checkpoint()
        log = await _create_log(raft_db, identity, Snapshot(FIRST_INDEX, FIRST_TERM, conf_state))
    except BaseException:
        await machine.close()
        raise
    return Opened(identity, machine, log, is_new=True)


async def _create_log(path: Path, identity: Identity, start: Snapshot) -> SqliteLog:
    """Make the log beside its place, close it (which folds its WAL into the file), and move it there."""
    temporary = path.with_suffix(".new")
    _remove(temporary)
    log = await SqliteLog.create(temporary, identity, start)
    await log.close()
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return await SqliteLog.open_existing(path, identity)


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
