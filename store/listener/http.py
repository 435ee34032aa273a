"""What a plain HTTP handler sees and answers, the same over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request with its whole body. Header names are in lower case."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    common_names: tuple[bytes, ...] = ()

    def values(self, name: str) -> list[str]:
        """Every value of a query parameter."""
        return [value for key, value in self.query if key == name]


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer: ``body``, or what ``stream`` yields until it ends or the peer goes."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None


HttpApplication = Callable[[HttpRequest], Awaitable[HttpResponse]]


async def not_found(_request: HttpRequest) -> HttpResponse:
    """The application of a listener that serves gRPC alone."""
    return HttpResponse(404, b"404 page not found\n")
