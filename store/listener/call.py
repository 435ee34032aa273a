"""One gRPC call on one HTTP/2 stream: the servicer's context, its requests, its answer, its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
import ngh2

from store.listener.direct import Direct
from store.listener.links import GONE, INTERNAL_ERROR, StreamOwner
from store.listener.messages import CODE_EXHAUSTED, CODE_INTERNAL, PREFIX_BYTES, Deframer, MessageError, frame
from store.listener.metadata import (
    Headers,
    MalformedHeader,
    Metadata,
    decode_metadata,
    decode_timeout,
    encode_message,
    encode_metadata,
)

log = logging.getLogger(__name__)

RESPONSE_HEADERS: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK_TRAILERS: Final = [(b"grpc-status", b"0")]
_ENCODINGS: Final = (b"grpc-accept-encoding", b"identity,gzip")
_COPY_BELOW_BYTES: Final = 64 * 1024
_MESSAGES_PER_TURN: Final = 64
_CANCELLED: Final = 1
_UNKNOWN: Final = 2
_DEADLINE: Final = 4
_UNIMPLEMENTED: Final = 12
_UNAVAILABLE: Final = 14
_EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in its stubs
_STATUS: Final = {status.value[0]: status for status in grpc.StatusCode}


class Call(grpc.aio.ServicerContext):  # type: ignore[type-arg]  # not generic at run time
    """The context of one call, offering what grpc.aio's offers. Created by a connection, for a known method."""

    # How every call begins: on the class, since most of it never changes and each put is a call.
    _metadata: Metadata | None = None
    _task: asyncio.Task[None] | None = None
    _deframer: Deframer | None = None
    _reader: asyncio.Future[None] | None = None
    _taken = 0
    _deadline: asyncio.TimerHandle | None = None
    _deadline_at = 0.0
    _trailing: Any = None
    _trailers: Headers = ()
    _code = 0
    _details = ""
    _answered = False  # response headers are out
    _ended = False  # trailers are out
    _started = False  # a handler has the request
    _entered = False  # its task has begun to run
    _half_closed = False  # the peer has sent all it will
    _closed = False  # the stream is gone
    _cancelled = False
    _aborted = False
    _callbacks: tuple[Callable[[Any], None], ...] = ()
    gone: Callable[[], None] | None = None
    """See store.listener.direct."""

    def __init__(
        self,
        connection: StreamOwner,
        stream_id: int,
        headers: Headers,
        fields: Mapping[bytes, bytes],
        handler: Any,
    ) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._headers = headers
        self._fields = fields
        self._handler = handler

    # -- what the connection tells ------------------------------------------------------------------------

    def begin(self, half_closed: bool) -> None:
        """Start a call whose headers have arrived."""
        self._half_closed = half_closed
        timeout = self._fields.get(b"grpc-timeout")
        if timeout is not None:
            try:
                seconds = decode_timeout(timeout)
            except MalformedHeader as error:
                self._finish(CODE_INTERNAL, str(error))
                return
            loop = self._connection.loop
            self._deadline_at = loop.time() + seconds
            self._deadline = loop.call_at(self._deadline_at, self._expire)
        if self._handler.request_streaming:
            self._start(None)
        elif half_closed:
            self._no_request()

    def on_data(self, data: bytes, half_closed: bool) -> None:
        """Take bytes of the request; ``half_closed`` with the last ones."""
        self._half_closed = self._half_closed or half_closed
        connection, streaming = self._connection, self._handler.request_streaming
        if self._ended or (self._started and not streaming):
            connection.acknowledge(self._stream_id, len(data))
            return
        if self._deframer is None:
            if not streaming and half_closed and data[:1] == b"\0" and self._is_whole(data):
                connection.acknowledge(self._stream_id, len(data))
                self._start(data[PREFIX_BYTES:])
                return
            self._deframer = self._make_deframer()
        try:
            self._deframer.feed(data)
        except MessageError as error:
            self._fail(error.code, error.text)
            return
        if half_closed and self._deframer.partial:
            self._fail(CODE_INTERNAL, "unexpected EOF")
        elif streaming:
            self._wake_reader()
        elif (message := self._deframer.take()) is not None:
            self._start(message)
        elif half_closed:
            self._no_request()

    def _is_whole(self, data: bytes) -> bool:
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        return len(data) == PREFIX_BYTES + size and size <= self._connection.limits.max_receive_message_bytes

    def _make_deframer(self) -> Deframer:
        connection, limits = self._connection, self._connection.limits
        return Deframer(
            limits.max_receive_message_bytes,
            limits.stream_window_bytes,
            self._fields.get(b"grpc-encoding", b""),
            connection.budget,
            lambda count: connection.acknowledge(self._stream_id, count),
        )

    def _no_request(self) -> None:
        self._fail(
            CODE_INTERNAL, "cardinality violation: received no request message from non-client-streaming RPC"
        )

    def on_closed(self) -> None:
        """The stream is gone: whoever still works for it is cancelled."""
        self._closed = True
        if not self._ended:
            self._cancelled = True
            self._ended = True
            self._end_work()
        self._release()

    def cancel(self, details: str) -> asyncio.Task[None] | None:
        """End the call as the server stops: UNAVAILABLE, so that clients go on elsewhere; the task to wait for."""
        self._cancelled = True
        self._fail(_UNAVAILABLE, details)
        return self._task

    # -- running the handler ------------------------------------------------------------------------------

    def _start(self, message: bytes | None) -> None:
        self._started = True
        self._connection.running.add(self)
        if message is not None:
            direct = getattr(self._handler, "direct", None)
            if direct is not None and self._offer(direct, message):
                return
        self._task = self._connection.loop.create_task(self._run(message))

    def _offer(self, direct: Direct, message: bytes) -> bool:
        try:
            return direct(message, self)
        except Exception as error:
            log.error("a direct handler failed", exc_info=error)
            self.refuse(_UNKNOWN, f"Unexpected {type(error)}: {error}")
            return True

    def reply(self, data: bytes) -> None:
        """The encoded answer of a direct call. Does nothing when the call has ended meanwhile."""
        if not self._ended:
            self._answer(0, "", data)
            self._connection.answered()

    def refuse(self, code: int, text: str) -> None:
        """The status of a direct call that was not carried out."""
        if not self._ended:
            self._answer(code, text)

    def _answer(self, code: int, text: str, data: bytes | None = None) -> None:
        try:
            if data is not None:
                self._send(data)
        except (ngh2.NGH2Error, MemoryError):
            self._break_off()
        self._finish(code, text)
        self.gone = None  # it may hold the request, and this object lives until a collection finds it
        self._call_back()

    async def _run(self, message: bytes | None) -> None:
        self._entered = True
        try:
            await self._serve(message)
        except asyncio.CancelledError:
            self._finish(_CANCELLED, "context canceled")
        except MessageError as wrong:
            self._finish(wrong.code, wrong.text)
        except Exception as error:
            if not self._aborted:
                if not self._cancelled:
                    log.error("a handler failed", exc_info=error)
                self._code, self._details = _UNKNOWN, f"Unexpected {type(error)}: {error}"
            self._finish(self._code, self._details)
        finally:
            self._connection.running.discard(self)
            if self._callbacks:
                self._call_back()

    async def _serve(self, message: bytes | None) -> None:
        handler = self._handler
        requests: Any = _Requests(self) if message is None else self._deserialize(message)
        if not handler.response_streaming:
            answer = await (handler.stream_unary if message is None else handler.unary_unary)(requests, self)
            if not self._code and not self._ended:
                self._deliver((self._serialize(answer),))
        else:
            result = (handler.stream_stream if message is None else handler.unary_stream)(requests, self)
            if hasattr(result, "__aiter__"):
                async for answer in result:
                    await self.write(answer)
            else:
                await result
        self._finish(self._code, self._details)

    def _deserialize(self, message: bytes) -> Any:
        decode = self._handler.request_deserializer
        if decode is None:
            return message
        try:
            return decode(message)
        except Exception as error:
            raise MessageError(CODE_INTERNAL, f"grpc: error unmarshalling request: {error}") from None

    def _serialize(self, answer: Any) -> bytes:
        encode = self._handler.response_serializer
        data: bytes = answer if encode is None else encode(answer)
        limit = self._connection.limits.max_send_message_bytes
        if len(data) > limit:
            raise MessageError(
                CODE_EXHAUSTED, f"grpc: trying to send message larger than max ({len(data)} vs. {limit})"
            )
        return data

    def _expire(self) -> None:
        self._deadline = None
        self._cancelled = True
        self._fail(_DEADLINE, "context deadline exceeded")

    def _fail(self, code: int, text: str) -> None:
        """End the call from outside its handler."""
        self._finish(code, text)
        self._end_work()

    def _end_work(self) -> None:
        """Whoever works for this call need not go on."""
        if self._task is None:
            self._end_direct()
            return
        self._task.cancel()
        if not self._entered:  # a task that is cancelled before its first step never takes one
            self._connection.running.discard(self)
            self._call_back()

    def _end_direct(self) -> None:
        """The call has ended without an answer, and no task works for it."""
        gone, self.gone = self.gone, None
        if gone is not None:
            try:
                gone()
            except Exception as error:
                log.error("whoever worked for a call failed to stop", exc_info=error)
        self._call_back()

    # -- requests -----------------------------------------------------------------------------------------

    async def next_message(self) -> bytes | None:
        """The next request of a stream as bytes; None after the last."""
        self._taken += 1
        if self._taken % _MESSAGES_PER_TURN == 0:
            await asyncio.sleep(0)  # a long backlog must not keep the loop from everything else
        while True:
            deframer = self._deframer
            if deframer is not None and (message := deframer.take()) is not None:
                return message
            if self._half_closed or self._ended:
                return None
            self._reader = self._connection.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> Any:
        """The next request; grpc.aio.EOF after the last."""
        message = await self.next_message()
        return _EOF if message is None else self._deserialize(message)

    # -- answers ------------------------------------------------------------------------------------------

    async def write(self, message: Any) -> None:
        """Send one answer, and wait while the peer takes less than is written.

        Raises:
            grpc.aio.UsageError: the call has ended.
        """
        if self._ended:
            raise grpc.aio.UsageError("RPC already finished.")
        self._deliver((self._serialize(message),))
        connection = self._connection
        if not connection.has_room(self._stream_id):
            await connection.wait_for_room(self._stream_id)

    async def write_many(self, messages: Sequence[bytes]) -> None:
        """Send answers that are encoded already, in one go; then as ``write``."""
        if self._ended:
            raise grpc.aio.UsageError("RPC already finished.")
        self._deliver(messages)
        connection = self._connection
        if not connection.has_room(self._stream_id):
            await connection.wait_for_room(self._stream_id)

    def _deliver(self, messages: Sequence[bytes]) -> None:
        try:
            if len(messages) == 1:
                self._send(messages[0])
            else:
                self._send_framed(b"".join(map(frame, messages)))
        except GONE:
            self._lose()

    def _send(self, data: bytes) -> None:
        if len(data) < _COPY_BELOW_BYTES:
            self._send_framed(frame(data))
        else:
            self._send_framed(b"\0" + len(data).to_bytes(4, "big"))
            self._send_framed(data)

    def _send_framed(self, data: bytes) -> None:
        connection, stream_id = self._connection, self._stream_id
        if not self._answered:
            connection.h2.send_response(stream_id, RESPONSE_HEADERS)
            self._answered = True
        connection.h2.send_data(stream_id, data)
        connection.schedule_flush()

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send the response's headers now."""
        if self._answered:
            raise grpc.aio.UsageError("Send initial metadata failed: already sent")
        if self._ended:
            raise grpc.aio.UsageError("RPC already finished.")
        headers = [*RESPONSE_HEADERS, *encode_metadata(initial_metadata)]
        try:
            self._connection.h2.send_response(self._stream_id, headers)
        except GONE:
            self._lose()
            return
        self._answered = True
        self._connection.schedule_flush()

    def _finish(self, code: int, details: str) -> None:
        """Send the status, once. Raises nothing: whoever ends a call is not concerned with its connection."""
        if self._ended:
            return
        self._ended = True
        self._code, self._details = code, details
        try:
            if not self._closed:
                self._send_trailers()
                if not self._half_closed:
                    self._connection.retire(self._stream_id)
        except (ngh2.NGH2Error, MemoryError):
            self._break_off()
        self._release()

    def _lose(self) -> None:
        """The stream is gone, as the connection will say."""
        self._break_off()
        self.on_closed()

    def _break_off(self) -> None:
        """What cannot be sent is mostly for a stream or a session that is gone; one that is not must not stay."""
        self._closed = True
        self._connection.cut(self._stream_id, INTERNAL_ERROR)

    def _send_trailers(self) -> None:
        connection = self._connection
        if self._code == 0 and not self._trailers:
            trailers = OK_TRAILERS
        else:
            trailers = [(b"grpc-status", b"%d" % self._code)]
            if self._details:
                trailers.append((b"grpc-message", encode_message(self._details)))
            trailers += self._trailers
        if self._answered:
            connection.h2.send_trailers(self._stream_id, trailers)
        else:
            accepts = [_ENCODINGS] if self._code == _UNIMPLEMENTED else []
            connection.h2.send_response(self._stream_id, [*RESPONSE_HEADERS, *accepts, *trailers], end_stream=True)
            self._answered = True
        connection.schedule_flush()

    def _release(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._deframer is not None:
            self._deframer.close()
        if self._task is None:
            self._connection.running.discard(self)
        self._wake_reader()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:  # others wait for their turn behind this one
                log.error("a callback of a call failed", exc_info=error)

    # -- the rest of a servicer's context -----------------------------------------------------------------

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with a status other than OK; always raises."""
        if code is grpc.StatusCode.OK:
            code, details = grpc.StatusCode.UNKNOWN, f"abort with OK: {details}"
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self._aborted = True
        self._code, self._details = code.value[0], details
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: Any) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._trailers = encode_metadata(trailing_metadata)
        self._trailing = trailing_metadata

    def trailing_metadata(self) -> Any:
        return self._trailing

    def invocation_metadata(self) -> Any:
        if self._metadata is None:
            self._metadata = decode_metadata(self._headers)
        return self._metadata

    def carries(self, names: frozenset[bytes]) -> bool:
        """Whether the request's headers have one of these names."""
        return not names.isdisjoint(self._fields)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code.value[0]

    def set_details(self, details: str) -> None:
        self._details = details

    def code(self) -> Any:
        return _STATUS[self._code]

    def details(self) -> str:
        return self._details

    def set_compression(self, compression: Any) -> None:
        """Answers are never compressed; a client that accepts compression accepts that."""

    def disable_next_message_compression(self) -> None:
        """Nothing to disable."""

    def peer(self) -> str:
        return self._connection.peer

    def peer_identities(self) -> Iterable[bytes] | None:
        names = self._connection.common_names
        return names or None

    def peer_identity_key(self) -> str | None:
        return "x509_common_name" if self._connection.common_names else None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        names = self._connection.common_names
        return {"x509_common_name": names} if names else {}

    def time_remaining(self) -> Any:
        if not self._deadline_at:
            return None
        return max(0.0, self._deadline_at - self._connection.loop.time())

    def add_done_callback(self, callback: Any) -> None:
        self._callbacks += (callback,)

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._ended


class _Requests(AsyncIterator[Any]):
    """The requests of a stream, for ``async for``."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    async def __anext__(self) -> Any:
        message = await self._call.next_message()
        if message is None:
            raise StopAsyncIteration
        return self._call._deserialize(message)
