"""Is there an order of all operations, each between its call and its return, that explains every answer?

Two models answer for etcd: :class:`GlobalRevision`, the whole store with its revision, and :class:`PerKey`, each
key alone, which is weaker but bounded by the traffic of one key. ``check`` works over either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chaos.check import key_model, words
from chaos.check.etcd_model import EtcdPart, Seen, keys_written
from chaos.check.evidence import deletions, kvs_read, kvs_watched, with_evidence
from chaos.check.history import Operation, Outcome, Watch
from chaos.check.search import Budget, Found, Part, Verdict, search

__all__ = ["Budget", "GlobalRevision", "HistoryError", "PerKey", "Result", "Verdict", "check"]

UNLIMITED: Final = Budget()
Gone = Mapping[int, frozenset[bytes]]

_EXPLAIN_STEPS: Final = 50_000
_SHOWN_BEFORE: Final = 5
"""Operations of the legal order that an explanation shows."""


class HistoryError(ValueError):
    """The history breaks the assumptions of the checkers, so that a verdict on it would mean nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """``prefix`` is the longest legal order found, ``culprit`` the operation that cannot follow it;
    ``explanation`` says it in words. When the verdict is OK and the model has one part, ``prefix`` is a legal
    order of everything, and ``leftover`` what of unknown outcome need not have happened by its end."""

    verdict: Verdict
    steps: int
    explanation: str = ""
    part: str = ""
    prefix: tuple[Operation, ...] = ()
    culprit: Operation | None = None
    leftover: tuple[Operation, ...] = ()


class Model(Protocol):
    def parts(self, operations: Sequence[Operation], gone: Gone) -> Iterable[Part[Any]]:
        """Split a history (in order of calls) into what can be checked apart. ``gone`` are keys that were seen to
        be deleted, by revision."""
        ...


@dataclass(frozen=True, slots=True)
class GlobalRevision:
    """The etcd model of checkers contract §1.2. Nobody but the recorded clients may have written. With a
    ``witness`` only orders count that agree with it."""

    start_revision: int = 1
    witness: Seen | None = None

    def parts(self, operations: Sequence[Operation], gone: Gone) -> Iterable[Part[Any]]:
        return [EtcdPart(operations, self.start_revision, gone, self.witness)]


@dataclass(frozen=True, slots=True)
class PerKey:
    """A register with versions for each key; refusals and reads of old revisions are left out."""

    def parts(self, operations: Sequence[Operation], gone: Gone) -> Iterable[Part[Any]]:
        told = [operation for operation in operations if operation.outcome is not Outcome.FAILED]
        for key in sorted(keys_written(told) | key_model.keys_seen(told)):
            leases = key_model.leases_of(told, key)
            yield key_model.KeyPart(key, [each for each in told if key_model.touches(each, key, leases)])


def relevant(operations: Iterable[Operation]) -> list[Operation]:
    """What an order has to explain, by call: no stale reads, no reads without an answer, nothing that certainly
    was not applied, except where the refusal itself says something."""
    kept = [
        each
        for each in operations
        if not each.is_stale_read
        and (each.outcome is Outcome.OK or each.is_refusal or (each.outcome is Outcome.UNKNOWN and each.writes))
    ]
    kept.sort(key=lambda each: each.call)
    return kept


def assume(operations: Iterable[Operation]) -> None:
    """Raises HistoryError when the records contradict each other: outcomes without what belongs to them, time that
    runs backwards, a client that asks before it was answered."""
    last: dict[int, Operation] = {}
    for operation in sorted(operations, key=lambda each: (each.call, each.client)):
        problem = _problem(operation)
        before = last.get(operation.client)
        if problem is None and before is not None:
            if before.end is None:
                problem = "its client had an operation of unknown outcome before; go on as a new client after one"
            elif before.end > operation.call:
                problem = f"its client was still waiting for: {words.request(before.request)}"
        if problem is not None:
            raise HistoryError(f"{words.operation(operation)} (call {operation.call}): {problem}")
        last[operation.client] = operation


def _problem(operation: Operation) -> str | None:
    if (operation.end is None) != (operation.outcome is Outcome.UNKNOWN):
        return "an operation has no end exactly when its outcome is unknown"
    if (operation.answer is not None) != (operation.outcome is Outcome.OK):
        return "an operation has an answer exactly when its outcome is ok"
    if operation.end is not None and operation.end <= operation.call:
        return "it ends before it began"
    return None


def check(
    model: Model, operations: Iterable[Operation], budget: Budget = UNLIMITED, watches: Iterable[Watch] = ()
) -> Result:
    """Check a history; the first part that is illegal decides. Raises HistoryError.

    ``watches`` of the same run may be given as further evidence of what was applied; they are not checked here.
    """
    operations, watches = tuple(operations), tuple(watches)
    assume(operations)
    seen = (*kvs_read(operations), *kvs_watched(watches))
    steps, undecided = 0, ""
    order: tuple[Operation, ...] = ()
    leftover: tuple[Operation, ...] = ()
    for part in model.parts(with_evidence(relevant(operations), seen), deletions(watches)):
        left = None if budget.steps is None else max(0, budget.steps - steps)
        found = search(part, Budget(left, budget.seconds))
        steps += found.steps
        if found.verdict is Verdict.ILLEGAL:
            plain = search(part, Budget(_EXPLAIN_STEPS), ranked=False)
            return _illegal(part, plain if plain.stuck else found, steps)
        if found.verdict is Verdict.UNKNOWN and not undecided:
            undecided = part.name
        order = tuple(part.operations[index] for index in found.order)
        taken = set(found.order)
        leftover = tuple(each for index, each in enumerate(part.operations) if index not in taken)
    if undecided:
        return Result(Verdict.UNKNOWN, steps, f"{undecided}: not decided within the budget", undecided)
    return Result(Verdict.OK, steps, prefix=order, leftover=leftover)


def _illegal(part: Part[Any], found: Found[Any], steps: int) -> Result:
    prefix = tuple(part.operations[index] for index in found.order)
    lines = [
        f"{part.name}: not linearizable. The longest legal order has {len(prefix)} of {len(part.operations)} "
        + ("operations, the last of them:" if prefix else "operations.")
    ]
    lines += [f"  {words.operation(each)}" for each in prefix[-_SHOWN_BEFORE:]]
    stuck = sorted(found.stuck, key=lambda index: part.step(found.state, index) is not None)
    if found.lowest not in stuck:
        stuck = list(found.stuck)
    culprit = stuck[0]
    lines += ["Nothing that could come next fits. What must come next is:", f"  {_why(part, found, culprit)}"]
    if len(stuck) > 1:
        lines.append("Under way at the same time, and fitting no better:")
        lines += [f"  {_why(part, found, index)}" for index in stuck[1:]]
    return Result(Verdict.ILLEGAL, steps, "\n".join(lines), part.name, prefix, part.operations[culprit])


def _why(part: Part[Any], found: Found[Any], index: int) -> str:
    if found.lowest in (-1, index) or part.step(found.state, index) is None:
        return part.why(found.state, index)
    return (
        f"{words.operation(part.operations[index])}; but one that was answered at a lower revision is still to "
        f"come: {words.operation(part.operations[found.lowest])}"
    )
