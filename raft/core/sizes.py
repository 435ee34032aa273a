"""Sizes of entries, as every byte limit of the core counts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from .types import Entry

NO_LIMIT: Final = (1 << 64) - 1
"""A limit nothing reaches."""

ENTRY_OVERHEAD: Final = 12
"""Bytes that term, index and type are taken to cost beside the data, so that empty entries are not free."""

_data = itemgetter(Entry._fields.index("data"))


def payload_size(entries: Iterable[Entry]) -> int:
    """Bytes of data; what quotas and inflight windows count. An empty entry costs nothing."""
    return sum(map(len, map(_data, entries)))


def entries_size(entries: Sequence[Entry]) -> int:
    """Bytes in all; what the sizes of messages and batches are limited by."""
    return sum(map(len, map(_data, entries))) + ENTRY_OVERHEAD * len(entries)


def limit_size(entries: Sequence[Entry], max_size: int) -> Sequence[Entry]:
    """The longest prefix of at most ``max_size`` bytes, but at least one entry if there is any."""
    if len(entries) <= 1 or max_size >= NO_LIMIT or entries_size(entries) <= max_size:
        return entries
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry.data) + ENTRY_OVERHEAD
        if size > max_size:
            return entries[: max(count, 1)]
    return entries
