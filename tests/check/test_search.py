"""The search against trying every order: what it leaves out for speed never changes a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from chaos.check.etcd_model import EtcdModel, State, keys_written
from chaos.check.history import Answer, Compact, Found, Grant, KeyValue, Operation, Outcome, Range, Revoke
from chaos.check.linearizability import Budget, GlobalRevision, PerKey, Verdict, check, relevant
from tests.check.simulated import history


def is_legal(operations: Sequence[Operation]) -> bool:
    """By the definition: some order in real time, with any of the unknown writes, explains all answers."""
    model = EtcdModel(keys_written(operations))
    return _can_go_on(model, model.empty(), tuple(operations))


def _can_go_on(model: EtcdModel, state: State, left: tuple[Operation, ...]) -> bool:
    due = [each.end for each in left if each.end is not None]
    if not due:
        return True
    for place, operation in enumerate(left):
        if operation.call > min(due):
            continue
        after, expected = model.perform(state, operation.request)
        told = operation.error if operation.is_refusal else operation.answer
        fits = operation.outcome is Outcome.UNKNOWN or _says_the_same(operation, told, expected, state)
        if fits and _can_go_on(model, after, left[:place] + left[place + 1 :]):
            return True
    return False


def _says_the_same(operation: Operation, told: object, expected: object, state: State) -> bool:
    request = operation.request
    if isinstance(request, Range) and 0 < request.revision < state.revision and not isinstance(expected, str):
        return operation.exact_revision == state.revision
    if isinstance(request, Grant | Revoke | Compact) and isinstance(told, Answer) and isinstance(expected, Answer):
        return told.revision >= expected.revision  # these headers may show a later one
    return told == expected


def bent(operations: Sequence[Operation], random: Random) -> list[Operation]:
    """Perhaps one answer changed a little, into one that may or may not be possible."""
    places = [i for i, each in enumerate(operations) if each.exact_revision]
    if not places or random.random() < 0.3:
        return list(operations)
    place = random.choice(places)
    operation = operations[place]
    assert operation.answer is not None
    answer = operation.answer
    if isinstance(answer.result, Found) and answer.result.kvs and random.random() < 0.5:
        values = [kv for each in operations if each.answer for kv in _kvs(each)]
        kv = replace(answer.result.kvs[0], value=random.choice(values).value)
        answer = replace(answer, result=replace(answer.result, kvs=(kv, *answer.result.kvs[1:])))
    else:
        answer = replace(answer, revision=max(1, answer.revision + random.choice((-1, 1))))
    return [*operations[:place], replace(operation, answer=answer), *operations[place + 1 :]]


def _kvs(operation: Operation) -> tuple[KeyValue, ...]:
    assert operation.answer is not None
    return operation.answer.result.kvs if isinstance(operation.answer.result, Found) else ()


@pytest.mark.parametrize("block", range(8))
def test_the_search_agrees_with_trying_every_order(block: int) -> None:
    verdicts = []
    for seed in range(block * 60, block * 60 + 60):
        random = Random(seed)
        operations = bent(history(seed, 8, clients=4, keys=(b"a", b"b"), lost=0.3), random)
        legal = is_legal(relevant(operations))
        verdicts.append(legal)
        whole = check(GlobalRevision(), operations, Budget(steps=100_000))
        assert whole.verdict is (Verdict.OK if legal else Verdict.ILLEGAL), (seed, whole.explanation)
        if legal:
            assert check(PerKey(), operations, Budget(steps=100_000)).verdict is Verdict.OK, seed
    assert 5 < sum(verdicts) < 55, "both verdicts must be met"
