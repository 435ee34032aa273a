"""Histories as files: nothing is lost on the way, and a bad line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.check import recordfile
from chaos.check.history import Compare, Ending, Grant, History, Put, Relation, Revoke, Setting, Target, Txn
from chaos.check.recordfile import RecordError
from tests.check.build import DONE, batch, cancelled, created, deletion, event, kv, op, progress, watch
from tests.check.simulated import history

HEAD = b'{"record":"history","format":1}\n'


def saved(path: Path, made: History) -> History:
    recordfile.save(path, made)
    return recordfile.load(path)


@pytest.mark.parametrize("seed", range(5))
def test_operations_come_back_as_they_were(tmp_path: Path, seed: int) -> None:
    made = History(Setting(7, False, "a note"), tuple(history(seed, 60)))
    assert saved(tmp_path / "h.jsonl", made) == made


def test_bytes_that_are_no_text_come_back(tmp_path: Path) -> None:
    compare = Compare(b"\xff", Target.VALUE, Relation.LESS, b"\x00\xfe")
    txn = Txn((compare, Compare(b"k", Target.MOD, Relation.EQUAL, 3)), (Put(b"\xff\x00", "é".encode(), 5),))
    made = History(Setting(), (op(1, None, txn), op(2, 3, Grant(5, 60), DONE, 1), op(4, 5, Revoke(5), error="no")))
    assert saved(tmp_path / "h.jsonl", made) == made


def test_watches_come_back_with_their_responses(tmp_path: Path) -> None:
    x = kv("a", "x", 2)
    responses = (created(1), batch(event(x), fragment=True), batch(deletion("a", 3, x)), progress(3), cancelled(9))
    made = History(Setting(), (), (watch(responses, start=2, prev_kv=True, no_put=True),), Ending(3, (1,)))
    assert saved(tmp_path / "h.jsonl", made) == made


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "line 2: "),
        (b"\xff", "line 2: "),
        (b"[1]", 'line 2: no record; one has "record": one of history, operation'),
        (b'{"record":"guess"}', "line 2: no record"),
        (b'{"record":"history"}', "line 2: the first line, and no other"),
        (b'{"record":"response","watch":4,"time":1,"revision":1}', "line 2: a response of watch 4, which no line"),
        (b'{"record":"response","watch":[],"time":1,"revision":1}', "line 2: a response of watch"),
        (b'{"record":"operation","client":1}', "line 2: operation has no 'call'"),
        (b'{"record":"ending","revision":"x","watches":[]}', "line 2: ending.revision is 'x', not int"),
        (b'{"record":"ending","revision":true,"watches":[]}', "line 2: ending.revision is True, not int"),
        (b'{"record":"ending","revision":1,"watches":[],"more":1}', "line 2: ending has an unknown field 'more'"),
        (
            b'{"record":"operation","client":1,"call":1,"end":2,"request":{"kind":"pop"},"outcome":"ok"}',
            "line 2: operation.request has the kind 'pop', not one of range, put",
        ),
        (
            b'{"record":"operation","client":1,"call":1,"end":2,"request":{"kind":"put","key":1},"outcome":"ok"}',
            "line 2: operation.request.key is neither text",
        ),
        (
            b'{"record":"operation","client":1,"call":1,"end":2,"request":{"kind":"revoke","lease":1},"outcome":"?"}',
            "line 2: operation.outcome is '?', not one of ok, failed, unknown",
        ),
        (b'{"a":' * 50_000, "line 2: "),
    ],
)
def test_a_bad_line_is_named(line: bytes, problem: str) -> None:
    with pytest.raises(RecordError) as caught:
        recordfile.parse([HEAD, line])
    assert str(caught.value).startswith(problem)


def test_a_file_begins_with_its_setting() -> None:
    with pytest.raises(RecordError, match="line 1: the file is empty"):
        recordfile.parse([])
    with pytest.raises(RecordError, match="line 1: the first line"):
        recordfile.parse([b'{"record":"ending","revision":1,"watches":[]}'])
    with pytest.raises(RecordError, match="line 1: format 2, this release reads 1"):
        recordfile.parse([b'{"record":"history","format":2}'])
