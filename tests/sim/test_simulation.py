"""The simulator: a sample of seeds, the same run twice, and that it notices what it must notice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.check import history as h
from chaos.sim import plan
from chaos.sim.judge import judge
from chaos.sim.options import Options, draw
from chaos.sim.run import OutsideWorld, _sealed, play, play_world
from chaos.sim.situations import never_reached
from chaos.sim.standstill import HOPELESS, LIVELOCK, excuse
from chaos.sim.timeline import html
from chaos.sim.truth import Truth
from chaos.sim.world import World
from raft.core.types import ConfState

SAMPLE = range(1, 17)


@pytest.fixture(scope="module")
def reports() -> dict[int, tuple[str, int]]:
    return {seed: (report.violation, report.hash) for seed in SAMPLE for report in (play(seed),)}


def test_every_invariant_holds_in_a_sample_of_seeds(reports: dict[int, tuple[str, int]]) -> None:
    assert {seed: violation for seed, (violation, _) in reports.items() if violation} == {}


def test_a_seed_is_the_same_run_in_another_process_with_other_string_hashes(
    reports: dict[int, tuple[str, int]],
) -> None:
    seeds = list(SAMPLE)[::6]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-m", "chaos.sim.rehash", *map(str, seeds)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    again = {int(seed): int(value, 16) for seed, value in map(str.split, told.splitlines())}
    assert again == {seed: reports[seed][1] for seed in seeds}


@pytest.mark.inside
def test_a_run_in_which_something_spins_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still in it: nothing else would ever end it."""
    from store.watch.hub import WatchHub

    def never_done(self: WatchHub, group: object) -> Any:
        return asyncio.sleep(0)

    monkeypatch.setattr(WatchHub, "_advance", never_done)
    report = play(1)
    assert report.rule == "stuck"
    assert "the task of WatchHub.run" in report.violation, "by a name that is the same in every run"


def test_two_seeds_are_two_runs(reports: dict[int, tuple[str, int]]) -> None:
    assert len({value for _, value in reports.values()}) == len(SAMPLE)


def test_a_calm_cluster_elects_once_and_answers_everything() -> None:
    report, world = play_world(7, Options(duration_s=3.0))
    assert not report.violation
    assert report.reached["leader elected"] == 1
    assert all(operation.outcome is not h.Outcome.UNKNOWN for operation in world.operations[5:-4])


def test_an_acknowledgement_before_the_sync_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from chaos.sim.storage import MemberLog

    async def lie(self: MemberLog, writes: object) -> None:
        return

    monkeypatch.setattr(MemberLog, "write", lie)
    assert "not on" in play(1).violation


@pytest.mark.inside
def test_different_states_at_one_position_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from store.apply import Applier

    apply = Applier._put

    def biased(self: Applier, request: object) -> object:
        request.value += b"%d" % (id(self) % 7919)  # type: ignore[attr-defined]
        return apply(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(Applier, "_put", biased)
    assert play(3).violation.startswith("I5")


@pytest.mark.inside
def test_a_core_that_cannot_elect_is_a_violation_of_liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    from raft.core.elections import Elections

    monkeypatch.setattr(Elections, "hup", lambda self, *args, **kwargs: None)
    assert play(1, Options(duration_s=0.5, watchers=0, clients=1)).rule == "liveness"


def status(number: int, voters: tuple[int, ...], log: tuple[int, int], newest: tuple[int, ...] = ()) -> Any:
    """A process with a configuration and a log; ``newest`` was in force on it, where that is another."""
    config = ConfState(voters)
    status = SimpleNamespace(id=number, config=config, last_term=log[0], last_index=log[1])
    member = SimpleNamespace(newest_config=ConfState(newest) if newest else config)
    return SimpleNamespace(driver=SimpleNamespace(status=lambda: status), member=member)


def test_a_standstill_is_let_off_only_where_raft_has_no_way_out() -> None:
    """Nobody can win by the configuration and log that it has, or campaigns without pre-vote go on for ever."""
    new, old = (2, 3, 6), (2, 3, 4)
    ahead, behind, gone = status(6, new, (3, 14)), status(2, old, (3, 15)), status(4, new, (3, 16))

    def judged(*core: Any, terms: int = 0, pre_vote: bool = True) -> str:
        return excuse(core, terms, in_force=ConfState(new), pre_vote=pre_vote)

    assert judged(ahead, behind, gone) == HOPELESS
    assert judged(ahead, status(2, old, (3, 14)), gone) == "", "6 would win with the vote of 2"
    assert judged(ahead, status(2, old, (3, 15), newest=new), gone) == "", "a configuration was taken back"
    assert judged(ahead, status(2, new, (3, 15)), gone) == "", "nobody is behind"
    assert judged(status(6, new, (3, 16)), behind, gone, terms=20) == "", "pre-vote ends such campaigns"
    assert judged(status(6, new, (3, 16)), behind, gone, terms=20, pre_vote=False) == LIVELOCK
    assert judged(status(6, new, (3, 16)), behind, gone, terms=1, pre_vote=False) == "", "nobody campaigns"


def test_more_requests_than_links_and_disks_can_carry_are_no_standstill() -> None:
    """One entry a message, one message under way, clients who give up and ask again: it settles once they stop."""
    options = Options(
        clients=6, duration_s=3.0, delay_s=0.03, jitter_s=0.02, sync_s=0.05, message_bytes=1, inflight_msgs=1,
        think_s=0.02, request_timeout_s=0.5,
    )  # fmt: skip
    report, world = play_world(3, options)
    assert not report.violation
    lost = [operation for operation in world.operations if operation.outcome is h.Outcome.UNKNOWN]
    assert len(lost) > len(world.operations) / 2


def test_a_stale_answer_is_not_linearizable() -> None:
    truth = Truth()
    kv = h.KeyValue(b"k", b"v", 2, 2, 1)
    truth.events[2] = (h.Event(True, kv),)
    put = h.Operation(1, 10, 20, h.Put(b"k", b"v"), h.Outcome.OK, h.Answer(2, h.Done()))
    stale = h.Operation(2, 30, 40, h.Range(b"k"), h.Outcome.OK, h.Answer(1, h.Found()))
    with pytest.raises(AssertionError, match="linearizability"):
        judge([put, stale], [], truth)


def test_a_watch_that_skips_an_event_is_noticed() -> None:
    truth = Truth()
    for revision in (2, 3):
        truth.events[revision] = (h.Event(True, h.KeyValue(b"k", b"v%d" % revision, 2, revision, revision - 1)),)
    request = h.WatchRequest(1, 1, 0, b"k", start_revision=2)
    created = h.WatchResponse(1, 3, created=True)
    watch = h.Watch(request, (created, h.WatchResponse(2, 3, truth.events[3])))
    with pytest.raises(AssertionError, match="reliable"):
        judge([], [watch], truth)


def test_the_plan_of_a_seed_does_not_depend_on_other_faults() -> None:
    options = replace(draw(5), crash_per_s=1.0, pause_per_s=1.0)
    alone = plan.make(5, replace(options, pause_per_s=0.0))
    assert [fault for fault in plan.make(5, options) if fault.kind == "crash"] == [
        fault for fault in alone if fault.kind == "crash"
    ]


def test_nothing_real_is_in_reach_of_a_run() -> None:
    world = World(1, Options())
    with _sealed(world):
        with pytest.raises(OutsideWorld, match="a thread"):
            threading.Thread(target=print).start()
        with pytest.raises(OutsideWorld, match="a file"):
            os.open(os.devnull, os.O_RDONLY)


def test_what_was_never_reached_is_named() -> None:
    assert "snapshot installed" in never_reached({"leader elected": 3})
    assert "leader elected" not in never_reached({"leader elected": 3})


def test_the_timeline_is_one_page_without_anything_from_outside() -> None:
    report, world = play_world(2077)
    page = html(world, report)
    assert "__DATA__" not in page
    assert "partition" in page
    assert not any(link in page for link in ('src="', "@import", "url(", 'href="http'))
    assert page.count("http://") == page.count("http://www.w3.org/2000/svg")


def test_a_configuration_in_force_survives_a_power_loss() -> None:
    """Nothing else may tell a survivor that a change was committed whose other voters are gone."""
    options = Options(members=3, clients=1, watchers=0, duration_s=3.0, member_change_per_s=1.0)
    change = plan.Fault(1.5, "member-change", 0.9, 0.1, 0.0)
    report, world = play_world(11, options, [change])
    assert not report.violation
    assert len(world.config.voters) == 2
    left = [world.members[number].state_disk.durable_conf_state() for number in world.config.voters]
    assert left == [ConfState(voters=world.config.voters)] * 2
