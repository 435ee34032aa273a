"""One port for gRPC over HTTP/2 and for plain HTTP: an asyncio listener over libnghttp2 and aiohttp.

It takes the servicers of grpc.aio, and costs a small part of it: libnghttp2 frames, everything that is answered
in one turn of the loop leaves in one write, and a call is one task. Nothing in here knows what is served.
"""

from store.listener.http import HttpApplication, HttpRequest, HttpResponse
from store.listener.limits import Limits
from store.listener.server import Server
from store.tls import ServerTls, TlsError, TlsFiles, client_context

__all__ = [
    "HttpApplication",
    "HttpRequest",
    "HttpResponse",
    "Limits",
    "Server",
    "ServerTls",
    "TlsError",
    "TlsFiles",
    "client_context",
]
