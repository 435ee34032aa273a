"""Reads that linearizability leaves open: of a given revision, and serializable ones (checkers contract §2)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from chaos.check import words
from chaos.check.etcd_model import revision_made
from chaos.check.history import COMPACTED, FUTURE_REVISION, Compact, Found, Operation, Outcome, Range
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
    operations = sorted(operations, key=lambda each: each.call)
    told = [each for each in operations if each.outcome is Outcome.OK and isinstance(each.request, Range)]
    found = list(_going_back(operations))
    found += _too_early(operations)
    found += _too_late(operations)
    if replay is not None:
        found += _refused(operations)
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
    """Any answer shows how far its member was, that of a write or an old read too; 0 is a header not recorded."""
    newest: dict[tuple[int, str], int] = {}
    for operation in operations:
        place, request, answer = (operation.client, operation.endpoint), operation.request, operation.answer
        known = newest.get(place)
        if answer is not None and answer.revision:
            shown = answer.revision
            newest[place] = shown if known is None else max(shown, known)
        elif isinstance(request, Range) and operation.error == FUTURE_REVISION:
            shown = request.revision - 1  # or less
        else:
            continue
        if known is not None and shown < known:
            yield ReadViolation(operation, f"the same member showed revision {known} to the same client before")


def _too_early(operations: Sequence[Operation]) -> Iterator[ReadViolation]:
    """No revision is shown before its write, and all writes before that, were called."""
    made = sorted((revision, each.call) for each in operations if (revision := revision_made(each)))
    calls = list(accumulate((call for _, call in made), max))
    for operation, end, revision in _shown(operations):
        place = bisect_right(made, (revision, inf)) - 1
        if place >= 0 and calls[place] > end:
            yield ReadViolation(operation, "a write up to that revision was called only after this answer")


def _too_late(operations: Sequence[Operation]) -> Iterator[ReadViolation]:
    """Once a revision was shown to anybody, whoever reads the latest state sees it."""
    told = sorted((end, revision) for _, end, revision in _shown(operations))
    newest = list(accumulate((revision for _, revision in told), max))
    for operation, _, revision in _shown(operations):
        place = bisect_left(told, (operation.call, -inf)) - 1
        if place >= 0 and not operation.is_stale_read and revision < newest[place]:
            yield ReadViolation(
                operation, f"somebody had been shown revision {newest[place]} before it was called"
            )


def _shown(operations: Iterable[Operation]) -> Iterator[tuple[Operation, int, int]]:
    """What was answered, when, and at which revision."""
    for operation in operations:
        if operation.end is not None and operation.answer is not None and operation.answer.revision:
            yield operation, operation.end, operation.answer.revision


def _refused(operations: Sequence[Operation]) -> Iterator[ReadViolation]:
    """Nothing is refused as compacted that nobody can have compacted by then."""
    asked = [(each.call, each.request.revision) for each in operations
             if isinstance(each.request, Compact) and each.outcome is not Outcome.FAILED]  # fmt: skip
    for operation in operations:
        request, end = operation.request, operation.end
        if not (isinstance(request, Range) and request.serializable and operation.error == COMPACTED and end):
            continue
        if not any(call <= end and to > request.revision for call, to in asked):
            yield ReadViolation(operation, "nobody had asked for a compaction of that revision")
