"""Proposals' waiters and linearizable-read rounds, under a clock of the test's own."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from raft.errors import LeaderChanged, NoLeader, OutcomeUnknown, Stopped
from raft.reads import RETRY_S, ReadRounds
from raft.waiters import RequestIds, Waiters, settle


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_request_ids_do_not_repeat_and_carry_into_the_time() -> None:
    ids = RequestIds(member_id=0xABCDEF, now_ms=5)
    seen = [ids.next() for _ in range(1000)]
    assert len(set(seen)) == 1000
    assert {number >> 48 for number in seen} == {0xCDEF}
    assert RequestIds(0xABCDEF, now_ms=5 + 4).next() not in seen[:1000] or len(seen) >= 4 * 256


def waiting(waiters: Waiters, request_id: int) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    waiters.register(request_id, partial(settle, future))
    return future


async def test_a_waiter_gets_its_outcome_once_and_a_late_one_is_dropped() -> None:
    waiters = Waiters(7.0, Clock())
    future = waiting(waiters, 1)
    waiters.resolve(1, "applied")
    waiters.resolve(1, "again")
    assert await future == "applied"
    assert len(waiters) == 0


async def test_a_refusal_is_raised_at_the_waiter() -> None:
    waiters = Waiters(7.0, Clock())
    future = waiting(waiters, 1)
    waiters.resolve(1, NoLeader("no"))
    with pytest.raises(NoLeader):
        await future


async def test_registering_an_id_twice_is_a_bug() -> None:
    waiters = Waiters(7.0, Clock())
    waiting(waiters, 1)
    with pytest.raises(AssertionError):
        waiting(waiters, 1)


async def test_time_out_tells_a_proposal_that_left_from_one_that_did_not() -> None:
    clock = Clock()
    waiters = Waiters(7.0, clock)
    left, kept = waiting(waiters, 1), waiting(waiters, 2)
    clock.now += 3
    young = waiting(waiters, 3)
    clock.now += 4
    waiters.expire(never_sent=lambda number: number == 2)
    with pytest.raises(OutcomeUnknown):
        await left
    with pytest.raises(NoLeader):
        await kept
    assert not young.done()


class Rounds:
    def __init__(self) -> None:
        self.clock = Clock()
        self.asked: list[bytes] = []
        self.rounds = ReadRounds(self.asked.append, self.clock, 7.0, first_round=0)


async def test_readers_that_arrive_together_share_one_round() -> None:
    r = Rounds()
    readers = [r.rounds.add() for _ in range(5)]
    r.rounds.begin()
    assert len(r.asked) == 1
    r.rounds.confirmed(r.asked[0], index=9, applied=9)
    assert await asyncio.gather(*readers) == [9] * 5


async def test_m48_a_reader_that_arrives_after_the_index_was_asked_for_waits_for_the_next_round() -> None:
    r = Rounds()
    first = r.rounds.add()
    r.rounds.begin()
    late = r.rounds.add()
    r.rounds.begin()
    r.rounds.confirmed(r.asked[0], index=9, applied=9)
    assert first.done()
    assert not late.done()
    r.rounds.begin()
    assert len(r.asked) == 2
    r.rounds.confirmed(r.asked[1], index=12, applied=12)
    assert await late == 12


async def test_a_reader_waits_until_its_index_is_applied() -> None:
    r = Rounds()
    reader = r.rounds.add()
    r.rounds.begin()
    r.rounds.confirmed(r.asked[0], index=20, applied=15)
    assert not reader.done()
    r.rounds.applied(19)
    assert not reader.done()
    r.rounds.applied(20)
    assert await reader == 20


async def test_m10_a_retry_has_a_new_id_and_the_answer_to_the_old_one_is_ignored() -> None:
    r = Rounds()
    reader = r.rounds.add()
    r.rounds.begin()
    r.clock.now += RETRY_S
    r.rounds.tick()
    assert len(r.asked) == 2
    assert r.asked[0] != r.asked[1]
    r.rounds.confirmed(r.asked[0], index=1, applied=50)
    assert not reader.done()
    r.rounds.confirmed(r.asked[1], index=30, applied=50)
    assert await reader == 30


async def test_m10_rounds_do_not_repeat_across_restarts() -> None:
    asked: list[bytes] = []
    for _ in range(3):
        rounds = ReadRounds(asked.append, Clock(), 7.0)
        rounds.add()
        rounds.begin()
    assert len(set(asked)) == 3


async def test_m11_a_new_leader_fails_the_round_under_way_and_not_the_readers_behind_it() -> None:
    r = Rounds()
    reader = r.rounds.add()
    r.rounds.begin()
    behind = r.rounds.add()
    r.rounds.leader_changed()
    with pytest.raises(LeaderChanged):
        await reader
    r.rounds.confirmed(r.asked[0], index=1, applied=1)
    assert not behind.done()
    r.rounds.begin()
    r.rounds.confirmed(r.asked[1], index=2, applied=2)
    assert await behind == 2


async def test_readers_give_up_after_the_request_time_out() -> None:
    r = Rounds()
    reader = r.rounds.add()
    r.rounds.begin()
    r.clock.now += 7.0
    r.rounds.tick()
    with pytest.raises(OutcomeUnknown):
        await reader


async def test_stopping_fails_every_reader() -> None:
    r = Rounds()
    readers = [r.rounds.add()]
    r.rounds.begin()
    readers.append(r.rounds.add())
    r.rounds.fail_all(Stopped("bye"))
    for reader in readers:
        with pytest.raises(Stopped):
            await reader
