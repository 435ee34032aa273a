"""Unary calls that are answered by a callback, without a task: for what is asked thousands of times a second.

A ``DirectHandler`` has one more function, which is offered each request first. It either takes the call, and
answers through it then or later, or declines, and the ordinary handler is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc


class DirectCall(Protocol):
    """A call as a direct handler knows it. Answering one that has ended meanwhile does nothing."""

    gone: Callable[[], None] | None
    """Called when the call ends before it is answered: its client gave up, or its time is over."""

    def carries(self, names: frozenset[bytes]) -> bool: ...
    def reply(self, data: bytes) -> None: ...
    def refuse(self, code: int, text: str) -> None: ...


Direct = Callable[[bytes, DirectCall], bool]
"""Takes a call with its request as bytes, or returns False and has done nothing."""


class DirectHandler(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # not generic at run time
    """A unary handler with a direct way beside it. A server that knows nothing of it sees the ordinary one."""

    def __init__(self, handler: grpc.RpcMethodHandler[Any, Any], direct: Direct) -> None:
        self.request_streaming = self.response_streaming = False
        self.request_deserializer = handler.request_deserializer
        self.response_serializer = handler.response_serializer
        self.unary_unary = handler.unary_unary
        self.unary_stream = self.stream_unary = self.stream_stream = None
        self.direct = direct
