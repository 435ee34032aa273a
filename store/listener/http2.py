"""One HTTP/2 connection: bytes to libnghttp2, its events to calls, its output to the transport once per turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final, cast

import ngh2

from store.listener.call import Call
from store.listener.http2_plain import PlainStream
from store.listener.links import Listener
from store.listener.messages import Budget

log = logging.getLogger(__name__)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BULK_BYTES: Final = 1024 * 1024
"""With more than this unsent, output is taken in pieces so that it is not copied all at once."""
PIECE_BYTES: Final = 256 * 1024
SLICE_BYTES: Final = 16 * 1024
"""What one read brought is taken in slices of this size, so that the time it takes can be bounded."""
ANSWERS_PER_WRITE: Final = 16
"""Of direct calls, in one turn."""
TURN_S: Final = 0.005
"""A connection that has kept the loop this long goes on in the next turn, after the others."""
_NO_ERROR: Final = 0
_ENHANCE_YOUR_CALM: Final = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x0b"
"""A GOAWAY written by hand, for a session that libnghttp2 has given up."""
_PING: Final = b"kvorum\0\0"
_NOTICE: Final = b"kvorum\0\1"
"""The ping behind a notice to leave: a peer that answers it has had the notice."""


class Http2Connection(asyncio.Protocol):
    """A protocol for a transport whose first bytes are HTTP/2; the listener hands it over with those bytes."""

    def __init__(self, server: Listener, transport: asyncio.Transport) -> None:
        self.server = server
        self.limits = server.limits
        self.loop = server.loop
        self.h2 = ngh2.Connection(ngh2.Role.SERVER, server.http2_configuration)
        self.budget = Budget(max(server.limits.oversize_budget_bytes, server.limits.max_receive_message_bytes))
        self.running: set[Call] = set()
        self._transport = transport
        self._streams: dict[int, Call | PlainStream] = {}
        self._blocked: dict[int, list[asyncio.Future[None]]] = {}
        self._retired: dict[int, float] = {}  # answered and not ended: until when they may be
        self._rest = bytearray()  # was read, and waits for the next turn
        self._cut_off = 0
        self._flush_scheduled = False
        self._answers = 0
        self._paused = False
        self._closed = False
        self._draining = False
        self._noticed = False  # the peer knows about the drain
        self._greeted = False
        self._heard = True
        self._peer = ""
        self._names: tuple[bytes, ...] | None = None
        self._timer = self.loop.call_later(self.limits.handshake_timeout_s, self._check_greeting)
        self._linger: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=self.limits.transport_buffer_bytes)
        self._begin()

    def _begin(self) -> None:
        limits = self.limits
        self.h2.initiate_connection(
            {
                ngh2.Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
                ngh2.Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                ngh2.Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
            }
        )
        self.h2.set_local_window_size(limits.connection_window_bytes)
        self.schedule_flush()

    # -- who is there -------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """The peer's address as gRPC spells it."""
        if not self._peer:
            self._peer = peer_name(self._transport)
        return self._peer

    @property
    def common_names(self) -> tuple[bytes, ...]:
        """The common names of the client certificate; empty without one."""
        if self._names is None:
            certificate: dict[str, Any] = self._transport.get_extra_info("peercert") or {}
            pairs = (pair for group in certificate.get("subject", ()) for pair in group)
            self._names = tuple(value.encode() for key, value in pairs if key == "commonName")
        return self._names

    # -- from the transport -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._heard = True
        self.server.received_bytes += len(data)
        if self._rest:
            self._rest += data
        elif len(data) <= SLICE_BYTES:
            self._take(data)
        else:
            self._take_slices(data)
        if self._noticed:
            self._leave_when_done()

    def _take(self, data: bytes) -> None:
        try:
            self.h2.receive_data(data)
            self._dispatch()
        except (ngh2.NGH2Error, MemoryError) as error:
            self._give_up(error)
            return
        if not self._flush_scheduled and (self.h2.want_write or self._blocked):
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _take_slices(self, data: bytes) -> None:
        """Take what one read brought until this turn has been long enough, and the rest in the next one: it may
        be thousands of requests, and other connections wait."""
        until = self.loop.time() + TURN_S
        for start in range(0, len(data), SLICE_BYTES):
            if start and self.loop.time() > until:
                self._rest = bytearray(memoryview(data)[start:])
                self._transport.pause_reading()
                self.loop.call_soon(self._take_rest)
                return
            self._take(data[start : start + SLICE_BYTES])
            if self._closed:
                return

    def _take_rest(self) -> None:
        if self._closed:
            return
        rest, self._rest = bytes(self._rest), bytearray()
        self._take_slices(rest)
        if not self._rest and not self._closed:
            self._transport.resume_reading()
        if self._noticed:
            self._leave_when_done()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.schedule_flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._timer.cancel()
        self.server.forget(self)
        self._drop_streams()

    def _drop_streams(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.on_closed()
        for stream_id in list(self._blocked):
            self._unblock(stream_id)
        self._retired.clear()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _give_up(self, error: Exception) -> None:
        """The session cannot go on: say so as well as it can be said, and close."""
        if self._closed:
            return
        log.info("%s: closed, %s", self.peer, error or type(error).__name__)
        self._transport.write(_ENHANCE_YOUR_CALM)
        self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._drop_streams()
        # Closing waits until the peer has read what is buffered; one that never does is cut off.
        self._transport.close()
        self._timer.cancel()
        self._timer = self.loop.call_later(self.limits.keepalive_timeout_s, self._transport.abort)

    # -- events -------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        streams = self._streams
        for event in self.h2.events():
            kind = type(event)
            if kind is ngh2.DataReceived:
                data = cast(ngh2.DataReceived, event)
                stream = streams.get(data.stream_id)
                if stream is not None:
                    stream.on_data(data.data, data.end_stream)
                else:
                    self.acknowledge(data.stream_id, len(data.data))
            elif kind is ngh2.RequestReceived:
                self._on_request(cast(ngh2.RequestReceived, event))
            elif kind is ngh2.StreamClosed:
                self._on_stream_closed(cast(ngh2.StreamClosed, event).stream_id)
            elif kind is ngh2.TrailersReceived:
                stream = streams.get(cast(ngh2.TrailersReceived, event).stream_id)
                if stream is not None:
                    stream.on_data(b"", True)
            elif kind is ngh2.SettingsReceived:
                self._on_settings()
            elif kind is ngh2.PingAcknowledged:
                if self._draining and cast(ngh2.PingAcknowledged, event).opaque_data == _NOTICE:
                    self._on_noticed()
            elif kind is ngh2.ConnectionClosed:
                self._write_rest()
                self._close()
                return

    def _on_request(self, event: ngh2.RequestReceived) -> None:
        if self._closed:
            return  # by an earlier event of the same read
        fields = dict(event.headers)
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            stream: Call | PlainStream = PlainStream(self, event.stream_id, event.headers)
        else:
            handler, refusal = self.server.find(fields.get(b":path", b""), event.headers)
            if handler is None:
                self._refuse(event, refusal)
                return
            stream = Call(self, event.stream_id, event.headers, fields, handler)
        self._streams[event.stream_id] = stream
        stream.begin(event.end_stream)

    def _refuse(self, event: ngh2.RequestReceived, refusal: bytes) -> None:
        headers = [
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", b"12"),
            (b"grpc-message", refusal),
        ]
        try:
            self.h2.send_response(event.stream_id, headers, end_stream=True)
        except ngh2.StreamProtocolError:
            return  # its peer has given it up already
        if not event.end_stream:
            self.retire(event.stream_id)

    def _on_stream_closed(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        if self._retired:
            self._retired.pop(stream_id, None)
        if stream is not None:
            stream.on_closed()
        if stream_id in self._blocked:
            self._unblock(stream_id)

    def _on_settings(self) -> None:
        if not self._greeted:
            self._greeted = True
            self._timer.cancel()
            self._timer = self.loop.call_later(self.limits.keepalive_interval_s, self._check_alive)

    # -- flow control -------------------------------------------------------------------------------------

    def acknowledge(self, stream_id: int, count: int) -> None:
        """``count`` bytes of a stream were taken: the peer may send as many more."""
        if count and not self._closed:
            try:
                self.h2.acknowledge_received_data(count, stream_id)
            except (ngh2.NGH2Error, ValueError):
                return  # the session ends: nobody waits for a window any more
            if not self._flush_scheduled and self.h2.want_write:
                self.schedule_flush()

    def has_room(self, stream_id: int) -> bool:
        """Whether more may be written to a stream now, within the limits of stream and connection."""
        queued = self.h2.queued_body_size(stream_id)
        return not queued or (
            queued <= self.limits.send_queue_bytes
            and self.h2.queued_body_size() <= self.limits.connection_send_queue_bytes
        )

    async def wait_for_room(self, stream_id: int) -> None:
        while not self._closed and not self.has_room(stream_id):
            waiter = self.loop.create_future()
            self._blocked.setdefault(stream_id, []).append(waiter)
            await waiter

    def _unblock(self, stream_id: int) -> None:
        for waiter in self._blocked.pop(stream_id):
            if not waiter.done():
                waiter.set_result(None)

    def retire(self, stream_id: int) -> None:
        """Leave a stream that is answered to its peer, who has not ended it; and cut it off if that takes long.

        Most often the end is on its way: clients send it in a frame of its own, or when they see the answer."""
        self._retired[stream_id] = self.loop.time() + self.limits.linger_s
        if self._linger is None:
            self._linger = self.loop.call_later(self.limits.linger_s, self._cut_off_late)

    def cut(self, stream_id: int, error_code: int) -> None:
        """Reset a stream; nothing when it or the session has ended meanwhile."""
        try:
            self.h2.reset_stream(stream_id, error_code)
        except ngh2.NGH2Error:
            return
        except MemoryError as error:
            self._give_up(error)
        self.schedule_flush()

    # -- output -------------------------------------------------------------------------------------------

    def schedule_flush(self) -> None:
        """Have what is pending written in the next turn of the loop, together with all that joins it."""
        if not self._flush_scheduled and not self._closed:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def answered(self) -> None:
        """One more answer is complete. The first of a turn leaves at once, since a client may wait for nothing
        else; then some at a time: the client works on them while the rest of this turn's answers are made."""
        self._answers += 1
        if self._answers % ANSWERS_PER_WRITE == 1 and not (self._closed or self._paused):
            try:
                self._write()
            except (ngh2.NGH2Error, MemoryError) as error:
                self._give_up(error)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._answers = 0
        if self._closed or self._paused:
            return
        try:
            self._write()
            self._dispatch()
        except (ngh2.NGH2Error, MemoryError) as error:
            self._give_up(error)
            return
        if self._blocked and not self._closed:
            for stream_id in [number for number in self._blocked if self.has_room(number)]:
                self._unblock(stream_id)
        if self._noticed:
            self._leave_when_done()

    def _write(self) -> None:
        if self.h2.queued_body_size() < BULK_BYTES:
            self._write_rest()
            return
        while not self._paused:
            data = self.h2.data_to_send(PIECE_BYTES)
            if not data:
                return
            self._put_out(data)

    def _write_rest(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self._put_out(data)

    def _put_out(self, data: bytes) -> None:
        self.server.sent_bytes += len(data)
        self._transport.write(data)

    def _cut_off_late(self) -> None:
        self._linger = None
        self._flush()
        if self._closed:
            return
        now = self.loop.time()
        for stream_id, until in list(self._retired.items()):
            if until > now:
                break
            del self._retired[stream_id]
            if self._is_answer_out(stream_id):
                self._cut_off += 1
                self.cut(stream_id, _NO_ERROR)
            else:
                self._retired[stream_id] = now + self.limits.linger_s
        if self._retired:
            self._linger = self.loop.call_at(next(iter(self._retired.values())), self._cut_off_late)
        if self._cut_off >= self.limits.max_cut_off:
            self.drain()

    def _is_answer_out(self, stream_id: int) -> bool:
        """Trailers wait for the window like data, and all waits for the peer to read: a reset overtakes both."""
        h2 = self.h2
        try:
            return (
                not self._paused
                and not h2.want_write
                and not h2.queued_body_size(stream_id)
                and h2.remote_window_size > 0
                and h2.stream_remote_window_size(stream_id) > 0
            )
        except ngh2.StreamUnavailableError:
            return True

    # -- timers and the end -------------------------------------------------------------------------------

    def _check_greeting(self) -> None:
        log.info("%s: closed, no SETTINGS within %g s", self.peer, self.limits.handshake_timeout_s)
        self._transport.abort()

    def _check_alive(self) -> None:
        limits = self.limits
        if self._heard:
            self._heard = False
            self._timer = self.loop.call_later(limits.keepalive_interval_s, self._check_alive)
            return
        try:
            self.h2.ping(_PING)
        except ngh2.NGH2Error:
            self._transport.abort()
            return
        self.schedule_flush()
        self._timer = self.loop.call_later(limits.keepalive_timeout_s, self._check_answer)

    def _check_answer(self) -> None:
        if self._heard:
            self._check_alive()
            return
        log.info("%s: closed, no sign of life", self.peer)
        self._transport.abort()

    def drain(self) -> None:
        """Ask the peer to open its next streams elsewhere; close when it knows and those of before have ended."""
        if self._closed or self._draining:
            return
        self._draining = True
        if not self._greeted:
            self._say_goodbye()
            return
        try:
            self.h2.send_shutdown_notice()
            self._write_rest()  # libnghttp2 sends a ping ahead of all else
            self.h2.ping(_NOTICE)
        except (ngh2.NGH2Error, MemoryError) as error:
            self._give_up(error)
            return
        self.schedule_flush()
        self._timer.cancel()
        self._timer = self.loop.call_later(self.limits.keepalive_timeout_s, self._wait_no_longer)

    def _on_noticed(self) -> None:
        self._noticed = True
        self._timer.cancel()
        self._timer = self.loop.call_later(self.limits.keepalive_interval_s, self._check_alive)

    def _wait_no_longer(self) -> None:
        self._on_noticed()  # or it does not answer pings
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        """To be called when all of a read was taken: it may have brought requests sent before the notice."""
        if not self._streams and not self._rest:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        if self._closed:
            return
        try:
            self._write_rest()  # what is queued when the session is terminated is never sent
            with contextlib.suppress(ngh2.ConnectionStateError):  # the peer said goodbye first
                self.h2.terminate_connection(_NO_ERROR)
            self._write_rest()
        except (ngh2.NGH2Error, MemoryError) as error:
            self._give_up(error)
            return
        self._close()

    def stop(self) -> None:
        """Close now, whatever is still running."""
        self._say_goodbye()

    def abort(self, *, only_if_sent: bool = False) -> None:
        """Close without waiting for the peer to take what it has not taken."""
        if not (only_if_sent and self._transport.get_write_buffer_size()):
            self._transport.abort()


def peer_name(transport: asyncio.BaseTransport) -> str:
    """A transport's peer as ``ipv4:HOST:PORT``, ``ipv6:[HOST]:PORT`` or ``unix:``."""
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[0], address[1]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
