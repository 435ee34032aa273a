"""One member, whole: its files, its Raft, its state machine, its services; from start to a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from raft.config import DriverConfig
from raft.core.types import NO_NODE
from raft.driver import RaftDriver
from raft.slow_log import SlowLog
from raft.transport import TcpTransport
from store.api.context import ApiContext, ApiOptions, Plant
from store.api.front import ListenError, limits_of, listen, make_metrics_server, make_server
from store.application import MachineApplication
from store.bootstrap import DataDirError, Description, Opened, locked, open_member
from store.config import SLOW_DISK_FILE, MemberConfig, check, dial_address, listen_address
from store.errors import STOPPED, EtcdError
from store.etcdpb import internal_pb2
from store.lessor import Lessor
from store.listener import Server, ServerTls
from store.observations import Observations
from store.peer_tls import secure
from store.raft_replica import RaftReplica
from store.reconfiguration import Reconfiguration
from store.upkeep import Upkeep

log = logging.getLogger(__name__)

TRANSFER_TIMEOUT_S: Final = 0.8
"""How long a stopping leader waits for its successor; SIGTERM to exit stays under two seconds."""
CLIENT_GRACE_S: Final = 0.2
PUBLISH_RETRY_S: Final = 0.5
CONNECT_WAIT_S: Final = 5.0


@dataclass
class _Parts:
    config: MemberConfig
    opened: Opened
    application: MachineApplication
    driver: RaftDriver
    transport: TcpTransport
    replica: RaftReplica
    api: ApiContext
    lessor: Lessor
    server: Server
    metrics_server: Server
    upkeep: Upkeep


async def run(config: MemberConfig, stop: asyncio.Event, serving: Callable[[], None]) -> None:
    """Run a member until ``stop``. ``serving`` is called once clients and peers can connect.

    Raises ConfigError, DataDirError, ListenError or LogError before it serves, FatalError when it cannot go on.
    """
    check(config)
    with locked(config.member_dir):
        async with _assembled(config) as parts:
            await _run_parts(parts, stop, serving)


@contextlib.asynccontextmanager
async def _assembled(config: MemberConfig) -> AsyncIterator[_Parts]:
    """Open everything in order, and close it in the reverse order whatever happens."""
    async with contextlib.AsyncExitStack() as stack:
        opened = await open_member(config)
        stack.push_async_callback(opened.log.close)
        stack.push_async_callback(opened.machine.close)
        work_dir = config.member_dir / "snap"
        observations = Observations(config.slow_request_s, config.slow_apply_s)
        observations.last_sync_s = lambda: opened.log.last_sync_s
        application = MachineApplication(opened.machine, config.max_learners, work_dir, observations)
        loaded = await opened.log.load()
        await application.recover(loaded.snapshot)
        transport = TcpTransport(opened.identity, work_dir)
        driver = RaftDriver(
            _driver_config(config, opened.identity.member_id),
            SlowLog(opened.log, config.data_dir / SLOW_DISK_FILE) if config.takes_faults else opened.log,
            loaded,
            application,
            transport,
            random.Random(),
        )
        replica = RaftReplica(opened.identity, config, driver, transport, application)
        lessor = Lessor(opened.machine, replica)
        options = ApiOptions(
            config.max_request_bytes, config.max_txn_ops, config.quota_bytes, config.progress_notify_s
        )
        reconfiguration = Reconfiguration(replica, driver, transport, application, config.token)
        api = ApiContext(replica, opened.machine, lessor, options, reconfiguration, observations)
        server = make_server(api, limits_of(config, options.max_message_bytes))
        api.plant = Plant(
            log_sync=opened.log.sync_seconds,
            transport=transport,
            pending=lambda: driver.statistics()["waiters"],
            client_bytes=lambda: (server.received_bytes, server.sent_bytes),
        )
        replica.on_leader_change(lessor.leader_changed)
        replica.on_leader_change(observations.leader_changed)
        upkeep = Upkeep(config.upkeep, opened.machine, replica, transport, lessor)
        if config.peer_tls.given:
            secure(transport, config.peer_tls)
        await transport.start([listen_address(url) for url in config.listen_peer_urls], driver)
        stack.push_async_callback(transport.stop)
        yield _Parts(
            config,
            opened,
            application,
            driver,
            transport,
            replica,
            api,
            lessor,
            server,
            make_metrics_server(api),
            upkeep,
        )


def _driver_config(config: MemberConfig, number: int) -> DriverConfig:
    return DriverConfig(
        member_id=number,
        tick_s=config.heartbeat_ms / 1000,
        election_ticks=max(2, config.election_ms // config.heartbeat_ms),
        snapshot_count=config.snapshot_count,
        catch_up_entries=config.catch_up_entries,
        pre_vote=config.pre_vote,
    )


async def _run_parts(parts: _Parts, stop: asyncio.Event, serving: Callable[[], None]) -> None:
    removed = asyncio.Event()
    parts.application.on_membership = lambda: _follow_members(parts, removed)
    parts.transport.on_removed = removed.set
    parts.transport.describe = lambda: _describe(parts)
    _follow_members(parts, removed)
    try:
        parts.api.hold()
        files = parts.config.client_tls
        tls = ServerTls(files) if files.given else None
        await listen(parts.server, parts.config.listen_client_urls, tls)
        await listen(parts.metrics_server, parts.config.listen_metrics_urls, tls, "listen-metrics-urls")
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(parts.driver.run(), name="raft"),
                tasks.create_task(parts.transport.run(), name="peers"),
                tasks.create_task(parts.opened.machine.run(), name="machine"),
                tasks.create_task(parts.lessor.run(), name="lessor"),
                tasks.create_task(parts.api.catch_up(), name="catch-up"),
                tasks.create_task(_publish(parts), name="publish"),
            ]
            if parts.config.fast_start:
                running.append(tasks.create_task(_fast_start(parts), name="fast-start"))
            await _check_data(parts)
            running.append(tasks.create_task(parts.upkeep.run(), name="upkeep"))
            serving()
            await _stop_or_removed(parts, stop, removed)
            await _hand_over(parts)
            await parts.server.stop(CLIENT_GRACE_S, STOPPED.message)
            for task in running:
                task.cancel()
    finally:
        await parts.server.stop(None)
        await parts.metrics_server.stop(None)


def _follow_members(parts: _Parts, removed: asyncio.Event) -> None:
    """Talk to the members that there are now."""
    membership = parts.application.membership
    gone = membership.removed()
    parts.transport.set_removed(gone)
    if parts.opened.identity.member_id in gone:
        removed.set()
    members = membership.members() or parts.opened.peers
    targets = {}
    for member in members:
        addresses = [address for url in member.peer_urls if (address := dial_address(url)) is not None]
        if addresses:
            targets[member.id] = addresses[0]
        elif member.id != parts.opened.identity.member_id:
            log.error("member %x cannot be reached: none of %s is a peer URL", member.id, list(member.peer_urls))
    parts.transport.set_peers(targets)


def _describe(parts: _Parts) -> bytes:
    membership = parts.application.membership
    identity = parts.opened.identity
    return Description(identity.cluster_id, membership.members(), sorted(membership.removed())).encode()


async def _stop_or_removed(parts: _Parts, stop: asyncio.Event, removed: asyncio.Event) -> None:
    """Return when it is time to stop; a removed member first gives its last messages time to leave."""
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(removed.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if removed.is_set():
            log.warning("this member was removed from the cluster: it stops, and its data may be deleted")
            async with asyncio.timeout(parts.driver.config.election_s):
                await stop.wait()
    except TimeoutError:
        return
    finally:
        for wait in waits:
            wait.cancel()


async def _check_data(parts: _Parts) -> None:
    """Compare this member's data with that of the others before it says that it serves, if that is asked for."""
    if parts.config.upkeep.initial_corrupt_check:
        others = len(parts.application.membership.members()) - 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_WAIT_S):
                await parts.transport.wait_connected(others)
        await parts.upkeep.check_start()


async def _fast_start(parts: _Parts) -> None:
    """Do not wait a whole election timeout after a start: with peers connected, leave two ticks to hear a
    leader; alone, one (etcd's initial-election-tick-advance)."""
    voters = parts.application.membership.voters()
    ticks = parts.driver.config.election_ticks
    if len(voters) > 1:
        try:
            async with asyncio.timeout(CONNECT_WAIT_S):
                await parts.transport.wait_connected(len(voters) // 2)
        except TimeoutError:
            return
    if parts.driver.leader_id == NO_NODE:
        parts.driver.advance_ticks(ticks - (1 if len(voters) == 1 else 2))


async def _publish(parts: _Parts) -> None:
    """Tell the cluster this member's name and client URLs, if it does not know them yet."""
    config, own = parts.config, parts.opened.identity.member_id
    urls = tuple(config.advertise_client_urls)
    while True:
        member = parts.application.membership.get(own)
        if member is not None and (member.name, tuple(member.client_urls)) == (config.name, urls):
            return
        attributes = internal_pb2.MemberAttributes(member_id=own, name=config.name, client_urls=urls)
        try:
            await parts.replica.propose(internal_pb2.InternalRequest(member_attributes=attributes))
        except EtcdError as error:
            log.info("publishing this member's client URLs will be repeated: %s", error)
            await asyncio.sleep(PUBLISH_RETRY_S)


async def _hand_over(parts: _Parts) -> None:
    """A leader that stops lets another member lead first: clients then wait for a message, not an election."""
    driver, own = parts.driver, parts.opened.identity.member_id
    if not driver.is_leader:
        return
    candidates = [
        (since, number)
        for number in parts.application.membership.voters()
        if number != own and (since := parts.transport.active_since(number)) is not None
    ]
    if not candidates:
        return
    moved = asyncio.Event()
    driver.on_leader_change(lambda leader, leading: None if leading or leader == NO_NODE else moved.set())
    driver.transfer_leader(min(candidates)[1])
    try:
        async with asyncio.timeout(TRANSFER_TIMEOUT_S):
            await moved.wait()
    except TimeoutError:
        log.warning("no other member took over in %.1f s; stopping as leader", TRANSFER_TIMEOUT_S)


__all__ = ["DataDirError", "ListenError", "run"]
