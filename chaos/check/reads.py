"""Reads that linearizability leaves open: of a given revision, and serializable ones (checkers contract §2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chaos.check import words
from chaos.check.history import Found, Operation, Outcome, Range
from chaos.check.replay import Replay


@dataclass(frozen=True, slots=True)
class ReadViolation:
    operation: Operation
    explanation: str

    def __str__(self) -> str:
        return f"{words.operation(self.operation)}: {self.explanation}"


def check_reads(operations: Iterable[Operation], replay: Replay | None) -> list[ReadViolation]:
    """What is wrong with old and stale reads; without an oracle, only whether members go back in time.

    A client that reconnected to a restarted member must have a new number: what a member had applied and not yet
    stored it may show later again.
    """
    told = [each for each in operations if each.outcome is Outcome.OK and isinstance(each.request, Range)]
    told.sort(key=lambda each: each.call)
    found = list(_going_back(told))
    for operation in told:
        request, answer = operation.request, operation.answer
        assert isinstance(request, Range)
        assert answer is not None
        assert isinstance(answer.result, Found)
        if replay is not None and (request.revision or request.serializable):
            found += [
                ReadViolation(operation, text) for text in _old(request, answer.revision, answer.result, replay)
            ]
    return found


def _old(asked: Range, shown: int, result: Found, replay: Replay) -> Iterator[str]:
    at = asked.revision or shown
    if asked.revision > shown:
        yield f"the member was at revision {shown}, so it had to refuse revision {asked.revision} as a future one"
    elif shown > replay.newest:
        yield f"it showed revision {shown}, and the last one is {replay.newest}"
    elif not replay.first <= at <= replay.last:
        return  # from before the history, or from its unsettled end
    elif asked.revision and asked.revision < replay.compacted(shown):
        yield f"revision {asked.revision} was compacted (to {replay.compacted(shown)}), so it had to be refused"
    elif result != (expected := replay.find(asked, at)):
        yield f"the store at revision {at} held: {words.result(expected)}"


def _going_back(operations: Iterable[Operation]) -> Iterator[ReadViolation]:
    newest: dict[tuple[int, str], int] = {}
    for operation in operations:
        assert operation.answer is not None
        place, revision = (operation.client, operation.endpoint), operation.answer.revision
        if revision < newest.get(place, 0):
            text = f"the same member showed revision {newest[place]} to the same client before"
            yield ReadViolation(operation, text)
        newest[place] = max(revision, newest.get(place, 0))
