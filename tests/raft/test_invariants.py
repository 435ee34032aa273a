"""Clusters under faults keep every invariant of contract §19, and faulty cores do not go unnoticed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from raft.core import InvariantViolation, Message, MessageType
from raft.core.elections import Elections
from raft.core.log import RaftLog
from raft.core.raft import Raft
from raft.core.replication import Replication
from raft.core.state import RaftState
from raft.core.trace import RefusedCampaign
from raft.core.unstable import Unstable

from .simulation import Faults, Options, Simulation

STEPS = 1500
VARIANTS = {
    "sync": Options(),
    "async": Options(async_writes=True),
    "plain raft": Options(pre_vote=False, check_quorum=False),
    "plain raft, async": Options(pre_vote=False, check_quorum=False, async_writes=True),
    "check quorum": Options(pre_vote=False, async_writes=True),
    "pre-vote": Options(check_quorum=False),
    "step down": Options(step_down_on_removal=True, async_writes=True),
    "commit notices": Options(commit_notices=True, async_writes=True),
    "fixed membership": Options(members=5, spares=0, async_writes=True, faults=Faults(conf_change=0)),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block", range(4))
def test_invariants_hold_under_faults(variant: str, block: int) -> None:
    """I1-I8 and the local ones after every step; then, healed, progress."""
    for seed in range(block * 5, block * 5 + 5):
        simulation = Simulation(seed, VARIANTS[variant])
        simulation.run(STEPS)
        simulation.settle()


def test_a_seed_is_a_run() -> None:
    """The same seed does the same again, to the last byte."""

    def digests(seed: int) -> list[tuple[int, bytes]]:
        simulation = Simulation(seed, VARIANTS["async"])
        simulation.run(STEPS)
        simulation.settle()
        return [(member.disk.applied, member.disk.digest) for member in simulation.members.values()]

    assert digests(7) == digests(7)
    assert digests(7) != digests(8)


def caught(options: Options, seeds: int, steps: int = 1500) -> bool:
    """Whether some run of a faulty core breaks an invariant."""
    for seed in range(seeds):
        try:
            Simulation(seed, options).run(steps)
        except (AssertionError, InvariantViolation):
            return True
    return False


PLAIN = Options(pre_vote=False, check_quorum=False)
FIXED = replace(PLAIN, faults=Faults(conf_change=0))


def test_m01_commit_by_counting_an_older_term_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_term(self: Replication) -> bool:
        index = self.tracker.committed()
        if index <= self.log.committed:
            return False
        self.log.commit_to(index)
        return True

    monkeypatch.setattr(Replication, "maybe_commit", any_term)
    assert caught(replace(PLAIN, max_size_per_msg=0), seeds=30)


def test_m02_promises_before_the_write_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: RaftState, message: Message) -> None:
        if message.to == self.id:
            self.after_append.append(message)
        else:
            self.messages.append(message)

    monkeypatch.setattr(RaftState, "send", at_once)
    assert caught(Options(async_writes=True), seeds=20)


def test_m02_second_vote_in_a_term_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Elections.handle_vote_request

    def forgetful(self: Elections, message: Message) -> None:
        self.vote = 0
        original(self, message)

    monkeypatch.setattr(Elections, "handle_vote_request", forgetful)
    assert caught(FIXED, seeds=50)


def test_m03_truncating_without_a_conflict_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftLog, "find_conflict", lambda self, entries: entries[0].index if entries else 0)
    options = Options(pre_vote=False, check_quorum=False, faults=Faults(conf_change=0, duplicate=0.3))
    assert caught(options, seeds=100)


def test_m13_campaign_with_an_unapplied_conf_change_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_looking(self: Elections) -> RefusedCampaign | None:
        return None if self.promotable and not self.is_leader else RefusedCampaign.NOT_PROMOTABLE

    monkeypatch.setattr(Elections, "_why_not_campaign", without_looking)
    faults = Faults(conf_change=20, threads=20, tick=80, partition=6, heal=6, transfer=4)
    assert caught(replace(PLAIN, async_writes=True, faults=faults), seeds=60, steps=2000)


def test_m44_snapshot_under_a_conf_change_that_is_being_applied_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Elections, "has_unapplied_conf_change", lambda self, index: False)
    faults = Faults(conf_change=20, threads=20, compact=20, partition=6, heal=6)
    assert caught(Options(async_writes=True, faults=faults), seeds=60, steps=2000)


def test_m19_trusting_any_storage_acknowledgement_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the term of the message nor that of the entry is looked at."""

    def trusting(self: Unstable, term: int, index: int) -> None:
        position = index - self.offset
        if 0 <= position < len(self.entries):
            del self.entries[: position + 1]
            self.offset = index + 1
            self.offset_in_progress = max(self.offset_in_progress, self.offset)

    original = Raft._answer_stale

    def forgiving(self: Raft, message: Message) -> None:
        if message.type == MessageType.STORAGE_APPEND_RESP:
            self._on_storage_append(message)
        else:
            original(self, message)

    monkeypatch.setattr(Unstable, "stable_to", trusting)
    monkeypatch.setattr(Raft, "_answer_stale", forgiving)
    faults = Faults(conf_change=0, transfer=3, crash=0, tick=80, threads=20, partition=6, heal=6)
    assert caught(replace(PLAIN, spares=0, async_writes=True, faults=faults), seeds=30)


def test_m20_applying_what_is_not_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftLog, "max_appliable_index", lambda self, *, allow_unstable: self.committed)
    assert caught(Options(async_writes=True), seeds=20)


def test_m08_reading_before_the_first_commit_of_a_term_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replication, "committed_in_current_term", lambda self: True)
    options = Options(pre_vote=False, check_quorum=False, faults=Faults(conf_change=0, read=30))
    assert caught(options, seeds=150)


def test_the_simulation_reaches_the_rare_paths() -> None:
    """Snapshots, joint configurations, truncations and refusals occur, or the runs prove little."""
    events: Counter[str] = Counter()
    for variant in ("sync", "plain raft, async"):
        for seed in range(20):
            simulation = Simulation(seed, VARIANTS[variant])
            simulation.run(STEPS)
            events += simulation.events
    expected = {
        *("snapshot arrived", "joint", "LEADER", "CANDIDATE", "PRE_CANDIDATE", "LogTruncated"),
        *("VoteIgnored", "AppendAckIgnored", "ConfChangeIgnored", "CampaignRefused", "CommitAdvanced"),
    }
    assert expected <= set(events), expected - set(events)
    assert events["LEADER"] > 80
