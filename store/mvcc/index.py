"""Which versions every key has, in memory: the newest one whole, older ones as positions only.

The values of older versions are in the state database; this index says which rows to read for a range at an
older revision, and which rows a compaction deletes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from store.mvcc.position import last_position, position
from store.mvcc.record import Version

FROM_KEY: Final = b"\x00"
"""As range_end: every key from ``key`` on (contract §2)."""

LIFECYCLE_LIMIT: Final = 1 << 17
"""Births and deaths of keys remembered, at least, for counting at an older revision."""


class KeyIndex:
    """The ordered set of keys and the positions of their versions.

    Invariants: ``history[k]`` holds, ascending, every version of k but the live one, each as
    ``position * 2 + is_tombstone``; a key is in ``keys`` if and only if it is in ``live``; a key with a history
    and no live version is in ``dead``.
    """

    def __init__(self) -> None:
        self.live: dict[bytes, Version] = {}
        self.keys: SortedList[bytes] = SortedList()
        self.history: dict[bytes, array[int]] = {}
        self.dead: SortedList[bytes] = SortedList()
        # Births and deaths in order, as ``position * 2 + is_death`` and key: two columns, not tuples, since
        # there may be as many as keys.
        self._lifecycle = array("q")
        self._lifecycle_keys: list[bytes] = []
        self._lifecycle_from = 0

    # -- changes ------------------------------------------------------------------------------------------

    def put(self, version: Version) -> None:
        """Make ``version`` the live one of its key."""
        key = version.key
        previous = self.live.get(key)
        if previous is not None:
            past = self.history.get(key)
            if past is None:
                self.history[key] = array("q", (previous.pos * 2,))
            else:
                past.append(previous.pos * 2)
        else:
            self.keys.add(key)
            if key in self.history:
                self.dead.remove(key)
            self._note_lifecycle(version.pos * 2, key)
        self.live[key] = version

    def delete(self, key: bytes, pos: int) -> None:
        """End the live generation of ``key`` with a tombstone at ``pos``."""
        previous = self.live.pop(key)
        self.history.setdefault(key, array("q")).extend((previous.pos * 2, pos * 2 + 1))
        self.keys.remove(key)
        self.dead.add(key)
        self._note_lifecycle(pos * 2 + 1, key)

    def _note_lifecycle(self, entry: int, key: bytes) -> None:
        log = self._lifecycle
        log.append(entry)
        self._lifecycle_keys.append(key)
        if len(log) >= 2 * LIFECYCLE_LIMIT:
            del log[:LIFECYCLE_LIMIT]
            del self._lifecycle_keys[:LIFECYCLE_LIMIT]
            self._lifecycle_from = log[0] >> 1

    def loaded(self, next_pos: int) -> None:
        """Complete the index after ``live`` and ``history`` were filled from the state database.

        Building the ordered sets at once is far cheaper than key by key. ``next_pos`` is the first position a
        change from now on can have.
        """
        self.keys = SortedList(self.live)
        self.dead = SortedList(key for key in self.history if key not in self.live)
        self._lifecycle_from = next_pos

    # -- ranges -------------------------------------------------------------------------------------------

    def count(self, key: bytes, end: bytes) -> int:
        """Number of live keys of a range."""
        if not end:
            return int(key in self.live)
        return _size_between(self.keys, key, end)

    def live_in(self, key: bytes, end: bytes) -> list[Version]:
        """Newest versions of a range, in key order, as a list of their own."""
        if not end:
            version = self.live.get(key)
            return [] if version is None else [version]
        live = self.live
        return [live[k] for k in _between(self.keys, key, end)]

    def first_in(self, key: bytes, end: bytes, limit: int) -> list[Version]:
        """The first ``limit`` newest versions of a range."""
        if not end:
            return self.live_in(key, end)
        live = self.live
        return [live[k] for k in islice(_between(self.keys, key, end), limit)]

    def at(self, key: bytes, revision: int) -> Version | int | None:
        """What ``key`` was at ``revision``: the live version, the position of an older one, or None."""
        bound = last_position(revision)
        version = self.live.get(key)
        if version is not None and version.pos <= bound:
            return version
        past = self.history.get(key)
        if past is None:
            return None
        at = bisect_right(past, bound * 2 + 1)
        if at == 0 or past[at - 1] & 1:
            return None
        return past[at - 1] >> 1

    def range_at(self, key: bytes, end: bytes, revision: int, limit: int) -> list[Version | int]:
        """Up to ``limit`` (0: all) entries of a range at an older revision, in key order."""
        if not end:
            found = self.at(key, revision)
            return [] if found is None else [found]
        out: list[Version | int] = []
        for k in merge(_between(self.keys, key, end), _between(self.dead, key, end)):
            found = self.at(k, revision)
            if found is not None:
                out.append(found)
                if len(out) == limit:
                    break
        return out

    def count_at(self, key: bytes, end: bytes, revision: int) -> int:
        """Number of keys of a range at an older revision.

        A page of a list at a pinned revision asks for this count each time; walking back the births and
        deaths since then is much shorter than walking the range.
        """
        if not end:
            return int(self.at(key, revision) is not None)
        since = position(revision + 1)
        count = _size_between(self.keys, key, end)
        first = bisect_left(self._lifecycle, since * 2)
        if since < self._lifecycle_from or len(self._lifecycle) - first > count + len(self.dead):
            entries = merge(_between(self.keys, key, end), _between(self.dead, key, end))
            return sum(1 for k in entries if self.at(k, revision) is not None)
        for number in range(first, len(self._lifecycle)):
            k = self._lifecycle_keys[number]
            if k >= key and (end == FROM_KEY or k < end):
                count += 1 if self._lifecycle[number] & 1 else -1
        return count

    def before(self, key: bytes, pos: int) -> Version | int | None:
        """The version of ``key`` that the change at ``pos`` replaced: None for a creation."""
        version = self.live.get(key)
        if version is not None and version.pos < pos:
            return version
        past = self.history.get(key)
        if past is None:
            return None
        at = bisect_left(past, pos * 2)
        if at == 0 or past[at - 1] & 1:
            return None
        return past[at - 1] >> 1

    # -- compaction ---------------------------------------------------------------------------------------

    def compact_key(self, key: bytes, revision: int) -> list[int]:
        """Forget what a compaction at ``revision`` drops of one key; returns the positions of those rows.

        Kept are the newest version at or below the revision unless it is a tombstone, everything above, and
        a tombstone exactly at the revision, so that a watch from there sees the deletion (contract §5).
        """
        past = self.history.get(key)
        if past is None:
            return []
        drop = bisect_right(past, last_position(revision) * 2 + 1)
        version = self.live.get(key)
        if drop and not (version is not None and version.pos <= last_position(revision)):
            newest = past[drop - 1]
            if not newest & 1 or newest >> 1 >= position(revision):
                drop -= 1
        victims = [entry >> 1 for entry in past[:drop]]
        del past[:drop]
        if not past:
            del self.history[key]
            if version is None:
                self.dead.remove(key)
        return victims


def _between(keys: SortedList[bytes], key: bytes, end: bytes) -> Iterator[bytes]:
    found: Iterator[bytes] = iter(())
    if end == FROM_KEY:
        found = keys.irange(key)
    elif end > key:
        found = keys.irange(key, end, inclusive=(True, False))
    return found


def _size_between(keys: SortedList[bytes], key: bytes, end: bytes) -> int:
    first: int = keys.bisect_left(key)
    if end == FROM_KEY:
        return len(keys) - first
    if end <= key:
        return 0
    last: int = keys.bisect_left(end)
    return last - first
