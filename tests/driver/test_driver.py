"""The driver's promises, in virtual time: outcomes, reads, configuration changes, backpressure, hand-over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from chaos import virtual
from chaos.disk import SimulatedLog
from raft.config import DriverConfig
from raft.core.types import ConfChange, ConfChangeType, ConfChangeV2, ConfState, HardState, Role, Snapshot
from raft.driver import RaftDriver
from raft.errors import (
    ConfChangeRefused,
    FatalError,
    LeaderChanged,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    Refused,
    Stopped,
)
from raft.log import LoadedLog
from tests.driver.virtual_cluster import IDS, Journal, Port, VirtualCluster, Wire, cluster, new_disks

Scenario = Callable[[VirtualCluster], Awaitable[None]]


def in_cluster(scenario: Scenario, seed: int = 1) -> None:
    async def body() -> None:
        async with cluster(new_disks(seed), seed) as running:
            await scenario(running)
            assert running.failures == {}

    virtual.run(body())


def follower_of(running: VirtualCluster, leader: RaftDriver) -> RaftDriver:
    return next(driver for driver in running.wire.nodes.values() if driver is not leader)


def add_learner(node: int, payload: bytes = b"") -> ConfChangeV2:
    return ConfChangeV2((ConfChange(ConfChangeType.ADD_LEARNER, node),), context=payload)


def test_a_proposal_returns_what_applying_it_here_returned() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        index, payload = await leader.propose(b"v")
        assert payload == b"v"
        assert running.journals[leader.config.member_id].applied_index == index

    in_cluster(scenario)


def test_proposals_at_a_follower_are_forwarded_and_answered_there() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        answers = await asyncio.gather(*(follower_of(running, leader).propose(b"%d" % n) for n in range(50)))
        assert sorted(payload for _, payload in answers) == sorted(b"%d" % n for n in range(50))

    in_cluster(scenario)


def test_what_arrives_during_one_sync_becomes_one_batch() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        before = leader.statistics()["log_syncs"]
        await asyncio.gather(*(leader.propose(b"%d" % n) for n in range(500)))
        assert leader.statistics()["log_syncs"] - before <= 4

    in_cluster(scenario)


def test_a_proposal_without_any_leader_is_refused_and_never_applied() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        alone = follower_of(running, leader)
        running.wire.isolate(alone.config.member_id)
        while alone.leader_id:
            running._changed.clear()
            await running._changed.wait()
        with pytest.raises(NoLeader):
            await alone.propose(b"ghost")
        running.wire.heal()
        await running.settle()
        assert all(b"ghost" not in journal.values for journal in running.journals.values())

    in_cluster(scenario)


def test_proposals_wait_while_the_leader_is_known_to_be_gone_and_succeed_under_the_next_one() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        follower = follower_of(running, leader)
        await follower.read_barrier()
        await running.stop(leader.config.member_id)
        assert follower.leader_id == leader.config.member_id, "it has not noticed yet"
        _, payload = await follower.propose(b"patient")
        assert payload == b"patient"

    in_cluster(scenario)


def test_a_proposal_made_before_there_is_a_leader_waits_for_one() -> None:
    async def scenario(running: VirtualCluster) -> None:
        early = running.wire.nodes[1]
        assert early.leader_id == 0
        _, payload = await early.propose(b"early")
        assert payload == b"early"

    in_cluster(scenario)


def test_a_proposal_that_the_core_drops_is_refused_at_once() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        target = follower_of(running, leader).config.member_id
        running.wire.isolate(target)
        leader.transfer_leader(target)
        with pytest.raises(Refused, match="raft proposal dropped"):
            await leader.propose(b"during the transfer")
        running.wire.heal()

    in_cluster(scenario)


def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        running.wire.isolate(leader.config.member_id)
        write = asyncio.create_task(leader.propose(b"never mind"))
        await asyncio.sleep(0.01)  # virtual
        write.cancel()
        await asyncio.wait((write,))
        assert leader.statistics()["waiters"] == 0
        running.wire.heal()

    in_cluster(scenario)


def test_what_is_withdrawn_before_a_leader_takes_it_is_never_proposed() -> None:
    """Its client was told that the time is over; it must not be written minutes later."""

    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        follower = follower_of(running, leader)
        running.wire.isolate(follower.config.member_id)
        outcomes: list[object] = []
        kept, withdrawn = (follower.submit(value, outcomes.append) for value in (b"kept", b"withdrawn"))
        assert kept != withdrawn
        follower.withdraw(withdrawn)
        running.wire.heal()
        await running.settle()
        await leader.propose(b"later")
        await running.settle()
        values = running.journals[leader.config.member_id].values
        assert b"kept" in values
        assert b"withdrawn" not in values
        assert len(outcomes) == 1

    in_cluster(scenario)


def test_a_waiter_that_fails_costs_nobody_else_anything() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()

        def fail(_outcome: object) -> None:
            raise ValueError("on purpose")

        leader.submit(b"one", fail)
        await leader.propose(b"two")
        assert running.journals[leader.config.member_id].values[-2:] == [b"one", b"two"]

    in_cluster(scenario)


def test_m49_a_proposal_that_left_and_was_not_answered_is_unknown_and_applied_at_most_once() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        running.wire.isolate(leader.config.member_id)
        with pytest.raises(OutcomeUnknown):
            await leader.propose(b"maybe")
        running.wire.heal()
        await running.settle()
        for journal in running.journals.values():
            assert journal.values.count(b"maybe") <= 1

    in_cluster(scenario)


def test_stopping_answers_everyone_who_waits() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        running.wire.isolate(leader.config.member_id)
        write = asyncio.create_task(leader.propose(b"w"))
        read = asyncio.create_task(leader.read_barrier())
        await asyncio.sleep(0.1)  # virtual
        await running.stop(leader.config.member_id)
        with pytest.raises(OutcomeUnknown):
            await write
        with pytest.raises(Stopped):
            await read
        with pytest.raises(Stopped):
            await leader.propose(b"late")

    in_cluster(scenario)


def test_too_much_committed_and_unapplied_pushes_back() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        journal = running.journals[leader.config.member_id]
        journal.applied_index -= leader.config.max_unapplied_entries + 1
        with pytest.raises(Overloaded):
            await leader.propose(b"v")
        journal.applied_index += leader.config.max_unapplied_entries + 1

    in_cluster(scenario)


def test_a_read_barrier_sees_every_write_acknowledged_before_it_on_every_member() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        for number in range(20):
            value = b"%d" % number
            await leader.propose(value)
            reader = running.wire.nodes[IDS[number % 3]]
            await reader.read_barrier()
            assert value in running.journals[reader.config.member_id].values

    in_cluster(scenario)


def test_m42_a_new_leader_serves_no_read_before_its_backlog_is_applied() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        for number in range(30):
            await leader.propose(b"%d" % number)
        await running.stop(leader.config.member_id)
        successor = await running.leader()
        await successor.read_barrier()
        assert running.journals[successor.config.member_id].values[-1] == b"29"

    in_cluster(scenario)


def test_m09_a_single_restarted_node_reads_nothing_before_it_has_replayed_its_log() -> None:
    async def body() -> None:
        disks = new_disks(1)
        start = Snapshot(1, 1, ConfState((1,)))
        SimulatedLog.create(disks[1], start)
        for expected in (0, 1, 2):
            wire = Wire(random.Random(expected))
            log, journal = SimulatedLog(disks[1]), Journal()
            journal.conf_state = start.conf_state
            driver = RaftDriver(DriverConfig(1), log, await log.load(), journal, Port(wire, 1), random.Random(2))
            task = asyncio.create_task(driver.run())
            await driver.read_barrier()
            assert len(journal.values) == expected
            await driver.propose(b"one more")
            task.cancel()
            await asyncio.wait((task,))

    virtual.run(body())


def test_m11_readers_that_wait_at_an_old_leader_are_told_that_it_changed() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        old = leader.config.member_id
        running.wire.isolate(old)
        read = asyncio.create_task(leader.read_barrier())
        await asyncio.sleep(0)
        successor = await running.leader()
        assert successor.config.member_id != old
        running.wire.heal()
        with pytest.raises(LeaderChanged):
            await read

    in_cluster(scenario)


def test_m41_two_membership_changes_one_after_the_other_both_succeed() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        first = await leader.propose_conf_change(add_learner(8))
        second = await leader.propose_conf_change(add_learner(9))
        assert first.learners == (8,)
        assert second.learners == (8, 9)

    in_cluster(scenario)


def test_nothing_is_applied_after_a_membership_change_until_that_is_durable() -> None:
    """A power loss may take back what was applied and not saved: of changes the last one at most, or majorities of
    the configuration it brings back need not meet those of the present one."""

    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        journal, saved = running.journals[leader.config.member_id], asyncio.Event()
        journal.make_durable = saved.wait  # type: ignore[assignment, method-assign]
        await leader.propose_conf_change(add_learner(8))
        later = asyncio.create_task(leader.propose(b"later"))
        with pytest.raises(ConfChangeRefused, match="pending"):
            await leader.propose_conf_change(add_learner(9))
        await asyncio.sleep(1.0)
        assert journal.conf_state.learners == (8,)
        assert b"later" not in journal.values
        saved.set()
        await later
        assert journal.values[-1] == b"later"
        assert (await leader.propose_conf_change(add_learner(9))).learners == (8, 9)

    in_cluster(scenario)


def test_m47_a_change_proposed_while_another_is_pending_is_refused_to_its_proposer() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        first = asyncio.create_task(leader.propose_conf_change(add_learner(8)))
        second = asyncio.create_task(leader.propose_conf_change(add_learner(9)))
        with pytest.raises(ConfChangeRefused, match="pending"):
            await second
        assert (await first).learners == (8,)

    in_cluster(scenario)


def test_a_change_that_arrives_forwarded_stays_a_change() -> None:
    """Its proposer may have lost the leadership between asking and proposing."""

    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        follower = follower_of(running, leader)
        await follower.read_barrier()
        follower._node.propose_conf_change(add_learner(8, b"fine"))
        follower._schedule()
        await asyncio.sleep(0.5)  # virtual
        assert leader.status().config.learners == (8,)
        assert all(b"fine" not in value for value in running.journals[leader.config.member_id].values)

    in_cluster(scenario)


def test_a_change_the_application_refuses_changes_nothing_on_any_member() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        with pytest.raises(ValueError, match="refused by the application"):
            await leader.propose_conf_change(add_learner(8, b"refuse"))
        await running.settle()
        assert all(driver.status().config.learners == () for driver in running.wire.nodes.values())
        assert (await leader.propose_conf_change(add_learner(9, b"fine"))).learners == (9,)

    in_cluster(scenario)


def test_only_the_leader_changes_the_configuration() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        with pytest.raises(NotLeader):
            await follower_of(running, leader).propose_conf_change(add_learner(8))

    in_cluster(scenario)


def test_m21_what_a_leader_proposes_as_leader_is_never_left_to_its_successor() -> None:
    """Its disk hangs, so proposals wait; then another leads, and those of clients are forwarded to it."""

    async def scenario(running: VirtualCluster) -> None:
        old = await running.leader()
        stall = running.disks[old.config.member_id].stall = asyncio.Event()
        written = asyncio.ensure_future(old.propose(b"hangs in the log"))
        await asyncio.sleep(0.01)  # virtual
        waiting = asyncio.ensure_future(old.propose(b"of a client"))
        own = asyncio.ensure_future(old.propose(b"revoke", as_leader=True))
        old.transfer_leader(follower_of(running, old).config.member_id)
        with pytest.raises(NotLeader):
            await own
        stall.set()
        await asyncio.gather(written, waiting)
        await running.settle()
        assert all(b"of a client" in journal.values for journal in running.journals.values())
        assert all(b"revoke" not in journal.values for journal in running.journals.values())

    in_cluster(scenario)


def test_m21_a_follower_proposes_nothing_as_leader() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        with pytest.raises(NotLeader):
            await follower_of(running, leader).propose(b"revoke", as_leader=True)
        assert (await leader.propose(b"revoke", as_leader=True))[1] == b"revoke"

    in_cluster(scenario)


def test_leadership_moves_when_asked_and_writes_go_on() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        target = follower_of(running, leader)
        await leader.propose(b"before")
        leader.transfer_leader(target.config.member_id)
        while not target.is_leader:
            running._changed.clear()
            await running._changed.wait()
        await leader.propose(b"after, forwarded")

    in_cluster(scenario)


def test_m31_a_transfer_to_a_member_that_is_cut_off_is_given_up_and_writes_go_on() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        target = follower_of(running, leader).config.member_id
        running.wire.isolate(target)
        leader.transfer_leader(target)
        await asyncio.sleep(leader.config.election_s * 2)  # virtual
        assert leader.is_leader
        await leader.propose(b"still here")

    in_cluster(scenario)


def test_a_leader_that_loses_its_quorum_steps_down_within_two_election_timeouts() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        running.wire.isolate(leader.config.member_id)
        async with asyncio.timeout(2.5 * leader.config.election_s):
            while leader.is_leader:
                running._changed.clear()
                await running._changed.wait()

    in_cluster(scenario)


def test_a_member_that_returns_does_not_disturb_the_leader() -> None:
    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        term = leader.term
        away = follower_of(running, leader).config.member_id
        running.wire.isolate(away)
        await asyncio.sleep(20.0)  # virtual: it asks for votes in vain, many times
        running.wire.heal()
        await running.settle()
        assert leader.is_leader
        assert leader.term == term

    in_cluster(scenario)


def test_a_late_tick_is_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was paused must not believe at once that everyone else fell silent (M21)."""

    async def scenario(running: VirtualCluster) -> None:
        leader = await running.leader()
        follower = follower_of(running, leader)
        elapsed = follower.status().election_elapsed
        follower._next_tick -= 60.0
        follower._on_tick()
        assert follower.status().election_elapsed == elapsed + 1
        assert follower.late_ticks == 1
        assert not follower.is_leader

    in_cluster(scenario)


def test_a_state_that_is_ahead_of_its_log_or_behind_it_is_refused() -> None:
    async def body() -> None:
        for applied in (0, 7):
            log = SimulatedLog(new_disks(1)[1])
            journal = Journal()
            journal.applied_index = applied
            loaded = LoadedLog(HardState(1, 0, 1), Snapshot(1, 1, ConfState(IDS)), [])
            port = Port(Wire(random.Random(1)), 1)
            with pytest.raises(FatalError, match="one of the two files was replaced or lost"):
                RaftDriver(DriverConfig(1), log, loaded, journal, port, random.Random(1))

    virtual.run(body())


def test_an_application_that_raises_ends_the_member() -> None:
    async def body() -> None:
        async with cluster(new_disks(2), 2) as running:
            leader = await running.leader()
            node = leader.config.member_id
            running.journals[node].values = None  # type: ignore[assignment]
            write = asyncio.create_task(leader.propose(b"v"))
            with pytest.raises(OutcomeUnknown):
                await write
            assert node in running.failures
            assert (await running.leader()).config.member_id != node

    virtual.run(body())


def test_runs_in_virtual_time_repeat_exactly() -> None:
    def once() -> list[tuple[int, int, Role]]:
        seen: list[tuple[int, int, Role]] = []

        async def body() -> None:
            async with cluster(new_disks(9), 9) as running:
                leader = await running.leader()
                for number in range(20):
                    await leader.propose(b"%d" % number)
                running.wire.isolate(leader.config.member_id)
                await running.leader()
                running.wire.heal()
                await running.settle()
                seen.extend(
                    (driver.term, driver.commit_index, driver.status().role)
                    for driver in running.wire.nodes.values()
                )

        virtual.run(body())
        return seen

    assert once() == once()
