"""Proposals on their way to the core: our own, and those that followers have forwarded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from raft.core import DropReason, ProposalDropped, RawNode
from raft.core.types import Entry
from raft.errors import NotLeader, Refused
from raft.waiters import ID_BYTES, Waiters

QUEUED_MAX: Final = 8192
BATCH_BYTES: Final = 1 << 20
FORWARDED: Final = 0
"""The request id of a proposal that waits elsewhere."""


_Proposal = tuple[int, bytes, int]
"""Request id, data, and the term of the leader which alone may propose it; 0: anyone may, at any time."""


class ProposalQueue:
    """In the order in which they came. What its waiter has given up is left out when its turn comes."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._queue: deque[_Proposal] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        return len(self._queue) >= QUEUED_MAX

    def request_ids(self) -> set[int]:
        """What never left this member."""
        return {request_id for request_id, _, _ in self._queue}

    def add(self, request_id: int, payload: bytes, term: int) -> None:
        """``term`` not 0: only for the leader of that term to propose."""
        self._queue.append((request_id, request_id.to_bytes(ID_BYTES, "big") + payload, term))

    def add_forwarded(self, entries: Sequence[Entry]) -> int:
        """Queue what a follower sent. Nobody here waits for it. Returns how many found no room."""
        room = max(0, QUEUED_MAX - len(self._queue))
        self._queue.extend([(FORWARDED, entry.data, 0) for entry in entries[:room]])
        return max(0, len(entries) - room)

    def hand_to(self, node: RawNode) -> None:
        """Propose all of it, in batches; what there is no leader for stays."""
        queue = self._queue
        while queue:
            batch = self._batch(node.term)
            if not batch:
                return
            try:
                node.propose_batch([data for _, data, _ in batch])
            except ProposalDropped as dropped:
                if dropped.reason is DropReason.NO_LEADER:
                    queue.extendleft(reversed(batch))
                    return
                for request_id, _, _ in batch:
                    self._waiters.resolve(request_id, Refused(f"raft proposal dropped: {dropped}"))

    def _batch(self, term: int) -> list[_Proposal]:
        queue, batch, size = self._queue, list[_Proposal](), 0
        while queue and size < BATCH_BYTES:
            proposal = queue.popleft()
            request_id, data, only_in = proposal
            if only_in not in (0, term):
                self._waiters.resolve(request_id, NotLeader("the leadership was lost before"))
            elif request_id == FORWARDED or request_id in self._waiters:  # else it gave up
                batch.append(proposal)
                size += len(data)
        return batch
