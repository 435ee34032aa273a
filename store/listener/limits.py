"""What one peer may ask of a listener. Every limit has its unit last; every default says where it is from."""

from __future__ import annotations

from dataclasses import dataclass

from ngh2 import Configuration


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a listener and of each of its connections."""

    max_receive_message_bytes: int = 4 * 1024 * 1024
    """gRPC's usual default; larger messages are refused when their length is read, before their body."""
    max_send_message_bytes: int = (1 << 31) - 1
    max_concurrent_streams: int = 65_536
    """Per connection. etcd sets no bound; this one is beyond what clients use and within what memory holds."""
    stream_window_bytes: int = 256 * 1024
    """What a peer may send on a stream before the handler takes it."""
    connection_window_bytes: int = 16 * 1024 * 1024
    oversize_budget_bytes: int = 64 * 1024 * 1024
    """Sum of the messages larger than a stream's window that a connection may have in assembly."""
    send_queue_bytes: int = 64 * 1024
    """A handler that has this much unsent on its stream waits before it writes more."""
    connection_send_queue_bytes: int = 8 * 1024 * 1024
    """Above this, a handler waits until its own stream has nothing unsent."""
    transport_buffer_bytes: int = 256 * 1024
    header_list_bytes: int = 64 * 1024
    """Decoded request headers, RFC 9113 overhead included; advertised to the peer."""
    max_continuations: int = 8
    resets: tuple[int, int] = (5_000, 1_000)
    """Streams a peer may reset: burst and per second. Busy clients cancel many calls; an attacker, more."""
    linger_s: float = 1.0
    """A peer that is answered before it has ended its request may end it by itself so long; then it is cut off."""
    max_cut_off: int = 256
    """Streams that were cut off, until their connection is left for another: a DATA frame that was on its way then
    takes up to 16 KiB of the connection's window with it, since libnghttp2 never gives that back."""
    handshake_timeout_s: float = 10.0
    """From accepting to the first request of HTTP/1.1 or the first frame of HTTP/2, TLS included."""
    keepalive_interval_s: float = 60.0
    """Silence after which a ping asks whether the peer still lives."""
    keepalive_timeout_s: float = 20.0
    http_header_timeout_s: float = 10.0
    http_body_timeout_s: float = 30.0
    http_idle_timeout_s: float = 75.0
    max_http_body_bytes: int = 4 * 1024 * 1024

    def http2_configuration(self) -> Configuration:
        """The part of these limits that libnghttp2 keeps."""
        return Configuration(
            auto_window_update=False,
            stream_reset_rate_limit=self.resets,
            max_continuations=self.max_continuations,
            max_inbound_header_list_size=self.header_list_bytes,
            max_inbound_header_count=1024,
            max_send_header_block_length=1024 * 1024,
        )
