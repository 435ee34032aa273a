"""A revision as one integer. Imports nothing: a process that converts a database needs no more than this.

A revision has a main part, which clients see, and a sub part that orders the changes inside one transaction.
Both are packed in one integer, ``main << 24 | sub``, here called the version's *position*: it orders all
versions, is the row id in the state database, and fits an array of 64-bit integers.
"""

from __future__ import annotations

from typing import Final

SUB_BITS: Final = 24
MAX_SUB: Final = (1 << SUB_BITS) - 1


def position(main: int, sub: int = 0) -> int:
    return main << SUB_BITS | sub


def last_position(main: int) -> int:
    """The largest position a change of revision ``main`` can have."""
    return main << SUB_BITS | MAX_SUB
