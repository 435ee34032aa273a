"""Messages between members over grpc.aio: one long-lived stream per direction, many messages a frame.

Sending never waits: what cannot be queued is dropped and reported, since Raft repeats itself. Each stream
opens with a handshake in its metadata, so a message for another cluster or another member is refused before
it is read (M40). Snapshots travel on streams of their own, and members can call each other (forwarded lease
renewals and the like) with an ordinary unary call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import grpc

from raft.codec import decode_frame, encode_frame
from raft.core.types import Message, MessageType
from raft.errors import CodecError, RaftError
from raft.log import Identity

log = logging.getLogger(__name__)

SEND_QUEUE_MESSAGES: Final = 4096
FRAME_BYTES_SOFT: Final = 2 << 20
"""A frame is closed once its messages' entries exceed this, so that one peer's backlog is not one allocation."""
SNAPSHOT_CHUNK_BYTES: Final = 256 << 10
HANDSHAKE_TIMEOUT_S: Final = 3.0
RECONNECT_MIN_S: Final = 0.05
RECONNECT_MAX_S: Final = 0.5

_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]  # missing from the stubs
_SERVICE: Final = "kvorum.Raft"
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


class PeerHandler(Protocol):
    """What the transport delivers to: the driver. None of these may block."""

    def receive(self, messages: Sequence[Message]) -> None: ...
    def peer_unreachable(self, peer: int) -> None: ...
    def snapshot_sent(self, peer: int, ok: bool) -> None: ...
    async def receive_snapshot(self, message: Message, image: Path) -> None:
        """A complete, synced snapshot image has arrived; the file is the handler's from here on."""
        ...


class PeerCallError(RaftError):
    """A call to another member failed; ``refused`` says the member answered and said no."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


class Transport(Protocol):
    """How the driver reaches its peers."""

    def send(self, messages: Iterable[Message]) -> None: ...
    def set_peers(self, urls: Mapping[int, str]) -> None: ...
    def send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None: ...
    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes: ...
    def active_since(self, peer: int) -> float | None: ...


class _Peer:
    """The sending side towards one member: a bounded queue, and a task that keeps a stream open and drains it."""

    def __init__(
        self, identity: Identity, peer: int, target: str, handler: PeerHandler, on_connect: Callable[[], None]
    ) -> None:
        self.id = peer
        self._on_connect = on_connect
        self.target = target
        self.active_since: float | None = None
        self.dropped = 0
        self._handler = handler
        self._queue: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._channel = grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        self._metadata = _handshake(identity, peer)
        self._stream = self._channel.stream_stream(f"/{_SERVICE}/Messages", None, None)
        self._snapshot = self._channel.stream_unary(f"/{_SERVICE}/Snapshot", None, None)
        self._call = self._channel.unary_unary(f"/{_SERVICE}/Call", None, None)

    def send(self, message: Message) -> None:
        if self.active_since is None or len(self._queue) >= SEND_QUEUE_MESSAGES:
            self.dropped += 1
            self._handler.peer_unreachable(self.id)
            return
        self._queue.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Keep the stream open until cancelled."""
        backoff = RECONNECT_MIN_S
        last_error = ""
        try:
            while True:
                try:
                    await self._drain_stream()
                except (grpc.aio.AioRpcError, TimeoutError, ConnectionError) as error:
                    text = _describe(error)
                    if text != last_error:
                        log.info("peer %x at %s: %s", self.id, self.target, text)
                        last_error = text
                if self.active_since is not None:
                    backoff, last_error = RECONNECT_MIN_S, ""
                self._lost()
                await asyncio.sleep(backoff)  # the other side may be down: there is no event to wait for
                backoff = min(backoff * 2, RECONNECT_MAX_S)
        finally:
            self._lost()
            await self._channel.close(None)

    def _lost(self) -> None:
        self.active_since = None
        self._queue.clear()
        self._handler.peer_unreachable(self.id)

    async def _drain_stream(self) -> None:
        call = self._stream(None, metadata=self._metadata)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                if await call.read() is _EOF:
                    raise ConnectionError("the stream was closed during the handshake")
            self.active_since = time.monotonic()
            log.info("peer %x at %s: connected", self.id, self.target)
            self._on_connect()
            call.add_done_callback(lambda _: self._wake.set())
            while True:
                await self._wake.wait()
                self._wake.clear()
                if call.done():
                    raise ConnectionError(f"the stream ended: {await call.details() or await call.code()}")
                while self._queue:
                    await call.write(self._next_frame())
        finally:
            call.cancel()

    def _next_frame(self) -> bytes:
        queue = self._queue
        batch: list[Message] = []
        size = 0
        while queue and size < FRAME_BYTES_SOFT:
            message = queue.popleft()
            batch.append(message)
            size += sum([len(entry.data) for entry in message.entries])
        return encode_frame(batch)

    async def stream_snapshot(self, message: Message, image: Path) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield encode_frame([message])
            file = await asyncio.to_thread(image.open, "rb")
            try:
                while chunk := await asyncio.to_thread(file.read, SNAPSHOT_CHUNK_BYTES):
                    yield chunk
            finally:
                file.close()

        await self._snapshot(chunks(), metadata=self._metadata)

    async def call(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        metadata = (*self._metadata, ("kvorum-method", method))
        try:
            return bytes(await self._call(payload, metadata=metadata, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.ABORTED
            raise PeerCallError(error.details() or error.code().name, refused=refused) from error


class GrpcTransport:
    """A Transport over grpc.aio. ``start`` before use, then ``run`` as a task until cancelled, then ``stop``."""

    def __init__(self, identity: Identity, inbox_dir: Path) -> None:
        self._identity = identity
        self._bound_handler: PeerHandler | None = None
        self._inbox_dir = inbox_dir
        self._server: grpc.aio.Server | None = None
        self._peers: dict[int, _Peer] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._wanted: dict[int, str] = {}
        self._removed: set[int] = set()
        self._calls: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}
        self._snapshot_number = 0
        self._connection_made = asyncio.Event()
        self.refused_streams = 0
        self.bad_frames = 0

    @property
    def _handler(self) -> PeerHandler:
        assert self._bound_handler is not None, "the transport is not started"
        return self._bound_handler

    async def start(self, listen: Sequence[str], handler: PeerHandler) -> None:
        """Listen on each ``host:port`` and deliver to ``handler``. Raises OSError when one cannot be bound."""
        self._bound_handler = handler
        server = grpc.aio.server(options=_SERVER_OPTIONS, maximum_concurrent_rpcs=256)
        server.add_generic_rpc_handlers((_Services(self),))
        for address in listen:
            try:
                bound = server.add_insecure_port(address)
            except RuntimeError as error:
                raise OSError(f"cannot listen on {address}: {error}") from error
            if bound == 0:
                raise OSError(f"cannot listen on {address}: the address is in use")
        await server.start()
        self._server = server

    async def run(self) -> None:
        """Keep the streams to the peers open. Ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._reconcile()
            await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=0.1)

    def set_peers(self, urls: Mapping[int, str]) -> None:
        """The members to talk to, by id, as ``host:port``. A peer whose address changed is dialled anew."""
        self._wanted = {peer: target for peer, target in urls.items() if peer != self._identity.member_id}
        if self._group is not None:
            self._reconcile()

    def set_removed(self, members: Iterable[int]) -> None:
        """Members that were removed for good: their streams are refused, and told why."""
        self._removed = set(members)

    def _reconcile(self) -> None:
        assert self._group is not None
        for peer_id in list(self._peers):
            if self._wanted.get(peer_id) != self._peers[peer_id].target:
                self._tasks.pop(peer_id).cancel()
                del self._peers[peer_id]
        for peer_id, target in self._wanted.items():
            if peer_id not in self._peers:
                peer = _Peer(self._identity, peer_id, target, self._handler, self._connection_made.set)
                self._peers[peer_id] = peer
                self._tasks[peer_id] = self._group.create_task(peer.run(), name=f"peer-{peer_id:x}")

    def send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            peer = self._peers.get(message.to)
            if peer is not None:
                peer.send(message)

    def active_since(self, peer: int) -> float | None:
        """When (time.monotonic) the stream to ``peer`` was established; None while it is down."""
        found = self._peers.get(peer)
        return None if found is None else found.active_since

    async def wait_connected(self, count: int) -> None:
        """Return once streams to ``count`` peers are open."""
        while sum(peer.active_since is not None for peer in self._peers.values()) < count:
            self._connection_made.clear()
            await self._connection_made.wait()

    def send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        """Stream an image in the background, report the outcome to the handler, then call ``done``."""
        assert self._group is not None
        self._group.create_task(self._send_snapshot(message, image, done))

    async def _send_snapshot(self, message: Message, image: Path, done: Callable[[], None]) -> None:
        ok = False
        try:
            peer = self._peers.get(message.to)
            if peer is not None:
                await peer.stream_snapshot(message, image)
                ok = True
        except grpc.aio.AioRpcError as error:
            log.warning("snapshot to %x failed: %s", message.to, _describe(error))
            self._handler.peer_unreachable(message.to)
        finally:
            self._handler.snapshot_sent(message.to, ok)
            done()

    async def call(self, peer: int, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask another member. Raises PeerCallError."""
        found = self._peers.get(peer)
        if found is None:
            raise PeerCallError(f"no address known for member {peer:x}", refused=False)
        return await found.call(method, payload, timeout_s)

    def handle(self, method: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer calls of other members. A RaftError the handler raises reaches the caller as 'refused'."""
        self._calls[method] = handler

    def statistics(self) -> Mapping[str, float]:
        return {
            "dropped": sum(peer.dropped for peer in self._peers.values()),
            "connected": sum(peer.active_since is not None for peer in self._peers.values()),
            "refused_streams": self.refused_streams,
            "bad_frames": self.bad_frames,
        }

    # the receiving side

    async def admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> int:
        """The id of the member that opened this stream; refuses it when it is not meant for us."""
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        try:
            cluster = int(str(metadata["kvorum-cluster"]), 16)
            sender = int(str(metadata["kvorum-from"]), 16)
            to = int(str(metadata["kvorum-to"]), 16)
        except (KeyError, ValueError):
            await self._refuse(context, "this is the peer port of a Kvorum member; clients use the client port")
        if cluster != self._identity.cluster_id:
            await self._refuse(
                context, f"cluster id mismatch: this is cluster {self._identity.cluster_id:x}, not {cluster:x}"
            )
        if to != self._identity.member_id:
            await self._refuse(context, f"this is member {self._identity.member_id:x}, not {to:x}")
        if sender in self._removed:
            await self._refuse(context, f"member {sender:x} was removed from the cluster")
        return sender

    async def _refuse(self, context: grpc.aio.ServicerContext[Any, Any], text: str) -> NoReturn:
        self.refused_streams += 1
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    async def serve_messages(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        sender = await self.admit(context)
        yield b""
        own = self._identity.member_id
        async for frame in requests:
            try:
                messages = decode_frame(frame)
            except CodecError as error:
                self.bad_frames += 1
                log.warning("frame of %d bytes from member %x dropped: %s", len(frame), sender, error)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            self._handler.receive([m for m in messages if m.to == own and m.from_ == sender])

    async def serve_snapshot(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        sender = await self.admit(context)
        self._snapshot_number += 1
        path = self._inbox_dir / f"incoming-{self._snapshot_number}.snap"
        message: Message | None = None
        file = await asyncio.to_thread(path.open, "wb")
        try:
            async for chunk in requests:
                if message is None:
                    message = await self._snapshot_header(chunk, sender, context)
                else:
                    await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(_sync_and_close, file)
            if message is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an empty snapshot stream")
            await self._handler.receive_snapshot(message, path)
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise
        return b""

    async def _snapshot_header(
        self, chunk: bytes, sender: int, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Message:
        try:
            messages = decode_frame(chunk)
        except CodecError as error:
            self.bad_frames += 1
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        own = self._identity.member_id
        if (
            len(messages) != 1
            or messages[0].type is not MessageType.SNAP
            or messages[0].snapshot is None
            or (messages[0].to, messages[0].from_) != (own, sender)
        ):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a snapshot stream begins with its message")
        return messages[0]

    async def serve_call(self, payload: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await self.admit(context)
        method = str(dict(context.invocation_metadata() or ()).get("kvorum-method", ""))
        handler = self._calls.get(method)
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown member call {method!r}")
        try:
            return await handler(payload)
        except RaftError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))


class _Services(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Routes the three methods; requests and responses are plain bytes."""

    def __init__(self, transport: GrpcTransport) -> None:
        self._handlers = {
            f"/{_SERVICE}/Messages": grpc.stream_stream_rpc_method_handler(transport.serve_messages),
            f"/{_SERVICE}/Snapshot": grpc.stream_unary_rpc_method_handler(transport.serve_snapshot),
            f"/{_SERVICE}/Call": grpc.unary_unary_rpc_method_handler(transport.serve_call),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(handler_call_details.method)


def _handshake(identity: Identity, to: int) -> tuple[tuple[str, str], ...]:
    return (
        ("kvorum-cluster", f"{identity.cluster_id:x}"),
        ("kvorum-from", f"{identity.member_id:x}"),
        ("kvorum-to", f"{to:x}"),
    )


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name
    return str(error) or type(error).__name__


def _sync_and_close(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
