"""``kvorum check`` as its user meets it; short recorded runs on real processes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from chaos.check import recordfile
from chaos.check.history import History, Operation, Range, Setting
from kvorum import cli
from kvorum.layout import FAULTS_VARIABLE, Api, Cluster, Member, Process, UserError
from kvorum.nemesis import check_kinds
from raft.core.types import HardState, Snapshot
from raft.log import LoadedLog, LogWrite
from raft.slow_log import SlowLog
from tests.check.build import get, kv, put
from tests.check.faulty import FAULTS, Fault
from tests.cluster.harness import kvorum
from tests.mutants.planted import ROOT
from tests.ports import free_port
from tests.snapshot.etcd import etcd


def written(path: Path, *operations: Operation) -> Path:
    recordfile.save(path, History(Setting(), operations))
    return path


def test_a_right_history_is_ok(tmp_path: Path) -> None:
    file = written(tmp_path / "h.jsonl", put(1, 2, "a", "x", 2), get(3, 4, "a", kv("a", "x", 2), 2))
    done = kvorum("check", str(file))
    assert (done.code, done.err) == (0, "")
    assert "verdict: ok" in done.out


def test_a_wrong_history_is_1_and_says_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "h.jsonl", put(1, 2, "a", "x", 2), get(3, 4, "a", None, 2))
    assert cli.main(["check", "history", str(file)]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "get a was answered: nothing at revision 2; it should be: a = x" in shown.out
    assert "verdict: illegal" in shown.out


def test_what_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("hello\n")
    for file, words in ((bad, "line 1: "), (tmp_path / "none.jsonl", "no such file")):
        assert cli.main(["check", str(file)]) == 1
        shown = capsys.readouterr()
        assert (shown.out, len(shown.err.splitlines())) == ("", 1)
        assert words in shown.err


@pytest.mark.parametrize("budget", ["nan", "-1", "0"])
def test_a_budget_that_is_no_time_is_wrong_usage(
    budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "h.jsonl", put(1, 2, "a", "x", 2))
    assert cli.main(["check", str(file), "--budget", budget]) == 2
    assert "--budget must be a positive number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nemesis", "earthquake"), "'earthquake' is none of kill, pause"),
        (("--nemesis", "kill", "--endpoints", "http://127.0.0.1:1"), "there is none"),
        (("--duration", "0"), "must be positive"),
        (("--duration", "nan"), "must be positive"),
        (("--rate", "nan"), "must be positive"),
        (("--duration", "inf"), "must be positive"),
        (("--clients", "99999999"), "at most 1000"),
        (("--endpoints", ""), "'' is not http://HOST:PORT"),
        (("--endpoints", "here"), "'here' is not http://HOST:PORT"),
    ],
)
def test_wrong_usage_is_2(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["check", "run", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert cli.main(["check", "run", "--endpoints", f"http://127.0.0.1:{free_port()}", "--out", out]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "no answer from http://127.0.0.1:" in err


def test_a_member_that_does_not_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FAULTS_VARIABLE, "1")  # the command sets it; this takes it back

    class Broken:
        async def ready(self) -> None:
            raise UserError("m1 did not start: no reason")

        def reap(self) -> None: ...

    async def start(cluster: Cluster, member: Member) -> tuple[Cluster, Broken]:
        return cluster, Broken()

    monkeypatch.setattr("kvorum.check.start_member", start)
    assert cli.main(["check", "run", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == "kvorum: m1 did not start: no reason\n"


@pytest.mark.inside
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_the_faulty_members_can_be_put_in(fault: Fault) -> None:
    """Sources move on; a fault that no longer fits would prove nothing."""
    assert (ROOT / fault.file).read_text().count(fault.find) == 1


@pytest.mark.process
def test_three_members_under_every_process_fault_keep_their_promises(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = kvorum(
        "check", "run", "--duration", "4", "--nemesis", "kill,pause,slow-disk", "--seed", "3", "--out", str(out),
        timeout_s=110,
    )  # fmt: skip
    assert done.code == 0, done.out + done.err
    assert (out / "report.txt").read_text() in done.out
    history = recordfile.load(out / "history.jsonl")
    assert len(history.operations) > 50
    assert len({each.endpoint for each in history.operations}) >= 3
    assert isinstance(history.operations[-1].request, Range)


@pytest.mark.process
def test_real_etcd_is_not_accused(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as endpoint:
        run = ("check", "run", "--duration", "3", "--endpoints", endpoint, "--rate", "150")
        done = kvorum(*run, "--out", str(tmp_path / "out"))
    assert done.code == 0, done.out + done.err
    assert "left out for version 3.5.1: progress requests" in done.err


class _Instant:
    """A log that takes no time."""

    def __init__(self) -> None:
        self.writes = 0

    async def load(self) -> LoadedLog:
        return LoadedLog(HardState(), Snapshot(), ())

    async def write(self, writes: object) -> None:
        self.writes += 1

    async def compact(self, snapshot: Snapshot) -> None: ...

    async def close(self) -> None: ...

    def statistics(self) -> dict[str, float]:
        return {}


async def test_a_slow_disk_makes_every_write_wait(tmp_path: Path) -> None:
    file, log = tmp_path / "slow-disk", _Instant()
    slow = SlowLog(log, file)
    began = time.monotonic()
    await slow.write([LogWrite()])
    assert log.writes == 1
    file.write_text("150")
    writing = asyncio.ensure_future(slow.write([LogWrite()]))
    await asyncio.sleep(0.01)
    assert log.writes == 1
    await writing
    assert log.writes == 2
    assert time.monotonic() - began >= 0.15


def test_a_disk_can_only_be_slowed_where_the_member_lets_it(tmp_path: Path) -> None:
    """This very process stands for a member that was not started for faults."""
    assert FAULTS_VARIABLE not in os.environ
    member = Member("m1", "http://127.0.0.1:1", "http://127.0.0.1:2", str(tmp_path), Process(os.getpid()))
    cluster = Cluster(tmp_path, (member,), Api("http://127.0.0.1:3"), "token")
    with pytest.raises(UserError, match="its disk cannot be slowed"):
        check_kinds(["slow-disk"], cluster)
    check_kinds(["kill", "pause"], cluster)
