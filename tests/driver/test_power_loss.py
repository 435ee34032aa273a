"""The power fails after every write and every sync of a run; nothing that was promised may be missing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from chaos import virtual
from chaos.disk import Loss, SimulatedDisk, SimulatedLog
from raft.core.types import Message, MessageType
from raft.errors import RaftError
from raft.log import LoadedLog
from tests.driver.virtual_cluster import IDS, VirtualCluster, cluster, new_disks


@dataclass(frozen=True)
class Claim:
    """What a message that left a node says is on its disk."""

    node: int
    term: int
    vote: int = 0
    index: int = 0
    entry_term: int = 0

    def missing_in(self, log: LoadedLog) -> str:
        """Why the claim does not hold for a node that restarts with ``log``; empty when it does."""
        state = log.hard_state
        if state.term < self.term:
            return f"term {self.term} was answered for, the disk says {state.term}"
        if self.vote and state.term == self.term and state.vote != self.vote:
            return f"voted for {self.vote} in term {self.term}, the disk says {state.vote}: it could vote again"
        if self.index > log.snapshot.index:
            terms = {entry.index: entry.term for entry in log.entries}
            replaced = bool(log.entries) and log.entries[-1].term > self.entry_term
            if terms.get(self.index, 0) < self.entry_term and not replaced:
                return f"entry {self.index} of term {self.entry_term} was acknowledged and is gone"
        return ""


@dataclass
class Moment:
    """The world at one disk operation: every disk as each kind of crash leaves it, and the promises so far."""

    disks: dict[Loss, dict[int, SimulatedDisk]]
    claims: int
    acknowledged: int


@dataclass
class Recording:
    moments: list[Moment] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    acknowledged: list[bytes] = field(default_factory=list)


def record(seed: int) -> Recording:
    """A run with elections, proposals, and a leader that is cut off in the middle of them."""
    recording = Recording()

    async def body() -> None:
        def operation(node: int, event: str) -> None:
            images = {loss: {n: disk.after_crash(loss) for n, disk in disks.items()} for loss in Loss}
            recording.moments.append(Moment(images, len(recording.claims), len(recording.acknowledged)))

        disks = new_disks(seed, operation)
        async with cluster(disks, seed) as running:
            running.wire.observe = lambda sender, message: note_claim(running, sender, message, recording)
            await propose(running, recording, 6)
            leader = await running.leader()
            running.wire.isolate(leader.config.member_id)
            await propose(running, recording, 6)
            running.wire.heal()
            await propose(running, recording, 6)
            await running.settle()

    virtual.run(body())
    return recording


def note_claim(running: VirtualCluster, sender: int, message: Message, recording: Recording) -> None:
    if message.reject:
        return
    if message.type is MessageType.VOTE_RESP:
        recording.claims.append(Claim(sender, message.term, vote=message.to))
    elif message.type is MessageType.APP_RESP and message.index:  # 0 only tells a stale leader the term
        storage = running.wire.nodes[sender]._storage
        recording.claims.append(
            Claim(sender, message.term, index=message.index, entry_term=storage.term(message.index))
        )


async def propose(running: VirtualCluster, recording: Recording, count: int) -> None:
    async def one(number: int) -> None:
        payload = b"value %d " % (len(recording.acknowledged) * 100 + number) + b"x" * 1500  # several sectors
        for _ in range(20):
            leader = await running.leader()
            try:
                async with asyncio.timeout(2.0):
                    await leader.propose(payload)
            except (RaftError, TimeoutError):
                continue  # unknown: a client would ask again with another value, this one may appear twice
            recording.acknowledged.append(payload)
            return

    await asyncio.gather(*(one(number) for number in range(count)))


@pytest.fixture(scope="module")
def recording() -> Recording:
    found = record(seed=5)
    assert len(found.moments) > 40
    assert len(found.acknowledged) == 18
    assert sum(claim.vote != 0 for claim in found.claims) >= 2
    return found


def test_m02_what_a_message_claims_is_on_the_disk_of_its_sender(recording: Recording) -> None:
    async def body() -> None:
        for moment in recording.moments:
            for loss, disks in moment.disks.items():
                logs = {node: await SimulatedLog(disk).load() for node, disk in disks.items()}
                for claim in recording.claims[: moment.claims]:
                    missing = claim.missing_in(logs[claim.node])
                    assert not missing, f"{loss.value}: node {claim.node}: {missing}"

    virtual.run(body())


@pytest.mark.parametrize("loss", list(Loss), ids=lambda loss: loss.name.lower())
def test_nothing_acknowledged_is_missing_after_all_members_lost_power(recording: Recording, loss: Loss) -> None:
    for moment in recording.moments[::2] + recording.moments[-1:]:
        virtual.run(_restart_and_check(moment, loss, recording.acknowledged[: moment.acknowledged]))


async def _restart_and_check(moment: Moment, loss: Loss, acknowledged: list[bytes]) -> None:
    disks = {node: disk.after_crash(Loss.NONE) for node, disk in moment.disks[loss].items()}
    async with cluster(disks) as running:
        await running.settle()
        first = running.journals[IDS[0]].values
        for node in IDS:
            values = running.journals[node].values
            assert values == first, "members differ"
            missing = [value for value in acknowledged if value not in values]
            assert not missing, f"acknowledged and lost: {missing}"


async def _sync_failure() -> None:
    async with cluster(new_disks(3)) as running:
        leader = await running.leader()
        node = leader.config.member_id
        await leader.propose(b"before")
        running.disks[node].fail_syncs = True
        with pytest.raises(RaftError):
            await leader.propose(b"during")
        assert node not in running.wire.nodes
        assert "this member stops" in str(running.failures[node])
        successor = await running.leader()
        assert successor.config.member_id != node
        await successor.propose(b"after")
        assert b"before" in running.journals[successor.config.member_id].values


def test_m36_a_failing_sync_ends_the_member_and_the_others_go_on() -> None:
    virtual.run(_sync_failure())


async def _stalled_candidate() -> None:
    disks = new_disks(3)
    async with cluster(disks, 3) as running:
        leader = await running.leader()
        candidate = next(node for node in IDS if node != leader.config.member_id)
        sent: list[Message] = []
        running.wire.observe = lambda sender, message: sent.append(message) if sender == candidate else None
        await running.settle()
        stall = running.disks[candidate].stall = asyncio.Event()
        leader.transfer_leader(candidate)
        await asyncio.sleep(0.5)
        assert running.wire.nodes[candidate].term > leader.term, "it did not even try"
        assert all(message.type is not MessageType.VOTE for message in sent)
        running.disks[candidate].stall = None
        stall.set()
        await asyncio.sleep(0.5)
        assert any(message.type is MessageType.VOTE for message in sent)


def test_m02_a_candidate_asks_for_no_vote_before_its_term_is_durable() -> None:
    """It could win the term by the votes of others, forget that in a power loss, and win the same term again."""
    virtual.run(_stalled_candidate())


async def _stalled_disk() -> None:
    async with cluster(new_disks(4)) as running:
        leader = await running.leader()
        follower = next(n for n in IDS if n != leader.config.member_id)
        stall = running.disks[follower].stall = asyncio.Event()
        term = leader.term
        for number in range(20):
            await leader.propose(b"%d" % number)
        await asyncio.sleep(5.0)  # virtual: five election timeouts
        assert leader.is_leader, "a stalled follower cost the leader its place"
        assert leader.term == term
        stall.set()
        running.disks[follower].stall = None
        await running.settle()
        assert running.journals[follower].values == running.journals[leader.config.member_id].values


def test_m21_a_follower_whose_disk_stalls_answers_heartbeats_and_catches_up() -> None:
    virtual.run(_stalled_disk())


async def _stalled_leader() -> None:
    async with cluster(new_disks(6)) as running:
        leader = await running.leader()
        stall = running.disks[leader.config.member_id].stall = asyncio.Event()
        waiting = asyncio.create_task(leader.propose(b"needs the leader's disk"))
        async with asyncio.timeout(10 * leader.config.election_s):
            while leader.is_leader:
                running._changed.clear()
                await running._changed.wait()
        successor = await running.leader()
        assert successor.config.member_id != leader.config.member_id
        await successor.propose(b"goes on")
        stall.set()
        running.disks[leader.config.member_id].stall = None
        await waiting
        await running.settle()


def test_m21_a_leader_whose_disk_stalls_hands_over_to_one_whose_disk_works() -> None:
    virtual.run(_stalled_leader())
