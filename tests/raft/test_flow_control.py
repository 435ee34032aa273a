"""How a leader feeds a follower: probing, streaming, and the inflight window (contract §9)."""

from __future__ import annotations

import pytest

from raft.core import (
    DropReason,
    Entry,
    Message,
    ProgressState,
    ProposalDropped,
    Role,
    Snapshot,
    payload_size,
)
from raft.core.raft import Raft
from raft.core.tracker import Progress

from .network import (
    M,
    become_leader,
    drain,
    entries_of,
    leader,
    new_raft,
    persist,
    propose,
    role_of,
    sent_to,
    take,
    types,
)


def replicating(raft: Raft, node: int = 2) -> Progress:
    progress = raft.tracker.progress[node]
    progress.become_replicate()
    return progress


def acknowledge(raft: Raft, index: int, node: int = 2) -> list[Message]:
    raft.step(Message(M.APP_RESP, raft.id, node, raft.term, 0, index))
    return drain(raft)


def test_uc001_m02_own_match_waits_for_the_disk() -> None:
    """M20: a leader counts itself only after its own write."""
    raft = new_raft(1, (1, 2))
    raft.hup()
    drain(raft)
    raft.step(Message(M.VOTE_RESP, 1, 2, raft.term))
    assert role_of(raft) == Role.LEADER
    replicating(raft)
    for _ in range(5):
        propose(raft, b"foo")
    own = raft.tracker.progress[1]
    assert (own.match, own.next) == (0, 1)
    assert len(raft.log.unstable.entries) == 6
    drain(raft)
    assert (own.match, own.next) == (6, 7)


def test_uc002_heartbeat_response_resumes_a_probe() -> None:
    raft = leader(1, 2)
    progress = raft.tracker.progress[2]
    progress.paused = True
    raft.broadcast_heartbeat()
    assert progress.paused
    replicating(raft)
    assert not progress.is_paused
    progress.paused = True
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1))
    assert not raft.tracker.progress[2].paused


def test_uc003_a_probe_sends_one_append() -> None:
    raft = leader(1, 2)
    for _ in range(3):
        propose(raft, b"somedata")
    assert types(drain(raft)) == [M.APP]


def test_uc004_flow_control_by_messages_and_bytes() -> None:
    raft = leader(1, 2, max_inflight_msgs=3, max_size_per_msg=2048, max_inflight_bytes=9000)
    raft.tracker.progress[2].become_probe()
    blob, large = b"a" * 1000, b"b" * 5000
    for number in range(22):
        propose(raft, large if 10 <= number < 16 else blob)

    def counts(messages: list[Message]) -> list[int]:
        return [len(message.entries) for message in messages]

    first = drain(raft)
    assert counts(first) == [2]
    assert [len(entry.data) for entry in first[0].entries] == [0, 1000]
    index = first[-1].entries[-1].index
    for expected in ([2, 2, 2], [2, 1, 1], [1, 1], [1, 1], [1, 2, 2], [2]):
        sent = acknowledge(raft, index)
        assert counts(sent) == expected
        index = sent[-1].entries[-1].index
    assert index == raft.log.last_index


def test_uc005_m30_uncommitted_entry_limit() -> None:
    payload, count = b"testdata", 1024
    raft = leader(1, 2, 3, max_uncommitted_entries_size=count * len(payload), max_inflight_msgs=2 * count)
    for node in (2, 3):
        replicating(raft, node)
    for _ in range(count):
        propose(raft, payload)
    with pytest.raises(ProposalDropped) as caught:
        propose(raft, payload)
    assert caught.value.reason == DropReason.UNCOMMITTED_LIMIT
    sent = [message for message in drain(raft) if message.type == M.APP]
    assert len(sent) == count * 2
    raft.reduce_uncommitted(payload_size([Entry(1, 1, data=payload)]) * count)
    assert raft.uncommitted_size == 0
    propose(raft, *[payload] * 2 * count)  # the first always fits, however large
    with pytest.raises(ProposalDropped):
        propose(raft, payload)
    propose(raft, b"")
    raft.reduce_uncommitted(1 << 40)
    assert raft.uncommitted_size == 0


def test_uc006_probe_one_append_per_heartbeat_response() -> None:
    raft = leader(1, 2)
    progress = raft.tracker.progress[2]
    progress.become_probe()
    for round_ in range(3):
        if round_ == 0:
            raft.append_entries(entries_of(1, first=raft.log.last_index + 1), 0)
            raft.send_append(2)
            (sent,) = take(raft)
            assert sent.index == 0
        assert progress.paused
        for _ in range(10):
            raft.append_entries(entries_of(1, first=raft.log.last_index + 1), 0)
            raft.send_append(2)
            assert take(raft) == []
        raft.tick()
        assert types(take(raft)) == [M.HEARTBEAT]
        assert progress.paused
        raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1))
        (sent,) = take(raft)
        assert (sent.type, sent.index) == (M.APP, 0)
        assert progress.paused


def test_uc007_replicate_sends_at_once() -> None:
    raft = leader(1, 2)
    replicating(raft)
    for _ in range(10):
        propose(raft, b"somedata")
        assert types(take(raft)) == [M.APP]


def test_uc008_snapshot_state_sends_nothing() -> None:
    raft = leader(1, 2)
    raft.tracker.progress[2].become_snapshot(10)
    for _ in range(10):
        propose(raft, b"somedata")
        assert take(raft) == []


def test_uc009_m27_unreachable_goes_back_to_probe() -> None:
    raft = leader(1, 2)
    progress = replicating(raft)
    progress.match, progress.next = 3, 6
    raft.step(Message(M.UNREACHABLE, 1, 2))
    assert (progress.state, progress.next) == (ProgressState.PROBE, 4)


@pytest.mark.parametrize(("state", "next_after"), [(ProgressState.REPLICATE, 6), (ProgressState.PROBE, 2)])
def test_uc010_only_replicate_advances_next_optimistically(state: ProgressState, next_after: int) -> None:
    raft = leader(1, 2, log=(1, 2, 3), term=3)
    progress = raft.tracker.progress[2]
    progress.become_probe()
    progress.state, progress.next = state, 2
    propose(raft, b"somedata")
    assert progress.next == next_after


@pytest.mark.parametrize(
    ("index", "reject", "match", "next_index", "sent", "sent_index", "commit"),
    [
        (3, True, 0, 3, 0, 0, 0),  # stale: not the probe that is outstanding
        (2, True, 0, 2, 1, 1, 0),
        (2, False, 2, 4, 2, 2, 2),
        (0, False, 0, 4, 1, 0, 0),
    ],
)
def test_uc011_append_response(
    index: int, reject: bool, match: int, next_index: int, sent: int, sent_index: int, commit: int
) -> None:
    raft = leader(1, 2, 3, log=(1, 1), term=0)
    progress = raft.tracker.progress[2]
    progress.next = 3
    progress.paused = False
    raft.tracker.progress[3].paused = False
    raft.tracker.progress[3].next = 3
    if not reject and index == 0:
        progress.next = 1
    drain(raft)
    raft.step(Message(M.APP_RESP, 1, 2, 1, 0 if not reject else 1, index, reject=reject, reject_hint=index))
    messages = take(raft)
    assert (progress.match, progress.next) == (match, next_index)
    assert len(messages) == sent
    for message in messages:
        assert (message.index, message.commit) == (sent_index, commit)


def test_uc012_m05_heartbeat_commit_is_clamped_to_match() -> None:
    raft = new_raft(1, (1, 2, 3))
    raft.log.storage.apply_snapshot(  # type: ignore[attr-defined]
        Snapshot(1000, 1, raft.tracker.config.conf_state())
    )
    raft = new_raft(1, storage=raft.log.storage, applied=1000)  # type: ignore[arg-type]
    raft.term = 1
    become_leader(raft)
    for _ in range(10):
        raft.append_entries(entries_of(raft.term, first=raft.log.last_index + 1), 0)
    drain(raft)
    slow, current = raft.tracker.progress[2], raft.tracker.progress[3]
    slow.match, slow.next = 1005, 1006
    current.match, current.next = raft.log.last_index, raft.log.last_index + 1
    raft.maybe_commit()
    take(raft)
    raft.step(Message(M.BEAT, 1, 1))
    beats = take(raft)
    assert types(beats) == [M.HEARTBEAT, M.HEARTBEAT]
    assert [beat.commit for beat in beats] == [1005, raft.log.committed]
    assert all((beat.index, beat.log_term, beat.entries) == (0, 0, ()) for beat in beats)


@pytest.mark.parametrize(("role", "beats"), [(Role.LEADER, 2), (Role.CANDIDATE, 0), (Role.FOLLOWER, 0)])
def test_uc013_only_a_leader_beats(role: Role, beats: int) -> None:
    raft = leader(1, 2, 3)
    raft.role = role
    raft.step(Message(M.BEAT, 1, 1))
    assert types(take(raft)) == [M.HEARTBEAT] * beats


def test_uc014_append_response_resets_the_wait() -> None:
    raft = leader(1, 2, 3)
    assert sent_to(acknowledge(raft, 1), M.APP)[0] == 2
    assert raft.log.committed == 1
    propose(raft, b"")
    sent = drain(raft)
    assert sent_to(sent, M.APP) == [2]
    assert [entry.index for entry in sent[0].entries] == [2]
    sent = acknowledge(raft, 1, node=3)
    assert sent_to(sent, M.APP) == [3]
    assert [entry.index for entry in sent[0].entries] == [2]


def test_uc015_m28_heartbeat_response_until_caught_up() -> None:
    raft = leader(1, 2, log=(1, 2, 3), term=3)
    raft.log.commit_to(raft.log.last_index)
    for _ in range(2):  # the follower lost the append, twice
        raft.step(Message(M.HEARTBEAT_RESP, 1, 2, raft.term))
        assert types(take(raft)) == [M.APP]
    last = raft.log.last_index
    acknowledge(raft, last)
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, raft.term))
    assert take(raft) == []


def test_uc016_m26_reordered_messages_never_move_next_to_match_or_below() -> None:
    raft = leader(1, 2)
    acknowledge(raft, 1)
    progress = raft.tracker.progress[2]
    propose(raft, b"one")
    (first,) = drain(raft)
    propose(raft, b"two")
    (second,) = drain(raft)
    assert second.index == 2
    # The second arrives first and is rejected; then the first is accepted.
    late_reject = Message(M.APP_RESP, 1, 2, 1, 0, second.index, reject=True, reject_hint=0)
    acknowledge(raft, first.entries[-1].index)
    raft.step(Message(M.UNREACHABLE, 1, 2))
    assert progress.state == ProgressState.PROBE
    raft.step(late_reject)
    assert progress.next > progress.match
    sent = drain(raft)
    assert [message.index for message in sent] in ([], [progress.match])


def filled(size: int = 3) -> tuple[Raft, Progress]:
    raft = leader(1, 2, max_inflight_msgs=size)
    progress = replicating(raft)
    for _ in range(size):
        propose(raft, b"somedata")
        assert types(drain(raft)) == [M.APP]
    assert progress.inflights.full
    return raft, progress


def test_uc146_full_window_pauses() -> None:
    raft, progress = filled()
    assert progress.is_paused
    for _ in range(10):
        propose(raft, b"somedata")
        assert drain(raft) == []


def test_uc147_acknowledgement_frees_up_to_its_index() -> None:
    raft, progress = filled()
    first = progress.next - 3
    for acked in range(first, first + 3):
        acknowledge(raft, acked)
        propose(raft, b"somedata")
        drain(raft)
        assert progress.inflights.full
        for older in range(acked):
            acknowledge(raft, older)
            assert progress.inflights.full


def test_uc148_m27_each_heartbeat_response_lets_one_empty_append_out() -> None:
    raft, progress = filled()
    for _ in range(4):
        raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1))
        (sent,) = drain(raft)
        assert (sent.type, sent.entries) == (M.APP, ())
        assert progress.is_paused
        for _ in range(10):
            propose(raft, b"somedata")
            assert drain(raft) == []


def test_entries_that_moved_to_the_storage_are_still_sent() -> None:
    raft = leader(1, 2)
    propose(raft, b"x")
    take(raft)
    persist(raft)
    raft.step(Message(M.HEARTBEAT_RESP, 1, 2, 1))
    (sent,) = take(raft)
    assert [entry.data for entry in sent.entries] == [b"", b"x"]
