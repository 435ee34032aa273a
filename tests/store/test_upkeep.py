"""What a member does by itself: compaction by age and by count, lease checkpoints, comparing members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgpack
import pytest

from kvorum.flags import parse
from kvorum.layout import UsageError
from kvorum.member import make_config
from raft.transport import PeerCallError
from store.autocompact import HOUR_S, REVISION_CHECK_S, AutoCompactor, Mode, Retention
from store.checkpoints import INTERVAL_S, LeaseCheckpoints
from store.config import UpkeepOptions
from store.corruption import HASH_KV, CorruptError, CorruptionCheck
from store.errors import COMPACTED, FUTURE_REVISION, TIMEOUT, EtcdError
from store.etcdpb import internal_pb2, rpc_pb2
from store.leases import Lease, LeaseBook
from store.lessor import TimeToLive
from store.replica import MemberInfo
from tests.store.driver import Driver
from tests.store.loopback import LoopbackReplica


class StepClock:
    """Time that passes only in ``advance``; sleepers wake in order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._sleepers.append((self._now + seconds, event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        end = self._now + seconds
        await self._settle()
        while due := [entry for entry in self._sleepers if entry[0] <= end]:
            first = min(due, key=lambda entry: entry[0])
            self._sleepers.remove(first)
            self._now = first[0]
            first[1].set()
            await self._settle()
        self._now = end

    async def _settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


class FakeStore:
    """Revisions, and the compactions that were proposed for them. Member 1; leads unless told otherwise."""

    member_id = 1

    def __init__(self) -> None:
        self.revision = 1
        self.leader_id = 1
        self.compacted: list[int] = []
        self.refuse: EtcdError | None = None

    async def propose(self, request: internal_pb2.InternalRequest) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.compacted.append(request.compaction.revision)


class Running:
    """A job that runs under a clock moved by hand."""

    def __init__(self, job: Callable[[], Awaitable[None]], clock: StepClock) -> None:
        self._job = job
        self.clock = clock

    async def __aenter__(self) -> StepClock:
        self._task = asyncio.ensure_future(self._job())
        await self.clock.advance(0)
        return self.clock

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task


def compacting(store: FakeStore, mode: Mode, amount: float) -> Running:
    clock = StepClock()
    return Running(AutoCompactor(Retention(mode, amount), store, store, clock).run, clock)


# -- compaction -------------------------------------------------------------------------------------------


async def test_periodic_compaction_keeps_one_period_of_history() -> None:
    store = FakeStore()
    async with compacting(store, Mode.PERIODIC, 600) as clock:
        for minute in range(25):
            store.revision = 100 + minute
            await clock.advance(60)
    # The first after ten minutes, then every ten; always to the revision of ten minutes before.
    assert store.compacted == [1, 109]


async def test_a_long_period_is_compacted_every_hour() -> None:
    store = FakeStore()
    async with compacting(store, Mode.PERIODIC, 24 * HOUR_S) as clock:
        for _ in range(10 * 27):
            store.revision += 1
            await clock.advance(360)
    assert store.compacted == [1, 11, 21, 31]


async def test_a_follower_does_not_compact_and_a_new_leader_knows_what_is_old() -> None:
    store = FakeStore()
    store.leader_id = 2
    async with compacting(store, Mode.PERIODIC, 600) as clock:
        for minute in range(30):
            store.revision = 100 + minute
            await clock.advance(60)
        assert store.compacted == []
        store.leader_id = 1
        await clock.advance(60)
    assert store.compacted == [120]


async def test_nothing_is_proposed_where_nothing_changed() -> None:
    store = FakeStore()
    async with compacting(store, Mode.PERIODIC, 60) as clock:
        await clock.advance(600)
    assert store.compacted == [1]


async def test_a_failed_compaction_is_repeated_and_a_compacted_one_counts_as_done() -> None:
    store = FakeStore()
    store.revision = 50
    async with compacting(store, Mode.PERIODIC, 600) as clock:
        store.refuse = TIMEOUT
        await clock.advance(700)
        store.refuse = None
        await clock.advance(60)
        assert store.compacted == [50]
        store.revision, store.refuse = 60, COMPACTED
        await clock.advance(1300)
        store.refuse = None
        await clock.advance(1300)
    assert store.compacted == [50]


async def test_compaction_by_revision_keeps_so_many() -> None:
    store = FakeStore()
    async with compacting(store, Mode.REVISION, 1000) as clock:
        store.revision = 900
        await clock.advance(REVISION_CHECK_S)
        assert store.compacted == []
        store.revision = 1500
        await clock.advance(REVISION_CHECK_S)
        await clock.advance(REVISION_CHECK_S)
        store.revision = 1600
        await clock.advance(REVISION_CHECK_S)
    assert store.compacted == [500, 600]


# -- lease checkpoints ------------------------------------------------------------------------------------


class FakeLessor:
    def __init__(self, clock: StepClock) -> None:
        self.is_primary = True
        self.clock = clock
        self.leases = LeaseBook()
        self.ends: dict[int, float] = {}
        self.stored: list[tuple[int, int]] = []

    def grant(self, lease_id: int, ttl_s: int) -> None:
        self.leases.add(Lease(lease_id, ttl_s))
        self.ends[lease_id] = self.clock.now() + ttl_s

    def time_to_live(self, lease_id: int, *, with_keys: bool) -> TimeToLive:
        return TimeToLive(lease_id, int(self.ends[lease_id] - self.clock.now()))

    async def propose(self, request: internal_pb2.InternalRequest, *, as_leader: bool = False) -> None:
        for checkpoint in request.lease_checkpoint.checkpoints:
            lease = self.leases.get(checkpoint.ID)
            assert lease is not None
            lease.remaining_s = checkpoint.remaining_TTL
            self.stored.append((checkpoint.ID, checkpoint.remaining_TTL))


async def test_long_leases_that_nobody_renews_are_checkpointed_on_the_leader() -> None:
    clock = StepClock()
    lessor = FakeLessor(clock)
    async with Running(LeaseCheckpoints(lambda: lessor.leases, lessor, lessor, clock).run, clock):
        lessor.grant(1, 3600)
        lessor.grant(2, int(INTERVAL_S))
        await clock.advance(INTERVAL_S)
        assert lessor.stored == [(1, 3300)]
        lessor.ends[1] = clock.now() + 3500  # renewed a moment ago
        await clock.advance(INTERVAL_S)
        assert lessor.stored == [(1, 3300)]
        lessor.is_primary = False
        await clock.advance(2 * INTERVAL_S)
        assert lessor.stored == [(1, 3300)]
        lessor.is_primary = True
        await clock.advance(INTERVAL_S)
    assert lessor.stored == [(1, 3300), (1, 2300)]


# -- corruption -------------------------------------------------------------------------------------------


class Trio:
    """Three machines with the same commands, their checks connected without a network."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self.drivers = dict(enumerate(drivers, 1))
        self.replicas = {number: _Member(self, number) for number in self.drivers}
        self.down: set[int] = set()
        self.checks = {
            number: CorruptionCheck(driver.machine, self.replicas[number], self, StepClock())
            for number, driver in self.drivers.items()
        }

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes:
        if peer in self.down:
            raise PeerCallError(f"member {peer:x} is not connected", refused=False)
        assert method == HASH_KV
        try:
            return await self.replicas[peer].handler(payload)
        except EtcdError as error:
            raise PeerCallError(f"{int(error.code)} {error.message}", refused=True) from None

    def put(self, key: bytes, value: bytes, *members: int) -> None:
        for number in members or self.drivers:
            self.drivers[number].put(key, value)

    def alarms(self) -> set[tuple[int, int]]:
        return self.drivers[1].machine.state.alarms


class _Member(LoopbackReplica):
    def __init__(self, trio: Trio, number: int) -> None:
        super().__init__(trio.drivers[number].machine)
        self.member_id = self.leader_id = number
        self.trio = trio

    def members(self) -> Sequence[MemberInfo]:
        return [MemberInfo(number, f"m{number}", (), ()) for number in self.trio.drivers]

    @property
    def handler(self) -> Callable[[bytes], Awaitable[bytes]]:
        return self._handlers[HASH_KV]


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    async with (
        Driver(tmp_path / "1.db") as first,
        Driver(tmp_path / "2.db") as second,
        Driver(tmp_path / "3.db") as third,
    ):
        made = Trio((first, second, third))
        for i in range(20):
            made.put(b"k%d" % (i % 5), b"v%d" % i)
        yield made


async def test_equal_members_raise_no_alarm(trio: Trio) -> None:
    await trio.checks[1].check()
    assert trio.alarms() == set()


async def test_a_member_whose_data_differs_is_named(trio: Trio) -> None:
    trio.put(b"x", b"right", 1, 2)
    trio.put(b"x", b"wrong", 3)
    await trio.checks[1].check()
    assert trio.alarms() == {(3, rpc_pb2.CORRUPT)}
    with pytest.raises(EtcdError, match="corrupt cluster"):
        trio.put(b"x", b"no more", 1)


async def test_a_leader_whose_data_differs_names_itself(trio: Trio) -> None:
    trio.put(b"x", b"wrong", 1)
    trio.put(b"x", b"right", 2, 3)
    await trio.checks[1].check()
    assert trio.alarms() == {(1, rpc_pb2.CORRUPT)}


async def test_a_member_that_lags_or_is_down_is_not_suspected(trio: Trio) -> None:
    trio.put(b"x", b"1", 1)
    trio.down.add(3)
    await trio.checks[1].check()
    assert trio.alarms() == set()


async def test_a_member_that_has_compacted_further_is_not_suspected(trio: Trio) -> None:
    trio.drivers[2].apply(rpc_pb2.CompactionRequest(revision=10))
    await trio.checks[1].check()
    assert trio.alarms() == set()


async def test_a_difference_below_the_compaction_is_found_too(trio: Trio) -> None:
    trio.put(b"x", b"right", 1, 2)
    trio.put(b"x", b"wrong", 3)
    for number in (1, 2, 3):
        trio.drivers[number].apply(rpc_pb2.CompactionRequest(revision=22))
    await trio.checks[1].check()
    assert trio.alarms() == {(3, rpc_pb2.CORRUPT)}


async def test_a_corrupted_member_does_not_start(trio: Trio) -> None:
    trio.put(b"x", b"right", 1, 2)
    trio.put(b"x", b"wrong", 3)
    for sound in (1, 2):
        await trio.checks[sound].check_start()
    with pytest.raises(CorruptError, match=r"\(3\) differs from that of 1, 2"):
        await trio.checks[3].check_start()


async def test_a_member_that_is_alone_starts(trio: Trio) -> None:
    trio.down |= {1, 2}
    await trio.checks[3].check_start()


async def test_the_answer_to_a_revision_this_member_does_not_have_is_a_refusal(trio: Trio) -> None:
    with pytest.raises(EtcdError) as caught:
        await trio.replicas[1].handler(msgpack.packb(10_000))
    assert caught.value == FUTURE_REVISION


# -- flags ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), UpkeepOptions()),
        (("--auto-compaction-retention", "2"), UpkeepOptions(Retention(Mode.PERIODIC, 7200))),
        (("--auto-compaction-retention=90m",), UpkeepOptions(Retention(Mode.PERIODIC, 5400))),
        (
            ("--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"),
            UpkeepOptions(Retention(Mode.REVISION, 1000)),
        ),
        (("--experimental-enable-lease-checkpoint",), UpkeepOptions(lease_checkpoints=True)),
        (("--feature-gates", "LeaseCheckpoint=true"), UpkeepOptions(lease_checkpoints=True)),
        (("--feature-gates", "InitialCorruptCheck=true"), UpkeepOptions(initial_corrupt_check=True)),
        (("--experimental-initial-corrupt-check=true",), UpkeepOptions(initial_corrupt_check=True)),
        (("--experimental-corrupt-check-time", "12h"), UpkeepOptions(corrupt_check_s=43200)),
        (("--corrupt-check-time", "1m"), UpkeepOptions(corrupt_check_s=60)),
    ],
)
def test_flags_of_etcd_have_their_meaning(flags: tuple[str, ...], expected: UpkeepOptions) -> None:
    assert make_config(parse(flags, {})).upkeep == expected


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--auto-compaction-mode", "daily"), "'daily' is not periodic or revision"),
        (("--auto-compaction-retention", "soon"), "'soon' is not hours or a duration"),
        (
            ("--auto-compaction-mode=revision", "--auto-compaction-retention=1h"),
            "'1h' is not a number of revisions",
        ),
        (("--auto-compaction-mode=revision", "--auto-compaction-retention=-5"), "is negative"),
        (("--feature-gates", "Flying=true"), "known gates"),
        (("--feature-gates", "LeaseCheckpoint=perhaps"), "known gates"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        make_config(parse(flags, {}))
