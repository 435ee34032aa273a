"""What travels between members, and what is refused."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.codec import decode_entries, decode_frame, encode_entries, encode_frame
from raft.core.confchange import encode as encode_conf_change
from raft.core.types import (
    ConfChange,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    Message,
    MessageType,
    Snapshot,
)
from raft.errors import CodecError

WIRE_TYPES = (
    MessageType.APP,
    MessageType.APP_RESP,
    MessageType.VOTE,
    MessageType.SNAP,
    MessageType.HEARTBEAT,
    MessageType.READ_INDEX,
    MessageType.PROP,
    MessageType.TIMEOUT_NOW,
)


def random_message(rng: random.Random) -> Message:
    def number() -> int:
        return rng.choice((0, 1, rng.getrandbits(31), (1 << 63) - 1))

    def node() -> int:
        return rng.choice((1, rng.getrandbits(63) + 1, (1 << 64) - 1))

    def entry(index: int, term: int) -> Entry:
        kind, data = EntryType.NORMAL, rng.randbytes(rng.randrange(40))
        if rng.random() < 0.3:
            change = ConfChange(ConfChangeType.ADD_VOTER, node())
            kind, data = encode_conf_change(ConfChangeV2((change,), context=data))
        return Entry(term, index, kind, data)

    # contiguous, as in appends, or without positions, as in proposals
    first, count = rng.choice((0, 1, rng.getrandbits(40) + 1)), rng.randrange(4)
    entries = tuple(entry(first + n if first else 0, number() if rng.random() < 0.5 else 7) for n in range(count))
    conf_state = ConfState((1, 2), (3,), (4,), (4,), rng.random() < 0.5)
    snapshot = rng.choice((None, Snapshot(number(), number(), conf_state, rng.randbytes(3))))
    return Message(
        rng.choice(WIRE_TYPES), node(), node(), number(), number(), number(), entries, number(), node(),
        snapshot, rng.random() < 0.5, number(), rng.randbytes(8),
    )  # fmt: skip


def test_a_frame_decodes_to_the_messages_it_was_made_of() -> None:
    rng = random.Random(11)
    for size in range(300):
        batch = [random_message(rng) for _ in range(size % 5)]
        assert decode_frame(encode_frame(batch)) == batch


def test_entries_on_disk_are_read_as_they_were_written() -> None:
    rng = random.Random(12)
    for _ in range(200):
        entries = random_message(rng).entries
        assert decode_entries(encode_entries(entries)) == entries
    with pytest.raises(CodecError):
        decode_entries(b"\xc1")


def test_responses_stay_on_the_node() -> None:
    message = Message(MessageType.APP, 2, 1, responses=(Message(MessageType.APP_RESP),))
    assert decode_frame(encode_frame([message])) == [message._replace(responses=())]


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_a_frame(data: bytes) -> None:
    try:
        decoded = decode_frame(data)
    except CodecError:
        return
    assert all(isinstance(message, Message) for message in decoded)


def test_mutated_frames_are_refused_or_are_a_frame() -> None:
    rng = random.Random(7)
    message = Message(
        MessageType.APP, 2, 1, 5, 4, 9, (Entry(5, 10, EntryType.NORMAL, b"value"),), 8,
        snapshot=Snapshot(3, 2, ConfState((1, 2, 3))),
    )  # fmt: skip
    frame = encode_frame([message])
    refused = 0
    for _ in range(5000):
        mutated = bytearray(frame)
        for _ in range(rng.randint(1, 3)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        try:
            decoded = decode_frame(bytes(mutated))
        except CodecError:
            refused += 1
        else:
            assert all(isinstance(found, Message) for found in decoded)
    assert refused > 1000


def _row(**changes: object) -> bytes:
    row: list[object] = list(Message(MessageType.APP, 2, 1)[:13])
    row[6] = None
    names = Message._fields
    for name, value in changes.items():
        row[names.index(name)] = value
    return bytes(msgpack.packb([row]))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"\xc1", "msgpack"),
        (msgpack.packb({"a": 1}), "array of messages"),
        (msgpack.packb([[1, 2]]), "13 fields"),
        (_row(type=99), "does not travel"),
        (_row(type=int(MessageType.HUP)), "does not travel"),
        (_row(type=int(MessageType.STORAGE_APPEND_RESP)), "does not travel"),
        (_row(term=-1), "63-bit"),
        (_row(term=1 << 63), "63-bit"),
        (_row(term=True), "63-bit"),
        (_row(index="1"), "63-bit"),
        (_row(entries=[1, 2, 3]), "4 columns"),
        (_row(entries=[1, 2, None, ["text"]]), "binary"),
        (_row(entries=[1, 2, None, []]), "binary"),
        (_row(entries=[-1, 2, None, [b""]]), "first index"),
        (_row(entries=[(1 << 63) - 1, 2, None, [b""]]), "first index"),
        (_row(entries=[1, -2, None, [b""]]), "term"),
        (_row(entries=[1, [1], None, [b"", b""]]), "one each"),
        (_row(entries=[1, 2, [9], [b""]]), "out of range"),
        (_row(entries=[1, 2, [0, 0], [b""]]), "one each"),
        (_row(snapshot=[1, 1, [[0], [], [], [], False], b""]), "ids"),
        (_row(snapshot=[1, 1, [[1], [], [], []], b""]), "boolean"),
        (_row(reject=1), "boolean"),
        (_row(entries=[1, 2, [1], [b"??"]]), "no configuration change"),
        (_row(snapshot=[1, 1, [[1, 1], [], [], [], False], b""]), "names a member twice"),
        (_row(snapshot=[1, 1, [[1], [1], [], [], False], b""]), "names a member twice"),
    ],
)
def test_what_has_not_the_right_shape_is_refused_with_the_reason(frame: bytes, problem: str) -> None:
    with pytest.raises(CodecError, match=problem):
        decode_frame(frame)
