"""One seed, many independent streams of chance.

Every purpose draws from a stream of its own, named by what it is for, so that one more draw in one place does not
change what all other places do.
"""

from __future__ import annotations

import hashlib
import random


def derived(seed: int, *names: object) -> int:
    """A 64-bit number that depends on the seed and the names, and on nothing else."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def stream(seed: int, *names: object) -> random.Random:
    """A generator for one purpose."""
    return random.Random(derived(seed, *names))
