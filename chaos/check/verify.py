"""The whole verdict on a history: linearizability first, and if there is a legal order, everything against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from chaos.check.history import History, Outcome
from chaos.check.linearizability import Budget, GlobalRevision, PerKey, Result, Verdict, check
from chaos.check.reads import ReadViolation, check_reads
from chaos.check.replay import Replay, compactions_asked
from chaos.check.watch import Oracle, Violation, check_watches
from chaos.check.witness import Witness

_SHOWN: Final = 10
"""Violations of one kind that a report spells out."""


@dataclass(frozen=True, slots=True)
class Report:
    """``verdict`` is ILLEGAL if anything was violated, UNKNOWN if nothing was but the search ran out of budget.

    ``agreed_to`` is None where some order agrees with all that watches and old reads showed, or none was
    looked for; where none does, it is the revision at which the longest one ends that agrees so far.
    """

    verdict: Verdict
    linearizability: Result
    model: str
    watches: tuple[Violation, ...] = ()
    reads: tuple[ReadViolation, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    agreed_to: int | None = None

    def lines(self) -> Iterator[str]:
        """The report for people."""
        count = self.counts
        yield (
            f"{count['operations']} operations ({count['ok']} ok, {count['failed']} refused, {count['unknown']} "
            f"unknown) of {count['clients']} clients; {count['watches']} watches with {count['events']} events"
        )
        result = self.linearizability
        yield f"linearizable ({self.model}): {result.verdict} after {result.steps} steps"
        if result.explanation:
            yield result.explanation
        if result.verdict is Verdict.ILLEGAL:
            yield "watches and old reads: checked without an oracle, as there is no legal order"
        elif self.agreed_to is not None:
            yield f"no order agrees with all that watches and old reads showed beyond revision {self.agreed_to}"
        yield f"watch guarantees: {_summary(self.watches)}"
        yield from (f"  {each}" for each in self.watches[:_SHOWN])
        yield f"old and stale reads: {_summary(self.reads)}"
        yield from (f"  {each}" for each in self.reads[:_SHOWN])
        yield f"verdict: {self.verdict}"


def _summary(found: tuple[object, ...]) -> str:
    return f"{len(found)} violations" if found else "hold"


def verify(history: History, budget: Budget) -> Report:
    """Check everything that a history lets check. Raises HistoryError for one that is none."""
    setting, operations = history.setting, history.operations
    replay, agreed_to = None, None
    if setting.exclusive:
        result, agreed_to = _ordered(history, budget)
        if result.verdict is Verdict.OK:
            replay = Replay(result.prefix, setting.start_revision, result.leftover)
        elif result.verdict is Verdict.UNKNOWN:
            narrow = check(PerKey(), operations, budget, history.watches)
            result = narrow if narrow.verdict is Verdict.ILLEGAL else result
    else:
        result = check(PerKey(), operations, budget, history.watches)
    oracle = Oracle(replay, compactions_asked(operations), history.ending)
    watches = tuple(check_watches(history.watches, oracle))
    reads = tuple(check_reads(operations, replay))
    verdict = Verdict.ILLEGAL if watches or reads or agreed_to is not None else result.verdict
    name = "whole store, with its revision" if setting.exclusive else "each key alone"
    return Report(verdict, result, name, watches, reads, _counts(history), agreed_to)


def _ordered(history: History, budget: Budget) -> tuple[Result, int | None]:
    """The order that everything else is judged by: one that agrees with what watches and old reads showed.

    Where none does, any legal order is taken, so that the report can say what is wrong with which answer; and the
    revision is returned up to which one agreed.
    """
    start, operations = history.setting.start_revision, history.operations
    witness = Witness(start, operations, history.watches)
    result = check(GlobalRevision(start, witness), (*operations, witness.end), budget, history.watches)
    if result.verdict is not Verdict.ILLEGAL:
        return result, None
    agreed_to = Replay(result.prefix, start).last
    return check(GlobalRevision(start), operations, budget, history.watches), agreed_to


def _counts(history: History) -> dict[str, int]:
    outcomes = Counter(operation.outcome for operation in history.operations)
    return {
        "operations": len(history.operations),
        **{str(outcome): outcomes[outcome] for outcome in Outcome},
        "clients": len({operation.client for operation in history.operations}),
        "watches": len(history.watches),
        "events": sum(len(response.events) for watch in history.watches for response in watch.responses),
    }
