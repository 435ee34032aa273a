"""Free ports for processes that take a base port. The operating system says what is free."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 15_000, 32_000  # below the range from which outgoing connections take theirs


def free_base(count: int) -> int:
    """The first of ``count`` consecutive ports that nobody listens on now."""
    for _ in range(200):
        base = random.SystemRandom().randrange(_FIRST, _LAST - count)
        if all(_is_free(base + offset) for offset in range(count)):
            return base
    raise RuntimeError(f"no {count} free consecutive ports between {_FIRST} and {_LAST}")


def free_port() -> int:
    return free_base(1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
