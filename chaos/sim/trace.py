"""What happened in a run, in order: for the hash that proves determinism, for reports, for the timeline."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from raft.core.types import Message, MessageType

_NAMES = {kind: kind.name.lower().replace("_", " ") for kind in MessageType}


class Record(NamedTuple):
    """One event. ``node`` 0 is the world: faults, clients, the network."""

    at: float
    node: int
    kind: str
    text: str
    peer: int = 0
    """Of a message: who sent it, and ``sent`` when."""
    sent: float = 0.0


class Trace:
    """A growing list of records, and a running hash of all of them. ``now`` is true virtual time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.records: list[Record] = []
        self.hash = 0
        self.reached: Counter[str] = Counter()
        """How often each situation was reached."""

    def add(self, node: int, kind: str, text: str, peer: int = 0, sent: float = 0.0) -> None:
        at = self._now()
        self.records.append(Record(at, node, kind, text, peer, sent))
        self.hash = zlib.crc32(f"{at:.9f} {node} {kind} {peer} {text}".encode(), self.hash)

    def situation(self, name: str) -> None:
        """A situation that the runs should reach sometimes."""
        self.reached[name] += 1

    def delivered(self, sender: int, to: int, messages: Iterable[Message], sent: float) -> None:
        for message in messages:
            self.add(to, "message", describe(message), sender, sent)

    def lost(self, sender: int, to: int, messages: Sequence[Message], sent: float) -> None:
        for message in messages:
            self.add(to, "lost", describe(message), sender, sent)


def describe(message: Message) -> str:
    """A message in a few words."""
    text = f"{_NAMES[message.type]} t{message.term} i{message.index}"
    if message.entries:
        text += f" +{len(message.entries)}"
    if message.commit:
        text += f" c{message.commit}"
    if message.reject:
        text += " rejected"
    return text
