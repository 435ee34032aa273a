"""Configuration changes: the rules as properties, the bytes, and the round trip of a ConfState."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.core import (
    ConfChange,
    ConfChangeError,
    ConfChangeProblem,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    MalformedMessage,
    as_v2,
    decode_conf_change,
    encode_conf_change,
    leaves_joint,
)
from raft.core.confchange import Changer, joint_auto_leave, normalized, restore
from raft.core.tracker import Configuration, Progress, ProgressTracker

OPERATIONS = [ConfChangeType.ADD_VOTER, ConfChangeType.ADD_LEARNER, ConfChangeType.REMOVE]
NODES = st.integers(1, (1 << 64) - 3)
ONE_CHANGE = st.tuples(st.sampled_from(ConfChangeType), NODES).map(lambda pair: ConfChange(*pair))
CHANGES = st.lists(ONE_CHANGE, max_size=5).map(tuple)


def tracker_with_voter_one() -> ProgressTracker:
    tracker = ProgressTracker(10, 0)
    adopt(tracker, Changer(tracker, 10).simple([ConfChange(ConfChangeType.ADD_VOTER, 1)]))
    return tracker


def adopt(tracker: ProgressTracker, result: tuple[Configuration, dict[int, Progress]]) -> None:
    tracker.config, tracker.progress = result


def picture(tracker: ProgressTracker) -> tuple[object, ...]:
    members = [(node, one.match, one.next, one.is_learner) for node, one in tracker.progress.items()]
    return tracker.config, members


@pytest.mark.parametrize("seed", range(8))
def test_uc225_simple_changes_one_by_one_equal_one_joint_change(seed: int) -> None:
    """Leaving early or late, automatically or not, node 1 never touched."""
    rng = random.Random(seed)
    for _ in range(125):
        initial = [random_change(rng) for _ in range(rng.randrange(6))]
        changes = [random_change(rng) for _ in range(rng.randrange(1, 6))]
        one_by_one, at_once = tracker_with_voter_one(), tracker_with_voter_one()
        for tracker in (one_by_one, at_once):
            for change in initial:
                adopt(tracker, Changer(tracker, 10).simple([change]))
        for change in changes:
            adopt(one_by_one, Changer(one_by_one, 10).simple([change]))
        entered = []
        for auto_leave in (False, True):
            config, progress = Changer(at_once, 10).enter_joint(changes, auto_leave=auto_leave)
            entered.append((config._replace(auto_leave=False), list(progress)))
        assert entered[0] == entered[1]
        adopt(at_once, (config, progress))
        adopt(at_once, Changer(at_once, 10).leave_joint())
        assert picture(one_by_one) == picture(at_once)


def random_change(rng: random.Random) -> ConfChange:
    return ConfChange(rng.choice(OPERATIONS), rng.randrange(2, 8))


@st.composite
def conf_states(draw: st.DrawFn) -> ConfState:
    """Any configuration the rules can lead to, its lists in any order."""
    ids = draw(st.permutations(range(1, 16)))
    sizes = [draw(st.integers(0, 3)) for _ in range(4)]
    voters = tuple(ids[: sizes[0] + 1])
    rest = ids[sizes[0] + 1 :]
    learners, rest = tuple(rest[: sizes[1]]), rest[sizes[1] :]
    outgoing_only, rest = tuple(rest[: sizes[2]]), rest[sizes[2] :]
    kept = tuple(draw(st.lists(st.sampled_from(voters), unique=True, max_size=3)))
    demoted = tuple(rest[: sizes[3]])
    outgoing = outgoing_only + kept + demoted
    if not outgoing:
        return ConfState(voters, learners)
    return ConfState(voters, learners, outgoing, demoted, draw(st.booleans()))


@settings(max_examples=300)
@given(conf_states())
def test_uc226_restoring_a_conf_state_gives_it_back(state: ConfState) -> None:
    config, progress = restore(ProgressTracker(10, 0), state, 20)
    assert config.conf_state() == normalized(state)
    members = set(state.voters) | set(state.voters_outgoing) | set(state.learners)
    assert set(progress) == members
    assert list(progress) == sorted(progress)


def test_uc227_equal_configurations_do_not_depend_on_order() -> None:
    one = ConfState((1, 2, 3), (5, 4), (6, 1), (6,), True)
    other = ConfState((3, 1, 2), (4, 5), (1, 6), (6,), True)
    assert one != other
    assert normalized(one) == normalized(other)
    assert normalized(one) != normalized(other._replace(auto_leave=False))


def test_uc226_an_impossible_conf_state_is_refused() -> None:
    with pytest.raises(ConfChangeError) as caught:
        restore(ProgressTracker(10, 0), ConfState(voters=(1,), learners_next=(2,)), 5)
    assert caught.value.problem == ConfChangeProblem.UNREACHABLE


def test_uc228_no_changes_and_auto_means_leave_whatever_the_context() -> None:
    assert leaves_joint(ConfChangeV2())
    assert leaves_joint(ConfChangeV2(context=b"why"))
    assert not leaves_joint(ConfChangeV2(transition=ConfChangeTransition.JOINT_EXPLICIT))
    assert not leaves_joint(ConfChangeV2((ConfChange(ConfChangeType.REMOVE, 1),)))


@pytest.mark.parametrize(
    ("transition", "changes", "auto_leave"),
    [
        (ConfChangeTransition.AUTO, 0, None),
        (ConfChangeTransition.AUTO, 1, None),
        (ConfChangeTransition.AUTO, 2, True),
        (ConfChangeTransition.JOINT_IMPLICIT, 1, True),
        (ConfChangeTransition.JOINT_EXPLICIT, 1, False),
        (ConfChangeTransition.JOINT_EXPLICIT, 2, False),
    ],
)
def test_which_protocol_a_change_needs(
    transition: ConfChangeTransition, changes: int, auto_leave: bool | None
) -> None:
    change = ConfChange(ConfChangeType.ADD_VOTER, 1)
    assert joint_auto_leave(ConfChangeV2((change,) * changes, transition)) is auto_leave


@given(CHANGES, st.sampled_from(ConfChangeTransition), st.binary(max_size=20))
def test_a_change_survives_its_bytes(
    changes: tuple[ConfChange, ...], transition: ConfChangeTransition, context: bytes
) -> None:
    change = ConfChangeV2(changes, transition, context)
    kind, data = encode_conf_change(change)
    assert kind == EntryType.CONF_V2
    assert decode_conf_change(Entry(1, 1, kind, data)) == change


@given(st.sampled_from(ConfChangeType), NODES, st.binary(max_size=20))
def test_a_v1_change_survives_its_bytes(kind: ConfChangeType, node: int, context: bytes) -> None:
    change = ConfChange(kind, node, context)
    entry_type, data = encode_conf_change(change)
    assert entry_type == EntryType.CONF_V1
    assert decode_conf_change(Entry(1, 1, entry_type, data)) == change
    assert as_v2(change) == ConfChangeV2((ConfChange(kind, node),), context=context)


def test_leaving_costs_no_bytes() -> None:
    """No quota may refuse it (contract §14)."""
    assert encode_conf_change(ConfChangeV2()) == (EntryType.CONF_V2, b"")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_change_or_malformed(data: bytes) -> None:
    for kind in (EntryType.CONF_V1, EntryType.CONF_V2):
        entry = Entry(1, 1, kind, data)
        try:
            change = decode_conf_change(entry)
        except MalformedMessage:
            continue
        again, encoded = encode_conf_change(change)
        assert again == kind
        assert decode_conf_change(Entry(1, 1, again, encoded)) == change


def test_a_normal_entry_is_no_change() -> None:
    with pytest.raises(MalformedMessage):
        decode_conf_change(Entry(1, 1))


def test_a_failed_change_leaves_the_tracker_alone() -> None:
    tracker = tracker_with_voter_one()
    before = picture(tracker)
    with pytest.raises(ConfChangeError):
        Changer(tracker, 10).simple([ConfChange(ConfChangeType.REMOVE, 1)])
    assert picture(tracker) == before


def test_m17_a_new_member_counts_as_heard() -> None:
    tracker = tracker_with_voter_one()
    adopt(tracker, Changer(tracker, 10).simple([ConfChange(ConfChangeType.ADD_VOTER, 2)]))
    assert tracker.progress[2].recent_active
    assert tracker.quorum_active(1)
