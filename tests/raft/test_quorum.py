"""Majorities: properties of the commit index and of vote results."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from raft.core.quorum import (
    NO_BOUND,
    VoteResult,
    committed_index,
    joint_committed_index,
    joint_vote_result,
    vote_result,
)

VOTERS = st.frozensets(st.integers(1, 12), max_size=9)
ACKED = st.dictionaries(st.integers(1, 12), st.integers(0, 30))
VOTES = st.dictionaries(st.integers(1, 12), st.booleans())


def naive_committed_index(voters: Collection[int], acked: Mapping[int, int]) -> int:
    """Straight from the definition: the largest acknowledged index that a majority has reached."""
    if not voters:
        return NO_BOUND
    needed = len(voters) // 2 + 1
    candidates = {acked.get(voter, 0) for voter in voters} | {0}
    reached = [index for index in candidates if sum(acked.get(voter, 0) >= index for voter in voters) >= needed]
    return max(reached)


@settings(max_examples=500)
@given(VOTERS, ACKED)
def test_uc224_commit_index_equals_the_naive_one(voters: frozenset[int], acked: dict[int, int]) -> None:
    assert committed_index(voters, acked) == naive_committed_index(voters, acked)


@given(VOTERS, VOTERS, ACKED)
def test_halves_of_a_joint_quorum_are_interchangeable(
    one: frozenset[int], two: frozenset[int], acked: dict[int, int]
) -> None:
    assert joint_committed_index(one, two, acked) == joint_committed_index(two, one, acked)


@given(VOTERS, ACKED)
def test_joining_with_the_empty_majority_or_itself_changes_nothing(
    voters: frozenset[int], acked: dict[int, int]
) -> None:
    alone = committed_index(voters, acked)
    assert joint_committed_index(voters, (), acked) == alone
    assert joint_committed_index((), voters, acked) == alone
    assert joint_committed_index(voters, voters, acked) == alone


@given(VOTERS, VOTERS, ACKED, st.data())
def test_acknowledgements_below_the_result_do_not_matter(
    one: frozenset[int], two: frozenset[int], acked: dict[int, int], data: st.DataObject
) -> None:
    result = joint_committed_index(one, two, acked)
    lowered = {
        voter: index if index >= result else data.draw(st.integers(0, index)) for voter, index in acked.items()
    }
    assert joint_committed_index(one, two, lowered) == result


@given(VOTERS, VOTES)
def test_vote_result_is_what_further_votes_cannot_change(voters: frozenset[int], votes: dict[int, bool]) -> None:
    """PENDING exactly while both outcomes are still possible."""
    unknown = [voter for voter in voters if voter not in votes]
    best = vote_result(voters, votes | dict.fromkeys(unknown, True))
    worst = vote_result(voters, votes | dict.fromkeys(unknown, False))
    result = vote_result(voters, votes)
    assert result == (best if best == worst else VoteResult.PENDING)


@given(VOTERS, VOTERS, VOTES)
def test_joint_vote_needs_both_halves(one: frozenset[int], two: frozenset[int], votes: dict[int, bool]) -> None:
    result = joint_vote_result(one, two, votes)
    halves = {vote_result(one, votes), vote_result(two, votes)}
    assert result == joint_vote_result(two, one, votes)
    assert (result == VoteResult.WON) == (halves == {VoteResult.WON})
    assert (result == VoteResult.LOST) == (VoteResult.LOST in halves)
