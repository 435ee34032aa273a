"""Majorities, and pairs of majorities: pure arithmetic on who has acknowledged what.

A joint configuration decides only where both of its halves decide (Raft paper §6). An empty half decides
everything, so that ``joint(x, empty)`` is ``x``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final

NO_BOUND: Final = (1 << 64) - 1
"""The commit index of an empty majority: it holds nothing back."""


class VoteResult(IntEnum):
    PENDING = 0
    LOST = 1
    WON = 2


def committed_index(voters: Collection[int], acked: Mapping[int, int]) -> int:
    """The largest index acknowledged by a majority of ``voters``; who is missing in ``acked`` counts as 0."""
    size = len(voters)
    if size == 0:
        return NO_BOUND
    get = acked.get
    # Ascending, so that a majority of the list stands at or right of the element we return.
    return sorted([get(voter, 0) for voter in voters])[(size - 1) // 2]


def joint_committed_index(incoming: Collection[int], outgoing: Collection[int], acked: Mapping[int, int]) -> int:
    """The largest index both majorities acknowledge."""
    index = committed_index(incoming, acked)
    return min(index, committed_index(outgoing, acked)) if outgoing else index


def vote_result(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """WON with yes from a majority, LOST when that cannot happen any more, else PENDING. Empty is WON."""
    needed = len(voters) // 2 + 1
    if not voters:
        return VoteResult.WON
    yes = sum(1 for voter in voters if votes.get(voter) is True)
    unknown = sum(1 for voter in voters if voter not in votes)
    if yes >= needed:
        return VoteResult.WON
    return VoteResult.PENDING if yes + unknown >= needed else VoteResult.LOST


def joint_vote_result(
    incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]
) -> VoteResult:
    """WON when both halves are won, LOST when any is lost, else PENDING."""
    first, second = vote_result(incoming, votes), vote_result(outgoing, votes)
    if first == second:
        return first
    return VoteResult.LOST if VoteResult.LOST in (first, second) else VoteResult.PENDING
