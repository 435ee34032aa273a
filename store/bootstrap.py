"""From a data directory and flags to a member that can start: new, or as it was before (contract §25).

Files of a member, under DIR/member: ``lock`` (one process at a time), ``state.db``, ``raft.db``,
``raft.db-tail`` (its newest writes), ``snap/``.
raft.db is made last and moved into place, so a directory without it has never acknowledged anything.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgpack

from raft.core.confchange import encode as encode_conf_change
from raft.core.types import ConfState, Entry, Snapshot
from raft.log import Identity, LogWrite
from raft.sqlite import is_disk_trouble, sync_directory
from raft.sqlite_log import SqliteLog
from raft.transport import describe
from raft.waiters import ID_BYTES
from store.application import membership_of
from store.backend import StateDiskError
from store.cluster import (
    MEMBERS,
    ChangeKind,
    MemberChange,
    Membership,
    cluster_id,
    decode_member,
    encode_conf_state,
    encode_member,
    member_id,
    member_key,
)
from store.config import ConfigError, MemberConfig, dial_address
from store.images import CONF_STATE_KEY
from store.machine import META, Machine
from store.replica import MemberInfo
from store.state import read_applied
from store.tls import client_context

DESCRIBE_TIMEOUT_S: Final = 1.0
PEERS_FILE: Final = "peers.json"
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
    peers: Sequence[MemberInfo] = ()
    """The members that a joining one was told of: who to talk to until its own state knows better."""


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
        opened = await _reopen(config, raft_db, state_db)
        if not membership_of(opened.machine).members():
            opened.peers = _load_peers(directory)
        if config.force_new_cluster:
            await stand_alone(opened)
        return opened
    if config.force_new_cluster:
        raise DataDirError(f"--force-new-cluster: {directory} holds no member to start from")
    await asyncio.to_thread(_refuse_state_without_log, raft_db, state_db)
    _remove(state_db)
    known = await ask_peers(config)
    if config.joining:
        return await _join(config, known, raft_db, state_db)
    return await _create(config, known, raft_db, state_db)


def _refuse_state_without_log(raft_db: Path, state_db: Path) -> None:
    """A state that has applied more than its own beginning had a log, with votes and acknowledgements in it.

    Starting over would break promises; only what an interrupted first start left may be replaced.
    """
    if not state_db.exists():
        return
    try:
        applied, _ = read_applied(state_db)
    except sqlite3.Error as error:
        if is_disk_trouble(error):
            raise StateDiskError(state_db, error) from error
        if "no such table" not in str(error):
            raise DataDirError(
                f"{state_db}: not a state database ({error}), and {raft_db} is missing; {_REPLACE}"
            ) from None
        applied = 0
    if applied > FIRST_INDEX:
        raise DataDirError(f"{raft_db}: the raft log is missing beside a state database; {_REPLACE}")


async def _reopen(config: MemberConfig, raft_db: Path, state_db: Path) -> Opened:
    log = await SqliteLog.open_existing(raft_db)
    try:
        machine = await _open_state(state_db)
    except BaseException:
        await log.close()
        raise
    try:
        _check_owner(config, log.identity, membership_of(machine))
    except BaseException:
        await machine.close()
        await log.close()
        raise
    return Opened(log.identity, machine, log)


async def _open_state(state_db: Path) -> Machine:
    if not state_db.exists():
        raise DataDirError(f"{state_db}: the state database is missing beside a raft log; {_REPLACE}")
    try:
        return await Machine.open(state_db)
    except (sqlite3.Error, ValueError, KeyError) as error:
        if is_disk_trouble(error):
            raise StateDiskError(state_db, error) from error
        raise DataDirError(f"{state_db}: the state database is damaged ({error}); {_REPLACE}") from error


def _check_owner(config: MemberConfig, identity: Identity, membership: Membership) -> None:
    """Refuse the directory of another member: two members must never run with one identity."""
    member = membership.get(identity.member_id)
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


async def _create(config: MemberConfig, known: Sequence[Description], raft_db: Path, state_db: Path) -> Opened:
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
    _refuse_second_bootstrap(config, identity, known)
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
    return Opened(identity, machine, log)


def _refuse_second_bootstrap(config: MemberConfig, identity: Identity, known: Sequence[Description]) -> None:
    """A member that lost its data must not come back as itself: it may have voted, and acknowledged (M39)."""
    for description in known:
        if description.cluster_id != identity.cluster_id:
            continue
        if identity.member_id in description.removed:
            raise DataDirError(
                f"member {config.name!r} ({identity.member_id:x}) was removed from cluster "
                f"{identity.cluster_id:x}; add it again, then start it with --initial-cluster-state existing"
            )
        for member in description.members:
            if member.id == identity.member_id and member.client_urls:
                raise DataDirError(
                    f"member {config.name!r} ({identity.member_id:x}) has run before, but {config.data_dir} has "
                    "no raft log: remove it from the cluster, add it again, and start it with "
                    "--initial-cluster-state existing"
                )


async def _join(config: MemberConfig, known: Sequence[Description], raft_db: Path, state_db: Path) -> Opened:
    """A member that was added to a running cluster: it takes its id from there, and the data with a snapshot."""
    if not known:
        raise DataDirError(
            "--initial-cluster-state existing: no other member of --initial-cluster answers; "
            "check their peer URLs and that the cluster runs"
        )
    description = known[0]
    own = next((m for m in description.members if set(m.peer_urls) == set(config.advertise_peer_urls)), None)
    if own is None:
        raise DataDirError(
            f"cluster {description.cluster_id:x} has no member with peer URLs "
            f"{','.join(config.advertise_peer_urls)}: add it first ('etcdctl member add')"
        )
    if own.client_urls:
        raise DataDirError(
            f"member {own.name!r} ({own.id:x}) with these peer URLs has run before: remove it and add it again"
        )
    if len(description.members) != len(config.initial_cluster):
        raise ConfigError(
            f"--initial-cluster has {len(config.initial_cluster)} members, the running cluster "
            f"{len(description.members)}"
        )
    identity = Identity(description.cluster_id, own.id)
    _save_peers(raft_db.parent, description.members)
    machine = await Machine.open(state_db)
    try:
        log = await _create_log(raft_db, identity, Snapshot())
    except BaseException:
        await machine.close()
        raise
    return Opened(identity, machine, log, peers=description.members)


@dataclass(frozen=True, slots=True)
class Description:
    """What a running member says of its cluster to whoever asks on the peer port."""

    cluster_id: int
    members: Sequence[MemberInfo]
    removed: Sequence[int]

    def encode(self) -> bytes:
        return bytes(
            msgpack.packb((self.cluster_id, [encode_member(member) for member in self.members], self.removed))
        )

    @classmethod
    def decode(cls, data: bytes) -> Description:
        number, members, removed = msgpack.unpackb(data)
        return cls(number, [decode_member(member) for member in members], removed)


async def ask_peers(config: MemberConfig) -> list[Description]:
    """What the other members of --initial-cluster say, as far as they run."""
    urls = [url for name, own in config.initial_cluster.items() if name != config.name for url in own]
    targets = [address for url in urls if (address := dial_address(url)) is not None]

    files = config.peer_tls
    client_ssl = client_context(files) if files.given else None

    async def ask(target: str) -> Description | None:
        try:
            return Description.decode(await describe(target, DESCRIBE_TIMEOUT_S, client_ssl))
        except (OSError, TimeoutError, ValueError, TypeError):
            return None  # not running, or not a member of ours: it says nothing

    answers = await asyncio.gather(*(ask(target) for target in targets))
    return [answer for answer in answers if answer is not None and answer.members]


def _save_peers(directory: Path, members: Sequence[MemberInfo]) -> None:
    documents = [json.loads(encode_member(member)) for member in members]
    temporary = directory / f"{PEERS_FILE}.new"
    with temporary.open("w") as file:
        json.dump(documents, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / PEERS_FILE)


def _load_peers(directory: Path) -> list[MemberInfo]:
    path = directory / PEERS_FILE
    if not path.exists():
        return []
    try:
        return [decode_member(json.dumps(document).encode()) for document in json.loads(path.read_text())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataDirError(f"{path} is damaged ({error}); {_REPLACE}") from None


async def stand_alone(opened: Opened) -> None:
    """--force-new-cluster: the only member of a cluster from now on (contract §26).

    What is committed stays; what may not be is dropped. The other members leave through entries that count as
    committed, so the change is in the log like any other.
    """
    loaded = await opened.log.load()
    commit = max(loaded.hard_state.commit, opened.machine.applied_index)
    term = max(loaded.hard_state.term, opened.machine.applied_term)
    own = opened.identity.member_id
    members = membership_of(opened.machine).members()
    changes = [
        MemberChange(ChangeKind.PROMOTE, own) for member in members if member.id == own and member.is_learner
    ]
    changes += [MemberChange(ChangeKind.REMOVE, member.id) for member in members if member.id != own]
    entries = []
    for index, change in enumerate(changes, commit + 1):
        conf_change = change.conf_change()
        kind, data = encode_conf_change(conf_change._replace(context=bytes(ID_BYTES) + conf_change.context))
        entries.append(Entry(term, index, kind, data))
    hard_state = loaded.hard_state._replace(term=term, commit=commit + len(entries))
    await opened.log.write([LogWrite(entries, hard_state)])


async def _create_log(path: Path, identity: Identity, start: Snapshot) -> SqliteLog:
    """Make the log beside its place, in one file, and move it there."""
    temporary = path.with_suffix(".new")
    _remove(temporary)
    await SqliteLog.create(temporary, identity, start)
    temporary.replace(path)
    sync_directory(path.parent)
    return await SqliteLog.open_existing(path, identity)


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
