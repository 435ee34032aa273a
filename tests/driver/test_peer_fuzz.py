"""Messages that are valid in form and wrong in content: no member dies of them or goes back on its word."""

from __future__ import annotations

import asyncio
import random

import pytest

from chaos import virtual
from raft.codec import decode_frame, encode_frame
from raft.core.types import ConfState, Entry, EntryType, Message, MessageType, Snapshot
from raft.driver import RaftDriver
from raft.errors import CodecError
from tests.driver.virtual_cluster import IDS, cluster, new_disks

FROM_PEERS = tuple(
    kind for kind in MessageType
    if not kind.name.startswith("STORAGE")
    and kind.name not in ("HUP", "BEAT", "UNREACHABLE", "SNAP_STATUS", "CHECK_QUORUM", "FORGET_LEADER")
)  # fmt: skip


def wrong_message(rng: random.Random, victim: RaftDriver) -> Message:
    """Fields near what the victim believes, and far from it."""

    def term() -> int:
        return rng.choice((0, 1, victim.term, victim.term, victim.term, victim.term + 1, rng.randrange(1 << 40)))

    def index() -> int:
        commit, last = victim.commit_index, victim.last_index
        return rng.choice((0, 1, commit, last, last + 1, last + 5, rng.randrange(1 << 62)))

    first = index()
    entries = [
        Entry(
            term(),
            first + offset if first else 0,
            rng.choice((EntryType.NORMAL, EntryType.NORMAL, EntryType.CONF_V1, EntryType.CONF_V2)),
            rng.randbytes(rng.randrange(20)),
        )
        for offset in range(rng.randrange(4))
    ]
    conf_state = rng.choice((ConfState(IDS), ConfState(), ConfState((1,), (2,), (3,), (9,), True)))
    snapshot = rng.choice((None, None, Snapshot(index(), term(), conf_state)))
    sender = rng.choice([node for node in IDS if node != victim.config.member_id] + [9])
    return Message(
        rng.choice(FROM_PEERS), victim.config.member_id, sender, term(), term(), index(), tuple(entries), index(),
        rng.choice((0, *IDS, 9)), snapshot, rng.random() < 0.5, index(),
        rng.choice((b"", b"transfer", rng.randbytes(8))),
    )  # fmt: skip


async def _feed(seed: int, count: int) -> None:
    rng = random.Random(seed)
    async with cluster(new_disks(seed), seed) as running:
        leader = await running.leader()
        for number in range(5):
            await leader.propose(b"%d" % number)
        victim = rng.choice(list(running.wire.nodes.values()))
        term, commit = victim.term, victim.commit_index
        for _ in range(count):
            try:
                victim.receive(decode_frame(encode_frame([wrong_message(rng, victim)])))
            except CodecError:
                continue  # refused at the door: the connection would be closed
            await asyncio.sleep(0.003)  # virtual
            assert running.failures == {}
            assert victim.term >= term, "a term went back"
            assert victim.commit_index >= commit, "a commit index went back"
            term, commit = victim.term, victim.commit_index
        journal = running.journals[victim.config.member_id]
        assert journal.applied_index <= victim.commit_index <= victim.last_index


@pytest.mark.parametrize("seed", range(24))
def test_wrong_messages_never_end_a_member_nor_take_back_its_term_or_commit(seed: int) -> None:
    virtual.run(_feed(seed, 250))
