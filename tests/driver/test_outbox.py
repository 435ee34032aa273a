"""What leaves for the peers, and when: answers to clients before notices to peers, and no notice twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from chaos import virtual
from raft.core.types import NOTICE, Entry, Message, MessageType
from raft.driver import RaftDriver
from raft.outbox import Outbox
from tests.driver.virtual_cluster import VirtualCluster, cluster, new_disks


class Peers:
    """A transport that remembers what it was given."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, messages: Iterable[Message]) -> None:
        self.sent += messages


def notice(to: int, commit: int) -> Message:
    return Message(MessageType.APP, to, 1, 1, 1, 9, commit=commit, context=NOTICE)


def append(to: int, commit: int) -> Message:
    return Message(MessageType.APP, to, 1, 1, 1, 9, (Entry(1, 10, data=b"x"),), commit)


def outbox() -> tuple[Outbox, Peers]:
    peers = Peers()
    return Outbox(peers), peers  # type: ignore[arg-type]


def test_a_notice_that_is_held_leaves_when_it_is_released_the_newest_of_a_peer_only() -> None:
    box, peers = outbox()
    for held in (notice(2, 7), notice(3, 7), notice(2, 8)):
        box.hold(held)
    assert (peers.sent, box.holds_notices) == ([], True)
    box.release()
    assert (peers.sent, box.holds_notices) == ([notice(2, 8), notice(3, 7)], False)
    box.release()
    assert len(peers.sent) == 2


def test_entries_that_bring_the_commit_index_take_the_place_of_the_notice_of_their_peer() -> None:
    box, peers = outbox()
    box.hold(notice(2, 8))
    box.hold(notice(3, 8))
    box.send([append(2, 8)])
    assert peers.sent == [append(2, 8)]
    box.release()
    assert peers.sent[1:] == [notice(3, 8)]


def test_what_does_not_bring_the_commit_index_leaves_behind_the_notice() -> None:
    """A read that was confirmed at a follower waits there for the commit index that it names."""
    box, peers = outbox()
    box.hold(notice(2, 8))
    confirmed = Message(MessageType.READ_INDEX_RESP, 2, 1, 1, index=8)
    box.send([confirmed])
    assert peers.sent == [notice(2, 8), confirmed]
    assert not box.holds_notices


Scenario = Callable[[VirtualCluster, RaftDriver, list[str]], Awaitable[None]]


def watching_the_leader(scenario: Scenario) -> None:
    """Run a scenario in a settled cluster, with a list of what its leader does: apply, send notices."""

    async def body() -> None:
        async with cluster(new_disks(1), 1) as running:
            leader = await running.leader()
            await running.settle()
            await scenario(running, leader, observed(running, leader))

    virtual.run(body())


def observed(running: VirtualCluster, leader: RaftDriver) -> list[str]:
    """What the leader does from now on: apply, send notices."""
    events: list[str] = []
    journal = running.journals[leader.config.member_id]
    apply = journal.apply

    def applying(entry: Entry, payload: bytes, wanted: bool) -> Any:
        events.append("applied")
        return apply(entry, payload, wanted)

    def sending(_sender: int, message: Message) -> None:
        if message.context == NOTICE:
            events.append("notice")

    journal.apply = applying  # type: ignore[method-assign]
    running.wire.observe = sending
    return events


def test_a_client_of_the_leader_is_answered_before_the_peers_hear_of_the_commit() -> None:
    async def scenario(_running: VirtualCluster, leader: RaftDriver, events: list[str]) -> None:
        def answered(_outcome: Any) -> None:  # as a connection does, which writes in the next turn of the loop
            asyncio.get_running_loop().call_soon(events.append, "answer written")

        leader.submit(b"v", answered)
        await asyncio.sleep(0.05)  # virtual
        assert events == ["applied", "answer written", "notice", "notice"]

    watching_the_leader(scenario)


def test_a_follower_whose_client_waits_is_told_before_the_leader_applies() -> None:
    async def scenario(running: VirtualCluster, leader: RaftDriver, events: list[str]) -> None:
        follower = next(driver for driver in running.wire.nodes.values() if driver is not leader)
        await follower.propose(b"v")
        assert events == ["notice", "notice", "applied"]

    watching_the_leader(scenario)
