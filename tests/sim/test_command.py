"""``kvorum sim``: what it prints, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.sim import run as runs
from chaos.sim.trace import Record
from kvorum import cli
from kvorum import sim as command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "9..3"], "no seed"),
        (["--seeds", "one"], "not a seed"),
        (["--jobs", "0"], "number of processes"),
        (["--minutes", "soon"], "number of minutes"),
        (["--trace", "x.html"], "--trace needs --replay"),
    ],
)
def test_wrong_usage_is_one_clear_line_and_exit_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(["sim", *arguments])
    except SystemExit as end:
        code = int(str(end.code))
    told = capsys.readouterr().err
    assert code == 2
    assert complaint in told
    assert told.count("\n") == 1


def test_a_batch_counts_its_seeds_and_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sim", "--seeds", "1..2"]) == 0
    told = capsys.readouterr().out
    assert "2 seeds (1 to 2)" in told
    assert "the same to the last event" in told


def test_a_violation_is_told_with_its_trace_and_its_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(seed: int, *_: object) -> runs.Report:
        return runs.Report(seed, "I1: two leaders of one term", tail=[Record(0.5, 1, "role", "leader t2")])

    monkeypatch.setattr(command, "play", broken)
    monkeypatch.setattr("chaos.sim.shrink.play", broken)
    monkeypatch.setattr(command, "_unlike", lambda tally: [])
    assert cli.main(["sim", "--seeds", "7..7"]) == 1
    told = capsys.readouterr().out
    assert "seed 7: VIOLATED I1" in told
    assert "leader t2" in told
    assert "kvorum sim --replay 7 --trace" in told


def test_a_replay_writes_its_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "run.html"
    assert cli.main(["sim", "--replay", "4", "--trace", str(target)]) == 0
    assert target.read_text().startswith("<!doctype html>")
    assert cli.main(["sim", "--replay", "4", "--trace", str(tmp_path / "nowhere" / "run.html")]) == 1
    assert "no such file" in capsys.readouterr().err
