"""Lease clocks run on the leader only, and give at least the time that was granted (contract §7)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.errors import LEASE_EXISTS, LEASE_NOT_FOUND, LEASE_TTL_TOO_LARGE, EtcdError
from store.etcdpb import internal_pb2, rpc_pb2
from store.lessor import REVOKE_RETRY_S, REVOKES_PER_CHECK, SPREAD_PER_S, Lessor
from tests.store.driver import Driver
from tests.store.loopback import LoopbackReplica
from tests.store.watching import Client, summary


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A machine, a lessor and a clock that is moved by hand."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.clock = Clock()
        self.replica = LoopbackReplica(driver.machine)
        self.lessor = Lessor(driver.machine, self.replica, self.clock)
        self.replica.on_leader_change(self.lessor.leader_changed)

    def lead(self, leading: bool = True) -> None:
        self.replica.set_leader(self.replica.member_id if leading else 99)

    def grant(self, lease_id: int, ttl_s: int = 10) -> None:
        self.driver.apply(rpc_pb2.LeaseGrantRequest(ID=lease_id, TTL=ttl_s))

    def remaining(self, lease_id: int) -> int:
        return self.lessor.time_to_live(lease_id, with_keys=False).remaining_s


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Driver(tmp_path / "state.db") as driver:
        yield Bench(driver)


def test_spread_lets_few_leases_end_in_one_second() -> None:
    from store.lessor import _spread

    ends = [end for end, _ in _spread([(10.0, i) for i in range(3000)])]
    assert ends == sorted(ends)
    assert all(ends[i + SPREAD_PER_S] - ends[i] >= 1.0 for i in range(len(ends) - SPREAD_PER_S))


async def test_a_lease_expires_at_its_ttl_and_not_before(bench: Bench) -> None:
    bench.lead()
    bench.grant(1, ttl_s=10)
    bench.clock.now += 9.9
    assert bench.lessor.take_expired() == []
    bench.clock.now += 0.1
    assert bench.lessor.take_expired() == [1]


async def test_a_renewal_restarts_the_full_ttl(bench: Bench) -> None:
    bench.lead()
    bench.grant(1, ttl_s=10)
    bench.clock.now += 8
    assert await bench.lessor.renew(1) == 10
    bench.clock.now += 9
    assert (bench.lessor.take_expired(), bench.remaining(1)) == ([], 1)
    bench.clock.now += 1
    assert bench.lessor.take_expired() == [1]


async def test_renewing_a_lease_that_does_not_exist_gives_zero(bench: Bench) -> None:
    bench.lead()
    assert await bench.lessor.renew(404) == 0


async def test_renewing_past_the_end_waits_for_the_revoke_and_gives_zero(bench: Bench) -> None:
    bench.lead()
    bench.grant(1, ttl_s=10)
    bench.clock.now += 11
    renewal = asyncio.create_task(bench.lessor.renew(1))
    await asyncio.sleep(0)
    assert not renewal.done()
    bench.driver.apply(rpc_pb2.LeaseRevokeRequest(ID=1))
    assert await renewal == 0


async def test_nothing_expires_on_a_follower(bench: Bench) -> None:
    bench.lead(False)
    bench.grant(1)
    bench.clock.now += 1e6
    assert bench.lessor.take_expired() == []


async def test_a_new_leader_restarts_every_lease_with_an_election_timeout_added(bench: Bench) -> None:
    bench.lead(False)
    bench.grant(1, ttl_s=10)
    bench.clock.now += 100
    bench.lead()
    bench.clock.now += 10 + bench.replica.election_timeout_s - 0.1
    assert bench.lessor.take_expired() == []
    bench.clock.now += 0.1
    assert bench.lessor.take_expired() == [1]


async def test_a_new_leader_goes_on_from_a_checkpoint_and_a_renewal_clears_it(bench: Bench) -> None:
    bench.grant(1, ttl_s=100)
    checkpoint = rpc_pb2.LeaseCheckpoint(ID=1, remaining_TTL=30)
    request = rpc_pb2.LeaseCheckpointRequest(checkpoints=[checkpoint])
    await bench.replica.propose(internal_pb2.InternalRequest(lease_checkpoint=request))
    bench.lead()
    assert bench.remaining(1) == 31
    assert await bench.lessor.renew(1) == 100
    bench.lead(False)
    bench.lead()
    assert bench.remaining(1) == 101


async def test_a_demoted_leader_revokes_nothing_more(bench: Bench) -> None:
    bench.lead()
    bench.grant(1)
    bench.clock.now += 100
    bench.lead(False)
    assert bench.lessor.take_expired() == []


async def test_m21_a_revoke_decided_before_the_leadership_was_lost_is_not_left_to_the_next_leader(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.lessor.CHECK_INTERVAL_S", 0.0)
    bench.lead()
    bench.grant(1)
    bench.clock.now += 11
    propose, decided = bench.replica.propose, asyncio.Event()

    async def late(request: internal_pb2.InternalRequest, *, as_leader: bool = False) -> object:
        bench.lead(False)  # by the time it comes to proposing
        decided.set()
        return await propose(request, as_leader=as_leader)

    monkeypatch.setattr(bench.replica, "propose", late)
    running = asyncio.create_task(bench.lessor.run())
    async with asyncio.timeout(5):
        await decided.wait()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait((running,))
    assert bench.driver.machine.state.leases.get(1) is not None


async def test_a_revoke_that_was_not_applied_is_sent_again_later(bench: Bench) -> None:
    bench.lead()
    bench.grant(1, ttl_s=10)
    bench.clock.now += 10
    assert bench.lessor.take_expired() == [1]
    bench.clock.now += REVOKE_RETRY_S - 0.1
    assert bench.lessor.take_expired() == []
    bench.clock.now += 0.1
    assert bench.lessor.take_expired() == [1]


async def test_revokes_are_limited_per_check(bench: Bench) -> None:
    bench.lead()
    for lease_id in range(1, REVOKES_PER_CHECK + 11):
        bench.grant(lease_id)
    bench.clock.now += 10
    assert len(bench.lessor.take_expired()) == REVOKES_PER_CHECK
    assert len(bench.lessor.take_expired()) == 10


async def test_ten_thousand_leases_that_end_together_do_not_keep_writers_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two writes come no more revokes than one check may send, so no write waits for all of them."""
    monkeypatch.setattr("store.lessor.CHECK_INTERVAL_S", 0.01)
    leases = 10_000
    bench.lead()
    for lease_id in range(1, leases + 1):
        bench.grant(lease_id)
        bench.driver.put(b"leased/%d" % lease_id, lease=lease_id)
    bench.clock.now += 10
    put = internal_pb2.InternalRequest(put=rpc_pb2.PutRequest(key=b"writer"))
    revisions, waits_s = [bench.driver.machine.revision], [0.0]
    running = asyncio.create_task(bench.lessor.run())
    try:
        async with asyncio.timeout(60):
            while len(bench.driver.machine.state.leases.all()):
                began = time.perf_counter()
                revisions.append((await bench.replica.propose(put)).revision)
                waits_s.append(time.perf_counter() - began)
                await asyncio.sleep(0)
    finally:
        running.cancel()
    revisions.append(bench.driver.machine.revision + 1)
    between = [later - earlier - 1 for earlier, later in itertools.pairwise(revisions)]
    assert sum(between) == leases
    assert max(between) <= REVOKES_PER_CHECK
    assert max(waits_s) < 2.0


async def test_the_running_lessor_revokes_through_the_log(bench: Bench) -> None:
    bench.lead()
    bench.grant(1)
    bench.driver.put(b"k", lease=1)
    watcher = Client(bench.driver.machine)
    await watcher.create(b"k")
    bench.clock.now += 10
    running = asyncio.create_task(bench.lessor.run())
    assert await watcher.events(1) == [(3, "DELETE", b"k")]
    running.cancel()
    assert bench.remaining(1) == -1


async def test_a_revoke_deletes_the_keys_in_order_in_one_revision(bench: Bench) -> None:
    bench.grant(1)
    watcher = Client(bench.driver.machine)
    await watcher.create(b"\x00", b"\x00")
    for key in (b"c", b"a", b"b"):
        bench.driver.put(key, lease=1)
    bench.driver.put(b"b", lease=0)
    await watcher.events(4)
    assert bench.driver.apply(rpc_pb2.LeaseRevokeRequest(ID=1)).revision == 6
    assert summary(await watcher.receive()) == [(6, "DELETE", b"a"), (6, "DELETE", b"c")]


async def test_refusals_of_grant_and_revoke(bench: Bench) -> None:
    bench.grant(5)
    for command, refusal in (
        (rpc_pb2.LeaseGrantRequest(ID=5, TTL=10), LEASE_EXISTS),
        (rpc_pb2.LeaseGrantRequest(ID=6, TTL=9_000_000_001), LEASE_TTL_TOO_LARGE),
        (rpc_pb2.LeaseRevokeRequest(ID=7), LEASE_NOT_FOUND),
    ):
        with pytest.raises(EtcdError) as caught:
            bench.driver.apply(command)
        assert caught.value == refusal


async def test_leases_and_their_keys_survive_a_restart(bench: Bench) -> None:
    bench.grant(-3, ttl_s=60)
    bench.driver.put(b"k", lease=-3)
    await bench.driver.stop()
    await bench.driver.start()
    lease = bench.driver.machine.state.leases.get(-3)
    assert lease is not None
    assert (lease.ttl_s, lease.keys) == (60, {b"k"})
