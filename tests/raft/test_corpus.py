"""The public corpus of raft cases, replayed through both harnesses; skipped where it is not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import corpus

DIRECTORY = Path(__file__).resolve().parents[3] / "shared" / "cases" / "raft"

pytestmark = pytest.mark.skipif(
    not DIRECTORY.is_dir(), reason="the reference cases are not beside this repository"
)


def outcomes(*, use_drive: bool) -> dict[str, str | None]:
    return dict(corpus.run_corpus(DIRECTORY, use_drive=use_drive))


@pytest.mark.parametrize("use_drive", [True, False], ids=["its own harness", "ours"])
def test_no_difference_in_the_corpus(use_drive: bool) -> None:
    results = outcomes(use_drive=use_drive)
    assert len(results) >= 96 + 40 + 23
    assert {name: problem for name, problem in results.items() if problem} == {}


def test_a_difference_is_found_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner can fail: one changed expectation is one failure and exit code 1."""
    lines = (DIRECTORY / "quorum.jsonl").read_text().splitlines()
    committed = next(line for line in lines if '"cmd": "committed"' in line and '"index": 100,' in line)
    (tmp_path / "quorum.jsonl").write_text(committed.replace('"index": 100,', '"index": 99,') + "\n")
    (tmp_path / "interaction").mkdir()
    script = (DIRECTORY / "interaction" / "campaign.jsonl").read_text()
    (tmp_path / "interaction" / "campaign.jsonl").write_text(script.replace('"MsgVote"', '"MsgPreVote"'))
    assert corpus.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 2 failed"


def test_an_empty_directory_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert corpus.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 passed, 0 failed\n"
