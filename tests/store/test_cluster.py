"""Members: ids, what a change is checked for, and what it leaves in the replicated buckets."""

from __future__ import annotations

import pytest

from raft.core.types import ConfChangeType, ConfState
from store.cluster import (
    MEMBERS,
    MEMBERS_REMOVED,
    BucketWrite,
    ChangeKind,
    ClusterError,
    LastVoter,
    MemberChange,
    MemberExists,
    MemberNotFound,
    MemberNotLearner,
    Membership,
    PeerUrlExists,
    TooManyLearners,
    cluster_id,
    decode_conf_state,
    decode_member,
    encode_conf_state,
    encode_member,
    member_id,
    member_key,
)
from store.replica import MemberInfo


class Buckets:
    """The two buckets, and a membership over them."""

    def __init__(self, *members: MemberInfo) -> None:
        self.data: dict[str, dict[bytes, bytes]] = {MEMBERS: {}, MEMBERS_REMOVED: {}}
        for member in members:
            self.data[MEMBERS][member_key(member.id)] = encode_member(member)

    @property
    def membership(self) -> Membership:
        return Membership(self.data[MEMBERS], self.data[MEMBERS_REMOVED])

    def write(self, writes: list[BucketWrite]) -> None:
        for bucket, key, value in writes:
            if value is None:
                del self.data[bucket][key]
            else:
                self.data[bucket][key] = value


ONE = MemberInfo(1, "a", ("http://h:1",), ("http://h:2",))
TWO = MemberInfo(2, "b", ("http://h:3",), ())
LEARNER = MemberInfo(3, "", ("http://h:5",), (), is_learner=True)


def test_ids_depend_on_urls_and_token_and_for_later_members_on_the_time() -> None:
    assert member_id(["http://b", "http://a"], "t") == member_id(["http://a", "http://b"], "t")
    assert (
        len({member_id(["u"], "t"), member_id(["u"], "s"), member_id(["u"], "t", 5), member_id(["u"], "t", 6)})
        == 4
    )
    assert cluster_id([3, 1, 2]) == cluster_id([1, 2, 3])


@pytest.mark.parametrize("member", [ONE, TWO, LEARNER])
def test_a_member_is_stored_as_etcd_stores_it(member: MemberInfo) -> None:
    assert decode_member(encode_member(member)) == member


@pytest.mark.parametrize("conf_state", [ConfState((1, 2)), ConfState((1,), (2,), (3, 4), (5,), True)])
def test_a_configuration_is_stored_and_read(conf_state: ConfState) -> None:
    assert decode_conf_state(encode_conf_state(conf_state)) == conf_state


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (MemberChange(ChangeKind.ADD, 1, ("http://new",)), MemberExists),
        (MemberChange(ChangeKind.ADD, 9, ("http://h:3",)), PeerUrlExists),
        (MemberChange(ChangeKind.ADD, 9, ("http://new",), is_learner=True), TooManyLearners),
        (MemberChange(ChangeKind.REMOVE, 9), MemberNotFound),
        (MemberChange(ChangeKind.UPDATE, 9, ("http://new",)), MemberNotFound),
        (MemberChange(ChangeKind.UPDATE, 1, ("http://h:3",)), PeerUrlExists),
        (MemberChange(ChangeKind.PROMOTE, 1), MemberNotLearner),
        (MemberChange(ChangeKind.ADD, 9, ("http://new",)), None),
        (MemberChange(ChangeKind.UPDATE, 1, ("http://h:1", "http://h:7")), None),
        (MemberChange(ChangeKind.PROMOTE, 3), None),
        (MemberChange(ChangeKind.REMOVE, 3), None),
    ],
)
def test_what_is_refused_and_what_is_not(change: MemberChange, refusal: type[ClusterError] | None) -> None:
    answer = Buckets(ONE, TWO, LEARNER).membership.check(change)
    assert (answer is None) if refusal is None else type(answer) is refusal


def test_the_last_voter_stays() -> None:
    assert type(Buckets(ONE, LEARNER).membership.check(MemberChange(ChangeKind.REMOVE, 1))) is LastVoter


def test_a_removed_id_never_comes_back() -> None:
    buckets = Buckets(ONE, TWO)
    buckets.write(buckets.membership.writes(MemberChange(ChangeKind.REMOVE, 2)))
    assert buckets.membership.removed() == {2}
    assert type(buckets.membership.check(MemberChange(ChangeKind.ADD, 2, ("http://new",)))) is MemberExists


@pytest.mark.parametrize(
    "change",
    [
        MemberChange(ChangeKind.ADD, 9, ("http://new",), is_learner=False),
        MemberChange(ChangeKind.REMOVE, 2),
        MemberChange(ChangeKind.UPDATE, 2, ("http://moved",)),
        MemberChange(ChangeKind.PROMOTE, 3),
    ],
)
def test_a_change_shows_once_it_is_made_and_not_before(change: MemberChange) -> None:
    buckets = Buckets(ONE, TWO, LEARNER)
    assert not buckets.membership.shows(change)
    buckets.write(buckets.membership.writes(change))
    assert buckets.membership.shows(change)
    assert MemberChange.decode(change.encode()) == change


def test_a_promotion_is_the_addition_of_a_voter_to_raft() -> None:
    (change,) = MemberChange(ChangeKind.PROMOTE, 3).conf_change().changes
    assert (change.type, change.node_id) == (ConfChangeType.ADD_VOTER, 3)
    (change,) = MemberChange(ChangeKind.ADD, 3, ("u",), is_learner=True).conf_change().changes
    assert change.type == ConfChangeType.ADD_LEARNER
