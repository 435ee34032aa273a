"""Frames between members, however TCP cuts them."""

from __future__ import annotations

import random

import pytest

from raft.errors import CodecError
from raft.framing import FrameProtocol, Kind

HEADER_BYTES = 5


class Receiver(FrameProtocol):
    def __init__(self, greeted: bool = True) -> None:
        super().__init__()
        self.greeted = greeted
        self.frames: list[tuple[int, bytes]] = []

    def frame_received(self, kind: int, payload: bytes) -> None:
        if payload == b"wrong":
            raise CodecError("not what was agreed")
        self.frames.append((kind, payload))


def encoded(*frames: tuple[Kind, bytes]) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + bytes([kind]) + payload for kind, payload in frames)


FRAMES = ((Kind.MESSAGES, b"abc"), (Kind.PING, b""), (Kind.MESSAGES, bytes(300)), (Kind.CALL, b"x"))


async def test_frames_are_the_same_wherever_a_read_ends() -> None:
    data = encoded(*FRAMES)
    for cut in range(len(data) + 1):
        receiver = Receiver()
        receiver.data_received(data[:cut])
        receiver.data_received(data[cut:])
        assert receiver.frames == list(FRAMES), cut


@pytest.mark.parametrize("seed", range(20))
async def test_frames_are_the_same_in_whatever_pieces_they_come(seed: int) -> None:
    rng = random.Random(seed)
    data, receiver = encoded(*FRAMES * 5), Receiver()
    while data:
        size = rng.choice((1, 2, 3, HEADER_BYTES, HEADER_BYTES + 1, 200, 1000))
        receiver.data_received(data[:size])
        data = data[size:]
    assert receiver.frames == list(FRAMES * 5)


@pytest.mark.parametrize("split", [False, True], ids=["one read", "split"])
async def test_nothing_is_taken_after_a_frame_that_is_refused(split: bool) -> None:
    data = encoded(FRAMES[0], (Kind.MESSAGES, b"wrong"), FRAMES[2])
    receiver = Receiver()
    for piece in (data[:3], data[3:]) if split else (data,):
        receiver.data_received(piece)
    receiver.data_received(encoded(FRAMES[3]))
    assert receiver.frames == [FRAMES[0]]


async def test_nothing_long_is_believed_before_the_greeting() -> None:
    receiver = Receiver(greeted=False)
    receiver.data_received(b"GET / HTTP/1.1\r\n")
    receiver.data_received(encoded(FRAMES[0]))
    assert receiver.frames == []
