"""The peer port over real sockets: who is let in, what is delivered, and what garbage cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import pytest

from raft.codec import encode_frame
from raft.core.types import ConfState, Entry, EntryType, Message, MessageType, Snapshot
from raft.errors import RaftError
from raft.framing import MAGIC, Hello, Kind
from raft.log import Identity
from raft.transport import PeerCallError, TcpTransport, describe
from tests.ports import free_base

CLUSTER = 77


@dataclass
class Inbox:
    """A PeerHandler that keeps what it gets."""

    messages: list[Message] = field(default_factory=list)
    unreachable: list[int] = field(default_factory=list)
    snapshots: list[tuple[Message, bytes]] = field(default_factory=list)
    sent: list[tuple[int, bool]] = field(default_factory=list)
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, messages: Sequence[Message]) -> None:
        self.messages += messages
        self.event.set()

    def peer_unreachable(self, peer: int) -> None:
        self.unreachable.append(peer)
        self.event.set()

    def snapshot_sent(self, peer: int, ok: bool) -> None:
        self.sent.append((peer, ok))
        self.event.set()

    async def receive_snapshot(self, message: Message, image: Path) -> None:
        self.snapshots.append((message, await asyncio.to_thread(image.read_bytes)))

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.messages) < count:
                self.event.clear()
                await self.event.wait()


@dataclass
class Node:
    transport: TcpTransport
    inbox: Inbox
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def nodes(directory: Path, *ids: int) -> AsyncIterator[list[Node]]:
    """Transports that know each other, running."""
    made = []
    base = free_base(len(ids))
    for offset, number in enumerate(ids):
        transport, inbox = TcpTransport(Identity(CLUSTER, number), directory), Inbox()
        await transport.start([f"127.0.0.1:{base + offset}"], inbox)
        made.append(Node(transport, inbox, base + offset))
    addresses = {node.transport.identity.member_id: node.address for node in made}
    async with asyncio.TaskGroup() as group:
        tasks = []
        for node in made:
            node.transport.set_peers(addresses)
            tasks.append(group.create_task(node.transport.run()))
        async with asyncio.timeout(10):
            for node in made:
                await node.transport.wait_connected(len(ids) - 1)
        yield made
        for task in tasks:
            task.cancel()
    for node in made:
        await node.transport.stop()


def app(to: int, from_: int, index: int, size: int = 10) -> Message:
    return Message(
        MessageType.APP, to, from_, 1, index=index, entries=(Entry(1, index, EntryType.NORMAL, b"x" * size),)
    )


async def test_messages_arrive_in_order(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as (one, two):
        sent = [app(2, 1, index) for index in range(1, 501)]
        for start in range(0, 500, 50):
            one.transport.send(sent[start : start + 50])
        await two.inbox.until(500)
        assert two.inbox.messages == sent


async def test_a_large_backlog_is_split_into_frames(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as (one, two):
        sent = [app(2, 1, index, size=1 << 20) for index in range(1, 12)]
        one.transport.send(sent)
        await two.inbox.until(11)
        assert two.inbox.messages == sent


async def test_a_peer_that_is_away_costs_a_report_and_no_memory(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as (one, two):
        one.transport.set_peers({2: two.address, 3: "127.0.0.1:1"})
        one.transport.send([app(3, 1, index) for index in range(100)])
        assert 3 in one.inbox.unreachable
        assert one.transport.statistics()["dropped"] == 100
        one.transport.send([app(2, 1, 1)])
        await two.inbox.until(1)


@pytest.mark.parametrize("address", ["foo:None", "a..b:2380", "127.0.0.1:99999", "h" * 70 + ":1"])
async def test_an_address_that_cannot_be_dialled_disturbs_nobody(tmp_path: Path, address: str) -> None:
    async with nodes(tmp_path, 1, 2) as (one, two):
        one.transport.set_peers({2: two.address, 3: address})
        one.transport.send([app(2, 1, 1)])
        await two.inbox.until(1)
        await asyncio.sleep(0.1)  # the dialling of 3 goes on and fails meanwhile
        assert one.transport.active_since(3) is None
        one.transport.send([app(2, 1, 2)])
        await two.inbox.until(2)


async def test_a_peer_that_returns_is_dialled_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as (one, two):
        await two.transport.stop()
        async with asyncio.timeout(5):
            while one.transport.active_since(2) is not None:
                one.inbox.event.clear()
                await one.inbox.event.wait()
        inbox = Inbox()
        await two.transport.start([two.address], inbox)
        async with asyncio.timeout(5):
            await one.transport.wait_connected(1)
        one.transport.send([app(2, 1, 1)])
        await inbox.until(1)


async def test_a_snapshot_arrives_whole_and_both_sides_hear_of_it(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(random.Random(1).randbytes(3_000_000))
    async with nodes(tmp_path, 1, 2) as (one, two):
        done = asyncio.Event()
        message = Message(MessageType.SNAP, 2, 1, 3, snapshot=Snapshot(9, 2, ConfState((1, 2))))
        one.transport.send_snapshot(message, image, done.set)
        async with asyncio.timeout(10):
            await done.wait()
        assert one.inbox.sent == [(2, True)]
        assert two.inbox.snapshots == [(message, image.read_bytes())]


async def test_a_snapshot_to_a_peer_that_is_away_is_reported_failed(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"x")
    async with nodes(tmp_path, 1, 2) as (one, _):
        one.transport.set_peers({3: "127.0.0.1:1"})
        done = asyncio.Event()
        message = Message(MessageType.SNAP, 3, 1, 3, snapshot=Snapshot(9, 2, ConfState((1, 2))))
        one.transport.send_snapshot(message, image, done.set)
        async with asyncio.timeout(10):
            await done.wait()
        assert one.inbox.sent == [(3, False)]


class Refusal(RaftError):
    pass


async def test_members_call_each_other(tmp_path: Path) -> None:
    async def double(payload: bytes) -> bytes:
        if not payload:
            raise Refusal("nothing to double")
        return payload * 2

    async with nodes(tmp_path, 1, 2) as (one, two):
        two.transport.handle("double", double)
        assert await one.transport.call(2, "double", b"ab", 5) == b"abab"
        with pytest.raises(PeerCallError, match="nothing to double") as refused:
            await one.transport.call(2, "double", b"", 5)
        assert refused.value.refused
        with pytest.raises(PeerCallError, match="unknown member call 'halve'"):
            await one.transport.call(2, "halve", b"x", 5)
        with pytest.raises(PeerCallError, match="no address known for member 9"):
            await one.transport.call(9, "double", b"x", 5)


async def test_a_call_that_is_not_answered_ends_in_time(tmp_path: Path) -> None:
    async def never(payload: bytes) -> bytes:
        await asyncio.get_running_loop().create_future()
        return payload

    async with nodes(tmp_path, 1, 2) as (one, two):
        two.transport.handle("never", never)
        with pytest.raises(PeerCallError, match=r"did not answer in 0\.1 s"):
            await one.transport.call(2, "never", b"", 0.1)


async def test_anyone_may_ask_what_cluster_this_is_and_nothing_else(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (one,):
        one.transport.describe = lambda: b"the cluster"
        assert await describe(one.address, 5) == b"the cluster"
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(frame(Kind.HELLO, Hello(0, 0, 0, "describe").encode()))
        writer.write(frame(Kind.MESSAGES, encode_frame([app(1, 2, 1)])))
        await read_to_end(reader)
        assert one.inbox.messages == []
        await close(writer)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">IB", len(payload), kind) + payload


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def answer_to(port: int, data: bytes) -> bytes:
    """What a stranger's bytes are answered with before the connection is closed on it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await read_to_end(reader)
    finally:
        await close(writer)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(78, 2, 1, "messages"), "cluster id mismatch: this is cluster 4d, not 4e"),
        (Hello(CLUSTER, 2, 9, "messages"), "this is member 1, not 9"),
        (Hello(CLUSTER, 8, 1, "messages"), "member 8 was removed from the cluster"),
        (Hello(CLUSTER, 2, 1, "gossip"), "unknown purpose 'gossip'"),
    ],
)
async def test_m40_a_message_for_another_cluster_or_member_is_refused_before_it_is_read(
    tmp_path: Path, hello: Hello, reason: str
) -> None:
    async with nodes(tmp_path, 1) as (one,):
        one.transport.set_removed([8])
        data = frame(Kind.HELLO, hello.encode()) + frame(Kind.MESSAGES, encode_frame([app(1, 2, 1)]))
        assert reason in (await answer_to(one.port, data)).decode(errors="replace")
        assert one.inbox.messages == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        frame(Kind.MESSAGES, encode_frame([app(1, 2, 1)])),
        frame(Kind.HELLO, MAGIC + b"\xc1\xc1"),
        frame(Kind.HELLO, MAGIC + msgpack.packb([1, 2])),
        frame(Kind.HELLO, MAGIC + msgpack.packb(7)),
        frame(Kind.HELLO, Hello(1, 2, 3, "messages").encode()) + b"\x00\x00\x00\x01\x00x" * 3,
        frame(Kind.HELLO, MAGIC + msgpack.packb(["a", 2, 1, "messages"])),
        frame(Kind.HELLO, b"x" * 100),
        b"\xff\xff\xff\xff\x00",
    ],
)
async def test_what_is_no_member_is_closed_at_once_and_delivers_nothing(tmp_path: Path, data: bytes) -> None:
    async with nodes(tmp_path, 1, 2) as (one, two):
        await answer_to(one.port, data)
        assert one.transport.refused == 1
        assert one.inbox.messages == []
        two.transport.send([app(1, 2, 5)])  # and members are not disturbed
        await one.inbox.until(1)


async def test_messages_in_the_name_of_another_member_are_dropped(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (one,):
        hello = frame(Kind.HELLO, Hello(CLUSTER, 2, 1, "messages").encode())
        forged = encode_frame([app(1, 3, 1), app(9, 2, 2), app(1, 2, 3)])
        _, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(hello + frame(Kind.MESSAGES, forged))
        await one.inbox.until(1)
        assert [message.index for message in one.inbox.messages] == [3]
        await close(writer)


async def test_silence_instead_of_a_greeting_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raft.transport.GREETING_TIMEOUT_S", 0.1)
    async with nodes(tmp_path, 1) as (one,):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        answer = await read_to_end(reader)
        assert b"no greeting in time" in answer
        await close(writer)


async def test_a_greeted_connection_that_falls_silent_is_closed_and_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raft.transport.INCOMING_SILENCE_MAX_S", 0.4)
    monkeypatch.setattr("raft.transport.PING_INTERVAL_S", 0.1)
    async with nodes(tmp_path, 1, 2) as (one, two):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(frame(Kind.HELLO, Hello(0, 0, 0, "describe").encode()))
        await read_to_end(reader)
        two.transport.send([app(1, 2, 5)])
        await one.inbox.until(1)
        assert two.transport.active_since(1) is not None
        await close(writer)


async def test_many_idle_connections_do_not_shut_out_members(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as (one, two):
        idle = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(300)]
        assert len(one.transport.incoming) <= 128
        two.transport.send([app(1, 2, 5)])
        await one.inbox.until(1)
        for _, writer in idle:
            await close(writer)


async def test_mutated_frames_never_deliver_what_is_not_a_message(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with nodes(tmp_path, 1, 2) as (one, two):
        hello = frame(Kind.HELLO, Hello(CLUSTER, 2, 1, "messages").encode())
        good = frame(Kind.MESSAGES, encode_frame([app(1, 2, 1), app(1, 2, 2)]))
        for _ in range(300):
            data = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            _, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(hello + bytes(data))
            writer.write_eof()
            await close(writer)
        before = len(one.inbox.messages)
        two.transport.send([app(1, 2, 777)])
        await one.inbox.until(before + 1)
        assert all(isinstance(message, Message) for message in one.inbox.messages)


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (one,):
        second = TcpTransport(Identity(CLUSTER, 2), tmp_path)
        with pytest.raises(
            OSError, match=f"cannot listen on 127.0.0.1:{one.port} for peers: address already in use"
        ):
            await second.start([one.address], Inbox())
