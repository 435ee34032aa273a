"""Messages between members over TCP: one long-lived connection per direction, many messages a frame.

Sending never waits: what a slow or absent peer cannot take is dropped and reported, since Raft repeats
itself. Each connection opens with a greeting, so a message for another cluster or another member is refused
before it is read (M40). Snapshots travel on connections of their own, and members can call each other
(forwarded lease renewals and the like) over the message connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgpack

from raft.codec import decode_frame, encode_frame
from raft.core.types import Message, MessageType
from raft.errors import CodecError, RaftError, RemovedError
from raft.framing import FrameProtocol, Hello, Kind, peer_address
from raft.histogram import ROUND_TRIP_SECONDS, Histogram
from raft.log import Identity

log = logging.getLogger(__name__)

UNSENT_BYTES_MAX: Final = 32 << 20
"""What may wait in the socket of a peer that reads slowly; beyond it, messages are dropped."""
FRAME_BYTES_SOFT: Final = 4 << 20
SNAPSHOT_CHUNK_BYTES: Final = 256 << 10
SNAPSHOT_CHUNKS_QUEUED: Final = 16
GREETING_TIMEOUT_S: Final = 3.0
SNAPSHOT_ANSWER_TIMEOUT_S: Final = 60.0
PING_INTERVAL_S: Final = 1.0
SILENCE_MAX_S: Final = 3.0
INCOMING_SILENCE_MAX_S: Final = 10.0
RECONNECT_MIN_S: Final = 0.05
RECONNECT_MAX_S: Final = 0.5
INCOMING_MAX: Final = 128


class PeerHandler(Protocol):
    """What the transport delivers to: the driver. None of these may block."""

    def receive(self, messages: Sequence[Message]) -> None: ...
    def peer_unreachable(self, peer: int) -> None: ...
    def snapshot_sent(self, peer: int, ok: bool) -> None: ...
    async def receive_snapshot(self, message: Message, image: Path) -> None:
        """A complete, synced snapshot image has arrived; the file is the handler's from here on."""
        ...


class PeerCallError(RaftError):
    """A call to another member failed. ``refused``: the member answered and said no. ``sent``: it may have been
    carried out, and the answer is lost."""

    def __init__(self, text: str, *, refused: bool, sent: bool = True) -> None:
        super().__init__(text)
        self.refused = refused
        self.sent = sent


class Transport(Protocol):
    """How the driver reaches its peers."""

    def send(self, messages: Iterable[Message]) -> None: ...
    def set_peers(self, urls: Mapping[int, str]) -> None: ...
    def send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None: ...
    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes: ...
    def active_since(self, peer: int) -> float | None: ...


CallHandler = Callable[[bytes], Awaitable[bytes]]


class _Outgoing(FrameProtocol):
    """The dialling end of a connection: greets, then sends; hears only answers and pongs."""

    def __init__(self, hello: Hello) -> None:
        super().__init__()
        self._hello = hello
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.gone_reason = ""
        self.answers: dict[int, asyncio.Future[bytes]] = {}
        self.round_trips: Histogram | None = None
        self._pinged_at = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(Kind.HELLO, self._hello.encode())

    def frame_received(self, kind: int, payload: bytes) -> None:
        if kind == Kind.WELCOME:
            self.greeted = True
            _resolve(self.welcome, None)
        elif kind in (Kind.REFUSED, Kind.REMOVED):
            self.gone_reason = payload.decode(errors="replace")
            error = RemovedError if kind == Kind.REMOVED else ConnectionRefusedError
            _fail(self.welcome, error(self.gone_reason))
        elif kind == Kind.ANSWER:
            number, refusal, answer = msgpack.unpackb(payload)
            future = self.answers.pop(number, None)
            if future is None:
                return  # its caller gave up
            if refusal is None:
                _resolve(future, answer)
            else:
                _fail(future, PeerCallError(refusal, refused=True))
        elif kind == Kind.END:
            _resolve(self.finished, None)
        elif kind == Kind.PONG and self.round_trips is not None:
            self.round_trips.observe(time.perf_counter() - self._pinged_at)

    def ping(self) -> None:
        self._pinged_at = time.perf_counter()
        self.send(Kind.PING)

    def closed(self, reason: str) -> None:
        self.gone_reason = self.gone_reason or reason
        error = ConnectionResetError(self.gone_reason)
        waiting: list[asyncio.Future[Any]] = [self.welcome, self.finished, *self.answers.values()]
        for future in waiting:
            _fail(future, error)
        self.gone.set()


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # nobody may be waiting for it


class _Peer:
    """The sending side towards one member: a connection that is kept open."""

    def __init__(self, transport: TcpTransport, peer: int, target: str) -> None:
        self.id = peer
        self.target = target
        self.active_since: float | None = None
        self.dropped = 0
        self.sent_bytes = 0
        self.round_trips = Histogram(ROUND_TRIP_SECONDS)
        self._owner = transport
        self._connection: _Outgoing | None = None
        self._call_number = 0

    def send(self, messages: Sequence[Message]) -> None:
        connection = self._connection
        if connection is None or connection.unsent_bytes > UNSENT_BYTES_MAX:
            self.dropped += len(messages)
            self._owner.handler.peer_unreachable(self.id)
            return
        size = start = 0
        for position, message in enumerate(messages):
            size += sum([len(entry.data) for entry in message.entries])
            if size > FRAME_BYTES_SOFT:
                self._send_frame(connection, messages[start : position + 1])
                start, size = position + 1, 0
        if start < len(messages):
            self._send_frame(connection, messages[start:])

    def _send_frame(self, connection: _Outgoing, messages: Sequence[Message]) -> None:
        frame = encode_frame(messages)
        self.sent_bytes += len(frame)
        connection.send(Kind.MESSAGES, frame)

    async def run(self) -> None:
        """Keep the connection open until cancelled."""
        loop = asyncio.get_running_loop()
        backoff, last_trouble = RECONNECT_MIN_S, ""
        while True:
            try:
                connection = await self.dial("messages")
            except (OSError, TimeoutError) as error:
                trouble = _describe(error)
                if isinstance(error, RemovedError):
                    self._owner.on_removed()
            else:
                self._connection, self.active_since = connection, loop.time()
                connection.round_trips = self.round_trips
                backoff, last_trouble = RECONNECT_MIN_S, ""
                log.info("peer %x at %s: connected", self.id, self.target)
                self._owner.connection_made.set()
                try:
                    await _keep_alive(connection)
                finally:
                    self._connection = self.active_since = None
                    connection.abort()
                    self._owner.handler.peer_unreachable(self.id)
                trouble = connection.gone_reason
            if trouble != last_trouble:
                log.info("peer %x at %s: %s", self.id, self.target, trouble)
                last_trouble = trouble
            await asyncio.sleep(backoff)  # the other side is down: there is no event to wait for
            backoff = min(backoff * 2, RECONNECT_MAX_S)

    async def dial(self, purpose: str) -> _Outgoing:
        """A connection that has been welcomed. Raises OSError or TimeoutError."""
        identity = self._owner.identity
        hello = Hello(identity.cluster_id, identity.member_id, self.id, purpose)
        return await _dial(self.target, hello, self._owner.client_ssl, GREETING_TIMEOUT_S)

    async def call(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        connection = self._connection
        if connection is None:
            raise PeerCallError(f"member {self.id:x} is not connected", refused=False, sent=False)
        self._call_number += 1
        number = self._call_number
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        connection.answers[number] = future
        connection.send(Kind.CALL, msgpack.packb((number, method, payload)))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise PeerCallError(f"member {self.id:x} did not answer in {timeout_s:g} s", refused=False) from None
        except OSError as error:
            raise PeerCallError(_describe(error), refused=False) from None
        finally:
            connection.answers.pop(number, None)

    async def stream_snapshot(self, message: Message, image: Path) -> None:
        """Send an image and wait until the peer has it. Raises OSError or TimeoutError."""
        connection = await self.dial("snapshot")
        try:
            connection.send(Kind.MESSAGES, encode_frame([message]))
            file = await asyncio.to_thread(image.open, "rb")
            try:
                while chunk := await asyncio.to_thread(file.read, SNAPSHOT_CHUNK_BYTES):
                    connection.send(Kind.CHUNK, chunk)
                    await _drained(connection)
            finally:
                file.close()
            connection.send(Kind.END)
            async with asyncio.timeout(SNAPSHOT_ANSWER_TIMEOUT_S):
                await connection.finished
        finally:
            connection.abort()


async def _dial(target: str, hello: Hello, client_ssl: ssl.SSLContext | None, timeout_s: float) -> _Outgoing:
    host, _, port = target.rpartition(":")
    connection: _Outgoing | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Outgoing(hello), host.strip("[]"), int(port), ssl=client_ssl
            )
            await connection.welcome
    except (ValueError, OverflowError) as error:
        raise OSError(f"{target} cannot be dialled: {error}") from None
    except BaseException:
        if connection is not None:
            connection.abort()
        raise
    return connection


async def describe(target: str, timeout_s: float, client_ssl: ssl.SSLContext | None = None) -> bytes:
    """What the member at ``target`` says of its cluster. Raises OSError or TimeoutError."""
    connection = await _dial(target, Hello(0, 0, 0, "describe"), client_ssl, timeout_s)
    try:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        connection.answers[0] = future
        connection.send(Kind.CALL, msgpack.packb((0, "describe", b"")))
        async with asyncio.timeout(timeout_s):
            return await future
    except PeerCallError as error:
        raise ConnectionRefusedError(str(error)) from None
    finally:
        connection.abort()


async def _keep_alive(connection: _Outgoing) -> None:
    """Return when the connection is gone, or has been silent for too long (a peer that was paused or cut off)."""
    loop = asyncio.get_running_loop()
    while not connection.gone.is_set():
        connection.ping()
        try:
            async with asyncio.timeout_at(_next_beat(loop)):
                await connection.gone.wait()
        except TimeoutError:
            if loop.time() - connection.last_received > SILENCE_MAX_S:
                connection.gone_reason = f"silent for {SILENCE_MAX_S:g} s"
                return


def _next_beat(loop: asyncio.AbstractEventLoop) -> float:
    """When pings are due next: at the same instants for all connections, since an idle member pays for being
    woken and hardly for what it then does."""
    return (loop.time() // PING_INTERVAL_S + 1) * PING_INTERVAL_S


async def _drained(connection: _Outgoing) -> None:
    """Wait while much is unsent, as long as the peer reads on."""
    before = connection.unsent_bytes
    waited = 0.0
    while connection.unsent_bytes > 8 * SNAPSHOT_CHUNK_BYTES:
        await asyncio.sleep(0.005)  # uvloop's transports tell of room only by their buffer size
        waited = 0.0 if connection.unsent_bytes < before else waited + 0.005
        before = connection.unsent_bytes
        if connection.gone.is_set() or waited > GREETING_TIMEOUT_S:
            raise ConnectionResetError(connection.gone_reason or "the peer stopped reading")


class _Incoming(FrameProtocol):
    """The accepting end of a connection."""

    def __init__(self, owner: TcpTransport) -> None:
        super().__init__()
        self._owner = owner
        self._sender = 0
        self._purpose = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._snapshot: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._owner.incoming) >= INCOMING_MAX:
            self.abort()
            return
        self._owner.incoming.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(GREETING_TIMEOUT_S, self.reject, "no greeting in time")

    @property
    def is_snapshot(self) -> bool:
        """A snapshot's stream may be silent for as long as this side makes it wait."""
        return self._snapshot is not None

    def closed(self, reason: str) -> None:
        self._owner.incoming.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._snapshot is not None:
            self._snapshot.cancel()

    def reject(self, reason: str) -> None:
        self._owner.refused += 1
        log.warning("connection from %s refused: %s", peer_address(self.transport), reason)
        if self.transport is not None and not self.transport.is_closing():
            self.send(Kind.REFUSED, reason.encode())
            self.transport.close()
        self.forget_input()

    def frame_received(self, kind: int, payload: bytes) -> None:
        if not self.greeted:
            self._greet(kind, payload)
        elif kind == Kind.PING:
            self.send(Kind.PONG)
        elif self._purpose == "snapshot":
            self._snapshot_frame(kind, payload)
        elif self._purpose == "describe":
            if kind != Kind.CALL:
                raise CodecError(f"a frame of kind {kind}")
            self.send(Kind.ANSWER, msgpack.packb((0, None, self._owner.describe())))
        elif kind == Kind.MESSAGES:
            own = self._owner.identity.member_id
            self._owner.received_bytes[self._sender] += len(payload)
            messages = decode_frame(payload)
            self._owner.handler.receive([m for m in messages if m.to == own and m.from_ == self._sender])
        elif kind == Kind.CALL:
            self._owner.serve_call(self, payload)
        else:
            raise CodecError(f"a frame of kind {kind}")

    def _greet(self, kind: int, payload: bytes) -> None:
        if kind != Kind.HELLO:
            raise CodecError("not a Kvorum member")
        hello = Hello.decode(payload)
        if self._owner.was_removed(hello):
            self.send(Kind.REMOVED, f"member {hello.from_:x} was removed from the cluster".encode())
        refusal = self._owner.refusal(hello)
        if refusal:
            self.reject(refusal)
            return
        assert self._deadline is not None
        self._deadline.cancel()
        self.greeted, self._sender, self._purpose = True, hello.from_, hello.purpose
        self.send(Kind.WELCOME)

    def _snapshot_frame(self, kind: int, payload: bytes) -> None:
        if kind == Kind.MESSAGES and self._snapshot is None:
            message = self._snapshot_message(payload)
            self._snapshot = self._owner.spawn(
                self._owner.take_snapshot(message, self._chunks, self._taken, self.abort)
            )
        elif kind in (Kind.CHUNK, Kind.END) and self._snapshot is not None:
            self._chunks.put_nowait(payload if kind == Kind.CHUNK else None)
            if self._chunks.qsize() > SNAPSHOT_CHUNKS_QUEUED and self.transport is not None:
                self.transport.pause_reading()
        else:
            raise CodecError(f"a frame of kind {kind} in a snapshot stream")

    def _taken(self, done: bool) -> None:
        """The snapshot's taker made room, or has it all."""
        if self.transport is None:
            return
        if done:
            self.send(Kind.END)
        elif self._chunks.qsize() <= SNAPSHOT_CHUNKS_QUEUED // 2:
            self.transport.resume_reading()

    def _snapshot_message(self, payload: bytes) -> Message:
        messages = decode_frame(payload)
        own = self._owner.identity.member_id
        if len(messages) != 1 or messages[0].type is not MessageType.SNAP or messages[0].snapshot is None:
            raise CodecError("a snapshot stream begins with its message")
        if (messages[0].to, messages[0].from_) != (own, self._sender):
            raise CodecError("a snapshot for another member")
        return messages[0]


class Listening(Protocol):
    """What is listening, until it is closed."""

    def close(self) -> None: ...


Serve = Callable[[Callable[[], asyncio.Protocol], str, int], Awaitable[Listening]]


async def _serve_plain(factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listening:
    return await asyncio.get_running_loop().create_server(factory, host, port)


class TcpTransport:
    """A Transport over TCP. ``start`` before use, then ``run`` as a task until cancelled, then ``stop``."""

    def __init__(self, identity: Identity, inbox_dir: Path) -> None:
        self.identity = identity
        self.client_ssl: ssl.SSLContext | None = None
        self.serve: Serve = _serve_plain
        """Opens a listening address; another one may put TLS in front of the protocol."""
        self.incoming: set[_Incoming] = set()
        self.connection_made = asyncio.Event()
        self.describe: Callable[[], bytes] = bytes
        """What anyone may be told of this cluster."""
        self.on_removed: Callable[[], None] = _nothing
        """Called when a peer says that this member was removed."""
        self.refused = 0
        self.received_bytes: Counter[int] = Counter()
        """Of messages, by the member that sent them."""
        self._bound_handler: PeerHandler | None = None
        self._inbox_dir = inbox_dir
        self._servers: list[Listening] = []
        self._peers: dict[int, _Peer] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._wanted: dict[int, str] = {}
        self._removed: set[int] = set()
        self._calls: dict[str, CallHandler] = {}
        self._snapshot_number = 0

    @property
    def handler(self) -> PeerHandler:
        assert self._bound_handler is not None, "the transport is not started"
        return self._bound_handler

    async def start(self, listen: Sequence[str], handler: PeerHandler) -> None:
        """Listen on each ``host:port`` and deliver to ``handler``. Raises OSError when one cannot be bound."""
        self._bound_handler = handler
        for address in listen:
            host, _, port = address.rpartition(":")
            try:
                server = await self.serve(lambda: _Incoming(self), host.strip("[]"), int(port))
            except OSError as error:
                await self.stop()
                if isinstance(error, socket.gaierror):  # its numbers are not those of the system's errors
                    reason = (error.strerror or str(error)).lower()
                else:
                    reason = os.strerror(error.errno).lower() if error.errno else str(error)
                raise OSError(f"cannot listen on {address} for peers: {reason}") from None
            self._servers.append(server)

    async def run(self) -> None:
        """Keep the connections to the peers open. Ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._reconcile()
            loop = asyncio.get_running_loop()
            while True:
                await asyncio.sleep(_next_beat(loop) - loop.time())  # time is what is waited for
                self._close_silent()

    def _close_silent(self) -> None:
        """Incoming connections whose other end is gone without a word: a living one pings every second."""
        oldest = asyncio.get_running_loop().time() - INCOMING_SILENCE_MAX_S
        for connection in list(self.incoming):
            if connection.last_received < oldest and not connection.is_snapshot:
                connection.abort()

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self.incoming):
            connection.abort()

    def set_peers(self, urls: Mapping[int, str]) -> None:
        """The members to talk to, by id, as ``host:port``. A peer whose address changed is dialled anew."""
        self._wanted = {peer: target for peer, target in urls.items() if peer != self.identity.member_id}
        if self._group is not None:
            self._reconcile()

    def set_removed(self, members: Iterable[int]) -> None:
        """Members that were removed for good: their connections are refused, and told why."""
        self._removed = set(members)

    def _reconcile(self) -> None:
        assert self._group is not None
        for peer_id in list(self._peers):
            if self._wanted.get(peer_id) != self._peers[peer_id].target:
                self._tasks.pop(peer_id).cancel()
                del self._peers[peer_id]
        for peer_id, target in self._wanted.items():
            if peer_id not in self._peers:
                peer = _Peer(self, peer_id, target)
                self._peers[peer_id] = peer
                self._tasks[peer_id] = self._group.create_task(peer.run(), name=f"peer-{peer_id:x}")

    def spawn(self, coroutine: Any) -> asyncio.Task[None]:
        """Run something for a connection among this transport's tasks."""
        assert self._group is not None, "the transport does not run"
        return self._group.create_task(coroutine)

    def send(self, messages: Iterable[Message]) -> None:
        by_peer: dict[int, list[Message]] = {}
        for message in messages:
            by_peer.setdefault(message.to, []).append(message)
        for peer_id, batch in by_peer.items():
            peer = self._peers.get(peer_id)
            if peer is not None:
                peer.send(batch)

    def active_since(self, peer: int) -> float | None:
        """When (loop time) the connection to ``peer`` was made; None while it is down."""
        found = self._peers.get(peer)
        return None if found is None else found.active_since

    async def wait_connected(self, count: int) -> None:
        """Return once connections to ``count`` peers are open."""
        while sum(peer.active_since is not None for peer in self._peers.values()) < count:
            self.connection_made.clear()
            await self.connection_made.wait()

    def send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        """Stream an image in the background, report the outcome to the handler, then call ``done``."""
        self.spawn(self._send_snapshot(message, image, done))

    async def _send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        ok = False
        try:
            peer = self._peers.get(message.to)
            if peer is not None:
                await peer.stream_snapshot(message, image)
                ok = True
        except (OSError, TimeoutError) as error:
            log.warning("snapshot to %x failed: %s", message.to, _describe(error))
            self.handler.peer_unreachable(message.to)
        finally:
            self.handler.snapshot_sent(message.to, ok)
            done()

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask another member. Raises PeerCallError."""
        found = self._peers.get(peer)
        if found is None:
            raise PeerCallError(f"no address known for member {peer:x}", refused=False, sent=False)
        return await found.call(method, payload, timeout_s)

    def handle(self, method: str, handler: CallHandler) -> None:
        """Answer calls of other members. A RaftError the handler raises reaches the caller as 'refused'."""
        self._calls[method] = handler

    def statistics(self) -> Mapping[str, float]:
        return {
            "dropped": sum(peer.dropped for peer in self._peers.values()),
            "connected": sum(peer.active_since is not None for peer in self._peers.values()),
            "refused": self.refused,
        }

    def sent_bytes(self) -> Mapping[int, int]:
        """Bytes of messages for each peer."""
        return {number: peer.sent_bytes for number, peer in self._peers.items()}

    def round_trips(self) -> Mapping[int, Histogram]:
        """How long pings of each peer took, in seconds."""
        return {number: peer.round_trips for number, peer in self._peers.items()}

    # the receiving side

    def refusal(self, hello: Hello) -> str:
        """Why a connection is not welcome; empty when it is."""
        own = self.identity
        if hello.purpose == "describe":
            return ""
        if hello.cluster_id != own.cluster_id:
            return f"cluster id mismatch: this is cluster {own.cluster_id:x}, not {hello.cluster_id:x}"
        if hello.to != own.member_id:
            return f"this is member {own.member_id:x}, not {hello.to:x}"
        if hello.from_ in self._removed:
            return f"member {hello.from_:x} was removed from the cluster"
        if hello.purpose not in ("messages", "snapshot"):
            return f"unknown purpose {hello.purpose!r}"
        return ""

    def was_removed(self, hello: Hello) -> bool:
        return hello.cluster_id == self.identity.cluster_id and hello.from_ in self._removed

    def serve_call(self, connection: FrameProtocol, payload: bytes) -> None:
        try:
            number, method, argument = msgpack.unpackb(payload)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CodecError(f"a damaged call: {error}") from None
        handler = self._calls.get(method) if isinstance(method, str) else None
        self.spawn(self._answer(connection, number, method, handler, argument))

    async def _answer(
        self, connection: FrameProtocol, number: int, method: str, handler: CallHandler | None, argument: bytes
    ) -> None:
        error: str | None = None
        answer = b""
        if handler is None:
            error = f"unknown member call {method!r}"
        else:
            try:
                answer = await handler(argument)
            except RaftError as refused:
                error = str(refused)
            except Exception as defect:  # of the handler: its caller must hear of it, and nobody else suffer
                log.exception("member call %r failed", method)
                error = f"{type(defect).__name__}: {defect}"
        connection.send(Kind.ANSWER, msgpack.packb((number, error, answer)))

    async def take_snapshot(
        self,
        message: Message,
        chunks: asyncio.Queue[bytes | None],
        taken: Callable[[bool], None],
        failed: Callable[[], None],
    ) -> None:
        """Write an image as it arrives; hand it over once it is complete and synced."""
        self._snapshot_number += 1
        path = self._inbox_dir / f"incoming-{self._snapshot_number}.snap"
        try:
            file = await asyncio.to_thread(path.open, "wb")
            try:
                while (chunk := await chunks.get()) is not None:
                    await asyncio.to_thread(file.write, chunk)
                    taken(False)
                await asyncio.to_thread(_sync_and_close, file)
            finally:
                file.close()
            await self.handler.receive_snapshot(message, path)
        except (OSError, RaftError) as error:
            log.warning("a snapshot from %x was not taken: %s", message.from_, _describe(error))
            failed()
            return
        finally:
            path.unlink(missing_ok=True)
        taken(True)


def _nothing() -> None:
    return


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
