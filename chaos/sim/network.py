"""The network of one simulated cluster: what each directed link does to what is sent over it.

What happens to a frame depends on the seed, the link and the number of the frame on it, and on nothing else: a
fault elsewhere does not change it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from chaos.sim.loop import Host, SimLoop
from chaos.sim.options import Options
from chaos.sim.streams import derived
from chaos.sim.trace import Trace
from raft.codec import decode_frame, encode_frame
from raft.core.types import Message, MessageType
from raft.errors import RaftError
from raft.transport import CallHandler, PeerCallError

if TYPE_CHECKING:
    from chaos.sim.member import Process

_UNIT: Final = float(1 << 32)
_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class Dice:
    """Decisions by counting: the n-th draw of a link is a function of its seed and n."""

    __slots__ = ("_key", "_n")

    def __init__(self, key: int) -> None:
        self._key = key
        self._n = 0

    def draw(self) -> float:
        """A number in [0, 1)."""
        self._n += 1
        x = (self._key + self._n * _MIX) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((x ^ (x >> 31)) >> 32) / _UNIT


class _Under(NamedTuple):
    """A frame under way."""

    messages: list[Message]
    epoch: int
    sent: float


class Link:
    """One direction between two members."""

    def __init__(self, sender: int, to: int, dice: Dice) -> None:
        self.sender = sender
        self.to = to
        self.dice = dice
        self.blocked = False
        """Everything is lost."""
        self.clogged = False
        """Everything is held back."""
        self.held: list[list[Message]] = []
        self.epoch = 0
        """Goes up when the stream breaks: what was under way is lost."""
        self.last_arrival = 0.0


class Network:
    """All links. ``observe_send`` sees every message when it leaves, before anything happens to it."""

    def __init__(self, loop: SimLoop, seed: int, options: Options, trace: Trace) -> None:
        self.loop = loop
        self.options = options
        self.processes: dict[int, Process] = {}
        self.observe_send: Callable[[int, Message], None] = lambda sender, message: None
        self._seed = seed
        self._links: dict[tuple[int, int], Link] = {}
        self._trace = trace
        self.healed = False
        """No more losses, doubles and long delays: the time after the faults."""

    def link(self, sender: int, to: int) -> Link:
        link = self._links.get((sender, to))
        if link is None:
            link = Link(sender, to, Dice(derived(self._seed, "link", sender, to)))
            self._links[sender, to] = link
        return link

    def transmit(self, sender: int, messages: Iterable[Message]) -> None:
        """Send: one frame per receiver, in the order given."""
        frames: dict[int, list[Message]] = {}
        for message in messages:
            self.observe_send(sender, message)
            frames.setdefault(message.to, []).append(message)
        for to, frame in frames.items():
            self._carry(self.link(sender, to), frame)

    def _carry(self, link: Link, frame: list[Message]) -> None:
        options, dice = self.options, link.dice
        if link.blocked or link.to not in self.processes:
            self._lost(link, frame)
            return
        if link.clogged:
            link.held.append(frame)
            return
        if not self.healed:
            if options.drop and dice.draw() < options.drop:
                self._lost(link, frame)
                return
            if options.duplicate and dice.draw() < options.duplicate:
                # A stream never delivers twice what must happen once; Raft's own messages must bear it.
                self._schedule(link, [message for message in frame if message.type is not MessageType.PROP])
        self._schedule(link, frame)

    def _lost(self, link: Link, frame: list[Message]) -> None:
        """A transport that cannot send says so, sometimes."""
        self._trace.lost(link.sender, link.to, frame, self.loop.now)
        process = self.processes.get(link.sender)
        if process is not None and link.dice.draw() < 0.5:
            process.driver.peer_unreachable(link.to)

    def _schedule(self, link: Link, frame: list[Message]) -> None:
        delay = self._delay(link)
        at = self.loop.now + delay
        if self.options.ordered:
            at = max(at, link.last_arrival)
            link.last_arrival = at
        receiver = self.processes[link.to]
        self.loop.call_in(
            at - self.loop.now, receiver.host, self._deliver, link, _Under(frame, link.epoch, self.loop.now)
        )

    def _delay(self, link: Link) -> float:
        options, dice = self.options, link.dice
        delay = options.delay_s + options.jitter_s * dice.draw()
        if options.tail and not self.healed and dice.draw() < options.tail:
            delay += options.tail_s * dice.draw() ** 2
        return delay

    def _deliver(self, link: Link, under: _Under) -> None:
        process = self.processes.get(link.to)
        if process is None or link.epoch != under.epoch or link.blocked:
            self._trace.lost(link.sender, link.to, under.messages, under.sent)
            return
        messages = under.messages
        if self.options.encoded:
            messages = decode_frame(encode_frame(messages))
        self._trace.delivered(link.sender, link.to, messages, under.sent)
        process.driver.receive(messages)

    # -- faults -------------------------------------------------------------------------------------------

    def block(self, sender: int, to: int) -> None:
        self.link(sender, to).blocked = True

    def clog(self, sender: int, to: int) -> None:
        self.link(sender, to).clogged = True

    def unclog(self, sender: int, to: int) -> None:
        """What was held back goes on, long after it was sent."""
        link = self.link(sender, to)
        link.clogged = False
        held, link.held = link.held, []
        for frame in held:
            if link.to in self.processes:
                self._schedule(link, frame)

    def cut(self, sender: int, to: int) -> None:
        """The stream breaks: what was sent last and has not arrived is lost."""
        link = self.link(sender, to)
        link.epoch += 1
        link.held.clear()

    def heal_link(self, sender: int, to: int) -> None:
        self.link(sender, to).blocked = False
        self.unclog(sender, to)

    def heal(self) -> None:
        for link in list(self._links.values()):
            self.heal_link(link.sender, link.to)

    def open(self, sender: int, to: int) -> bool:
        link = self.link(sender, to)
        return not link.blocked and not link.clogged


class PeerPort:
    """One process's raft.transport.Transport."""

    def __init__(self, network: Network, node: int, host: Host) -> None:
        self._network = network
        self._node = node
        self._host = host
        self.alive = True
        self.handlers: dict[str, CallHandler] = {}

    def send(self, messages: Iterable[Message]) -> None:
        if self.alive:
            self._network.transmit(self._node, messages)

    def set_peers(self, urls: Mapping[int, str]) -> None:
        return

    def handle(self, method: str, handler: CallHandler) -> None:
        self.handlers[method] = handler

    def send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        if not self.alive:
            return
        network = self._network
        data = network.processes[self._node].member.state_disk.images[image]
        network.observe_send(self._node, message)
        link = network.link(self._node, message.to)
        delay = 5 * network._delay(link)
        lost = not network.healed and network.options.drop and link.dice.draw() < network.options.drop
        network.loop.call_in(delay, self._host, self._snapshot_arrives, message, b"" if lost else data, done)
        if not network.healed and network.options.duplicate and link.dice.draw() < 2 * network.options.duplicate:
            # An attempt that was given up may still get through, when nobody waits for it any more.
            late = delay + 2.0 * link.dice.draw()
            network.loop.call_in(late, self._host, self._snapshot_arrives, message, data, None)

    def _snapshot_arrives(self, message: Message, data: bytes, done: Callable[[], None] | None) -> None:
        """On the sender's host; what the receiver does is a task of its own."""
        network = self._network
        receiver = network.processes.get(message.to)
        if not data or receiver is None or not network.open(self._node, message.to):
            self._snapshot_over(message.to, False, done)
            return
        network.loop.start_on(receiver.host, self._receive(receiver, message, data, done), "snapshot-in")

    async def _receive(
        self, receiver: Process, message: Message, data: bytes, done: Callable[[], None] | None
    ) -> None:
        ok = False
        try:
            ok = await receiver.take_snapshot(self._node, message, data)
        finally:
            self._network.loop.call_in(0.001, self._host, self._snapshot_over, message.to, ok, done)

    def _snapshot_over(self, to: int, ok: bool, done: Callable[[], None] | None) -> None:
        process = self._network.processes.get(self._node)
        if self.alive and process is not None and done is not None:
            process.driver.snapshot_sent(to, ok)
            done()

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask another member. A lost question or answer is found out by the time-out."""
        network = self._network
        target = network.processes.get(peer)
        if target is None or not self.alive or not network.open(self._node, peer):
            raise PeerCallError("no connection", refused=False, sent=False)
        answer = network.loop.create_future()

        async def serve() -> None:
            try:
                result: bytes | RaftError = await target.port.handlers[method](payload)
            except RaftError as error:
                result = PeerCallError(str(error), refused=True)
            if network.open(peer, self._node):
                network.loop.call_in(network.options.delay_s, self._host, settle, result)

        def settle(result: bytes | RaftError) -> None:
            if answer.done():
                return
            if isinstance(result, RaftError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        network.loop.call_in(
            network.options.delay_s, None, lambda: network.loop.start_on(target.host, serve(), "serve-peer")
        )
        async with asyncio.timeout(timeout_s):
            return bytes(await answer)

    def active_since(self, peer: int) -> float | None:
        network = self._network
        return 0.0 if peer in network.processes and network.open(self._node, peer) else None
